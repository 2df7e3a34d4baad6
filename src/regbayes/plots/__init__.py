"""Display classes: they hold plain arrays, and import matplotlib when they plot."""

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
