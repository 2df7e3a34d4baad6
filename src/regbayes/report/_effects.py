"""Average marginal effects of the inputs on the predictions of any model.

One column is changed at a time, in the user's units and categories, and passed through the steps of the pipeline. A
slope is a central difference with a tiny step; a size is a central difference over one standard deviation. Both are
averages over samples with standard errors. If all samples have equal differences, the model is linear.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import scipy.sparse
from sklearn.base import is_classifier, is_regressor
from sklearn.utils import get_tags
from sklearn.utils.validation import _num_samples

from regbayes._types import Floats, Integers
from regbayes.report._columns import MISSING, Columns, dense_rows
from regbayes.report._examples import loading_pictures
from regbayes.report._features import Outputs, Shown
from regbayes.report._latent import LatentModel, respond, weights_of
from regbayes.report.data import LIMITS, Effects

STEP = 3e-6  # finite-difference step in standard deviations; both errors are below 1e-6
SAME = 1e-8  # relative tolerance for equal differences
MAX_PREDICTED = 200_000  # maximum number of predicted samples for averages
MAX_CELLS = 200_000_000  # maximum number of values in these samples
CHUNK_CELLS = 16_000_000
MIN_AVERAGED = 12  # minimum number of samples in an average, if available
CURVE_CELLS = 20_000_000  # maximum number of values in samples predicted for curves

Variant = tuple[int, Any]  # column and its new values


@dataclass(frozen=True)
class Predictor:
    """Predictions and the part of them that is due to direct weights of inputs."""

    whole: Callable[[Any], Floats]  # (n, O)
    direct: Callable[[Any], Floats] | None  # (n, O)

    def __call__(self, X: Any) -> Floats:
        """Return the prediction and, if available, its direct part, (n, parts, O)."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the samples were validated before
            parts = [self.whole(X)] if self.direct is None else [self.whole(X), self.direct(X)]
        return np.stack(parts, axis=1)

    def vary(self, columns: Columns, rows: Integers, variants: Iterable[Variant]) -> Iterator[Floats]:
        """Yield the predictions (n, parts, O) for each variant of a column."""
        n, waiting = len(rows), iter(variants)
        size = max(1, CHUNK_CELLS // (n * len(columns.names)))
        while some := list(islice(waiting, size)):
            edits = [(place, slice(i * n, (i + 1) * n), values) for i, (place, values) in enumerate(some)]
            found = self(columns.take(np.tile(rows, len(some)), edits))
            yield from found.reshape(len(some), n, *found.shape[1:])


def effects_of(
    estimator: Any, latent: LatentModel, shown: Shown, outputs: Outputs, task: Any, answer: str
) -> Effects | None:
    """Return the average effects of all inputs, or None if the model has no predictions."""
    # Central differences would make word counts negative, so counts are only increased.
    is_counted = shown.kind == "text" or get_tags(latent.model).input_tags.positive_only
    columns = None if is_counted else shown.columns
    asked = latent.answering if columns is None else estimator
    method = "predict" if is_regressor(asked) else "decision_function" if is_classifier(asked) else None
    if method is None or not hasattr(asked, method):
        return None
    tasks = [None] if task is None else list(latent.model.tasks_)

    def whole(X: Any) -> Floats:
        n, blocks = _num_samples(X), []
        for one in tasks:  # predict all samples for each task
            found = respond(asked, method, X, None if one is None else np.full(n, one))
            blocks += found if isinstance(found, list) else [found]
        return np.concatenate([np.asarray(block, dtype=np.float64).reshape(n, -1) for block in blocks], axis=1)

    if columns is None:
        found = _word_effects(Predictor(whole, None), latent, shown.encoding.names)
    else:
        found = _column_effects(Predictor(whole, _direct_part(latent, columns, whole)), columns, shown.image_shape)
    n_outputs = found["sizes"].shape[1]
    names = outputs.names if len(outputs.names) == n_outputs else [f"output {place}" for place in range(n_outputs)]
    opens_on = names.index(outputs.largest) if outputs.largest in names else 0
    told = {"answer": answer, "output_title": outputs.title, "outputs": tuple(names), "opens_on": opens_on}
    return Effects(**told, **found)


def _direct_part(
    latent: LatentModel, columns: Columns, whole: Callable[[Any], Floats]
) -> Callable[[Any], Floats] | None:
    """Return the part of the predictions from direct input weights, or None.

    The result is None unless features and inputs together explain the predictions up to a constant.
    """
    model, weights = latent.model, weights_of(latent)
    coef = getattr(model, "coef_inputs_", None)
    if coef is None or weights is None or latent.head is not model:
        return None
    own = np.atleast_2d(np.asarray(coef, dtype=np.float64)) / np.asarray(getattr(model, "scale_", 1.0))

    def direct(X: Any) -> Floats:
        seen = latent.prepare(X)
        return np.asarray(dense_rows(seen, np.arange(_num_samples(X))).astype(np.float64) @ own.T)

    X = columns.take(_spread(len(columns), MIN_AVERAGED))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = whole(X)
        if found.shape[1] != len(own):
            return None
        rest = found - direct(X) - np.asarray(model.transform(latent.prepare(X)), dtype=np.float64) @ weights.T
    return direct if np.all(np.ptp(rest, axis=0) <= 1e-6 * (1.0 + np.abs(found).max())) else None


def _spread(n: int, wanted: int) -> Integers:
    """Return evenly spaced row indices."""
    return np.unique(np.linspace(0, n - 1, min(n, wanted)).round().astype(np.int64))


@dataclass(frozen=True)
class ColumnEffect:
    """Average effects of one column on the prediction and its direct part."""

    size: Floats  # (O,): effect of one standard deviation or of the most influential category
    error: Floats  # (O,)
    slope: Floats  # (parts, O); NaN for categories
    changes: Floats  # (categories - 1, parts, O)
    change_errors: Floats  # like `changes`
    largest: float  # largest absolute difference
    widest: float  # largest range of a difference over samples

    @staticmethod
    def of(found: Iterator[Floats], values: Floats | None, step: float, moves: bool, n_compared: int) -> ColumnEffect:
        """Compute effects from predictions in the order of `_column_effects`."""
        differences, moments, slope = [], [], None
        if values is not None:
            up, down, above, below = (next(found) for _ in range(4))
            made = (values + STEP * step) - (values - STEP * step)
            made, seen = np.where(made == 0, np.inf, made), np.isfinite(values)  # rounding may cancel a step
            slope = np.mean((up - down)[seen] / made[seen, None, None], axis=0)
            differences.append((above - below)[seen] * moves)
        if n_compared:
            first = next(found)
            differences += [next(found) - first for _ in range(n_compared - 1)]
        moments = [(one.mean(axis=0), one.std(axis=0) / np.sqrt(len(one))) for one in differences]
        means, errors = (np.array(some) for some in zip(*moments, strict=True))
        if slope is None:
            slope = np.full(means.shape[1:], np.nan)
            best = np.abs(means[:, 0]).argmax(axis=0)[None]
            size, error = (np.take_along_axis(some[:, 0], best, axis=0)[0] for some in (means, errors))
        else:
            (size, error), means, errors = (means[0, 0], errors[0, 0]), means[1:], errors[1:]
        largest = max(float(np.abs(one[:, 0]).max()) for one in differences)
        widest = max(float(np.ptp(one[:, 0], axis=0).max()) for one in differences)
        return ColumnEffect(size, error, slope, means, errors, largest, widest)


def _column_effects(predictor: Predictor, columns: Columns, image_shape: tuple[int, ...] | None) -> dict[str, Any]:
    n_all = len(columns.names)
    deviations = columns.deviations()
    steps = np.where(deviations > 0, deviations, 1.0)
    compared = [_find_values(columns, place) for place in range(n_all)]
    n_averaged = min(MAX_PREDICTED // (4 * n_all), MAX_CELLS // (4 * n_all**2))
    rows = _spread(len(columns), max(MIN_AVERAGED, n_averaged))
    own = {place: columns.column(place)[rows] for place in range(n_all) if np.isfinite(deviations[place])}
    known = [place for place in range(n_all) if np.isfinite(own.get(place, np.nan)).any() or compared[place][1]]

    def variants() -> Iterator[Variant]:
        for place in known:
            if place in own:
                yield from ((place, own[place] + size * steps[place]) for size in (STEP, -STEP, 0.5, -0.5))
            yield from ((place, value) for value in compared[place][1])

    found = predictor.vary(columns, rows, variants())
    of_each = [
        ColumnEffect.of(found, own.get(place), steps[place], deviations[place] > 0, len(compared[place][1]))
        for place in known
    ]
    linear = max((one.widest for one in of_each), default=0.0) <= SAME * max(
        (one.largest for one in of_each), default=0
    )
    whole = predictor(columns.take(_spread(len(columns), MAX_PREDICTED // n_all)))[:, 0]
    spread, n_outputs = whole.std(axis=0), whole.shape[1]
    strength = [-np.abs(one.size / np.where(spread > 0, spread, 1.0)).max() for one in of_each]
    order = np.argsort(strength, kind="stable")[: max(1, LIMITS.effects // max(n_outputs, 1))].tolist()
    listed, shown = [known[i] for i in order], [of_each[i] for i in order]
    grids, curves = [np.zeros(0)] * len(listed), [np.zeros((0, n_outputs))] * len(listed)
    if not linear and image_shape is None:
        for i, place in enumerate(listed[: LIMITS.curves]):
            if place in own:
                grids[i], curves[i] = _curve(predictor, columns, place)
    pictures: tuple[Any, float] = (None, 0.0)
    if image_shape is not None:
        pixels = np.zeros((n_outputs, n_all))
        pixels[:, known] = np.transpose([one.size for one in of_each])
        pictures = loading_pictures(pixels, image_shape)
    split, certain = predictor.direct is not None, 0.0 if linear else 1.0
    slopes = np.array([one.slope for one in shown]).reshape(len(shown), -1, n_outputs)
    return {
        "linear": linear,
        "names": tuple(columns.names[place] for place in listed),
        "kinds": tuple("number" if place in own else "category" for place in listed),
        "sizes": np.array([one.size for one in shown]).reshape(-1, n_outputs),
        "errors": certain * np.array([one.error for one in shown]).reshape(-1, n_outputs),
        "deviations": deviations[listed],
        "slopes": slopes[:, 0],
        "n_rows": len(rows),
        "n_inputs": n_all,
        "categories": tuple(tuple(compared[place][0]) for place in listed),
        "changes": tuple(one.changes[:, 0] for one in shown),
        "change_errors": tuple(certain * one.change_errors[:, 0] for one in shown),
        "direct": slopes[:, 1] if split else None,
        "direct_changes": tuple(one.changes[:, 1] for one in shown) if split else (),
        "grids": tuple(grids),
        "curves": tuple(curves),
        "left_out": tuple(columns.names[place] for place in range(n_all) if place not in known),
        "pictures": pictures[0],
        "picture_limit": pictures[1],
    }


def _find_values(columns: Columns, place: int) -> tuple[list[str], list[Any]]:
    """Return names and values of the categories to compare; the first is the reference."""
    column = columns.column(place)
    values = columns.categories(place) if column.dtype == object else []
    names = [str(value) for value in values]
    missing = [i for i, value in enumerate(column.tolist()) if value is None or value != value]
    if missing and column.dtype != object and np.isfinite(column).any():
        names, values = ["its median"], [float(np.nanmedian(column))]
    if missing and values:
        names, values = [*names, MISSING], [*values, columns.values(place)[missing[0]]]
    return (names, values) if len(values) > 1 else ([], [])


def _curve(predictor: Predictor, columns: Columns, place: int) -> tuple[Floats, Floats]:
    """Return a grid of values and the centered partial dependence on it."""
    column = columns.column(place)
    grid = np.unique(np.quantile(column[np.isfinite(column)], np.linspace(0.01, 0.99, LIMITS.curve_points)))
    affordable = CURVE_CELLS // (LIMITS.curves * LIMITS.curve_points * len(columns.names))
    rows = _spread(len(columns), min(100, max(MIN_AVERAGED, affordable)))
    means = [found[:, 0].mean(axis=0) for found in predictor.vary(columns, rows, [(place, value) for value in grid])]
    return grid, np.array(means) - np.mean(means, axis=0)


def _word_effects(predictor: Predictor, latent: LatentModel, words: Sequence[str]) -> dict[str, Any]:
    """Return the effects of one more occurrence of the most influential words."""
    X = scipy.sparse.csr_array(latent.X)
    documents = X[_spread(X.shape[0], 40)]
    n = documents.shape[0]

    def ask(counts: Any) -> Floats:
        return predictor(counts if scipy.sparse.issparse(latent.X) else counts.toarray())[:, 0]

    before, chosen, found = ask(documents), _find_distinctive_words(latent, X), []
    for word in chosen:
        one = scipy.sparse.csr_array((np.ones(n), (np.arange(n), np.full(n, word))), shape=documents.shape)
        found.append(ask(scipy.sparse.csr_array(documents + one)) - before)
    slopes, errors, spread = np.mean(found, axis=1), np.std(found, axis=1) / np.sqrt(n), before.std(axis=0)
    order = np.argsort(-np.abs(slopes / np.where(spread > 0, spread, 1.0)).max(axis=1), kind="stable")
    return {
        "linear": False,
        "names": tuple(str(words[chosen[i]]) for i in order),
        "kinds": ("word",) * len(order),
        "sizes": slopes[order],
        "errors": errors[order],
        "deviations": np.full(len(order), np.nan),
        "slopes": slopes[order],
        "n_rows": n,
        "n_inputs": X.shape[1],
    }


def _find_distinctive_words(latent: LatentModel, X: Any) -> Integers:
    """Return the words with the largest weights, scaled by their frequency."""
    components = np.asarray(latent.model.components_, dtype=np.float64)
    score = np.asarray((X != 0).sum(axis=0)).ravel().astype(np.float64)
    weights = weights_of(latent)
    if weights is not None:
        if components.min() >= 0:  # for topics, use the excess of a word over its overall frequency
            total = components.sum(axis=0)
            share = np.divide(components, total, out=np.zeros_like(components), where=total > 0)
            components = share - (components.sum(axis=1) / components.sum())[:, None]
        score = np.abs(weights @ components).max(axis=0) * np.sqrt(score)
    return np.argsort(-score, kind="stable")[: LIMITS.words]
