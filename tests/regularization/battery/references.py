"""Independent answers: what the optimum is, whether there is one, and whether a finite tilt reaches it.

All of them see features of the order of one (`pieces`). A candidate, whoever found it, is worth what it shows in
extended precision: multipliers give a lower bound of the optimum, weights an upper one. Where the two do not meet the
answer is unknown.

- one feature: bisection in extended precision;
- equalities on atoms: Newton's method in extended precision after orthogonalisation, for features nearly collinear;
- everything else: CVXPY with one solver, and with a second where the bounds of the first do not meet;
- whether constraints can be met: linear programs, whose certificates are checked in extended precision.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from battery.pieces import Box, Logarithm, Norm, Piece, View, Wide, narrow, pieces_of, wide
from regbayes.regularizers import Regularizer

CLOSE = 1e-7  # of one plus the optimum: bounds that are this close give its value
FAR = 1e-8  # of a feature's half-range: constraints that miss by more are infeasible
ROUNDING = 1e-13  # of a feature's half-range: what may be left of a violation by targets that are rounded
SNAP = 1e-6  # of a feature's half-range: how far from a kink solvers end that should be on it
INSIDE = 1e-6  # least weight of an atom, in units of the uniform weight, at which a point is clearly inside


@dataclass(frozen=True)
class Answer:
    """What a reference says.

    ``word`` is "optimum" (a finite tilt reaches it), "boundary" (only a limit does), "infeasible", "edge" (so close
    to the boundary that rounding decides) or "unknown". ``low`` and ``high`` enclose the optimum and are NaN where the
    value is not known.
    """

    word: str
    low: float = np.nan
    high: float = np.nan
    how: str = ""


@dataclass(frozen=True)
class Atoms:
    """Weighted atoms, those without weight left out, seen in units of the order of one."""

    z: Wide  # (n, m)
    log_weights: Wide  # (n,), normalised
    centre: Wide  # (m,)
    unit: Wide  # (m,): half the range, or one for what does not vary

    @classmethod
    def of(cls, features: NDArray[np.float64], log_weights: NDArray[np.float64]) -> Atoms:
        support = log_weights > -np.inf
        x, given = wide(features[support]), wide(log_weights[support])
        low, high = x.min(axis=0), x.max(axis=0)
        unit = np.where(high > low, (high - low) / 2, np.where(low != 0, np.abs(low), 1))
        centre = np.where(high > low, low + (high - low) / 2, low)
        return cls((x - centre) / unit, given - log_sum_exp(given), centre, unit)

    @property
    def grain(self) -> Wide:
        """A few roundings of a target, (m,): far from zero targets are coarse, and nothing finer can be asked for."""
        return grain_of(self.centre, self.unit)

    def log_partition(self, phi: Wide) -> np.longdouble:
        return log_sum_exp(self.log_weights + self.z @ phi)

    def tilted(self, phi: Wide) -> Wide:
        scores = self.log_weights + self.z @ phi
        q = np.exp(scores - np.max(scores))
        return q / np.sum(q)

    def divergence(self, q: Wide) -> np.longdouble:
        used = q > 0
        return np.sum(q[used] * (np.log(q[used]) - self.log_weights[used]))

    def expectation(self, q: Wide) -> Wide:
        return q @ self.z

    def moved(self, q: Wide, by: Wide) -> Wide | None:
        """Return weights near q whose expectation differs by that much, as far as features can; None if too far."""
        centred = self.z - q @ self.z
        mix = orthonormalising(np.sqrt(q)[:, None] * centred)
        change = centred @ (mix @ (by @ mix))
        return q * (1 + change) if np.all(change > -1) else None

    def restricted(self, keep: NDArray[np.bool_]) -> Atoms:
        kept = self.log_weights[keep]
        return Atoms(self.z[keep], kept - log_sum_exp(kept), self.centre, self.unit)


@dataclass(frozen=True)
class Normal:
    """Affine features of a Gaussian around their mean, in standard deviations: ``z = factor w`` with w standard."""

    factor: Wide  # (m, d)
    centre: Wide  # (m,)
    unit: Wide  # (m,)
    grain: Wide  # (m,): as for atoms, where what adds up to the mean counts

    @classmethod
    def of(cls, coefficients: NDArray[np.float64], mean: NDArray[np.float64], root: NDArray[np.float64]) -> Normal:
        """Of coefficients (m, d), the mean and a root R of the covariance R R'."""
        factor, centre = wide(coefficients) @ wide(root), wide(coefficients) @ wide(mean)
        spread = np.sqrt(np.sum(factor**2, axis=1))
        unit = np.where(spread > 0, spread, np.where(centre != 0, np.abs(centre), 1))
        grain = grain_of(np.abs(wide(coefficients)) @ np.abs(wide(mean)), unit)
        return cls(factor / unit[:, None], centre, unit, grain)

    def log_partition(self, phi: Wide) -> np.longdouble:
        return np.sum((phi @ self.factor) ** 2) / 2

    def tilted(self, phi: Wide) -> Wide:
        return phi @ self.factor

    def divergence(self, w: Wide) -> np.longdouble:
        return np.sum(w**2) / 2

    def expectation(self, w: Wide) -> Wide:
        return self.factor @ w

    def moved(self, w: Wide, by: Wide) -> Wide:
        mix = orthonormalising(self.factor.T)
        return w + (mix @ (by @ mix)) @ self.factor


