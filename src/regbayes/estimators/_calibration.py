"""From scores to probabilities: one temperature, fitted to scores of rows that the fits had not seen.

Scores of large-margin classifiers say which class, not how surely. Their softmax at a temperature T,
``p(c) = exp(s_c / T) / sum_d exp(s_d / T)``, keeps their order, so the most probable class is the one that is answered;
of two classes with one score it is ``1 / (1 + exp(-s / T))``. T has the least log-loss on the scores that the fits of a
search give to the rows left out. In ``b = 1 / T`` that loss is convex, and b is found by Newton steps inside a bracket.

Where all those rows are answered rightly, T would go to zero and the next error would cost everything. So one row more
is counted, with the scores of them all and any of its classes. Several labels are several questions: each has its own
temperature, as if `SHARED_ROWS` more of its rows had been answered as the temperature that all share says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax, softmax

from regbayes._registry import persistable
from regbayes._types import Flags, Floats, Integers

UNCERTAIN_ROWS = 1.0  # counted once more, in equal parts for every class
SHARED_ROWS = 20.0  # of each question, counted once more as the shared temperature answers them
COLDEST, HOTTEST = 1e6, 1e-3  # inverse temperatures, in units of the scores' spread
MAX_STEPS = 100
N_BINS = 10


# --- one question


@dataclass(frozen=True)
class Answers:
    """Scores of one question's rows, and what is to be said of them."""

    scores: Floats  # (n, k): a column per class
    targets: Floats  # (n, k): how often each class was seen, or as much as it counts

    @classmethod
    def of(cls, scores: Floats, codes: Integers, weights: Floats | None = None) -> Answers:
        """Read scores, (n,) of two classes or (n, k), and classes as numbers; others than those are left out.

        ``weights`` say how often each row counts.
        """
        scores, seen = columns_of(scores), codes >= 0
        if weights is not None:
            seen &= weights > 0
        targets = np.zeros((int(seen.sum()), scores.shape[1]))
        targets[np.arange(len(targets)), codes[seen]] = 1.0 if weights is None else weights[seen]
        return cls(scores[seen], targets)

    def and_also(self, shares: Floats | float, n_rows: float) -> Answers:
        """Count so many rows more, with the scores of all and these shares of the classes, (n, k) or one for each."""
        counts = self.targets.sum(axis=1)
        more = n_rows * counts / counts.sum()
        return Answers(self.scores, self.targets + more[:, None] * shares)


def columns_of(scores: Floats) -> Floats:
    """Return scores with a column per class; one score is that of the second class, and the first has zero."""
    scores = np.asarray(scores, dtype=np.float64)
    scores = scores[:, None] if scores.ndim == 1 else scores
    return np.column_stack([np.zeros(len(scores)), scores]) if scores.shape[1] == 1 else scores


def loss_of_scale(scale: float, questions: Sequence[Answers]) -> tuple[float, float, float]:
    """Return the log-loss of ``softmax(scale * scores)``, summed over what counts, and its first two derivatives."""
    loss = slope = curvature = 0.0
    for asked in questions:
        logs = log_softmax(scale * asked.scores, axis=1)
        shares, counts = np.exp(logs), asked.targets.sum(axis=1)
        mean = np.sum(shares * asked.scores, axis=1)
        centred = asked.scores - mean[:, None]
        loss -= float(np.sum(asked.targets * logs))
        slope -= float(np.sum(asked.targets * centred))
        curvature += float(counts @ np.sum(shares * centred**2, axis=1))
    return loss, slope, curvature


def fit_temperature(questions: Sequence[Answers]) -> float:
    """Return the temperature with the least log-loss, one for all questions.

    Scores that are worse than none have a very high one, so that the order stays and hardly anything is claimed; scores
    that are all the same have 1.
    """
    n = sum(float(asked.targets.sum()) for asked in questions)
    spread = sum(float(asked.targets.sum(axis=1) @ np.ptp(asked.scores, axis=1)) for asked in questions)
    if not spread > 0:
        return 1.0
    unit = n / spread
    return 1.0 / _find_root(questions, HOTTEST * unit, COLDEST * unit, unit)


