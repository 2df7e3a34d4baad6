"""What is known: the data, the settings, and the posterior as it stands. Frozen, with the shape beside each field."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regbayes.persistence import persistable

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Data:
    """Rows and their labels."""

    X: Floats  # (n, D)
    signs: Floats  # (n,): +1 or -1


@dataclass(frozen=True)
class Settings:
    """What the user chose."""

    C: float  # price of a margin violation
    shape: float  # of the precisions' gamma prior
    rate: float


@persistable(name="relevant_inputs.State")
@dataclass(frozen=True)
class State:
    """``q(w) q(tau)``, and the multipliers of the margins, from which the next step starts."""

    mean: Floats  # (D,): of the weights
    variance: Floats  # (D,): of the weights
    multipliers: Floats  # (n,): one per margin, in [0, C]
    shape: Floats  # (D,): of the precisions
    rate: Floats  # (D,)

    @property
    def precision(self) -> Floats:
        """Expected precisions of the weights, shape (D,)."""
        return np.asarray(self.shape / self.rate)
