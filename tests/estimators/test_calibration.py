"""From scores to probabilities: oracles for the curves, and that they never turn an answer round."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import check_grad, minimize, minimize_scalar
from scipy.special import expit, log_softmax, softmax
from sklearn.metrics import log_loss as sklearn_log_loss

from regbayes.estimators._calibration import (
    SHARED_ROWS,
    Answers,
    Curve,
    Unseen,
    bin_predictions,
    calibrate,
    columns_of,
    fit_classes,
    fit_each_class,
    fit_label,
    fit_temperature,
    keep_answers,
    log_loss,
    loss_of_each_class,
    loss_of_one_against_all,
    loss_of_scale,
    loss_of_sigmoid,
    read_questions,
)


def draw(n, k, temperature, seed=0):
    """Draw logits, and classes as their softmax at a temperature says."""
    random = np.random.default_rng(seed)
    scores = random.normal(size=(n, k))
    shares = softmax(scores / temperature, axis=1)
    codes = (shares.cumsum(axis=1) > random.random((n, 1))).argmax(axis=1)
    return scores, codes


@pytest.mark.parametrize("k", [2, 5])
def test_the_temperature_is_that_of_scipy_and_has_slope_zero(k):
    scores, codes = draw(300, k, 0.4)
    asked = Answers.of(scores, codes)
    found = fit_temperature([asked])

    def loss(log_scale):
        return -log_softmax(np.exp(log_scale) * scores, axis=1)[np.arange(300), codes].sum()

    by_scipy = minimize_scalar(loss, bounds=(-5, 5), method="bounded", options={"xatol": 1e-10})
    assert_allclose(found, np.exp(-by_scipy.x), rtol=1e-6)
    value, slope, curvature = loss_of_scale(1 / found, [asked])
    assert_allclose(value, by_scipy.fun, rtol=1e-10)
    assert abs(slope) < 1e-8 * curvature / found


def test_derivatives_are_those_of_differences():
    scores, codes = draw(50, 4, 0.5)
    asked, two = Answers.of(scores, codes), Answers.of(scores[:, 0], (codes > 1).astype(int))
    for b in (0.1, 1.0, 4.0):
        value = [loss_of_scale(b + e, [asked, two]) for e in (-1e-5, 0, 1e-5)]
        assert_allclose((value[2][0] - value[0][0]) / 2e-5, value[1][1], rtol=1e-6, atol=1e-6)
        assert_allclose((value[2][1] - value[0][1]) / 2e-5, value[1][2], rtol=1e-5)
    at = np.array([0.7, -0.4])
    of_classes = check_grad(
        lambda at: loss_of_one_against_all(at, asked)[0], lambda at: loss_of_one_against_all(at, asked)[1], at
    )
    each = np.random.default_rng(0).normal(0, 0.3, 10)
    of_each = check_grad(lambda at: loss_of_each_class(at, asked)[0], lambda at: loss_of_each_class(at, asked)[1], each)
    inputs = np.column_stack([two.scores[:, 1], np.ones(50)])
    loss = [lambda at, i=i: loss_of_sigmoid(at, inputs, two.targets)[i] for i in (0, 1)]
    assert max(of_classes, of_each, check_grad(*loss, at)) < 1e-4


@pytest.mark.parametrize(("k", "temperature"), [(2, 0.3), (10, 0.15), (3, 2.0)])
def test_a_known_temperature_is_recovered(k, temperature):
    scores, codes = draw(20000, k, temperature)
    assert_allclose(fit_temperature([Answers.of(scores, codes)]), temperature, rtol=0.06)


def test_a_known_sigmoid_and_known_scores_against_all_are_recovered():
    random = np.random.default_rng(0)
    score = random.normal(size=20000)
    positive = random.random(20000) < expit(3 * score - 1)
    found = fit_label(Answers.of(score, positive.astype(int)), Curve.same(1, 1.0, 0.0))
    assert_allclose(np.append(found.temperatures, found.offsets), (1 / 3, 1 / 3, -1.0), rtol=0.1)
    bent = np.random.default_rng(1).random(20000) < expit(3 * np.minimum(score, 0) + np.maximum(score, 0) + 0.5)
    found = fit_label(Answers.of(score, bent.astype(int)), Curve.same(1, 1.0, 0.0))
    assert 0.25 < found.temperatures[0, 0] < 0.45 < 0.6 < found.temperatures[0, 1] < 1.0  # half way to being the same
    scores = random.normal(size=(20000, 4))
    shares = expit(4 * scores - 0.5)
    shares /= shares.sum(axis=1, keepdims=True)
    codes = (shares.cumsum(axis=1) > random.random((20000, 1))).argmax(axis=1)
    asked = Answers.of(scores, codes)
    temperature, offset = fit_classes(asked, fit_temperature([asked]))
    assert_allclose((temperature, offset), (0.25, -0.5), atol=0.1)


def test_a_softmax_is_left_only_where_another_curve_is_better():
    scores, codes = draw(4000, 5, 0.2)
    asked = Answers.of(scores, codes)
    temperature = fit_temperature([asked])
    found = fit_classes(asked, temperature)
    least = -np.sum(asked.targets * np.log(Curve.same(5, temperature, -np.inf)(scores)))
    loss = -np.sum(asked.targets * np.log(Curve.same(5, *found)(scores)))
    assert loss <= least + 1e-6
    # no curve of either kind that scipy finds from elsewhere is better
    for start in ([0.0, 0.0], [2.0, -10.0], [1.0, 3.0]):
        other = minimize(lambda at: loss_of_one_against_all(at, asked)[0], start, method="Nelder-Mead")
        assert loss <= other.fun * (1 + 1e-4)


def test_the_curve_of_a_label_is_half_way_between_two_of_scipy():
    scores, codes = draw(200, 2, 0.5)
    score = scores[:, 1] - scores[:, 0] + 0.3
    asked = Answers.of(score, codes).and_any()

    def loss(at):
        logits = np.where(score > 0, at[1], at[0]) * score + at[2]
        return -np.sum(asked.targets * log_softmax(np.column_stack([np.zeros(200), logits]), axis=1))

    bent = minimize(loss, [1.0, 1.0, 0.0], method="BFGS", tol=1e-9).x
    straight = minimize(lambda at: loss([at[0], at[0], at[1]]), [1.0, 0.0], method="BFGS", tol=1e-9).x[[0, 0, 1]]
    found = fit_label(asked, Curve.same(1, 1.0, 0.0))
    assert_allclose([*(1 / found.temperatures[0]), found.offsets[0]], (bent + straight) / 2, rtol=1e-4)


def test_a_label_never_falls_with_its_score():
    score = np.concatenate([np.linspace(-3, -0.1, 300), np.linspace(0.1, 2, 12)])
    likely = np.arange(300) % 10 < np.arange(300) // 60
    for above in (np.arange(12) < 8, np.arange(12) < 2):  # falls above zero, the second time steeply
        asked = Answers.of(score, np.concatenate([likely, above]).astype(int))
        found = fit_label(asked, Curve.same(1, 1.0, 0.0))
        assert np.all(found.temperatures > 0)
        assert np.all(np.diff(found(columns_of(score))[:, 1]) > 0)


def test_few_rows_on_one_side_of_zero_are_not_believed():
    random = np.random.default_rng(0)
    scores = random.normal(size=(600, 3))
    codes = (random.random((600, 3)) < expit(2 * scores)).astype(int)
    scores[:, 2] = -np.abs(scores[:, 2])
    codes[:, 2] = random.random(600) < expit(2 * scores[:, 2])
    scores[:3, 2], codes[:3, 2] = [0.05, 0.1, 0.15], 1  # three rows, all of them right
    found = calibrate(scores, codes, np.ones(3, dtype=int), True, None).probabilities(np.full((1, 3), 0.1))
    assert found[0, 2] < 0.75


def test_each_class_has_its_own_curve_only_where_classes_differ():
    random = np.random.default_rng(0)
    scores = random.normal(size=(4000, 6))
    for scales, apart in (([4.0] * 6, False), ([1.0, 2.0, 4.0, 8.0, 16.0, 4.0], True)):
        shares = expit(np.array(scales) * scores - 0.5)
        shares /= shares.sum(axis=1, keepdims=True)
        codes = (shares.cumsum(axis=1) > random.random((4000, 1))).argmax(axis=1)
        asked = Answers.of(scores, codes)
        common = Curve.same(6, *fit_classes(asked, fit_temperature([asked])))
        found = fit_each_class(asked, common)
        if not apart:
            assert found is common
            continue
        assert_allclose(1 / found.temperatures[:, 0], scales, rtol=0.35)
        assert np.all(np.diff(found.temperatures[:5, 0]) < 0)
        fresh = random.normal(size=(4000, 6))
        truth = expit(np.array(scales) * fresh - 0.5)
        truth /= truth.sum(axis=1, keepdims=True)
        kept = truth.argmax(axis=1) == fresh.argmax(axis=1)  # elsewhere the answer goes before
        apart_from = [np.mean(np.sum(truth * np.log(truth / curve(fresh)), axis=1)[kept]) for curve in (found, common)]
        assert apart_from[0] < apart_from[1] / 3


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(0.0, 1.0), min_size=4, max_size=4), st.integers(0, 3))
def test_shares_that_keep_the_answer_are_the_nearest(weights, answer):
    shares = (np.array([weights]) + 1e-3) / np.sum(np.array(weights) + 1e-3)
    (found,) = keep_answers(shares, np.array([answer]))
    assert found.argmax() == answer
    assert_allclose(found.sum(), 1)
    by_scipy = minimize(
        lambda q: np.sum((q - shares[0]) ** 2),
        np.full(4, 0.25),
        constraints=[
            {"type": "eq", "fun": lambda q: q.sum() - 1},
            {"type": "ineq", "fun": lambda q: q[answer] - q},
            {"type": "ineq", "fun": lambda q: q},
        ],
        method="SLSQP",
        options={"ftol": 1e-14},
    )
    assert_allclose(found, by_scipy.x, atol=1e-5)


scores_of_rows = st.lists(
    st.lists(st.one_of(st.floats(-50, 50), st.sampled_from([0.0, 1e-20, -1e-20, 1.0])), min_size=3, max_size=3),
    min_size=1,
    max_size=8,
)


@settings(deadline=None, max_examples=150)
@given(scores_of_rows, st.floats(1e-3, 1e3), st.sampled_from([0.0, -np.inf, -3.0, 2.0]))
def test_no_answer_is_turned_round(rows, temperature, offset):
    scores = np.array(rows)
    apart = Curve(temperature * np.array([[1.0, 1.0], [0.3, 0.3], [5.0, 5.0]]), offset + np.array([0.0, 1.0, -2.0]))
    for curve in (Curve.same(3, temperature, offset), apart):
        several = curve(scores)
        assert_array_equal(several.argmax(axis=1), scores.argmax(axis=1))
        assert_allclose(several.sum(axis=1), 1)
    curve = Curve(np.array([[temperature, temperature / 3]]), np.array([0.0 if np.isinf(offset) else offset]))
    two = curve(columns_of(scores[:, 0]))
    assert_array_equal(two[:, 1] > 0.5, scores[:, 0] > 0)
    assert_array_equal(two.argmax(axis=1), scores[:, 0] > 0)
    assert_allclose(two.sum(axis=1), 1)


def test_probabilities_go_up_with_the_score():
    score = np.linspace(-3, 3, 200)
    for offset, above in ((0.0, 0.4), (1.0, 0.4), (-1.0, 0.4), (-1.0, 2.0)):
        found = Curve(np.array([[0.4, above]]), np.array([offset]))(columns_of(score))[:, 1]
        assert np.all(np.diff(found) > 0)
        free = expit(score / np.where(score > 0, above, 0.4) + offset)
        kept = (free > 0.5) == (score > 0)
        assert_allclose(found[kept], free[kept])
        assert_allclose(found[~kept], 0.5, atol=1e-8)


@pytest.mark.parametrize("several", [False, True])
def test_a_weight_of_two_is_the_row_twice_and_of_zero_none(several):
    scores, codes = draw(120, 3, 0.5)
    codes = np.column_stack([codes > 0, codes > 1, codes == 0]).astype(int) if several else codes[:, None]
    widths = np.ones(3, dtype=int) if several else np.array([3])
    weights = np.random.default_rng(1).integers(0, 3, 120)
    weighted = calibrate(scores, codes, widths, several, weights.astype(float))
    rows = np.repeat(np.arange(120), weights)
    repeated = calibrate(scores[rows], codes[rows], widths, several, None)
    assert_allclose(weighted.temperatures, repeated.temperatures, rtol=1e-6)
    assert_allclose(weighted.offsets, repeated.offsets, rtol=1e-4, atol=1e-7)


def test_rows_without_a_label_say_nothing():
    scores, codes = draw(200, 2, 0.5)
    table = np.column_stack([codes, codes])
    table[::3, 1] = -1
    holes = calibrate(scores, table, np.ones(2, dtype=int), True, None)
    other = np.array(scores)
    other[::3, 1] = 77.0
    assert_array_equal(calibrate(other, table, np.ones(2, dtype=int), True, None).temperatures, holes.temperatures)


@pytest.mark.parametrize("n", [4, 40, 400])
def test_scores_that_are_all_right_are_doubted_as_much_as_half_a_row(n):
    score = np.linspace(-2, 2, n)
    found = calibrate(score, (score > 0).astype(int)[:, None], np.array([1]), False, None)
    doubt = np.average(found.probabilities(score).min(axis=1), weights=np.abs(score))
    assert_allclose(doubt, 0.5 / (n + 1), rtol=1e-8)  # the slope of the loss is zero there


def test_scores_that_are_worse_than_none_claim_nothing():
    score = np.linspace(-2, 2, 40)
    found = calibrate(score, (score < 0).astype(int)[:, None], np.array([1]), False, None).probabilities(score)
    assert_array_equal(found.argmax(axis=1), score > 0)
    assert found.max() < 0.51
    nothing = calibrate(np.zeros(9), np.arange(9)[:, None] % 2, np.array([1]), False, None)
    assert_allclose(nothing.probabilities(np.zeros(9)), 0.5)


def test_a_label_with_few_rows_has_the_curve_of_all():
    random = np.random.default_rng(0)
    scores = random.normal(size=(3000, 3))
    codes = (random.random((3000, 3)) < expit([2.0, 2.0, 8.0] * scores)).astype(int)
    full = calibrate(scores, codes, np.ones(3, dtype=int), True, None)
    assert np.all(full.temperatures[2] < full.temperatures[:2].min() / 2)
    codes[5:, 2] = -1
    few = calibrate(scores, codes, np.ones(3, dtype=int), True, None)
    assert_allclose(few.temperatures[2], few.temperatures[:2].mean(axis=0), rtol=5 / SHARED_ROWS + 0.1)
    codes[:, 2] = -1
    none = calibrate(scores, codes, np.ones(3, dtype=int), True, None)
    assert np.isfinite(none.temperatures).all()


def test_questions_are_read_as_classifiers_lay_their_scores_out():
    codes, widths = read_questions(np.array(["b", "a", "c"]), np.array(["a", "b", "c"]), 3)
    assert_array_equal(codes[:, 0], [1, 0, 2])
    assert widths.tolist() == [3]
    codes, widths = read_questions(np.array([[0, 1, 1], [1, 0, 0]]), np.arange(3), 3)  # indicators
    assert_array_equal(codes, [[0, 1, 1], [1, 0, 0]])
    assert widths.tolist() == [1, 1, 1]
    table = np.array([["x", 1.0], ["z", None], ["y", 2.0]], dtype=object)
    codes, widths = read_questions(table, [np.array(["x", "y", "z"]), np.array([1, 2])], 4)
    assert_array_equal(codes, [[0, 0], [2, -1], [1, 1]])
    assert widths.tolist() == [3, 1]
    assert read_questions(np.array(["b", "a", "c"]), np.array(["a", "b", "c"]), 1) is None  # a fold with two classes
    codes, widths = read_questions(np.array([[0, 2], [1, 0]]), np.arange(3), 6)
    assert widths.tolist() == [3, 3]


def test_log_loss_and_calibration_error():
    scores, codes = draw(500, 4, 1.0)
    shares = softmax(scores, axis=1)
    weights = np.random.default_rng(0).random(500)
    assert_allclose(log_loss(shares, codes), sklearn_log_loss(codes, shares))
    assert_allclose(log_loss(shares, codes, weights), sklearn_log_loss(codes, shares, sample_weight=weights))
    probability, right = np.array([0.55, 0.95, 0.95, 1.0, 0.55]), np.array([True, True, False, True, False])
    bins = bin_predictions(probability, right)
    assert_array_equal(bins.counts[[5, 9]], [2, 3])
    assert_allclose(bins.share[[5, 9]], [0.5, 2 / 3])
    assert_allclose(bins.error, (2 * 0.05 + 3 * abs(2 / 3 - 2.9 / 3)) / 5)
    doubled = bin_predictions(np.repeat(probability, 2), np.repeat(right, 2))
    assert_allclose(bin_predictions(probability, right, np.full(5, 2.0)).error, doubled.error)


def test_a_classifier_with_probabilities_needs_no_others():
    class Own:
        decision_function = predict_proba = None

    assert Unseen.of(Own(), [], np.zeros(3)) is None
