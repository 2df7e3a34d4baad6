"""InfiniteSVMClassifier: what it is for, scikit-learn's promises, and words about bad input."""

from __future__ import annotations

import pickle
from collections import Counter

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.metrics import adjusted_rand_score
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import check_estimator

import regbayes
from infinite_svm_tools import isvm, planted
from reference_tools import is_nearer_to

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X, y, CLUSTER = planted(150, n_classes=3)


def test_all_of_scikit_learns_checks_pass():
    not_met = {"check_sample_weight_equivalence_on_dense_data": "the start draws rows, which repeated rows change"}
    results = check_estimator(isvm(max_iter=3), expected_failed_checks=not_met, on_skip=None, on_fail=None)
    failed = {result["check_name"]: result["exception"] for result in results if result["status"] == "failed"}
    skipped = {result["check_name"] for result in results if result["status"] == "skipped"}
    assert not failed
    assert skipped <= {"check_array_api_input"}  # runs where SCIPY_ARRAY_API is set
    assert Counter(result["status"] for result in results)["passed"] == 68 - len(skipped)


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_clusters_with_rules_of_their_own_are_found_and_learned(loss):
    rows, labels, cluster = planted(400)
    new_rows, new_labels, new_cluster = planted(1000, seed=1)
    fitted = isvm(10, loss=loss).fit(rows, labels)
    assert fitted.n_components_ == 4
    assert adjusted_rand_score(cluster, fitted.responsibilities_.argmax(axis=1)) > 0.97
    assert adjusted_rand_score(new_cluster, fitted.transform(new_rows).argmax(axis=1)) > 0.98
    linear = LinearSVC(max_iter=20_000).fit(rows, labels).score(new_rows, new_labels)
    right = [
        LinearSVC(max_iter=20_000).fit(rows[cluster == k], labels[cluster == k]).predict(new_rows) == new_labels
        for k in range(4)
    ]
    knowing = np.mean(np.choose(new_cluster, right))  # a classifier for each of the planted clusters
    assert is_nearer_to(knowing, linear, fitted.score(new_rows, new_labels))


