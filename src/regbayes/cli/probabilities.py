"""How sure answers are: probabilities of classes, thresholds on them, and how far they hold."""

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

__all__ = ["Certainty", "answer_at", "learn_certainty", "mean_log_loss", "read_thresholds", "reliability_of"]

N_BINS = 10  # of equal width, for predictions by their probability
RESAMPLES = 50  # over which the thresholds for F1 are averaged
BEST = "f1"  # what asks for the thresholds that a fit found


@persistable(name="regbayes.cli.Certainty")
@dataclass(frozen=True, eq=False)
class Certainty:
    """What cross-validation found out about the scores of a classifier."""

    calibration: Calibration  # how they become probabilities
    best: tuple[Floats, ...]  # of each target, (classes,): the probability above which F1 of a class is the highest


def learn_certainty(
    estimator: Any, records: Sequence[Any], y: NDArray[Any], weights: Floats | None, seed: int
) -> tuple[Certainty | None, Any]:
    """Return what the folds of the chosen settings say of the scores, and how far the probabilities hold.

    Returns
    -------
    Certainty or None
        None where no fold has seen all classes.
    Reliability or None
    """
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
    note = (
        "Of rows by fits that had not seen them; the curve that makes probabilities of scores was found from the same "
        "rows."
    )
    return Certainty(calibration, tuple(best)), reliability_of(shares, unseen.codes, counts, note)


def reliability_of(shares: Sequence[Floats], codes: Integers, weights: Floats | None, note: str) -> Any:
    """Return how often answers of about the same probability are right, for the page.

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

    weights = np.ones(len(codes)) if weights is None else weights
    seen = codes.T >= 0
    probability = np.concatenate([found.max(axis=1)[here] for found, here in zip(shares, seen, strict=True)])
    right = np.concatenate(
        [(found.argmax(axis=1) == code)[here] for found, code, here in zip(shares, codes.T, seen, strict=True)]
    )
    counts = np.concatenate([weights[here] for here in seen])
    place = np.minimum((N_BINS * probability).astype(np.int64), N_BINS - 1)
    counted = np.bincount(place, counts, N_BINS)
    kept = counted > 0
    mean, share = (np.bincount(place, counts * values, N_BINS)[kept] / counted[kept] for values in (probability, right))
    error = np.average(np.abs(share - mean), weights=counted[kept])
    said = f"{note} Probability and share differ by {error:.3f} on average (expected calibration error)."
    return Reliability(mean, share, np.bincount(place, minlength=N_BINS)[kept], said)


def mean_log_loss(
    shares: Sequence[Floats], y: NDArray[Any], classes: Sequence[Any], observed: Flags, weights: Floats | None
) -> float:
    """Return the mean of -log p of the true classes over all observed targets; new classes are left out.

    Parameters
    ----------
    shares : of each target, (n, classes)
    y : (n, targets)
    classes : of each target
    observed : (n, targets)
    """
    losses, counts = [], []
    for j, (found, known) in enumerate(zip(shares, classes, strict=True)):
        codes = codes_by_text(y[:, j], known)
        here = observed[:, j] & (codes >= 0)
        if here.any():
            some = None if weights is None else weights[here]
            truth = np.maximum(found[here][np.arange(here.sum()), codes[here]], np.finfo(np.float64).eps)
            losses.append(float(np.average(-np.log(truth), weights=some)))
            counts.append(float(here.sum() if some is None else some.sum()))
    return float(np.average(losses, weights=counts)) if losses else float("nan")


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

    Raises
    ------
    UserError
        If one of them makes no sense.
    """
    found = [np.full(len(known), np.nan) for known in classes]
    for text in given:
        name, equals, number = text.rpartition("=")
        if text == BEST:
            for thresholds, of_target in zip(found, best, strict=True):
                thresholds[:] = of_target
                if len(thresholds) == 2:
                    thresholds[0] = np.nan  # the second class alone decides
            continue
        try:
            value = float(number)
        except ValueError:
            value = np.nan
        if not 0 < value < 1:
            raise UserError(f"--threshold must be a number between 0 and 1, NAME=number, or f1; got {text!r}")
        places = _find_class(name, names, classes) if equals else _second_classes(classes, text)
        for target, place in places:
            found[target][place] = value
    return found


def _second_classes(classes: Sequence[Any], text: str) -> list[tuple[int, int]]:
    if any(len(known) != 2 for known in classes):
        shown = [shown_label(label) for known in classes if len(known) != 2 for label in known]
        raise UserError(f"--threshold {text}: of more than two classes, say of which: {shown[0]}={text}, for instance")
    return [(j, 1) for j in range(len(classes))]


def _find_class(name: str, names: Sequence[str], classes: Sequence[Any]) -> list[tuple[int, int]]:
    """Return the target and the class that a name stands for."""
    if len(names) > 1:
        two = [j for j, known in enumerate(classes) if names[j] == name and len(known) == 2]
        if not two:
            raise UserError(
                f"--threshold {name}=...: no target of two classes has this name; there are {listed(names)}"
            )
        return [(two[0], 1)]
    shown = [shown_label(label) for label in classes[0]]
    if name not in shown:
        raise UserError(f"--threshold {name}=...: the target has no such class; it has {listed(shown)}")
    return [(0, shown.index(name))]


def answer_at(shares: Floats, thresholds: Floats) -> Integers:
    """Return the classes that probabilities above their thresholds name.

    Of classes with a threshold, the one that exceeds it by the largest factor is answered. Where none does, the most
    probable of the others is; where there are no others, the one that comes nearest.

    Parameters
    ----------
    shares : (n, classes)
    thresholds : (classes,)
        NaN where a class has none.
    """
    named = np.isfinite(thresholds)
    if not named.any():
        return np.argmax(shares, axis=1)
    factors = np.where(named, shares / np.where(named, thresholds, 1.0), -1.0)
    others = np.argmax(np.where(named, -1.0, shares), axis=1)
    nearest = np.argmax(factors, axis=1)
    return np.where((factors.max(axis=1) > 1) | named.all(), nearest, others)
