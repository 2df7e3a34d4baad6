"""The readable spelling of constraints: ``E(psi) <= b``, ``E(psi) == b``, ``E(psi).within(eps, of=b)``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike

from regbayes._types import Floats
from regbayes.framework.regularizers import (
    AtLeast,
    AtMost,
    Ball,
    EpsilonInsensitive,
    Equal,
    Hinge,
    Reflected,
    Regularizer,
    Ridge,
    Shifted,
    Sum,
)
from regbayes.framework.regularizers.base import check_positive

CHAINED = (
    "a constraint has no truth value, so `a <= E(psi) <= b` cannot work: "
    "write E(psi).between(a, b), or the list [E(psi) >= a, E(psi) <= b]"
)
STRICT = "a strict inequality is not closed; write <= or >="


@dataclass(frozen=True, eq=False)
class Constraint:
    """What must hold of some expectations: features, and a regularizer of their expectations."""

    features: Any
    regularizer: Regularizer
    name: str  # of the features
    relation: str  # how it reads, with {} for the expectation and {value} for what it is compared with
    values: Floats | None = None  # what each expectation is compared with, where there is one number for each

    def label(self, which: str | None = None, index: int = 0) -> str:
        """Return how the constraint reads, for all its expectations or for one that goes by the name ``which``."""
        value = None if self.values is None else self.values[index if self.values.size > 1 else 0]
        if which is None and self.values is not None and self.values.size > 1:
            value = self.values
        return self.relation.format(f"E({which or self.name})", value=_short(value))

    def soft(self, penalty: float, power: float = 1.0) -> Constraint:
        """Return the constraint at a price instead of at any price.

        Parameters
        ----------
        penalty : float
            Price per unit of violation (of the violation to that power).
        power : float, default=1.0
            1 charges in proportion; 2 charges the square (bounds and equalities only).
        """
        check_positive("penalty", penalty)
        soft = _softened(self.regularizer, penalty, power)
        return Constraint(self.features, soft, self.name, f"soft {self.relation}", self.values)

    def __bool__(self) -> NoReturn:
        raise TypeError(CHAINED)

    def __repr__(self) -> str:
        return self.label()


def _softened(regularizer: Regularizer, penalty: float, power: float) -> Regularizer:
    if isinstance(regularizer, AtMost):
        return Shifted(Hinge(penalty, power), regularizer.bound)
    if isinstance(regularizer, AtLeast):
        return Reflected(Hinge(penalty, power), regularizer.bound)
    if isinstance(regularizer, Sum):  # between
        return Sum([_softened(part, penalty, power) for part in regularizer.parts])
    if isinstance(regularizer, Equal) and power == 2:
        return Ridge(regularizer.target, 1 / (2 * penalty))
    if power != 1:
        raise ValueError(f"power must be 1 for this constraint (bounds take any power, equalities 1 or 2), got {power}")
    if isinstance(regularizer, Equal):
        return EpsilonInsensitive(regularizer.target, 0.0, penalty)
    if isinstance(regularizer, Ball) and np.isinf(regularizer.C):
        return Ball(regularizer.target, regularizer.radius, regularizer.norm, penalty)
    raise ValueError(f"soft() is for hard constraints, and this is a {type(regularizer).__name__}")


class E:
    """The expectation of features, to be compared with what it must be.

    Parameters
    ----------
    features : callable, array, str, or list of those
        What `regularize` accepts for the posterior in question: a function of the models or draws, its values, or the
        name of a variable.
    name : str, default=None
        How messages call it.

    Examples
    --------
    >>> import numpy as np
    >>> from regbayes import E, Finite, regularize
    >>> die = Finite(np.arange(1, 7))
    >>> loaded = regularize(die, E(lambda face: face) == 4.5)  # Jaynes' die
    >>> np.round(loaded.posterior.probabilities, 3)
    array([0.054, 0.079, 0.114, 0.165, 0.24 , 0.347])
    """

    __hash__ = None  # type: ignore[assignment]  # == builds a constraint
    __array_ufunc__ = None  # so that `array <= E(psi)` asks E and does not loop over the array

    def __init__(self, features: Any, name: str | None = None) -> None:
        if isinstance(features, E):
            raise TypeError("E(E(psi)) is not an expectation of features; write E(psi)")
        self.features = features
        self.name = name or _guess_name(features)

    def __le__(self, bound: ArrayLike) -> Constraint:
        return self._compared(AtMost(_number(bound)), "{} <= {value}", bound)

    def __ge__(self, bound: ArrayLike) -> Constraint:
        return self._compared(AtLeast(_number(bound)), "{} >= {value}", bound)

    def __eq__(self, target: ArrayLike) -> Constraint:  # type: ignore[override]
        return self._compared(Equal(_number(target)), "{} == {value}", target)

    def _compared(self, regularizer: Regularizer, relation: str, value: ArrayLike) -> Constraint:
        values = np.atleast_1d(np.asarray(value, dtype=np.float64))
        return Constraint(self.features, regularizer, self.name, relation, values)

    def within(self, eps: float, *, of: ArrayLike, norm: float = 2) -> Constraint:
        """``||E[psi] - of|| <= eps`` in the 1-, 2- or inf-norm."""
        check_positive("eps", eps, allow_zero=True)
        return self._compared(Ball(_number(of), eps, norm), f"{{}} within {eps:g} of {{value}}", of)

    def between(self, low: ArrayLike, high: ArrayLike) -> Constraint:
        """``low <= E[psi] <= high``."""
        lower, upper = np.broadcast_arrays(np.atleast_1d(_number(low)), np.atleast_1d(_number(high)))
        if np.any(lower > upper):
            raise ValueError(f"between: low must not exceed high, got {_short(low)} and {_short(high)}")
        relation = f"{_short(low)} <= {{}} <= {_short(high)}"
        return Constraint(self.features, AtLeast(lower) + AtMost(upper), self.name, relation)

    def regularized(self, regularizer: Regularizer) -> Constraint:
        """Any regularizer of these expectations, for instance ``E(labels).regularized(KL(proportions))``."""
        return Constraint(self.features, regularizer, self.name, f"{type(regularizer).__name__} of {{}}")

    def _no_arithmetic(self, *_: object) -> NoReturn:
        raise TypeError(
            "expectations are combined inside E: write E(lambda v: f(v) - h(v)) for E(f) - E(h), "
            "and compare with b / 2 for 2 * E(f) <= b"
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __neg__ = _no_arithmetic

    def __lt__(self, _: ArrayLike) -> NoReturn:
        raise TypeError(STRICT)

    def __gt__(self, _: ArrayLike) -> NoReturn:
        raise TypeError(STRICT)

    def __ne__(self, _: object) -> NoReturn:
        raise TypeError("an expectation cannot be constrained to differ from a value: the set is not convex")

    def __bool__(self) -> NoReturn:
        raise TypeError("E(psi) has no truth value; compare it, as in E(psi) <= b")

    def __repr__(self) -> str:
        return f"E({self.name})"


def _number(value: ArrayLike) -> ArrayLike:
    if isinstance(value, E | Constraint):
        raise TypeError("compare E(psi) with numbers; for two expectations constrain their difference, E(psi1 - psi2)")
    return value


def _guess_name(features: Any) -> str:
    if isinstance(features, str):
        return features
    name = getattr(features, "__name__", "psi")
    return "psi" if name == "<lambda>" else str(name)


def _short(value: ArrayLike | None) -> str:
    if value is None:
        return ""
    with np.printoptions(precision=4, threshold=6):
        return f"{value:g}" if np.ndim(value) == 0 else str(np.asarray(value))
