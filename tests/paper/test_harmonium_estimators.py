"""The harmoniums keep scikit-learn's promises: checks, views, names, callbacks, saving, and words about bad input."""

from __future__ import annotations

import pickle
from collections import Counter

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import check_estimator

import regbayes
from harmonium_tools import efh, mmh

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X, y = (values[:120] for values in load_digits(n_class=4, return_X_y=True))
X = X[:, 8:40]
COINS, COUNTS = (X > 7).astype(float), X
MAKERS = {"EFH": efh, "MMH": mmh}
LEARNING = ("mean_field", "contrastive_divergence")
every_estimator = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
both_ways = pytest.mark.parametrize("learning", LEARNING)


# --- scikit-learn's own checks


EQUIVALENCE = "check_sample_weight_equivalence_on_dense_data"  # to seven digits
DRAWS = {EQUIVALENCE: "repeated rows see other draws, and batches of other rows"}
GAP = {EQUIVALENCE: "heads are solved to a gap, by visits of rows one by one, from which the descent takes its steps"}


@pytest.mark.parametrize(
    ("estimator", "expected", "not_met"),
    [
        (efh(max_iter=4), 54, {}),
        (efh(max_iter=4, learning="contrastive_divergence"), 53, DRAWS),
        (mmh(max_iter=4), 68, GAP),
        (mmh(max_iter=4, learning="contrastive_divergence"), 68, DRAWS),
    ],
    ids=lambda value: f"{type(value).__name__} {value.learning}" if hasattr(value, "learning") else "",
)
def test_all_of_scikit_learns_checks_pass(estimator, expected, not_met):
    results = check_estimator(estimator, expected_failed_checks=not_met, on_skip=None, on_fail=None)
    failed = {result["check_name"]: result["exception"] for result in results if result["status"] == "failed"}
    skipped = {result["check_name"] for result in results if result["status"] == "skipped"}
    assert not failed
    assert skipped <= {"check_array_api_input"}  # runs where SCIPY_ARRAY_API is set
    assert Counter(result["status"] for result in results)["passed"] == expected - len(skipped)


# --- features


@every_estimator
@both_ways
def test_the_embedding_is_that_of_the_training_rows(make, learning):
    fitted = make(learning=learning, max_iter=3).fit(X, y)
    np.testing.assert_allclose(fitted.embedding_, fitted.transform(X), rtol=1e-10)
    np.testing.assert_allclose(fitted.transform(X), (X - fitted.mean_) / fitted.scale_ @ fitted.components_.T)
    np.testing.assert_allclose(fitted.transform(X[:1]), fitted.transform(X)[:1], rtol=1e-10)


@every_estimator
def test_features_and_inputs_have_names(make):
    frame = pd.DataFrame(X).add_prefix("pixel ")
    fitted = make().set_output(transform="pandas").fit(frame, y)
    names = [f"{type(fitted).__name__.lower()}{k}" for k in range(4)]
    assert list(fitted.get_feature_names_out()) == list(fitted.transform(frame).columns) == names
    with pytest.raises(ValueError, match="feature names should match"):
        fitted.transform(frame[frame.columns[::-1]])


