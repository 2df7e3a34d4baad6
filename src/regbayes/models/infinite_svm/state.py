"""What the model is made of: settings, data, globals, classifiers, and the state of a fit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from regbayes._registry import persistable
from regbayes._types import Floats, Integers
from regbayes.priors.dirichlet_process import Sticks
from regbayes.priors.normal_gamma import Components, NormalGammaPrior


@dataclass(frozen=True)
class Settings:
    """How to fit. Everything is a number."""

    n_components: int  # T
    alpha: float  # concentration of the Dirichlet process
    prior: NormalGammaPrior
    C: float  # price of a margin violation; 0 leaves the mixture without labels
    squared: bool  # squared hinge, or hinge
    generative_weight: float  # r
    fit_intercept: bool
    merge: bool  # whether components of the start are merged
    refit: bool  # whether the last classifiers are those of the responsibilities that prediction sees
    max_iter: int
    tol: float


@dataclass(frozen=True)
class Data:
    """Rows and their labels."""

    X: Floats  # (N, D)
    labels: Integers  # (N,): 0 .. answers - 1
    weights: Floats  # (N,): factor on C for each row
    cost: Floats  # (answers, answers): cost[true, answer]


@persistable(name="regbayes.infinite_svm.Globals")
@dataclass(frozen=True)
class Globals:
    """What the responsibilities of a row need to know."""

    sticks: Sticks
    components: Components


@persistable(name="regbayes.infinite_svm.Classifier")
@dataclass(frozen=True)
class Classifier:
    """Expected weights of the answers, component by component."""

    weights: Floats  # (T, answers, D [+ 1]): mu
    centre: Floats  # (D,): taken off the inputs first; zero without intercept
    fit_intercept: bool  # whether a constant input comes last

    def inputs(self, X: Floats) -> Floats:
        """What the classifiers see of rows, shape (n, D [+ 1])."""
        return inputs(X, self.centre, self.fit_intercept)


@persistable(name="regbayes.infinite_svm.State")
@dataclass(frozen=True)
class State:
    """A fitted model."""

    globals: Globals
    classifier: Classifier
    responsibilities: Floats  # (N, T): q(z_n) of the training rows, which knows their labels
    multipliers: Floats | None  # (N, answers): omega; None without margins


def inputs(X: Floats, centre: Floats, fit_intercept: bool) -> Floats:
    """Rows as classifiers see them: centred with a constant, or as they are."""
    return np.column_stack([X - centre, np.ones(len(X))]) if fit_intercept else X
