"""Summaries of samples that a fit needs before it begins, as sums over blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regbayes._types import Floats, Integers
from regbayes.engine import row_blocks
from regbayes.engine.source import Ranges, Samples
from regbayes.estimators._bases import check_labels, check_several, weights_by_class
from regbayes.joint.model import RowSums
from regbayes.kernels.arrays import ROOM, gather, is_plain, namespace_of, pieces, sum_squares, to_device


@dataclass(frozen=True)
class Moments:
    """Weight, mean and spread of columns, merged without cancellation (Chan et al. 1983)."""

    weight: Any  # of all samples; (D,) if not every sample has every column
    mean: Floats  # weight of all samples; (D,) if some columns have missing values
    squares: Floats  # (D,): weighted sum of squared differences from the mean

    def __add__(self, other: Moments) -> Moments:
        total, apart = self.weight + other.weight, other.mean - self.mean
        share = other.weight / np.where(total > 0, total, 1.0)
        squares = self.squares + other.squares + self.weight * share * np.square(apart)
        return Moments(total, self.mean + share * apart, squares)

    @classmethod
    def of_block(cls, block: Samples) -> Moments:
        """Return the moments of the columns of a block."""
        return cls.of(block.X, block.weights)

    @classmethod
    def of(cls, values: Any, weights: Floats | None) -> Moments:
        """Return the moments of values (n, D) of any namespace."""
        n, D = values.shape
        counts = np.ones(n) if weights is None else weights
        total, sums, squares = float(counts.sum()), np.zeros(D), np.zeros(D)
        slices = row_blocks(n) if is_plain(values) else pieces(n, max(1, ROOM // D))
        with np.errstate(over="ignore", invalid="ignore"):
            for rows in slices if n else ():
                xp, part = namespace_of(values), values[rows, :]
                there = to_device(counts[rows], part, xp.float64)
                sums += gather(there @ xp.astype(part, xp.float64, copy=False))[0]
            mean = sums / total if total else sums
            for rows in slices if n else ():
                squares += sum_squares(values[rows, :], mean, counts[rows])
        return cls(total, mean, squares)

    def rounded(self) -> Moments:
        """Return the moments rounded to 40 bits, so that they do not depend on the blocks of samples.

        The structure search amplifies rounding errors.
        """
        size = np.abs(self.mean) + np.sqrt(self.squares / self.weight)
        return Moments(self.weight, _round_to(self.mean, size), _round_to(self.squares, self.squares))

    @property
    def mean_square(self) -> float:
        """The mean squared distance of a sample from the mean."""
        with np.errstate(over="ignore", invalid="ignore"):
            found = float(self.squares.sum() / self.weight)
        if not np.isfinite(found):
            raise ValueError("X is too large to square it: give it in other units")
        return found


def _round_to(values: Floats, size: Floats) -> Floats:
    grid = np.exp2(np.ceil(np.log2(np.maximum(size, 1e-300))) - 40)
    return np.round(values / grid) * grid


@dataclass(frozen=True)
class Spread(RowSums):
    """Moments and ranges of columns, or of the targets of each task."""

    moments: Moments
    ranges: Ranges

    def measure(self, scaled: bool) -> tuple[Floats, Floats]:
        """Return mean and scale; a constant column has scale 1, one constant up to rounding its largest value."""
        moments, (lowest, highest) = self.moments, self.ranges.array()
        fixed, size = lowest == highest, np.maximum(np.abs(lowest), np.abs(highest))
        spread = np.sqrt(moments.squares / np.where(moments.weight > 0, moments.weight, 1.0))
        scale = np.where(spread > 10 * np.finfo(np.float64).eps * size, spread, size)
        return np.where(fixed, lowest, moments.mean), np.where(fixed | (not scaled), 1.0, scale)

    @classmethod
    def of_groups(cls, values: Floats, group: Integers, weights: Floats | None, n_groups: int) -> Spread:
        """Return moments and ranges of the values of each group."""
        weights = np.ones(len(values)) if weights is None else weights
        total = np.bincount(group, weights, minlength=n_groups)
        mean = np.bincount(group, weights * values, minlength=n_groups) / np.where(total > 0, total, 1.0)
        squares = np.bincount(group, weights * np.square(values - mean[group]), minlength=n_groups)
        lowest, highest = np.full(n_groups, np.inf), np.full(n_groups, -np.inf)
        np.minimum.at(lowest, group, values)
        np.maximum.at(highest, group, values)
        return cls(Moments(total, mean, squares), Ranges(lowest, highest))


@dataclass(frozen=True)
class Labels:
    """The classes of samples, with their counts and weights."""

    classes: NDArray[Any]
    counts: Integers  # (classes,)
    weights: Floats  # (classes,)
    n_rest: int = 0  # number of unlabeled samples
    rest_weight: float = 0.0

    def __add__(self, other: Labels) -> Labels:
        classes = join_classes(self.classes, other.classes)
        counts, weights = np.zeros(len(classes), np.int64), np.zeros(len(classes))
        for part in (self, other) if len(classes) else ():
            places = np.searchsorted(classes, part.classes)
            counts[places] += part.counts
            weights[places] += part.weights
        return Labels(classes, counts, weights, self.n_rest + other.n_rest, self.rest_weight + other.rest_weight)

    @classmethod
    def of(cls, block: Samples, unlabeled: Any = None) -> Labels:
        """Return the classes of a block."""
        y, weights = block.y, np.ones(len(block)) if block.weights is None else block.weights
        assert y is not None
        if y.ndim != 1:
            raise ValueError(f"y must be one column of labels, got shape {y.shape} in a block")
        labeled = np.ones(len(y), dtype=bool) if unlabeled is None else np.asarray(y != unlabeled, dtype=bool)
        if labeled.any():
            check_labels(y[labeled])
        classes, codes = np.unique(y[labeled], return_inverse=True)
        counts, totals = (np.bincount(codes, own, len(classes)) for own in (None, weights[labeled]))
        rest = weights[~labeled]
        return cls(classes, counts.astype(np.int64), totals.astype(np.float64), len(rest), float(rest.sum()))

    def check(self, estimator: Any, unlabeled: Any = None) -> None:
        """Raise an error for fewer than two classes."""
        if self.n_rest and not len(self.classes):
            raise ValueError(f"no row has a label: all of y is {unlabeled!r}, the value of unlabeled")
        check_several(estimator, self.classes)

    def weights_by_class(self, class_weight: Any) -> Floats:
        """Return the factor of each class for scikit-learn's ``class_weight``."""
        return weights_by_class(class_weight, self.classes, np.arange(len(self.classes)), self.weights)


