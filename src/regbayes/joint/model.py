"""Interface of models that are learned under a head."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Generic, Self, TypeVar

from regbayes._types import Floats, Reals

Params = TypeVar("Params")
Stats = TypeVar("Stats", bound="RowSums")
Pulled = TypeVar("Pulled", bound="RowSums")
Rows = TypeVar("Rows")


@dataclass(frozen=True)
class RowSums:
    """Base class of sums over samples, which are added field by field."""

    def __add__(self, other: Self) -> Self:
        return type(self)(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def scale(self, factor: float) -> Self:
        """Return the sums times a factor, for a sample that represents more data."""
        return type(self)(*(factor * getattr(self, f.name) for f in fields(self)))


@dataclass(frozen=True)
class Inferred(Generic[Stats]):
    """Result of inference for a block of samples."""

    features: Reals  # (n, K): input of the head
    stats: Stats
    cache: Any = None  # intermediate results for `pull_back`


class JointModel(ABC, Generic[Rows, Params, Stats, Pulled]):
    """A generative model with label-free inference of features.

    Samples come in blocks. Functions of a block are pure and their sums are additive, so threads, clusters and
    mini-batches call the same functions. Descent moves one array of the parameters, `position`; other parameters may
    have closed-form updates (`update_blocks`).
    """

    @abstractmethod
    def infer(self, rows: Rows, params: Params) -> Inferred[Stats]:
        """Infer the features of samples without their labels, and compute the sufficient statistics."""

    @abstractmethod
    def pull_back(self, rows: Rows, params: Params, inferred: Inferred[Stats], gradient: Floats | None) -> Pulled:
        """Backpropagate a gradient by the features to sums for `gradient`.

        Parameters
        ----------
        rows : Rows
        params : Params
        inferred : Inferred
            Result of `infer` for these samples and parameters.
        gradient : array of shape (n, K), or None
            Gradient of the head's value, a new array that may be overwritten; None without a head.
        """

    @abstractmethod
    def terms(self, params: Params, stats: Stats) -> Mapping[str, float]:
        """Return the named generative terms of the objective, including constants; ``inf`` if infeasible."""

    @abstractmethod
    def gradient(self, params: Params, stats: Stats, pulled: Pulled) -> Reals:
        """Return the gradient of the whole objective with respect to `position`."""

    @abstractmethod
    def position(self, params: Params) -> Reals:
        """Return the array that the descent optimizes."""

    @abstractmethod
    def move(self, params: Params, position: Reals) -> Params:
        """Return the parameters at another position."""

    def for_blocks(self, params: Params) -> tuple[JointModel[Any, Any, Any, Any], Any]:
        """Return the model and parameters that `infer` and `pull_back` need, which are sent to the blocks."""
        return self, params

    def precondition(self, params: Params, stats: Stats) -> Callable[[Reals], Reals] | None:
        """Return an initial inverse curvature, linear and positive definite; None for the identity."""
        return None

    def first_length(self, params: Params) -> float | None:
        """Return the length of the first step; None for the norm of the gradient."""
        return None

    def update_blocks(self, params: Params, stats: Stats) -> Params | None:
        """Return closed-form updates of other blocks, or None; kept only if J does not increase."""
        return None
