"""From scores to probabilities: a curve with few numbers, fitted to scores of rows that the fits had not seen.

Scores of large-margin classifiers say which class, not how surely. Of two classes with one score s the probability is
``sigmoid(s / T)``; of more, ``p(c)`` is proportional to ``exp(s_c / T)``, or to ``sigmoid(s_c / T + b)`` where that
fits better: scores of one class against all others. T is the temperature. T and b have the least log-loss on the scores
that the fits of a search gave to the rows left out. In ``1 / T`` alone that loss is convex, and T is found by Newton
steps inside a bracket.

Classes that are fitted one by one have scores of their own scales. So each class gets a T and a b of its own, drawn
towards those of all, where the log-likelihood gains more than one for each further number (Akaike's criterion).

Where all those rows are answered rightly, T would go to zero and the next error would cost everything. So one row more
is counted, with the scores of them all and any of its classes.

Several labels are several questions. Each of two classes has a sigmoid of its own, with an offset, because a rare label
is seldom as likely as its score says, and with a temperature on either side of zero, because margins bend the scores of
the two classes differently. `SHARED_ROWS` rows more are counted, as the curve that all labels share answers them: what
few rows say is not taken for much. The curve taken is half way between the best with two temperatures and the best with
one. Questions of more classes have a temperature each, found likewise.

The most probable class is always the one that is answered. Where a curve says otherwise, the probabilities are the
nearest ones that do not: the answer and the classes above it share what they have (`keep_answers`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_expit, log_softmax, softmax
from sklearn.utils import _safe_indexing

from regbayes._registry import persistable
from regbayes._types import Flags, Floats, Integers

UNCERTAIN_ROWS = 1.0  # counted once more, in equal parts for every class
SHARED_ROWS = 200.0  # of each question, counted once more as the curve that all share answers them
CLASS_RIDGE = 5.0  # on what the logarithm of a class's 1 / T, and its offset, differ from those of all classes
COLDEST, HOTTEST = 1e6, 1e-3  # inverse temperatures, in units of the scores' spread
MAX_STEPS = 100
STARTS = (0.0, -4.0)  # offsets
BOUNDS = (-30.0, 30.0)  # of log(1 / T) and of offsets: beyond them nothing changes
N_BINS = 10
SOFTMAX_OFFSET = -12.0  # sigmoids with it are exponentials, up to 1e-5
BARELY = 1e-9  # what the answer has more, where a curve would turn it round


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

    def and_any(self) -> Answers:
        """Count one row more, with the scores of all, that may have any class."""
        counts = self.targets.sum(axis=1)
        more = UNCERTAIN_ROWS * counts / counts.sum() / self.scores.shape[1]
        return Answers(self.scores, self.targets + more[:, None])

    def and_as(self, curve: Curve) -> Answers:
        """Count `SHARED_ROWS` rows more, as a curve answers them: as many of each class that is answered."""
        answers, counts = np.argmax(self.scores, axis=1), self.targets.sum(axis=1)
        of_class = np.bincount(answers, counts)
        more = SHARED_ROWS / np.count_nonzero(of_class) * counts / of_class[answers]
        return Answers(self.scores, self.targets + more[:, None] * curve(self.scores))


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


def fit_temperature(questions: Sequence[Answers], default: float = 1.0) -> float:
    """Return the temperature with the least log-loss, one for all questions.

    Scores that are worse than none have a very high one, so that the order stays and hardly anything is claimed.
    ``default`` is that of scores that are all the same, and of no score at all.
    """
    n = sum(float(asked.targets.sum()) for asked in questions)
    spread = sum(float(asked.targets.sum(axis=1) @ np.ptp(asked.scores, axis=1)) for asked in questions)
    if not spread > 0:
        return default
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


def loss_of_sigmoid(at: Floats, inputs: Floats, targets: Floats) -> tuple[float, Floats, Floats]:
    """Return the log-loss of ``sigmoid(inputs @ at)`` of two classes, its gradient and its Hessian."""
    logits, counts = inputs @ at, targets.sum(axis=1)
    shares = expit(logits)
    loss = float(counts @ np.logaddexp(0.0, logits) - targets[:, 1] @ logits)
    slope = inputs.T @ (counts * shares - targets[:, 1])
    return loss, slope, inputs.T @ ((counts * shares * (1 - shares))[:, None] * inputs)


def fit_sigmoid(inputs: Floats, targets: Floats, start: Floats) -> Floats:
    """Return where the log-loss of ``sigmoid(inputs @ at)`` is least, by Newton steps that are halved."""
    at = start
    loss, slope, curvature = loss_of_sigmoid(at, inputs, targets)
    for _ in range(MAX_STEPS):
        step, *_ = np.linalg.lstsq(curvature, -slope, rcond=None)
        gain = -float(slope @ step)
        if gain <= 1e-14 * (1.0 + loss):
            break
        while loss_of_sigmoid(at + step, inputs, targets)[0] > loss - 1e-4 * gain and np.abs(step).max() > 0:
            step, gain = step / 2, gain / 2
        at = at + step
        loss, slope, curvature = loss_of_sigmoid(at, inputs, targets)
    return at


def fit_label(asked: Answers, curve: Curve) -> Curve:
    """Return temperatures below zero and above, and an offset, of two classes, beginning with those of ``curve``.

    They are half way between those with the least log-loss and those with the least where both temperatures are the
    same: of the few rows on one side of zero not all is believed. Where scores are worse than none, ``curve`` stays.
    """
    score = asked.scores[:, 1] - asked.scores[:, 0]
    below, above, one = np.minimum(score, 0.0), np.maximum(score, 0.0), np.ones(len(score))
    slopes, offset = 1.0 / curve.temperatures[0], curve.offsets[0]
    slope, *last = fit_sigmoid(np.column_stack([score, one]), asked.targets, np.array([slopes.mean(), offset]))
    straight = np.array([slope, slope, *last])
    bent = fit_sigmoid(np.column_stack([below, above, one]), asked.targets, np.array([*slopes, offset]))
    for found in ((straight + bent) / 2, straight):
        if np.all(found[:2] > HOTTEST * slopes.min()):
            return Curve(1.0 / found[None, :2], found[2:])
    return curve


def loss_of_one_against_all(at: Floats, asked: Answers) -> tuple[float, Floats]:
    """Return the log-loss of shares proportional to ``sigmoid(exp(at[0]) * scores + at[1])``, and its gradient."""
    inputs = np.exp(at[0]) * asked.scores
    logits = inputs + at[1]
    logs = log_softmax(log_expit(logits), axis=1)
    pull = (asked.targets.sum(axis=1)[:, None] * np.exp(logs) - asked.targets) * expit(-logits)
    return -float(np.sum(asked.targets * logs)), np.array([np.sum(pull * inputs), np.sum(pull)])


def fit_classes(asked: Answers, temperature: float) -> tuple[float, float]:
    """Return the temperature and the offset of several classes with the least log-loss; minus infinity is the softmax.

    ``temperature`` is the best of the softmax. It is left where another curve gains more than rounding.
    """
    from scipy.optimize import minimize  # predictions do without it

    least, _, _ = loss_of_scale(1.0 / temperature, [asked])
    best = temperature, -np.inf
    for offset in STARTS:
        start = np.array([-np.log(temperature), offset])
        found = minimize(loss_of_one_against_all, start, (asked,), method="L-BFGS-B", jac=True, bounds=[BOUNDS] * 2)
        if found.fun < least - 1e-9 * (1.0 + least):
            least, best = float(found.fun), (float(np.exp(-found.x[0])), float(found.x[1]))
    return best


def loss_of_each_class(at: Floats, asked: Answers) -> tuple[float, Floats]:
    """Return the log-loss of shares proportional to ``sigmoid(slopes * scores + offsets)``, and its gradient.

    ``at`` has the logarithm of the slope and the offset of all classes, then what those of each differ from them: the
    differences have a ridge.
    """
    common, apart = at[:2], at[2:].reshape(2, -1)
    inputs = np.exp(common[0] + apart[0]) * asked.scores
    logits = inputs + (common[1] + apart[1])
    logs = log_softmax(log_expit(logits), axis=1)
    pull = (asked.targets.sum(axis=1)[:, None] * np.exp(logs) - asked.targets) * expit(-logits)
    slopes = np.array([np.sum(pull * inputs, axis=0), np.sum(pull, axis=0)])
    loss = CLASS_RIDGE / 2 * np.sum(apart**2) - np.sum(asked.targets * logs)
    return float(loss), np.concatenate([slopes.sum(axis=1), (slopes + CLASS_RIDGE * apart).ravel()])


def fit_each_class(asked: Answers, curve: Curve) -> Curve:
    """Return a temperature and an offset for each class, or ``curve``, that of all, where Akaike's criterion has it."""
    from scipy.optimize import minimize  # predictions do without it

    k = asked.scores.shape[1]
    start = np.append([-np.log(curve.temperatures[0, 0]), max(curve.offsets[0], SOFTMAX_OFFSET)], np.zeros(2 * k))
    found = minimize(loss_of_each_class, start, (asked,), method="L-BFGS-B", jac=True, bounds=[BOUNDS] * len(start))
    (scale, offset), (scales, offsets) = found.x[:2], found.x[2:].reshape(2, -1)
    each = Curve(np.column_stack([np.exp(-scale - scales)] * 2), offset + offsets)
    gain = np.sum(asked.targets * (np.log(each(asked.scores)) - np.log(curve(asked.scores))))
    return each if gain > 2 * (k - 1) else curve


