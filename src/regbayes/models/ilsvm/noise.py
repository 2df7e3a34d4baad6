"""Whether there was anything to find, judged on rows that a fit has not seen."""

from __future__ import annotations

import numpy as np

from regbayes._types import Integers
from regbayes.models.ilsvm.fit import fit
from regbayes.models.ilsvm.model import Data, Rows, Settings
from regbayes.models.ilsvm.warmup import initial_params, leading_directions

FEWEST_ROWS = 40  # that can be judged
MOST_ROWS = 4096  # that are looked at
CLEAR = 3.0  # standard errors
LEARNED_SHARE = 2 / 3  # of the rows: labels of the others are predicted


def is_noise(data: Data, settings: Settings, rng: np.random.Generator) -> bool:
    """Return whether nothing that is found in some rows holds in others.

    Inputs vary together if the direction along which one half of the rows varies most, in units of each input, is one
    along which the other half varies more than inputs do alone. Where they do not, a model that is fitted to some of
    the labelled rows predicts the labels of the others no better than their largest class does.
    """
    rows = rng.permutation(len(data.X))[:MOST_ROWS]
    if len(rows) < FEWEST_ROWS or varies_together(data.X, rows):
        return False
    labeled = rows[np.isin(rows, data.labeled)]
    if settings.C == 0 or len(labeled) < FEWEST_ROWS:
        return True
    return not predicts_labels(data, settings, labeled)


def varies_together(X: Rows, rows: Integers) -> bool:
    """Return whether the main direction of each half of some rows is one in which the other half varies more."""
    scaled = X.take(rows).array()
    spread = scaled.std(axis=0)
    scaled = scaled[:, spread > 0] / spread[spread > 0]
    if scaled.shape[1] < 2:
        return bool(scaled.shape[1])  # one input varies by itself: there is nothing to compare it with
    scaled -= scaled.mean(axis=0)
    errors = []
    halves = np.array_split(scaled, 2)
    for seen, unseen in (halves, halves[::-1]):
        direction = leading_directions(lambda V, seen=seen: (V @ seen.T) @ seen, scaled.shape[1], 1)[1][0]  # type: ignore[misc]
        squares = np.square(unseen @ direction)
        errors.append((squares.mean() - 1.0) / max(squares.std() / np.sqrt(len(squares)), np.finfo(np.float64).tiny))
    return bool(np.mean(errors) > CLEAR / np.sqrt(2.0))


def predicts_labels(data: Data, settings: Settings, rows: Integers) -> bool:
    """Return whether a model of some of the rows predicts the labels of the others better than the largest class."""
    n = round(LEARNED_SHARE * len(rows))
    seen, unseen = data.take(rows[:n]), data.take(rows[n:])
    state = fit(seen, settings, initial_params(seen.X, settings)).state
    right = np.argmax(state.scores(unseen.X, state.params.infer(unseen.X)), axis=1) == unseen.labels
    # Of two classes as large as each other, the one that leads in some rows is behind in the others.
    share = float(np.bincount(unseen.labels).max()) / len(unseen.labels)
    error = np.sqrt(max(share * (1.0 - share), 1e-12) * len(right))
    return bool(right.sum() - share * len(right) > CLEAR * error)
