"""The compiled kernels: the same names and meanings as ``reference``."""

from __future__ import annotations

from regbayes.kernels.cpu_assignments import solve_assignments
from regbayes.kernels.cpu_box import box_check, box_epoch, box_scores, box_weights
from regbayes.kernels.cpu_counting import count_tokens, count_words, lay_out, tally
from regbayes.kernels.cpu_meanfield import (
    infer_by_sweeps,
    meanfield_statistics,
    meanfield_sweeps,
    reverse_sweeps,
)
from regbayes.kernels.cpu_proportions import infer_proportions, sweep_weights, weight_statistics
from regbayes.kernels.cpu_proposals import list_words, propose_topics
from regbayes.kernels.cpu_simplex import simplex_check, simplex_epoch, simplex_weights
from regbayes.kernels.cpu_sweeps import reverse_features, sweep_features
from regbayes.kernels.cpu_topics import sample_topics

__all__ = [
    "box_check",
    "box_epoch",
    "box_scores",
    "box_weights",
    "count_tokens",
    "count_words",
    "infer_by_sweeps",
    "infer_proportions",
    "lay_out",
    "list_words",
    "meanfield_statistics",
    "meanfield_sweeps",
    "propose_topics",
    "reverse_features",
    "reverse_sweeps",
    "sample_topics",
    "simplex_check",
    "simplex_epoch",
    "simplex_weights",
    "solve_assignments",
    "sweep_features",
    "sweep_weights",
    "tally",
    "weight_statistics",
]