def _find_root(questions: Sequence[Answers], low: float, high: float, start: float) -> float:
    """Return where the loss, which is convex, has slope zero, or the end where it is still falling or rising."""
    if loss_of_scale(low, questions)[1] >= 0:
        return low
    if loss_of_scale(high, questions)[1] <= 0:
        return high
    at = start
    for _ in range(MAX_STEPS):
        _, slope, curvature = loss_of_scale(at, questions)
        low, high = (at, high) if slope < 0 else (low, at)
        step = at - slope / curvature if curvature > 0 else low
        if not low < step < high:
            step = float(np.sqrt(low * high))  # the bracket spans powers of ten
        if abs(step - at) <= 1e-12 * at:
            return step
        at = step
    return at


def probabilities_of(scores: Floats, temperature: float) -> Floats:
    """Return the probability of each class, (n, k); the largest is that of the largest score, the first of equals."""
    columns = columns_of(scores)
    found = np.asarray(softmax(columns / temperature, axis=1))
    best, rows = np.argmax(columns, axis=1), np.arange(len(columns))
    rounded = np.argmax(found, axis=1) != best  # scores that differ by less than a probability can say
    found[rows[rounded], best[rounded]] = np.nextafter(found[rounded].max(axis=1), 2.0)
    return found


def logarithms(probabilities: Floats | list[Floats]) -> Floats | list[Floats]:
    """Return the logarithms of probabilities; that of zero is minus infinity."""
    if isinstance(probabilities, list):
        return [np.asarray(logarithms(shares)) for shares in probabilities]
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(probabilities))


# --- all that is asked of a row


@persistable
@dataclass(frozen=True)
class Calibration:
    """How the scores of a classifier become probabilities."""

    temperatures: Floats  # (questions,): one, or one for each label or task
    widths: Integers  # (questions,): scores of each; 1 where there are two classes
    several: bool  # whether a row has several questions: labels, or tasks that are columns of y
    n_rows: int  # left out by the fits, from whose scores the temperatures were found

    def probabilities(self, scores: Floats | list[Floats]) -> Floats | list[Floats]:
        """Return the probabilities of what ``decision_function`` says.

        Returns
        -------
        array of shape (n, classes) for one question, (n, questions) with those of each one's second class where all
        have two, and a list of (n, classes) otherwise
        """
        blocks = self._blocks(scores)
        found = [probabilities_of(block, T) for block, T in zip(blocks, self.temperatures, strict=True)]
        if not self.several:
            return found[0]
        return found if np.any(self.widths > 1) else np.column_stack([shares[:, 1] for shares in found])

    def _blocks(self, scores: Floats | list[Floats]) -> list[Floats]:
        if isinstance(scores, list):
            return scores
        return split_columns(scores, self.widths)


def split_columns(scores: Floats, widths: Integers) -> list[Floats]:
    """Return the scores of each question, which are side by side."""
    scores = np.asarray(scores)
    scores = scores[:, None] if scores.ndim == 1 else scores
    return np.split(scores, np.cumsum(widths)[:-1], axis=1)


def calibrate(scores: Floats, codes: Integers, widths: Integers, several: bool, weights: Floats | None) -> Calibration:
    """Fit the temperatures.

    Parameters
    ----------
    scores : (n,) or (n, sum of widths)
        Of rows that the fits had not seen.
    codes : (n, questions)
        The class of each, -1 where it is not known.
    widths : (questions,)
        Scores of each question.
    several : bool
        Whether rows have several questions.
    weights : (n,) or None
        How often each row counts.
    """
    blocks = split_columns(scores, widths)
    asked = [Answers.of(block, column, weights) for block, column in zip(blocks, codes.T, strict=True)]
    shared = fit_temperature([one.and_also(1 / one.scores.shape[1], UNCERTAIN_ROWS) for one in asked])
    temperatures = np.full(len(asked), shared)
    for i, one in enumerate(asked):
        if several and len(one.scores):
            temperatures[i] = fit_temperature([one.and_also(probabilities_of(one.scores, shared), SHARED_ROWS)])
    return Calibration(temperatures, np.asarray(widths), several, int(np.sum(np.any(codes >= 0, axis=1))))


