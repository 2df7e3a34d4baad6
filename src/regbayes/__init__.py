"""Bayesian inference with posterior regularization.

Take a posterior, say what must hold of it in expectation, and get the closest distribution for which it does, with
the multipliers that say what each constraint cost.
"""

from __future__ import annotations

__version__ = "0.1.0"

__all__ = ["__version__"]
