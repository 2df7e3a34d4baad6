"""Estimators over rows on the workers of a Dask cluster."""

from regbayes.dask.latent import IBPFactorAnalysis, ILSVMClassifier
from regbayes.dask.tasks import MultiTaskILSVMClassifier, MultiTaskILSVMRegressor
from regbayes.dask.topics import MedLDAClassifier, MedLDARegressor

__all__ = [
    "IBPFactorAnalysis",
    "ILSVMClassifier",
    "MedLDAClassifier",
    "MedLDARegressor",
    "MultiTaskILSVMClassifier",
    "MultiTaskILSVMRegressor",
]
