"""Test calibration against known curves, SciPy and brute force."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize
from scipy.special import expit, softmax

from regbayes.estimators._calibration import Calibration, HeldOutScores, fit_curve, read_outputs

RNG = np.random.default_rng(0)


def draw(shares, seed=0):
    """Draw a class for each row of probabilities."""
    return (shares.cumsum(axis=1) > np.random.default_rng(seed).random((len(shares), 1))).argmax(axis=1)


def fit(scores, codes, widths, several, weights=None):
    return HeldOutScores(np.arange(len(scores)), scores, codes, widths, several).calibrate(weights)


def normalized(shares):
    return shares / shares.sum(axis=1, keepdims=True)


def test_fit_curve_recovers_known_temperature_and_bias():
    scores = RNG.normal(size=(20000, 4))
    label = (RNG.random(20000) < expit(3 * scores[:, 0] - 1)).astype(int)
    assert_allclose(fit_curve(scores[:, :1], label), (1 / 3, -1.0), rtol=0.1)
    against_all = draw(normalized(expit(4 * scores - 0.5)))
    assert_allclose(fit_curve(scores, against_all), (0.25, -0.5), atol=0.1)
    temperature, bias = fit_curve(scores, draw(softmax(scores / 0.4, axis=1)))
    assert bias < -2
    shares = normalized(expit(scores / temperature + bias))
    assert_allclose(shares, softmax(scores / 0.4, axis=1), atol=0.02)


@pytest.mark.parametrize("k", [1, 3, 6])
@pytest.mark.parametrize("unit", [1.0, 1e-4])
def test_fit_curve_has_the_least_log_loss(k, unit):
    scores = RNG.normal(size=(400, k))
    codes = (RNG.random(400) < expit(2 * scores[:, 0])) if k == 1 else draw(softmax(2 * scores, axis=1))
    targets = np.full((400, max(k, 2)), 1 / 400 / max(k, 2))  # smoothing: one extra sample, shared by the classes
    targets[np.arange(400), codes.astype(int)] += 1

    def loss(at):
        shares = expit(at[0] * scores + at[1])
        shares = np.hstack([1 - shares, shares]) if k == 1 else normalized(shares)
        return -np.sum(targets * np.log(shares))

    temperature, bias = fit_curve(unit * scores, codes.astype(int))
    starts = ((1.0, 0.0), (3.0, -8.0), (2.0, 2.0))
    least = min(minimize(loss, start, method="Nelder-Mead", options={"maxiter": 2000}).fun for start in starts)
    assert loss((unit / temperature, bias)) < least + 0.01


finite_scores = st.lists(
    st.lists(st.one_of(st.floats(-50, 50), st.sampled_from([0.0, 1e-20, -1e-20, 1.0])), min_size=3, max_size=3),
    min_size=1,
    max_size=8,
)


@settings(deadline=None, max_examples=150)
@given(finite_scores, st.floats(1e-3, 1e3), st.sampled_from([0.0, -30.0, -3.0, 2.0]))
def test_calibration_most_probable_class_is_predicted(rows, temperature, bias):
    scores = np.array(rows)
    (classes,) = Calibration(np.array([temperature]), np.array([bias]), np.array([3]), False, 1).by_output(scores)
    assert_array_equal(classes.argmax(axis=1), scores.argmax(axis=1))
    assert_allclose(classes.sum(axis=1), 1)
    labels = Calibration(np.full(3, temperature), np.full(3, bias), np.ones(3, dtype=int), True, 1)
    assert_array_equal(labels.probabilities(scores) > 0.5, scores > 0)
    for column, shares in zip(scores.T, labels.by_output(scores), strict=True):
        assert_array_equal(shares.argmax(axis=1), column > 0)
        assert_allclose(shares.sum(axis=1), 1)
        free = expit(column / temperature + bias)
        agrees = (free > 0.5) == (column > 0)
        assert_allclose(shares[agrees, 1], free[agrees], atol=1e-300)
        assert_allclose(shares[~agrees, 1], 0.5)
        assert np.all(np.diff(shares[np.argsort(column), 1]) >= 0)


@pytest.mark.parametrize("several", [False, True])
def test_calibration_sample_weights_match_copies(several):
    scores = RNG.normal(size=(120, 3))
    codes = draw(softmax(2 * scores, axis=1))
    codes = np.column_stack([codes > 0, codes > 1, codes == 0]).astype(int) if several else codes[:, None]
    widths = np.ones(3, dtype=int) if several else np.array([3])
    weights = RNG.integers(0, 3, 120)
    weighted = fit(scores, codes, widths, several, weights.astype(float))
    rows = np.repeat(np.arange(120), weights)
    repeated = fit(scores[rows], codes[rows], widths, several)
    for found, expected in zip(weighted.by_output(scores), repeated.by_output(scores), strict=True):
        assert_allclose(found, expected, atol=1e-4)


def test_calibration_ignores_unlabeled_samples():
    scores = RNG.normal(size=(200, 2))
    codes = (scores + RNG.normal(size=(200, 2)) > 0).astype(int)
    codes[::3, 1] = -1
    found = fit(scores, codes, np.ones(2, dtype=int), True)
    scores[::3, 1] = 77.0
    assert_array_equal(fit(scores, codes, np.ones(2, dtype=int), True).temperatures, found.temperatures)
    nothing = fit(scores, np.full((200, 2), -1), np.ones(2, dtype=int), True)
    assert_allclose(nothing.probabilities(scores), expit(scores))


@pytest.mark.parametrize("n", [4, 40, 400])
def test_calibration_of_separable_scores_is_smoothed(n):
    """At the minimum the weighted error probability is half a sample."""
    score = np.linspace(-2, 2, n)
    found = fit(score, (score > 0).astype(int)[:, None], np.array([1]), False).probabilities(score)
    assert_allclose(np.average(found.min(axis=1), weights=np.abs(score)), 0.5 / (n + 1), rtol=1e-2)


def test_read_outputs_matches_layout_of_decision_function():
    codes, widths = read_outputs(np.array(["b", "a", "c"]), np.array(["a", "b", "c"]), 3)
    assert_array_equal(codes[:, 0], [1, 0, 2])
    assert widths.tolist() == [3]
    codes, widths = read_outputs(np.array([[0, 1, 1], [1, 0, 0]]), np.arange(3), 3)  # indicator matrix
    assert_array_equal(codes, [[0, 1, 1], [1, 0, 0]])
    assert widths.tolist() == [1, 1, 1]
    table = np.array([["x", 1.0], ["z", None], ["y", 2.0]], dtype=object)
    codes, widths = read_outputs(table, [np.array(["x", "y", "z"]), np.array([1, 2])], 4)
    assert_array_equal(codes, [[0, 0], [2, -1], [1, 1]])
    assert widths.tolist() == [3, 1]
    assert read_outputs(np.array(["b", "a", "c"]), np.array(["a", "b", "c"]), 1) is None  # trained on two classes
    codes, widths = read_outputs(np.array([[0, 2], [1, 0]]), np.arange(3), 6)
    assert widths.tolist() == [3, 3]
