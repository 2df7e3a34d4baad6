"""Classifier heads and targets of every kind, for the tests of margins."""

from __future__ import annotations

from itertools import product

import cvxpy as cp
import numpy as np

from regbayes.margins.design import Inputs
from regbayes.margins.head import Head
from regbayes.margins.targets import Cells, Classes, Numbers, Observations, Signs, zero_one_cost

N, K, N_INPUTS, N_OUTPUTS = 24, 3, 2, 3
KINDS = ("classes", "one_vs_rest", "signs", "numbers", "cells", "list")
GROUPS, SHARING = np.array([0, 1, 0]), 0.8


def make_targets(kind, rng, n=N, C=0.4):
    """Return targets with random values of C, some of them zero or missing."""
    prices = C * rng.uniform(0.5, 1.5, (n, N_OUTPUTS))
    if kind in ("classes", "one_vs_rest"):
        cost = rng.uniform(0.5, 1.5, (N_OUTPUTS, N_OUTPUTS)) * zero_one_cost(N_OUTPUTS)
        classes = Classes(np.arange(n) % N_OUTPUTS, cost, prices[:, 0])
        return classes if kind == "classes" else classes.one_vs_rest()
    if kind in ("cells", "list"):  # "cells": signs, 70% observed; "list": one number per sample
        seen = rng.random((n, N_OUTPUTS)) < 0.7 if kind == "cells" else np.arange(n)[:, None] * 3 // n == np.arange(3)
        outputs, rows = np.nonzero(seen.T)
        values = rng.choice([-1.0, 1.0], len(rows)) if kind == "cells" else rng.normal(size=len(rows))
        observed = Observations(rows, outputs, values, rng.uniform(0.5, 1.5, len(rows)))
        return Cells(observed, n, N_OUTPUTS, C, None if kind == "cells" else 0.1)
    prices[rng.random(prices.shape) < 0.2] = 0.0
    if kind == "signs":
        return Signs(rng.choice([-1, 1], (n, N_OUTPUTS)), prices)
    return Numbers(rng.normal(size=(n, N_OUTPUTS)), prices, 0.1)


def make_head(kind, squared, rng, *, inputs=False, rows=False, weighted=False, n=N, **options):
    """Return a head over all samples or a subset, and the features of all samples."""
    own = np.sort(rng.permutation(n)[: n - 5]) if rows else None
    n_own = n if own is None else len(own)
    is_tasks = kind in ("cells", "list")
    head = Head(
        make_targets(kind, rng, n_own),
        squared,
        groups=GROUPS if is_tasks else None,
        sharing=SHARING if is_tasks else 0.0,
        inputs=Inputs(rng.normal(size=(n, N_INPUTS)), rng.normal(size=N_INPUTS), 0.7) if inputs else None,
        rows=None if is_tasks else own,
        row_weights=rng.uniform(0.5, 2.0, n if is_tasks else n_own) if weighted else None,
        **options,
    )
    if is_tasks and rows:  # heads of several tasks do not support a subset of samples
        return make_head(kind, squared, rng, inputs=inputs, weighted=weighted, n=n, **options)
    return head, rng.normal(size=(n, K)) + 0.5


def all_options():
    """Yield all combinations of head options that differ in effect."""
    for intercept, centred, inputs, rows, weighted in product([False, True], repeat=5):
        if (centred and not intercept) or (weighted and not centred):
            continue  # has no effect, or repeats another combination
        yield {
            "fit_intercept": intercept,
            "centred": centred,
            "inputs": inputs,
            "rows": rows,
            "weighted": weighted,
        }


OPTIONS = {"-".join(name for name, on in options.items() if on) or "bare": options for options in all_options()}


def seen_by(head, features):
    """Return the design matrix of a head for the samples with targets."""
    rows = slice(None) if head.rows is None else head.rows
    own = features[rows]
    mean = np.average(own, axis=0, weights=head.row_weights) if head.fit_intercept and head.centred else 0.0
    columns = [own - mean]
    if head.inputs is not None:
        columns.append(head.inputs.factor * (head.inputs.X[rows] - head.inputs.mean))
    if head.fit_intercept:
        columns.append(np.ones((len(own), 1)))
    return np.hstack(columns)


def cvxpy_problem(head, features, smoothing=0.0):
    """Return the objective of a head as a CVXPY expression, and its weights."""
    seen, v, power = seen_by(head, features), head.weight_variance, 2 if head.squared else 1
    own = cp.Variable((N_OUTPUTS, seen.shape[1]))
    weights, penalty = own, cp.sum_squares(own) / (2 * v)
    if head.sharing:
        common = cp.Variable((2, seen.shape[1]))
        weights = own + head.sharing * (np.eye(2)[head.groups] @ common)
        penalty += cp.sum_squares(common) / (2 * v)
    return penalty + _losses(head.targets, seen @ weights.T, power, smoothing), weights


def _losses(targets, scores, power, smoothing):
    """Return the loss as a CVXPY expression of the scores (n, outputs)."""
    match targets:
        case Classes():
            truth = np.eye(N_OUTPUTS)[targets.labels]
            own = cp.reshape(cp.sum(cp.multiply(scores, truth), axis=1), (len(targets), 1), order="C")
            missed = targets.cost[targets.labels] + scores - own
            if smoothing:
                return smoothed_hinges(missed, 1.0 - truth, targets.C, smoothing)
            slack, C = cp.max(missed, axis=1), targets.C
        case Signs():
            slack, C = targets.margin - cp.multiply(targets.signs, scores), targets.C
        case Numbers():
            slack, C = cp.abs(scores - targets.values) - targets.epsilon, targets.C
        case Cells():
            seen = targets.cells
            mine = cp.sum(cp.multiply(scores[seen.rows], np.eye(N_OUTPUTS)[seen.outputs]), axis=1)
            slack = 1 - cp.multiply(seen.targets, mine)
            slack = slack if targets.epsilon is None else cp.abs(mine - seen.targets) - targets.epsilon
            C = targets.C * seen.weights
    return cp.sum(cp.multiply(C, cp.pos(slack) if power == 1 else cp.square(cp.pos(slack))))


def smoothed_hinges(missed, wrong, C, smoothing):
    """Return the smoothed hinge losses as a CVXPY expression.

    Each is ``max_u <u, m> - ((1 - d) (sum u)^2 + d |u|^2) / (4 C)`` over u >= 0 of wrong classes, which equals
    ``min_t C t^2 / (1 - d) + C / d sum_c max(0, m_c - t)^2``.
    """
    if smoothing == 1.0:
        return cp.sum(cp.multiply(C[:, None] * wrong, cp.square(cp.pos(missed))))
    level = cp.Variable((len(C), 1), nonneg=True)
    over = cp.square(cp.pos(missed - level @ np.ones((1, wrong.shape[1]))))
    by_level = cp.multiply(C[:, None], cp.square(level)) / (1.0 - smoothing)
    return cp.sum(by_level) + cp.sum(cp.multiply(C[:, None] * wrong, over)) / smoothing
