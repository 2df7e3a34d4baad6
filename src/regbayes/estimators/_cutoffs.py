"""Where to cut scores into yes and no: exact searches over thresholds for metrics made of counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Booleans = NDArray[np.bool_]
Metric = Callable[[NDArray[Any], NDArray[Any]], float]

MAX_TRIED = 200
"""Thresholds tried for a metric that is a function of labels; one made of counts is searched exactly."""
MAX_ROUNDS = 20


@dataclass(frozen=True)
class Counts:
    """True and false positives, false and true negatives; arrays of one shape."""

    tp: Floats
    fp: Floats
    fn: Floats
    tn: Floats

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.tp + other.tp, self.fp + other.fp, self.fn + other.fn, self.tn + other.tn)

    def at(self, index: Any) -> Counts:
        """Return some of them."""
        return Counts(self.tp[index], self.fp[index], self.fn[index], self.tn[index])


def f1(counts: Counts) -> Floats:
    """Return F1, zero where nothing is positive."""
    return np.asarray(2 * counts.tp / np.maximum(2 * counts.tp + counts.fp + counts.fn, 1))


def accuracy(counts: Counts) -> Floats:
    """Return the share of right answers."""
    return np.asarray((counts.tp + counts.tn) / np.maximum(counts.tp + counts.fp + counts.fn + counts.tn, 1))


@dataclass(frozen=True)
class Cells:
    """Scores of observed labels, and whether each is positive."""

    scores: Floats  # (n,)
    positive: Booleans  # (n,)

    def cuts(self) -> Floats:
        """Return one threshold for every way to cut the scores in two, the highest first."""
        levels = np.unique(self.scores)[::-1]
        margin = 0.5 * (levels[0] - levels[-1]) or 1.0
        return np.concatenate([[levels[0] + margin], 0.5 * (levels[:-1] + levels[1:]), [levels[-1] - margin]])

    def counts(self, thresholds: Floats) -> Counts:
        """Return what happens at each threshold: a score above it is a yes."""
        yes, no = np.sort(self.scores[self.positive]), np.sort(self.scores[~self.positive])
        fn = np.searchsorted(yes, thresholds, side="right").astype(float)
        tn = np.searchsorted(no, thresholds, side="right").astype(float)
        return Counts(len(yes) - fn, len(no) - tn, fn, tn)

    def values(self, metric: Metric, thresholds: Floats) -> Floats:
        """Return a metric of labels at each threshold."""
        return np.array([metric(self.positive.astype(int), (self.scores > cut).astype(int)) for cut in thresholds])


def best_cut(cuts: Floats, values: Floats, default: float) -> float:
    """Return the best threshold; of equals the one nearest to the default, and the default itself if it is as good."""
    best = np.flatnonzero(values >= values.max() - 1e-12)
    return float(cuts[best[np.argmin(np.abs(cuts[best] - default))]])


def choose_thresholds(
    labels: list[Cells], kind: Literal["per_label", "shared"], scoring: str | Metric, default: float
) -> Floats:
    """Return a threshold for each label, the same for all if it is to be shared.

    ``f1_macro`` is the mean of F1 over labels, so each label is searched by itself, exactly; so is ``accuracy``.
    ``f1_micro`` is F1 of all labels together: exact for a shared threshold; for one per label, thresholds are improved
    one at a time, from the best shared one, until none can be. A function is maximised over the cells of each label,
    or over all cells for a shared threshold, among `MAX_TRIED` quantiles. A label without a score keeps the default, or
    for ``f1_micro`` the best shared threshold.
    """
    together = Cells(np.concatenate([c.scores for c in labels]), np.concatenate([c.positive for c in labels]))
    if kind == "shared":
        cuts = _with_default(_few(together.cuts(), scoring), default)
        if callable(scoring):
            values = together.values(scoring, cuts)
        elif scoring == "f1_macro":
            values = np.mean([f1(label.counts(cuts)) for label in labels], axis=0)
        else:
            values = (f1 if scoring == "f1_micro" else accuracy)(together.counts(cuts))
        return np.full(len(labels), best_cut(cuts, values, default))
    if scoring == "f1_micro":
        start = choose_thresholds(labels, "shared", scoring, default)
        return _ascend(labels, start)
    chosen = []
    for label in labels:
        if len(label.scores) == 0:
            chosen.append(default)
            continue
        cuts = _with_default(_few(label.cuts(), scoring), default)
        if callable(scoring):
            values = label.values(scoring, cuts)
        else:
            values = (f1 if scoring == "f1_macro" else accuracy)(label.counts(cuts))
        chosen.append(best_cut(cuts, values, default))
    return np.array(chosen)


def _ascend(labels: list[Cells], start: Floats) -> Floats:
    """Improve F1 of all labels together, one threshold at a time."""
    thresholds = start.copy()
    scored = [i for i, label in enumerate(labels) if len(label.scores)]
    every = {i: labels[i].cuts() for i in scored}
    counts = {i: labels[i].counts(every[i]) for i in scored}
    now = [label.counts(cut[None]) for label, cut in zip(labels, thresholds, strict=True)]
    for _ in range(MAX_ROUNDS):
        before = thresholds.copy()
        for i in scored:
            rest = sum((now[j] for j in range(len(labels)) if j != i), start=Counts(*np.zeros((4, 1))))
            values, current = f1(counts[i] + rest), f1(now[i] + rest)[0]
            if values.max() > current + 1e-12:
                thresholds[i] = best_cut(every[i], values, thresholds[i])
                now[i] = labels[i].counts(thresholds[i : i + 1])
        if np.array_equal(before, thresholds):
            break
    return thresholds


def _few(cuts: Floats, scoring: str | Metric) -> Floats:
    if not callable(scoring) or len(cuts) <= MAX_TRIED:
        return cuts
    return cuts[np.linspace(0, len(cuts) - 1, MAX_TRIED).astype(int)]


def _with_default(cuts: Floats, default: float) -> Floats:
    return np.append(cuts, default)
