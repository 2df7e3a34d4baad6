"""How accurately the large-margin problem inside a descent is solved.

Every evaluation of such an objective solves a problem over classifiers, and is too high by the duality gap at most. A
gap well below what a step gains is good enough to judge the step by; a smaller one is time wasted, a larger one would
hide what was gained.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from regbayes.framework.large_margin import MarginSolution

LEAST_GAP = 1e-8  # beyond this a verdict on a step is not worth waiting for
PATIENT_EPOCHS = 300.0
SHARPER = 0.1  # factor on the gap where no step seemed to lower the objective
LONGER, SHORTER = 2.0, 0.7  # factors on the passes, where the gap hid what was gained and where it did not


@dataclass(frozen=True)
class Accuracy:
    """When a large-margin step is good enough."""

    gap: float  # duality gap, relative to the value
    max_epochs: float  # passes over the rows

    def sharper(self) -> Accuracy | None:
        """Return the accuracy to look again with where no step lowers the objective; None where that is hopeless."""
        return Accuracy(max(SHARPER * self.gap, LEAST_GAP), PATIENT_EPOCHS) if self.gap > LEAST_GAP else None


@dataclass(frozen=True)
class AccuracyRule:
    """How the accuracy follows what steps gain."""

    gap_share: float  # of what the last step gained: the gap that the next one is judged with
    gap_range: tuple[float, float]  # relative to the value
    epoch_range: tuple[float, float]

    def after(self, before: Accuracy, gained: float, solution: MarginSolution) -> Accuracy:
        """Return the accuracy for the step after one that gained so much and ended at a solution."""
        least, most = self.gap_range
        epochs = before.max_epochs * (LONGER if solution.gap > gained else SHORTER)
        wide = self.gap_share * gained >= most * solution.primal  # also where nothing is left to be paid
        gap = most if wide else max(self.gap_share * (gained / solution.primal), least)
        return Accuracy(gap, float(np.clip(epochs, *self.epoch_range)))
