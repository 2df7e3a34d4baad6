"""The readable spelling of constraints: ``E(psi) <= b``, ``E(psi) == b``, ``E(psi).within(eps, of=b)``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike

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
)

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
    label: str

    def soft(self, penalty: float, power: float = 1.0) -> Constraint:
        """Return the constraint at a price instead of at any price.

        Parameters
        ----------
        penalty : float
            Price per unit of violation (of the violation to that power).
        power : float, default=1.0
            1 charges in proportion; 2 charges the square (bounds and equalities only).
        """
        return Constraint(self.features, _softened(self.regularizer, penalty, power), f"soft {self.label}")

    def __bool__(self) -> NoReturn:
        raise TypeError(CHAINED)


def _softened(regularizer: Regularizer, penalty: float, power: float) -> Regularizer:
    if isinstance(regularizer, AtMost):
        return Shifted(Hinge(penalty, power), regularizer.bound)
    if isinstance(regularizer, AtLeast):
        return Reflected(Hinge(penalty, power), regularizer.bound)
    if isinstance(regularizer, Equal) and power == 2:
        return Ridge(regularizer.target, 1 / (2 * penalty))
    if power != 1:
        raise ValueError(f"power must be 1 for this constraint (bounds take any power, equalities 1 or 2), got {power}")
    if isinstance(regularizer, Equal):
        return EpsilonInsensitive(regularizer.target, 0.0, penalty)
    if isinstance(regularizer, Ball) and np.isinf(regularizer.C):
        return Ball(regularizer.target, regularizer.radius, regularizer.norm, penalty)
    raise ValueError("this constraint is soft already")


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
        return Constraint(self.features, AtMost(_number(bound)), f"{self} <= {_short(bound)}")

    def __ge__(self, bound: ArrayLike) -> Constraint:
        return Constraint(self.features, AtLeast(_number(bound)), f"{self} >= {_short(bound)}")

    def __eq__(self, target: ArrayLike) -> Constraint:  # type: ignore[override]
        return Constraint(self.features, Equal(_number(target)), f"{self} == {_short(target)}")

    def within(self, eps: float, *, of: ArrayLike, norm: float = 2) -> Constraint:
        """``||E[psi] - of|| <= eps`` in the 1-, 2- or inf-norm."""
        label = f"{self} within {eps} of {_short(of)}"
        return Constraint(self.features, Ball(_number(of), eps, norm), label)

    def between(self, low: ArrayLike, high: ArrayLike) -> Constraint:
        """``low <= E[psi] <= high``."""
        lower, upper = np.broadcast_arrays(np.atleast_1d(_number(low)), np.atleast_1d(_number(high)))
        if np.any(lower > upper):
            raise ValueError(f"between: low must not exceed high, got {_short(low)} and {_short(high)}")
        label = f"{_short(low)} <= {self} <= {_short(high)}"
        return Constraint(self.features, AtLeast(lower) + AtMost(upper), label)

    def regularized(self, regularizer: Regularizer) -> Constraint:
        """Any regularizer of these expectations, for instance ``E(labels).regularized(KL(proportions))``."""
        return Constraint(self.features, regularizer, f"{type(regularizer).__name__} of {self}")

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


def _short(value: ArrayLike) -> str:
    with np.printoptions(precision=4, threshold=6):
        return str(value if np.ndim(value) == 0 else np.asarray(value))
