"""Feasibility of hard constraints, and faces of the reachable expectations, docs/math.md eq. (9) and (10).

Remark 2 of the paper: ``E[psi] == 0`` for a nonnegative psi forces all mass onto ``psi = 0``. No finite multiplier
attains it. The dual value stays bounded while the multiplier diverges, and the solution is the posterior conditioned
on a face. Conditioning first is exact and leaves a problem with finite multipliers.

Linear programs run only if the dual solver's multipliers diverge. There are three results. *Infeasible* comes with
multipliers that prove it (Farkas): a combination of the constraints that no atom satisfies. *Face*: all feasible
distributions are supported on some of the atoms. *Inside*: every atom can have mass, and the dual has a solution. Balls
and other curved sets are approximated by tangents. Each tangent holds for the whole set, so that a proof of
infeasibility is valid.

For many atoms, a program over a few is solved. Its multipliers determine which others matter, and these are added until
there are none (column generation).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from scipy.optimize import linprog

from regbayes._types import Flags, Floats, Indices
from regbayes.regularization.composite import Piece, Stack
from regbayes.regularization.dual.conditioning import TARGET_ROUNDINGS
from regbayes.regularization.dual.problem import nearest_in_domain
from regbayes.regularization.log_partition import GaussianAffine, LogPartition, WeightedAtoms

PRECISION = 1e-10  # feasibility tolerance of the linear programs, the smallest that HiGHS accepts
CLEAR = 1e-9  # smallest margin of a proof, in standard deviations, and share of the uniform distribution in the inside
ROUNDED = 1e-13  # relative to the span of a combination of features: constraints this close to its edge touch it
CONSTANT = 1e-5  # relative to its possible range: span of a combination of features that counts as constant
CHANCE = 10  # distinct atoms, beyond two per feature, that exclude a constant combination by chance
TOUCHES = 1e-8  # relative to the span of a combination of features: atoms this close to its edge are on it
ALL_AT_ONCE = 3000  # largest number of atoms for which one program contains all
ADDED_AT_ONCE = 200
MOST_ROUNDS = 60
UNREACHABLE = 1e15  # an expectation that no hard constraint permits
MIN_NATS = 12.0  # a tilt that spans less leaves visible mass on all atoms
FLAT = 1e-6  # variance of a combination of features, relative to the untilted one, that counts as zero on a face
EDGE_ROUNDING = 1e-14  # relative to a feature's range and size: expectations this close to the edge are on it


@dataclass(frozen=True)
class Face:
    """A face of the support, and the infinite multipliers that select it."""

    partition: LogPartition  # conditioned on the face
    log_mass: float  # log-probability of the face
    infinite: Floats  # (m,): -inf, +inf, or 0 where the multiplier is finite

    def narrow(self, keep: Flags, direction: Floats) -> Face:
        """Condition on the atoms that infinite multipliers in a direction select."""
        assert isinstance(self.partition, WeightedAtoms)
        partition, log_mass = self.partition.restrict(keep)
        reach = np.abs(direction * self.partition.unit)
        grown = (reach > 1e-6 * np.max(reach)) & (self.infinite == 0)
        infinite = np.where(grown, np.copysign(np.inf, direction), self.infinite)
        return Face(partition, self.log_mass + log_mass, infinite)


@dataclass(frozen=True)
class OutOfReach:
    """A feature whose values all lie outside the regularizer's domain."""

    feature: int
    needed: float  # the nearest expectation that the regularizer admits
    reachable: float  # the nearest expectation that the support can have


def find_out_of_reach(partition: LogPartition, stack: Stack) -> OutOfReach | None:
    """Find an expectation that cannot enter its domain for any weights."""
    low, high = stack.domain
    lowest, highest = partition.lowest[stack.index], partition.highest[stack.index]
    # Rounding may move an expectation this far from an edge of its range.
    slack = EDGE_ROUNDING * ((highest - lowest) + np.maximum(np.abs(lowest), np.abs(highest)))
    too_low, too_high = low > highest + slack, high < lowest - slack
    # An open end is the next floating-point number, and rounding must not move a feature across it.
    too_low |= (low > highest) & (low == np.finfo(np.float64).smallest_subnormal)
    for outside, needed, reachable in ((too_low, low, highest), (too_high, high, lowest)):
        if np.any(outside):
            i = int(np.argmax(outside))
            return OutOfReach(int(stack.index[i]), float(needed[i]), float(reachable[i]))
    return None