@both_ways
def test_the_seed_decides_where_anything_is_random(learning):
    first, again, other = (mmh(learning=learning, random_state=seed).fit(X, y).components_ for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert np.array_equal(first, other) == (learning == "mean_field")


@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_decisions_are_linear_in_the_features(n_classes, fit_intercept):
    rows, labels = X[y < n_classes], y[y < n_classes]
    fitted = mmh(fit_intercept=fit_intercept, max_iter=3).fit(rows, labels)
    scores = fitted.transform(rows) @ fitted.coef_features_.T + fitted.intercept_
    expected = scores[:, 0] if n_classes == 2 else scores
    np.testing.assert_allclose(fitted.decision_function(rows), expected, rtol=1e-9, atol=1e-12)
    assert np.any(fitted.intercept_) == fit_intercept


def test_weights_and_costs_of_classes_move_the_errors():
    """Overlapping classes; an error that is dear is made less often."""
    rng = np.random.default_rng(0)
    labels = np.arange(300) % 2
    rows = rng.standard_normal((300, 3)) + 0.8 * labels[:, None]
    found = {
        name: np.mean(mmh(2, **options).fit(rows, labels).predict(rows))
        for name, options in {
            "plain": {},
            "weight": {"class_weight": {0: 1.0, 1: 10.0}},
            "cost": {"cost": [[0.0, 1.0], [5.0, 0.0]]},
        }.items()
    }
    assert found["weight"] > found["plain"] + 0.05
    assert found["cost"] > found["plain"] + 0.05


# --- views


def test_views_are_named_in_many_ways():
    both = np.hstack([COINS, X])
    frame = pd.DataFrame(both, columns=[f"c{i}" for i in range(64)])
    names = list(frame.columns)
    ways = [
        [("bernoulli", slice(0, 32)), ("gaussian", slice(32, 64))],
        (("gaussian", range(32, 64)), ("bernoulli", list(range(32)))),
        [("bernoulli", np.arange(64) < 32), ("gaussian", np.arange(-32, 0))],
        [("bernoulli", names[:32]), ("gaussian", np.array(names[32:]))],
    ]
    found = [efh(visible=way).fit(frame).transform(frame) for way in ways]
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], atol=1e-10)


@both_ways
@pytest.mark.parametrize(("visible", "rows"), [("bernoulli", COINS), ("poisson", COUNTS)], ids=["bernoulli", "poisson"])
def test_expected_rows_are_possible_ones(visible, rows, learning):
    fitted = mmh(visible=visible, learning=learning, max_iter=5).fit(rows, y)
    expected = fitted.inverse_transform(fitted.transform(rows))
    if visible == "bernoulli":
        assert np.all((expected > 0) & (expected < 1))
    else:
        np.testing.assert_allclose(expected.sum(axis=1), rows.sum(axis=1).mean())
        assert np.all(expected > 0)
    assert fitted.transform(rows).shape == (120, 4)


@pytest.mark.parametrize(
    ("visible", "message"),
    [
        ("laplace", r"kinds of visible units are 'gaussian', 'bernoulli', 'poisson'; visible has 'laplace'"),
        ([("laplace", slice(None))], "visible has 'laplace'"),
        ([], "column 0 is in 0"),
        ([("gaussian", slice(0, 31))], "every column of X must be in one view of visible, but column 31 is in 0"),
        ([("gaussian", slice(None)), ("bernoulli", [3])], "column 3 is in 2"),
        (["gaussian", "bernoulli"], r"visible\[0\] must be a pair of a kind and its columns, got 'gaussian'"),
        ([("gaussian", ["a"])], "are names, but X has none"),
        ([("gaussian", [32])], "column out of range: X has 32 columns"),
        ([("gaussian", [0.5])], "must be a slice, indices, names, or a mask of 32 booleans"),
        ([("gaussian", [True, False])], "must be a slice, indices, names, or a mask of 32 booleans"),
        (3, "'visible' parameter"),
    ],
    ids=str,
)
def test_views_that_make_no_sense_are_named(visible, message):
    with pytest.raises(ValueError, match=message):
        efh(visible=visible).fit(X)


def test_names_of_columns_that_are_not_there():
    with pytest.raises(ValueError, match=r"visible\[0\] has 'b', which is no column of X"):
        efh(visible=[("gaussian", ["a", "b"])]).fit(pd.DataFrame({"a": [1.0, 2.0]}))


# --- input that is bad, or only unusual


def changed(rows, value):
    broken = rows.copy()
    broken[3, 5] = value
    return broken


