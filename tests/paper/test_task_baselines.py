"""The multi-task baselines keep scikit-learn's promises and take tasks as the package's own models do."""

from __future__ import annotations

import pickle
from collections import Counter
from functools import partial
from importlib.util import find_spec

import numpy as np
import pandas as pd
import pytest
import sklearn
from scipy.sparse import csr_matrix
from sklearn.base import clone, is_classifier
from sklearn.callback import ProgressBar
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import KFold, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import regbayes
from multitask_tools import groups, holes, labels, numbers
from reference_tools import fits_its_rows
from regbayes_paper.baselines import (
    ASOClassifier,
    ASORegressor,
    BMTLRegressor,
    DirichletProcessTaskClassifier,
    MTGPRegressor,
    MTRLClassifier,
    MTRLRegressor,
    PredictorSubspaceClassifier,
    SingleTaskClassifier,
    SingleTaskRegressor,
)

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


needs_gpytorch = pytest.mark.skipif(find_spec("gpytorch") is None, reason="needs GPyTorch (the `gp` extra)")

REGRESSORS = [
    *(partial(model) for model in (SingleTaskRegressor, MTRLRegressor, BMTLRegressor, ASORegressor)),
    partial(MTGPRegressor, rank=1, max_iter=10),
]
LOGISTIC = [
    partial(DirichletProcessTaskClassifier, max_iter=30, random_state=0),
    partial(PredictorSubspaceClassifier, n_components=3, max_iter=30, random_state=0),
    partial(PredictorSubspaceClassifier, n_components=3, augmented=True, max_iter=30, random_state=0),
]
CLASSIFIERS = [*(partial(model) for model in (SingleTaskClassifier, MTRLClassifier, ASOClassifier)), *LOGISTIC]
EVERY = [*REGRESSORS, *CLASSIFIERS]
ITERATIVE = [make for make in EVERY if hasattr(make(), "max_iter")]


def name_of(make):
    return make.func.__name__ + (" augmented" if "augmented" in make.keywords else "")


def each(makers):
    cases = [
        pytest.param(make, id=name_of(make), marks=needs_gpytorch if make.func is MTGPRegressor else ())
        for make in makers
    ]
    return pytest.mark.parametrize("make", cases)


every_baseline, every_regressor, every_classifier = each(EVERY), each(REGRESSORS), each(CLASSIFIERS)
every_iterative = each(ITERATIVE)


def data_for(make):
    return numbers() if make in REGRESSORS else labels()


def ragged_for(make):
    X, y, task = groups()
    return (X, y, task) if make in REGRESSORS else (X, (y > np.median(y)).astype(int), task)


# --- scikit-learn's own checks and manners


@every_baseline
def test_all_of_scikit_learns_checks_pass(make):
    slow = make in LOGISTIC or make.func is MTGPRegressor
    model = make(max_iter=2) if slow else make()
    results = check_estimator(model, on_skip=None, on_fail=None)
    failed = {result["check_name"]: result["exception"] for result in results if result["status"] == "failed"}
    skipped = {result["check_name"] for result in results if result["status"] == "skipped"}
    assert not failed
    # the first runs where SCIPY_ARRAY_API is set, the second is about predict_proba
    assert skipped <= {"check_array_api_input", "check_classifiers_multilabel_output_format_predict_proba"}
    expected = 68 if is_classifier(model) else 60
    assert Counter(result["status"] for result in results)["passed"] == expected - len(skipped)


@every_baseline
def test_help_names_every_parameter_and_fitted_attribute(make):
    """Docstrings are put together of pieces that several classes share."""
    X, Y = data_for(make)
    text = make.func.__doc__
    fitted = [name for name in vars(make().fit(X, Y)) if name.endswith("_") and not name.startswith("_")]
    lines = {name for line in text.splitlines() for name in line.partition(" :")[0].split(", ") if line[:1] != " "}
    assert set(make().get_params()) | {*fitted} <= lines
    assert "$" not in text


# --- rows that count more than once


