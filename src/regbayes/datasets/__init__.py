"""Simulated data from the priors of the models."""

from __future__ import annotations

from regbayes.datasets.generators import make_ibp_classification, make_ibp_multitask

__all__ = ["make_ibp_classification", "make_ibp_multitask"]
