"""Checks of every regularizer, and checks that detect broken ones.

The checks are those of `regbayes.testing.check_regularizer`. The second half of this file tests that each check can
fail.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.linalg import block_diag

from regbayes.regularization.dual_forms import BoxDual, SimplexDual
from regbayes.regularization.regularizers.base import Atom
from regbayes.regularizers import (
    KL,
    Affine,
    AtLeast,
    AtMost,
    Ball,
    EpsilonInsensitive,
    Equal,
    GeneralizedKL,
    Hinge,
    Interval,
    MultiClassHinge,
    MultiClassSquaredHinge,
    Regularizer,
    Ridge,
    Separable,
    Sum,
)
from regbayes.testing import check_regularizer
from regularizer_cases import COMBINED, COSTS, ELEMENTARY, SUMS

CLASSES = {
    KL, AtLeast, Affine, AtMost, Ball, EpsilonInsensitive, Equal, GeneralizedKL, Hinge, Interval, MultiClassHinge,
    MultiClassSquaredHinge, Ridge, Separable, Sum,
}  # fmt: skip


@pytest.mark.parametrize("name", [*ELEMENTARY, *COMBINED])
def test_elementary_regularizer_passes_checks(name):
    regularizer, size = (ELEMENTARY | COMBINED)[name]
    check_regularizer(regularizer, size, tol=1e-9)


@pytest.mark.parametrize("name", SUMS)
def test_sum_of_regularizers_passes_checks(name):
    regularizer, size = SUMS[name]
    check_regularizer(regularizer, size, tol=1e-7)


@pytest.mark.parametrize("name", [*ELEMENTARY, *COMBINED])
def test_prox_jacobian_matches_finite_differences(name):
    """Compare closed-form and default Jacobians with central differences."""
    regularizer, size = (ELEMENTARY | COMBINED)[name]
    block = regularizer.block_size or size
    rng, width, n_smooth = np.random.default_rng(3), 1e-6, 0
    for _ in range(40):
        x, step = (
            rng.choice([0.3, 1.0, 3.0]) * rng.normal(size=size),
            np.repeat(rng.uniform(0.1, 2, size // block), block),
        )
        moves = width * np.eye(size)
        up, down = (np.column_stack([regularizer.prox(x + sign * move, step) for move in moves]) for sign in (1, -1))
        at = regularizer.prox(x, step)[:, None]
        if not np.allclose(up - at, at - down, rtol=0, atol=1e-10):
            continue  # a kink
        n_smooth += 1
        exact = block_diag(*regularizer.prox_jacobian(x, step))
        np.testing.assert_allclose(exact, (up - down) / (2 * width), rtol=0, atol=2e-8)
        np.testing.assert_allclose(block_diag(*Regularizer.prox_jacobian(regularizer, x, step)), exact, atol=1e-5)
    assert n_smooth > 30


@pytest.mark.parametrize(
    ("regularizer", "x"),
    [
        (EpsilonInsensitive([0.4, -1.0], 0.0, 1.2), [0.4, -1.0]),
        (Ball([0.4, -1.0], 0.0), [0.4, -1.0]),
        (Ball([0.4, -1.0], 0.0, norm=1), [0.4, -1.0]),
        (Ball([0.4, -1.0], 0.0, norm=np.inf), [0.4, -1.0]),
        (Ball([0.4, -1.0], 0.0, C=0.9), [0.4, -1.0]),
        (Hinge(2.0, power=1.5), [0.0, 0.0]),
        (Equal(0.3), [0.3, 0.3]),
    ],
)
def test_prox_jacobian_is_zero_where_prox_is_constant(regularizer, x):
    assert not np.any(regularizer.prox_jacobian(x, 0.7))


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e9])
def test_default_prox_jacobian_is_unit_free(unit):
    target, x = unit * np.array([0.4, -1.0]), unit * np.array([1.3, 0.2])
    ball = Ball(target, 0.7 * unit)
    found = Regularizer.prox_jacobian(ball, x, unit**2)
    np.testing.assert_allclose(found, ball.prox_jacobian(x, unit**2), atol=1e-6)


def test_cases_cover_every_regularizer():
    import regbayes.regularizers as public

    exported = {getattr(public, name) for name in public.__all__} - {Regularizer}
    assert exported == CLASSES
    assert {type(regularizer) for regularizer, _ in (ELEMENTARY | COMBINED | SUMS).values()} == CLASSES


# Closed forms evaluated by hand.
@pytest.mark.parametrize(
    ("regularizer", "x", "value"),
    [
        (Hinge(2.0), [1.5, -3.0], 3.0),
        (Hinge(2.0, power=3), [2.0, 1.0], 18.0),
        (MultiClassHinge(2.0, [0.0, 1.0, 1.0]), [0.3, -0.5, -2.0], 1.0),
        (MultiClassHinge(2.0), [-1.0, -3.0], -2.0),
        (MultiClassSquaredHinge(2.0, [0.0, 1.0]), [0.1, 0.5], 4.5),
        (MultiClassSquaredHinge(2.0), [-1.0, -3.0], 0.0),
        (EpsilonInsensitive([1.0, 0.0], 0.5, 3.0), [2.0, 0.4], 1.5),
        (Ridge([1.0, 0.0], 0.5), [2.0, 2.0], 5.0),
        (Ball([0.0, 0.0], 1.0, norm=1, C=2.0), [1.0, -2.0], 4.0),
        (Ball([0.0, 0.0], 1.0, norm=2, C=2.0), [3.0, 4.0], 8.0),
        (Ball([0.0, 0.0], 1.0, norm=np.inf, C=2.0), [3.0, 4.0], 6.0),
        (KL([0.5, 0.5]), [0.25, 1.0], 0.0),
        (GeneralizedKL([1.0, 2.0]), [1.0, 2.0], 0.0),
        (GeneralizedKL([1.0]), [np.e], np.e - 2.0),
    ],
)
def test_values_match_hand_computed_ones(regularizer, x, value):
    assert regularizer.value(x) == pytest.approx(value, abs=1e-14)


@pytest.mark.parametrize(
    ("regularizer", "outside"),
    [
        (Hinge(np.inf), 0.1),
        (Equal(0.5), 0.50001),
        (AtMost(0.5), 0.6),
        (AtLeast(0.5), 0.4),
        (Ball(0.5, 0.1), 0.7),
        (EpsilonInsensitive(0.5, 0.1, np.inf), 0.39),
        (MultiClassHinge(np.inf, [0.3]), -0.2),
        (MultiClassSquaredHinge(np.inf, [0.3]), -0.2),
        (KL([0.5]), 0.0),
        (KL([0.5]), -0.1),
        (GeneralizedKL([0.5]), 0.0),
        (Hinge(np.inf).shift(0.2), 0.21),
        (AtLeast(0.2) + AtMost(0.3), 0.31),
    ],
)
def test_value_outside_domain_is_inf(regularizer, outside):
    assert regularizer.value([outside]) == np.inf


@pytest.mark.parametrize(
    "regularizer", [Hinge(2.0), Hinge(2.0, power=2), EpsilonInsensitive(0.3, 0.1, 2.0), Ridge(0.3)]
)
def test_elementary_regularizers_add_over_coordinates(regularizer):
    x = np.array([0.7, -2.0, 1.3])
    assert regularizer.value(x) == pytest.approx(sum(regularizer.value(xi) for xi in x), rel=1e-14)


def test_operators_build_combinations():
    x = [0.7, 0.2]
    assert (2 * Hinge() + Ridge(0.0)).value(x) == pytest.approx(2 * 0.9 + 0.265)
    with pytest.raises(TypeError):
        Hinge() + 1.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Hinge(0.0), "C must be a positive number, got 0.0"),
        (lambda: Hinge(-1.0), "C must be"),
        (lambda: Hinge(np.nan), "C must be"),
        (lambda: Hinge(1.0, power=0.5), "power must be at least 1"),
        (lambda: Hinge(1.0, power=np.inf), "power must be a positive number and finite"),
        (lambda: EpsilonInsensitive(0.0, -0.1), "epsilon must be a non-negative number"),
        (lambda: EpsilonInsensitive(np.nan), "target must be finite"),
        (lambda: Ball(0.0, -1.0), "radius must be a non-negative number"),
        (lambda: Ball(0.0, 1.0, norm=3), "norm must be 1, 2 or inf, got 3"),
        (lambda: Ridge(0.0, 0.0), "scale must be a positive number"),
        (lambda: Equal([[1.0]]), "target must be a number or a 1-D array"),
        (lambda: Equal([]), "target must be a number or a 1-D array"),
        (lambda: AtMost(np.inf), "bound must be finite"),
        (lambda: KL([0.5, -0.5]), "target must be non-negative"),
        (lambda: KL([0.0, 0.0]), "target must be non-negative with at least one positive"),
        (lambda: MultiClassHinge(1.0, np.zeros((1, 2, 3))), "cost must have shape"),
        (lambda: MultiClassHinge(1.0, [0.0, np.inf]), "cost must be finite"),
        (lambda: Affine(Hinge(), 0.0), "factor must be a positive number"),
        (lambda: Sum([]), "parts must be a non-empty list"),
        (lambda: Sum([Hinge(), 3.0]), "parts must be a non-empty list of regularizers"),
        (lambda: Sum([Equal([1.0, 2.0]), Equal([1.0, 2.0, 3.0])]), "different numbers of expectations"),
        (lambda: Separable([]), "parts must be a non-empty list"),
        (lambda: Separable([Hinge()]), "sizes is needed"),
        (lambda: Separable([Hinge(), 3.0], [1, 1]), "parts must be a non-empty list of regularizers"),
        (lambda: Separable([Hinge()], [1, 2]), "sizes must have one entry per part"),
        (lambda: Separable([Equal([1.0, 2.0])], [3]), "different numbers of expectations"),
        (lambda: Affine(Hinge(), scale=0.0), "scale must not be zero"),
        (lambda: Affine(Ball(0.0, 1.0), scale=[1.0, 2.0]), "scale needs equal magnitudes"),
        (lambda: Affine(Equal([1.0, 2.0]), offset=[1.0, 2.0, 3.0]), "different numbers of expectations"),
        (lambda: Separable([Hinge()], [2]).value([1.0]), "take 2 expectations, got 1"),
    ],
)
def test_invalid_parameters_raise_informative_error(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# Tests of the checks: the matching check must fail for each broken regularizer.


class _Broken(Regularizer):
    """A hinge of which subclasses break one method."""

    inner: Regularizer = Hinge(0.8)

    def value(self, x):
        return self.inner.value(x)

    def conjugate(self, u):
        return self.inner.conjugate(u)

    def prox(self, x, step=1.0):
        return self.inner.prox(x, step)

    def clip_dual(self, u):
        return self.inner.clip_dual(u)

    def dual_form(self, size):
        return self.inner.dual_form(size)

    def slack(self, x):
        return self.inner.slack(x)


def _overwrite(g, x, step=1.0):
    x[...] = g.inner.prox(x, step)
    return x.copy()


def _bump(g, x):
    """Add a bump that misses the suite's proximal points but not its chords."""
    x = np.atleast_1d(np.asarray(x, dtype=np.float64))
    return g.inner.value(x) + float(np.sum(np.maximum(0.0, 4.0 - np.abs(x - 22.0))))