BAD = [
    ({}, changed(X, np.nan), ValueError, "contains NaN"),
    ({}, changed(X, np.inf), ValueError, "contains infinity"),
    ({}, scipy.sparse.csr_array(X), TypeError, "Sparse data was passed"),
    ({}, 1e200 * X, ValueError, "X is too large"),
    ({}, 1e-200 * X, ValueError, "X is too small"),
    ({"visible": "bernoulli"}, changed(COINS, 0.5), ValueError, r"zeros and ones, but column 5 of X is 0.5 in row 3"),
    ({"visible": "poisson"}, changed(COUNTS, -1.0), ValueError, r"not negative, but column 5 of X is -1.0 in row 3"),
    ({"visible": "poisson"}, changed(COUNTS, 1.5), ValueError, r"counts, which are whole .* is 1.5 in row 3"),
]


@every_estimator
@pytest.mark.parametrize(("options", "rows", "error", "message"), BAD, ids=[bad[-1] for bad in BAD])
def test_rows_that_cannot_be_fitted(make, options, rows, error, message):
    with pytest.raises(error, match=message):
        make(**options).fit(rows, y)


@every_estimator
def test_rows_that_cannot_be_inferred(make):
    fitted = make(visible="bernoulli", max_iter=1).fit(COINS, y)
    with pytest.raises(ValueError, match=r"zeros and ones, but column 5 of X is 2\.0 in row 3"):
        fitted.transform(changed(COINS, 2.0))
    with pytest.raises(ValueError, match="expecting 32 features"):
        fitted.transform(COINS[:, 1:])
    with pytest.raises(ValueError, match="X has 3 features, but inverse_transform takes 4"):
        fitted.inverse_transform(np.zeros((2, 3)))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.zeros(120), "at least 2 classes, got 1"),
        (X @ np.linspace(0, 1, 32), "Unknown label type: continuous"),
        (y[:-1], "inconsistent numbers of samples"),
        (None, "requires y to be passed"),
    ],
    ids=["one class", "regression", "short", "none"],
)
def test_labels_that_cannot_be_learned(labels, message):
    with pytest.raises(ValueError, match=message):
        mmh().fit(X, labels)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"cost": np.ones((3, 3))}, r"cost must have shape \(4, 4\), a row per true class; got \(3, 3\)"),
        ({"cost": np.ones((4, 4))}, "zero diagonal"),
        ({"class_weight": {0: -1.0}}, "class_weight must be finite and not negative"),
        ({"class_weight": {0: np.nan}}, "class_weight must be finite and not negative"),
        ({"C": -1.0}, "'C' parameter"),
        ({"n_components": 0}, "'n_components' parameter"),
        ({"generative_weight": 0.0}, "'generative_weight' parameter"),
        ({"noise_variance": 0.0}, "'noise_variance' parameter"),
        ({"learning": "gibbs"}, "'learning' parameter"),
        ({"n_gibbs": 0}, "'n_gibbs' parameter"),
    ],
    ids=str,
)
def test_parameters_out_of_range_are_named(parameters, message):
    with pytest.raises(ValueError, match=message):
        mmh(**parameters).fit(X, y)


@both_ways
@pytest.mark.parametrize(
    ("visible", "rows"),
    [
        ("gaussian", np.full((20, 3), 0.1)),
        ("gaussian", X[:20] + 1e6),
        ("gaussian", np.repeat(X[:10], 2, axis=0)),
        ("bernoulli", np.zeros((20, 3))),
        ("bernoulli", np.column_stack([COINS[:20], np.ones(20)])),
        ("poisson", np.zeros((20, 3))),
        ("poisson", np.vstack([COUNTS[:19], 0.0 * COUNTS[:1]])),
        ("poisson", COUNTS[:20, :1] + 1),
        ("poisson", 1e5 * COUNTS[:20]),
    ],
    ids=["constant", "far", "equal rows", "no ones", "always one", "no counts", "empty row", "one count", "large"],
)
def test_unusual_rows_are_fitted(visible, rows, learning):
    fitted = mmh(visible=visible, learning=learning, max_iter=5).fit(rows, np.arange(20) % 2)
    for values in (fitted.components_, fitted.transform(rows), fitted.decision_function(rows), fitted.trace_.objective):
        assert np.all(np.isfinite(values))


