"""The compiled kernels: the same names and meanings as ``reference``."""

from __future__ import annotations

from regbayes.kernels.cpu_sweeps import reverse_features, sweep_features

__all__ = ["reverse_features", "sweep_features"]
