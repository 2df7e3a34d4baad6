"""Calibrate the scores of a classifier with a two-parameter curve fitted to held-out scores.

An *output* is one label, or one target of several classes. It has a temperature T and a bias b:

- for three or more classes with scores ``s_c``, ``p(c)`` is proportional to ``sigmoid(s_c / T + b)``, whose limit for
  small b is the softmax of ``s_c / T``,
- for two classes with score s, ``p = sigmoid(s / T + b)`` (Platt, 1999). If this contradicts the sign of s, p is 1/2
  up to a slope of 1e-9, so that probabilities rank samples as scores do.

The most probable class is the predicted one. T and b minimize the log-loss of the held-out samples and of
one pseudo-sample, spread evenly over these samples and all classes. Without it, T would be zero if all predictions are
right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_expit, log_softmax
from sklearn.utils import _safe_indexing

from regbayes._registry import persistable
from regbayes._types import Floats, Integers

SCALE_BOUNDS = (1e-3, 1e6)  # bounds of 1 / T, in units of the mean absolute score
BIAS_BOUNDS = (-30.0, 30.0)
LEAST_SLOPE = 1e-9  # smallest slope of the log-odds of two classes, in units of 1 / T


def log_probabilities(logits: Floats) -> Floats:
    """Return the log-probability of each class, (n, classes), from logits (n, classes), or (n, 1) for two classes."""
    if logits.shape[1] == 1:
        return np.hstack([log_expit(-logits), log_expit(logits)])
    return np.asarray(log_softmax(log_expit(logits), axis=1))


def fit_curve(scores: Floats, codes: Integers, weights: Floats | None = None) -> tuple[float, float]:
    """Return the temperature and the bias of one output."""
    from scipy.optimize import minimize  # imported here because predictions do not need it

    counts = np.where(codes >= 0, 1.0 if weights is None else weights, 0.0)
    seen = counts > 0
    if not seen.any():
        return 1.0, 0.0
    unit = np.abs(scores[seen]).mean() or 1.0
    inputs, counts, n_classes = scores[seen] / unit, counts[seen], max(scores.shape[1], 2)
    targets = counts[:, None] * (codes[seen, None] == np.arange(n_classes))
    targets += (counts / counts.sum() / n_classes)[:, None]
    counts = targets.sum(axis=1)

    def loss(at: Floats) -> tuple[float, Floats]:
        logits = at[0] * inputs + at[1]
        logs = log_probabilities(logits)
        slopes = counts[:, None] * np.exp(logs) - targets
        slopes = slopes[:, 1:] if n_classes == 2 else slopes * expit(-logits)
        return -float(np.sum(targets * logs)), np.array([np.sum(slopes * inputs), np.sum(slopes)])

    # The bias starts where the curve of several classes is nearly a softmax. For two classes the problem is convex.
    found = minimize(loss, (1.0, -4.0), method="L-BFGS-B", tol=1e-12, jac=True, bounds=(SCALE_BOUNDS, BIAS_BOUNDS))
    return float(unit / found.x[0]), float(found.x[1])


@persistable
@dataclass(frozen=True)
class Calibration:
    """Map from the scores of a classifier to probabilities."""

    temperatures: Floats  # (outputs,)
    biases: Floats  # (outputs,)
    widths: Integers  # (outputs,): number of scores of each; 1 for two classes
    several: bool  # whether there are several outputs: labels, or tasks that are columns of y
    n_samples: int  # number of held-out samples in the fit

    def probabilities(self, scores: Floats | list[Floats]) -> Floats | list[Floats]:
        """Return the probabilities for scores of ``decision_function``."""
        found = self.by_output(scores)
        if not self.several:
            return found[0]
        return found if np.any(self.widths > 1) else np.column_stack([shares[:, 1] for shares in found])

    def by_output(self, scores: Floats | list[Floats]) -> list[Floats]:
        """Return the probabilities of the classes of each output, (n, classes)."""
        found = []
        for block, temperature, bias in zip(
            split_columns(scores, self.widths), self.temperatures, self.biases, strict=True
        ):
            scaled = block / temperature
            logits, predicted = scaled + bias, block.argmax(axis=1)
            if block.shape[1] == 1:
                positive, least = block > 0, LEAST_SLOPE * scaled
                logits = np.where(positive, np.maximum(logits, least), np.minimum(logits, least))
                predicted = positive[:, 0].astype(int)
            shares = np.exp(log_probabilities(logits))
            shares[np.arange(len(block)), predicted] = np.nextafter(shares.max(axis=1), 1.0)  # above ties
            found.append(shares)
        return found


def split_columns(scores: Floats | list[Floats], widths: Integers) -> list[Floats]:
    """Return the scores of each output, (n, width), from adjacent columns or a list."""
    if not isinstance(scores, list):
        return np.split(np.reshape(scores, (len(scores), -1)), np.cumsum(widths)[:-1], axis=1)
    return [np.reshape(block, (len(block), -1)) for block in scores]


# --- held-out scores


def codes_of(labels: NDArray[Any], classes: Any) -> Integers:
    """Return the index of each label among the classes, -1 where it is not one of them."""
    place = {label: i for i, label in enumerate(np.asarray(classes).tolist())}
    return np.array([place.get(label, -1) for label in labels.tolist()], dtype=np.int64)


def read_outputs(y: Any, classes: Any, n_scores: int) -> tuple[Integers, Integers] | None:
    """Return the class codes, (n, outputs), and the number of scores of each output."""
    y = y.toarray() if hasattr(y, "toarray") else np.asarray(y)
    columns = y[:, None] if y.ndim == 1 else y
    of_each = classes if isinstance(classes, list) else [np.asarray(classes)] * columns.shape[1]
    if y.ndim == 2 and not isinstance(classes, list) and n_scores == columns.shape[1] and len(of_each[0]) != 2:
        of_each = [np.array([0, 1])] * n_scores  # indicators: the classes are 0 and 1
    widths = np.array([1 if len(known) == 2 else len(known) for known in of_each])
    if len(of_each) != columns.shape[1] or widths.sum() != n_scores:
        return None
    return np.column_stack([codes_of(column, known) for column, known in zip(columns.T, of_each, strict=True)]), widths


@dataclass(frozen=True)
class HeldOutScores:
    """Held-out scores of all fits of one setting."""

    rows: Integers  # (n,)
    scores: Floats  # (n,) or (n, sum of widths)
    codes: Integers  # (n, outputs): true classes
    widths: Integers  # (outputs,): number of scores of each
    several: bool

    @classmethod
    def collect(cls, classifier: Any, records: Sequence[Any], y: Any) -> HeldOutScores | None:
        """Collect the folds of a search, except those whose training part lacks a class.

        Return None without such folds, or if the classifier has no scores or has its own probabilities.
        """
        if not hasattr(classifier, "decision_function") or hasattr(classifier, "predict_proba"):
            return None
        found = []
        for record in records:
            n_scores = 1 if np.ndim(record.decisions) == 1 else np.shape(record.decisions)[1]
            outputs = read_outputs(_safe_indexing(y, record.rows), classifier.classes_, n_scores)
            if outputs is not None:
                found.append((record.rows, record.decisions, *outputs))
        if not found:
            return None
        rows, scores, codes = (np.concatenate([fold[i] for fold in found]) for i in range(3))
        return cls(rows, scores, codes, found[0][3], np.ndim(records[0].predictions) == 2)

    def calibrate(self, weights: Any = None) -> Calibration:
        """Fit a curve to each output; ``weights`` are those of all samples."""
        counts = None if weights is None else np.asarray(weights, dtype=np.float64)[self.rows]
        blocks = split_columns(self.scores, self.widths)
        curves = [fit_curve(block, column, counts) for block, column in zip(blocks, self.codes.T, strict=True)]
        temperatures, biases = np.transpose(curves)
        n_samples = int(np.sum(np.any(self.codes >= 0, axis=1)))
        return Calibration(temperatures, biases, np.asarray(self.widths), self.several, n_samples)


class NoProbabilities:
    """Placeholder for ``predict_proba`` whose error names the alternatives."""

    def __init__(self, search: str = "PathSearchCV") -> None:
        self.search = search

    def __get__(self, instance: Any, owner: type) -> Any:
        raise AttributeError(
            f"{owner.__name__} does not provide predict_proba: its scores must be calibrated on held-out samples. "
            f"Use {self.search}, or wrap this estimator in sklearn.calibration.CalibratedClassifierCV."
        )
