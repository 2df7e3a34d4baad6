"""The systems that the package's own models are compared with, as estimators."""

from __future__ import annotations

from regbayes.baselines.gaussian_process import MTGPRegressor
from regbayes.baselines.harmonium import ExponentialFamilyHarmonium
from regbayes.baselines.hierarchy import BMTLRegressor
from regbayes.baselines.infinite_svm import InfiniteSVMClassifier
from regbayes.baselines.max_margin_harmonium import MaxMarginHarmoniumClassifier
from regbayes.baselines.predictor_subspace import PredictorSubspaceClassifier
from regbayes.baselines.relations import MTRLClassifier, MTRLRegressor
from regbayes.baselines.shared_clusters import DirichletProcessTaskClassifier
from regbayes.baselines.single_task import SingleTaskClassifier, SingleTaskRegressor
from regbayes.baselines.structure import ASOClassifier, ASORegressor

__all__ = [
    "ASOClassifier",
    "ASORegressor",
    "BMTLRegressor",
    "DirichletProcessTaskClassifier",
    "ExponentialFamilyHarmonium",
    "InfiniteSVMClassifier",
    "MaxMarginHarmoniumClassifier",
    "MTGPRegressor",
    "MTRLClassifier",
    "MTRLRegressor",
    "PredictorSubspaceClassifier",
    "SingleTaskClassifier",
    "SingleTaskRegressor",
]
