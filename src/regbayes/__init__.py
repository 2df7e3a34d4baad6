"""Bayesian inference with posterior regularization.

Take a posterior, say what must hold of it in expectation, and get the closest distribution for which it does, with
the multipliers that say what each constraint cost.
"""

from __future__ import annotations

from regbayes import metrics, regularizers
from regbayes.estimators import (
    IBPFactorAnalysis,
    ILSVMClassifier,
    ILSVMClassifierCV,
    MultiLabelThresholdCV,
    MultiTaskILSVMClassifier,
    MultiTaskILSVMClassifierCV,
    MultiTaskILSVMRegressor,
    MultiTaskILSVMRegressorCV,
    TruncationWarning,
)
from regbayes.framework.constraints import E
from regbayes.framework.empirical_bayes import empirical_bayes
from regbayes.framework.posteriors import Finite, Gaussian, Samples
from regbayes.framework.regularize import (
    InfeasibleError,
    NotConvergedWarning,
    RegularizedPosterior,
    UnreliableWeightsWarning,
    regularize,
)
from regbayes.persistence import load

__version__ = "0.1.0"

__all__ = [
    "E",
    "Finite",
    "Gaussian",
    "IBPFactorAnalysis",
    "ILSVMClassifier",
    "ILSVMClassifierCV",
    "InfeasibleError",
    "MultiLabelThresholdCV",
    "MultiTaskILSVMClassifier",
    "MultiTaskILSVMClassifierCV",
    "MultiTaskILSVMRegressor",
    "MultiTaskILSVMRegressorCV",
    "NotConvergedWarning",
    "RegularizedPosterior",
    "Samples",
    "TruncationWarning",
    "UnreliableWeightsWarning",
    "__version__",
    "empirical_bayes",
    "load",
    "metrics",
    "regularize",
    "regularizers",
]
