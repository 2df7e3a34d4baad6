"""Reference solutions: optimal value, feasibility and finiteness of multipliers.

All references use features of order one (`pieces`) and evaluate each candidate in extended precision. Multipliers
give a lower bound of the optimum, weights an upper one. If the bounds do not meet, the value is unknown.

- one feature: bisection in extended precision;
- equalities on atoms: Newton's method in extended precision after orthogonalization, for nearly collinear features;
- everything else: CVXPY with one solver, and with a second one if the bounds of the first do not meet;
- feasibility: linear programs whose certificates are checked in extended precision.
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

CLOSE = 1e-7  # relative to one plus the optimum: bounds this close determine the optimum
FAR = 1e-8  # relative to a feature's half-range: a larger violation is infeasible
ROUNDING = 1e-13  # relative to a feature's half-range: violation that rounded targets may leave
SNAP = 1e-6  # relative to a feature's half-range: how far solvers stop from a kink they should be on
INSIDE = 1e-6  # smallest weight of an atom, relative to uniform, at which a point is clearly inside


@dataclass(frozen=True)
class Answer:
    """Outcome of a reference.

    ``word`` is "optimum" (finite multipliers attain it), "boundary" (only a limit does), "infeasible", "edge" (so close
    to the boundary that rounding decides) or "unknown". ``low`` and ``high`` enclose the optimum and are NaN if the
    value is unknown.
    """

    word: str
    low: float = np.nan
    high: float = np.nan
    how: str = ""


@dataclass(frozen=True)
class Atoms:
    """Weighted atoms with positive weight and standardized features."""

    z: Wide  # (n, m)
    log_weights: Wide  # (n,), normalized
    centre: Wide  # (m,)
    unit: Wide  # (m,): half the range, or one for a constant feature

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
        """Return the rounding error of targets, (m,), which limits the accuracy."""
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
        """Return weights near q with a shifted expectation; None if some are negative."""
        centred = self.z - q @ self.z
        mix = orthonormalising(np.sqrt(q)[:, None] * centred)
        change = centred @ (mix @ (by @ mix))
        return q * (1 + change) if np.all(change > -1) else None

    def restricted(self, keep: NDArray[np.bool_]) -> Atoms:
        kept = self.log_weights[keep]
        return Atoms(self.z[keep], kept - log_sum_exp(kept), self.centre, self.unit)


@dataclass(frozen=True)
class Normal:
    """Standardized affine features ``z = factor w`` of a standard normal w."""

    factor: Wide  # (m, d)
    centre: Wide  # (m,)
    unit: Wide  # (m,)
    grain: Wide  # (m,): as for atoms, including the summands of the mean

    @classmethod
    def of(cls, coefficients: NDArray[np.float64], mean: NDArray[np.float64], root: NDArray[np.float64]) -> Normal:
        """Standardize coefficients (m, d) by the mean and a covariance root R."""
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
    """Best lower and upper bounds of the optimum found so far."""

    base: Atoms | Normal
    pieces: list[Piece]
    low: np.longdouble = field(default=np.longdouble(-np.inf))
    high: np.longdouble = field(default=np.longdouble(np.inf))

    def try_multipliers(self, multipliers: list[Wide]) -> None:
        """Evaluate the dual at u, a vector per piece, and the primal at its tilt."""
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
        """Evaluate weights after moving them onto hard constraints and nearby kinks.

        The remaining rounding violation is charged at the multipliers, with a margin. Without the move this is not a
        bound: between nearly collinear features, a violation of 1e-9 can have any multiplier.
        """
        self._take(q, multipliers, ROUNDING)
        for within in (0.0, SNAP):
            z = self.base.expectation(q)
            off = wide(np.zeros(len(z)))
            for piece in self.pieces:
                by = piece.snapped(z[piece.index], within) - z[piece.index]
                off[piece.index] = np.where(by != 0, by, off[piece.index])
            if np.any(off != 0) and (moved := self.base.moved(q, off)) is not None:
                self._take(moved, multipliers, ROUNDING + self.base.grain)  # coarse targets cannot be met exactly

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
        # A lower bound clearly above the upper one is rounding times a huge multiplier: the value is unknown.
        return bool(np.isfinite(self.high) and abs(self.high - self.low) <= CLOSE * (1 + abs(self.high)))


def answer(base: Atoms | Normal, g: Regularizer, face: NDArray[np.bool_] | None = None) -> Answer:
    """Solve a problem.

    ``face`` marks the atoms that may have positive weight if every expectation is fixed at the boundary. Rounding
    decides such problems, so that only their construction determines the solution.
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
    if word != "optimum":  # no value on an edge either: it jumps across the boundary
        return Answer(word, how="reach")
    return _answer_inside(base, pieces, word)


