"""The head under margins: against CVXPY, finite differences, and problems that must be the same."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import cvxpy as cp
import numpy as np
import pytest

from head_tools import KINDS, N_OUTPUTS, OPTIONS, K, N, make_head
from large_margin_tools import hinge_loss, minimise, tube_loss
from regbayes.engine import Status
from regbayes.margins.head import Tolerance, score_multipliers, simplex_multipliers
from regbayes.margins.targets import Classes, Numbers, Signs
from regbayes.regularizers import MultiClassHinge, MultiClassSquaredHinge

EXACT = Tolerance(gap=1e-11, max_epochs=2e4)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


# --- CVXPY ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_head_is_the_solution_cvxpy_finds(rng, kind, squared):
    v = 1.7
    head, features = make_head(kind, squared, rng, inputs=True, rows=True, weighted=True, weight_variance=v)
    fitted = head.solve(features, None, EXACT)
    seen = features[head.rows]
    mean = np.average(seen, axis=0, weights=head.row_weights)
    seen = np.column_stack([seen - mean, head.inputs, np.ones(len(seen))])
    weights = cp.Variable((N_OUTPUTS, seen.shape[1]))
    losses = written_out(head.targets, seen @ weights.T, 2 if squared else 1)
    optimum = minimise(cp.sum_squares(weights) / (2 * v) + losses)
    assert fitted.status is Status.CONVERGED
    assert fitted.value == pytest.approx(optimum, rel=1e-7)
    np.testing.assert_allclose(fitted.head.weights, weights.value, atol=2e-4)
    np.testing.assert_allclose(fitted.head.centre, mean, rtol=1e-12)
    assert fitted.terms["kl_weights"] == pytest.approx(np.sum(fitted.head.weights**2) / (2 * v), rel=1e-10)
    assert fitted.value == pytest.approx(sum(fitted.terms.values()), rel=1e-12)
    np.testing.assert_allclose(fitted.head.scores(features[head.rows], head.inputs), seen @ fitted.head.weights.T)


def written_out(targets, scores, power):
    """The loss as a CVXPY expression of the scores (n, outputs)."""
    match targets:
        case Classes():
            truth = np.eye(N_OUTPUTS)[targets.labels]
            own = cp.reshape(cp.sum(cp.multiply(scores, truth), axis=1), (len(targets), 1), order="C")
            slack, C = cp.max(targets.cost[targets.labels] + scores - own, axis=1), targets.C
        case Signs():
            slack, C = targets.margin - cp.multiply(targets.signs, scores), targets.C
        case Numbers():
            slack, C = cp.abs(scores - targets.values) - targets.epsilon, targets.C
    return cp.sum(cp.multiply(C, cp.pos(slack) if power == 1 else cp.square(cp.pos(slack))))


# --- derivatives ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_is_the_derivative_of_the_value_by_features(kind, squared, options):
    rng = np.random.default_rng(len(options))
    head, features = make_head(kind, squared, rng, **OPTIONS[options])
    fitted = head.solve(features, None, EXACT)
    gradient = np.concatenate([fitted.gradient(slice(0, 7)), fitted.gradient(slice(7, N))])
    assert gradient.shape == features.shape
    for _ in range(3):
        step = 1e-5 * rng.normal(size=features.shape)
        ahead, behind = (head.solve(features + side * step, fitted.multipliers, EXACT).value for side in (1, -1))
        assert 0.5 * (ahead - behind) == pytest.approx(np.vdot(gradient, step), rel=1e-4, abs=1e-9)
    if head.rows is not None:
        without = np.setdiff1d(np.arange(N), head.rows)
        np.testing.assert_array_equal(gradient[without], 0.0)


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_losses_and_multipliers_at_scores_are_the_losses_and_their_slopes(rng, kind, squared):
    head, _ = make_head(kind, squared, rng)
    targets, scores = head.targets, rng.normal(size=(N, N_OUTPUTS))
    if kind == "classes":
        make = MultiClassSquaredHinge if squared else MultiClassHinge
        loss = make(targets.C, targets.cost, targets.labels)
    elif kind == "numbers":
        loss = tube_loss(targets.values.ravel(), targets.C.ravel(), squared, targets.epsilon)
    else:
        loss = hinge_loss(targets.signs.ravel(), targets.C.ravel(), squared)

    def losses(scores):
        own = np.take_along_axis(scores, targets.labels[:, None], axis=1) if kind == "classes" else 0.0
        return loss.value((scores - own).ravel())

    by_row = head.losses(scores)
    assert by_row.shape == (N,)
    assert by_row.sum() == pytest.approx(losses(scores), rel=1e-12)
    for row in range(3):
        assert by_row[row] == pytest.approx(replace(head, targets=targets.take([row])).losses(scores[[row]])[0])
    phi, width = head.multipliers(scores), 1e-6
    for row, output in np.ndindex(scores.shape):
        move = np.zeros_like(scores)
        move[row, output] = width
        slope = (losses(scores + move) - losses(scores - move)) / (2 * width)
        assert phi[row, output] == pytest.approx(-slope, abs=1e-6)


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gap", [1e-1, 1e-3, 1e-10])
def test_terms_multipliers_and_gap_belong_together(rng, kind, squared, gap):
    """The margin term is the loss at the head's scores; the gap is true, however roughly the problem is solved."""
    head, features = make_head(kind, squared, rng, inputs=True)
    fitted = head.solve(features, None, Tolerance(gap, 1e5))
    assert fitted.terms["margin"] == pytest.approx(
        head.losses(fitted.head.scores(features, head.inputs)).sum(), rel=1e-9
    )
    optimum = head.solve(features, None, EXACT)
    assert fitted.gap <= gap * fitted.value
    assert fitted.value - fitted.gap <= optimum.value * (1 + 1e-12)
    assert fitted.value >= optimum.value * (1 - 1e-12)
    if gap == 1e-10:  # the weights are what the multipliers sum up to
        seen = np.column_stack([features - features.mean(axis=0), head.inputs, np.ones(N)])
        np.testing.assert_allclose(fitted.multipliers.T @ seen, fitted.head.weights, atol=1e-4)
    if kind == "classes":
        np.testing.assert_allclose(fitted.multipliers.sum(axis=1), 0.0, atol=1e-12)