@dataclass(frozen=True)
class Curve:
    """How the scores of one question become probabilities."""

    temperatures: Floats  # (1, 2) of two classes, (k, 2) of more: of scores below zero and above
    offsets: Floats  # (1,) or (k,): -inf of a softmax

    @classmethod
    def same(cls, n_scores: int, temperature: float, offset: float) -> Curve:
        """Return the curve that is the same for every class."""
        return cls(np.full((n_scores, 2), temperature), np.full(n_scores, offset))

    def __call__(self, columns: Floats) -> Floats:
        """Return the probability of each class, (n, k); the largest is that of the largest score, the first of equals.

        Parameters
        ----------
        columns : (n, k)
            A score for each class; of two classes, the difference counts.
        """
        if columns.shape[1] == 2:
            return self._of_two(columns[:, 1] - columns[:, 0])
        scaled = columns / np.where(columns > 0, self.temperatures[:, 1], self.temperatures[:, 0])
        sigmoids = np.isfinite(self.offsets).all()
        shares = softmax(log_expit(scaled + self.offsets) if sigmoids else scaled, axis=1)
        return keep_answers(np.asarray(shares), np.argmax(columns, axis=1))

    def _of_two(self, score: Floats) -> Floats:
        """Return the probabilities of two classes; what the offset would turn round is 1/2, in the order of scores."""
        temperature = np.where(score > 0, self.temperatures[0, 1], self.temperatures[0, 0])
        yes = expit(score / temperature + self.offsets[0])
        least = 0.5 + BARELY * score / (np.abs(score) + temperature)
        yes = np.where(score > 0, np.maximum(yes, least), np.minimum(yes, least))
        shares = np.column_stack([1.0 - yes, yes])
        return keep_answers(shares, (score > 0).astype(np.int64))  # scores that are less than a probability can say


