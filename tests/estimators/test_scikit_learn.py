"""Test scikit-learn's API contract: checks, names, saving, routing, failed fits."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, KFold, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import check_estimator

import regbayes
from ilsvm_estimator_tools import Watch, digits, ibp, ilsvm, ilsvm_cv, ilsvm_regressor, ilsvm_regressor_cv
from medlda_tools import draw_documents
from multitask_tools import classifier, classifier_cv, labels, numbers, ragged_for, regressor, regressor_cv
from regbayes import (
    MedLDAClassifier,
    MedLDAClassifierCV,
    MedLDARegressor,
    MedLDARegressorCV,
    MultiLabelThresholdCV,
    PathSearchCV,
)

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X, y = digits()
DOCUMENTS, SHARES, _ = draw_documents(60)
MODELS: dict[str, tuple[Any, Any, Any]] = {
    "iLSVM": (ilsvm, X, y),
    "iLSVM CV": (ilsvm_cv, X, y),
    "iLSVM regressor": (ilsvm_regressor, X, X[:, 20]),
    "iLSVM regressor CV": (ilsvm_regressor_cv, X, X[:, 20]),
    "several labels": (ilsvm, X, np.eye(4)[y]),
    "IBP": (ibp, X, y),
    "tasks": (classifier, *labels()),
    "tasks CV": (classifier_cv, *labels()),
    "numbers": (regressor, *numbers()),
    "numbers CV": (regressor_cv, *numbers()),
}
every_estimator = pytest.mark.parametrize(("make", "X", "y"), MODELS.values(), ids=MODELS)
several_tasks = pytest.mark.parametrize("make", [classifier, regressor, classifier_cv, regressor_cv])


# --- scikit-learn's own checks

WEIGHTS = ("check_sample_weight_equivalence_on_dense_data", "check_sample_weight_equivalence_on_sparse_data")
GAP = dict.fromkeys(WEIGHTS, "classifiers are solved to a duality gap, and copies of a row share its multipliers")
ROWS = dict.fromkeys(WEIGHTS, "folds and resamples are drawn by rows")
INEXACT = dict.fromkeys(WEIGHTS, "tables in single precision and a duality gap; J is equal in other tests")
NEGATIVE = dict.fromkeys(
    ("check_class_weight_classifiers", "check_decision_proba_consistency"),
    "its rows have negative values, whatever the tags say",
)
FRACTIONS = {
    **dict.fromkeys(WEIGHTS, "its rows are not whole counts, whatever the tags say"),
    **NEGATIVE,
    "check_classifiers_one_label_sample_weights": "its rows are not whole counts, whatever the tags say",
}
ON_MARGIN = {
    "check_classifier_multioutput": "scores on the margin differ by rounding, which probabilities do not resolve"
}
BY_NAME = {"check_classifiers_one_label_sample_weights": "it looks for sample_weight among the parameters of fit"}
TASKS = {"Cs": (1.0,), "include_inputs": (False,), "temperatures": (0.0,), "max_iter": 3}
TOPICS = {"max_iter": 3, "random_state": 0}

CHECKED = {
    "iLSVM": (ilsvm(2, max_iter=2), GAP),
    "iLSVM CV": (ilsvm_cv(2, Cs=(1.0,), max_iter=1), GAP),
    "iLSVM regressor": (ilsvm_regressor(4, max_iter=2), {}),
    "iLSVM regressor CV": (ilsvm_regressor_cv(4, Cs=(1.0,), max_iter=1), ROWS),
    "IBP": (ibp(2, max_iter=2), {}),
    "tasks": (classifier(2, C=1.0, max_iter=10, tol=0.0), {}),
    "tasks CV": (classifier_cv(2, **TASKS, tol=0.0), {}),
    "numbers": (regressor(C=1.0, max_iter=30, tol=0.0), {}),
    "numbers CV": (regressor_cv(2, **TASKS), GAP),
    "MedLDA": (MedLDAClassifier(4, **TOPICS), INEXACT | NEGATIVE),
    "MedLDA regressor": (MedLDARegressor(4, **TOPICS), INEXACT),
    "MedLDA, sampler": (MedLDAClassifier(4, inference="gibbs", **TOPICS), FRACTIONS),
    "MedLDA regressor, sampler": (MedLDARegressor(4, inference="gibbs", **TOPICS), FRACTIONS),
    "MedLDA CV": (MedLDAClassifierCV((2,), Cs=(1.0,), cv=2, **TOPICS), INEXACT | NEGATIVE | ON_MARGIN),
    "MedLDA regressor CV": (MedLDARegressorCV((2,), Cs=(1.0,), cv=2, **TOPICS), INEXACT),
    "path of iLSVM": (PathSearchCV(ilsvm(2, max_iter=1), {"C": [1.0]}, along="C", cv=2, random_state=0), BY_NAME),
    "search of ridge": (PathSearchCV(Ridge(), {"alpha": [1.0]}, cv=2), {}),
    "thresholds": (MultiLabelThresholdCV(LogisticRegression(), cv=2), ROWS),
    "thresholds of tasks": (MultiLabelThresholdCV(classifier(3, C=1.0, max_iter=2, temperature=0.0), cv=2), ROWS),
}
# The first check needs the variable SCIPY_ARRAY_API, the second `predict_proba`.
SKIPPED = {"check_array_api_input", "check_classifiers_multilabel_output_format_predict_proba"}


@pytest.mark.filterwarnings("ignore:The least populated class")  # check_estimator uses tiny classes
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")  # and infinite values
@pytest.mark.parametrize(("estimator", "may_fail"), CHECKED.values(), ids=CHECKED)
def test_check_estimator_passes(estimator, may_fail):
    results = check_estimator(estimator, on_skip=None, on_fail=None, expected_failed_checks=may_fail)
    assert not {result["check_name"]: result["exception"] for result in results if result["status"] == "failed"}
    assert {result["check_name"] for result in results if result["status"] == "skipped"} <= SKIPPED
    assert sum(result["status"] == "passed" for result in results) > 45


def test_check_estimator_covers_public_estimators():
    public = {getattr(regbayes, name) for name in regbayes.__all__}
    estimators = {one for one in public if isinstance(one, type) and hasattr(one, "get_params")}
    needs_a_model = {regbayes.MarginClassifier}  # tested in tests/adapters
    assert estimators - needs_a_model == {type(estimator) for estimator, _ in CHECKED.values()}


# --- names, saving, clones


@every_estimator
def test_feature_names_are_set_and_checked(make, X, y):
    frame = pd.DataFrame(X).add_prefix("input ")
    fitted = make().set_output(transform="pandas").fit(frame, y)
    names = [f"{type(fitted).__name__.lower()}{k}" for k in range(fitted.components_.shape[0])]
    assert list(fitted.get_feature_names_out()) == names
    assert list(fitted.transform(frame).columns) == names
    np.testing.assert_allclose(make().fit_transform(X, y), fitted.transform(frame), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="feature names should match"):
        fitted.transform(frame[frame.columns[::-1]])


@every_estimator
def test_estimator_can_be_saved_pickled_and_cloned(make, X, y, tmp_path):
    frame = pd.DataFrame(X).add_prefix("input ")
    fitted = make().set_output(transform="pandas").fit(frame, y)
    fitted.save(tmp_path / "model.rb")
    for found in (regbayes.load(tmp_path / "model.rb"), pickle.loads(pickle.dumps(fitted))):
        pd.testing.assert_frame_equal(found.transform(frame), fitted.transform(frame))
        np.testing.assert_array_equal(found.trace_.objective, fitted.trace_.objective)
        assert found.get_params(deep=False).keys() == fitted.get_params(deep=False).keys()
        assert found.score(frame, y) == fitted.score(frame, y)
    again = clone(fitted)
    assert not hasattr(again, "components_")
    np.testing.assert_array_equal(again.fit(frame, y).components_, fitted.components_)
    assert type(fitted).__name__ in fitted._repr_html_()


@several_tasks
def test_ragged_tasks_can_be_saved(make, tmp_path):
    X, y, task = ragged_for(make)
    fitted = make().fit(X, y, task=task)
    fitted.save(tmp_path / "model.rb")
    loaded = regbayes.load(tmp_path / "model.rb")
    np.testing.assert_array_equal(loaded.predict(X, task=task), fitted.predict(X, task=task))
    assert loaded.tasks_.tolist() == fitted.tasks_.tolist()


@pytest.mark.parametrize("name", ["iLSVM CV", "tasks CV", "numbers CV"])
def test_search_with_splitter_and_scorer_can_be_saved(name, tmp_path):
    make, X, y = MODELS[name]
    search = make(cv=KFold(2, shuffle=True, random_state=0), scoring=lambda model, X, y: -len(X)).fit(X, y)
    search.save(tmp_path / "search.rb")
    np.testing.assert_array_equal(regbayes.load(tmp_path / "search.rb").predict(X), search.predict(X))


def test_classes_of_mixed_types_can_be_saved(tmp_path):
    X, Y = numbers()
    mixed = np.empty((len(X), 2), dtype=object)
    mixed[:, 0], mixed[:, 1] = np.where(Y[:, 0] > 0, "yes", "no"), np.digitize(Y[:, 1], [-1, 1])
    fitted = classifier().fit(X, mixed)
    fitted.save(tmp_path / "model.rb")
    np.testing.assert_array_equal(regbayes.load(tmp_path / "model.rb").predict(X), fitted.predict(X))


def test_save_drops_callbacks_and_loaded_model_can_be_refit(tmp_path):
    fitted = ilsvm(max_iter=3, warm_start=True).set_callbacks(Watch()).fit(X, y)
    fitted.save(tmp_path / "model.rb")
    further, loaded = fitted.fit(X, y), regbayes.load(tmp_path / "model.rb").fit(X, y)
    np.testing.assert_array_equal(loaded.components_, further.components_)


# --- pipelines and routing


def test_estimator_works_in_pipeline_and_grid_search():
    two_stage = make_pipeline(ibp(), LinearSVC()).fit(X, y)
    assert two_stage[:-1].get_feature_names_out()[0] == "ibpfactoranalysis0"
    search = GridSearchCV(ilsvm(max_iter=3), {"temperature": [0.05, "auto"]}, cv=2).fit(X, y)
    assert search.best_params_.keys() == {"temperature"}


@several_tasks
def test_task_is_routed_as_metadata(make):
    X, y, task = ragged_for(make)
    with sklearn.config_context(enable_metadata_routing=True):
        model = make().set_fit_request(task=True).set_score_request(task=True).set_predict_request(task=True)
        found = cross_validate(model, X, y, params={"task": task}, cv=KFold(2, shuffle=True, random_state=0))
        assert np.all(found["test_score"] > 0)
        assert model.get_metadata_routing().predict.requests == {"task": True}
        steps = make_pipeline(StandardScaler(), model)
        search = GridSearchCV(steps, {}, cv=KFold(2), error_score="raise").fit(X, y, task=task)
        assert search.best_score_ > 0


@pytest.mark.parametrize("make", [classifier, regressor])
def test_sample_weight_is_routed_as_metadata(make):
    X, y, task = ragged_for(make)
    weights = np.random.default_rng(3).integers(1, 4, len(X)).astype(float)
    with sklearn.config_context(enable_metadata_routing=True):
        asks = {"task": True, "sample_weight": True}
        model = make().set_fit_request(**asks).set_score_request(**asks).set_predict_request(task=True)
        given = {"task": task, "sample_weight": weights}
        halves = KFold(2, shuffle=True, random_state=0)
        found = cross_validate(model, X, y, params=given, cv=halves)["test_score"]
    for score, (train, test) in zip(found, halves.split(X), strict=True):
        fitted = make().fit(X[train], y[train], task=task[train], sample_weight=weights[train])
        assert score == fitted.score(X[test], y[test], task=task[test], sample_weight=weights[test])


@several_tasks
def test_score_sample_weights_match_copies(make):
    X, Y = numbers() if make in (regressor, regressor_cv) else labels()
    model, weights = make().fit(X, Y), np.arange(len(X)) % 3
    repeated = np.repeat(np.arange(len(X)), weights)
    assert model.score(X, Y, sample_weight=weights) == pytest.approx(model.score(X[repeated], Y[repeated]))
    assert model.score(X, Y, sample_weight=np.ones(len(X))) == pytest.approx(model.score(X, Y))
    missing = np.where(np.arange(len(X))[:, None] == 0, np.nan, Y)
    with pytest.raises(ValueError, match="sample_weight is zero for every row with an observed target"):
        model.score(X, missing, sample_weight=np.arange(len(X)) == 0)


# --- fits that fail


@every_estimator
def test_unfitted_estimator_raises(make, X, y):
    with pytest.raises(NotFittedError):
        make().transform(X)
    with pytest.raises(NotFittedError):
        make().get_feature_names_out()
    model = make()
    if make is not ibp:
        with pytest.raises(ValueError, match="y is None"):
            model.fit(X, None)
        with pytest.raises(NotFittedError):
            model.predict(X)


@pytest.mark.parametrize("make", [classifier, regressor])
def test_failed_fit_leaves_attributes_unchanged(make):
    X, Y = numbers() if make is regressor else labels()
    constant, model = np.ones((len(X), 2)), make()
    for earlier in (None, X):
        if earlier is not None:
            model.fit(X, Y)
        before = dict(vars(model))
        with pytest.raises(ValueError, match="every column of X is constant"):
            model.fit(constant, Y)
        assert vars(model).keys() == before.keys()
        assert all(vars(model)[name] is value for name, value in before.items())
    assert model.predict(X).shape == Y.shape


def test_failing_callback_is_torn_down():
    heard = []

    class Failing:
        def setup(self, estimator, context): ...

        def teardown(self, estimator, context):
            heard.append("teardown")

        def on_fit_task_begin(self, estimator, context, **_): ...

        def on_fit_task_end(self, estimator, context, **_):
            raise RuntimeError("no more")

    X, Y = labels()
    model = classifier().set_callbacks(Failing())
    with pytest.raises(RuntimeError, match="no more"):
        model.fit(X, Y)
    assert heard == ["teardown"]
    assert not hasattr(model, "tasks_")