def grain_of(centre: Wide, unit: Wide) -> Wide:
    return 16 * (np.abs(centre) + unit) * np.finfo(np.float64).eps / unit


def log_sum_exp(scores: Wide) -> np.longdouble:
    top = np.max(scores)
    return top + np.log(np.sum(np.exp(scores - top)))


@dataclass
class Bounds:
    """The best lower and upper bound of the optimum that candidates have shown so far."""

    base: Atoms | Normal
    pieces: list[Piece]
    low: np.longdouble = field(default=np.longdouble(-np.inf))
    high: np.longdouble = field(default=np.longdouble(np.inf))

    def try_multipliers(self, multipliers: list[Wide]) -> None:
        """Take one candidate: u for each piece. The tilt by it is a candidate for the primal too."""
        phi, conjugate, entered = wide(np.zeros(len(self.base.centre))), np.longdouble(0), []
        for piece, u in zip(self.pieces, multipliers, strict=True):
            u, value = piece.dual(wide(u))
            entered.append(u)
            conjugate += value
            phi[piece.index] -= u
        low = -self.base.log_partition(phi) - conjugate
        if np.isfinite(low):
            self.low = max(self.low, low)
            self.try_weights(self.base.tilted(phi), entered)

    def try_weights(self, q: Wide, multipliers: list[Wide]) -> None:
        """Take one candidate, moved onto hard constraints that it misses, and onto kinks that it nearly meets.

        What rounding leaves of the violation is charged at the multipliers, with something to spare. Without the move
        that would not be enough: between nearly collinear features a violation of 1e-9 is worth any multiplier.
        """
        self._take(q, multipliers, ROUNDING)
        for within in (0.0, SNAP):
            z = self.base.expectation(q)
            off = wide(np.zeros(len(z)))
            for piece in self.pieces:
                by = piece.snapped(z[piece.index], within) - z[piece.index]
                off[piece.index] = np.where(by != 0, by, off[piece.index])
            if np.any(off != 0) and (moved := self.base.moved(q, off)) is not None:
                self._take(moved, multipliers, ROUNDING + self.base.grain)  # no weights meet coarse targets exactly

    def _take(self, q: Wide, multipliers: list[Wide], rounding: Any) -> None:
        rounding = np.broadcast_to(rounding, len(self.base.centre))
        z, high = self.base.expectation(q), self.base.divergence(q)
        for piece, u in zip(self.pieces, multipliers, strict=True):
            nearest = piece.nearest(z[piece.index])
            left = np.abs(nearest - z[piece.index])
            if np.any(left > rounding[piece.index]):
                return
            high += piece.value(nearest) + 2 * np.sum((np.abs(u) + 1) * left)
        if np.isfinite(high):
            self.high = min(self.high, high)

    @property
    def meet(self) -> bool:
        # A lower bound clearly above the upper one is rounding times a multiplier without limit: nothing is known.
        return bool(np.isfinite(self.high) and abs(self.high - self.low) <= CLOSE * (1 + abs(self.high)))


