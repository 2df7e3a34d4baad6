"""Base class of regularizers, closed convex functions g of expectations.

A regularizer defines ``value``, which is g, its Fenchel conjugate ``conjugate``, which the dual problem contains, and
its proximal map ``prox``, which the solver uses, docs/math.md eq. (4)-(6). Functions are ``inf`` outside their domain.
Concrete classes are final: variations are wrappers (`combinations`), not subclasses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from regbayes._types import Floats, Reals
from regbayes.regularization.dual_forms import BoxDual, SimplexDual, add

if TYPE_CHECKING:
    from regbayes.regularization.regularizers.combinations import Affine, Sum


@dataclass(frozen=True)
class Atom:
    """An elementary regularizer and the expectations that it applies to."""

    regularizer: Regularizer
    index: NDArray[np.intp]  # (size,)


class Regularizer(ABC):
    """A closed convex function of a vector of expectations.

    A subclass defines `value`, `conjugate` and `prox`. `block_size` declares which coordinates are independent of
    each other, and `size` how many there are. Everything else has a default. See docs/adding_a_regularizer.md for
    an example.

    Examples
    --------
    Regularizers can be shifted, multiplied and added:

    >>> from regbayes.regularizers import AtLeast, Hinge
    >>> g = 2.0 * Hinge().shift(1.0) + AtLeast(0.0)
    >>> g.value([1.5]), g.value([-1.0])
    (1.0, inf)
    """

    _targets: ClassVar[tuple[str, ...]] = ()  # names of the attributes in units of the expectations

    @property
    def size(self) -> int | None:
        """Number of coordinates; None for any number."""
        return common_size([size_of(getattr(self, name)) for name in self._targets], " and ".join(self._targets))

    @property
    def block_size(self) -> int | None:
        """Length of independent blocks of coordinates: 1 if separable, None for one block."""
        return 1

    @abstractmethod
    def value(self, x: ArrayLike) -> float:
        """Return g(x), ``inf`` off the domain."""

    @abstractmethod
    def conjugate(self, u: ArrayLike) -> float:
        """Return ``g*(u) = sup_x <u, x> - g(x)``, ``inf`` off its domain."""

    @abstractmethod
    def prox(self, x: ArrayLike, step: ArrayLike = 1.0) -> Reals:
        """Return ``argmin_v g(v) + sum_i (v_i - x_i)^2 / (2 step_i)``; blocks share a step."""

    def prox_jacobian(self, x: ArrayLike, step: ArrayLike = 1.0) -> Floats:
        """Return the Jacobian of `prox` at x, shape (blocks, block_size, block_size).

        Entry ``[k, i, j]`` is the derivative of the block's i-th coordinate by its j-th. At a kink, any limit
        of nearby Jacobians is valid. This default uses finite differences, with about seven digits and one call
        of `prox` for each position in a block; the package's own regularizers have closed forms.
        """
        x = as_floats(x).astype(np.float64)
        t = np.broadcast_to(np.asarray(step, dtype=np.float64), x.shape)
        width = DIFFERENCE * (np.abs(x) + np.sqrt(t))  # the square root of a step has the units of x
        b = self.block_size or x.size
        jacobian = np.empty((x.size // b, b, b))
        at = self.prox(x, t)
        for j in range(b):
            moved = x.copy()
            moved[j::b] += width[j::b]
            jacobian[:, :, j] = (self.prox(moved, t) - at).reshape(-1, b) / (moved - x)[j::b, None]
        return jacobian

    def clip_dual(self, u: Floats) -> Floats:
        """Project u onto the conjugate's domain to remove rounding."""
        return u

    def dual_form(self, size: int) -> BoxDual | SimplexDual | None:
        """Return the conjugate as a box or a simplex, or None."""
        return None

    def dual_model(self, u: Floats) -> BoxDual | None:
        """Return the conjugate's quadratic model about u as a box."""
        form = self.dual_form(len(u))
        return form if isinstance(form, BoxDual) else None

    def fenchel_young(self, x: Floats, u: Floats) -> float:
        """Return ``g(x) + g*(u) - <u, x>``, nonnegative; subclasses avoid cancellation."""
        return add(self.value(x), self.conjugate(u), -float(u @ x))

    def dual_start(self, size: int) -> Floats:
        """Return a starting point in the conjugate's domain: a subgradient at the target."""
        return self.clip_dual(np.zeros(size))

    def domain(self, size: int) -> tuple[Floats, Floats]:
        """Return the domain of each coordinate, infinite if coordinates interact.

        An open end is returned as the next floating-point number inside. This default uses the dual form if
        there is one, and otherwise the proximal map of distant points.
        """
        form = self.dual_form(size)
        if form is not None:
            return form.domain()
        if self.block_size != 1:
            return np.full(size, -np.inf), np.full(size, np.inf)
        low, high = (np.asarray(self.prox(np.full(size, side), TINY_STEP), dtype=np.float64) for side in (-FAR, FAR))
        return np.where(low > -FAR / 2, low, -np.inf), np.where(high < FAR / 2, high, np.inf)

    def shift(self, by: float | Floats) -> Regularizer:
        """Return ``g(x - by)``, for instance a hinge around a bound.

        Targets are shifted instead of x, which preserves digits far from zero.
        """
        if not self._targets:
            return self._affine(offset=-np.asarray(by, dtype=np.float64))
        moved = copy(self)
        for name in self._targets:
            setattr(moved, name, getattr(self, name) + np.asarray(by))
        return moved

    def reflect(self, about: ArrayLike = 0.0) -> Regularizer:
        """Return ``g(about - x)``, for instance a hinge on values below a bound."""
        return self._affine(scale=-1.0, offset=about)

    def rescale(self, scale: Floats) -> Regularizer:
        """Return ``g(scale * x)``, with scales that are equal within a block."""
        return self._affine(scale=scale)

    def atoms(self, size: int) -> list[Atom]:
        """Split into elementary regularizers with their coordinates."""
        return [Atom(self, np.arange(size))]

    def slack(self, x: ArrayLike) -> Floats:
        """Return how far each coordinate lies inside the domain (negative outside)."""
        x = as_floats(x)
        outside = np.abs(x - self.prox(x, TINY_STEP)).astype(np.float64)
        return np.where(outside > 0, -outside, np.inf)

    def __repr__(self) -> str:
        shown = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        with np.printoptions(precision=4, threshold=6):
            arguments = ", ".join(f"{name}={_bare(value)}" for name, value in shown.items())
        return f"{type(self).__name__}({arguments})"

    def __add__(self, other: Regularizer) -> Sum:
        """Return the pointwise sum of two regularizers of the same expectations."""
        from regbayes.regularization.regularizers.combinations import Sum

        if not isinstance(other, Regularizer):
            return NotImplemented
        return Sum([self, other])

    def __mul__(self, factor: float) -> Affine:
        """Return ``factor * g``."""
        return self._affine(factor=factor)

    __rmul__ = __mul__

    def _affine(self, **units: Any) -> Affine:
        from regbayes.regularization.regularizers.combinations import Affine

        return Affine(self, **units)