@every_baseline
@pytest.mark.parametrize("layout", ["matrix", "ragged"])
def test_weights_of_rows_are_repeated_rows(make, layout):
    """Weights of 0 leave rows out, and whole tasks with them; others repeat rows: predictions and terms of J agree."""
    task = None
    if layout == "matrix":
        X, Y = data_for(make)
        Y = holes(Y)
    else:
        X, Y, task = ragged_for(make)
    counts = np.random.default_rng(3).integers(0, 4, len(X))
    if task is not None:
        counts[task == task[0]] = 0
    options = {"max_iter": 5} if make in ITERATIVE else {}
    if make in CLASSIFIERS:
        options["class_weight"] = "balanced"
    repeated = make(**options).fit(
        X.repeat(counts, axis=0), Y.repeat(counts, axis=0), task=None if task is None else task.repeat(counts)
    )
    weighted = make(**options).fit(X, Y, task=task, sample_weight=counts)
    np.testing.assert_array_equal(weighted.tasks_, repeated.tasks_)
    where = {} if task is None else {"task": np.full(len(X), weighted.tasks_[0])}
    ask = "predict" if make in REGRESSORS else "decision_function"
    one, two = (getattr(model, ask)(X, **where) for model in (weighted, repeated))
    np.testing.assert_allclose(one, two, rtol=1e-6, atol=1e-6 * np.abs(two).max())
    if make in ITERATIVE:
        unit = np.abs(repeated.trace_.objective).max()
        for name, values in weighted.trace_.terms.items():
            np.testing.assert_allclose(values, repeated.trace_.terms[name], rtol=1e-7, atol=1e-7 * unit)


def test_balanced_tasks_and_places_hear_of_weights():
    X, Y = labels()
    counts = np.random.default_rng(3).integers(0, 4, len(X))
    for model in (MTRLClassifier(balance_tasks=False), DirichletProcessTaskClassifier(kernel_width=1.0, max_iter=5)):
        weighted = clone(model).fit(X, Y, sample_weight=counts)
        repeated = clone(model).fit(X.repeat(counts, axis=0), Y.repeat(counts, axis=0))
        np.testing.assert_allclose(weighted.decision_function(X), repeated.decision_function(X), atol=1e-6)


@every_baseline
def test_weights_that_make_no_sense_are_refused(make):
    X, Y = data_for(make)
    with pytest.raises(ValueError, match=r"[Nn]egative"):
        make().fit(X, Y, sample_weight=-np.ones(len(X)))
    with pytest.raises(ValueError, match="sample_weight"):
        make().fit(X, Y, sample_weight=np.ones(len(X) - 1))


@every_baseline
def test_saving_pickling_and_cloning(make, tmp_path):
    X, y, task = ragged_for(make)
    fitted = make().fit(X, y, task=task)
    fitted.save(tmp_path / "model.regbayes")
    for found in (regbayes.load(tmp_path / "model.regbayes"), pickle.loads(pickle.dumps(fitted))):
        np.testing.assert_array_equal(found.predict(X, task=task), fitted.predict(X, task=task))
    again = clone(fitted)
    assert not hasattr(again, "coef_")
    np.testing.assert_array_equal(again.fit(X, y, task=task).predict(X, task=task), fitted.predict(X, task=task))


@every_baseline
def test_tasks_are_routed_as_metadata(make):
    X, y, task = ragged_for(make)
    with sklearn.config_context(enable_metadata_routing=True):
        model = make().set_fit_request(task=True).set_score_request(task=True).set_predict_request(task=True)
        pipeline = make_pipeline(StandardScaler(), model)
        found = cross_validate(pipeline, X, y, params={"task": task}, cv=KFold(2, shuffle=True, random_state=0))
        assert np.all(found["test_score"] > 0)


@pytest.mark.parametrize("make", [SingleTaskRegressor, SingleTaskClassifier])
def test_rows_count_in_the_score_by_their_weights(make):
    X, y, task = groups()
    y = y if make is SingleTaskRegressor else (y > np.median(y)).astype(int)
    fitted, some = make().fit(X, y, task=task), np.arange(len(y)) % 3 > 0
    found = fitted.score(X, y, task, sample_weight=some.astype(float))
    assert found == pytest.approx(fitted.score(X[some], y[some], task[some]))
    assert found != fitted.score(X, y, task)