def answer(base: Atoms | Normal, g: Regularizer, face: NDArray[np.bool_] | None = None) -> Answer:
    """Answer a problem.

    ``face`` marks the atoms that alone can have weight where every expectation is prescribed, and is on an edge: there
    rounding decides, so that only the way a problem was made can tell.
    """
    view = View(np.arange(len(base.centre)), base.centre, base.unit, np.longdouble(1))
    pieces = pieces_of(g, view)
    if isinstance(base, Atoms) and base.z.shape[1] == 1:
        return answer_in_one_dimension(base, pieces)
    if isinstance(base, Atoms) and face is not None and not np.all(face) and _prescribe_all(base, pieces):
        rest = base.restricted(face)
        found = _answer_inside(rest, pieces, "boundary")
        cost = float(-log_sum_exp(base.log_weights[face]))
        return Answer("boundary", found.low + cost, found.high + cost, f"{found.how}, on a face")
    word = reach(base, pieces)
    if word != "optimum":  # on an edge there is no value either: it jumps where the boundary is crossed
        return Answer(word, how="reach")
    return _answer_inside(base, pieces, word)


def _prescribe_all(base: Atoms, pieces: list[Piece]) -> bool:
    """Whether the pieces leave one point of all expectations."""
    low, high = wide(np.full(len(base.centre), -np.inf)), wide(np.full(len(base.centre), np.inf))
    for piece in pieces:
        if isinstance(piece, Box):
            low[piece.index] = np.maximum(low[piece.index], piece.low)
            high[piece.index] = np.minimum(high[piece.index], piece.high)
        elif isinstance(piece, Norm) and np.isinf(piece.price) and piece.radius == 0:
            low[piece.index] = high[piece.index] = piece.target
    return bool(np.all(low == high))


def _answer_inside(base: Atoms | Normal, pieces: list[Piece], word: str) -> Answer:
    """Find the value of a problem that a finite tilt solves."""
    bounds = Bounds(base, pieces)
    for how in _candidates(base, pieces, bounds):
        if bounds.meet:
            return Answer(word, float(bounds.low), float(bounds.high), how)
    # A solution that no solver finds may still be known to exist.
    return Answer(word, how="value unknown")


# One feature


def answer_in_one_dimension(base: Atoms, pieces: list[Piece]) -> Answer:
    """Find the interval that is left to the expectation, then the multiplier by bisection."""
    bottom, top = base.z.min(), base.z.max()
    low, high = bottom, top
    for piece in pieces:
        a, b = _interval(piece)
        low, high = max(low, a), min(high, b)
        if isinstance(piece, Logarithm) and piece.prices[0] > 0 and (a >= top or b <= bottom):
            return Answer("infeasible", how="interval")  # a logarithm's domain is open
    slip = np.longdouble(1e-17)  # rounding of the target in units of the range, in extended precision
    if low > high + slip:
        return Answer("infeasible" if low > high + FAR + base.grain[0] else "edge", how="interval")
    if top == bottom:
        value = sum((p.value(p.nearest(base.z[0])) for p in pieces), np.longdouble(0))
        return Answer("optimum" if np.isfinite(value) else "infeasible", float(value), float(value), "constant")
    if low >= top - slip or high <= bottom + slip:  # only an end of the range is left
        on = np.abs(base.z[:, 0] - (top if low >= top - slip else bottom)) <= slip
        q = np.where(on, np.exp(base.log_weights - log_sum_exp(base.log_weights[on])), 0)
        value = base.divergence(q) + sum((p.value(p.nearest(q @ base.z)) for p in pieces), np.longdouble(0))
        return Answer("boundary", float(value), float(value), "end of the range")
    if low >= top - base.grain[0] or high <= bottom + base.grain[0]:
        return Answer("edge", how="interval")

    phi, q = _balance(base, pieces)
    x = q @ base.z
    at = np.clip(x, low, high)
    for piece in pieces:
        at = piece.snapped(at, within=1e-14)
    # Bisection ends within rounding of a kink; the price of what is left is the multiplier.
    value = float(base.divergence(q) + sum((p.value(at) for p in pieces), np.longdouble(0)) + phi * (at - x)[0])
    width = 1e-15 * (1 + abs(value) + float(abs(phi)))
    return Answer("optimum", value - width, value + width, "bisection")


