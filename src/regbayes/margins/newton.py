"""Newton's method on the primal, for smooth losses: weights are the only state, and rows lie in blocks anywhere.

Where every multiplier has a ridge (the squared hinge, the squared tube) the loss is piecewise quadratic in the weights,
and a few Newton steps (Mangasarian 2002; Keerthi and DeCoste, JMLR 2005) end where coordinate ascent would still be
creeping: many rows, few features, large C. A step needs nothing of the rows but sums over them, so blocks may be taken
by threads or lie on other machines; sums are taken in the order of the blocks.

The certificate is free. The multipliers are the slopes of the losses at the scores, and at those the duality gap is
``1/2 <g, covariance g>`` for the gradient g of the primal: Fenchel's inequality is an equality for every loss. A prior
that leaves some weights free has no covariance; there the fall of the last step stands in for the gap.

Only the certificate needs all rows. The curvature may come from a sample (Byrd, Chin, Neveitt and Nocedal 2011):
a step is then a pass with two products, and where it gains too little, the sample doubles.

The squared multi-class hinge is not smooth where several classes tie. It is smoothed inside each row: a share delta of
the ridge acts on the squares of a row's multipliers and the rest on the square of their sum. With delta to 0 that is
the loss itself, at 1 a margin for each class. What the smoothing adds to the gap is measured, and is part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import methodcaller
from typing import ClassVar, Protocol, Self

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.sparse.linalg import LinearOperator, cg

from regbayes._types import Array, Floats, Integers, Reals
from regbayes.engine import Executor, Serial, Status
from regbayes.margins.coordinate_ascent import TaskLayout, sum_by_group
from regbayes.regularization.dual_forms import BoxDual, SimplexDual

MAX_STEPS = 50
MAX_EASED_STEPS = 100
MAX_TRIALS = 30
SHORTEN = (0.1, 0.5)  # what a step that is too long may be multiplied by
# Where steps do not arrive: factors on the ridges of easier problems, in turn, and the gaps they are solved to.
EASED, EASED_TOL = tuple(4.0**k for k in range(7, -1, -1)), 1e-3
SUFFICIENT = 1e-4  # Armijo's constant
ROUNDING = 1e-14  # of the objective: what a step may seem to raise it by
SMOOTHING = (0.1, 0.03, 0.01, 0.003, 0.001, 0.0003)  # shares delta, in turn
MAX_DENSE = 1000  # weights: of more, the second derivative of classes that mix is never held as a whole
PIECE_ROWS = 512  # at least in a piece of a sample that a thread takes the curvature of
PIECE_NUMBERS = 1 << 24  # in the second derivatives of all pieces of a sample together, at most
ENOUGH = 0.25  # of the gap: a step on a sample's curvature that leaves more asks for a larger sample
FORESEEN = 1.5  # times what a Newton step promises: a guess at what is left to gain (1.04 to 1.22 in runs looked at)
SAFE = 4.0  # times what steps seem to have left to gain: a value that is higher by more than that will stay so


@dataclass(frozen=True)
class BlockSums:
    """What Newton's method needs to know of some rows. Sums of two blocks are those of both."""

    loss: float  # smoothed, where it is
    excess: float  # of the smoothed loss over the loss itself
    bias: float  # what smoothing adds to the duality gap
    pulled: Floats  # (outputs, d): sum_i phi_i x_i, minus the gradient of the loss

    def __add__(self, other: BlockSums) -> BlockSums:
        return BlockSums(
            self.loss + other.loss,
            self.excess + other.excess,
            self.bias + other.bias,
            self.pulled + other.pulled,
        )


class Block(Protocol):
    """Some rows with their targets."""

    @property
    def mixes(self) -> bool:
        """Whether outputs mix in the second derivative.

        A block whose outputs mix has ``product(weights, direction)`` as well: the loss's second derivative times a
        direction, shape (outputs, d).
        """

    def sums(self, weights: Floats) -> BlockSums:
        """Evaluate the rows at given weights (outputs, d); the curvature costs far more than the rest."""

    def curvature(self, weights: Floats) -> Floats:
        """Return the loss's second derivative, (outputs, d, outputs, d), or its diagonal blocks, (outputs, d, d).

        The blocks alone where outputs do not mix, or where it would be too large as a whole.
        """

    def ease(self) -> list[Self]:
        """Return the rows in easier problems, the solution of each a good start for the next, and of the last here."""


