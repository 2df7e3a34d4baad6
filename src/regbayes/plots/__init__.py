"""Display classes: they hold plain arrays, and import matplotlib when they plot."""

from __future__ import annotations

from regbayes.plots.components import FeatureWeightsDisplay, TopWordsDisplay
from regbayes.plots.latent import FeatureUseDisplay, ObjectiveDisplay
from regbayes.plots.posterior import DualMultipliersDisplay, PosteriorShiftDisplay
from regbayes.plots.rounds import RoundsDisplay
from regbayes.plots.stability import FeatureStabilityDisplay
from regbayes.plots.tasks import TaskRelationsDisplay

__all__ = [
    "DualMultipliersDisplay",
    "FeatureStabilityDisplay",
    "FeatureUseDisplay",
    "FeatureWeightsDisplay",
    "ObjectiveDisplay",
    "PosteriorShiftDisplay",
    "RoundsDisplay",
    "TaskRelationsDisplay",
    "TopWordsDisplay",
]
