"""Baselines of the paper and its MedLDA (appendix B) as scikit-learn estimators."""

from __future__ import annotations

from regbayes_paper.baselines.bmtl import BMTLRegressor
from regbayes_paper.baselines.gaussian_process import MTGPRegressor
from regbayes_paper.baselines.harmonium import ExponentialFamilyHarmonium, MaxMarginHarmoniumClassifier
from regbayes_paper.baselines.infinite_svm import InfiniteSVMClassifier
from regbayes_paper.baselines.linear_tasks import (
    ASOClassifier,
    ASORegressor,
    MTRLClassifier,
    MTRLRegressor,
    SingleTaskClassifier,
    SingleTaskRegressor,
)
from regbayes_paper.baselines.medlda import PosteriorMedLDAClassifier, PosteriorMedLDARegressor
from regbayes_paper.baselines.predictor_subspace import PredictorSubspaceClassifier
from regbayes_paper.baselines.task_clusters import DirichletProcessTaskClassifier

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
    "PosteriorMedLDAClassifier",
    "PosteriorMedLDARegressor",
    "PredictorSubspaceClassifier",
    "SingleTaskClassifier",
    "SingleTaskRegressor",
]
