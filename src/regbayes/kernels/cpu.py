"""The compiled kernels: the same names and meanings as ``reference``."""

from __future__ import annotations

from regbayes.kernels.cpu_box import box_check, box_epoch, box_scores, box_weights
from regbayes.kernels.cpu_meanfield import (
    infer_by_sweeps,
    meanfield_statistics,
    meanfield_sweeps,
    reverse_sweeps,
)
from regbayes.kernels.cpu_proportions import infer_proportions, weight_statistics
from regbayes.kernels.cpu_simplex import simplex_check, simplex_epoch, simplex_weights
from regbayes.kernels.cpu_sweeps import reverse_features, sweep_features
from regbayes.kernels.cpu_topics import propose_topics, sample_topics

__all__ = [
    "box_check",
    "box_epoch",
    "box_scores",
    "box_weights",
    "infer_by_sweeps",
    "infer_proportions",
    "meanfield_statistics",
    "meanfield_sweeps",
    "propose_topics",
    "reverse_features",
    "reverse_sweeps",
    "sample_topics",
    "simplex_check",
    "simplex_epoch",
    "simplex_weights",
    "sweep_features",
    "weight_statistics",
]
