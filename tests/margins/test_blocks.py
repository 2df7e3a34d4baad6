"""The head over blocks of rows: against the head over one array, CVXPY, finite differences, and any cut into blocks."""

from __future__ import annotations

from dataclasses import replace

import cvxpy as cp
import numpy as np
import pytest

from head_tools import KINDS, OPTIONS, N, make_head
from large_margin_tools import minimise
from regbayes.engine import Status, Threads
from regbayes.margins.cells import sampled_cells
from regbayes.margins.head import MIN_BLOCK_ROWS, BlockwiseHead, FittedHead, HeadView, MarginHead, Tolerance
from regbayes.margins.targets import Classes, Signs, zero_one_cost

EXACT = Tolerance(gap=1e-13, max_epochs=200.0, smoothing=0.1)
BOXES = ("one_vs_rest", "signs", "numbers")


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def make_blocks(kind, rng, **options):
    """A head over blocks, and the features of three blocks, one of them of no rows."""
    head, features = make_head(kind, True, rng, **options)
    if head.rows is not None:
        head = replace(head, rows=np.sort(head.rows))
    return replace(head, in_blocks=True), [features[:5], features[5:5], features[5:]]


def gradient_of(fitted, blocks):
    ends = np.cumsum([0, *map(len, blocks)])
    parts = [fitted.gradient(slice(a, b), block) for a, b, block in zip(ends[:-1], ends[1:], blocks, strict=True)]
    return np.concatenate(parts)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", BOXES)
def test_outputs_that_stand_alone_have_the_same_head_as_over_one_array(kind, options, rng):
    head, blocks = make_blocks(kind, rng, weight_variance=1.7, **OPTIONS[options])
    found = head.solve(blocks, None, EXACT)
    expected = replace(head, in_blocks=False).solve(blocks, None, Tolerance(1e-11, 2e4))
    assert isinstance(found, BlockwiseHead)
    assert isinstance(expected, FittedHead)
    assert found.status is Status.CONVERGED
    assert found.bias == 0.0
    assert found.value == pytest.approx(expected.value, rel=1e-9)
    np.testing.assert_allclose(found.head.weights, expected.head.weights, atol=1e-5)
    np.testing.assert_allclose(gradient_of(found, blocks), gradient_of(expected, blocks), atol=1e-5)


@pytest.mark.parametrize("smoothing", [1.0, 0.1, 0.03])
def test_classes_have_the_head_that_cvxpy_finds_for_the_smoothed_loss(smoothing, rng):
    head, blocks = make_blocks("classes", rng, inputs=True, rows=True, weighted=True)
    found = head.solve(blocks, None, replace(EXACT, smoothing=smoothing))
    features, targets = np.concatenate(blocks)[head.rows], head.targets
    seen = features - np.average(features, axis=0, weights=head.row_weights)
    seen = np.column_stack([seen, head.inputs, np.ones(len(seen))])
    weights = cp.Variable(found.head.weights.shape)
    scores = seen @ weights.T
    losses = []
    for row, (label, C) in enumerate(zip(targets.labels, targets.C, strict=True)):
        others = [c for c in range(targets.n_outputs) if c != label]
        missed = cp.hstack([targets.cost[label, c] + scores[row, c] - scores[row, label] for c in others])
        losses.append(smoothed_hinge(missed, 1.0 / (2.0 * C), smoothing))
    optimum = minimise(0.5 * cp.sum_squares(weights) + sum(losses))
    assert found.value == pytest.approx(optimum, rel=1e-6)
    assert found.gap <= 1e-12 * found.value
    exact = replace(head, in_blocks=False).solve(blocks, None, Tolerance(1e-11, 2e4)).value
    assert found.value >= exact - 1e-9 * exact  # smoothing adds to the loss
    itself = found.terms["kl_weights"] + head.losses(found.head.scores(features, head.inputs)).sum()
    assert itself - exact <= found.gap + found.bias + 1e-9  # what the loss itself may be above its minimum by


