"""Test `predict_proba` of searches and its agreement with `predict`."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone, is_classifier
from sklearn.datasets import load_iris, make_multilabel_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

import regbayes
from regbayes import (
    ILSVMClassifier,
    ILSVMClassifierCV,
    MedLDAClassifier,
    MedLDAClassifierCV,
    MultiTaskILSVMClassifier,
    MultiTaskILSVMClassifierCV,
    MultiTaskILSVMRegressorCV,
    PathSearchCV,
)
from regbayes.estimators._calibration import fit_curve

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X, y = load_iris(return_X_y=True)
X = StandardScaler().fit_transform(X)
NAMES = np.array(["setosa", "versicolor", "virginica"])


def ilsvm_search(**parameters):
    return ILSVMClassifierCV(6, **{"Cs": (1.0,), "cv": 3, "max_iter": 8, "random_state": 0, **parameters})


def tasks_search(**parameters):
    given = {"Cs": (0.1,), "temperatures": (0.1,), "include_inputs": (True,), "cv": 3, "max_iter": 5}
    return MultiTaskILSVMClassifierCV(4, **{**given, "random_state": 0, **parameters})


def labels(n=120, n_classes=4):
    return make_multilabel_classification(n, n_features=8, n_classes=n_classes, n_labels=1, random_state=0)


def agrees(search, X, **task):
    """Check that probabilities sum to one and agree with `predict`; return them."""
    found = search.predict_proba(X, **task)
    assert_array_equal(search.classes_[found.argmax(axis=1)], search.predict(X, **task))
    assert_allclose(found.sum(axis=1), 1)
    assert_allclose(search.predict_log_proba(X, **task), np.log(found))
    return found


@pytest.mark.parametrize("classes", [2, 3])
def test_predict_proba_agrees_with_predict(classes):
    kept = y < classes
    search = ilsvm_search().fit(X[kept][:, :2], NAMES[y[kept]])
    assert agrees(search, X[:, :2]).shape == (150, classes)


def test_binary_calibration_uses_out_of_fold_scores():
    kept = y > 0
    search = ilsvm_search().fit(X[kept][:, :2], y[kept])
    seen = search.out_of_fold_
    temperature, bias = fit_curve(seen.decisions[:, None], (y[kept][seen.rows] == 2).astype(int))
    found = search.calibration_.temperatures[0], search.calibration_.biases[0]
    assert_allclose(found, (temperature, bias), atol=1e-6)
    score = search.decision_function(X[:, :2])
    free = 1 / (1 + np.exp(-score / temperature - bias))
    assert_allclose(search.predict_proba(X[:, :2])[:, 1], np.where((free > 0.5) == (score > 0), free, 0.5))


def test_calibration_uses_weights_and_ignores_unlabeled():
    unlabeled = np.where(np.arange(150) % 5 == 0, -1, y)
    search = ilsvm_search(unlabeled=-1).fit(X[:, :2], unlabeled)
    agrees(search, X[:, :2])
    assert search.calibration_.n_samples == np.sum(unlabeled >= 0)
    weights = np.where(y == 2, 5.0, 1.0)
    weights[:10] = 0
    weighted = ilsvm_search().fit(X[:, :2], y, sample_weight=weights)
    seen = weighted.out_of_fold_
    assert weighted.calibration_.n_samples == 140
    unweighted = ilsvm_search().fit(X[:, :2], y).calibration_
    assert weighted.calibration_.temperatures != unweighted.temperatures
    assert_allclose(
        (weighted.calibration_.temperatures[0], weighted.calibration_.biases[0]),
        fit_curve(seen.decisions, y[seen.rows], weights[seen.rows]),
    )


def test_predict_proba_supports_labels_and_tasks():
    X, Y = labels()
    holes = Y.astype(float)
    holes[::7, 1] = np.nan
    search = tasks_search().fit(X, holes)
    found = search.predict_proba(X)
    assert found.shape == Y.shape
    assert_array_equal(found > 0.5, search.predict(X) == 1)
    assert search.calibration_.temperatures.shape == (4,)
    mixed = np.column_stack([Y[:, 0], Y[:, 1] + Y[:, 2]])
    search = tasks_search().fit(X, mixed)
    found = search.predict_proba(X)
    assert [part.shape[1] for part in found] == [2, len(np.unique(mixed[:, 1]))]
    assert_array_equal(np.column_stack([part.argmax(axis=1) for part in found]), search.predict(X))
    assert_allclose(search.predict_log_proba(X)[1], np.log(found[1]))
    task = np.arange(120) % 3
    search = tasks_search().fit(X, Y[:, 0], task=task)
    assert agrees(search, X, task=task).shape == (120, 2)
    kind = np.arange(90) % 3
    counts = np.random.default_rng(0).poisson(0.2 + 2.0 * (np.arange(12) // 4 == kind[:, None]))
    search = MedLDAClassifierCV((4,), Cs=(1.0,), cv=3, max_iter=10, random_state=0)
    assert hasattr(search, "predict_proba")
    agrees(search.fit(counts, NAMES[kind]), counts)
    assert not hasattr(clone(search), "calibration_")


def test_path_search_calibrates_any_classifier():
    search = PathSearchCV(make_pipeline(StandardScaler(), LinearSVC()), {"linearsvc__C": [0.1, 1.0]}, cv=3).fit(X, y)
    agrees(search, X)
    forest = PathSearchCV(RandomForestClassifier(5, random_state=0), {"max_depth": [2]}, cv=3).fit(X, y)
    assert forest.calibration_ is None  # forests have their own `predict_proba`
    assert_array_equal(forest.predict_proba(X), forest.best_estimator_.predict_proba(X))
    X_tasks, Y = labels()
    task = np.arange(120) % 2
    model = MultiTaskILSVMClassifier(4, C=0.1, max_iter=5, random_state=0)
    search = PathSearchCV(model, {"C": [0.1]}, cv=3).fit(X_tasks, Y[:, 0], task=task)
    agrees(search, X_tasks, task=task)
    assert not hasattr(PathSearchCV(model, {"C": [0.1]}, cv=3, refit=False).fit(X, y), "predict_proba")


def test_calibration_skips_folds_without_every_class():
    rare = y.copy()
    rare[0] = 3  # one sample: its test fold trains on three classes
    folds = [(np.arange(150)[np.arange(150) % 3 != i], np.arange(150)[np.arange(150) % 3 == i]) for i in range(3)]
    search = ilsvm_search(cv=folds).fit(X, rare)
    assert search.out_of_fold_.decisions is None
    assert agrees(search, X).shape == (150, 4)
    assert search.calibration_.n_samples == 100
    nowhere = ilsvm_search(cv=folds[:1]).fit(X, rare)
    assert nowhere.calibration_ is None
    assert not hasattr(nowhere, "predict_proba")
    with pytest.raises(AttributeError, match="no fold of its search had all classes"):
        nowhere.predict_proba(X)


@pytest.mark.parametrize(
    ("model", "way"),
    [
        (ILSVMClassifier(), "ILSVMClassifierCV"),
        (MedLDAClassifier(), "MedLDAClassifierCV"),
        (MultiTaskILSVMClassifier(), "MultiTaskILSVMClassifierCV"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_predict_proba_without_search_raises_with_remedy(model, way):
    assert is_classifier(model)
    assert not hasattr(model, "predict_proba")
    with pytest.raises(AttributeError, match=rf"Use {way}, .*CalibratedClassifierCV"):
        model.predict_proba(X)
    assert not hasattr(MultiTaskILSVMRegressorCV(), "predict_proba")


def test_saved_search_predicts_same_probabilities(tmp_path):
    X, Y = labels()
    for search, rows in ((ilsvm_search().fit(globals()["X"], y), globals()["X"]), (tasks_search().fit(X, Y), X)):
        search.save(tmp_path / "search")
        assert_array_equal(regbayes.load(tmp_path / "search").predict_proba(rows), search.predict_proba(rows))