def _prescribe_all(base: Atoms, pieces: list[Piece]) -> bool:
    """Return whether the pieces fix all expectations."""
    low, high = wide(np.full(len(base.centre), -np.inf)), wide(np.full(len(base.centre), np.inf))
    for piece in pieces:
        if isinstance(piece, Box):
            low[piece.index] = np.maximum(low[piece.index], piece.low)
            high[piece.index] = np.minimum(high[piece.index], piece.high)
        elif isinstance(piece, Norm) and np.isinf(piece.price) and piece.radius == 0:
            low[piece.index] = high[piece.index] = piece.target
    return bool(np.all(low == high))


def _answer_inside(base: Atoms | Normal, pieces: list[Piece], word: str) -> Answer:
    """Return the value of a problem that finite multipliers solve."""
    bounds = Bounds(base, pieces)
    for how in _candidates(base, pieces, bounds):
        if bounds.meet:
            return Answer(word, float(bounds.low), float(bounds.high), how)
    # A solution may be known to exist even if no solver finds it.
    return Answer(word, how="value unknown")


# One feature


def answer_in_one_dimension(base: Atoms, pieces: list[Piece]) -> Answer:
    """Intersect the pieces' domains, then find the multiplier by bisection."""
    bottom, top = base.z.min(), base.z.max()
    low, high = bottom, top
    for piece in pieces:
        a, b = _interval(piece)
        low, high = max(low, a), min(high, b)
        if isinstance(piece, Logarithm) and piece.prices[0] > 0 and (a >= top or b <= bottom):
            return Answer("infeasible", how="interval")  # the domain of a logarithm is open
    slip = np.longdouble(1e-17)  # rounding of the target in extended precision, relative to the range
    if low > high + slip:
        return Answer("infeasible" if low > high + FAR + base.grain[0] else "edge", how="interval")
    if top == bottom:
        value = sum((p.value(p.nearest(base.z[0])) for p in pieces), np.longdouble(0))
        return Answer("optimum" if np.isfinite(value) else "infeasible", float(value), float(value), "constant")
    if low >= top - slip or high <= bottom + slip:  # only an endpoint of the range remains
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
    # Bisection stops within rounding of a kink; its multiplier is the penalty of the remainder.
    value = float(base.divergence(q) + sum((p.value(at) for p in pieces), np.longdouble(0)) + phi * (at - x)[0])
    width = 1e-15 * (1 + abs(value) + float(abs(phi)))
    return Answer("optimum", value - width, value + width, "bisection")


def _balance(base: Atoms, pieces: list[Piece]) -> tuple[np.longdouble, Wide]:
    """Find the root of multiplier plus slope, both increasing in the expectation."""
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
    """Return the domain of a piece of one coordinate."""
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
    """Pass candidates to the bounds, cheapest first; yield the method of each."""
    if all(p.is_equality for p in pieces):
        phi = solve_equalities(base, common_target(base, pieces))
        bounds.try_multipliers([-phi[p.index] for p in pieces])
        yield "equalities in extended precision"
    for solver in ("CLARABEL", "SCS"):
        if solve_with_cvxpy(base, pieces, solver, bounds):
            yield solver


