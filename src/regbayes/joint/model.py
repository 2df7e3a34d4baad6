"""What a model writes to be learned under a head."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Generic, Protocol, Self, TypeVar

from regbayes._types import Floats, Reals
from regbayes.engine import Executor
from regbayes.margins.head import Tolerance

Params = TypeVar("Params")
Stats = TypeVar("Stats", bound="RowSums")
Pulled = TypeVar("Pulled", bound="RowSums")
Rows = TypeVar("Rows")


@dataclass(frozen=True)
class RowSums:
    """Sums over rows, for dataclasses of numbers and arrays: those of two blocks are added field by field."""

    def __add__(self, other: Self) -> Self:
        return type(self)(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def scale(self, factor: float) -> Self:
        """Return the sums times a number: what rows that stand for others sum up to."""
        return type(self)(*(factor * getattr(self, f.name) for f in fields(self)))


@dataclass(frozen=True)
class Inferred(Generic[Stats]):
    """What inference finds for a block of rows."""

    features: Reals  # (n, K): what the head sees
    stats: Stats
    cache: Any = None  # what `pull_back` would otherwise compute again


class Fitted(Protocol):
    """A head that was solved for at the features of all rows."""

    @property
    def terms(self) -> Mapping[str, float]:
        """What it adds to the objective."""

    @property
    def value(self) -> float:
        """Their sum."""

    @property
    def gap(self) -> float:
        """The value is above its minimum by this at most."""

    @property
    def warm_start(self) -> Any:
        """What the next solve may start from."""

    def gradient(self, rows: slice, features: Reals) -> Floats:
        """Return the derivative of the value by the features of a block of rows, which are given again, (n, K)."""


class Head(Protocol):
    """What is asked of the features of the rows with targets: a large-margin problem."""

    def solve(
        self, features: Reals | Sequence[Reals], warm_start: Any, tolerance: Tolerance, executor: Executor | None = None
    ) -> Fitted:
        """Solve it at the features of all rows, in one array or in blocks, from where an earlier solve ended."""


class JointModel(ABC, Generic[Rows, Params, Stats, Pulled]):
    """A generative model with features of rows, inferred without labels.

    Samples come in blocks; functions of a block are pure, and their sums add up, so threads, clusters and mini-batches
    call the same functions. Descent moves one array of the parameters, `position`; others may have closed forms
    (`update_blocks`).
    """

    @abstractmethod
    def infer(self, rows: Rows, params: Params) -> Inferred[Stats]:
        """Infer the features of rows without their labels, and sum what the rest of the model needs."""

    @abstractmethod
    def pull_back(self, rows: Rows, params: Params, inferred: Inferred[Stats], gradient: Floats | None) -> Pulled:
        """Turn a gradient by the features into sums that `gradient` takes.

        Parameters
        ----------
        rows : Rows
        params : Params
        inferred : Inferred
            What `infer` returned for these rows and parameters.
        gradient : array of shape (n, K), or None
            Of the head's value, a new array that may be overwritten. None: there is no head.
        """

    @abstractmethod
    def terms(self, params: Params, stats: Stats) -> Mapping[str, float]:
        """Return the named generative terms of the objective, constants kept; ``inf`` where there is no such model."""

    @abstractmethod
    def gradient(self, params: Params, stats: Stats, pulled: Pulled) -> Reals:
        """Return the gradient of the whole objective with respect to `position`."""

    @abstractmethod
    def position(self, params: Params) -> Reals:
        """Return the array that descent moves."""

    @abstractmethod
    def move(self, params: Params, position: Reals) -> Params:
        """Return the parameters with another position."""

    def for_blocks(self, params: Params) -> tuple[JointModel[Any, Any, Any, Any], Any]:
        """Return what `infer` and `pull_back` need of the model and the parameters, which is sent to the blocks."""
        return self, params

    def precondition(self, params: Params, stats: Stats) -> Callable[[Reals], Reals] | None:
        """Return a first guess at the inverse curvature, linear and positive definite; the identity by default."""
        return None

    def first_length(self, params: Params) -> float | None:
        """Return the length of the first step, where nothing is known of the curvature; by default the gradient's."""
        return None

    def update_blocks(self, params: Params, stats: Stats) -> Params | None:
        """Return the parameters with other blocks in closed form; tried now and then, kept where J does not rise."""
        return None