def keep_answers(shares: Floats, answers: Integers) -> Floats:
    """Return the nearest shares of which the largest, the first of equals, are those of the answers.

    The answer and the classes above it get the mean of what they have, and the answer barely more than the others.
    """
    turned = np.flatnonzero(np.argmax(shares, axis=1) != answers)
    if not len(turned):
        return shares
    rows, place = np.arange(len(turned)), answers[turned]
    found = shares[turned]
    own = found[rows, place]
    found[rows, place] = np.inf  # first in the order
    others = -np.sort(-found, axis=1)[:, 1:]
    means = (own[:, None] + np.cumsum(others, axis=1)) / np.arange(2, shares.shape[1] + 1)
    enough = means >= np.column_stack([others[:, 1:], np.zeros(len(turned))])
    level = means[rows, np.argmax(enough, axis=1)]
    found = np.minimum(found, (1.0 - BARELY) * level[:, None])
    found[rows, place] = 0.0
    found[rows, place] = 1.0 - found.sum(axis=1)
    shares = shares.copy()
    shares[turned] = found
    return shares


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

    temperatures: Floats  # (scores, 2): of scores below zero and above; both are the same except of several labels
    offsets: Floats  # (scores,): of the sigmoids; zero of a single question of two classes, -inf of a softmax
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
        found = self.by_question(scores)
        if not self.several:
            return found[0]
        return found if np.any(self.widths > 1) else np.column_stack([shares[:, 1] for shares in found])

    def by_question(self, scores: Floats | list[Floats]) -> list[Floats]:
        """Return the probabilities of the classes of each question, (n, classes)."""
        blocks = scores if isinstance(scores, list) else split_columns(scores, self.widths)
        ends = np.cumsum(self.widths)[:-1]
        curves = map(Curve, np.split(self.temperatures, ends), np.split(self.offsets, ends))
        return [curve(columns_of(block)) for curve, block in zip(curves, blocks, strict=True)]


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
    shared = fit_temperature([one.and_any() for one in asked])
    if several:
        curves = _fit_questions(asked, shared)
    elif widths[0] > 1:
        counted = asked[0].and_any()
        curves = [fit_each_class(counted, Curve.same(int(widths[0]), *fit_classes(counted, shared)))]
    else:
        curves = [Curve.same(1, shared, 0.0)]
    return Calibration(
        np.concatenate([curve.temperatures for curve in curves]),
        np.concatenate([curve.offsets for curve in curves]),
        np.asarray(widths),
        several,
        int(np.sum(np.any(codes >= 0, axis=1))),
    )


