"""Regularizers: what must hold of expectations, and what it costs when it does not."""

from __future__ import annotations

from regbayes.regularization.regularizers.base import Regularizer
from regbayes.regularization.regularizers.combinations import Blocks, Reflected, Scaled, Shifted, Signed, Sum
from regbayes.regularization.regularizers.margins import (
    EpsilonInsensitive,
    Hinge,
    MultiClassHinge,
    MultiClassSquaredHinge,
)
from regbayes.regularization.regularizers.targets import KL, AtLeast, AtMost, Ball, Equal, GeneralizedKL, Ridge

__all__ = [
    "KL",
    "AtLeast",
    "AtMost",
    "Ball",
    "Blocks",
    "EpsilonInsensitive",
    "Equal",
    "GeneralizedKL",
    "Hinge",
    "MultiClassHinge",
    "MultiClassSquaredHinge",
    "Reflected",
    "Regularizer",
    "Ridge",
    "Scaled",
    "Shifted",
    "Signed",
    "Sum",
]
