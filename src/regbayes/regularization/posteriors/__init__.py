"""Posteriors that can be tilted: enumerated models, Gaussians and draws."""

from __future__ import annotations

from regbayes.regularization.posteriors.base import Posterior
from regbayes.regularization.posteriors.gaussian import Gaussian
from regbayes.regularization.posteriors.weighted import Finite, Samples

__all__ = ["Finite", "Gaussian", "Posterior", "Samples"]
