"""Regularizers composed of others: sums, concatenations and affine maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar, final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import block_diag

from regbayes._registry import persistable
from regbayes._types import Floats, Reals
from regbayes.regularization.dual_forms import BoxDual, SimplexDual, add, dot
from regbayes.regularization.regularizers.base import (
    TINY_STEP,
    Atom,
    Regularizer,
    as_floats,
    check_positive,
    check_target,
    common_size,
    like,
    size_of,
)

if TYPE_CHECKING:
    from regbayes.regularization.composite import Stack

AnyFloat = TypeVar("AnyFloat", bound=np.floating)


@final
@persistable
class Sum(Regularizer):
    """``sum_i g_i(x)``: several regularizers of the same expectations.

    The dual solver uses separate multipliers for each part, and never the conjugate of the sum. `conjugate` and
    `prox` here are numerical, with a relative accuracy of about 1e-8.

    Examples
    --------
    >>> from regbayes import Gaussian, regularize
    >>> from regbayes.regularizers import AtMost, Ridge, Sum
    >>> regularize(Gaussian(1.0, [1.0]), [1.0], Sum([Ridge(9.0), AtMost(3.0)])).after.round(3)
    array([3.])
    >>> AtMost(3.0) + Ridge(9.0)
    Sum(parts=[AtMost(bound=3), Ridge(target=9, scale=1)])
    """

    def __init__(self, parts: Sequence[Regularizer]) -> None:
        self.parts = list(parts)
        if not self.parts or not all(isinstance(part, Regularizer) for part in self.parts):
            raise ValueError("parts must be a non-empty list of regularizers")
        self._size = common_size([part.size for part in self.parts], "the parts of a Sum")

    @property
    def size(self) -> int | None:
        return self._size

    @property
    def block_size(self) -> int | None:
        blocks = {part.block_size for part in self.parts}
        return blocks.pop() if len(blocks) == 1 else None

    def value(self, x: ArrayLike) -> float:
        return add(*(part.value(x) for part in self.parts))

    def conjugate(self, u: ArrayLike) -> float:
        from regbayes.regularization.composite import conjugate_of

        u = as_floats(u).astype(np.float64)
        if not np.all(np.isfinite(u)):  # all of u to one part is a valid split, and sufficient for infinite u
            zero = [part.conjugate(np.zeros_like(u)) for part in self.parts]
            return min(add(part.conjugate(u), *zero[:i], *zero[i + 1 :]) for i, part in enumerate(self.parts))
        # Proximal points of sup_x <u, x> - g(x). The rest of u minus the shares tends to its distance from the domain.
        stack = self._stack(u.size)
        x, step, shares = np.zeros_like(u), 1.0, np.zeros(len(stack))
        for _ in range(12):
            shares = _share_out(stack, x + step * u, np.full(u.shape, step), shares)
            lacking = u - stack.add_up(shares)
            x = x + step * lacking
            if np.max(np.abs(lacking)) <= 1e-9 * (1 + np.max(np.abs(u))):
                return add(dot(lacking, x), conjugate_of(stack.pieces, shares))
            step = min(10 * step, 1e8)
        return np.inf

    def prox(self, x: ArrayLike, step: ArrayLike = 1.0) -> Reals:
        x = as_floats(x)
        t = np.broadcast_to(np.asarray(step, dtype=np.float64), x.shape)
        stack = self._stack(x.size)
        shares = _share_out(stack, x.astype(np.float64), t, np.zeros(len(stack)))
        return like(self._onto_domain(x - t * stack.add_up(shares)), x)

    def _stack(self, size: int) -> Stack:
        from regbayes.regularization.composite import Stack

        return Stack.of(self, size)

    def _onto_domain(self, x: Floats) -> Floats:
        """Remove rounding that leaves a point 1e-12 outside a hard part."""
        for _ in range(10):
            outside = [part for part in self.parts if np.isinf(part.value(x))]
            if not outside:
                break
            for part in outside:
                x = part.prox(x, TINY_STEP).astype(np.float64)
        return x

    def atoms(self, size: int) -> list[Atom]:
        return [atom for part in self.parts for atom in part.atoms(size)]

    def slack(self, x: ArrayLike) -> Floats:
        least: Floats = np.min([part.slack(x) for part in self.parts], axis=0)
        return least


def _share_out(stack: Stack, x: Floats, step: Floats, start: Floats) -> Floats:
    """Split ``(x - prox(x)) / step`` among the atoms; return the stacked shares."""
    from regbayes.regularization.composite import minimize_composite

    index = stack.index
    hessian = np.where(index[:, None] == index[None, :], step[index][:, None], 0.0)
    return minimize_composite(hessian, -x[index], stack.pieces, start)[0]


@final
@persistable
class Separable(Regularizer):
    """``sum_b g_b(x_b)``: each regularizer applies to consecutive expectations.

    Parameters
    ----------
    parts : sequence of Regularizer
    sizes : sequence of int, default=None
        Number of expectations of each part; required for parts without a fixed size.

    Examples
    --------
    >>> from regbayes import Gaussian, regularize
    >>> from regbayes.regularizers import AtMost, Equal, Separable
    >>> g = Separable([Equal(2.0), AtMost(3.0)], sizes=[1, 1])
    >>> regularize(Gaussian([1.0, 4.0], [1.0, 1.0]), [[1.0, 0.0], [0.0, 1.0]], g).after.round(3)
    array([2., 3.])
    """

    def __init__(self, parts: Sequence[Regularizer], sizes: Sequence[int] | None = None) -> None:
        self.parts = list(parts)
        if not self.parts or not all(isinstance(part, Regularizer) for part in self.parts):
            raise ValueError("parts must be a non-empty list of regularizers")
        own = [part.size for part in self.parts]
        if sizes is not None and len(sizes) != len(own):
            raise ValueError(f"sizes must have one entry per part, got {len(sizes)} for {len(own)} parts")
        resolved = [
            common_size([a, b], "a part and its entry in sizes") for a, b in zip(own, sizes or own, strict=True)
        ]
        if any(s is None for s in resolved):
            raise ValueError("sizes is needed: a part takes any number of expectations")
        self.sizes = [int(s) for s in resolved if s is not None]

    @property
    def size(self) -> int:
        return sum(self.sizes)

    @property
    def block_size(self) -> int | None:
        return 1 if all(part.block_size == 1 for part in self.parts) else None

    def _split(self, x: NDArray[AnyFloat]) -> list[NDArray[AnyFloat]]:
        if x.size != self.size:
            raise ValueError(f"these parts take {self.size} expectations, got {x.size}")
        return np.split(x, np.cumsum(self.sizes)[:-1])

    def value(self, x: ArrayLike) -> float:
        return add(*(part.value(run) for part, run in zip(self.parts, self._split(as_floats(x)), strict=True)))

    def conjugate(self, u: ArrayLike) -> float:
        return add(*(part.conjugate(run) for part, run in zip(self.parts, self._split(as_floats(u)), strict=True)))

    def prox(self, x: ArrayLike, step: ArrayLike = 1.0) -> Reals:
        x = as_floats(x)
        steps = self._split(np.broadcast_to(np.asarray(step, dtype=np.float64), x.shape))
        runs = zip(self.parts, self._split(x), steps, strict=True)
        return np.concatenate([part.prox(run, t) for part, run, t in runs])

    def prox_jacobian(self, x: ArrayLike, step: ArrayLike = 1.0) -> Floats:
        x = as_floats(x)
        steps = self._split(np.broadcast_to(np.asarray(step, dtype=np.float64), x.shape))
        runs = zip(self.parts, self._split(x), steps, strict=True)
        blocks = [block for part, run, t in runs for block in part.prox_jacobian(run, t)]
        return np.stack(blocks) if self.block_size == 1 else np.asarray(block_diag(*blocks))[None]

    def clip_dual(self, u: Floats) -> Floats:
        return np.concatenate([part.clip_dual(run) for part, run in zip(self.parts, self._split(u), strict=True)])

    def atoms(self, size: int) -> list[Atom]:
        starts = np.cumsum([0, *self.sizes])
        return [
            Atom(atom.regularizer, atom.index + start)
            for part, n, start in zip(self.parts, self.sizes, starts[:-1], strict=True)
            for atom in part.atoms(n)
        ]

    def slack(self, x: ArrayLike) -> Floats:
        return np.concatenate(
            [part.slack(run) for part, run in zip(self.parts, self._split(as_floats(x)), strict=True)]
        )


@final
@persistable
class Affine(Regularizer):
    """An affine change of units of a regularizer: ``factor * g(scale * x + offset)``.

    `Regularizer.shift` and `Regularizer.reflect` build the two most common ones.

    Parameters
    ----------
    regularizer : Regularizer
        The function g.
    factor : float, default=1.0
        Positive.
    scale : float or array of shape (m,), default=1.0
        Nonzero, with equal magnitudes within a block of interacting coordinates.
    offset : float or array of shape (m,), default=0.0

    Examples
    --------
    The hinge loss ``2 max(0, 1 - x)`` of a margin x:

    >>> from regbayes.regularizers import Affine, Hinge
    >>> loss = Affine(Hinge(), factor=2.0, scale=-1.0, offset=1.0)
    >>> loss.value([0.5]), loss.value([1.5])
    (1.0, 0.0)
    """

    def __init__(
        self, regularizer: Regularizer, factor: float = 1.0, scale: ArrayLike = 1.0, offset: ArrayLike = 0.0
    ) -> None:
        self.regularizer = regularizer
        self.factor = check_positive("factor", factor)
        self.scale, self.offset = check_target("scale", scale), check_target("offset", offset)
        if not np.all(self.scale):
            raise ValueError("scale must not be zero")
        magnitudes = np.abs(self.scale).reshape(
            -1, regularizer.block_size or self.scale.size if self.scale.size > 1 else 1
        )
        if np.any(magnitudes != magnitudes[:, :1]):
            raise ValueError(f"the coordinates of {type(regularizer).__name__} interact: scale needs equal magnitudes")
        sizes = [regularizer.size, size_of(self.scale), size_of(self.offset)]
        self._size = common_size(sizes, "the regularizer, scale and offset")

    @property
    def size(self) -> int | None:
        return self._size

    @property
    def block_size(self) -> int | None:
        return self.regularizer.block_size

    def value(self, x: ArrayLike) -> float:
        return self.factor * self.regularizer.value(self._inner(x))

    def conjugate(self, u: ArrayLike) -> float:
        u = as_floats(u).astype(np.float64)
        return add(self.factor * self.regularizer.conjugate(self._inner_dual(u)), -dot(u, self.offset / self.scale))

    def prox(self, x: ArrayLike, step: ArrayLike = 1.0) -> Reals:
        moved = self.regularizer.prox(self._inner(x), self._inner_step(step))
        return like((moved - self.offset) / self.scale, as_floats(x))

    def prox_jacobian(self, x: ArrayLike, step: ArrayLike = 1.0) -> Floats:
        jacobian = self.regularizer.prox_jacobian(self._inner(x), self._inner_step(step))
        signs = np.broadcast_to(np.sign(self.scale), as_floats(x).size).reshape(len(jacobian), -1)
        return signs[:, :, None] * jacobian * signs[:, None, :]

    def dual_form(self, size: int) -> BoxDual | SimplexDual | None:
        form = self.regularizer.dual_form(size)
        if not isinstance(form, SimplexDual):
            return self._outer_box(form)
        if np.any(self.scale < 0):
            return None  # a reflected simplex is not a simplex
        scale, offset = (np.broadcast_to(each, size).reshape(len(form), -1) for each in (self.scale, self.offset))
        total, ridge = form.total * scale[:, 0] * self.factor, form.ridge / scale[:, 0] / scale[:, 0] / self.factor
        return SimplexDual((form.linear[form.row] - offset) / scale, np.arange(len(form)), total, ridge)

    def dual_model(self, u: Floats) -> BoxDual | None:
        return self._outer_box(self.regularizer.dual_model(self._inner_dual(u)))

    def fenchel_young(self, x: Floats, u: Floats) -> float:
        return self.factor * self.regularizer.fenchel_young(
            np.asarray(self._inner(x), dtype=np.float64), self._inner_dual(u)
        )

    def clip_dual(self, u: Floats) -> Floats:
        return self._outer_dual(self.regularizer.clip_dual(self._inner_dual(u)))

    def dual_start(self, size: int) -> Floats:
        return self._outer_dual(self.regularizer.dual_start(size))

    def atoms(self, size: int) -> list[Atom]:
        scale, offset = np.broadcast_to(self.scale, size), np.broadcast_to(self.offset, size)
        return [
            Atom(Affine(atom.regularizer, self.factor, scale[atom.index], offset[atom.index]), atom.index)
            for atom in self.regularizer.atoms(size)
        ]

    def shift(self, by: float | Floats) -> Affine:
        by = np.asarray(by, dtype=np.float64)
        if type(self.regularizer).shift is Regularizer.shift and not self.regularizer._targets:
            return Affine(self.regularizer, self.factor, self.scale, self.offset - self.scale * by)
        return Affine(self.regularizer.shift(self.scale * by - self.offset), self.factor, self.scale)

    def domain(self, size: int) -> tuple[Floats, Floats]:
        low, high = ((end - self.offset) / self.scale for end in self.regularizer.domain(size))
        return np.minimum(low, high), np.maximum(low, high)

    def slack(self, x: ArrayLike) -> Floats:
        return self.regularizer.slack(self._inner(x)) / np.abs(self.scale)

    def _inner(self, x: ArrayLike) -> Reals:
        return self.scale * as_floats(x) + self.offset

    def _inner_dual(self, u: Floats) -> Floats:
        return u / self.scale / self.factor

    def _outer_dual(self, u: Floats) -> Floats:
        return u * self.scale * self.factor

    def _inner_step(self, step: ArrayLike) -> Floats:
        with np.errstate(over="ignore"):
            scaled = self.scale * (self.factor * np.asarray(step, dtype=np.float64)) * self.scale
        return np.clip(scaled, np.finfo(np.float64).tiny, np.finfo(np.float64).max)

    def _outer_box(self, form: BoxDual | None) -> BoxDual | None:
        if form is None:
            return None
        slopes = self._outer_dual(form.lower), self._outer_dual(form.upper)
        edges = (form.low - self.offset) / self.scale, (form.high - self.offset) / self.scale
        ridge = form.ridge / self.scale / self.scale / self.factor
        return BoxDual(np.minimum(*edges), np.maximum(*edges), ridge, np.minimum(*slopes), np.maximum(*slopes))