def smoothed_hinge(missed, ridge, smoothing):
    """``max_u <u, missed> - ridge/2 ((1 - d) (sum u)^2 + d |u|^2)`` over u >= 0, as a minimum: a conjugate of a sum."""
    if smoothing == 1.0:
        return cp.sum_squares(cp.pos(missed)) / (2.0 * ridge)
    shared = cp.Variable(nonneg=True)  # excess that the sum of the multipliers answers for
    own = cp.sum_squares(cp.pos(missed - shared)) / (2.0 * ridge * smoothing)
    return own + cp.square(shared) / (2.0 * ridge * (1.0 - smoothing))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_is_the_derivative_of_the_value_by_features(kind, options):
    rng = np.random.default_rng(len(options))
    head, blocks = make_blocks(kind, rng, **OPTIONS[options])
    fitted = head.solve(blocks, None, EXACT)
    gradient = gradient_of(fitted, blocks)
    assert gradient.shape == (N, blocks[0].shape[1])
    for _ in range(3):
        steps = [1e-5 * rng.normal(size=block.shape) for block in blocks]
        ahead, behind = (
            head.solve([b + side * s for b, s in zip(blocks, steps, strict=True)], fitted.warm_start, EXACT).value
            for side in (1, -1)
        )
        assert 0.5 * (ahead - behind) == pytest.approx(np.vdot(gradient, np.concatenate(steps)), rel=1e-4, abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_any_cut_into_blocks_and_any_number_of_threads_ends_at_the_same_head(kind, rng):
    head, blocks = make_blocks(kind, rng, inputs=True, rows=True, weighted=True)
    features, first = np.concatenate(blocks), head.solve(blocks, None, EXACT)
    for cut in ([N], [1, 3, 20], [5, 0, 12, 7]):
        pieces = np.split(features, np.cumsum(cut)[:-1])
        other = head.solve(pieces, None, EXACT)
        np.testing.assert_allclose(other.head.weights, first.head.weights, atol=1e-10)
    for n_threads in (2, 5):
        other = head.solve(blocks, None, EXACT, Threads(n_threads))
        np.testing.assert_array_equal(other.head.weights, first.head.weights)
        np.testing.assert_array_equal(gradient_of(other, blocks), gradient_of(first, blocks))


# --- many rows: the curvature of a sample -----------------------------------------------------------------------------


def many_rows(rng, n=6000, n_features=8, n_classes=5):
    features = rng.random((n, n_features)) * (rng.random((n, n_features)) < 0.4)
    scores = 4.0 * features @ rng.normal(size=(n_features, n_classes)) + rng.gumbel(size=(n, n_classes))
    labels = np.argmax(scores + np.array([1.0, 0.0, 0.0, 0.0, -3.0]), axis=1)  # the last class is rare
    return [features[:3500], features[3500:]], Classes(labels, zero_one_cost(n_classes), np.ones(n))


@pytest.mark.parametrize(("one_vs_rest", "tol", "cold", "warm"), [(True, 1e-4, 12, 4), (False, 1e-3, 12, 5)])
def test_few_passes_solve_many_rows_to_a_certified_gap(one_vs_rest, tol, cold, warm, rng):
    blocks, classes = many_rows(rng)
    targets = classes.one_vs_rest() if one_vs_rest else classes
    head = MarginHead(targets, squared=True, in_blocks=True)
    assert head.n_sampled(0, 8) < len(targets)  # it is a sample that the curvature comes from
    found = head.solve(blocks, None, Tolerance(tol, 12.0))
    exact = head.solve(blocks, found.warm_start, EXACT)
    assert found.n_passes <= cold
    assert found.gap <= tol * found.value
    assert 0.0 <= found.value - exact.value <= found.gap * (1.0 + 1e-9)  # the certificate
    moved = [block + 0.01 * rng.normal(size=block.shape) for block in blocks]
    again = head.solve(moved, found.warm_start, Tolerance(tol, 12.0))
    assert again.n_passes <= warm
    assert again.gap <= tol * again.value


def test_every_beginning_of_the_sample_has_its_share_of_each_class(rng):
    _, classes = many_rows(rng)
    for targets in (classes, classes.one_vs_rest()):
        order = MarginHead(targets, squared=True)._draw_order
        assert sorted(order) == list(range(len(classes)))
        shares = np.bincount(classes.labels) / len(classes)
        for n in (50, 500, 3000):
            found = np.bincount(classes.labels[order[:n]], minlength=len(shares))
            assert np.all(np.abs(found - n * shares) <= 1.0)


def test_rows_stay_in_blocks_where_they_are_many_and_the_loss_is_smooth(rng):
    n = MIN_BLOCK_ROWS
    signs = Signs(rng.choice([-1.0, 1.0], (n, 2)), np.ones((n, 2)))
    assert not MarginHead(signs, squared=True).gathers(10)
    assert MarginHead(signs, squared=False).gathers(10)  # a hinge has no curvature
    assert MarginHead(signs.take(slice(n - 1)), squared=True).gathers(10)
    assert MarginHead(signs, squared=True).gathers(4000)  # too many weights for their curvature
    many = Classes(np.arange(n) % 60, zero_one_cost(60), np.ones(n))
    assert not MarginHead(many, squared=True).gathers(20)
    assert MarginHead(many, squared=True).gathers(40)


def test_weights_that_multipliers_imply_are_a_start(rng):
    head, blocks = make_blocks("one_vs_rest", rng, inputs=True)
    over_one_array = replace(head, in_blocks=False).solve(blocks, None, Tolerance(1e-11, 2e4))
    found = head.solve(blocks, over_one_array.multipliers, Tolerance(1e-8, 1.0))
    assert found.n_passes == 1
    assert found.value == pytest.approx(over_one_array.value, rel=1e-8)


def test_rows_with_targets_out_of_order_are_refused(rng):
    head, blocks = make_blocks("signs", rng, rows=True)
    with pytest.raises(ValueError, match="rows must ascend"):
        replace(head, rows=head.rows[::-1].copy()).solve(blocks, None, EXACT)


def test_pieces_of_a_sample_have_its_curvature(rng, monkeypatch):
    n_rows, features = 700, rng.normal(size=(40, 5))
    labels, weights = rng.integers(3, size=n_rows), rng.normal(size=(3, 6))
    seen, drawn = rng.normal(size=(300, 6)), np.sort(rng.permutation(n_rows)[:300])
    classes = Classes(labels, zero_one_cost(3), rng.uniform(0.5, 2.0, size=n_rows))
    owned = [np.arange(0), np.arange(40), np.arange(5, 12)]  # rows that outputs have, one after another
    form = replace(Signs(np.ones((47, 1)), np.ones((47, 1))).dual_form(True), ridge=rng.uniform(1, 2, 47))

    def curvatures():
        for targets in (classes, classes.one_vs_rest()):
            head = MarginHead(targets, squared=True, in_blocks=True)
            yield head.sampled_blocks(seen, drawn, HeadView(np.zeros(5), 0.1), 0.4), weights
        yield sampled_cells(features, form, owned), weights[:, :5]

    def sums():
        return [(len(blocks), sum(block.curvature(at) for block in blocks)) for blocks, at in curvatures()]

    whole = sums()
    monkeypatch.setattr("regbayes.margins.newton.PIECE_ROWS", 10)
    for (one, expected), (many, found) in zip(whole, sums(), strict=True):
        assert one == 1
        assert many > 3
        np.testing.assert_allclose(found, expected, atol=1e-12)
    monkeypatch.setattr("regbayes.margins.newton.PIECE_NUMBERS", 100)  # each piece would have as many
    assert [n for n, _ in sums()] == [1, 1, 1]
