"""Checks of user-defined regularizers at random points.

`check_regularizer` is the counterpart of scikit-learn's ``check_estimator``. See docs/adding_a_regularizer.md for an
example. The regularizers of the package pass it in the test suite.

All points come from the proximal map: ``v = prox(z, t)`` is in the domain of g, and ``u = (z - v) / t`` is a
subgradient of g at v if and only if v minimizes ``g(v) + |v - z|^2 / (2 t)``. The Fenchel-Young equality at (v, u)
therefore relates value, conjugate and proximal map. The inequality at other pairs holds only for convex functions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from regbayes._types import Floats
from regbayes.regularization.dual_forms import BoxDual, SimplexDual
from regbayes.regularization.regularizers import Regularizer

__all__ = ["check_regularizer"]


SPREADS = (0.3, 1.0, 3.0, 30.0)  # standard deviations of random arguments of the proximal map
STEPS = (0.05, 0.7, 4.0)
LONG_STEPS = (1e2, 1e4, 1e6)  # steps at which lower bounds of an infinite supremum must grow
FARTHEST_STEP = 1e13  # step long enough to detect a large finite number in place of inf
EDGE_WIDTH = 1e-4  # relative distance of a step beyond the boundary of the domain
TINY_STEP = 1e-13  # step of a proximal map that only projects onto the domain


_Function = Callable[[Any], float]


@dataclass(frozen=True)
class _Point:
    """A point z, its proximal point v, and the corresponding subgradient u of g at v."""

    z: Floats  # (size,)
    step: Floats  # (size,), constant within blocks
    v: Floats  # (size,)
    u: Floats  # (size,)


def check_regularizer(regularizer: Regularizer, size: int, *, tol: float = 1e-8, seed: int = 0) -> None:
    """Check that a regularizer has the properties required by the dual solver.

    Parameters
    ----------
    regularizer : Regularizer
    size : int
        Number of expectations. Run the check for several sizes.
    tol : float, default=1e-8
        Relative accuracy of value, conjugate and proximal map.
    seed : int, default=0
        Seed of the random points.

    Raises
    ------
    AssertionError
        If a property fails. The message names the point.

    Examples
    --------
    >>> from regbayes.regularizers import Hinge
    >>> from regbayes.testing import check_regularizer
    >>> check_regularizer(Hinge(2.0), size=3)
    """
    assert regularizer.size in (None, size), f"size is {regularizer.size}, so it cannot be checked on {size}"
    rng = np.random.default_rng(seed)
    points = list(_points(regularizer, size, rng))
    _check_fenchel_young(regularizer, points, tol)
    _check_convexity(regularizer, points, tol)
    if type(regularizer).prox_jacobian is not Regularizer.prox_jacobian:
        _check_prox_jacobian(regularizer, points, rng, tol)
    _check_suprema(regularizer, points, rng, tol)
    _check_edges(regularizer, points)
    _check_infinities(regularizer, points, rng)
    _check_precision(regularizer, points)
    _check_dual_form(regularizer, size, rng, tol)
    _check_atoms(regularizer, points, tol)
    _check_slack(regularizer, points)


def _points(regularizer: Regularizer, size: int, rng: np.random.Generator) -> Iterator[_Point]:
    block = regularizer.block_size or size
    assert size % block == 0, f"block_size is {block}, which does not divide the size {size}"
    for spread, base in itertools.product(SPREADS, STEPS):
        z = spread * rng.normal(size=size)
        # The solver uses a different step for each block.
        step = np.repeat(base * rng.uniform(0.5, 2.0, size // block), block)
        before = z.copy()
        v = np.asarray(regularizer.prox(z, step), dtype=np.float64)
        assert v.shape == (size,), f"prox returned shape {v.shape} for {size} expectations"
        assert np.array_equal(z, before), "prox wrote into its argument"
        assert np.all(np.isfinite(v)), f"prox({z}, {step}) is {v}, not finite"
        value = regularizer.value(v)
        assert np.isfinite(value), f"prox({z}, {step}) is {v}, where value is {value}: prox must land in the domain"
        u = regularizer.clip_dual((z - v) / step)
        conjugate = regularizer.conjugate(u)
        assert np.isfinite(conjugate), f"conjugate({u}) is {conjugate}, but that is a subgradient at prox({z}, {step})"
        yield _Point(z, step, v, u)


def _check_fenchel_young(regularizer: Regularizer, points: Sequence[_Point], tol: float) -> None:
    """Check ``g(v) + g*(u) >= <u, v>``, with equality if u is a subgradient at v."""
    values = [regularizer.value(p.v) for p in points]
    conjugates = [regularizer.conjugate(p.u) for p in points]
    for (i, at), (j, by) in itertools.product(enumerate(points), enumerate(points)):
        value, conjugate, product = values[i], conjugates[j], float(by.u @ at.v)
        rounding = tol * (1 + abs(value) + abs(conjugate) + float(np.abs(by.u) @ (np.abs(at.v) + np.abs(by.z))))
        terms = f"at x = {at.v}, u = {by.u}: value {value}, conjugate {conjugate}, <u, x> {product}"
        assert value + conjugate >= product - rounding, f"Fenchel-Young inequality fails {terms}"
        assert i != j or value + conjugate <= product + rounding, (
            f"Fenchel-Young equality fails {terms}, but u is the subgradient at x that prox({at.z}, {at.step}) gives"
        )


def _functions(regularizer: Regularizer, points: Sequence[_Point]) -> list[tuple[str, _Function, list[Floats]]]:
    """Return value and conjugate, each with its name and points of its domain."""
    return [
        ("value", regularizer.value, [p.v for p in points]),
        ("conjugate", regularizer.conjugate, [p.u for p in points]),
    ]


def _check_convexity(regularizer: Regularizer, points: Sequence[_Point], tol: float) -> None:
    """Check that value and conjugate are convex at midpoints."""
    for name, function, places in _functions(regularizer, points):
        heights = [function(place) for place in places]
        for (a, at_a), (b, at_b) in itertools.combinations(zip(places, heights, strict=True), 2):
            chord, between = 0.5 * (at_a + at_b), function(0.5 * (a + b))
            assert between <= chord + tol * (1 + abs(at_a) + abs(at_b)), (
                f"{name} is not convex: {between} half-way between {a} and {b}, where the chord is at {chord}"
            )


def _check_prox_jacobian(
    regularizer: Regularizer, points: Sequence[_Point], rng: np.random.Generator, tol: float
) -> None:
    """Check that prox_jacobian is the derivative, with eigenvalues in [0, 1]."""
    size = len(points[0].z)
    block = regularizer.block_size or size
    for p in points:
        # Proximal points are often kinks, so that random points nearby are on both sides of them.
        for x in (p.z, p.v, p.v + 0.01 * rng.normal(size=size)):
            jacobian = regularizer.prox_jacobian(x, p.step)
            assert jacobian.shape == (size // block, block, block), (
                f"prox_jacobian of {size} expectations in blocks of {block} has shape {jacobian.shape}"
            )
            assert np.allclose(jacobian, jacobian.transpose(0, 2, 1), atol=tol), (
                f"prox_jacobian({x}, {p.step}) is not symmetric: {jacobian}"
            )
            eigenvalues = np.linalg.eigvalsh(jacobian)
            assert np.all((eigenvalues >= -tol) & (eigenvalues <= 1 + tol)), (
                f"prox_jacobian({x}, {p.step}) has the eigenvalues {eigenvalues}; they must lie between 0 and 1"
            )
            forward, backward = (_differences(regularizer, x, p.step, block, sign * np.sqrt(tol)) for sign in (1, -1))
            bound = 10 * np.sqrt(tol) * (1 + np.max(np.abs(x)))
            smooth = x is not p.v and np.allclose(forward, backward, rtol=0, atol=bound)
            assert not smooth or np.allclose(jacobian, 0.5 * (forward + backward), rtol=0, atol=bound), (
                f"prox_jacobian({x}, {p.step}) is {jacobian}, but differences of prox are {0.5 * (forward + backward)}"
            )


def _differences(regularizer: Regularizer, x: Floats, step: Floats, block: int, width: float) -> Floats:
    """Return finite differences of prox in the layout of its Jacobian."""
    images = np.empty((block, len(x) // block, block))
    for j in range(block):
        moved = x.copy()
        moved[j::block] += width
        images[j] = np.reshape(regularizer.prox(moved, step), (-1, block))
    at = np.reshape(regularizer.prox(x, step), (-1, block))
    return ((images - at) / width).transpose(1, 2, 0)


def _check_suprema(regularizer: Regularizer, points: Sequence[_Point], rng: np.random.Generator, tol: float) -> None:
    """Check that conjugate and value are the suprema that define each other.

    Proximal points of increasing steps give increasing lower bounds, which diverge if the supremum is infinite.
    """
    start = points[0].v

    def towards_conjugate(u: Floats, step: float) -> float:
        x = np.asarray(regularizer.prox(start + step * u, step), dtype=np.float64)
        return float(u @ x) - regularizer.value(x)

    def towards_value(x: Floats, step: float) -> float:
        u = regularizer.clip_dual(step * (x - np.asarray(regularizer.prox(x, 1 / step), dtype=np.float64)))
        return float(u @ x) - regularizer.conjugate(u)

    for spread in SPREADS:
        point = spread * rng.normal(size=len(start))
        for name, function, _ in _functions(regularizer, points):
            approach = towards_value if name == "value" else towards_conjugate
            claimed, below = function(point), [approach(point, step) for step in LONG_STEPS]
            assert not np.isnan(claimed), f"{name}({point}) is nan"
            rounding = tol * (1 + abs(max(below))) + 1e-14 * LONG_STEPS[-1] * float(point @ point)
            assert claimed >= max(below) - rounding, (
                f"{name}({point}) is {claimed}, but the supremum that defines it is at least {max(below)}"
            )
            far = approach(point, FARTHEST_STEP)
            assert claimed >= 0.999 * far - FARTHEST_STEP * 1e-14 * (1 + float(point @ point)), (
                f"{name}({point}) is {claimed}, but the supremum that defines it passes {far}: it is inf"
            )
            if np.isinf(claimed):
                assert below[0] < below[1] < below[2], (
                    f"{name}({point}) is {claimed}, but the supremum that defines it is bounded: {below}"
                )


def _check_edges(regularizer: Regularizer, points: Sequence[_Point]) -> None:
    """Check that value and prox have the same domain, and that it is closed."""
    for p in points:
        length = float(np.linalg.norm(p.z - p.v))
        if length == 0.0:
            continue
        width = EDGE_WIDTH * (1 + float(np.max(np.abs(p.v))))
        beyond = p.v + width * (p.z - p.v) / length
        if np.isfinite(regularizer.value(beyond)):
            moved = float(np.max(np.abs(np.asarray(regularizer.prox(beyond, TINY_STEP)) - beyond)))
            assert moved <= 0.5 * width, (
                f"value({beyond}) is {regularizer.value(beyond)}, but prox from there goes {moved} away however short "
                "the step: the domain of value is wider than the one that prox knows"
            )
            continue
        inside, outside = p.v, beyond
        middle = 0.5 * (inside + outside)
        while not (np.array_equal(middle, inside) or np.array_equal(middle, outside)):
            inside, outside = (middle, outside) if np.isfinite(regularizer.value(middle)) else (inside, middle)
            middle = 0.5 * (inside + outside)
        here, there = (regularizer.value(v) + float(np.sum((v - p.z) ** 2 / (2 * p.step))) for v in (p.v, inside))
        assert there >= here - 1e-12 * (1 + abs(here)), (
            f"prox({p.z}, {p.step}) is {p.v}, but the domain of value goes on to {inside}, which is better"
        )
        back = np.asarray(regularizer.prox(outside, TINY_STEP), dtype=np.float64)
        assert not np.array_equal(back, outside), (
            f"value({outside}) is inf, but prox leaves that point where it is: a domain contains its edge"
        )


def _check_infinities(regularizer: Regularizer, points: Sequence[_Point], rng: np.random.Generator) -> None:
    """Check value and conjugate at infinite arguments."""
    size = len(points[0].z)
    patterns = list(itertools.product((-np.inf, 1.0, np.inf), repeat=size))
    if len(patterns) > 81:
        patterns = [tuple(rng.choice([-np.inf, 1.0, np.inf], size=size)) for _ in range(81)]
    for name, function, places in _functions(regularizer, points):
        for pattern in patterns:
            with np.errstate(all="ignore"):
                found = function(np.array(pattern))
            assert not np.isnan(found), f"{name}({list(pattern)}) is nan; off the domain it is inf"
        for i, sign in itertools.product(range(size), (-1, 1)):
            ray = [np.where(np.arange(size) == i, sign * length, places[0]) for length in (1e6, 1e9, np.inf)]
            near, far, end = (function(x) for x in ray)
            if far > 100 * max(near, 1.0) or np.isinf(far):
                assert end == np.inf, f"{name} grows without bound towards {ray[2]}, but is {end} there"


def _check_precision(regularizer: Regularizer, points: Sequence[_Point]) -> None:
    """Check single precision, and that integers and lists are accepted."""
    for p in points:
        single = p.z.astype(np.float32)
        found = regularizer.prox(single, p.step)
        assert found.dtype == np.float32, f"prox of a float32 array is {found.dtype}"
        exact = regularizer.prox(single.astype(np.float64), p.step)
        error = np.max(np.abs(found - exact))
        assert error <= 4e-7 * (1 + np.max(np.abs(single)) + np.max(np.abs(exact))), (
            f"prox({single}) in float32 is {found}, in float64 {exact}"
        )
        for name, function, (x,) in _functions(regularizer, [p]):
            single = x.astype(np.float32)
            ours, exact_value = function(single), function(single.astype(np.float64))
            assert isinstance(ours, float), f"{name} returns a {type(ours).__name__}, not a float"
            same = ours == exact_value or abs(ours - exact_value) <= 1e-5 * (1 + abs(exact_value))
            assert same, f"{name}({single}) is {ours} for float32 and {exact_value} for the same numbers in float64"
    whole = np.ones(len(points[0].z), dtype=np.int64)
    assert np.array_equal(regularizer.prox(whole), regularizer.prox(whole.astype(np.float64))), (
        "prox of integers differs"
    )
    assert regularizer.value(whole.tolist()) == regularizer.value(whole.astype(np.float64)), "value of a list differs"


def _check_dual_form(regularizer: Regularizer, size: int, rng: np.random.Generator, tol: float) -> None:
    """Check the conjugate against `dual_form`, inside and outside of its domain."""
    form = regularizer.dual_form(size)
    for _ in range(20 if form is not None else 0):
        if isinstance(form, BoxDual):
            inside, claimed, outside = _box_points(form, rng)
        else:
            assert isinstance(form, SimplexDual), f"dual_form is {form!r}: a BoxDual, a SimplexDual or None"
            inside, claimed, outside = _simplex_points(form, rng)
        assert inside.shape == (size,), f"dual_form of {size} expectations has {inside.size} coordinates"
        conjugate = regularizer.conjugate(inside)
        assert abs(conjugate - claimed) <= tol * (1 + abs(claimed)), (
            f"conjugate({inside}) is {conjugate}, but dual_form says {claimed}"
        )
        for u in outside:
            assert regularizer.conjugate(u) == np.inf, f"dual_form excludes {u}, where conjugate is finite"


def _box_points(form: BoxDual, rng: np.random.Generator) -> tuple[Floats, float, list[Floats]]:
    lower = np.where(np.isfinite(form.lower), form.lower, np.minimum(form.upper, 0.0) - 5)
    upper = np.where(np.isfinite(form.upper), form.upper, np.maximum(form.lower, 0.0) + 5)
    u = rng.uniform(lower, upper)
    claimed = float(form.linear @ u + form.absolute @ np.abs(u) + form.ridge @ u**2 / 2)
    i = rng.integers(len(u))
    outside = []
    for bound, sign in ((form.lower[i], -1), (form.upper[i], 1)):
        if np.isfinite(bound):
            outside.append(np.where(np.arange(len(u)) == i, bound + 0.1 * sign, u))
    return u, claimed, outside


def _simplex_points(form: SimplexDual, rng: np.random.Generator) -> tuple[Floats, float, list[Floats]]:
    rows = rng.exponential(size=(len(form), form.n_classes))
    fixed = np.isfinite(form.total)
    rows[fixed] *= (form.total[fixed] / rows[fixed].sum(axis=1))[:, None]
    rows[np.isinf(form.ridge)] = 0.0
    squares = np.where(np.isinf(form.ridge), 0.0, form.ridge) @ rows.sum(axis=1) ** 2
    claimed = float(np.vdot(form.linear[form.row], rows) + squares / 2)
    u = rows.ravel()
    shift = np.zeros(len(u))
    shift[rng.integers(len(u))] = 1.1 * u.max()
    outside = [u - shift]
    if np.all(fixed):
        outside.append(u + shift)
    return u, claimed, outside


def _check_atoms(regularizer: Regularizer, points: Sequence[_Point], tol: float) -> None:
    """Check that the values of all atoms add up to the value of the regularizer."""
    size = len(points[0].z)
    atoms = regularizer.atoms(size)
    seen = np.concatenate([atom.index for atom in atoms])
    assert set(seen.tolist()) == set(range(size)), f"atoms see the coordinates {sorted(set(seen.tolist()))} of {size}"
    for atom in atoms:
        taken = atom.regularizer.size
        assert taken in (None, len(atom.index)), f"an atom takes {taken} expectations and sees {len(atom.index)}"
    for x in (*(p.v for p in points), *(p.z for p in points)):
        whole, parts = regularizer.value(x), [atom.regularizer.value(x[atom.index]) for atom in atoms]
        total = np.inf if np.inf in parts else sum(parts)
        assert total == whole or abs(total - whole) <= tol * (1 + abs(whole)), (
            f"value({x}) is {whole}, but its atoms add up to {total}"
        )


def _check_slack(regularizer: Regularizer, points: Sequence[_Point]) -> None:
    """Check that some slack is negative outside of the domain."""
    for x in (*(p.v for p in points), *(p.z for p in points)):
        slack = regularizer.slack(x)
        assert slack.shape == x.shape, f"slack of {len(x)} expectations has shape {slack.shape}"
        assert not np.any(np.isnan(slack)), f"slack({x}) is {slack}"
        if np.isinf(regularizer.value(x)):
            assert np.min(slack) < 0, f"value({x}) is inf, but no slack is negative: {slack}"