class DualFormRegularizer(Regularizer):
    """A regularizer defined by its dual form, from which all methods are computed."""

    @abstractmethod
    def dual_form(self, size: int) -> BoxDual | SimplexDual: ...

    def value(self, x: ArrayLike) -> float:
        x = as_floats(x).astype(np.float64)
        return add(*self.dual_form(x.size).values(x).tolist())

    def conjugate(self, u: ArrayLike) -> float:
        u = as_floats(u).astype(np.float64)
        with np.errstate(invalid="ignore"):
            return self.dual_form(u.size).conjugate(u)

    def prox(self, x: ArrayLike, step: ArrayLike = 1.0) -> Reals:
        x = as_floats(x)
        return like(self.dual_form(x.size).prox(x.astype(np.float64), np.asarray(step, dtype=np.float64)), x)

    def prox_jacobian(self, x: ArrayLike, step: ArrayLike = 1.0) -> Floats:
        x = as_floats(x).astype(np.float64)
        return self.dual_form(x.size).prox_jacobian(x, np.asarray(step, dtype=np.float64))

    def clip_dual(self, u: Floats) -> Floats:
        return self.dual_form(u.size).clip(u)

    def dual_start(self, size: int) -> Floats:
        return self.dual_form(size).start()

    def slack(self, x: ArrayLike) -> Floats:
        x = as_floats(x).astype(np.float64)
        return self.dual_form(x.size).slack(x)