def test_refitted_classifiers_predict_better():
    """The posterior of training rows knows their labels; the classifiers that go with it do not know new rows."""
    rows, labels, _ = planted(400)
    new_rows, new_labels, _ = planted(1000, seed=1)
    refitted, original = (
        isvm(10, C=5.0, init="kmeans", refit_classifiers=refit).fit(rows, labels).score(new_rows, new_labels)
        for refit in (True, False)
    )
    assert refitted > original + 0.05


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_decisions_follow_from_the_attributes(n_classes, fit_intercept):
    rows, labels, _ = planted(100, n_classes=n_classes)
    fitted = isvm(fit_intercept=fit_intercept, max_iter=3).fit(rows, labels)
    by_component = np.einsum("nd,kad->nka", rows, fitted.coef_) + fitted.intercept_
    expected = np.einsum("nk,nka->na", fitted.transform(rows), by_component)
    expected = expected[:, 0] if n_classes == 2 else expected
    np.testing.assert_allclose(fitted.decision_function(rows), expected, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(fitted.transform(rows).sum(axis=1), 1.0)
    np.testing.assert_allclose(fitted.transform(rows[:1]), fitted.transform(rows)[:1])
    assert np.any(fitted.intercept_) == fit_intercept
    assert np.all(fitted.weights_ > 0)
    assert fitted.weights_.sum() < 1


def test_a_larger_concentration_allows_more_components():
    rows = np.random.default_rng(0).standard_normal((150, 2))
    labels = np.arange(150) % 2
    few, many = (isvm(10, alpha=alpha, C=0.0).fit(rows, labels).weights_[0] for alpha in (1e-3, 100.0))
    assert few > many


def test_without_a_price_every_row_gets_the_first_class():
    fitted = isvm(C=0.0).fit(X, y)
    assert not np.any(fitted.coef_)
    assert set(fitted.predict(X)) == {0}
    assert fitted.n_components_ == 4


def test_weights_and_costs_of_classes_move_the_errors():
    rng = np.random.default_rng(0)
    labels = np.arange(200) % 2
    rows = rng.standard_normal((200, 3)) + 0.8 * labels[:, None]
    found = {
        name: np.mean(isvm(2, **options).fit(rows, labels).predict(rows))
        for name, options in {
            "plain": {},
            "weight": {"class_weight": {0: 1.0, 1: 10.0}},
            "cost": {"cost": [[0.0, 1.0], [5.0, 0.0]]},
        }.items()
    }
    assert found["weight"] > found["plain"] + 0.05
    assert found["cost"] > found["plain"] + 0.05


def test_units_of_the_rows_change_nothing_but_the_classifiers():
    fitted, scaled = isvm(C=0.0).fit(X, y), isvm(C=0.0).fit(1e4 * X - 3e5, y)
    np.testing.assert_allclose(scaled.transform(1e4 * X - 3e5), fitted.transform(X), atol=1e-6)
    np.testing.assert_allclose(scaled.means_, 1e4 * fitted.means_ - 3e5, rtol=1e-6)


# --- names, callbacks, saving


def test_the_seed_decides():
    first, again = (isvm(init="kmeans", random_state=3).fit(X, y).decision_function(X) for _ in range(2))
    np.testing.assert_array_equal(first, again)


def test_components_and_inputs_have_names():
    frame = pd.DataFrame(X, columns=["left", "up"])
    fitted = isvm(max_iter=2).set_output(transform="pandas").fit(frame, y)
    names = [f"infinitesvmclassifier{k}" for k in range(4)]
    assert list(fitted.get_feature_names_out()) == list(fitted.transform(frame).columns) == names
    with pytest.raises(ValueError, match="feature names should match"):
        fitted.predict(frame[["up", "left"]])


def test_labels_may_be_words():
    words = np.array(["ape", "bee", "cat"])
    fitted = isvm().fit(X, words[y])
    assert list(fitted.classes_) == list(words)
    np.testing.assert_array_equal(fitted.predict(X), words[isvm().fit(X, y).predict(X)])


class Watch:
    """A callback that predicts after every task and asks to stop after some."""

    def __init__(self, stop_after=10**9):
        self.stop_after = stop_after
        self.tasks = []
        self.scores = []

    def setup(self, estimator, context): ...

    def teardown(self, estimator, context): ...

    def on_fit_task_begin(self, estimator, context): ...

    def on_fit_task_end(self, estimator, context, *, X=None, y=None, fitted_estimator=None):
        self.tasks.append(context.task_name)
        self.scores.append(fitted_estimator.decision_function(X))
        return len(self.tasks) >= self.stop_after


def test_a_callback_sees_every_iteration_and_can_stop_a_fit():
    watch = Watch()
    fitted = isvm(max_iter=3).set_callbacks(watch).fit(X, y)
    assert watch.tasks == ["iteration"] * fitted.n_iter_ + ["fit"]
    np.testing.assert_array_equal(watch.scores[-1], fitted.decision_function(X))
    assert isvm(tol=0.0).set_callbacks(Watch(stop_after=1)).fit(X, y).n_iter_ == 1


def test_saved_and_pickled_models_predict_the_same(tmp_path):
    fitted = isvm(max_iter=3).fit(X, y)
    fitted.save(tmp_path / "model")
    for other in (regbayes.load(tmp_path / "model"), pickle.loads(pickle.dumps(fitted))):
        np.testing.assert_array_equal(other.decision_function(X), fitted.decision_function(X))
        np.testing.assert_array_equal(other.trace_.objective, fitted.trace_.objective)
    assert not hasattr(clone(fitted), "coef_")


@pytest.mark.filterwarnings("default::sklearn.exceptions.ConvergenceWarning")
def test_a_fit_that_is_not_over_says_so():
    with pytest.warns(ConvergenceWarning, match=r"stopped at max_iter=1 before .* tol=0\.0"):
        isvm(max_iter=1, tol=0.0).fit(X, y)


# --- input that is bad, or only unusual


@pytest.mark.parametrize(
    ("rows", "labels", "error", "message"),
    [
        (np.where(X > 9, np.nan, X), y, ValueError, "contains NaN"),
        (scipy.sparse.csr_array(X), y, TypeError, "Sparse data was passed"),
        (1e200 * X, y, ValueError, "X is too large to square it"),
        (1e-200 * X, y, ValueError, "X is too small to square it"),
        (X, np.zeros(150), ValueError, "at least 2 classes, got 1"),
        (X, X[:, 0], ValueError, "Unknown label type: continuous"),
        (X, y[:-1], ValueError, "inconsistent numbers of samples"),
        (X, None, ValueError, "requires y to be passed"),
    ],
    ids=["nan", "sparse", "large", "small", "one class", "regression", "short", "none"],
)
def test_data_that_cannot_be_fitted(rows, labels, error, message):
    with pytest.raises(error, match=message):
        isvm().fit(rows, labels)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"cost": np.ones((2, 2))}, r"cost must have shape \(3, 3\), a row per true class; got \(2, 2\)"),
        ({"class_weight": {0: -1.0}}, "class_weight must be finite and not negative"),
        ({"class_weight": {0: np.nan}}, "class_weight must be finite and not negative"),
        (
            {"variance_prior": [1.0, 2.0, 3.0]},
            r"variance_prior must be a number or have shape \(2,\), got shape \(3,\)",
        ),
        ({"variance_prior": [1.0, 0.0]}, "variance_prior must be positive and finite, got 0.0"),
        ({"variance_prior": "wide"}, "'variance_prior' parameter"),
        ({"C": -1.0}, "'C' parameter"),
        ({"n_components": 0}, "'n_components' parameter"),
        ({"alpha": 0.0}, "'alpha' parameter"),
        ({"init": "random"}, "'init' parameter"),
        ({"generative_weight": 0.0}, "'generative_weight' parameter"),
    ],
    ids=str,
)
def test_parameters_out_of_range_are_named(parameters, message):
    with pytest.raises(ValueError, match=message):
        isvm(**parameters).fit(X, y)


