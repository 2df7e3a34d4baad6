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
    from regbayes import baselines, datasets, metrics, plots, regularizers, report, search
    from regbayes.estimators import (
        FeatureStability,
        GridEdgeWarning,
        IBPFactorAnalysis,
        ILSVMClassifier,
        ILSVMClassifierCV,
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
        feature_stability,
    )
    from regbayes.framework.constraints import Corr, E, Var
    from regbayes.framework.empirical_bayes import empirical_bayes
    from regbayes.framework.moments import RegularizedMoments, regularize_moments
    from regbayes.framework.posteriors import Finite, Gaussian, Samples
    from regbayes.framework.regularize import (
        InfeasibleError,
        NotConvergedWarning,
        UnreliableWeightsWarning,
        regularize,
    )
    from regbayes.framework.result import RegularizedPosterior
    from regbayes.persistence import load

__version__ = "0.1.0"

_HOMES = {
    "regbayes.estimators": (
        "FeatureStability",
        "GridEdgeWarning",
        "IBPFactorAnalysis",
        "ILSVMClassifier",
        "ILSVMClassifierCV",
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
        "feature_stability",
    ),
    "regbayes.framework.constraints": ("Corr", "E", "Var"),
    "regbayes.framework.empirical_bayes": ("empirical_bayes",),
    "regbayes.framework.moments": ("RegularizedMoments", "regularize_moments"),
    "regbayes.framework.posteriors": ("Finite", "Gaussian", "Samples"),
    "regbayes.framework.regularize": (
        "InfeasibleError",
        "NotConvergedWarning",
        "UnreliableWeightsWarning",
        "regularize",
    ),
    "regbayes.framework.result": ("RegularizedPosterior",),
    "regbayes.persistence": ("load",),
}

_MODULES = ("baselines", "datasets", "metrics", "plots", "regularizers", "report", "search")
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

# A saved file may hold classes of any of these; they are imported when a file names a class that is not known yet.
for _module in (
    *_HOMES,
    "regbayes.estimators._scikit_learn_parts",
    "regbayes.baselines",
    "regbayes.report.data",
    "regbayes.cli.modelfile",
):
    declare_provider(_module)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"regbayes.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'regbayes' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


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
    "InfeasibleError",
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
    "Samples",
    "TruncationWarning",
    "UnreliableWeightsWarning",
    "Var",
    "__version__",
    "baselines",
    "datasets",
    "empirical_bayes",
    "feature_stability",
    "load",
    "metrics",
    "plots",
    "regularize",
    "regularize_moments",
    "regularizers",
    "report",
    "search",
]