@every_baseline
def test_callbacks_hear_of_a_fit(make, capsys):
    X, Y = data_for(make)
    plain, watched = make().fit(X, Y), make().set_callbacks(ProgressBar()).fit(X, Y)
    np.testing.assert_array_equal(watched.predict(X), plain.predict(X))
    assert make.func.__name__ in capsys.readouterr().out


@every_iterative
def test_an_iterative_fit_leaves_its_course_and_warns_when_cut_short(make):
    X, Y = data_for(make)
    fitted = make().fit(X, Y)
    assert fitted.n_iter_ == fitted.trace_.iterations[-1] > 2
    assert fitted.trace_.rises.largest <= 1e-8 * abs(fitted.trace_.objective[0])
    with pytest.warns(ConvergenceWarning, match="stopped at max_iter=1"):
        make(max_iter=1, tol=0.0).fit(X, Y)


# --- tasks


@every_baseline
def test_a_matrix_gives_a_column_per_task(make):
    X, Y = data_for(make)
    fitted = make().fit(X, pd.DataFrame(Y, columns=["calm", "happy", "sad"]))
    assert fitted.predict(X).shape == Y.shape
    assert fitted.tasks_.tolist() == ["calm", "happy", "sad"]
    assert fits_its_rows(fitted.predict(X), Y)
    with pytest.raises(ValueError, match="fitted without task="):
        fitted.predict(X, task=np.zeros(len(X)))


@every_baseline
def test_a_vector_is_one_task(make):
    X, Y = data_for(make)
    vector, column = make().fit(X, Y[:, 0]), make().fit(X, Y[:, :1])
    assert vector.predict(X).shape == (len(X),)
    np.testing.assert_array_equal(vector.predict(X), column.predict(X)[:, 0])


@every_baseline
def test_ragged_tasks_are_a_matrix_with_holes(make):
    """The rows of a task are those of its column: only the units of numbers differ, which the labels do not have."""
    X, y, task = ragged_for(make)
    names = np.unique(task)
    Y = np.where(task[:, None] == names, np.asarray(y, dtype=float)[:, None], np.nan)
    ragged, matrix = make().fit(X, y, task=task), make().fit(X, Y)
    assert ragged.tasks_.tolist() == names.tolist()
    if make in CLASSIFIERS:
        np.testing.assert_allclose(
            ragged.decision_function(X, task=task),
            matrix.decision_function(X)[np.arange(len(X)), np.searchsorted(names, task)],
            atol=1e-6,
        )
    with pytest.raises(ValueError, match=r"fitted with task=.*needs task= too"):
        ragged.predict(X)
    with pytest.raises(ValueError, match="one entry per row"):
        ragged.predict(X, task=task[:-1])


@every_baseline
def test_missing_targets_are_left_out(make):
    X, Y = data_for(make)
    Y = holes(Y)
    fitted = make().fit(X, Y)
    assert np.isfinite(fitted.predict(X).astype(float)).all()
    assert fits_its_rows(fitted.predict(X), Y)


@every_baseline
def test_tasks_without_targets_are_refused(make):
    X, y, task = ragged_for(make)
    with pytest.raises(ValueError, match="task contains 'moon', which had no target in training"):
        make().fit(X, y, task=task).predict(X, task=np.where(task == "north", "moon", task))
    _, Y = data_for(make)
    empty = holes(Y)
    empty[:, 1] = np.nan
    with pytest.raises(ValueError, match=r"no target is observed for task 1\. Leave it out\."):
        make().fit(X[: len(Y)], empty)


@every_baseline
def test_the_order_of_tasks_and_rows_does_not_matter(make):
    X, Y = data_for(make)
    tasks, rows = [2, 0, 1], np.random.default_rng(3).permutation(len(X))
    plain, moved = make().fit(X, Y), make().fit(X[rows], Y[rows][:, tasks])
    method = "predict" if make in REGRESSORS else "decision_function"
    expected = getattr(plain, method)(X)
    np.testing.assert_allclose(getattr(moved, method)(X), expected[:, tasks], atol=1e-4 * np.abs(expected).max())