# --- problems that are the same ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_of_weight_two_is_the_row_twice(rng, kind, squared):
    head, features = make_head(kind, squared, rng, inputs=True)
    times = rng.integers(1, 4, size=N)
    copies = np.repeat(np.arange(N), times)
    weighted = replace(
        head,
        targets=replace(head.targets, C=(head.targets.C.T * times).T),
        row_weights=times.astype(np.float64),
    )
    repeated = replace(head, targets=head.targets.take(copies), inputs=head.inputs[copies])
    once, twice = weighted.solve(features, None, EXACT), repeated.solve(features[copies], None, EXACT)
    assert once.value == pytest.approx(twice.value, rel=1e-11)
    np.testing.assert_allclose(once.head.weights, twice.head.weights, atol=1e-5)
    np.testing.assert_allclose(once.head.centre, twice.head.centre, rtol=1e-12)
    summed = np.zeros_like(features)
    np.add.at(summed, copies, twice.gradient(slice(None)))
    np.testing.assert_allclose(once.gradient(slice(None)), summed, atol=1e-5)


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_of_price_zero_is_a_row_without_targets(rng, kind, squared):
    """Its weight in the mean is zero too."""
    head, features = make_head(kind, squared, rng, inputs=True)
    kept = np.arange(N) % 4 > 0
    out = replace(
        head,
        targets=replace(head.targets, C=(head.targets.C.T * kept).T),
        row_weights=kept.astype(np.float64),
    )
    rows = np.flatnonzero(kept)
    gone = replace(head, targets=head.targets.take(rows), inputs=head.inputs[rows], rows=rows)
    expected, found = gone.solve(features, None, EXACT), out.solve(features, None, EXACT)
    assert found.value == pytest.approx(expected.value, rel=1e-11)
    np.testing.assert_allclose(found.head.weights, expected.head.weights, atol=1e-5)
    np.testing.assert_allclose(found.gradient(slice(None)), expected.gradient(slice(None)), atol=1e-5)
    np.testing.assert_array_equal(found.multipliers[~kept], 0.0)


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_warm_start_at_the_solution_needs_no_epoch(rng, kind, squared):
    head, features = make_head(kind, squared, rng, inputs=True)
    fitted = head.solve(features, None, EXACT)
    again = head.solve(features, fitted.multipliers, Tolerance(gap=1e-10, max_epochs=0))
    assert again.status is Status.CONVERGED
    assert again.value == pytest.approx(fitted.value, rel=1e-12)
    np.testing.assert_allclose(again.multipliers, fitted.multipliers, atol=1e-12)
    np.testing.assert_allclose(again.head.weights, fitted.head.weights, atol=1e-6)


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_permuting_rows_and_outputs_permutes(rng, kind, squared):
    head, features = make_head(kind, squared, rng, inputs=True)
    order, outputs = rng.permutation(N), rng.permutation(N_OUTPUTS)
    permuted = head.targets.take(order)
    if kind == "classes":
        cost = permuted.cost[np.ix_(outputs, outputs)]
        permuted = Classes(np.argsort(outputs)[permuted.labels], cost, permuted.C)
    elif kind == "numbers":
        permuted = replace(permuted, values=permuted.values[:, outputs], C=permuted.C[:, outputs])
    else:
        permuted = replace(permuted, signs=permuted.signs[:, outputs], C=permuted.C[:, outputs])
    fitted = head.solve(features, None, EXACT)
    again = replace(head, targets=permuted, inputs=head.inputs[order]).solve(features[order], None, EXACT)
    assert again.value == pytest.approx(fitted.value, rel=1e-11)
    np.testing.assert_allclose(again.head.weights, fitted.head.weights[outputs], atol=1e-5)
    if squared:  # without a ridge there may be several
        np.testing.assert_allclose(again.multipliers, fitted.multipliers[np.ix_(order, outputs)], atol=1e-4)
    np.testing.assert_allclose(again.gradient(slice(None)), fitted.gradient(slice(None))[order], atol=1e-4)


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_wider_weights_are_scaled_columns(rng, kind, squared):
    """A variance v of the weights is a factor sqrt(v) on all that the head sees, the constant included."""
    v = 2.3
    head, features = make_head(kind, squared, rng, inputs=True, weight_variance=v)
    columns = np.sqrt(v) * np.column_stack([head.inputs, np.ones(N)])
    centred = features - features.mean(axis=0)
    plain = replace(head, weight_variance=1.0, inputs=columns, fit_intercept=False)
    wide, scaled = head.solve(features, None, EXACT), plain.solve(np.sqrt(v) * centred, None, EXACT)
    assert wide.value == pytest.approx(scaled.value, rel=1e-12)
    np.testing.assert_allclose(wide.head.weights, np.sqrt(v) * scaled.head.weights, atol=1e-6)
    np.testing.assert_allclose(wide.multipliers, scaled.multipliers, atol=1e-6)
    by_features = np.sqrt(v) * scaled.gradient(slice(None))
    np.testing.assert_allclose(wide.gradient(slice(None)), by_features - by_features.mean(axis=0), atol=1e-6)


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_small_C_leaves_the_prior(rng, kind, squared):
    head, features = make_head(kind, squared, rng, inputs=True)
    C = head.targets.C
    sizes, losses = [], []
    for factor in (1e-4, 1e-6, 1e-8):
        small = replace(head, targets=replace(head.targets, C=factor * C)).solve(features, None, EXACT)
        sizes.append(np.abs(small.head.weights).max() / factor)
        losses.append(small.terms["margin"] / factor)
    np.testing.assert_allclose(sizes, sizes[-1], rtol=0.1)  # weights of the order of C
    assert losses[-1] == pytest.approx(head.losses(np.zeros((N, N_OUTPUTS))).sum(), rel=1e-5)


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_moving_all_centred_features_changes_nothing(rng, kind, squared):
    head, features = make_head(kind, squared, rng, rows=True, weighted=True)
    moved = features + rng.normal(size=K)
    here, there = head.solve(features, None, EXACT), head.solve(moved, None, EXACT)
    assert there.value == pytest.approx(here.value, rel=1e-11)
    np.testing.assert_allclose(there.head.scores(moved), here.head.scores(features), atol=1e-5)
    np.testing.assert_allclose(here.gradient(slice(None)).sum(axis=0), 0.0, atol=1e-9)


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_single_precision_features_are_their_values_in_double(rng, kind, squared):
    head, features = make_head(kind, squared, rng)
    single = features.astype(np.float32)
    low, high = head.solve(single, None, EXACT), head.solve(single.astype(np.float64), None, EXACT)
    assert low.value == pytest.approx(high.value, rel=1e-10)
    assert low.head.weights.dtype == low.gradient(slice(None)).dtype == np.float64


def test_nothing_that_is_handed_in_is_written(rng):
    for kind, squared in product(KINDS, [False, True]):
        head, features = make_head(kind, squared, rng, inputs=True, rows=True, weighted=True, weight_variance=2.0)
        start = head.solve(features, None, Tolerance(1e-2, 5.0)).multipliers
        frozen = [features, start, head.inputs, head.rows, head.row_weights]
        for array in frozen:
            array.flags.writeable = False
        copies = [array.copy() for array in frozen]
        fitted = head.solve(features, start, EXACT)
        fitted.gradient(slice(3, 9))
        for array, copy in zip(frozen, copies, strict=True):
            np.testing.assert_array_equal(array, copy)


@pytest.mark.parametrize("squared", [False, True])
def test_multipliers_of_scores_and_of_simplexes_are_the_same_numbers(rng, squared):
    head, _ = make_head("classes", squared, rng)
    labels, form = head.targets.labels, head.form
    omega = rng.uniform(size=(N, N_OUTPUTS))
    if squared:
        omega[np.arange(N), labels] = 0.0
    else:
        omega *= (form.total / omega.sum(axis=1))[:, None]
    np.testing.assert_allclose(simplex_multipliers(score_multipliers(omega, labels), labels, form), omega, atol=1e-12)