def _expanded(g, x):
    x = np.asarray(x, dtype=np.float64)
    return float(0.5 * (x @ x) - 0.3 * x.sum() + 0.045 * x.size)


def _other_simplex(g, size):
    return SimplexDual(np.zeros((1, size)), np.zeros(1, dtype=np.int64), np.array([0.6]), np.zeros(1))


NO_FORM = {"dual_form": lambda g, size: None}
BROKEN = {
    "conjugate has a wrong scale": (
        {"inner": Hinge(0.8, power=2), "conjugate": lambda g, u: 0.5 * g.inner.conjugate(u)},
        "Fenchel-Young inequality fails",
    ),
    "conjugate is too large": (
        {"conjugate": lambda g, u: g.inner.conjugate(u) + 1e-3},
        "Fenchel-Young equality fails",
    ),
    "conjugate is never infinite": ({"conjugate": lambda g, u: 0.0}, "the supremum that defines it is at least"),
    "conjugate has too small a domain": (
        {"conjugate": lambda g, u: np.inf if np.any(np.asarray(u) > 0.7) else g.inner.conjugate(u)},
        "is a subgradient at prox",
    ),
    "prox ignores the step": (
        {"prox": lambda g, x, step=1.0: g.inner.prox(x)},
        "is a subgradient at prox|Fenchel-Young",
    ),
    "prox leaves the domain": (
        {"inner": AtMost(0.3), "prox": lambda g, x, step=1.0: np.asarray(x) - 0.0, **NO_FORM},
        "prox must land in the domain",
    ),
    "prox overwrites": ({"prox": _overwrite}, "prox wrote into its argument"),
    "prox in double precision": (
        {"prox": lambda g, x, step=1.0: g.inner.prox(x, step).astype(np.float64)},
        "prox of a float32 array is float64",
    ),
    "prox is too coarse": (
        {"prox": lambda g, x, step=1.0: g.inner.prox(x, step) + 1e-5 * (np.asarray(x) > 0)},
        "Fenchel-Young equality fails",
    ),
    "value is not convex": ({"value": _bump}, "value is not convex"),
    "value is NaN at infinity": ({"inner": Ridge(0.3), "value": _expanded, **NO_FORM}, "is nan"),
    "value is finite at infinity": (
        {"value": lambda g, x: 0.0 if np.any(np.isinf(x)) else g.inner.value(x)},
        "grows without bound",
    ),
    "blocks interact": (
        {"inner": Ball(0.0, 0.2), **NO_FORM},
        "Fenchel-Young|prox of the first block changes|prox must land",
    ),
    "Jacobian ignores the step": (
        {"inner": Ridge(0.3), "prox_jacobian": lambda g, x, step=1.0: g.inner.prox_jacobian(x)},
        "differences of prox are",
    ),
    "Jacobian of the conjugate": (
        {"prox_jacobian": lambda g, x, step=1.0: 1 - g.inner.prox_jacobian(x, step)},
        "differences of prox are",
    ),
    "Jacobian is too large": (
        {"prox_jacobian": lambda g, x, step=1.0: 1.5 * g.inner.prox_jacobian(x, step)},
        "must lie between 0 and 1",
    ),
    "Jacobian as a diagonal": (
        {"prox_jacobian": lambda g, x, step=1.0: g.inner.prox_jacobian(x, step).ravel()},
        r"prox_jacobian of 2 expectations in blocks of 1 has shape \(2,\)",
    ),
    "Jacobian is not symmetric": (
        {"block_size": None, "prox_jacobian": lambda g, x, step=1.0: np.array([[[0.5, 0.2], [0.0, 0.5]]])},
        "is not symmetric",
    ),
    "dual form of another": (
        {"dual_form": lambda g, n: replace(g.inner.dual_form(n), low=np.full(n, 0.1), high=np.full(n, 0.1))},
        "dual_form says",
    ),
    "dual form is too narrow": (
        {"dual_form": lambda g, n: replace(g.inner.dual_form(n), upper=np.full(n, 0.4))},
        "dual_form excludes",
    ),
    "simplex of another total": (
        {"inner": MultiClassHinge(0.7), "block_size": None, "dual_form": _other_simplex},
        "dual_form says",
    ),
    "clip_dual moves": (
        {"inner": Ridge(0.3), "clip_dual": lambda g, u: np.clip(u, -0.5, 0.5), **NO_FORM},
        "Fenchel-Young|clip_dual moves",
    ),
    "atoms forget one": ({"atoms": lambda g, n: [Atom(g, np.arange(n - 1))]}, "atoms see the coordinates"),
    "atoms count twice": (
        {"atoms": lambda g, n: [Atom(g, np.arange(n)), Atom(g, np.arange(1))]},
        "its atoms add up to",
    ),
    "slack without sign": (
        {"inner": AtMost(0.3), "slack": lambda g, x: np.abs(g.inner.slack(x))},
        "no slack is negative",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_check_regularizer_detects_broken_method(name):
    methods, message = BROKEN[name]
    with pytest.raises(AssertionError, match=message):
        check_regularizer(type("Broken", (_Broken,), methods)(), 2)


def test_check_regularizer_passes_valid_user_regularizer():
    check_regularizer(_Broken(), 2)


def test_check_regularizer_wrong_size_raises():
    with pytest.raises(AssertionError, match="size is 2, so it cannot be checked on 3"):
        check_regularizer(Equal([1.0, 2.0]), 3)


def test_dual_form_returns_box_or_simplex():
    assert isinstance(Hinge(0.5).shift(0.2).dual_form(3), BoxDual)
    assert isinstance(MultiClassHinge(0.5, COSTS[0]).shift(0.2).dual_form(3), SimplexDual)
    assert Hinge(1.0, power=1.5).dual_form(1) is None
    assert MultiClassHinge(0.5, COSTS[0]).reflect().dual_form(3) is None
    assert Ball(0.0, 1.0).dual_form(2) is None


class Bounded(Regularizer):
    """Hard ``x <= 1``; subclasses break its boundary."""

    def value(self, x):
        return AtMost(1.0).value(x)

    def conjugate(self, u):
        return AtMost(1.0).conjugate(u)

    def prox(self, x, step=1.0):
        return AtMost(1.0).prox(x, step)

    def clip_dual(self, u):
        return np.maximum(u, 0.0)

    def slack(self, x):
        return AtMost(1.0).slack(x)


class TooWide(Bounded):
    def value(self, x):
        return 0.0 if np.all(np.asarray(x) <= 1.001) else np.inf


class Open(Bounded):
    def value(self, x):
        return 0.0 if np.all(np.asarray(x) < 1.0) else np.inf

    def prox(self, x, step=1.0):
        below = super().prox(x, step)
        return np.minimum(below, np.asarray(1 - 1e-9 if below.dtype == np.float64 else 1 - 1e-7, dtype=below.dtype))


class NearlyInfinite(Bounded):
    def conjugate(self, u):
        exact = super().conjugate(u)
        return 1e10 if np.isinf(exact) and np.all(np.isfinite(np.asarray(u, dtype=float))) else exact


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("wrong", [TooWide(), Open(), NearlyInfinite()], ids=lambda g: type(g).__name__)
def test_check_regularizer_detects_wrong_boundary(wrong, size):
    check_regularizer(Bounded(), size)
    with pytest.raises(AssertionError):
        check_regularizer(wrong, size)