@every_baseline
@pytest.mark.parametrize("unit", [1e-150, 1e150])
def test_units_of_the_inputs_do_not_matter(make, unit):
    X, Y = data_for(make)
    expected = make().fit(X, Y).predict(X)
    close = {"rtol": 0.0, "atol": 1e-6 * np.abs(expected).max()}
    np.testing.assert_allclose(make().fit(unit * X, Y).predict(unit * X), expected, **close)


@every_regressor
def test_units_of_the_targets_do_not_matter(make):
    X, y, task = groups()
    expected = 7.0 + 1e6 * make().fit(X, y, task=task).predict(X, task=task)
    close = {"rtol": 0.0, "atol": 1e-7 * np.abs(expected).max()}  # numbers near zero carry the rounding of large ones
    np.testing.assert_allclose(make().fit(X, 7.0 + 1e6 * y, task=task).predict(X, task=task), expected, **close)


# --- labels


@every_classifier
def test_several_classes_and_any_names(make):
    X, Y = numbers()
    mixed = np.empty((len(X), 2), dtype=object)
    mixed[:, 0], mixed[:, 1] = np.where(Y[:, 0] > 0, "yes", "no"), np.digitize(Y[:, 1], [-1, 1])
    fitted = make().fit(X, mixed)
    assert [classes.tolist() for classes in fitted.classes_] == [["no", "yes"], [0, 1, 2]]
    assert [scores.shape for scores in fitted.decision_function(X)] == [(60,), (60, 3)]
    assert fitted.score(X, mixed) == np.mean(fitted.predict(X) == mixed)
    assert fits_its_rows(fitted.predict(X), mixed)


@every_classifier
def test_ragged_tasks_with_several_classes(make):
    X, y, task = groups()
    y = np.digitize(y, np.quantile(y, [0.3, 0.6]))
    fitted = make().fit(X, y, task=task)
    scores = fitted.decision_function(X, task=task)
    assert scores.shape == (len(X), 3)
    np.testing.assert_array_equal(fitted.predict(X, task=task), scores.argmax(axis=1))
    assert fits_its_rows(fitted.predict(X, task=task), y, task)


@every_classifier
def test_unlabeled_and_weighted_classes(make):
    X, Y = labels()
    marked = Y.copy()
    marked[::3] = -1
    np.testing.assert_array_equal(
        make(unlabeled=-1).fit(X, marked).predict(X), make().fit(X, np.where(marked < 0, np.nan, Y)).predict(X)
    )
    rare = (Y.sum(axis=1) == 3).astype(int)
    assert make(class_weight={1: 10.0}).fit(X, rare).predict(X).sum() > make().fit(X, rare).predict(X).sum()


@every_classifier
def test_a_label_that_is_never_on_is_learned_as_such(make):
    X, Y = labels()
    Y[:, 1] = 0
    assert not make().fit(X, Y).predict(X)[:, 1].any()


# --- bad input


@every_baseline
def test_bad_input_is_refused_by_name(make):
    X, Y = data_for(make)
    broken = X.copy()
    broken[3, 2] = np.nan
    fitted = make().fit(X, Y)
    with pytest.raises(ValueError, match="Input X contains NaN"):
        make().fit(broken, Y)
    with pytest.raises(ValueError, match="Input X contains NaN"):
        fitted.predict(broken)
    with pytest.raises(ValueError, match="y is None"):
        make().fit(X, None)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        make().fit(X, Y[:-1])
    with pytest.raises(TypeError, match="Sparse data was passed"):
        make().fit(csr_matrix(X), Y)
    with pytest.raises(ValueError, match="a column per task; with task= it must have one target per row"):
        make().fit(X, Y, task=np.zeros(len(X)))
    with pytest.raises(ValueError, match="too large to square"):
        make(scale_inputs=False).fit(1e200 * X, Y)
    with pytest.raises(NotFittedError):
        make().predict(X)
