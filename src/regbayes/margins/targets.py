"""What rows ask of a linear head: classes, signs or numbers, and the loss of missing them as a regularizer of scores.

A loss is a regularizer of the framework, a function of the scores of all rows, and its dual form is all that a solver
sees of it. Prices are part of the targets: a price of zero, or a cell that is not there, asks for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from regbayes._types import Floats, Integers
from regbayes.framework.coordinate_ascent import TaskLayout
from regbayes.framework.regularizers import (
    EpsilonInsensitive,
    Hinge,
    MultiClassHinge,
    MultiClassSquaredHinge,
    Regularizer,
    Shifted,
    Signed,
)


def zero_one_cost(n_classes: int) -> Floats:
    """Return the cost of 1 for every wrong class, shape (n_classes, n_classes)."""
    return 1.0 - np.eye(n_classes)


@dataclass(frozen=True)
class Classes:
    """One of several classes for each row: its score shall exceed every other one by what taking that would cost."""

    labels: Integers  # (n,)
    cost: Floats  # (classes, classes): cost[true, predicted], zero on the diagonal
    C: Floats  # (n,)

    def __post_init__(self) -> None:
        n_classes = len(self.cost)
        if self.cost.shape != (n_classes, n_classes) or np.any(np.diag(self.cost) != 0.0):
            raise ValueError("cost must be a square matrix, with zeros for the true classes")
        if self.labels.size and not (self.labels.min() >= 0 and self.labels.max() < n_classes):
            raise ValueError(f"labels must lie in 0 .. {n_classes - 1}, the columns of cost")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def n_outputs(self) -> int:
        """Scores of a row."""
        return len(self.cost)

    def take(self, rows: Any) -> Classes:
        """Return the targets of some of the rows."""
        return replace(self, labels=self.labels[rows], C=self.C[rows])

    def loss(self, squared: bool) -> Regularizer:
        """Return the multi-class hinge, or its square, of scores less the score of the true class."""
        kind = MultiClassSquaredHinge if squared else MultiClassHinge
        return kind(self.C, self.cost, self.labels)

    def one_vs_rest(self) -> Signs:
        """Return a margin for each class, which is the row's or not. Costs do not enter."""
        signs = np.full((len(self), self.n_outputs), -1.0)
        signs[np.arange(len(self)), self.labels] = 1.0
        return Signs(signs, np.repeat(self.C[:, None], self.n_outputs, axis=1))


@dataclass(frozen=True)
class Signs:
    """A sign for each row and output: ``sign * score`` shall be at least the margin."""

    signs: Floats  # (n, outputs): 1 or -1
    C: Floats  # (n, outputs)
    margin: float = 1.0

    def __len__(self) -> int:
        return len(self.signs)

    @property
    def n_outputs(self) -> int:
        """Scores of a row."""
        return int(self.signs.shape[1])

    def take(self, rows: Any) -> Signs:
        """Return the targets of some of the rows."""
        return replace(self, signs=self.signs[rows], C=self.C[rows])

    def loss(self, squared: bool) -> Regularizer:
        """Return the hinge, or its square, of scores laid out row by row."""
        return hinge_loss(self.signs.ravel(), self.C.ravel(), squared, self.margin)


@dataclass(frozen=True)
class Numbers:
    """A number for each row and output: scores farther from it than epsilon cost something."""

    values: Floats  # (n, outputs)
    C: Floats  # (n, outputs)
    epsilon: float = 0.0

    def __len__(self) -> int:
        return len(self.values)

    @property
    def n_outputs(self) -> int:
        """Scores of a row."""
        return int(self.values.shape[1])

    def take(self, rows: Any) -> Numbers:
        """Return the targets of some of the rows."""
        return replace(self, values=self.values[rows], C=self.C[rows])

    def loss(self, squared: bool) -> Regularizer:
        """Return the epsilon-insensitive loss, or its square, of scores laid out row by row."""
        return tube_loss(self.values.ravel(), self.C.ravel(), squared, self.epsilon)


Targets = Classes | Signs | Numbers


def hinge_loss(signs: Floats, C: Floats, squared: bool, margin: float = 1.0) -> Regularizer:
    """Return ``sum_i C_i max(0, margin - sign_i score_i)``, or with squares, as a regularizer of scores."""
    return Signed(Shifted(Hinge(C, 2.0 if squared else 1.0), by=-margin), -signs)


def tube_loss(values: Floats, C: Floats, squared: bool, epsilon: float = 0.0) -> Regularizer:
    """Return ``sum_i C_i max(0, |score_i - value_i| - epsilon)``, or with squares, as a regularizer of scores."""
    return EpsilonInsensitive(values, epsilon, C, 2.0 if squared else 1.0)


def layout_of(n_rows: int, n_outputs: int) -> TaskLayout:
    """Return the layout of scores row by row: an output is a task of its own."""
    return TaskLayout(
        np.repeat(np.arange(n_rows), n_outputs), np.tile(np.arange(n_outputs), n_rows), np.arange(n_outputs)
    )
