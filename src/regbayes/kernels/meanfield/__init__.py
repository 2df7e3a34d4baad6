"""Mean field of topic models: compiled loops over documents, and CUDA kernels with their launcher (`cuda`)."""

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
