"""What a fitted state says about rows: responsibilities without labels, and scores of answers."""

from __future__ import annotations

import numpy as np

from regbayes._types import Floats
from regbayes.models.infinite_svm.margins import average_scores, chunks
from regbayes.models.infinite_svm.state import State
from regbayes.models.infinite_svm.updates import label_free


def responsibilities(X: Floats, state: State) -> Floats:
    """Return ``q(z)`` of rows whose labels are not known, docs/math.md eq. (99), shape (n, T)."""
    return label_free(X, state.globals)


def decide(X: Floats, state: State) -> Floats:
    """Return the score of each answer, shape (n, answers): that of the components, weighed by responsibility."""
    found = np.empty((len(X), state.classifier.weights.shape[1]))
    for rows in chunks(len(X), state.classifier):
        found[rows] = average_scores(X[rows], responsibilities(X[rows], state), state.classifier)
    return found
