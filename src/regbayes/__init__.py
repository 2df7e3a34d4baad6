"""Bayesian inference with posterior regularization.

Take a posterior and constraints on its expectations, and get the closest distribution that satisfies them, with a
multiplier for each constraint.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from regbayes._registry import declare_provider

# Names are imported when they are first used, so that the command line starts fast. Type checkers and editors read this
# list; at run time _HOMES gives the module of each name, and a test checks that both agree.
if TYPE_CHECKING:
    from regbayes import datasets, metrics, plots, ppl, regularizers, report, search
    from regbayes.estimators._bases import PoorFitWarning, TruncationWarning, UnscaledWarning
    from regbayes.estimators._search import GridEdgeWarning
    from regbayes.estimators.checkpoint import Checkpoint
    from regbayes.estimators.cv import (
        ILSVMClassifierCV,
        ILSVMRegressorCV,
        MedLDAClassifierCV,
        MedLDARegressorCV,
        MultiTaskILSVMClassifierCV,
        MultiTaskILSVMRegressorCV,
    )
    from regbayes.estimators.ibp import IBPFactorAnalysis
    from regbayes.estimators.ilsvm import ILSVMClassifier
    from regbayes.estimators.ilsvm_regressor import ILSVMRegressor
    from regbayes.estimators.medlda import MedLDAClassifier, MedLDARegressor
    from regbayes.estimators.multitask import MultiTaskILSVMClassifier, MultiTaskILSVMRegressor
    from regbayes.estimators.own_model import MarginClassifier
    from regbayes.estimators.path_search import PathSearchCV
    from regbayes.estimators.stability import FeatureStability, feature_stability
    from regbayes.estimators.thresholds import MultiLabelThresholdCV
    from regbayes.persistence import load
    from regbayes.regularization.constraints import Corr, E, Var
    from regbayes.regularization.empirical_bayes import empirical_bayes
    from regbayes.regularization.moments import RegularizedMoments, regularize_moments
    from regbayes.regularization.posteriors import Finite, Gaussian, Samples
    from regbayes.regularization.regularize import (
        InfeasibleError,
        NotConvergedWarning,
        UnreliableWeightsWarning,
        regularize,
    )
    from regbayes.regularization.result import RegularizedPosterior
    from regbayes.resampling.resample import resample
    from regbayes.resampling.result import ResampledPosterior
    from regbayes.resampling.tempering import SamplingError

__version__ = "0.2.0.dev0"

_HOMES = {
    "regbayes.estimators._bases": ("PoorFitWarning", "TruncationWarning", "UnscaledWarning"),
    "regbayes.estimators._search": ("GridEdgeWarning",),
    "regbayes.estimators.checkpoint": ("Checkpoint",),
    "regbayes.estimators.cv": (
        "ILSVMClassifierCV",
        "ILSVMRegressorCV",
        "MedLDAClassifierCV",
        "MedLDARegressorCV",
        "MultiTaskILSVMClassifierCV",
        "MultiTaskILSVMRegressorCV",
    ),
    "regbayes.estimators.ibp": ("IBPFactorAnalysis",),
    "regbayes.estimators.ilsvm": ("ILSVMClassifier",),
    "regbayes.estimators.ilsvm_regressor": ("ILSVMRegressor",),
    "regbayes.estimators.medlda": ("MedLDAClassifier", "MedLDARegressor"),
    "regbayes.estimators.multitask": ("MultiTaskILSVMClassifier", "MultiTaskILSVMRegressor"),
    "regbayes.estimators.own_model": ("MarginClassifier",),
    "regbayes.estimators.path_search": ("PathSearchCV",),
    "regbayes.estimators.stability": ("FeatureStability", "feature_stability"),
    "regbayes.estimators.thresholds": ("MultiLabelThresholdCV",),
    "regbayes.regularization.constraints": ("Corr", "E", "Var"),
    "regbayes.regularization.empirical_bayes": ("empirical_bayes",),
    "regbayes.regularization.moments": ("RegularizedMoments", "regularize_moments"),
    "regbayes.regularization.posteriors": ("Finite", "Gaussian", "Samples"),
    "regbayes.regularization.regularize": (
        "InfeasibleError",
        "NotConvergedWarning",
        "UnreliableWeightsWarning",
        "regularize",
    ),
    "regbayes.resampling.resample": ("resample",),
    "regbayes.resampling.tempering": ("SamplingError",),
    "regbayes.resampling.result": ("ResampledPosterior",),
    "regbayes.regularization.result": ("RegularizedPosterior",),
    "regbayes.persistence": ("load",),
}

_MODULES = ("datasets", "metrics", "plots", "ppl", "regularizers", "report", "search")
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

# Modules whose classes a saved file may contain. They are imported when a file names an unknown class, those with a
# class of that name first.
for _home, _names in _HOMES.items():
    declare_provider(_home, tuple(f"regbayes.{_name}" for _name in _names))
declare_provider("regbayes.estimators._scikit_learn_parts", ("sklearn.",))
declare_provider("regbayes.report.data", ("regbayes.report.",))
declare_provider("regbayes.cli.modelfile", ("regbayes.cli.",))


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"regbayes.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'regbayes' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "Checkpoint",
    "Corr",
    "E",
    "FeatureStability",
    "Finite",
    "Gaussian",
    "GridEdgeWarning",
    "IBPFactorAnalysis",
    "ILSVMClassifier",
    "ILSVMClassifierCV",
    "ILSVMRegressor",
    "ILSVMRegressorCV",
    "InfeasibleError",
    "MarginClassifier",
    "MedLDAClassifier",
    "MedLDAClassifierCV",
    "MedLDARegressor",
    "MedLDARegressorCV",
    "MultiLabelThresholdCV",
    "MultiTaskILSVMClassifier",
    "MultiTaskILSVMClassifierCV",
    "MultiTaskILSVMRegressor",
    "MultiTaskILSVMRegressorCV",
    "NotConvergedWarning",
    "PathSearchCV",
    "PoorFitWarning",
    "RegularizedMoments",
    "RegularizedPosterior",
    "ResampledPosterior",
    "Samples",
    "SamplingError",
    "TruncationWarning",
    "UnreliableWeightsWarning",
    "UnscaledWarning",
    "Var",
    "__version__",
    "datasets",
    "empirical_bayes",
    "feature_stability",
    "load",
    "metrics",
    "plots",
    "ppl",
    "regularize",
    "regularize_moments",
    "regularizers",
    "report",
    "resample",
    "search",
]
