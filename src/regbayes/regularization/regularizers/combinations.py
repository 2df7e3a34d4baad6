"""Regularizers made of regularizers: sums, blocks, scalings, shifts and reflections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar, final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import block_diag

from regbayes._registry import persistable
from regbayes._types import Floats, Reals
from regbayes.regularization.dual_forms import BoxDual, SimplexDual
from regbayes.regularization.regularizers.base import (
    TINY_STEP,
    Atom,
    Regularizer,
    add,
    as_floats,
    check_positive,
    check_target,
    common_size,
    dot,
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

    The dual solver gives each part its own multipliers, so it never needs the conjugate of the sum; `conjugate` and
    `prox` here are numerical (relative accuracy about 1e-8) and meant for looking at single values.
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
        if not np.all(np.isfinite(u)):  # all of u to one part is a way to share it out, and at infinity it is enough
            zero = [part.conjugate(np.zeros_like(u)) for part in self.parts]
            return min(add(part.conjugate(u), *zero[:i], *zero[i + 1 :]) for i, part in enumerate(self.parts))
        # Proximal points of sup_x <u, x> - g(x). What the shares lack of u tends to its distance from the domain.
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
        """Undo the rounding that leaves a point 1e-12 outside a hard part."""
        for _ in range(10):
            outside = [part for part in self.parts if np.isinf(part.value(x))]
            if not outside:
                break
            for part in outside:
                x = part.prox(x, TINY_STEP).astype(np.float64)
        return x

    def atoms(self, size: int) -> list[Atom]:
        return [atom for part in self.parts for atom in part.atoms(size)]

    def shift(self, by: Floats) -> Sum:
        return Sum([part.shift(by) for part in self.parts])

    def domain(self, size: int) -> tuple[Floats, Floats]:
        ends = [part.domain(size) for part in self.parts]
        return np.max([low for low, _ in ends], axis=0), np.min([high for _, high in ends], axis=0)

    def slack(self, x: ArrayLike) -> Floats:
        least: Floats = np.min([part.slack(x) for part in self.parts], axis=0)
        return least


def _share_out(stack: Stack, x: Floats, step: Floats, start: Floats) -> Floats:
    """Share ``(x - prox(x)) / step`` out among the atoms, beginning at a guess; return the shares stacked."""
    from regbayes.regularization.composite import minimize_composite

    index = stack.index
    hessian = np.where(index[:, None] == index[None, :], step[index][:, None], 0.0)
    return minimize_composite(hessian, -x[index], stack.pieces, start)[0]


@final
@persistable
class Blocks(Regularizer):
    """``sum_b g_b(x_b)``: each regularizer on its own consecutive run of expectations.

    Parameters
    ----------
    parts : sequence of Regularizer
    sizes : sequence of int, default=None
        Length of each run; needed for parts that take any number of expectations.
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
            raise ValueError(f"these blocks take {self.size} expectations, got {x.size}")
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

    def dual_form(self, size: int) -> BoxDual | None:
        forms = [part.dual_form(n) for part, n in zip(self.parts, self.sizes, strict=True)]
        boxes = [form for form in forms if isinstance(form, BoxDual)]
        if len(boxes) < len(forms):
            return None
        names = ("linear", "absolute", "ridge", "lower", "upper")
        return BoxDual(*(np.concatenate([getattr(box, name) for box in boxes]) for name in names))

    def clip_dual(self, u: Floats) -> Floats:
        return np.concatenate([part.clip_dual(run) for part, run in zip(self.parts, self._split(u), strict=True)])

    def atoms(self, size: int) -> list[Atom]:
        starts = np.cumsum([0, *self.sizes])
        return [
            Atom(atom.regularizer, atom.index + start)
            for part, n, start in zip(self.parts, self.sizes, starts[:-1], strict=True)
            for atom in part.atoms(n)
        ]

    def dual_start(self, size: int) -> Floats:
        return np.concatenate([part.dual_start(n) for part, n in zip(self.parts, self.sizes, strict=True)])

    def shift(self, by: Floats) -> Blocks:
        runs = self._split(np.broadcast_to(by, self.size))
        return Blocks([part.shift(run) for part, run in zip(self.parts, runs, strict=True)], self.sizes)

    def domain(self, size: int) -> tuple[Floats, Floats]:
        ends = [part.domain(n) for part, n in zip(self.parts, self.sizes, strict=True)]
        return np.concatenate([low for low, _ in ends]), np.concatenate([high for _, high in ends])

    def slack(self, x: ArrayLike) -> Floats:
        return np.concatenate(
            [part.slack(run) for part, run in zip(self.parts, self._split(as_floats(x)), strict=True)]
        )