def join_classes(one: NDArray[Any], other: NDArray[Any], name: str = "labels in y are") -> NDArray[Any]:
    """Return the classes or tasks of two blocks as one array."""
    if not len(one) or not len(other):
        return one if len(one) else other
    if isinstance(one.tolist()[0], str) != isinstance(other.tolist()[0], str):
        raise ValueError(
            f"{name} text in some blocks and numbers in others ({one.tolist()[0]!r}, {other.tolist()[0]!r}): "
            "give all blocks one dtype"
        )
    return np.union1d(one, other)


def code_labels(block: Samples, classes: NDArray[Any], unlabeled: Any, rest: int) -> Integers:
    """Return the class code of each sample, ``rest`` for unlabeled samples."""
    assert block.y is not None
    codes = np.full(len(block), rest, dtype=np.int64)
    labeled = np.ones(len(block), dtype=bool) if unlabeled is None else np.asarray(block.y != unlabeled, dtype=bool)
    codes[labeled] = np.searchsorted(classes, block.y[labeled])
    return codes


def read_numbers(block: Samples, unlabeled: Any = None) -> Floats:
    """Return the targets of a block as new numbers, (n, outputs), NaN where missing."""
    assert block.y is not None
    try:
        values = np.array(block.y, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"y must hold numbers, got {block.y[:1].tolist()} in a block") from None
    values = values.reshape(len(block), -1)
    if unlabeled is not None:
        values[values == unlabeled] = np.nan
    return values


def spread_of_targets(block: Samples, unlabeled: Any = None) -> Spread:
    """Return moments and ranges of the observed numbers of each output."""
    values = read_numbers(block, unlabeled)
    rows, outputs = np.nonzero(~np.isnan(values))
    weights = None if block.weights is None else block.weights[rows]
    return Spread.of_groups(values[rows, outputs], outputs, weights, values.shape[1])