def _balance(base: Atoms, pieces: list[Piece]) -> tuple[np.longdouble, Wide]:
    """Find where the multiplier is minus a slope of the pieces: it grows, and they do with the expectation."""
    low, high = np.arcsinh(np.longdouble(-1e30)), np.arcsinh(np.longdouble(1e30))
    for _ in range(140):
        middle = (low + high) / 2
        phi = np.sinh(middle)
        q = base.tilted(wide([phi]))
        x = (q @ base.z)[0]
        slopes = [piece.slope(x) for piece in pieces]
        if phi + sum(slopes, np.longdouble(0)) < 0:
            low = middle
        else:
            high = middle
    return phi, q


def _interval(piece: Piece) -> tuple[np.longdouble, np.longdouble]:
    """The domain of a piece of one coordinate."""
    if isinstance(piece, Box):
        return piece.low[0], piece.high[0]
    if isinstance(piece, Norm) and np.isinf(piece.price):
        reach = piece.radius / piece.weights[0]
        return piece.target[0] - reach, piece.target[0] + reach
    if isinstance(piece, Logarithm):
        return (piece.zero[0], np.longdouble(np.inf)) if piece.side[0] > 0 else (-np.longdouble(np.inf), piece.zero[0])
    return -np.longdouble(np.inf), np.longdouble(np.inf)


# Several features


def _candidates(base: Atoms | Normal, pieces: list[Piece], bounds: Bounds) -> Iterator[str]:
    """Feed candidates to the bounds, the cheap ones first; yield who gave the last one."""
    if all(p.is_equality for p in pieces):
        phi = solve_equalities(base, common_target(base, pieces))
        bounds.try_multipliers([-phi[p.index] for p in pieces])
        yield "equalities in extended precision"
    for solver in ("CLARABEL", "SCS"):
        if solve_with_cvxpy(base, pieces, solver, bounds):
            yield solver


def common_target(base: Atoms | Normal, pieces: list[Piece]) -> Wide:
    """The target of equalities, in which every feature has one."""
    target = wide(np.full(len(base.centre), np.nan))
    for piece in pieces:
        assert isinstance(piece, Box)
        target[piece.index] = piece.low
    assert not np.any(np.isnan(target))
    return target


def solve_equalities(base: Atoms | Normal, target: Wide) -> Wide:
    """Newton's method for ``E[z] == target`` in coordinates in which the features are orthonormal."""
    rows = base.z - base.z.mean(axis=0) if isinstance(base, Atoms) else base.factor.T
    mix = orthonormalising(rows)  # (m, r): columns of rows @ mix are orthonormal
    if isinstance(base, Normal):
        return mix @ (target @ mix)
    y, goal = base.z @ mix, target @ mix
    alpha = wide(np.zeros(mix.shape[1]))

    def dual(alpha: Wide) -> np.longdouble:
        return log_sum_exp(base.log_weights + y @ alpha) - alpha @ goal

    value = dual(alpha)
    for _ in range(200):
        scores = base.log_weights + y @ alpha
        q = np.exp(scores - np.max(scores))
        q /= np.sum(q)
        mean = q @ y
        centred = y - mean
        hessian = (centred * q[:, None]).T @ centred
        hessian[np.diag_indices_from(hessian)] += 1e-17 * np.trace(hessian) + np.longdouble(1e-300)
        step = _solve_positive(hessian, goal - mean)
        slope = float(step @ (goal - mean))
        length = np.longdouble(1)
        while length > 1e-12 and not dual(alpha + length * step) <= value - 1e-4 * length * slope + 1e-18 * (
            1 + abs(value)
        ):
            length /= 2
        if length <= 1e-12:
            break
        alpha = alpha + length * step
        value = dual(alpha)
        if slope < 1e-24 * (1 + abs(value)):
            break
    return mix @ alpha