@final
@persistable
class Scaled(Regularizer):
    """``factor * g(x)``, factor > 0."""

    def __init__(self, regularizer: Regularizer, factor: float) -> None:
        self.regularizer = regularizer
        self.factor = check_positive("factor", factor)

    @property
    def size(self) -> int | None:
        return self.regularizer.size

    @property
    def block_size(self) -> int | None:
        return self.regularizer.block_size

    def value(self, x: ArrayLike) -> float:
        return self.factor * self.regularizer.value(x)

    def conjugate(self, u: ArrayLike) -> float:
        return self.factor * self.regularizer.conjugate(as_floats(u).astype(np.float64) / self.factor)

    def prox(self, x: ArrayLike, step: ArrayLike = 1.0) -> Reals:
        return self.regularizer.prox(x, self.factor * np.asarray(step))

    def prox_jacobian(self, x: ArrayLike, step: ArrayLike = 1.0) -> Floats:
        return self.regularizer.prox_jacobian(x, self.factor * np.asarray(step))

    def dual_form(self, size: int) -> BoxDual | SimplexDual | None:
        form = self.regularizer.dual_form(size)
        if isinstance(form, SimplexDual):
            return SimplexDual(form.linear, form.row, self.factor * form.total, form.ridge / self.factor)
        return self._scale_form(form) if isinstance(form, BoxDual) else None

    def _scale_form(self, form: BoxDual) -> BoxDual:
        f = self.factor
        return BoxDual(form.linear, form.absolute, form.ridge / f, f * form.lower, f * form.upper)

    def dual_model(self, u: Floats) -> BoxDual | None:
        model = self.regularizer.dual_model(u / self.factor)
        return None if model is None else self._scale_form(model)

    def fenchel_young(self, x: Floats, u: Floats) -> float:
        return self.factor * self.regularizer.fenchel_young(x, u / self.factor)

    def clip_dual(self, u: Floats) -> Floats:
        return self.factor * self.regularizer.clip_dual(u / self.factor)

    def atoms(self, size: int) -> list[Atom]:
        return [Atom(Scaled(atom.regularizer, self.factor), atom.index) for atom in self.regularizer.atoms(size)]

    def dual_start(self, size: int) -> Floats:
        return self.factor * self.regularizer.dual_start(size)

    def shift(self, by: Floats) -> Scaled:
        return Scaled(self.regularizer.shift(by), self.factor)

    def domain(self, size: int) -> tuple[Floats, Floats]:
        return self.regularizer.domain(size)

    def rescale(self, scale: Floats) -> Scaled:
        return Scaled(self.regularizer.rescale(scale), self.factor)

    def slack(self, x: ArrayLike) -> Floats:
        return self.regularizer.slack(x)


@final
@persistable
class Shifted(Regularizer):
    """``g(x - by)``: the same regularizer around another origin, for instance ``Hinge`` around a bound."""

    def __init__(self, regularizer: Regularizer, by: ArrayLike) -> None:
        self.regularizer = regularizer
        self.by = check_target("by", by)
        self._size = common_size([regularizer.size, size_of(self.by)], "the regularizer and the shift")

    @property
    def size(self) -> int | None:
        return self._size

    @property
    def block_size(self) -> int | None:
        return self.regularizer.block_size

    def value(self, x: ArrayLike) -> float:
        return self.regularizer.value(as_floats(x) - self.by)

    def conjugate(self, u: ArrayLike) -> float:
        return add(self.regularizer.conjugate(u), dot(as_floats(u), self.by))

    def prox(self, x: ArrayLike, step: ArrayLike = 1.0) -> Reals:
        x = as_floats(x)
        return like(self.regularizer.prox(x - self.by, step) + self.by, x)

    def prox_jacobian(self, x: ArrayLike, step: ArrayLike = 1.0) -> Floats:
        return self.regularizer.prox_jacobian(as_floats(x) - self.by, step)

    def dual_form(self, size: int) -> BoxDual | SimplexDual | None:
        form = self.regularizer.dual_form(size)
        if isinstance(form, SimplexDual):
            by = np.broadcast_to(self.by, size).reshape(len(form), -1)
            return SimplexDual(form.linear[form.row] + by, np.arange(len(form)), form.total, form.ridge)
        return replace(form, linear=form.linear + self.by) if isinstance(form, BoxDual) else None

    def dual_model(self, u: Floats) -> BoxDual | None:
        model = self.regularizer.dual_model(u)
        return None if model is None else replace(model, linear=model.linear + self.by)

    def fenchel_young(self, x: Floats, u: Floats) -> float:
        return self.regularizer.fenchel_young(x - self.by, u)

    def clip_dual(self, u: Floats) -> Floats:
        return self.regularizer.clip_dual(u)

    def atoms(self, size: int) -> list[Atom]:
        by = np.broadcast_to(self.by, size)
        return [Atom(Shifted(a.regularizer, by[a.index]), a.index) for a in self.regularizer.atoms(size)]

    def dual_start(self, size: int) -> Floats:
        return self.regularizer.dual_start(size)

    def shift(self, by: Floats) -> Shifted:
        return Shifted(self.regularizer, self.by + by)

    def domain(self, size: int) -> tuple[Floats, Floats]:
        low, high = self.regularizer.domain(size)
        return low + self.by, high + self.by

    def rescale(self, scale: Floats) -> Shifted:
        return Shifted(self.regularizer.rescale(scale), self.by / scale)

    def slack(self, x: ArrayLike) -> Floats:
        return self.regularizer.slack(as_floats(x) - self.by)


