"""How accurately the large-margin problem inside a descent is solved.

Every evaluation of such an objective solves a problem over classifiers, and is too high by the duality gap at most. A
gap well below what a step gains is good enough to judge the step by; a smaller one is time wasted, a larger one would
hide what was gained.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

SMALLEST_GAP = 1e-8  # beyond this a verdict on a step is not worth waiting for
PATIENT_EPOCHS = 300.0
TIGHTEN = 0.1  # factor on the gap where no step seemed to lower the objective
LONGER, SHORTER = 2.0, 0.7  # factors on the passes, where the gap hid what was gained and where it did not


@dataclass(frozen=True)
class Tolerance:
    """When a large-margin step is good enough."""

    gap: float  # duality gap, relative to the value
    max_epochs: float  # passes over the rows

    def tighten(self) -> Tolerance | None:
        """Return the tolerance to look again with where no step lowers the objective; None where that is hopeless."""
        return Tolerance(max(TIGHTEN * self.gap, SMALLEST_GAP), PATIENT_EPOCHS) if self.gap > SMALLEST_GAP else None


@dataclass(frozen=True)
class ToleranceSchedule:
    """How the tolerance follows what steps gain."""

    first: Tolerance
    gap_share: float  # of what the last step gained: the gap that the next one is judged with
    gap_range: tuple[float, float]  # relative to the value
    epoch_range: tuple[float, float]

    def after(self, before: Tolerance, gained: float, value: float, gap: float) -> Tolerance:
        """Return the tolerance for the step after one that gained so much, and whose solution has a value and a gap."""
        smallest, largest = self.gap_range
        epochs = before.max_epochs * (LONGER if gap > gained else SHORTER)
        wide = self.gap_share * gained >= largest * value  # also where nothing is left to be paid
        relative = largest if wide else max(self.gap_share * (gained / value), smallest)
        return Tolerance(relative, float(np.clip(epochs, *self.epoch_range)))


DEFAULT_SCHEDULE = ToleranceSchedule(
    first=Tolerance(gap=1e-3, max_epochs=20.0), gap_share=0.1, gap_range=(1e-7, 1e-3), epoch_range=(5.0, 40.0)
)