@pytest.mark.parametrize(
    "rows",
    [np.full((20, 3), 0.1), X[:20] + 1e6, np.repeat(X[:10], 2, axis=0), np.eye(20), X[:20] * [1.0, 0.0], 1e5 * X[:20]],
    ids=["constant", "far", "equal rows", "wide", "constant column", "large"],
)
@pytest.mark.parametrize("init", ["merged", "kmeans"])
def test_unusual_rows_are_fitted(rows, init):
    fitted = isvm(30, init=init, max_iter=3).fit(rows, np.arange(20) % 2)
    for values in (fitted.coef_, fitted.transform(rows), fitted.decision_function(rows), fitted.trace_.objective):
        assert np.all(np.isfinite(values))


@pytest.mark.parametrize(
    "parameters",
    [{"C": 1e-8}, {"C": 1e4}, {"C": 1e4, "loss": "hinge"}, {"alpha": 1e-8}, {"alpha": 1e6}, {"variance_prior": 1e-6}],
    ids=str,
)
def test_extreme_parameters_give_finite_classifiers(parameters):
    fitted = isvm(**parameters, max_iter=2).fit(X[:60], y[:60])
    assert np.all(np.isfinite(fitted.decision_function(X)))
    assert np.all(np.isfinite(fitted.trace_.objective))


def test_an_estimator_that_is_not_fitted_says_so():
    for method in ("transform", "predict", "decision_function"):
        with pytest.raises(NotFittedError):
            getattr(isvm(), method)(X)
    with pytest.raises(ValueError, match="expecting 2 features"):
        isvm(max_iter=0).fit(X, y).predict(X[:, :1])