class Columns(Protocol):
    """What a linear head sees of rows, (n, d), where it is not held as one array."""

    def __len__(self) -> int: ...

    def scores(self, weights: Floats) -> Floats:
        """Return the products with weights (outputs, d), shape (n, outputs)."""

    def combine(self, coefficients: Floats) -> Floats:
        """Return the sums of rows with coefficients (n, outputs), shape (outputs, d)."""

    def split(self, weights: Floats) -> tuple[Floats, Floats, Floats] | None:
        """Return an array (n, k), weights (outputs, k) and constants (outputs,) that make the scores, if they do."""

    def join_sums(self, pulled: Floats, totals: Floats) -> Floats:
        """Return what `combine` does from sums of that array's rows (outputs, k) and of coefficients (outputs,)."""

    def array(self) -> Floats:
        """Return it as one array, for the curvature."""


def _score(features: Reals | Columns, weights: Floats) -> Floats:
    return features @ weights.T if isinstance(features, np.ndarray) else features.scores(weights)


def _combine(features: Reals | Columns, coefficients: Floats) -> Floats:
    return coefficients.T @ features if isinstance(features, np.ndarray) else features.combine(coefficients)


@dataclass(frozen=True)
class BoxBlock:
    """Rows whose outputs are judged one by one: signs or numbers, some of them missing."""

    features: Reals  # (f, d)
    form: BoxDual  # conjugate of the losses of *minus* the scores, cell by cell; every ridge is positive
    cells: tuple[tuple[Array | slice, Array | slice], ...]  # for each output, its rows and its cells
    mixes: ClassVar[bool] = False

    @classmethod
    def of(cls, features: Reals, form: BoxDual, layout: TaskLayout) -> BoxBlock:
        """Return the block of a layout of cells."""
        order = np.argsort(layout.task, kind="stable")
        ends = np.searchsorted(layout.task[order], np.arange(len(layout.group) + 1))
        by_output = [order[ends[t] : ends[t + 1]] for t in range(len(layout.group))]
        return cls(
            features, form, tuple((_as_slice(layout.feature_row[cells]), _as_slice(cells)) for cells in by_output)
        )

    def multipliers(self, weights: Floats) -> Floats:
        """Return phi of every cell, shape (cells,)."""
        return self.form.derivatives(-self._scores(weights))

    def sums(self, weights: Floats) -> BlockSums:
        """Evaluate the rows at given weights (outputs, d)."""
        form, scores = self.form, self._scores(weights)
        phi = form.derivatives(-scores)
        away = -scores - form.linear
        loss = float(phi @ away - form.absolute @ np.abs(phi) - 0.5 * form.ridge @ np.square(phi))
        pulled = np.zeros_like(weights)
        for output, (rows, cells) in enumerate(self.cells):
            pulled[output] = phi[cells] @ self.features[rows]
        return BlockSums(loss, 0.0, 0.0, pulled)

    def curvature(self, weights: Floats) -> Floats:
        """Return the loss's second derivative in each output's weights, shape (outputs, d, d)."""
        bent = self.form.curvatures(-self._scores(weights))
        found = np.zeros((*weights.shape, weights.shape[1]))
        for output, (rows, cells) in enumerate(self.cells):
            among = slice(None) if bent[cells].all() else bent[cells] > 0.0
            scaled = self.features[rows][among] * np.sqrt(bent[cells][among])[:, None]
            found[output] = scaled.T @ scaled
        return found

    def ease(self) -> list[BoxBlock]:
        """Return the rows with small prices, which rise."""
        return [replace(self, form=form) for form in _ease(self.form)]

    def _scores(self, weights: Floats) -> Floats:
        scores = np.empty(self.form.linear.size)
        for output, (rows, cells) in enumerate(self.cells):
            scores[cells] = self.features[rows] @ weights[output]
        return scores


