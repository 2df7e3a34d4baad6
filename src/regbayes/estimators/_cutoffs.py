"""Where to cut scores into yes and no: exact searches over thresholds for metrics made of counts, and their average.

The best threshold of a sample jumps: one example more of a rare label can move it by a third of the examples. So it is
searched on many resamples of the rows, and the numbers of yeses at what is found there are averaged. An average of
numbers, not of thresholds, depends on the order of the scores alone: log odds and probabilities are cut alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from regbayes._types import Flags, Floats, Integers

Resample = NDArray[np.uint8]  # (n_rows,): how often each row was drawn
Resamples = NDArray[np.uint8]  # (n_resamples, n_rows): of many
Metric = Callable[..., float]  # of true and predicted labels

MAX_TRIED = 200
"""Thresholds tried for a metric that is a function of labels; one made of counts is searched exactly."""
MAX_ROUNDS = 20
DEFAULT_RESAMPLES = 50


@dataclass(frozen=True)
class Counts:
    """True and false positives, false and true negatives; arrays of one shape."""

    tp: Floats
    fp: Floats
    fn: Floats
    tn: Floats

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.tp + other.tp, self.fp + other.fp, self.fn + other.fn, self.tn + other.tn)

    def __sub__(self, other: Counts) -> Counts:
        return Counts(self.tp - other.tp, self.fp - other.fp, self.fn - other.fn, self.tn - other.tn)

    def at(self, index: Any) -> Counts:
        """Return some of them."""
        return Counts(self.tp[index], self.fp[index], self.fn[index], self.tn[index])


def f1(counts: Counts) -> Floats:
    """Return F1, zero where nothing is positive."""
    return _share(2 * counts.tp, 2 * counts.tp + counts.fp + counts.fn)


def accuracy(counts: Counts) -> Floats:
    """Return the share of right answers."""
    return _share(counts.tp + counts.tn, counts.tp + counts.fp + counts.fn + counts.tn)


def _share(part: Floats, whole: Floats) -> Floats:
    """Return the part as a share of the whole, zero of nothing."""
    return np.asarray(part / np.where(whole > 0, whole, 1.0))


@dataclass(frozen=True)
class Cells:
    """Scores of observed labels, whether each is positive, and the row that it belongs to."""

    scores: Floats  # (n,)
    positive: Flags  # (n,)
    rows: Integers  # (n,)

    def cuts(self, default: float) -> Floats:
        """Return one threshold for every way to cut the scores in two, the highest first, and the default."""
        levels = np.unique(self.scores)[::-1]
        margin = 0.5 * (levels[0] - levels[-1]) or 1.0
        between = 0.5 * (levels[:-1] + levels[1:])
        return np.concatenate([[levels[0] + margin], between, [levels[-1] - margin, default]])

    def values(self, metric: Metric, thresholds: Floats, weights: Floats | None = None) -> Floats:
        """Return a metric of labels at each threshold; with weights of rows it must take ``sample_weight``."""
        weighted = {} if weights is None else {"sample_weight": weights[self.rows]}
        truth = self.positive.astype(int)
        return np.array([metric(truth, (self.scores > cut).astype(int), **weighted) for cut in thresholds])


def draw_resamples(n_rows: int, n_resamples: int, random: np.random.RandomState) -> Resamples | None:
    """Draw rows with replacement, as many as there are; None where no resample is wanted."""
    if n_resamples == 0:
        return None
    drawn = np.empty((n_resamples, n_rows), dtype=np.uint8)
    for resample in drawn:
        resample[:] = np.bincount(random.randint(n_rows, size=n_rows), minlength=n_rows)
    return drawn


@dataclass(frozen=True)
class Ladder:
    """What happens to some cells at each of a list of thresholds: a score above it is a yes."""

    above: Integers  # (thresholds,) how many scores are
    positive: Flags  # (n,) from the highest score down
    rows: Integers  # (n,) likewise

    @classmethod
    def of(cls, cells: Cells, thresholds: Floats) -> Ladder:
        """Sort the cells."""
        order = np.argsort(-cells.scores, kind="stable")
        above = len(order) - np.searchsorted(cells.scores[order[::-1]], thresholds, side="right")
        return cls(above, cells.positive[order], cells.rows[order])

    def counts(self, row_weights: Floats | Resample | None = None) -> Counts:
        """Return the counts at each threshold, where a row counts as often as is said (None: once)."""
        weights = np.ones(len(self.rows)) if row_weights is None else row_weights[self.rows].astype(np.float64)
        positives = np.concatenate([[0.0], np.cumsum(weights * self.positive)])
        all_cells = np.concatenate([[0.0], np.cumsum(weights)])
        tp, yes = positives[self.above], all_cells[self.above]
        fn = positives[-1] - tp
        return Counts(tp, yes - tp, fn, all_cells[-1] - yes - fn)


def best_cut(cuts: Floats, values: Floats, default: float) -> int:
    """Return the place of the best threshold; of equals it is the one nearest to the default."""
    best = np.flatnonzero(values >= values.max() - 1e-12)
    return int(best[np.argmin(np.abs(cuts[best] - default))])


def choose_thresholds(
    labels: list[Cells],
    kind: Literal["per_label", "shared"],
    scoring: str | Metric,
    default: float,
    resamples: Resamples | None = None,
    weights: Floats | None = None,
) -> Floats:
    """Return a threshold for each label, the same for all if it is to be shared.

    ``f1_macro`` is the mean of F1 over labels, so each label is searched by itself, exactly; so is ``accuracy``.
    ``f1_micro`` is F1 of all labels together: exact for a shared threshold; for one per label, thresholds are improved
    one at a time, from the best shared one, until none can be. A function is maximised over the cells of each label,
    or over all cells for a shared threshold, among `MAX_TRIED` quantiles. A label without a score keeps the default, or
    for ``f1_micro`` the best shared threshold.

    With resamples of the rows, all but a function is searched on each of them, and the threshold is the one that has
    the mean number of yeses. Where rows have weights, a row counts in the metrics as often as that times its draws.
    """
    if kind == "shared":
        together = Cells(
            np.concatenate([label.scores for label in labels]),
            np.concatenate([label.positive for label in labels]),
            np.concatenate([label.rows for label in labels]),
        )
        parts = labels if scoring == "f1_macro" else [together]
        return np.full(len(labels), _search(together, parts, scoring, default, resamples, weights))
    if scoring == "f1_micro":
        return _search_together(labels, default, resamples, weights)
    return np.array([_search(label, [label], scoring, default, resamples, weights) for label in labels])


def _weigh_draws(resamples: Resamples | None, weights: Floats | None) -> list[Floats | Resample | None]:
    """Return how often rows count in each search: as drawn, times their weights; once where there is neither."""
    if resamples is None:
        return [weights]
    return [drawn if weights is None else drawn * weights for drawn in resamples]


def _search(
    cells: Cells,
    parts: list[Cells],
    scoring: str | Metric,
    default: float,
    resamples: Resamples | None,
    weights: Floats | None,
) -> float:
    """Return the threshold among the cuts of the cells that is best for the mean of a metric over the parts."""
    if len(cells.scores) == 0:
        return default
    cuts = cells.cuts(default)
    if callable(scoring):
        cuts = _few(cuts)
        return float(cuts[best_cut(cuts, cells.values(scoring, cuts, weights), default)])
    metric = accuracy if scoring == "accuracy" else f1
    ladders = [Ladder.of(part, cuts) for part in parts]
    found = [
        best_cut(cuts, np.mean([metric(ladder.counts(counted)) for ladder in ladders], axis=0), default)
        for counted in _weigh_draws(resamples, weights)
    ]
    if resamples is None:
        return float(cuts[found[0]])
    above = np.sum([ladder.above for ladder in ladders], axis=0)
    return _with_yeses(cuts, above, np.mean(above[found]), default)


def _with_yeses(cuts: Floats, above: Integers, wanted: Any, default: float) -> float:
    """Return the threshold whose number of yeses is nearest to a given one."""
    return float(cuts[best_cut(cuts, -np.abs(above - wanted), default)])


def _search_together(
    labels: list[Cells], default: float, resamples: Resamples | None, weights: Floats | None
) -> Floats:
    """Return thresholds that serve F1 of all labels together; the search starts from the best shared one."""
    thresholds = choose_thresholds(labels, "shared", "f1_micro", default, resamples, weights)
    start = thresholds[0]
    scored = [i for i, label in enumerate(labels) if len(label.scores)]
    cuts = [labels[i].cuts(start) for i in scored]
    ladders = [Ladder.of(labels[i], own) for i, own in zip(scored, cuts, strict=True)]
    draws = _weigh_draws(resamples, weights)
    found = np.array([_ascend(cuts, [ladder.counts(counted) for ladder in ladders]) for counted in draws])
    for i, own, ladder, places in zip(scored, cuts, ladders, found.T, strict=True):
        if resamples is None:
            thresholds[i] = own[places[0]]
        else:
            thresholds[i] = _with_yeses(own, ladder.above, np.mean(ladder.above[places]), start)
    return thresholds


def _ascend(cuts: list[Floats], counts: list[Counts]) -> list[int]:
    """Improve F1 of all labels together, one threshold at a time, from the last of each list."""
    places = [len(own) - 1 for own in cuts]
    total = sum((c.at(p) for c, p in zip(counts, places, strict=True)), start=Counts(*np.zeros(4)))
    for _ in range(MAX_ROUNDS):
        before = list(places)
        for i, own in enumerate(cuts):
            rest = total - counts[i].at(places[i])
            values = f1(counts[i] + rest)
            if values.max() > values[places[i]] + 1e-12:
                places[i] = best_cut(own, values, own[places[i]])
                total = rest + counts[i].at(places[i])
        if before == places:
            break
    return places


def _few(cuts: Floats) -> Floats:
    """Return at most `MAX_TRIED` of them, and the default, which is the last."""
    if len(cuts) <= MAX_TRIED:
        return cuts
    return np.append(cuts[np.linspace(0, len(cuts) - 2, MAX_TRIED).astype(int)], cuts[-1])
