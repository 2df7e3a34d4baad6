"""Bayesian inference with posterior regularization.

Take a posterior, say what must hold of it in expectation, and get the closest distribution for which it does, with
the multipliers that say what each constraint cost.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from regbayes._registry import declare_provider

# The names below are imported when they are first used, so that the command line answers at once. Type checkers and
# editors read this list; at run time _HOMES says where each name lives, and a test holds the two together.
if TYPE_CHECKING:
    from regbayes import datasets, metrics, plots, ppl, regularizers, report, search
    from regbayes.estimators import (
        FeatureStability,
        GridEdgeWarning,
        IBPFactorAnalysis,
        ILSVMClassifier,
        ILSVMClassifierCV,
        ILSVMRegressor,
        ILSVMRegressorCV,
        MarginClassifier,
        MedLDAClassifier,
        MedLDAClassifierCV,
        MedLDARegressor,
        MedLDARegressorCV,
        MultiLabelThresholdCV,
        MultiTaskILSVMClassifier,
        MultiTaskILSVMClassifierCV,
        MultiTaskILSVMRegressor,
        MultiTaskILSVMRegressorCV,
        PathSearchCV,
        PoorFitWarning,
        TruncationWarning,
        UnscaledWarning,
        feature_stability,
    )
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
    "regbayes.estimators": (
        "FeatureStability",
        "GridEdgeWarning",
        "IBPFactorAnalysis",
        "ILSVMClassifier",
        "ILSVMClassifierCV",
        "ILSVMRegressor",
        "ILSVMRegressorCV",
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
        "PathSearchCV",
        "PoorFitWarning",
        "TruncationWarning",
        "UnscaledWarning",
        "feature_stability",
    ),
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

# A saved file may hold classes of any of these; they are imported when a file names a class that is not known yet.
# Those whose names say where they are come first, so that a file of one estimator does not import the others.
for _module, _names in (
    ("regbayes.estimators._scikit_learn_parts", ("sklearn.",)),
    ("regbayes.report.data", ("regbayes.report.",)),
    ("regbayes.cli.modelfile", ("regbayes.cli.",)),
    ("regbayes.estimators.ilsvm", ("regbayes.ILSVMClassifier",)),
    ("regbayes.estimators.ilsvm_regressor", ("regbayes.ILSVMRegressor",)),
    ("regbayes.estimators.multitask", ("regbayes.MultiTaskILSVMClassifier", "regbayes.MultiTaskILSVMRegressor")),
    ("regbayes.estimators.medlda", ("regbayes.MedLDAClassifier",)),
    ("regbayes.estimators.medlda_regressor", ("regbayes.MedLDARegressor",)),
    ("regbayes.estimators.ibp", ("regbayes.IBPFactorAnalysis",)),
    (
        "regbayes.estimators.cv",
        tuple(f"regbayes.{name}" for name in _HOMES["regbayes.estimators"] if name.endswith("rCV")),
    ),
    ("regbayes.estimators.path_search", ("regbayes.PathSearchCV",)),
    ("regbayes.estimators.own_model", ("regbayes.MarginClassifier",)),
    ("regbayes.estimators.stability", ("regbayes.FeatureStability",)),
    ("regbayes.estimators.thresholds", ("regbayes.MultiLabelThresholdCV",)),
    *((home, ()) for home in _HOMES if home != "regbayes.estimators"),
):
    declare_provider(_module, _names)


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
