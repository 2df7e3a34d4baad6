"""What the model is made of: settings, data, global parameters, classifier, and the state of a fit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from regbayes._registry import persistable
from regbayes._types import Floats, Integers
from regbayes.models.ilsvm.rows import Rows
from regbayes.priors.indian_buffet import Sticks, stick_expectations

UNLABELED = -1  # the label of rows that shape the features but have no margin


@persistable(name="regbayes.ilsvm.Settings")
@dataclass(frozen=True)
class Settings:
    """How to fit. Everything is a number: rules that depend on the data are in `init`."""

    n_components: int  # K, the truncation
    alpha: float  # concentration of the Indian buffet process
    C: float  # price of a margin violation; 0 leaves the unsupervised model
    squared: bool  # squared hinge, or hinge
    one_vs_rest: bool  # a margin for each answer, or for the best wrong answer of a row
    temperature: float  # T: heat of the features' entropy
    generative_weight: float  # r
    noise_variance: float  # sigma^2
    prior_variance: float  # sigma_0^2
    estimate_noise: bool  # whether sigma^2 is only where the estimate starts
    estimate_prior: bool  # the same for sigma_0^2
    fit_intercept: bool
    input_scale: float  # factor on the inputs beside the latent features; 0 leaves them out
    n_sweeps: int  # S, of label-free inference
    max_iter: int
    tol: float
    n_threads: int


@dataclass(frozen=True)
class Data:
    """Rows and what is known of them."""

    X: Rows  # (N, D), centred
    labels: Integers  # (N,): 0 .. answers - 1, or UNLABELED
    weights: Floats  # (N,): factor on C for each row
    cost: Floats  # (answers, answers): cost[true, answer]

    @property
    def labeled(self) -> Integers:
        """Rows that have a label, shape (n_labeled,)."""
        return np.flatnonzero(self.labels != UNLABELED)

    def rows(self, rows: Integers) -> Data:
        """Some of the rows."""
        return Data(self.X.take(rows), self.labels[rows], self.weights[rows], self.cost)


@persistable(name="regbayes.ilsvm.Globals")
@dataclass(frozen=True)
class Globals:
    """What inference of a row's features needs to know."""

    loadings: Floats  # (K, D): Phi
    variances: Floats  # (K,): s
    sticks: Sticks
    noise_variance: float
    prior_variance: float
    temperature: float
    n_sweeps: int

    @property
    def precision(self) -> float:
        """``c = 1 / (sigma^2 T)``."""
        return 1.0 / (self.noise_variance * self.temperature)

    @property
    def coupling(self) -> Floats:
        """``A = c Phi Phi'``, shape (K, K)."""
        return np.asarray(self.precision * (self.loadings @ self.loadings.T))

    @property
    def log_odds(self) -> Floats:
        """Prior log-odds of the features at this temperature, ``a``, shape (K,)."""
        return np.asarray(stick_expectations(self.sticks).log_odds / self.temperature)


@persistable(name="regbayes.ilsvm.Classifier")
@dataclass(frozen=True)
class Classifier:
    """Expected weights of the answers, on features that were centred first."""

    weights: Floats  # (answers, K [+ D] [+ 1]): mu
    centre: Floats  # (K,): mean of the features over the labelled training rows
    input_scale: float  # of the D inputs that follow the K features; 0 where they do not
    fit_intercept: bool  # whether a constant feature comes last


@persistable(name="regbayes.ilsvm.State")
@dataclass(frozen=True)
class State:
    """A fitted model."""

    globals: Globals
    embedding: Floats  # (N, K): psi of the training rows
    classifier: Classifier | None  # None for the unsupervised model
    multipliers: Floats | None  # (n_labeled, answers): omega
