"""Display classes: they hold plain arrays, and import matplotlib when they plot."""

from __future__ import annotations

from regbayes.plots.latent import FeatureUseDisplay, ObjectiveDisplay
from regbayes.plots.posterior import DualMultipliersDisplay, PosteriorShiftDisplay

__all__ = ["DualMultipliersDisplay", "FeatureUseDisplay", "ObjectiveDisplay", "PosteriorShiftDisplay"]
