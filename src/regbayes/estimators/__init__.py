"""Thin scikit-learn shells: validate, delegate, unpack."""

from __future__ import annotations

from regbayes.estimators._bases import PoorFitWarning, TruncationWarning
from regbayes.estimators._search import GridEdgeWarning
from regbayes.estimators.ibp import IBPFactorAnalysis
from regbayes.estimators.ilsvm import ILSVMClassifier
from regbayes.estimators.ilsvm_cv import ILSVMClassifierCV
from regbayes.estimators.medlda import MedLDAClassifier
from regbayes.estimators.medlda_cv import MedLDAClassifierCV, MedLDARegressorCV
from regbayes.estimators.medlda_regressor import MedLDARegressor
from regbayes.estimators.multitask import MultiTaskILSVMClassifier, MultiTaskILSVMRegressor
from regbayes.estimators.multitask_cv import MultiTaskILSVMClassifierCV, MultiTaskILSVMRegressorCV
from regbayes.estimators.path_search import PathSearchCV
from regbayes.estimators.stability import FeatureStability, feature_stability
from regbayes.estimators.thresholds import MultiLabelThresholdCV

__all__ = [
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
]