def orthonormalising(rows: Wide) -> Wide:
    """Gram-Schmidt, twice and with pivots; directions in which nothing varies are left out."""
    m = rows.shape[1]
    mix, rest, left, found = wide(np.eye(m)), rows.copy(), list(range(m)), []
    scale = np.max(np.sqrt(np.sum(rows**2, axis=0)), initial=np.longdouble(0))
    while left:
        lengths = [np.sqrt(np.sum(rest[:, j] ** 2)) for j in left]
        best = int(np.argmax(lengths))
        if lengths[best] <= 1e-16 * scale:
            break
        j = left.pop(best)
        mix[:, j] /= lengths[best]
        rest[:, j] = rows @ mix[:, j]
        found.append(j)
        for k in left:
            for _ in range(2):
                share = rest[:, j] @ rest[:, k]
                rest[:, k] -= share * rest[:, j]
                mix[:, k] -= share * mix[:, j]
    return mix[:, found]


def _solve_positive(matrix: Wide, right: Wide) -> Wide:
    """Gaussian elimination with pivots: LAPACK knows no extended precision."""
    a, b = matrix.copy(), right.copy()
    n = len(b)
    for i in range(n):
        p = i + int(np.argmax(np.abs(a[i:, i])))
        a[[i, p]], b[[i, p]] = a[[p, i]], b[[p, i]]
        ratio = a[i + 1 :, i] / a[i, i]
        a[i + 1 :] -= ratio[:, None] * a[i]
        b[i + 1 :] -= ratio * b[i]
    x = wide(np.zeros(n))
    for i in reversed(range(n)):
        x[i] = (b[i] - a[i, i + 1 :] @ x[i + 1 :]) / a[i, i]
    return x