def may_be_on_face(partition: LogPartition, multipliers: Floats) -> bool:
    """Whether a large tilt leaves some combination of features nearly constant."""
    if not isinstance(partition, WeightedAtoms):
        return False
    most = float(np.abs(multipliers) @ (partition.highest - partition.lowest))  # a cheap upper bound
    if most < MIN_NATS or partition.span(multipliers) < MIN_NATS:
        return False
    unit = partition.unit
    return bool(np.linalg.eigvalsh(partition.covariance(multipliers) / np.outer(unit, unit))[0] < FLAT)


@dataclass(frozen=True)
class Verdict:
    """Result of the linear programs."""

    kind: Literal["infeasible", "face", "inside", "unknown"]
    repair: Floats | None = None  # (M,): infeasible: least-squares change of the constraints in the proof
    proof: Floats | None = None  # (M,): infeasible: Farkas multipliers, nonzero for the constraints in conflict
    constant: bool = False  # infeasible: whether the proof's combination is constant over many distinct atoms
    keep: Flags | None = None  # (supported atoms,): face: the atoms on it
    direction: Floats | None = None  # (m,): face: direction in which multipliers diverge


@dataclass
class _Rows:
    """The hard constraints: standardized coordinates between bounds, and tangents."""

    used: Indices  # (J,): stacked coordinates with hard constraints
    feature: Indices  # (J,): feature of each coordinate
    center: Floats  # (J,)
    unit: Floats  # (J,)
    low: Floats  # (J,)
    high: Floats  # (J,)
    curved: list[tuple[Piece, Indices]]  # pieces without bounds, and their positions among the J coordinates
    tangents: list[tuple[Floats, float]] = field(default_factory=list)  # (J,), c: <tangent, y> <= c

    @classmethod
    def of(cls, partition: LogPartition, stack: Stack) -> _Rows | None:
        """Collect the rows; None if no constraint is hard."""
        low, high = stack.domain
        unit = partition.unit[stack.index]
        hard = np.isfinite(low) | np.isfinite(high)
        curved = [p for p in stack.pieces if not np.any(hard[p.start : p.stop]) and _is_hard(p, unit)]
        for p in curved:
            hard[p.start : p.stop] = True
        used = np.flatnonzero(hard)
        if not used.size:
            return None
        place = np.cumsum(hard) - 1
        center, unit = partition.mean[stack.index][used], unit[used]
        pieces = [(p, place[p.start : p.stop]) for p in curved]
        return cls(
            used, stack.index[used], center, unit, (low[used] - center) / unit, (high[used] - center) / unit, pieces
        )

    def add_tangents(self, y: Floats) -> bool:
        """Cut off expectations outside curved sets; return whether there were any."""
        added = False
        for p, places in self.curved:
            x = self.center[places] + self.unit[places] * y[places]
            near = nearest_in_domain(p.regularizer, x, self.unit[places])
            away = (x - near) / np.max(self.unit[places])
            length = float(np.linalg.norm(away * self.unit[places]))
            if length > PRECISION * float(np.max(self.unit[places])):
                tangent = np.zeros(len(self.used))
                tangent[places] = away * self.unit[places]
                tangent /= np.linalg.norm(tangent)
                self.tangents.append(
                    (tangent, float(tangent[places] @ ((near - self.center[places]) / self.unit[places])))
                )
                added = True
        return added

    def least(self, direction: Floats) -> float:
        """Return the minimum of a combination of coordinates within their bounds, or -inf."""
        ends = np.where(direction > 0, self.low, self.high)
        used = direction != 0
        return float(direction[used] @ ends[used]) if np.all(np.isfinite(ends[used])) else -np.inf


def _is_hard(p: Piece, unit: Floats) -> bool:
    far = UNREACHABLE * (1 + unit[p.start : p.stop])
    return bool(np.isinf(p.regularizer.value(far)) or np.isinf(p.regularizer.value(-far)))


def examine(partition: LogPartition, stack: Stack) -> Verdict:
    """Decide whether the hard constraints are feasible, and whether only on a face."""
    rows = _Rows.of(partition, stack)
    if rows is None:
        return Verdict("inside")
    columns: _Atoms | _Directions
    if isinstance(partition, WeightedAtoms):
        columns = _Atoms(partition, rows)
    elif isinstance(partition, GaussianAffine):
        columns = _Directions(partition.factor[rows.feature] / rows.unit[:, None])
    else:
        return Verdict("unknown")
    found = _phase_one(columns, rows)
    if found is None:
        return Verdict("unknown")
    proof, margin = found
    if isinstance(partition, WeightedAtoms) and margin > CLEAR:
        coarse = TARGET_ROUNDINGS * float(np.abs(proof) @ (partition.grain[rows.feature] / rows.unit))
        if margin <= coarse:  # within the rounding of the features: not a proof
            return Verdict("unknown")
    if margin > CLEAR:
        repair, whole = np.zeros(len(stack)), np.zeros(len(stack))
        repair[rows.used] = margin * np.abs(proof) / (proof @ proof) * rows.unit
        whole[rows.used] = proof / rows.unit
        return Verdict("infeasible", repair=repair, proof=whole, constant=columns.is_constant(proof))
    if not isinstance(columns, _Atoms) or rows.curved:
        return Verdict("inside" if not rows.curved else "unknown")
    return _face(columns, rows, partition.grain)