@pytest.mark.parametrize("parameters", [{"C": 1e-8}, {"C": 1e5}, {"noise_variance": 0.1}, {"learning_rate": 100.0}])
@both_ways
def test_extreme_parameters_give_finite_classifiers(parameters, learning):
    fitted = mmh(**parameters, learning=learning, max_iter=3).fit(X, y)
    assert np.all(np.isfinite(fitted.decision_function(X)))


@every_estimator
def test_an_estimator_that_is_not_fitted_says_so(make):
    for method in ("transform", "inverse_transform"):
        with pytest.raises(NotFittedError):
            getattr(make(), method)(X)


def test_log_densities_are_there_in_mean_field_alone():
    assert not hasattr(efh(learning="contrastive_divergence"), "score_samples")
    with pytest.raises(AttributeError, match="has no attribute 'score'") as raised:
        _ = efh(learning="contrastive_divergence").score
    assert 'learning="mean_field"' in str(raised.value.__cause__)
    assert efh().fit(X).score(X) == pytest.approx(np.mean(efh().fit(X).score_samples(X)))


# --- callbacks, words, saving


class Watch:
    """A callback that looks at the estimator of every task and asks to stop after some."""

    def __init__(self, stop_after=10**9):
        self.stop_after = stop_after
        self.tasks = []
        self.features = []

    def setup(self, estimator, context): ...

    def teardown(self, estimator, context): ...

    def on_fit_task_begin(self, estimator, context): ...

    def on_fit_task_end(self, estimator, context, *, X=None, y=None, fitted_estimator=None):
        self.tasks.append(context.task_name)
        self.features.append(fitted_estimator.transform(X))
        return len(self.tasks) >= self.stop_after


@every_estimator
@both_ways
def test_a_callback_sees_every_iteration_and_can_stop_a_fit(make, learning):
    watch = Watch()
    fitted = make(learning=learning, max_iter=3).set_callbacks(watch).fit(X, y)
    assert watch.tasks == ["iteration"] * fitted.n_iter_ + ["fit"]
    np.testing.assert_array_equal(watch.features[-1], fitted.transform(X))
    stopped = make(learning=learning, tol=0.0).set_callbacks(Watch(stop_after=1)).fit(X, y)
    assert stopped.n_iter_ == 1


def test_warnings_say_what_to_do():
    with pytest.warns(ConvergenceWarning, match=r"max_iter=2 .* Raise max_iter, or tol"):
        mmh(max_iter=2, tol=0.0).fit(X, y)


@every_estimator
def test_what_was_fitted_can_be_saved_and_copied(make, tmp_path):
    visible = [("bernoulli", slice(0, 32)), ("poisson", np.arange(32, 64))]
    rows = np.hstack([COINS, COUNTS])
    fitted = make(visible=visible).fit(rows, y)
    fitted.save(tmp_path / "model.rb")
    for copy in (regbayes.load(tmp_path / "model.rb"), pickle.loads(pickle.dumps(fitted)), clone(fitted).fit(rows, y)):
        np.testing.assert_array_equal(copy.transform(rows), fitted.transform(rows))
        np.testing.assert_array_equal(copy.trace_.objective, fitted.trace_.objective)
        assert copy.score(rows, y) == fitted.score(rows, y)


def test_both_work_inside_pipelines_and_searches():
    two_stage = make_pipeline(efh(8), LinearSVC()).fit(X, y)
    assert two_stage[:-1].get_feature_names_out()[0] == "exponentialfamilyharmonium0"
    search = GridSearchCV(mmh(max_iter=3), {"n_components": [1, 4]}, cv=2).fit(X, y)
    assert search.best_params_ == {"n_components": 4}