def solve_with_cvxpy(base: Atoms | Normal, pieces: list[Piece], solver: str, bounds: Bounds) -> bool:
    """Solve the primal; give weights and multipliers to the bounds. False where there is no CVXPY or no solution."""
    try:
        import cvxpy as cp
    except ImportError:
        return False
    if isinstance(base, Atoms):
        w = cp.Variable(len(base.z), nonneg=True)
        divergence = -cp.sum(cp.entr(w)) - narrow(base.log_weights) @ w
        rules, means = [cp.sum(w) == 1], narrow(base.z).T @ w
    else:
        w = cp.Variable(base.factor.shape[1])
        divergence, rules, means = cp.sum_squares(w) / 2, [], narrow(base.factor) @ w
    links, total = [], divergence
    for piece in pieces:
        z = cp.Variable(len(piece.index))
        cost, hard = piece.cost(z)
        total = total + cost
        rules += hard
        links.append(z == means[piece.index])
    problem = cp.Problem(cp.Minimize(total), [*rules, *links])
    tight = (
        {"tol_gap_abs": 1e-11, "tol_gap_rel": 1e-11, "tol_feas": 1e-11, "max_iter": 400}
        if solver == "CLARABEL"
        else {"eps_abs": 1e-9, "eps_rel": 1e-9, "max_iters": 20_000}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of inaccurate solutions: they are looked at below
        try:
            problem.solve(solver=solver, **tight)
        except (cp.error.SolverError, ValueError, ArithmeticError):
            return False
    if w.value is None or any(link.dual_value is None for link in links) or not np.all(np.isfinite(w.value)):
        return False
    multipliers = [wide(-link.dual_value) for link in links]
    bounds.try_multipliers(multipliers)
    q = wide(w.value)
    if isinstance(base, Atoms):
        q = np.maximum(q, 0)
        q /= np.sum(q)
    bounds.try_weights(q, multipliers)
    return True


# Whether constraints can be met


@dataclass(frozen=True)
class Rows:
    """Hard rows ``sides w <= limits`` on weights, or on the standard variables of a Gaussian."""

    sides: Wide  # (k, n)
    limits: Wide  # (k,)
    grain: Wide  # (k,): how coarse the limits are

    def __add__(self, other: Rows) -> Rows:
        pairs = zip((self.sides, self.limits, self.grain), (other.sides, other.limits, other.grain), strict=True)
        return Rows(*(np.concatenate(pair) for pair in pairs))


def hard_rows(base: Atoms | Normal, pieces: list[Piece]) -> Rows | None:
    """All polyhedral constraints in one table; None where there is another kind."""
    atoms = base.z.T if isinstance(base, Atoms) else base.factor  # (m, n)
    table = Rows(wide(np.zeros((0, atoms.shape[1]))), wide(np.zeros(0)), wide(np.zeros(0)))
    for piece in pieces:
        if (bounds := piece.bounds()) is None:
            return None
        rows, low, high = bounds
        sides, grain = wide(rows) @ atoms[piece.index], np.abs(wide(rows)) @ base.grain[piece.index]
        above, below = np.isfinite(high), np.isfinite(low)
        table += Rows(sides[above], high[above], grain[above]) + Rows(-sides[below], -low[below], grain[below])
    return table


def reach(base: Atoms | Normal, pieces: list[Piece]) -> str:
    """Return "optimum", "edge", "infeasible" or "unknown"."""
    if isinstance(base, Atoms) and any(_outside_logarithm(base, p) for p in pieces if isinstance(p, Logarithm)):
        return "infeasible"
    rows = hard_rows(base, pieces)
    if rows is not None and not len(rows.limits):
        return "optimum"
    word = _reach_by_cones(base, pieces) if rows is None else _reach_by_lines(rows, isinstance(base, Atoms))
    if word == "optimum" and is_thin(base):
        return "edge"
    if word == "optimum" and isinstance(base, Atoms) and all(p.is_equality for p in pieces):
        word = _reach_along_thin_directions(base, pieces)
    return word


def is_thin(base: Atoms | Normal) -> bool:
    """Whether features vary along some direction by no more than the rounding of targets."""
    rows = base.z - base.z.mean(axis=0) if isinstance(base, Atoms) else base.factor.T
    mix = orthonormalising(rows)  # long where many features must be combined to see anything
    longest = np.sqrt(np.max(np.sum(mix**2, axis=0), initial=np.longdouble(0)))
    return bool(longest * 10 * np.max(base.grain) * np.sqrt(len(rows)) > 1)


def _outside_logarithm(base: Atoms, piece: Logarithm) -> bool:
    """Whether no atom has a positive value where a logarithm needs one."""
    highest = np.max(piece.side * (base.z[:, piece.index] - piece.zero), axis=0)
    return bool(np.any(highest[piece.prices > 0] <= 0))


def _reach_along_thin_directions(base: Atoms, pieces: list[Piece]) -> str:
    """Look again where features are nearly collinear: across, the rounding of targets may be more than they vary."""
    mix = orthonormalising(base.z - base.z.mean(axis=0))
    if not mix.size:
        return "optimum"  # nothing varies
    y, at = base.z @ mix, common_target(base, pieces) @ mix
    size = np.max(np.abs(y), axis=0, initial=np.longdouble(1e-300))
    rows = Rows((y / size).T, at / size, 0 * at)
    word = _reach_by_lines(rows + Rows(-rows.sides, -rows.limits, rows.grain), True)
    return "edge" if word == "infeasible" else word


def _reach_by_lines(rows: Rows, weights: bool) -> str:
    """First the least violation of all rows; then, where there is none, the largest least weight of an atom."""
    size = np.maximum(1, np.abs(rows.limits))  # far bounds would spoil the scaling of the program
    sides, limits = narrow(rows.sides / size[:, None]), narrow(rows.limits / size)
    give = narrow((1 + rows.grain / FAR) / size)  # so that a violation above FAR is beyond rounding as well
    k, n = sides.shape
    least = linprog(
        np.r_[np.zeros(n), 1.0],
        A_ub=np.hstack([sides, -give[:, None]]),
        b_ub=limits,
        A_eq=np.r_[np.ones(n), 0.0][None] if weights else None,
        b_eq=[1.0] if weights else None,
        bounds=[(0, None) if weights else (None, None)] * n + [(0, None)],
        method="highs",
        options=TIGHT,
    )
    if least.status != 0:
        return "unknown"
    if least.fun > FAR:
        return "infeasible" if _refutes(rows, size, -wide(least.ineqlin.marginals), weights) else "unknown"
    if least.fun > NOISE:
        return "edge"
    if not weights:
        return "optimum"
    inside = linprog(
        np.r_[np.zeros(n), -1.0],
        A_ub=np.vstack([np.hstack([sides, np.zeros((k, 1))]), np.hstack([-np.eye(n), np.full((n, 1), 1.0 / n)])]),
        b_ub=np.r_[limits + NOISE, np.zeros(n)],
        A_eq=np.r_[np.ones(n), 0.0][None],
        b_eq=[1.0],
        bounds=[(0, None)] * n + [(0, 1)],
        method="highs",
        options=TIGHT,
    )
    if inside.status != 0:
        return "unknown"
    return "optimum" if -inside.fun > INSIDE + 10 * float(np.max(rows.grain)) else "edge"


TIGHT = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
NOISE = 1e-12  # of the linear programs themselves


def _refutes(rows: Rows, size: Wide, prices: Wide, weights: bool) -> bool:
    """Whether a combination of the rows exceeds its limit wherever one looks: Farkas's certificate."""
    prices = np.maximum(prices, 0) / size
    combined, limit = prices @ rows.sides, prices @ rows.limits
    if weights:
        return bool(np.min(combined) > limit)
    return bool(np.max(np.abs(combined), initial=0) < 1e-9 * np.sum(prices) and limit < 0)


def _reach_by_cones(base: Atoms | Normal, pieces: list[Piece]) -> str:
    """The same with CVXPY, for balls in the 2-norm; how far the ball must grow stands for the violation."""
    try:
        import cvxpy as cp
    except ImportError:
        return "unknown"
    weights = isinstance(base, Atoms)
    found = []
    for inside in (False, True):
        w = cp.Variable(base.z.shape[0] if isinstance(base, Atoms) else base.factor.shape[1])
        t = cp.Variable()
        rules = [cp.sum(w) == 1, w >= (t / w.size if inside else 0)] if weights else []
        means = (narrow(base.z).T if isinstance(base, Atoms) else narrow(base.factor)) @ w
        for piece in pieces:
            z = means[piece.index]
            if isinstance(piece, Norm) and np.isinf(piece.price):
                away = cp.multiply(narrow(piece.weights), z - narrow(piece.target))
                length = cp.norm(away, "inf" if np.isinf(piece.norm) else int(piece.norm))
                rules.append(length <= narrow(piece.radius) + (0 if inside else t))
            elif (rows := piece.bounds()) is not None and len(rows[0]):
                a, low, high = rows
                give = 0 if inside else t
                if np.any(used := np.isfinite(high)):
                    rules.append(narrow(a[used]) @ z <= narrow(high[used]) + give)
                if np.any(used := np.isfinite(low)):
                    rules.append(narrow(a[used]) @ z >= narrow(low[used]) - give)
        goal = cp.Maximize(t) if inside else cp.Minimize(t)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = cp.Problem(goal, [*rules, t >= -1, t <= 1] if inside else [*rules, t >= 0])
            try:
                program.solve(solver="CLARABEL", tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
            except cp.error.SolverError:
                return "unknown"
        if program.status != "optimal" or t.value is None:
            return "unknown"
        found.append(float(t.value))
        if not inside and found[0] > 10 * (FAR + float(np.max(base.grain))):
            return "infeasible"
        if not weights:
            return "optimum" if found[0] <= FAR else "unknown"
    coarse = 10 * float(np.max(base.grain))
    return "optimum" if found[1] > INSIDE + coarse and found[0] <= FAR else "edge"
