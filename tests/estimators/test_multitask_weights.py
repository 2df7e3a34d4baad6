"""Test coefficients, costs and sample weights of the multi-task estimators."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.svm import LinearSVC, LinearSVR

from multitask_tools import (
    classifier,
    data_for,
    holes,
    labels,
    numbers,
    ragged_for,
    regressor,
)
from regbayes.models.mt_ilsvm.model import INPUT_GAIN

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.mark.parametrize("include_inputs", [False, True])
@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("make", [classifier, regressor])
def test_predictions_are_linear_in_features(make, fit_intercept, include_inputs):
    X, Y = data_for(make)
    fitted = make(include_inputs=include_inputs, fit_intercept=fit_intercept).fit(X, Y)
    by_hand = fitted.transform(X) @ fitted.coef_features_.T + fitted.intercept_
    if include_inputs:
        by_hand += (X - fitted.mean_) / fitted.scale_ @ fitted.coef_inputs_.T
    else:
        assert not hasattr(fitted, "coef_inputs_")
    answers = fitted.predict(X) if make is regressor else fitted.decision_function(X)
    np.testing.assert_allclose(answers, by_hand, rtol=1e-9, atol=1e-9)
    if make is classifier:
        np.testing.assert_array_equal(fitted.predict(X), answers > 0)


def seen_by(fitted, X):
    """Return the design matrix of the tasks, computed from fitted attributes."""
    standardized = (X - X.mean(axis=0)) / X.std(axis=0)
    latent = standardized @ fitted.components_.T / np.sqrt(X.shape[1])
    np.testing.assert_allclose(fitted.transform(X), latent, rtol=1e-9)
    return np.hstack([latent, INPUT_GAIN * standardized / np.sqrt(X.shape[1])]) if fitted.include_inputs else latent


@pytest.mark.parametrize("make", [classifier, regressor])
@pytest.mark.parametrize("margins", ["consistent", "posterior", "decoupled"])
def test_zero_generative_weight_raises(make, margins):
    X, Y = data_for(make)
    with pytest.raises(ValueError, match="'generative_weight' parameter"):
        make(margins=margins, generative_weight=0.0).fit(X, Y)


@pytest.mark.parametrize("loss", ["squared_hinge", "hinge"])
@pytest.mark.parametrize("include_inputs", [False, True])
def test_decoupled_classifier_matches_liblinear_on_factors(include_inputs, loss):
    X, Y = labels()
    given = {"margins": "decoupled", "include_inputs": include_inputs, "C": 0.5, "loss": loss}
    fitted = classifier(**given).fit(X, Y)
    seen = seen_by(fitted, X)
    for task, y in enumerate(Y.T):
        svm = LinearSVC(C=0.5, loss=loss, intercept_scaling=1.0, tol=1e-8, max_iter=100_000, random_state=0)
        scores = svm.fit(seen, y).decision_function(seen)
        np.testing.assert_allclose(fitted.decision_function(X)[:, task], scores, atol=5e-2 * np.abs(scores).max())
    other = classifier(**given).fit(X, 1 - Y)
    np.testing.assert_array_equal(other.components_, fitted.components_)


@pytest.mark.parametrize("loss", ["squared_epsilon_insensitive", "epsilon_insensitive"])
def test_decoupled_regressor_matches_liblinear_on_factors(loss):
    X, Y = numbers()
    fitted = regressor(margins="decoupled", C=0.5, loss=loss, epsilon=0.2).fit(X, Y)
    seen = seen_by(fitted, X)
    for task, y in enumerate(Y.T):
        svr = LinearSVR(C=0.5, loss=loss, epsilon=0.2, tol=1e-8, max_iter=100_000, random_state=0)
        predicted = y.mean() + y.std() * svr.fit(seen, (y - y.mean()) / y.std()).predict(seen)
        np.testing.assert_allclose(fitted.predict(X)[:, task], predicted, atol=5e-2 * y.std())


def test_cost_and_class_weight_change_predictions():
    X, Y = labels()
    rng = np.random.default_rng(5)
    Y = np.where(rng.random(Y.shape) < 0.3, 1 - Y, Y)
    heavy = {"class_weight": {1: 50.0}}
    plain, dear = classifier().fit(X, Y).predict(X), classifier(**heavy).fit(X, Y).predict(X)
    assert dear.mean() > plain.mean() + 0.1
    # a cost of false negatives equals a weight of the positive class
    cost = classifier(cost=[[0.0, 1.0], [50.0, 0.0]]).fit(X, Y)
    np.testing.assert_array_equal(cost.predict(X), dear)
    only_first = classifier(class_weight=[{1: 50.0}, {}, {}]).fit(X, Y).predict(X)
    assert only_first[:, 0].mean() > plain[:, 0].mean() + 0.1
    with pytest.raises(ValueError, match="lists 1 dicts, but there are 3 tasks"):
        classifier(class_weight=[{1: 2.0}]).fit(X, Y)
    with pytest.raises(
        ValueError, match=r"class_weight must be a dict, a list with a dict for each task .* got \[1, 2\]"
    ):
        classifier(class_weight=[1, 2]).fit(X, Y)
    with pytest.raises(ValueError, match="unlabeled must be one value"):
        classifier(unlabeled=[0, 1, 0]).fit(X, Y)
    with pytest.raises(ValueError, match="class_weight has 7, which is a class of no task"):
        classifier(class_weight={7: 2.0}).fit(X, Y)
    with pytest.raises(ValueError, match="class_weight must be finite and not negative"):
        classifier(class_weight={1: -2.0}).fit(X, Y)
    with pytest.raises(ValueError, match="class_weight is zero for every class"):
        classifier(class_weight={0: 0.0, 1: 0.0}).fit(X, Y)


def test_balanced_class_weight_is_computed_per_task():
    X, Y = labels()
    Y[:40, 0] = 0
    balanced = classifier(class_weight="balanced").fit(X, Y)
    counts = [np.bincount(y) for y in Y.T]
    by_hand = [dict(enumerate(len(X) / (2 * count))) for count in counts]
    np.testing.assert_allclose(
        balanced.decision_function(X), classifier(class_weight=by_hand).fit(X, Y).decision_function(X), rtol=1e-9
    )


@pytest.mark.parametrize("layout", ["matrix", "ragged"])
@pytest.mark.parametrize("options", [{}, {"margins": "decoupled", "temperature": "auto"}, {"include_inputs": True}])
@pytest.mark.parametrize("make", [classifier, regressor])
def test_sample_weights_match_copies(make, layout, options):
    if layout == "ragged":
        X, y, task = ragged_for(make)
    else:
        X, y = data_for(make)
        y, task = holes(y), None
    counts = np.random.default_rng(7).integers(0, 4, len(X))
    if layout == "ragged":
        counts[task == "west"] = 0  # a task without positive weights is dropped
    given = {"tol": 0.0, "C": 0.3, **options} | ({"class_weight": "balanced"} if make is classifier else {})
    weighted = make(**given).fit(X, y, task=task, sample_weight=counts)
    again = np.repeat(np.arange(len(X)), counts)
    repeated = make(**given).fit(X[again], y[again], task=None if task is None else task[again])
    assert weighted.tasks_.tolist() == repeated.tasks_.tolist()
    for name in ("mean_", "scale_", "components_", "coef_features_", "intercept_"):
        np.testing.assert_allclose(getattr(weighted, name), getattr(repeated, name), rtol=1e-6, atol=1e-6)
    # With tol=0 rounding decides when steps end, so the lengths of the traces may differ.
    courses = [model.trace_.objective for model in (weighted, repeated)]
    np.testing.assert_allclose(*(course[: min(map(len, courses))] for course in courses), rtol=1e-8)
    assert courses[0][-1] == pytest.approx(courses[1][-1], rel=1e-8)
    plain, ones = make(**given).fit(X, y, task=task), make(**given).fit(X, y, task=task, sample_weight=np.ones(len(X)))
    np.testing.assert_array_equal(plain.coef_features_, ones.coef_features_)


def test_invalid_sample_weight_raises():
    X, Y = labels()
    for bad, message in (
        (np.zeros(len(X)), "at least one non-zero number"),
        (-np.ones(len(X)), "Negative values in data passed to `sample_weight`"),
        (np.ones(len(X) - 1), "sample_weight.shape"),
        (np.full(len(X), np.nan), "NaN"),
    ):
        with pytest.raises(ValueError, match=message):
            classifier().fit(X, Y, sample_weight=bad)


def test_higher_cost_reduces_errors():
    rng = np.random.default_rng(0)
    y = np.arange(300) % 3
    X = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])[y] + rng.standard_normal((300, 2))
    cost = np.array([[0.0, 20.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 0.0]])

    def mistakes(**given):
        predicted = classifier(6, C=1.0, **given).fit(X, y).predict(X)
        return np.sum((y == 0) & (predicted == 1))

    assert mistakes(cost=cost) < 0.5 * mistakes()
    assert mistakes(cost=1.0 - np.eye(3)) == mistakes()
    with pytest.raises(ValueError, match=r"cost must have shape \(3, 3\)"):
        mistakes(cost=np.zeros((2, 2)))
    with pytest.raises(ValueError, match="zero diagonal"):
        mistakes(cost=np.ones((3, 3)))
    with pytest.raises(ValueError, match="tasks with the same classes"):
        classifier(cost=cost).fit(X, np.column_stack([y, y > 0]))


def test_task_sharing_improves_small_task():
    rng = np.random.default_rng(8)
    X, slopes = rng.standard_normal((300, 5)), rng.standard_normal(5)
    task = np.where(np.arange(300) < 4, 9, np.arange(300) % 5)
    y = X @ slopes + 0.3 * rng.standard_normal(300)
    new = rng.standard_normal((200, 5))
    alone = regressor(8, task_sharing=0).fit(X, y, task=task).score(new, new @ slopes, task=[9] * 200)
    shared = regressor(8).fit(X, y, task=task).score(new, new @ slopes, task=[9] * 200)  # task_sharing is 1
    assert shared > 0.8
    assert shared > alone + 0.1


def test_epsilon_is_relative_to_scale_of_target():
    X, Y = numbers()
    for scale in (1e-3, 1e3):
        wide = regressor(epsilon=100.0).fit(X, scale * Y)
        np.testing.assert_allclose(wide.predict(X), np.tile(scale * Y.mean(axis=0), (len(X), 1)), rtol=1e-6)
        one, other = regressor(epsilon=0.3).fit(X, Y), regressor(epsilon=0.3).fit(X, scale * Y + 5.0)
        np.testing.assert_allclose(other.predict(X), scale * one.predict(X) + 5.0, rtol=1e-3, atol=1e-2 * scale)
    raw = regressor(scale_targets=False).fit(X, Y)
    assert raw.target_mean_.tolist() == [0.0] * 3
    assert raw.target_scale_.tolist() == [1.0] * 3
