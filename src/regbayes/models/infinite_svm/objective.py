"""The generative part of the objective as a sum of named terms, constants kept, docs/math.md eq. (100)."""

from __future__ import annotations

import numpy as np
from scipy.special import xlogy

from regbayes._types import Floats
from regbayes.models.infinite_svm.state import Globals, Settings
from regbayes.priors.dirichlet_process import kl_sticks, log_weights
from regbayes.priors.normal_gamma import kl_components, log_likelihoods


def generative_terms(X: Floats, q: Floats, g: Globals, settings: Settings) -> dict[str, float]:
    """``r F`` term by term."""
    r = settings.generative_weight
    expected = q.sum(axis=0) @ log_weights(g.sticks)
    return {
        "likelihood": -r * float(np.vdot(q, log_likelihoods(X, g.components))),
        "kl_assignments": r * float(xlogy(q, q).sum() - expected),
        "kl_sticks": r * kl_sticks(g.sticks, settings.alpha),
        "kl_components": r * kl_components(g.components, settings.prior),
    }