@final
@persistable
class Reflected(Regularizer):
    """``g(about - x)``: for instance a hinge that charges for falling below a bound."""

    def __init__(self, regularizer: Regularizer, about: ArrayLike = 0.0) -> None:
        self.regularizer = regularizer
        self.about = check_target("about", about)
        self._size = common_size([regularizer.size, size_of(self.about)], "the regularizer and the mirror")

    @property
    def size(self) -> int | None:
        return self._size

    @property
    def block_size(self) -> int | None:
        return self.regularizer.block_size

    def value(self, x: ArrayLike) -> float:
        return self.regularizer.value(self.about - as_floats(x))

    def conjugate(self, u: ArrayLike) -> float:
        u = as_floats(u)
        return add(self.regularizer.conjugate(-u), dot(u, self.about))

    def prox(self, x: ArrayLike, step: ArrayLike = 1.0) -> Reals:
        x = as_floats(x)
        return like(self.about - self.regularizer.prox(self.about - x, step), x)

    def prox_jacobian(self, x: ArrayLike, step: ArrayLike = 1.0) -> Floats:
        return self.regularizer.prox_jacobian(self.about - as_floats(x), step)

    def dual_form(self, size: int) -> BoxDual | SimplexDual | None:
        form = self.regularizer.dual_form(size)
        if not isinstance(form, BoxDual):
            return None  # a reflected simplex is not a simplex
        return self._reflect_form(form)

    def _reflect_form(self, form: BoxDual) -> BoxDual:
        return BoxDual(self.about - form.linear, form.absolute, form.ridge, -form.upper, -form.lower)

    def dual_model(self, u: Floats) -> BoxDual | None:
        model = self.regularizer.dual_model(-u)
        return None if model is None else self._reflect_form(model)

    def fenchel_young(self, x: Floats, u: Floats) -> float:
        return self.regularizer.fenchel_young(self.about - x, -u)

    def clip_dual(self, u: Floats) -> Floats:
        return -self.regularizer.clip_dual(-u)

    def atoms(self, size: int) -> list[Atom]:
        about = np.broadcast_to(self.about, size)
        return [Atom(Reflected(a.regularizer, about[a.index]), a.index) for a in self.regularizer.atoms(size)]

    def dual_start(self, size: int) -> Floats:
        return -self.regularizer.dual_start(size)

    def shift(self, by: Floats) -> Reflected:
        return Reflected(self.regularizer, self.about + by)

    def domain(self, size: int) -> tuple[Floats, Floats]:
        low, high = self.regularizer.domain(size)
        return self.about - high, self.about - low

    def rescale(self, scale: Floats) -> Reflected:
        return Reflected(self.regularizer.rescale(scale), self.about / scale)

    def slack(self, x: ArrayLike) -> Floats:
        return self.regularizer.slack(self.about - as_floats(x))


