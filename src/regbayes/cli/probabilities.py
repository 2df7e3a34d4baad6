"""Probabilities of classes, thresholds on them, and how reliable they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regbayes._registry import persistable
from regbayes._types import Flags, Floats, Integers
from regbayes.cli.errors import UserError, listed
from regbayes.cli.targets import shown_label
from regbayes.estimators._calibration import Calibration, HeldOutScores, codes_of

__all__ = ["Certainty", "learn_certainty", "mean_log_loss", "predict_at", "read_thresholds", "reliability_of"]

N_BINS = 10  # of equal width, for predictions by their probability
RESAMPLES = 50  # over which the thresholds for F1 are averaged


@persistable(name="regbayes.cli.Certainty")
@dataclass(frozen=True, eq=False)
class Certainty:
    """What cross-validation found out about the scores of a classifier."""

    calibration: Calibration  # how they become probabilities
    best: tuple[Floats, ...]  # of each target, (classes,): the probability above which F1 of a class is the highest


def learn_certainty(
    estimator: Any, records: Sequence[Any], y: NDArray[Any], weights: Floats | None, seed: int
) -> tuple[Certainty | None, Any]:
    """Return the calibration of held-out scores, and how reliable the probabilities are; None if no fold has scores."""
    from regbayes.estimators.thresholds import draw_resamples, find_threshold

    unseen = HeldOutScores.collect(estimator, records, y)
    if unseen is None:
        return None, None
    calibration = unseen.calibrate(weights)
    shares = calibration.by_output(unseen.scores)
    resamples = draw_resamples(len(y), RESAMPLES, np.random.RandomState(seed), weights)
    best = []
    for found, codes in zip(shares, unseen.codes.T, strict=True):
        seen = codes >= 0
        thresholds = [
            find_threshold(found[seen, c], codes[seen] == c, unseen.rows[seen], resamples, 0.5)
            for c in range(found.shape[1])
        ]
        best.append(np.array(thresholds))
    counts = None if weights is None else weights[unseen.rows]
    note = "Of held-out rows; the curve that turns scores into probabilities was fitted to the same rows."
    return Certainty(calibration, tuple(best)), reliability_of(shares, unseen.codes, counts, note)


def reliability_of(shares: Sequence[Floats], codes: Integers, weights: Floats | None, note: str) -> Any:
    """Return how often predictions of about the same probability are right, for the page.

    Parameters
    ----------
    shares : of each target, (n, classes)
    codes : (n, targets)
        The true classes; -1 where one is not known.
    weights : (n,) or None
    note : str
        Whose probabilities.
    """
    from regbayes.report.data import Reliability

    seen = codes.T >= 0
    pairs = list(zip(shares, codes.T, seen, strict=True))
    probability = np.concatenate([found.max(axis=1)[here] for found, _, here in pairs])
    right = np.concatenate([(found.argmax(axis=1) == code)[here] for found, code, here in pairs])
    counts = np.concatenate([(np.ones(len(codes)) if weights is None else weights)[here] for here in seen])
    place = np.minimum((N_BINS * probability).astype(np.int64), N_BINS - 1)
    in_bin = np.bincount(place, counts, N_BINS)
    kept = in_bin > 0
    mean, share = (np.bincount(place, counts * values, N_BINS)[kept] / in_bin[kept] for values in (probability, right))
    error = np.average(np.abs(share - mean), weights=in_bin[kept])
    said = f"{note} Probability and share differ by {error:.3f} on average (expected calibration error)."
    return Reliability(mean, share, np.bincount(place, minlength=N_BINS)[kept], said)


def mean_log_loss(
    shares: Sequence[Floats], y: NDArray[Any], classes: Sequence[Any], observed: Flags, weights: Floats | None
) -> float:
    """Return the mean log-loss over all observed targets, (n, targets); classes that are new are left out."""
    losses, counts = [np.zeros(0)], [np.zeros(0)]
    for j, (found, known) in enumerate(zip(shares, classes, strict=True)):
        codes = codes_by_text(y[:, j], known)
        here = np.flatnonzero(observed[:, j] & (codes >= 0))
        losses.append(-np.log(np.maximum(found[here, codes[here]], np.finfo(np.float64).eps)))
        counts.append(np.ones(len(here)) if weights is None else weights[here])
    every = np.concatenate(counts)
    return float(np.average(np.concatenate(losses), weights=every)) if every.sum() > 0 else float("nan")


def codes_by_text(labels: NDArray[Any], classes: Any) -> Integers:
    """Return the places of labels among classes as both are written to files; -1 where there is none."""
    texts = np.array([None if value is None or value != value else shown_label(value) for value in labels.tolist()])
    return codes_of(texts, np.array([shown_label(label) for label in classes], dtype=object))


def read_thresholds(
    given: Sequence[str], names: Sequence[str], classes: Sequence[Any], best: Sequence[Floats]
) -> list[Floats]:
    """Return the thresholds of each target's classes, (classes,); NaN where there is none.

    Parameters
    ----------
    given : sequence of str
        "0.3" for the second class of every target of two; "NAME=0.3", where NAME is a target or, of one target, a
        class; "f1" for those that the fit found to have the highest F1.
    names, classes
        Of the targets.
    best : of each target, (classes,)
        What "f1" stands for.
    """
    found = [np.full(len(known), np.nan) for known in classes]
    for text in given:
        if text == "f1":
            for thresholds, of_target in zip(found, best, strict=True):
                thresholds[:] = of_target
                if len(thresholds) == 2:
                    thresholds[0] = np.nan  # the second class alone decides
            continue
        name, equals, number = text.rpartition("=")
        try:
            value = float(number)
        except ValueError:
            value = np.nan
        if not 0 < value < 1:
            raise UserError(f"--threshold must be a number between 0 and 1, NAME=number, or f1; got {text!r}")
        places = {shown_label(label): (0, k) for k, label in enumerate(classes[0])}
        if len(names) > 1:
            places = {name: (j, 1) for j, name in enumerate(names) if len(classes[j]) == 2}
        chosen = [places[name]] if name in places else []
        if not equals and all(len(known) == 2 for known in classes):
            chosen = [(j, 1) for j in range(len(classes))]
        if not chosen:
            raise UserError(f"--threshold {text}: give NAME=number, where NAME is one of {listed(list(places))}")
        for target, place in chosen:
            found[target][place] = value
    return found


def predict_at(shares: Floats, thresholds: Floats) -> Integers:
    """Return the classes that probabilities above their thresholds name.

    Of classes with a threshold, the one that exceeds it by the largest factor is predicted. Where none does, the most
    probable of the others is; where there are no others, the one that comes nearest.

    Parameters
    ----------
    shares : (n, classes)
    thresholds : (classes,)
        NaN where a class has none.
    """
    named = np.isfinite(thresholds)
    factors = np.where(named, shares / np.where(named, thresholds, 1.0), -1.0)
    others = np.argmax(np.where(named, -1.0, shares), axis=1)
    return np.where((factors.max(axis=1) > 1) | named.all(), np.argmax(factors, axis=1), others)