class FromDual(DualFormRegularizer):
    """A regularizer given by its dual form alone, such as the quadratic model of another one."""

    def __init__(self, form: BoxDual | SimplexDual) -> None:
        self.form = form

    def dual_form(self, size: int) -> BoxDual | SimplexDual:
        return self.form


ROUNDING = 64 * float(np.finfo(np.float64).eps)


def _bare(value: object) -> str:
    """Return a one-element array as a number."""
    if isinstance(value, np.ndarray):
        return f"{value.item():.4g}" if value.size == 1 else str(value)
    return f"{value:g}" if isinstance(value, float) else repr(value)


DIFFERENCE = 1e-7  # relative width of a finite difference
FAR = 1e150  # a distant point, which the proximal map moves into a bounded domain
TINY_STEP = 1e-14  # a proximal step that moves a point onto the domain and changes it little otherwise


def as_floats(x: ArrayLike) -> Reals:
    """Return x as a 1-D floating array, float32 kept."""
    array = np.atleast_1d(np.asarray(x))
    if not np.issubdtype(array.dtype, np.floating):
        array = array.astype(np.float64)
    return array


def like(result: Reals, x: Reals) -> Reals:
    """Return the result in the precision of the input."""
    return result.astype(x.dtype, copy=False)


def diagonal_blocks(diagonal: ArrayLike, x: Reals) -> Floats:
    """Return the Jacobian of a separable map, shape (size, 1, 1)."""
    return np.broadcast_to(np.asarray(diagonal, dtype=np.float64), x.shape).reshape(-1, 1, 1)


def hard_excess(excess: Floats, scale: ArrayLike) -> Floats:
    """Return the distance of a point from a set, zero if within rounding."""
    return np.where(excess > ROUNDING * np.asarray(scale, dtype=np.float64), excess, 0.0)


def check_positive(name: str, value: float, *, allow_zero: bool = False, allow_inf: bool = False) -> float:
    """Return ``value`` as a positive float, or raise."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a number, got {value!r}") from None
    good = number > 0 or (allow_zero and number == 0)
    if not good or np.isnan(number) or (np.isinf(number) and not allow_inf):
        sign = "non-negative" if allow_zero else "positive"
        raise ValueError(f"{name} must be a {sign} number{'' if allow_inf else ' and finite'}, got {value!r}")
    return number


def check_penalties(name: str, value: ArrayLike) -> float | Floats:
    """Return a positive penalty as a float, or nonnegative ones as an array."""
    if np.ndim(value) == 0:
        return check_positive(name, value, allow_inf=True)  # type: ignore[arg-type]
    penalties = np.array(value, dtype=np.float64)
    if penalties.ndim != 1 or penalties.size == 0 or not np.all(penalties >= 0):
        raise ValueError(f"{name} must be a positive number, or a 1-D array of numbers that are not negative")
    return penalties


def check_target(name: str, value: ArrayLike) -> Floats:
    """Return a finite 1-D target (a scalar broadcasts over all coordinates)."""
    try:
        target = np.atleast_1d(np.asarray(value, dtype=np.float64))
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a number or a 1-D array of numbers, got {value!r}") from None
    if target.ndim != 1 or target.size == 0:
        raise ValueError(f"{name} must be a number or a 1-D array, got shape {np.shape(value)}")
    if not np.all(np.isfinite(target)):
        raise ValueError(f"{name} must be finite, got {value!r}")
    return target


def common_size(sizes: Sequence[int | None], what: str) -> int | None:
    """Return the common number of coordinates among ``sizes``, None if all are None."""
    known = {s for s in sizes if s is not None}
    if len(known) > 1:
        raise ValueError(f"{what} take different numbers of expectations: {sorted(known)}")
    return known.pop() if known else None


def size_of(target: Floats) -> int | None:
    """Return the size of a target; None for one element, which broadcasts."""
    return None if target.size == 1 else target.size