@final
@persistable
class Signed(Regularizer):
    """``g(signs * x)``: the same regularizer with some coordinates reversed, for instance margins of two classes.

    Parameters
    ----------
    regularizer : Regularizer
        Separable: its coordinates do not interact.
    signs : array of shape (m,)
        1 or -1 for each coordinate.
    """

    def __init__(self, regularizer: Regularizer, signs: ArrayLike) -> None:
        self.regularizer = regularizer
        self.signs = check_target("signs", signs)
        if regularizer.block_size != 1:
            raise ValueError(
                f"{type(regularizer).__name__} is not separable: its coordinates cannot be reversed singly"
            )
        if not np.all(np.abs(self.signs) == 1):
            raise ValueError("signs must be 1 or -1")
        self._size = common_size([regularizer.size, size_of(self.signs)], "the regularizer and the signs")

    @property
    def size(self) -> int | None:
        return self._size

    def value(self, x: ArrayLike) -> float:
        return self.regularizer.value(self.signs * as_floats(x))

    def conjugate(self, u: ArrayLike) -> float:
        return self.regularizer.conjugate(self.signs * as_floats(u))

    def prox(self, x: ArrayLike, step: ArrayLike = 1.0) -> Reals:
        x = as_floats(x)
        return like(self.signs * self.regularizer.prox(self.signs * x, step), x)

    def prox_jacobian(self, x: ArrayLike, step: ArrayLike = 1.0) -> Floats:
        return self.regularizer.prox_jacobian(self.signs * as_floats(x), step)

    def dual_form(self, size: int) -> BoxDual | SimplexDual | None:
        form = self.regularizer.dual_form(size)
        return self._sign_form(form) if isinstance(form, BoxDual) else None

    def dual_model(self, u: Floats) -> BoxDual | None:
        model = self.regularizer.dual_model(self.signs * u)
        return None if model is None else self._sign_form(model)

    def fenchel_young(self, x: Floats, u: Floats) -> float:
        return self.regularizer.fenchel_young(self.signs * x, self.signs * u)

    def _sign_form(self, form: BoxDual) -> BoxDual:
        up = np.broadcast_to(self.signs, len(form)) > 0
        lower, upper = np.where(up, form.lower, -form.upper), np.where(up, form.upper, -form.lower)
        return BoxDual(self.signs * form.linear, form.absolute, form.ridge, lower, upper)

    def clip_dual(self, u: Floats) -> Floats:
        return self.signs * self.regularizer.clip_dual(self.signs * u)

    def atoms(self, size: int) -> list[Atom]:
        signs = np.broadcast_to(self.signs, size)
        return [Atom(Signed(a.regularizer, signs[a.index]), a.index) for a in self.regularizer.atoms(size)]

    def dual_start(self, size: int) -> Floats:
        return self.signs * self.regularizer.dual_start(size)

    def shift(self, by: Floats) -> Signed:
        return Signed(self.regularizer.shift(self.signs * by), self.signs)

    def domain(self, size: int) -> tuple[Floats, Floats]:
        low, high = self.regularizer.domain(size)
        up = np.broadcast_to(self.signs, size) > 0
        return np.where(up, low, -high), np.where(up, high, -low)

    def slack(self, x: ArrayLike) -> Floats:
        return self.regularizer.slack(self.signs * as_floats(x))


@final
class Rescaled(Regularizer):
    """``g(scale * x)``: the regularizer in other units, for the solver's own; scales are equal within a block."""

    def __init__(self, regularizer: Regularizer, scale: Floats) -> None:
        self.regularizer = regularizer
        self.scale = scale

    @property
    def size(self) -> int | None:
        return self.scale.size

    @property
    def block_size(self) -> int | None:
        return self.regularizer.block_size

    def value(self, x: ArrayLike) -> float:
        return self.regularizer.value(self.scale * as_floats(x))

    def conjugate(self, u: ArrayLike) -> float:
        return self.regularizer.conjugate(as_floats(u) / self.scale)

    def prox(self, x: ArrayLike, step: ArrayLike = 1.0) -> Reals:
        x = as_floats(x)
        return like(self.regularizer.prox(self.scale * x, self._steps(step)) / self.scale, x)

    def prox_jacobian(self, x: ArrayLike, step: ArrayLike = 1.0) -> Floats:
        return self.regularizer.prox_jacobian(self.scale * as_floats(x), self._steps(step))

    def _steps(self, step: ArrayLike) -> Floats:
        with np.errstate(over="ignore"):
            scaled: Floats = self.scale * np.asarray(step, dtype=np.float64) * self.scale
        return np.clip(scaled, np.finfo(np.float64).tiny, np.finfo(np.float64).max)

    def dual_form(self, size: int) -> BoxDual | SimplexDual | None:
        form = self.regularizer.dual_form(size)
        if isinstance(form, SimplexDual):
            scale = self.scale[:: form.n_classes]
            linear = form.linear[form.row] / scale[:, None]
            return SimplexDual(linear, np.arange(len(form)), form.total * scale, form.ridge / scale / scale)
        return None if form is None else self._rescale_form(form)

    def dual_model(self, u: Floats) -> BoxDual | None:
        model = self.regularizer.dual_model(u / self.scale)
        return None if model is None else self._rescale_form(model)

    def fenchel_young(self, x: Floats, u: Floats) -> float:
        return self.regularizer.fenchel_young(self.scale * x, u / self.scale)

    def _rescale_form(self, form: BoxDual) -> BoxDual:
        ridge = form.ridge / self.scale / self.scale
        bounds = form.lower * self.scale, form.upper * self.scale
        return BoxDual(form.linear / self.scale, form.absolute / self.scale, ridge, *bounds)

    def clip_dual(self, u: Floats) -> Floats:
        return self.scale * self.regularizer.clip_dual(u / self.scale)

    def dual_start(self, size: int) -> Floats:
        return self.scale * self.regularizer.dual_start(size)

    def domain(self, size: int) -> tuple[Floats, Floats]:
        low, high = self.regularizer.domain(size)
        return low / self.scale, high / self.scale

    def slack(self, x: ArrayLike) -> Floats:
        return self.regularizer.slack(self.scale * as_floats(x)) / self.scale