def _fit_questions(asked: Sequence[Answers], shared: float) -> list[Curve]:
    """Fit a curve to each question, drawn towards the one that all share."""
    of_two = [one for one in asked if one.scores.shape[1] == 2]
    label = Curve.same(1, shared, 0.0)
    if of_two:
        scores, targets = (np.concatenate([getattr(one, name) for one in of_two]) for name in ("scores", "targets"))
        label = fit_label(Answers(scores, targets).and_any(), label)
    curves = []
    for one in asked:
        k = one.scores.shape[1]
        curve = label if k == 2 else Curve.same(k, shared, -np.inf)
        if len(one.scores):
            more = one.and_as(curve)
            curve = fit_label(more, curve) if k == 2 else Curve.same(k, fit_temperature([more], shared), -np.inf)
        curves.append(curve)
    return curves


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


@dataclass(frozen=True)
class Unseen:
    """What the fits of one setting said of the rows that they had left out."""

    rows: Integers  # (n,)
    scores: Floats  # (n,) or (n, sum of widths)
    codes: Integers  # (n, questions): the true classes
    widths: Integers  # (questions,)
    several: bool

    @classmethod
    def of(cls, classifier: Any, records: Sequence[Any], y: Any) -> Unseen | None:
        """Read what the folds of a search found.

        Folds whose fit had not seen every class say nothing of the others' scores and are left out. None where no fold
        is left, or where the classifier has no scores, or probabilities of its own.

        Parameters
        ----------
        classifier : classifier
            Fitted to all rows.
        records : sequence of FoldRecord
            Of the fits with the same settings.
        y : (N,) or (N, questions)
            Of all rows, as the classifier was given it.
        """
        if not hasattr(classifier, "decision_function") or hasattr(classifier, "predict_proba"):
            return None
        found = []
        for one in records:
            n_scores = 1 if np.ndim(one.decisions) == 1 else np.shape(one.decisions)[1]
            asked = read_questions(_safe_indexing(y, one.rows), classifier.classes_, n_scores)
            if asked is not None:
                found.append((one.rows, one.decisions, *asked))
        if not found:
            return None
        rows, scores, codes = (np.concatenate([fold[i] for fold in found]) for i in range(3))
        return cls(rows, scores, codes, found[0][3], np.ndim(records[0].predictions) == 2)

    def calibrate(self, weights: Any = None) -> Calibration:
        """Find how such scores become probabilities; weights are those of all rows."""
        counts = None if weights is None else np.asarray(weights, dtype=np.float64)[self.rows]
        return calibrate(self.scores, self.codes, self.widths, self.several, counts)


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
