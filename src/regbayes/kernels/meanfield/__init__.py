"""Mean field of topic models: compiled loops over documents, and a CUDA kernel with its launcher (`cuda`)."""

from __future__ import annotations

from regbayes.kernels.meanfield.documents import (
    TINY,
    Prior,
    WordCounts,
    meanfield_statistics,
    meanfield_sweeps,
    reverse_sweeps,
)

__all__ = ["TINY", "Prior", "WordCounts", "meanfield_statistics", "meanfield_sweeps", "reverse_sweeps"]
