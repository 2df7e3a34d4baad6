"""Mean field of topic models, with compiled loops and CUDA kernels (`cuda`)."""

from __future__ import annotations

from regbayes.kernels.meanfield.documents import (
    TINY,
    Prior,
    WordCounts,
    as_table,
    even_gamma,
    lengths_of,
    log_likelihoods,
    meanfield_sweeps,
    padded,
    proportion_divergences,
    reverse_sweeps,
)

__all__ = [
    "TINY",
    "Prior",
    "WordCounts",
    "as_table",
    "even_gamma",
    "lengths_of",
    "log_likelihoods",
    "meanfield_sweeps",
    "padded",
    "proportion_divergences",
    "reverse_sweeps",
]
