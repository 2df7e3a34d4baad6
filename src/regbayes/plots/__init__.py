"""Display classes that store plain arrays and import matplotlib only for plotting."""

from __future__ import annotations

from regbayes.plots.models import (
    FeatureUseDisplay,
    FeatureWeightsDisplay,
    ObjectiveDisplay,
    TaskRelationsDisplay,
    TopWordsDisplay,
)
from regbayes.plots.posterior import DualMultipliersDisplay, PosteriorShiftDisplay

__all__ = [
    "DualMultipliersDisplay",
    "FeatureUseDisplay",
    "FeatureWeightsDisplay",
    "ObjectiveDisplay",
    "PosteriorShiftDisplay",
    "TaskRelationsDisplay",
    "TopWordsDisplay",
]