def cut_sample(n_rows: int, n_numbers: int) -> list[slice]:
    """Return slices of rows that curvature comes from, for threads: a function of sizes alone.

    Each piece has second derivatives of its own, so many numbers; where these are large there are few pieces.
    """
    n_pieces = max(1, min(n_rows // PIECE_ROWS, PIECE_NUMBERS // max(n_numbers, 1)))
    edges = np.linspace(0, n_rows, n_pieces + 1).astype(np.int64).tolist()
    return [slice(first, end) for first, end in pairwise(edges)]


def _ease(form: BoxDual) -> list[BoxDual]:
    return [replace(form, ridge=factor * form.ridge) for factor in EASED[:-1]]


def _as_slice(index: Array) -> Array | slice:
    """Return neighbours as a slice, which reads them where they lie."""
    if not len(index) or index[-1] - index[0] != len(index) - 1 or np.any(np.diff(index) != 1):
        return index
    return slice(int(index[0]), int(index[-1]) + 1)


@dataclass(frozen=True)
class SimplexBlock:
    """Rows that belong to one of several classes each."""

    features: Reals | Columns  # (n, d)
    form: SimplexDual  # every total is infinite, and every ridge positive
    labels: Integers  # (n,)
    smoothing: float = SMOOTHING[0]  # delta
    mixes: ClassVar[bool] = True

    def multipliers(self, weights: Floats) -> Floats:
        """Return phi of every class, shape (n, classes)."""
        return self._by_scores(self._solve_rows(weights)[0])

    def sums(self, weights: Floats) -> BlockSums:
        """Evaluate the rows at given weights (classes, d)."""
        omega, margins, active = self._solve_rows(weights)
        ridge = np.where(np.isinf(self.form.ridge), 1.0, self.form.ridge)  # of rows that are out, of no consequence
        total, squares = omega.sum(axis=1), np.square(omega).sum(axis=1)
        mixed = (1.0 - self.smoothing) * np.square(total) + self.smoothing * squares
        loss = np.einsum("nc,nc->n", omega, np.where(active, margins, 0.0)) - 0.5 * ridge * mixed
        worst = np.maximum(margins.max(axis=1), 0.0)
        exact = np.where(np.isinf(self.form.ridge), 0.0, 0.5 * np.square(worst) / ridge)
        bias = exact - loss + 0.5 * ridge * self.smoothing * (np.square(total) - squares)
        pulled = _combine(self.features, self._by_scores(omega))
        return BlockSums(float(loss.sum()), float((loss - exact).sum()), float(bias.sum()), pulled)

    def curvature(self, weights: Floats) -> Floats:
        """Return the loss's second derivative: whole, or its diagonal blocks where there are too many weights.

        A row enters the blocks of the few classes alone that have a multiplier in it, and of the true one.
        """
        features = self.features if isinstance(self.features, np.ndarray) else self.features.array()
        _, _, active = self._solve_rows(weights)
        own, shared, count = self._slopes(active)
        whole = weights.size <= MAX_DENSE
        rows, truth = np.arange(len(active)), np.eye(len(weights), dtype=np.bool_)[self.labels]
        # In a row's scores: own (diag(active) - e_y active' - active e_y' + count e_y e_y') - shared signed signed'.
        signed = active.astype(np.float64)
        signed[rows, self.labels] = -count
        found = np.zeros(2 * weights.shape if whole else (*weights.shape, weights.shape[1]))
        for c in range(len(weights)):
            among = np.flatnonzero(signed[:, c])
            x, toward = features[among], -shared[among] * signed[among, c]
            weight = toward * signed[among, c] + own[among] * np.abs(signed[among, c])
            diagonal = (x * weight[:, None]).T @ x
            if not whole:
                found[c] = diagonal
                continue
            found[c, :, c] = diagonal
            for other in range(c):
                both = np.flatnonzero(signed[among, other])
                these = among[both]
                weight = toward[both] * signed[these, other] - own[these] * (truth[these, c] | truth[these, other])
                found[c, :, other] = (x[both] * weight[:, None]).T @ x[both]
                found[other, :, c] = found[c, :, other].T
        return found

    def product(self, weights: Floats, direction: Floats) -> Floats:
        """Return the loss's second derivative times a direction, shape (classes, d)."""
        _, _, active = self._solve_rows(weights)
        own, shared, _ = self._slopes(active)
        change = _score(self.features, direction)
        change -= np.take_along_axis(change, self.labels[:, None], axis=1)
        change = np.where(active, change, 0.0)
        omega = np.where(active, own[:, None] * change - (shared * change.sum(axis=1))[:, None], 0.0)
        return -_combine(self.features, self._by_scores(omega))

    def ease(self) -> list[SimplexBlock]:
        """Return the rows with small prices, which rise, and smoothed as at first; then smoothed less and less."""
        first = replace(self, smoothing=max(SMOOTHING[0], self.smoothing))
        rising = [replace(first, form=replace(self.form, ridge=factor * self.form.ridge)) for factor in EASED]
        return rising + [replace(self, smoothing=share) for share in SMOOTHING[1:] if share > self.smoothing]

    def _solve_rows(self, weights: Floats) -> tuple[Floats, Floats, Array]:
        """Return each row's multipliers, the margins that its classes miss, and which of them have a multiplier."""
        scores = _score(self.features, weights)
        rows = np.arange(len(scores))
        margins = scores - scores[rows, self.labels][:, None] - self.form.linear[self.form.row]
        margins[rows, self.labels] = -np.inf
        wanted = margins / np.where(np.isinf(self.form.ridge), 1.0, self.form.ridge)[:, None]
        wanted[np.isinf(self.form.ridge)] = -np.inf
        # omega_c = max(0, wanted_c - (1 - delta) total) / delta: the largest few are positive, and their number is
        # the last at which the smallest of them still would be.
        descending = -np.sort(-wanted, axis=1)
        count = np.arange(1, wanted.shape[1] + 1)
        totals = np.cumsum(descending, axis=1) / (self.smoothing + (1.0 - self.smoothing) * count)
        n_active = np.sum(descending > (1.0 - self.smoothing) * np.maximum(totals, 0.0), axis=1)
        total = np.where(n_active > 0, np.take_along_axis(totals, np.maximum(n_active - 1, 0)[:, None], 1)[:, 0], 0.0)
        over = wanted - ((1.0 - self.smoothing) * total)[:, None]
        active = (over > 0.0) & (n_active > 0)[:, None]
        return np.where(active, over / self.smoothing, 0.0), margins, active

    def _slopes(self, active: Array) -> tuple[Floats, Floats, Floats]:
        """Return how multipliers follow margins: ``own`` times each less ``shared`` times the sum; and their number."""
        count = active.sum(axis=1).astype(np.float64)
        with np.errstate(divide="ignore"):
            own = 1.0 / (self.form.ridge * self.smoothing)
        own = np.where(np.isinf(self.form.ridge), 0.0, own)
        shared = own * (1.0 - self.smoothing) / (self.smoothing + (1.0 - self.smoothing) * count)
        return own, shared, count

    def _by_scores(self, omega: Floats) -> Floats:
        phi = -omega
        phi[np.arange(len(phi)), self.labels] += omega.sum(axis=1)
        return phi


class Prior(Protocol):
    """A Gaussian prior of the weights, in coordinates of its own: weights are a linear function of a position."""

    def weights(self, position: Floats) -> Floats:
        """Return the weights of the outputs (outputs, d) at a position."""

    def pull_back(self, gradient: Floats) -> Floats:
        """Return the gradient by the position where that by the weights is given."""

    def precision(self, position: Floats) -> Floats:
        """Return the prior precision times a position."""

    def covariance(self, gradient: Floats) -> Floats | None:
        """Return the prior covariance times a gradient; None where there is none, because some weights are free."""

    def solve(self, curvature: Floats, right: Floats) -> Floats:
        """Solve ``(precision + curvature) x = right`` for positions; the curvature is a block's, as it gives it.

        Roughly is enough: steps go on until the gap is small.
        """


@dataclass(frozen=True)
class SharedPrior:
    """Standard normal weights ``w_t = own_t + rho common_group(t)``.

    Written in the weights of the tasks, minus the log-density of a group is ``1/2 sum_t |w_t|^2 - c/2 |sum_t w_t|^2``
    with ``c = rho^2 / (1 + rho^2 tasks)``: the Newton system has one block per task plus a term that only their sum
    sees.
    """

    group: Integers  # (tasks,)
    sharing: float = 0.0  # rho

    @property
    def coupling(self) -> Floats:
        """``c`` of each group, shape (groups,)."""
        return self.sharing**2 / (1.0 + self.sharing**2 * np.bincount(self.group).astype(np.float64))

    def weights(self, position: Floats) -> Floats:
        """Return the weights themselves: positions are weights."""
        return position

    def pull_back(self, gradient: Floats) -> Floats:
        """Return the gradient by the weights as it is."""
        return gradient

    def precision(self, weights: Floats) -> Floats:
        """Return the prior precision times weights."""
        if self.sharing == 0.0:
            return weights
        return weights - (self.coupling[:, None] * sum_by_group(weights, self.group))[self.group]

    def covariance(self, pulled: Floats) -> Floats:
        """Return the prior covariance times what the multipliers sum up to: the weights that they imply."""
        if self.sharing == 0.0:
            return pulled
        return pulled + self.sharing**2 * sum_by_group(pulled, self.group)[self.group]

    def shared(self, weights: Floats) -> Floats:
        """Return what the likeliest split gives the groups: the part of its tasks' weights in common, (groups, d)."""
        if self.sharing == 0.0:
            return np.zeros((len(self.coupling), weights.shape[1]))
        return self.coupling[:, None] * sum_by_group(weights, self.group)

    def solve(self, curvature: Floats, right: Floats) -> Floats:
        """Solve ``(precision + curvature) x = right`` for a curvature with a block per task (tasks, d, d).

        Or as a whole (tasks, d, tasks, d), where nothing is shared.
        """
        if curvature.ndim == 4:
            whole = curvature.reshape(right.size, right.size) + np.eye(right.size)
            return np.asarray(cho_solve(cho_factor(whole), right.ravel()).reshape(right.shape))
        blocks = curvature + np.eye(right.shape[1])
        found = _solve_each(blocks, right)
        if self.sharing == 0.0:
            return found
        inverses = np.linalg.inv(blocks)
        summed = np.zeros((len(self.coupling), *inverses.shape[1:]))
        np.add.at(summed, self.group, inverses)
        by_sum = np.eye(right.shape[1]) - self.coupling[:, None, None] * summed
        sums = sum_by_group(found, self.group)
        shared = self.coupling[:, None] * _solve_each(by_sum, sums)
        return found + np.einsum("tij,tj->ti", inverses, shared[self.group])


def _solve_each(systems: Floats, right: Floats) -> Floats:
    """Solve a linear system for each task: systems (tasks, d, d), right (tasks, d)."""
    return np.linalg.solve(systems, right[:, :, None])[:, :, 0].astype(np.float64, copy=False)


@dataclass(frozen=True)
class NewtonSolution:
    """Weights and their certificate."""

    position: Floats  # in the prior's coordinates
    weights: Floats  # (outputs, d)
    value: float  # of the primal, without smoothing
    gap: float  # above the minimum by this at most, what smoothing adds included; inf where some weights are free
    pulled: Floats  # (outputs, d): sum_i phi_i x_i
    n_passes: int  # points looked at, and products with the curvature: each is a pass over all rows
    status: Status  # CONVERGED (also by a `Cutoff`), STOPPED, ITERATION_LIMIT or STALLED: no step lowers the objective
    excess: float = 0.0  # the smoothed value less the value
    bias: float = 0.0  # what smoothing adds to the gap: without it, it is that of the smoothed problem


Sample = Callable[[int], Sequence[Block] | None]
"""Rows in the place of all where the curvature is concerned, more at every level; None where all rows are wanted."""


@dataclass(frozen=True)
class Cutoff:
    """Where steps may end before the gap is small, by what they suggest is left to gain."""

    ceiling: float = np.inf  # a value of no interest: they end, STOPPED, where the minimum seems to be higher
    enough: float = 0.0  # what may be left to gain: they end, CONVERGED, whatever the gap is


NEVER = Cutoff()


def solve_boxes(
    blocks: Sequence[Block],
    prior: Prior,
    start: Floats,
    *,
    tol: float,
    max_passes: float = np.inf,
    executor: Executor | None = None,
    sample: Sample | None = None,
    cutoff: Cutoff = NEVER,
) -> NewtonSolution:
    """Minimise squared hinges or tubes plus the prior, to a duality gap of ``tol`` times the value.

    Parameters
    ----------
    blocks : sequence of BoxBlock or CellBlock
    prior : Prior
    start : array
        A position in the prior's coordinates; for a `SharedPrior`, weights (outputs, d).
    tol : float
    max_passes : float
        Over the rows.
    executor : Executor, default=None
        Takes the blocks; one after another by default.
    sample : callable, default=None
        Where the curvature comes from; by default it is all rows.
    cutoff : Cutoff, default=NEVER
    """
    return _solve(_Problem(blocks, prior, executor or Serial(), sample, cutoff), start, tol, max_passes)


def solve_smoothed(
    blocks: Sequence[Block],
    start: Floats,
    *,
    tol: float,
    max_passes: float = np.inf,
    executor: Executor | None = None,
    sample: Sample | None = None,
    prior: SharedPrior | None = None,
) -> NewtonSolution:
    """Minimise the squared multi-class hinge as the blocks smooth it, plus standard normal weights.

    The gap of the smoothed problem becomes ``tol`` times its value. Arguments as in `solve_boxes`; a prior is given
    where it says how systems are solved, and shares nothing.
    """
    prior = SharedPrior(np.arange(len(start))) if prior is None else prior
    return _solve(_Problem(blocks, prior, executor or Serial(), sample), start, tol, max_passes)


def _solve(problem: _Problem, start: Floats, tol: float, max_passes: float) -> NewtonSolution:
    """Take Newton steps; where they do not arrive, along easier problems that lead there.

    Where all margins can be met and C is large the solution lies in a corner of many pieces of the loss, and a step
    leads little farther than to the next piece. Solutions for smaller C, or smoothed more, are close to each other.
    """
    found = _descend(problem, start, tol, max_passes, MAX_STEPS)
    if found.status is not Status.ITERATION_LIMIT or found.n_passes >= max_passes:
        return found
    n_passes = found.n_passes
    for eased in zip(*(block.ease() for block in problem.blocks), strict=True):
        easier = _Problem(eased, problem.prior, problem.executor)
        start = _descend(easier, start, max(tol, EASED_TOL), max_passes - n_passes, MAX_EASED_STEPS).position
        n_passes += easier.n_passes
        if n_passes >= max_passes:
            return replace(found, n_passes=n_passes)
    again = _Problem(problem.blocks, problem.prior, problem.executor)
    last = _descend(again, start, tol, max_passes - n_passes, MAX_EASED_STEPS)
    better = last if last.value + last.excess < found.value + found.excess else found
    return replace(better, n_passes=n_passes + last.n_passes)


class _Problem:
    """The primal objective as a function of the position, over all blocks."""

    def __init__(
        self,
        blocks: Sequence[Block],
        prior: Prior,
        executor: Executor,
        sample: Sample | None = None,
        cutoff: Cutoff = NEVER,
    ) -> None:
        self.blocks, self.prior, self.executor, self.cutoff = blocks, prior, executor, cutoff
        self.sample, self.level = sample, 0
        self.sampled = None if sample is None else sample(0)
        self.n_passes = 0

    def refine(self) -> bool:
        """Take the curvature from more rows from now on; return whether there are more."""
        if self.sample is None or self.sampled is None:
            return False
        self.level += 1
        self.sampled = self.sample(self.level)
        return True

    def at(self, position: Floats) -> _Point:
        self.n_passes += 1
        weights = self.prior.weights(position)
        sums = self.executor.map_reduce(methodcaller("sums", weights), self.blocks)
        held = self.prior.precision(position)
        gradient = held - self.prior.pull_back(sums.pulled)
        penalty = 0.5 * float(np.vdot(held, position))
        spread = self.prior.covariance(gradient)
        gap = np.inf if spread is None else 0.5 * float(np.vdot(gradient, spread))
        return _Point(position, weights, penalty + sums.loss, sums, gradient, gap)

    def direction(self, at: _Point) -> Floats:
        """Return the Newton direction; by conjugate gradients where the classes' curvatures mix and are many."""
        blocks = self.blocks if self.sampled is None else self.sampled
        curvature = self.executor.map_reduce(methodcaller("curvature", at.weights), blocks)
        if not blocks[0].mixes or curvature.ndim == 4:
            return -self.prior.solve(curvature, at.gradient)
        shape = at.gradient.shape
        inverses = np.linalg.inv(curvature + np.eye(shape[1]))

        def precondition(flat: Floats) -> Floats:
            return (inverses @ flat.reshape(*shape, 1)).ravel()

        def multiply(flat: Floats) -> Floats:
            self.n_passes += self.sampled is None
            v = flat.reshape(shape)
            bent = self.executor.map_reduce(methodcaller("product", at.weights, v), blocks)
            return (self.prior.precision(v) + bent).ravel()

        size, right = (at.gradient.size, at.gradient.size), -at.gradient.ravel()
        # The less a step can gain of the objective, the more closely the system is solved.
        share = min(0.3, float(np.sqrt(right @ precondition(right) / max(at.objective, 1e-300))))
        # Without a type SciPy would find it by a product.
        system, inverse = (LinearOperator(size, f, dtype=np.float64) for f in (multiply, precondition))
        found, _ = cg(system, right, rtol=share, M=inverse)
        return found.reshape(shape)


@dataclass(frozen=True)
class _Point:
    position: Floats
    weights: Floats
    objective: float  # smoothed, where it is
    sums: BlockSums
    gradient: Floats
    gap: float  # of the smoothed problem

    def solution(self, n_passes: int, status: Status) -> NewtonSolution:
        excess, bias = self.sums.excess, self.sums.bias
        value, gap = self.objective - excess, self.gap + bias
        return NewtonSolution(
            self.position, self.weights, value, gap, self.sums.pulled, n_passes, status, excess=excess, bias=bias
        )


def _descend(problem: _Problem, start: Floats, tol: float, max_passes: float, max_steps: int) -> NewtonSolution:
    """Take Newton steps until the gap of the (smoothed) problem is small."""
    at = problem.at(start)
    for _ in range(max_steps):
        if at.gap <= tol * abs(at.objective):
            return at.solution(problem.n_passes, Status.CONVERGED)
        if problem.n_passes >= max_passes:
            break
        direction = problem.direction(at)
        slope = float(np.vdot(at.gradient, direction))
        if at.objective + FORESEEN * 0.5 * slope > problem.cutoff.ceiling:
            return at.solution(problem.n_passes, Status.STOPPED)
        moved = _line_search(problem, at, direction, slope)
        if moved is None and problem.refine():
            continue
        if moved is None:
            return at.solution(problem.n_passes, Status.STALLED)
        if moved.gap > ENOUGH * at.gap:
            problem.refine()
        fall, left = at.objective - moved.objective, moved.gap / at.gap
        settled = np.isinf(moved.gap) and fall <= tol * abs(moved.objective)
        at = moved
        if settled:
            return at.solution(problem.n_passes, Status.CONVERGED)
        if left < 0.5:  # what is left to gain falls as the gap does, though far below it
            left_to_gain = SAFE * fall * left / (1.0 - left)
            if at.objective - left_to_gain > problem.cutoff.ceiling:
                return at.solution(problem.n_passes, Status.STOPPED)
            if left_to_gain <= problem.cutoff.enough:
                return at.solution(problem.n_passes, Status.CONVERGED)
    return at.solution(problem.n_passes, Status.ITERATION_LIMIT)


def _line_search(problem: _Problem, at: _Point, direction: Floats, slope: float) -> _Point | None:
    """Shorten the step until the objective falls enough; the first one nearly always does."""
    length = 1.0
    for _ in range(MAX_TRIALS):
        moved = problem.at(at.position + length * direction)
        if moved.objective <= at.objective + SUFFICIENT * length * slope + ROUNDING * abs(at.objective):
            return moved if moved.gap < at.gap or moved.objective < at.objective else None
        # Where the slope would be zero, if it were linear between the two.
        length *= float(np.clip(slope / (slope - np.vdot(moved.gradient, direction)), *SHORTEN))
    return None