class _Directions:
    """A Gaussian: expectations are any combinations of the columns of its factor."""

    def __init__(self, factor: Floats) -> None:
        self.factor = factor  # (J, d)
        self.chosen = factor
        self.bounds = [(None, None)] * factor.shape[1]
        self.sums = False

    def highest(self, direction: Floats) -> float:
        """Return the supremum of a combination: zero if it is constant, else infinite."""
        moves = np.linalg.norm(direction @ self.factor)
        return 0.0 if moves <= 1e-9 * float(np.abs(direction) @ np.linalg.norm(self.factor, axis=1)) else np.inf

    def is_constant(self, direction: Floats) -> bool:
        """Return False: a combination fixed by the covariance need not be constant."""
        return False

    def price(self, direction: Floats, level: float) -> bool:
        """Return False: all columns are present."""
        return False


class _Atoms:
    """Weighted atoms: expectations are averages of columns, which are added as needed."""

    def __init__(self, partition: WeightedAtoms, rows: _Rows) -> None:
        self.features, self.feature, self.rows = partition.features, rows.feature, rows
        n = len(self.features)
        if n <= ALL_AT_ONCE:
            self.index = np.arange(n)
        else:
            ends = [atoms[rows.feature] for atoms in partition.find_ends()]
            heaviest = np.argpartition(-partition.log_weights, 50)[:50]
            self.index = np.unique(np.concatenate([*ends, heaviest]))
        self.mean = (self.features.mean(axis=0)[rows.feature] - rows.center) / rows.unit  # of the uniform distribution
        self.sums = True
        self.allowed = np.ones(n, dtype=np.bool_)
        self._choose()

    def narrow(self, keep: Flags) -> None:
        """Restrict the problem to some of the atoms."""
        self.allowed = keep
        self.index = self.index[keep[self.index]]
        if not self.index.size or int(keep.sum()) <= ALL_AT_ONCE:
            self.index = np.flatnonzero(keep)[:ALL_AT_ONCE]
        self.mean = (self.features[keep].mean(axis=0)[self.feature] - self.rows.center) / self.rows.unit
        self._choose()

    def _choose(self) -> None:
        chosen = self.features[np.ix_(self.index, self.feature)]
        self.chosen = ((chosen - self.rows.center) / self.rows.unit).T
        self.bounds = [(0.0, None)] * len(self.index)

    def scores(self, direction: Floats) -> Floats:
        """Return a combination of coordinates for every atom."""
        slope = np.bincount(self.feature, direction / self.rows.unit, minlength=self.features.shape[1])
        return np.asarray(self.features @ slope) - float(direction @ (self.rows.center / self.rows.unit))

    def highest(self, direction: Floats) -> float:
        """Return the maximum of a combination of coordinates over all atoms."""
        return float(self.scores(direction).max())

    def is_constant(self, direction: Floats) -> bool:
        """Whether a combination is constant over atoms that are many and distinct."""
        could = float(np.abs(direction) @ (np.ptp(self.features, axis=0)[self.feature] / self.rows.unit))
        if np.ptp(self.scores(direction)) > CONSTANT * could:
            return False
        used = np.unique(self.feature[direction != 0])
        enough = 2 * len(used) + CHANCE
        return len(np.unique(self.features[: 10 * enough, used], axis=0)) >= enough

    def price(self, direction: Floats, level: float) -> bool:
        """Add atoms that exceed the chosen ones in a direction; return whether any did."""
        if len(self.index) == int(self.allowed.sum()):
            return False
        scores = self.scores(direction)
        higher = np.flatnonzero(self.allowed & (scores > level + PRECISION * (1 + abs(level))))
        higher = np.setdiff1d(higher, self.index, assume_unique=True)
        if not higher.size:
            return False
        if higher.size > ADDED_AT_ONCE:
            higher = higher[np.argpartition(-scores[higher], ADDED_AT_ONCE)[:ADDED_AT_ONCE]]
        self.index = np.unique(np.concatenate([self.index, higher]))
        self._choose()
        return True


