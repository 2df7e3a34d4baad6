"""Estimators and `regbayes.regularize` for data on the workers of a Dask cluster."""

from regbayes.dask.draws import Samples
from regbayes.dask.latent import IBPFactorAnalysis, ILSVMClassifier, ILSVMRegressor
from regbayes.dask.tasks import MultiTaskILSVMClassifier, MultiTaskILSVMRegressor
from regbayes.dask.topics import MedLDAClassifier, MedLDARegressor

__all__ = [
    "IBPFactorAnalysis",
    "ILSVMClassifier",
    "ILSVMRegressor",
    "MedLDAClassifier",
    "MedLDARegressor",
    "MultiTaskILSVMClassifier",
    "MultiTaskILSVMRegressor",
    "Samples",
]
