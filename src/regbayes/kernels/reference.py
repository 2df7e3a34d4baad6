"""The kernels in plain NumPy: slow, short, and the law that every other backend is tested against."""

from __future__ import annotations

from regbayes.kernels.reference_assignments import solve_assignments
from regbayes.kernels.reference_margins import (
    box_check,
    box_epoch,
    box_scores,
    box_weights,
    simplex_check,
    simplex_epoch,
    simplex_weights,
)
from regbayes.kernels.reference_meanfield import (
    infer_by_sweeps,
    meanfield_statistics,
    meanfield_sweeps,
    reverse_sweeps,
)
from regbayes.kernels.reference_sweeps import reverse_features, sweep_features
from regbayes.kernels.reference_topics import (
    count_tokens,
    count_words,
    infer_proportions,
    lay_out,
    list_words,
    propose_topics,
    sample_topics,
    sweep_weights,
    tally,
    weight_statistics,
)

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
