"""Constraint expressions, such as ``E(psi) <= b`` and ``E(psi) == b``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, NoReturn, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from regbayes._types import Floats
from regbayes.regularization.features import Combination, OnEvent, Picked, write_combination
from regbayes.regularization.regularizers import (
    AtLeast,
    AtMost,
    Ball,
    EpsilonInsensitive,
    Equal,
    Hinge,
    Interval,
    Regularizer,
    Ridge,
)
from regbayes.regularization.regularizers.base import check_positive

CHAINED = (
    "a constraint has no truth value, so `a <= E(psi) <= b` cannot work: "
    "write E(psi).between(a, b), or the list [E(psi) >= a, E(psi) <= b]"
)
UNNAMED_FEATURE = "psi"
HARD: dict[str, Callable[[ArrayLike], Regularizer]] = {"<=": AtMost, ">=": AtLeast, "==": Equal}


@dataclass(frozen=True, eq=False)
class Constraint:
    """A constraint: features and a regularizer of their expectations."""

    features: Any
    regularizer: Regularizer
    name: str  # name of the features
    relation: str  # label template with {} for the features' name and {value}, {upper} for the bounds
    values: Floats | None = None  # value that each expectation is compared with, if there is one
    upper: Floats | None = None  # the upper value of `between`
    named: bool = False  # whether the user gave the name

    def label(self, which: str | None = None) -> str:
        """Return the label of the constraint for all its expectations."""
        value, upper = ("" if numbers is None else _short(numbers) for numbers in (self.values, self.upper))
        return self.relation.format(which or self.name, value=value, upper=upper)

    def label_each(self, names: Sequence[str]) -> list[str]:
        """Return a label for each expectation, by their names."""
        values, uppers = (_each(numbers, len(names)) for numbers in (self.values, self.upper))
        write = self.relation.format
        each = zip(names, values, uppers, strict=True)
        return [write(name, value=value, upper=upper) for name, value, upper in each]

    def soft(self, penalty: float, power: float = 1.0) -> Constraint:
        """Return the constraint with a penalty on its violation in place of a hard one.

        Parameters
        ----------
        penalty : float
            Factor of the violation, which is raised to ``power``.
        power : float, default=1.0
            1 is a linear penalty, 2 a squared one (bounds and equalities only).
        """
        check_positive("penalty", penalty)
        soft = _soften(self.regularizer, penalty, power)
        return replace(self, regularizer=soft, relation=f"soft {self.relation}")

    def __and__(self, other: Any) -> list[Constraint]:
        if isinstance(other, list):
            return [self, *other]
        return [self, other] if isinstance(other, Constraint) else NotImplemented

    def __rand__(self, others: Any) -> list[Constraint]:
        return [*others, self] if isinstance(others, list) else NotImplemented

    def __or__(self, _: object) -> NoReturn:
        raise TypeError(
            "either-or of constraints is not convex: solve for each alone, and take the solution with the smaller kl"
        )

    def __bool__(self) -> NoReturn:
        raise TypeError(CHAINED)

    def __repr__(self) -> str:
        return self.label()


def _soften(regularizer: Regularizer, penalty: float, power: float) -> Regularizer:
    if isinstance(regularizer, AtMost):
        return Hinge(penalty, power).shift(regularizer.bound)
    if isinstance(regularizer, AtLeast):
        return Hinge(penalty, power).reflect(regularizer.bound)
    if isinstance(regularizer, Interval):
        return Hinge(penalty, power).shift(regularizer.high) + Hinge(penalty, power).reflect(regularizer.low)
    if isinstance(regularizer, Equal) and power == 2:
        return Ridge(regularizer.target, 1 / (2 * penalty))
    if power != 1:
        raise ValueError(f"power must be 1 for this constraint (bounds take any power, equalities 1 or 2), got {power}")
    if isinstance(regularizer, Equal):
        return EpsilonInsensitive(regularizer.target, 0.0, penalty)
    if isinstance(regularizer, Ball) and np.isinf(regularizer.C):
        return Ball(regularizer.target, regularizer.radius, regularizer.norm, penalty)
    raise ValueError(f"soft() is for hard constraints, and this is a {type(regularizer).__name__}")


Made = TypeVar("Made")


class _Statistic(Generic[Made]):
    """A statistic of the posterior; comparing it with a number builds a constraint."""

    __hash__ = None  # type: ignore[assignment]  # == builds a constraint
    __array_ufunc__ = None  # so that NumPy does not broadcast `array <= E(psi)` over the array

    def _compare(self, sign: Literal["<=", ">=", "=="], value: Any) -> Made:
        raise NotImplementedError

    def __le__(self, bound: Any) -> Made:
        return self._compare("<=", bound)

    def __ge__(self, bound: Any) -> Made:
        return self._compare(">=", bound)

    def __eq__(self, target: Any) -> Made:  # type: ignore[override]
        return self._compare("==", target)

    def __lt__(self, _: Any) -> NoReturn:
        raise TypeError("a strict inequality is not closed; write <= or >=")

    __gt__ = __lt__

    def __bool__(self) -> NoReturn:
        raise TypeError(f"{self!r} has no truth value; compare it, as in {self!r} <= b")


class E(_Statistic[Constraint]):
    """The expectation of features; comparing it with a number builds a constraint.

    Parameters
    ----------
    features : callable, array, str, or list of those
        A function of the models or draws, its values, or the name of a variable. The arguments of a function may name
        variables, as in ``E(lambda mu, tau: mu / tau)``.
    name : str, default=None
        Name in messages.

    Examples
    --------
    >>> import numpy as np
    >>> from regbayes import E, Finite, regularize
    >>> die = Finite(np.arange(1, 7))
    >>> loaded = regularize(die, E(lambda face: face) == 4.5)  # Jaynes' die
    >>> np.round(loaded.posterior.probabilities, 3)
    array([0.054, 0.079, 0.114, 0.165, 0.24 , 0.347])
    """

    def __init__(self, features: Any, *more: Any, name: str | None = None) -> None:
        if more:
            raise TypeError(
                f"E takes one thing: write E([{_shown(features)}, {_shown(more[0])}]) for several features, and "
                f"E({_shown(features)}, name=...) to give it a name"
            )
        if isinstance(features, E | Conditional):
            raise TypeError("E(E(psi)) is not an expectation of features; write E(psi)")
        self.features = features
        self.name = name or _guess_name(features)
        self._named = name is not None
        self._names: tuple[str, ...] = (self.name,)  # names of the parts of a combination

    def __getitem__(self, index: Any) -> E:
        """Select expectations, as in ``E("theta")[0]`` or ``E("theta")["Choate"]``."""
        picked = E(Picked(self.features, index), name=f"{self.name}[{index}]")
        picked._named = self._named
        return picked

    def __iter__(self) -> NoReturn:  # otherwise Python would index without end
        raise TypeError("E(psi) is not a sequence: how many features it has is known once it meets a posterior")

    def given(self, event: Any, name: str | None = None) -> Conditional:
        """Return the conditional expectation given an event.

        ``E(f).given(A) == b`` is linear in the posterior: ``E[(f - b) 1_A] = 0``, which is solved and shown in tables.
        It also holds if the event has probability zero.

        Parameters
        ----------
        event : as ``features``
            One truth value for each model or draw, as in ``E("mu").given(lambda v: v.tau > 1)``.
        name : str, default=None
            Name of the event in messages.
        """
        return Conditional(self, event, name or _guess_name(event).replace("psi", "event"))

    def _compare(self, sign: Literal["<=", ">=", "=="], value: Any) -> Constraint:
        if isinstance(value, E):
            return (self - value)._compare(sign, 0.0)
        return self._constrain(HARD[sign](_number(value)), f"E({{}}) {sign} {{value}}", value)

    def _constrain(
        self, regularizer: Regularizer, relation: str, value: ArrayLike | None = None, upper: ArrayLike | None = None
    ) -> Constraint:
        values, uppers = (None if v is None else np.atleast_1d(np.asarray(v, dtype=float)) for v in (value, upper))
        return Constraint(self.features, regularizer, self.name, relation, values, uppers, self._named)

    def within(self, eps: float, *, of: ArrayLike, norm: float = 2) -> Constraint:
        """``||E[psi] - of|| <= eps`` in the 1-, 2- or inf-norm."""
        check_positive("eps", eps, allow_zero=True)
        return self._constrain(Ball(_number(of), eps, norm), f"E({{}}) within {eps:g} of {{value}}", of)

    def between(self, low: ArrayLike | None, high: ArrayLike | None) -> Constraint:
        """``low <= E[psi] <= high``; None means no bound on that side."""
        if low is None and high is None:
            raise ValueError("between needs a number on at least one side")
        if low is None or high is None:
            return self <= high if high is not None else self >= low
        lower, upper = np.broadcast_arrays(np.atleast_1d(_number(low)), np.atleast_1d(_number(high)))
        if np.any(lower > upper):
            raise ValueError(f"between: low must not exceed high, got {_short(lower)} and {_short(upper)}")
        return self._constrain(Interval(lower, upper), "{value} <= E({}) <= {upper}", low, high)

    def regularized(self, regularizer: Any) -> Constraint:
        """Apply a regularizer, for instance ``E(labels).regularized(KL(proportions))``."""
        if not isinstance(regularizer, Regularizer):
            hint = f"; write E({self.name}) == {regularizer!r} for a number" if np.isscalar(regularizer) else ""
            raise TypeError(f"regularized takes one of regbayes.regularizers, got {regularizer!r}{hint}")
        return self._constrain(regularizer, f"{type(regularizer).__name__} of E({{}})")

    def _combine(self, other: Any, mine: float, others: float) -> E:
        """Return ``mine * self + others * other``, another expectation or a number."""
        if isinstance(other, Conditional):
            raise TypeError(
                "a conditional expectation is compared with a number: the constraint is not linear otherwise"
            )
        own = self._as_combination()
        if not isinstance(other, E):
            number = np.asarray(other)
            if number.ndim or number.dtype.kind not in "biuf" or not np.isfinite(number):
                raise TypeError(f"an expectation is added to an expectation or a finite number, got {other!r}")
            other_parts = Combination((), (), float(number))
            names, named = self._names, self._named
        else:
            other_parts, names, named = (
                other._as_combination(),
                self._names + other._names,
                self._named or other._named,
            )
        factors = [mine * factor for factor in own.factors] + [others * factor for factor in other_parts.factors]
        constant = mine * own.constant + others * other_parts.constant
        combined = E(Combination(tuple(factors), own.parts + other_parts.parts, constant))
        combined._names, combined.name = names, write_combination(factors, names, constant)
        combined._named = named
        return combined

    def _as_combination(self) -> Combination:
        return self.features if isinstance(self.features, Combination) else Combination((1.0,), (self.features,))

    def __add__(self, other: Any) -> E:
        return self._combine(other, 1.0, 1.0)

    __radd__ = __add__

    def __sub__(self, other: Any) -> E:
        return self._combine(other, 1.0, -1.0)

    def __rsub__(self, other: Any) -> E:
        return self._combine(other, -1.0, 1.0)

    def __mul__(self, factor: Any) -> E:
        if isinstance(factor, E | Conditional):
            raise TypeError("a product of expectations is not linear in the posterior; write E(lambda v: f(v) * h(v))")
        number = np.asarray(factor)
        if number.ndim or number.dtype.kind not in "biuf" or not np.isfinite(number) or number == 0:
            raise TypeError(f"an expectation is multiplied by a number other than zero, got {factor!r}")
        return self._combine(0.0, float(number), 1.0)

    __rmul__ = __mul__

    def __truediv__(self, divisor: float) -> E:
        return self * (1 / divisor)

    def __rtruediv__(self, _: object) -> NoReturn:
        raise TypeError("one over an expectation is not linear in the posterior; write E(lambda v: 1 / f(v))")

    def __abs__(self) -> NoReturn:
        raise TypeError("write E(f).between(-b, b) for abs(E(f)) <= b, and E(lambda v: abs(f(v))) for the mean size")

    def __neg__(self) -> E:
        return self * -1

    def __pow__(self, _: object) -> NoReturn:
        raise TypeError(
            "a power of an expectation is not linear in the posterior: write E(lambda v: f(v)**2) for the expectation "
            "of a square, and Var(f) with regularize_moments for a variance"
        )

    def __ne__(self, _: object) -> NoReturn:
        raise TypeError("an expectation cannot be constrained to differ from a value: the set is not convex")

    def __repr__(self) -> str:
        return f"E({self.name})"


class Conditional(_Statistic[Constraint]):
    """The conditional expectation of features given an event."""

    def __init__(self, expectation: E, event: Any, event_name: str) -> None:
        self.features = expectation.features
        self.event = event
        self.name = expectation.name
        self.event_name = event_name
        self._named = expectation._named

    def on_event(self, level: ArrayLike) -> OnEvent:
        """Return the features minus a level on the event, and zero otherwise."""
        return OnEvent(self.features, self.event, np.atleast_1d(np.asarray(_number(level), dtype=np.float64)))

    def between(self, low: ArrayLike, high: ArrayLike) -> list[Constraint]:
        """``low <= E[psi | event] <= high``, as two constraints."""
        return [self >= low, self <= high]

    def _compare(self, sign: Literal["<=", ">=", "=="], value: Any) -> Constraint:
        given = self.on_event(value)
        if not np.all(np.isfinite(given.level)):
            raise ValueError(f"a conditional expectation is compared with finite numbers, got {value!r}")
        event = self.event_name.replace("{", "{{").replace("}", "}}")
        relation = f"E(({{}} - {{value}}) 1[{event}]) {sign} 0"
        return Constraint(given, HARD[sign](0.0), self.name, relation, given.level, None, self._named)

    def __repr__(self) -> str:
        return f"E({self.name} | {self.event_name})"


@dataclass(frozen=True, eq=False)
class MomentConstraint:
    """Constraint on a variance or a correlation, nonlinear in the posterior."""

    features: tuple[Any, ...]  # one for a variance, two for a correlation
    sign: str  # <=, >= or ==
    value: float
    name: str

    def __bool__(self) -> NoReturn:
        raise TypeError(CHAINED.replace("E(psi)", "Var(psi)").replace("Var(psi).between(a, b), or ", ""))

    def __repr__(self) -> str:
        return f"{self.name} {self.sign} {self.value:g}"


class _Moment(_Statistic[MomentConstraint]):
    """A variance or a correlation."""

    features: tuple[Any, ...]
    name: str
    lowest: float
    highest: float

    def _compare(self, sign: Literal["<=", ">=", "=="], value: Any) -> MomentConstraint:
        number = np.asarray(_number(value), dtype=np.float64)
        if number.size != 1 or not self.lowest < float(number) < self.highest:
            between = f"between {self.lowest:g} and {self.highest:g}"
            raise ValueError(f"{self.name} is compared with one number {between}, got {value!r}")
        return MomentConstraint(self.features, sign, float(number), self.name)

    def __repr__(self) -> str:
        return self.name


class Var(_Moment):
    """The variance of a feature, as in ``Var("mu") <= 4``, for `regularize_moments`.

    Examples
    --------
    >>> import numpy as np
    >>> from regbayes import Samples, Var, regularize_moments
    >>> draws = Samples({"mu": np.random.default_rng(0).normal(size=4000)})
    >>> regularize_moments(draws, Var("mu") <= 0.5).after.round(3)
    array([0.5])
    """

    lowest, highest = 0.0, math.inf

    def __init__(self, features: Any, name: str | None = None) -> None:
        self.features = (features,)
        self.name = f"Var({name or _guess_name(features)})"


class Corr(_Moment):
    """The correlation of two features, as in ``Corr("mu", "tau") == 0``.

    Examples
    --------
    >>> import numpy as np
    >>> from regbayes import Corr, Samples, regularize_moments
    >>> mu, noise = np.random.default_rng(0).normal(size=(2, 4000))
    >>> draws = Samples({"mu": mu, "tau": mu + noise})
    >>> regularize_moments(draws, Corr("mu", "tau") == 0.5).after.round(3)
    array([0.5])
    """

    lowest, highest = -1.0, 1.0

    def __init__(self, first: Any, second: Any, name: str | None = None) -> None:
        self.features = (first, second)
        self.name = f"Corr({name or f'{_guess_name(first)}, {_guess_name(second)}'})"


def inside(features: Any) -> Any:
    """Return the features inside E(...), and any other object unchanged."""
    return features.features if isinstance(features, E) else features


def _number(value: ArrayLike) -> ArrayLike:
    if isinstance(value, E | Constraint | Conditional):
        raise TypeError("compare E(psi) with numbers or with another expectation, and a conditional one with numbers")
    if isinstance(value, str):
        raise TypeError(f"compare E(psi) with numbers, not with the text {value!r}")
    if np.iscomplexobj(value):
        raise TypeError(f"compare E(psi) with real numbers, not with {value!r}")
    return value


def _guess_name(features: Any) -> str:
    if isinstance(features, str):
        return features
    name = getattr(features, "__name__", UNNAMED_FEATURE)
    return UNNAMED_FEATURE if name == "<lambda>" else str(name)


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, str) else getattr(value, "__name__", "f").replace("<lambda>", "f")


def _each(numbers: Floats | None, n: int) -> list[str]:
    """Return numbers as text, one for each of n expectations; empty for None."""
    if numbers is None:
        return [""] * n
    written = [f"{number:g}" for number in numbers.tolist()]
    return written * n if len(written) == 1 else written


def _short(numbers: Floats) -> str:
    """Return several numbers in one line, or one number if they are equal."""
    if numbers.size == 1:
        return f"{numbers.item():g}"
    with np.printoptions(precision=4, threshold=6):
        return str(numbers)
