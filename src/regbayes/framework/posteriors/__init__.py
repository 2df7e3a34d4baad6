"""Posteriors that can be tilted: enumerated models, Gaussians, and draws from anywhere."""

from __future__ import annotations

from regbayes.framework.posteriors.base import Posterior
from regbayes.framework.posteriors.gaussian import Gaussian
from regbayes.framework.posteriors.weighted import Finite, Samples

__all__ = ["Finite", "Gaussian", "Posterior", "Samples"]
