"""Thin scikit-learn shells: validate, delegate, unpack.

An estimator is imported when its name is first used: a command that predicts needs one of them, and not the others.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regbayes.estimators._bases import PoorFitWarning, TruncationWarning, UnscaledWarning
    from regbayes.estimators._search import GridEdgeWarning
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
    from regbayes.estimators.medlda import MedLDAClassifier
    from regbayes.estimators.medlda_regressor import MedLDARegressor
    from regbayes.estimators.multitask import MultiTaskILSVMClassifier, MultiTaskILSVMRegressor
    from regbayes.estimators.own_model import MarginClassifier
    from regbayes.estimators.path_search import PathSearchCV
    from regbayes.estimators.stability import FeatureStability, feature_stability
    from regbayes.estimators.thresholds import MultiLabelThresholdCV

_HOME_OF = {
    "FeatureStability": "stability",
    "GridEdgeWarning": "_search",
    "IBPFactorAnalysis": "ibp",
    "ILSVMClassifier": "ilsvm",
    "ILSVMClassifierCV": "cv",
    "ILSVMRegressor": "ilsvm_regressor",
    "ILSVMRegressorCV": "cv",
    "MarginClassifier": "own_model",
    "MedLDAClassifier": "medlda",
    "MedLDAClassifierCV": "cv",
    "MedLDARegressor": "medlda_regressor",
    "MedLDARegressorCV": "cv",
    "MultiLabelThresholdCV": "thresholds",
    "MultiTaskILSVMClassifier": "multitask",
    "MultiTaskILSVMClassifierCV": "cv",
    "MultiTaskILSVMRegressor": "multitask",
    "MultiTaskILSVMRegressorCV": "cv",
    "PathSearchCV": "path_search",
    "PoorFitWarning": "_bases",
    "TruncationWarning": "_bases",
    "UnscaledWarning": "_bases",
    "feature_stability": "stability",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'regbayes.estimators' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"regbayes.estimators.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
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
]
