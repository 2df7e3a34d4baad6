"""Losses as dual forms, and drawn data, for the tests of the large-margin step."""

from __future__ import annotations

import numpy as np

from regbayes.framework.dual_forms import BoxDual
from regbayes.framework.large_margin import (
    MultiClassDual,
)

TIGHT = 1e-12
LIBLINEAR = {"tol": 1e-9, "max_iter": 10_000_000, "random_state": 0}


def hinge_form(n, C):
    return BoxDual(-np.ones(n), np.zeros(n), np.zeros(n), np.zeros(n), np.full(n, C))


def squared_hinge_form(n, C):
    return BoxDual(-np.ones(n), np.zeros(n), np.full(n, 0.5 / C), np.zeros(n), np.full(n, np.inf))


def tube_form(targets, epsilon, C):
    n = targets.size
    return BoxDual(-targets, np.full(n, epsilon), np.zeros(n), np.full(n, -C), np.full(n, C))


def squared_tube_form(targets, epsilon, C):
    n = targets.size
    bound = np.full(n, np.inf)
    return BoxDual(-targets, np.full(n, epsilon), np.full(n, 0.5 / C), -bound, bound)


BINARY = {"hinge": hinge_form, "squared_hinge": squared_hinge_form}
REGRESSION = {"epsilon_insensitive": tube_form, "squared_epsilon_insensitive": squared_tube_form}
MULTI_CLASS = {"hinge": MultiClassDual.hinge, "squared_hinge": MultiClassDual.squared_hinge}


def binary_data(rng, n=120, d=6):
    X = rng.normal(size=(n, d)) + 0.5
    signs = np.where(X @ rng.normal(size=d) + rng.normal(size=n) > 0, 1.0, -1.0)
    return X, signs


def multi_class_data(rng, n=90, d=5, n_answers=4, spread=1.0):
    centres = rng.normal(size=(n_answers, d))
    labels = rng.integers(n_answers, size=n)
    return centres[labels] + spread * rng.normal(size=(n, d)), labels


def multi_class_primal(X, labels, cost, C, weights, squared=False):
    scores = X @ weights.T
    rows = np.arange(len(labels))
    slack = np.max(cost[labels] + scores - scores[rows, labels][:, None], axis=1)
    return 0.5 * np.sum(weights**2) + np.sum(C * (slack**2 if squared else slack))
