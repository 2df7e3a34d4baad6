"""Estimators over rows on the workers of a Dask cluster."""

from regbayes.dask.latent import IBPFactorAnalysis, ILSVMClassifier

__all__ = ["IBPFactorAnalysis", "ILSVMClassifier"]
