"""Checks of every regularizer, and checks that detect broken ones.

The checks are those of `regbayes.testing.check_regularizer`. The second half of this file tests that each check can
fail.
"""

from __future__ import annotations

from dataclasses import replace
from typing import final

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


@final
class _WrongScaleOfConjugate(_Broken):
    inner = Hinge(0.8, power=2)

    def conjugate(self, u):
        return 0.5 * self.inner.conjugate(u)


@final
class _ConjugateTooLarge(_Broken):
    def conjugate(self, u):
        return self.inner.conjugate(u) + 1e-3


@final
class _ConjugateNeverInfinite(_Broken):
    def conjugate(self, u):
        return 0.0


@final
class _ConjugateTooSmallADomain(_Broken):
    def conjugate(self, u):
        return np.inf if np.any(np.asarray(u) > 0.7) else self.inner.conjugate(u)


@final
class _ProxIgnoresTheStep(_Broken):
    def prox(self, x, step=1.0):
        return self.inner.prox(x)


@final
class _ProxLeavesTheDomain(_Broken):
    inner = AtMost(0.3)

    def prox(self, x, step=1.0):
        return np.asarray(x) - 0.0

    def dual_form(self, size):
        return None


@final
class _ProxOverwrites(_Broken):
    def prox(self, x, step=1.0):
        x[...] = self.inner.prox(x, step)
        return x.copy()


@final
class _ProxInDoublePrecision(_Broken):
    def prox(self, x, step=1.0):
        return self.inner.prox(x, step).astype(np.float64)


@final
class _ProxTooCoarse(_Broken):
    def prox(self, x, step=1.0):
        return np.where(np.asarray(x) > 0, self.inner.prox(x, step) + 1e-5, self.inner.prox(x, step))


@final
class _NotConvex(_Broken):
    """A bump that misses the suite's proximal points but not its chords."""

    def value(self, x):
        x = np.atleast_1d(np.asarray(x, dtype=np.float64))
        return self.inner.value(x) + float(np.sum(np.maximum(0.0, 4.0 - np.abs(x - 22.0))))


@final
class _NanAtInfinity(_Broken):
    inner = Ridge(0.3)

    def value(self, x):
        x = np.asarray(x, dtype=np.float64)
        return float(0.5 * (x @ x) - 0.3 * x.sum() + 0.045 * x.size)

    def dual_form(self, size):
        return None


@final
class _FiniteAtInfinity(_Broken):
    def value(self, x):
        return 0.0 if np.any(np.isinf(x)) else self.inner.value(x)


@final
class _BlocksThatInteract(_Broken):
    inner = Ball(0.0, 0.2)

    def dual_form(self, size):
        return None


@final
class _JacobianIgnoresTheStep(_Broken):
    inner = Ridge(0.3)

    def prox_jacobian(self, x, step=1.0):
        return self.inner.prox_jacobian(x)


@final
class _JacobianOfTheConjugate(_Broken):
    def prox_jacobian(self, x, step=1.0):
        return 1 - self.inner.prox_jacobian(x, step)


@final
class _JacobianTooLarge(_Broken):
    def prox_jacobian(self, x, step=1.0):
        return 1.5 * self.inner.prox_jacobian(x, step)


@final
class _JacobianAsDiagonal(_Broken):
    def prox_jacobian(self, x, step=1.0):
        return self.inner.prox_jacobian(x, step).ravel()


@final
class _JacobianNotSymmetric(_Broken):
    block_size = None

    def prox_jacobian(self, x, step=1.0):
        return np.array([[[0.5, 0.2], [0.0, 0.5]]])


@final
class _DualFormOfAnother(_Broken):
    def dual_form(self, size):
        return replace(self.inner.dual_form(size), low=np.full(size, 0.1), high=np.full(size, 0.1))


@final
class _DualFormTooNarrow(_Broken):
    def dual_form(self, size):
        return replace(self.inner.dual_form(size), upper=np.full(size, 0.4))


@final
class _SimplexOfAnotherTotal(_Broken):
    inner = MultiClassHinge(0.7)
    block_size = None

    def dual_form(self, size):
        return SimplexDual(np.zeros((1, size)), np.zeros(1, dtype=np.int64), np.array([0.6]), np.zeros(1))


@final
class _ClipDualMoves(_Broken):
    inner = Ridge(0.3)

    def clip_dual(self, u):
        return np.clip(u, -0.5, 0.5)

    def dual_form(self, size):
        return None


@final
class _AtomsForgetOne(_Broken):
    def atoms(self, size):
        return [Atom(self, np.arange(size - 1))]


@final
class _AtomsCountTwice(_Broken):
    def atoms(self, size):
        return [Atom(self, np.arange(size)), Atom(self, np.arange(1))]


@final
class _SlackWithoutSign(_Broken):
    inner = AtMost(0.3)

    def slack(self, x):
        return np.abs(self.inner.slack(x))


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (_WrongScaleOfConjugate, "Fenchel-Young inequality fails"),
        (_ConjugateTooLarge, "Fenchel-Young equality fails"),
        (_ConjugateNeverInfinite, "the supremum that defines it is at least"),
        (_ConjugateTooSmallADomain, "is a subgradient at prox"),
        (_ProxIgnoresTheStep, "is a subgradient at prox|Fenchel-Young"),
        (_ProxLeavesTheDomain, "prox must land in the domain"),
        (_ProxOverwrites, "prox wrote into its argument"),
        (_ProxInDoublePrecision, "prox of a float32 array is float64"),
        (_ProxTooCoarse, "Fenchel-Young equality fails"),
        (_NotConvex, "value is not convex"),
        (_NanAtInfinity, "is nan"),
        (_FiniteAtInfinity, "grows without bound"),
        (_BlocksThatInteract, "Fenchel-Young|prox of the first block changes|prox must land"),
        (_JacobianIgnoresTheStep, "differences of prox are"),
        (_JacobianOfTheConjugate, "differences of prox are"),
        (_JacobianTooLarge, "must lie between 0 and 1"),
        (_JacobianAsDiagonal, r"prox_jacobian of 2 expectations in blocks of 1 has shape \(2,\)"),
        (_JacobianNotSymmetric, "is not symmetric"),
        (_DualFormOfAnother, "dual_form says"),
        (_DualFormTooNarrow, "dual_form excludes"),
        (_SimplexOfAnotherTotal, "dual_form says"),
        (_ClipDualMoves, "Fenchel-Young|clip_dual moves"),
        (_AtomsForgetOne, "atoms see the coordinates"),
        (_AtomsCountTwice, "its atoms add up to"),
        (_SlackWithoutSign, "no slack is negative"),
    ],
)
def test_check_regularizer_detects_broken_method(broken, message):
    with pytest.raises(AssertionError, match=message):
        check_regularizer(broken(), 2)


def test_check_regularizer_passes_valid_user_regularizer():
    check_regularizer(_Broken(), 2)


def test_check_regularizer_wrong_size_raises():
    with pytest.raises(AssertionError, match="size is 2, so it cannot be checked on 3"):
        check_regularizer(Equal([1.0, 2.0]), 3)


def test_dual_form_returns_box_or_simplex():
    assert isinstance(Separable([Hinge(0.5), Equal(0.3)], [2, 1]).dual_form(3), BoxDual)
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