def codes_of(labels: NDArray[Any], classes: NDArray[Any]) -> Integers:
    """Return the places of labels among the classes, -1 where there is none."""
    place = {label: i for i, label in enumerate(np.asarray(classes).tolist())}
    return np.array([place.get(label, -1) for label in labels.tolist()], dtype=np.int64)


def read_questions(y: Any, classes: Any, n_scores: int) -> tuple[Integers, Integers] | None:
    """Return the classes of all answers as numbers, (n, questions), and how many scores each question has.

    Parameters
    ----------
    y : (n,) or (n, questions)
        As the classifier was given it.
    classes : array, or list of arrays
        The classifier's: of every question, or of each.
    n_scores : int
        How many scores a row has. None is returned where that is not what the classes ask for.
    """
    y = y.toarray() if hasattr(y, "toarray") else np.asarray(y)
    columns = y[:, None] if y.ndim == 1 else y
    of_each = classes if isinstance(classes, list) else [np.asarray(classes)] * columns.shape[1]
    if y.ndim == 2 and not isinstance(classes, list) and n_scores == columns.shape[1] and len(of_each[0]) != 2:
        of_each = [np.array([0, 1])] * n_scores  # indicators: the classes are the labels' numbers
    widths = np.array([1 if len(found) == 2 else len(found) for found in of_each])
    if len(of_each) != columns.shape[1] or widths.sum() != n_scores:
        return None
    return np.column_stack([codes_of(column, found) for column, found in zip(columns.T, of_each, strict=True)]), widths


# --- how far probabilities hold


def log_loss(probabilities: Floats, codes: Integers, weights: Floats | None = None) -> float:
    """Return the mean of ``-log p`` of the true classes; a class that is not known to the model, -1, costs the most."""
    rows = np.arange(len(codes))
    truth = np.where(codes >= 0, probabilities[rows, codes], 0.0)
    return float(np.average(-np.log(np.maximum(truth, np.finfo(np.float64).eps)), weights=weights))


@dataclass(frozen=True)
class Bins:
    """Predictions by their probability."""

    probability: Floats  # (bins,): the mean of those in it; the middle where there are none
    share: Floats  # (bins,): how many of them are right; NaN where there are none
    counts: Integers  # (bins,)
    weights: Floats  # (bins,): how much they count

    @property
    def error(self) -> float:
        """The expected calibration error: the mean distance of share and probability over all predictions."""
        seen = self.weights > 0
        return float(np.average(np.abs(self.share - self.probability)[seen], weights=self.weights[seen]))


def bin_predictions(probability: Floats, right: Flags, weights: Floats | None = None, n_bins: int = N_BINS) -> Bins:
    """Put predictions into bins of equal width by the probability that each was given."""
    weights = np.ones(len(probability)) if weights is None else weights
    place = np.clip((probability * n_bins).astype(np.int64), 0, n_bins - 1)
    counted = np.bincount(place, weights, minlength=n_bins)
    some = np.where(counted > 0, counted, 1.0)
    mean = np.bincount(place, weights * probability, minlength=n_bins) / some
    share = np.bincount(place, weights * right, minlength=n_bins) / some
    middle = (np.arange(n_bins) + 0.5) / n_bins
    return Bins(
        np.where(counted > 0, mean, middle),
        np.where(counted > 0, share, np.nan),
        np.bincount(place, minlength=n_bins),
        counted,
    )


# --- who has probabilities


class NoProbabilities:
    """Stands where a classifier has no ``predict_proba``; who asks for it hears which way there is one.

    scikit-learn asks with ``hasattr``, and is told no.
    """

    def __init__(self, searching: str = "PathSearchCV") -> None:
        self.searching = searching

    def __get__(self, instance: Any, owner: type) -> Any:
        raise AttributeError(
            f"{owner.__name__} has scores, decision_function, and no probabilities: they need scores of rows that a "
            f"fit has not seen. {self.searching} makes them with the folds of its search, and sklearn.calibration's "
            "CalibratedClassifierCV around this estimator with folds of its own"
        )
