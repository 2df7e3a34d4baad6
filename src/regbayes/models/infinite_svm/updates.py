"""Updates of one block each, all exact: responsibilities at given classifiers, globals at given responsibilities."""

from __future__ import annotations

import numpy as np
from scipy.special import softmax

from regbayes._types import Floats
from regbayes.models.infinite_svm.margins import RowProblems, chunks, component_scores, solve_rows
from regbayes.models.infinite_svm.state import Classifier, Data, Globals, Settings
from regbayes.priors.dirichlet_process import log_weights, update_sticks
from regbayes.priors.normal_gamma import log_likelihoods, update_components


def logits(X: Floats, g: Globals) -> Floats:
    """What the model says of a row's component without its label, docs/math.md eq. (99), shape (n, T)."""
    return np.asarray(log_weights(g.sticks) + log_likelihoods(X, g.components))


def label_free(X: Floats, g: Globals) -> Floats:
    """Responsibilities of rows without labels, shape (n, T)."""
    return np.asarray(softmax(logits(X, g), axis=1))


def update_responsibilities(
    data: Data, settings: Settings, g: Globals, classifier: Classifier, omega: Floats, before: Floats
) -> tuple[Floats, Floats]:
    """Return the best responsibilities at given classifiers, eq. (102), and the multipliers of their margins.

    Rows whose problem could not be solved to its accuracy and that would lose keep what they had before.
    """
    q, multipliers = np.empty_like(before), np.empty_like(omega)
    r = settings.generative_weight
    for rows in chunks(len(q), classifier):
        problems = row_problems(data, settings, g, classifier, rows)
        found, mass = solve_rows(problems, omega[rows] / r)
        worse = problems.value(found) > problems.value(before[rows])
        q[rows] = np.where(worse[:, None], before[rows], found)
        multipliers[rows] = mass * r
    return q, multipliers


def row_problems(data: Data, settings: Settings, g: Globals, classifier: Classifier, rows: slice) -> RowProblems:
    """The problems of some rows over their responsibilities, in units of r."""
    labels = data.labels[rows]
    scores = component_scores(data.X[rows], classifier)
    own = np.take_along_axis(scores, labels[:, None, None], axis=2)
    return RowProblems(
        logits=logits(data.X[rows], g),
        gains=own - scores,
        cost=data.cost[labels],
        labels=labels,
        price=settings.C * data.weights[rows] / settings.generative_weight,
        squared=settings.squared,
    )


def update_globals(X: Floats, q: Floats, settings: Settings) -> Globals:
    """The best sticks and components for responsibilities."""
    return Globals(update_sticks(q.sum(axis=0), settings.alpha), update_components(X, q, settings.prior))
