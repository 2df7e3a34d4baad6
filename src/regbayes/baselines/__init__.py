"""The systems that the package's own models are compared with, as estimators."""

from __future__ import annotations

from regbayes.baselines.harmonium import ExponentialFamilyHarmonium, MaxMarginHarmoniumClassifier

__all__ = ["ExponentialFamilyHarmonium", "MaxMarginHarmoniumClassifier"]