def common_target(base: Atoms | Normal, pieces: list[Piece]) -> Wide:
    """Return the target of equalities on all features, if there is one."""
    target = wide(np.full(len(base.centre), np.nan))
    for piece in pieces:
        assert isinstance(piece, Box)
        target[piece.index] = piece.low
    assert not np.any(np.isnan(target))
    return target


def solve_equalities(base: Atoms | Normal, target: Wide) -> Wide:
    """Solve ``E[z] == target`` by Newton's method in orthonormal coordinates."""
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
    """Gram-Schmidt, twice and with pivoting; directions without variance are dropped."""
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
    """Gaussian elimination with pivoting: LAPACK does not support extended precision."""
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
    """Solve the primal for the bounds; return False without CVXPY or a solution."""
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
        warnings.simplefilter("ignore")  # warnings about inaccurate solutions, which are checked below
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


# Feasibility


@dataclass(frozen=True)
class Rows:
    """Hard constraints ``sides w <= limits`` on weights or standard normal variables."""

    sides: Wide  # (k, n)
    limits: Wide  # (k,)
    grain: Wide  # (k,): rounding error of the limits

    def __add__(self, other: Rows) -> Rows:
        pairs = zip((self.sides, self.limits, self.grain), (other.sides, other.limits, other.grain), strict=True)
        return Rows(*(np.concatenate(pair) for pair in pairs))


def hard_rows(base: Atoms | Normal, pieces: list[Piece]) -> Rows | None:
    """Return all polyhedral constraints as rows; None if there is another kind."""
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
    """Return whether some direction varies by no more than the rounding of targets."""
    rows = base.z - base.z.mean(axis=0) if isinstance(base, Atoms) else base.factor.T
    mix = orthonormalising(rows)  # its columns are long if many features must be combined to vary
    longest = np.sqrt(np.max(np.sum(mix**2, axis=0), initial=np.longdouble(0)))
    return bool(longest * 10 * np.max(base.grain) * np.sqrt(len(rows)) > 1)


def _outside_logarithm(base: Atoms, piece: Logarithm) -> bool:
    """Return whether no atom has a positive value where a logarithm requires one."""
    highest = np.max(piece.side * (base.z[:, piece.index] - piece.zero), axis=0)
    return bool(np.any(highest[piece.prices > 0] <= 0))


def _reach_along_thin_directions(base: Atoms, pieces: list[Piece]) -> str:
    """Check again in directions of small variance, where rounding may decide."""
    mix = orthonormalising(base.z - base.z.mean(axis=0))
    if not mix.size:
        return "optimum"  # all features are constant
    y, at = base.z @ mix, common_target(base, pieces) @ mix
    size = np.max(np.abs(y), axis=0, initial=np.longdouble(1e-300))
    rows = Rows((y / size).T, at / size, 0 * at)
    word = _reach_by_lines(rows + Rows(-rows.sides, -rows.limits, rows.grain), True)
    return "edge" if word == "infeasible" else word


def _reach_by_lines(rows: Rows, weights: bool) -> str:
    """Minimize the violation of all rows, then maximize the smallest weight."""
    size = np.maximum(1, np.abs(rows.limits))  # distant bounds would make the program badly scaled
    sides, limits = narrow(rows.sides / size[:, None]), narrow(rows.limits / size)
    give = narrow((1 + rows.grain / FAR) / size)  # a violation above FAR then also exceeds rounding
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
NOISE = 1e-12  # feasibility tolerance of the linear programs


def _refutes(rows: Rows, size: Wide, prices: Wide, weights: bool) -> bool:
    """Return whether the rows have a Farkas certificate of infeasibility."""
    prices = np.maximum(prices, 0) / size
    combined, limit = prices @ rows.sides, prices @ rows.limits
    if weights:
        return bool(np.min(combined) > limit)
    return bool(np.max(np.abs(combined), initial=0) < 1e-9 * np.sum(prices) and limit < 0)


def _reach_by_cones(base: Atoms | Normal, pieces: list[Piece]) -> str:
    """Like `_reach_by_lines` for 2-norm balls; minimize the increase of their radius."""
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
