"""Regularizers: hard constraints and penalties on expectations."""

from __future__ import annotations

from regbayes.regularization.regularizers.base import Regularizer
from regbayes.regularization.regularizers.combinations import Affine, Separable, Sum
from regbayes.regularization.regularizers.margins import (
    EpsilonInsensitive,
    Hinge,
    MultiClassHinge,
    MultiClassSquaredHinge,
)
from regbayes.regularization.regularizers.targets import (
    KL,
    AtLeast,
    AtMost,
    Ball,
    Equal,
    GeneralizedKL,
    Interval,
    Ridge,
)

__all__ = [
    "KL",
    "Affine",
    "AtLeast",
    "AtMost",
    "Ball",
    "EpsilonInsensitive",
    "Equal",
    "GeneralizedKL",
    "Hinge",
    "Interval",
    "MultiClassHinge",
    "MultiClassSquaredHinge",
    "Regularizer",
    "Ridge",
    "Separable",
    "Sum",
]