def _phase_one(columns: _Atoms | _Directions, rows: _Rows) -> tuple[Floats, float] | None:
    """Minimize the total violation; return the multipliers and the separation."""
    j = len(rows.used)
    for _ in range(MOST_ROUNDS):
        k = columns.chosen.shape[1]
        cost = np.concatenate([np.zeros(k), np.ones(2 * j)])
        found = _program(rows, np.hstack([columns.chosen, np.eye(j), -np.eye(j)]), cost, columns, 2 * j)
        if found is None:
            return None
        solution, proof, asked = found
        if columns.price(proof, float(np.max(proof @ columns.chosen, initial=-np.inf))):
            continue
        margin = asked - columns.highest(proof)
        if margin <= CLEAR and rows.add_tangents(columns.chosen @ solution[:k]):
            continue
        return proof, margin
    return None


def _face(columns: _Atoms, rows: _Rows, grain: Floats) -> Verdict:
    """Maximize the share of uniform weights in a solution; if zero, find the face."""
    keep = np.ones(len(columns.features), dtype=np.bool_)
    n_features, narrowed = len(grain), False
    direction = np.zeros(n_features)
    for _ in range(len(rows.used) + MOST_ROUNDS):
        k = columns.chosen.shape[1]
        cost = np.concatenate([np.zeros(k), [-1.0]])
        found = _program(rows, np.column_stack([columns.chosen, columns.mean]), cost, columns, 1)
        if found is None:
            return Verdict("unknown")
        solution, proof, asked = found
        if columns.price(proof, float((proof @ columns.chosen).max())):
            continue
        scores = columns.scores(proof)
        top, bottom = float(scores[keep].max()), float(scores[keep].min())
        coarse = TARGET_ROUNDINGS * float(np.abs(proof) @ (grain[rows.feature] / rows.unit))
        if solution[k] > CLEAR or top - asked > ROUNDED * (top - bottom) + coarse:
            break  # a finite tilt may leave very little mass outside
        on_face = keep & (scores >= top - TOUCHES * (top - bottom))
        if not top - bottom > 0 or np.all(on_face[keep]):
            return Verdict("unknown")
        keep, narrowed = on_face, True
        direction = direction * 1e3 + np.bincount(rows.feature, proof / rows.unit, minlength=n_features)
        columns.narrow(keep)
    if not narrowed:
        return Verdict("inside")
    return Verdict("face", keep=keep, direction=direction)


def _program(
    rows: _Rows, matrix: Floats, cost: Floats, columns: _Atoms | _Directions, n_more: int
) -> tuple[Floats, Floats, float] | None:
    """Minimize a linear cost; return solution, the rows' multipliers and their bound."""
    equal = rows.low == rows.high
    above, below = np.isfinite(rows.low) & ~equal, np.isfinite(rows.high) & ~equal
    tangents = np.array([t for t, _ in rows.tangents]).reshape(-1, len(rows.used))
    levels = np.array([level for _, level in rows.tangents])
    upper = np.vstack([-matrix[above], matrix[below], tangents @ matrix])
    bounds = np.concatenate([-rows.low[above], rows.high[below], levels])
    exact, targets = matrix[equal], rows.low[equal]
    if columns.sums:
        total = np.concatenate([np.ones(matrix.shape[1] - n_more), np.ones(1) if n_more == 1 else np.zeros(n_more)])
        exact, targets = np.vstack([exact, total]), np.append(targets, 1.0)
    more: Sequence[tuple[float, None]] = [(0.0, None)] * n_more
    answer = linprog(
        cost, upper if len(upper) else None, bounds if len(upper) else None, exact if len(exact) else None,
        targets if len(exact) else None, [*columns.bounds, *more], method="highs",
        options={"primal_feasibility_tolerance": PRECISION, "dual_feasibility_tolerance": PRECISION},
    )  # fmt: skip
    if answer.status != 0:
        return None
    multipliers = answer.ineqlin.marginals if len(upper) else np.zeros(0)
    n_above, n_below = int(above.sum()), int(below.sum())
    proof = np.zeros(len(rows.used))
    proof[above] -= multipliers[:n_above]
    proof[below] += multipliers[n_above : n_above + n_below]
    proof[equal] += answer.eqlin.marginals[: int(equal.sum())]
    asked = rows.least(proof)
    tangent_multipliers = multipliers[n_above + n_below :]
    if tangent_multipliers.size:
        asked += float(tangent_multipliers @ levels)
        proof = proof + tangent_multipliers @ tangents
    return answer.x, proof, asked
