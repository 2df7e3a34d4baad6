"""What the model is made of: settings, data, parameters, classifier, and the state of a fit."""

from __future__ import annotations

from dataclasses import dataclass

from regbayes._registry import persistable
from regbayes._types import Floats, Integers
from regbayes.models.harmonium.units import Visible


@dataclass(frozen=True)
class Settings:
    """How to fit. Everything is a number."""

    n_components: int  # K
    C: float  # price of a margin violation; 0 leaves the unsupervised model
    squared: bool  # squared hinge, or hinge
    generative_weight: float  # r
    fit_intercept: bool
    max_iter: int
    tol: float
    sampling: bool  # contrastive divergence, or mean field
    learning_rate: float  # of contrastive divergence, as are the next two
    batch_size: int
    n_gibbs: int


@dataclass(frozen=True)
class Data:
    """Rows and their labels."""

    X: Floats  # (N, D)
    statistics: Floats  # (N, D): t(x)
    labels: Integers  # (N,): 0 .. answers - 1; ignored by the unsupervised model
    weights: Floats  # (N,): factor on C for each row
    cost: Floats  # (answers, answers): cost[true, answer]


@persistable(name="regbayes.harmonium.Globals")
@dataclass(frozen=True)
class Globals:
    """What inference of a row's hidden units needs to know."""

    weights: Floats  # (D, K): W, in units of the statistics
    biases: Floats  # (D,): a; zero in mean field


@persistable(name="regbayes.harmonium.Classifier")
@dataclass(frozen=True)
class Classifier:
    """Expected weights of the answers."""

    weights: Floats  # (answers, K [+ 1]): mu
    fit_intercept: bool  # whether a constant feature comes last


@persistable(name="regbayes.harmonium.State")
@dataclass(frozen=True)
class State:
    """A fitted model."""

    visible: Visible
    globals: Globals
    embedding: Floats  # (N, K): expected hidden units of the training rows
    classifier: Classifier | None  # None for the unsupervised model
    multipliers: Floats | None  # (N, answers): omega
