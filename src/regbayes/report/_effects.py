"""Net effects: what one input does to the answers of the whole model, however they come about.

The model is asked, and nothing is assumed of what is inside it: rows are changed in one column, in the units and with
the categories that the user knows, and go through the scalers and encoders of the pipeline. A slope is a central
difference of a tiny step and a size that of a whole standard deviation, half of it to either side, both averaged over
rows: of features that are on or off the slope says little, because few rows are where they change. Where steps find the
same slope everywhere the model is linear, and one row is enough.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
from sklearn.base import is_classifier, is_regressor
from sklearn.utils.validation import _num_samples

from regbayes._types import Floats, Integers
from regbayes.report._examples import dense_rows, loading_pictures
from regbayes.report._features import Outputs
from regbayes.report._inputs import MISSING, Columns, Edit
from regbayes.report._models import LatentModel, respond, weights_of
from regbayes.report.data import EffectKind, Effects

STEP = 3e-6  # of a standard deviation: what it cuts off and what it rounds off are both far below 1e-6
STRAIGHT = 1e-8  # of the largest difference, below which differences are the same
MAX_ASKED = 200_000  # rows that are asked for averages
MAX_CELLS = 200_000_000  # of these rows
CHUNK_CELLS = 16_000_000
FEWEST_ROWS = 12  # over which averages are taken, if there are so many
N_CHECKED = 5  # rows by which a model is found to be linear,
MAX_CHECKED = 100  # and inputs
N_CURVES = 40  # inputs with a curve
N_GRID = 13
N_CURVE_ROWS = 100
CURVE_CELLS = 20_000_000  # of the rows that are asked for all curves
MAX_LISTED = 400_000  # inputs times outputs
N_WORDS = 60
N_DOCUMENTS = 40
USUAL = "its median"


@dataclass(frozen=True)
class Asking:
    """Asks a model: rows in, answers out, and beside them the part of answers that direct weights make."""

    answers: Callable[[Any], Floats]  # (n, O)
    direct: Callable[[Any], Floats] | None  # (n, O)

    def __call__(self, X: Any) -> Floats:
        """Return (n, parts, O): the whole answer, and the direct part of it where there is one."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is odd in the rows was said when they were first looked at
            parts = [self.answers(X)] if self.direct is None else [self.answers(X), self.direct(X)]
        return np.stack(parts, axis=1)


def effects_of(
    estimator: Any,
    latent: LatentModel,
    columns: Columns | None,
    outputs: Outputs,
    words: Sequence[str],
    task: Any,
    image_shape: tuple[int, ...] | None,
    answer: str,
) -> Effects | None:
    """Return the net effects of all inputs; None where the model answers nothing.

    Parameters
    ----------
    estimator, latent : what was fitted, and the model inside
    columns : Columns or None
        Rows as the user gave them; None where inputs are counts of words.
    outputs : Outputs
        What answers are called.
    words : names of the model's inputs, where they are words
    task : the tasks of rows, if any
    image_shape : of images
    answer : what changes
    """
    asked = latent.answering if columns is None else estimator
    method = "predict" if is_regressor(asked) else "decision_function" if is_classifier(asked) else None
    if method is None or not hasattr(asked, method):
        return None
    tasks = [None] if task is None else list(latent.model.tasks_)

    def answers(X: Any) -> Floats:
        found = [_respond(asked, method, X, one) for one in tasks]
        return np.concatenate(found, axis=1)

    if columns is None:
        return _word_effects(Asking(answers, None), latent, words, outputs, answer)
    asking = Asking(answers, _direct_part(latent, columns, answers))
    return _column_effects(asking, columns, outputs, image_shape, answer)


def _respond(asked: Any, method: str, X: Any, task: Any) -> Floats:
    """Return answers, (n, outputs), all rows taken for rows of one task where there are tasks."""
    n = _num_samples(X)
    found = respond(asked, method, X, None if task is None else np.full(n, task))
    blocks = found if isinstance(found, list) else [found]
    return np.concatenate([np.asarray(block, dtype=np.float64).reshape(n, -1) for block in blocks], axis=1)


def _direct_part(latent: LatentModel, columns: Columns, answers: Any) -> Callable[[Any], Floats] | None:
    """Return the part of the answers that the model's weights for inputs make; None where it has none.

    That features and inputs together make the answers, but for a constant, is looked at before it is believed.
    """
    model = latent.model
    coef = getattr(model, "coef_inputs_", None)
    weights = weights_of(latent)
    if coef is None or weights is None or latent.head is not model:
        return None
    own = np.atleast_2d(np.asarray(coef, dtype=np.float64)) / np.asarray(getattr(model, "scale_", 1.0))

    def direct(X: Any) -> Floats:
        seen = latent.prepare(X)
        return np.asarray(dense_rows(seen, np.arange(_num_samples(X))).astype(np.float64) @ own.T)

    X = columns.take(_spread(len(columns), 4 * N_CHECKED))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = answers(X)
        if whole.shape[1] != len(own):
            return None
        rest = whole - direct(X) - np.asarray(model.transform(latent.prepare(X)), dtype=np.float64) @ weights.T
    return direct if np.all(np.ptp(rest, axis=0) <= 1e-6 * (1.0 + np.abs(whole).max())) else None


def _spread(n: int, wanted: int) -> Integers:
    """Return so many rows, evenly over all of them."""
    return np.unique(np.linspace(0, n - 1, min(n, wanted)).round().astype(np.int64))


def _column_effects(
    asking: Asking, columns: Columns, outputs: Outputs, image_shape: tuple[int, ...] | None, answer: str
) -> Effects:
    deviations = columns.deviations()
    steps = np.where(deviations > 0, deviations, 1.0)
    numbers = np.flatnonzero(np.isfinite(deviations))
    compared = {place: _find_values(columns, place) for place in range(len(columns.names))}
    linear = _is_linear(asking, columns, numbers, steps, compared)
    n_all = len(columns.names)
    n_rows = min(MAX_ASKED // (4 * n_all), MAX_CELLS // (4 * n_all**2))
    rows = _spread(len(columns), max(FEWEST_ROWS, n_rows))
    base = columns
    if linear:
        base, rows = columns.typical(), np.zeros(1, dtype=np.int64)
    answers = asking(columns.take(_spread(len(columns), MAX_ASKED // n_all)))[:, 0]
    parts, n_outputs = 1 if asking.direct is None else 2, answers.shape[1]
    slopes = np.full((n_all, parts, n_outputs), np.nan)
    whole_steps = np.zeros((len(numbers), n_outputs))
    if len(numbers):
        tiny = steps * (0.5 if linear else STEP)
        slopes[numbers], whole_steps = _slopes(asking, base, rows, numbers, tiny, steps / 2)
    changes = [np.zeros((0, parts, n_outputs))] * n_all
    for place, (_, values) in compared.items():
        if values:
            changes[place] = _changes(asking, base, rows, place, values)
    sizes = np.full((n_all, n_outputs), np.nan)
    sizes[numbers] = whole_steps * (deviations > 0)[numbers, None]
    for place in range(n_all):
        if place not in numbers and len(changes[place]):
            whole = changes[place][:, 0]
            sizes[place] = np.take_along_axis(whole, np.abs(whole).argmax(axis=0)[None], axis=0)[0]
    spread = answers.std(axis=0)
    strength = np.abs(np.nan_to_num(sizes) / np.where(spread > 0, spread, 1.0)).max(axis=1)
    known = np.array([place in numbers or len(changes[place]) > 0 for place in range(n_all)])
    order = np.argsort(-strength, kind="stable")
    order = order[known[order]][: max(1, MAX_LISTED // max(n_outputs, 1))]
    grids, curves = [np.zeros(0)] * len(order), [np.zeros((0, n_outputs))] * len(order)
    if not linear and image_shape is None:
        for i, place in enumerate(order[:N_CURVES].tolist()):
            if place in numbers:
                grids[i], curves[i] = _curve(asking, columns, place)
    pictures, limit = None, 0.0
    if image_shape is not None:
        pictures, limit = loading_pictures(np.nan_to_num(sizes).T, image_shape)
    split = asking.direct is not None
    kinds: list[EffectKind] = ["number" if place in numbers else "category" for place in order.tolist()]
    return Effects(
        linear=linear,
        answer=answer,
        **_name_outputs(outputs, n_outputs),
        names=tuple(columns.names[place] for place in order),
        kinds=tuple(kinds),
        sizes=sizes[order],
        deviations=deviations[order],
        slopes=slopes[order, 0],
        direct=slopes[order, 1] if split else np.zeros((0, n_outputs)),
        categories=tuple(tuple(compared[place][0]) for place in order.tolist()),
        changes=tuple(changes[place][:, 0] for place in order.tolist()),
        direct_changes=tuple(changes[place][:, 1] for place in order.tolist()) if split else (),
        grids=tuple(grids),
        curves=tuple(curves),
        n_rows=len(rows),
        n_inputs=n_all,
        left_out=tuple(columns.names[place] for place in np.flatnonzero(~known)),
        pictures=pictures,
        picture_limit=limit,
    )


def _name_outputs(outputs: Outputs, n: int) -> dict[str, Any]:
    names = outputs.names if len(outputs.names) == n else [f"output {place}" for place in range(n)]
    return {"output_title": outputs.title, "outputs": tuple(names)}


def _find_values(columns: Columns, place: int) -> tuple[list[str], list[Any]]:
    """Return the values of a column that are compared, the first with the others: their names, and they themselves."""
    column = columns.column(place)
    values = columns.categories(place) if column.dtype == object else []
    names = [str(value) for value in values]
    holes = [i for i, value in enumerate(column.tolist()) if value is None or value != value]
    if holes and column.dtype != object and np.isfinite(column).any():
        names, values = [USUAL], [float(np.median(column[np.isfinite(column)]))]
    if holes and values:
        names, values = [*names, MISSING], [*values, columns.raw[place][holes[0]]]
    return (names, values) if len(values) > 1 else ([], [])


def _ask_of_each(
    asking: Asking, columns: Columns, rows: Integers, places: Integers, values: Callable[[int], Floats]
) -> Floats:
    """Ask rows with each of some columns changed in turn.

    ``values(place)`` are the values that the column has in turn, (variants, rows). Returns
    (places, variants, rows, parts, outputs).
    """
    found = []
    n = len(rows)
    variants = len(values(int(places[0]))) if len(places) else 1
    chunk = max(1, CHUNK_CELLS // (n * variants * len(columns.names)))
    for start in range(0, len(places), chunk):
        mine = places[start : start + chunk]
        edits: list[Edit] = []
        for i, place in enumerate(mine.tolist()):
            begin = i * variants * n
            edits.append((place, slice(begin, begin + variants * n), values(place).ravel()))
        asked = asking(columns.take(np.tile(rows, variants * len(mine)), edits))
        found.append(asked.reshape(len(mine), variants, n, *asked.shape[1:]))
    return np.concatenate(found) if found else np.zeros((0, variants, n, 1, 0))


def _is_linear(
    asking: Asking, columns: Columns, numbers: Integers, steps: Floats, compared: dict[int, tuple[list[str], list[Any]]]
) -> bool:
    """Whether steps of a standard deviation, up and down, and categories make the same difference in every row."""
    rows = _spread(len(columns), N_CHECKED)
    some = numbers[_spread(len(numbers), MAX_CHECKED)] if len(numbers) else numbers
    groups: list[Floats] = []
    if len(some):

        def values(place: int) -> Floats:
            own = columns.column(place)[rows]
            return np.stack([own + steps[place], own, own - steps[place]])

        asked = _ask_of_each(asking, columns, rows, some, values)[:, :, :, 0]
        seen = np.stack([np.isfinite(columns.column(int(place))[rows]) for place in some])  # (places, rows)
        up, down = asked[:, 0] - asked[:, 1], asked[:, 1] - asked[:, 2]
        groups += [np.concatenate([up[i][seen[i]], down[i][seen[i]]]) for i in range(len(some))]
    for place, (_, given) in compared.items():
        if not given:
            continue
        asked = _ask_each_value(asking, columns, rows, place, given)[:, :, 0]
        groups += list(asked[1:] - asked[:1])
    groups = [group for group in groups if len(group)]
    largest = max((float(np.abs(group).max(initial=0.0)) for group in groups), default=0.0)
    return all(float(np.ptp(group, axis=0).max(initial=0.0)) <= STRAIGHT * largest for group in groups)


def _slopes(
    asking: Asking, columns: Columns, rows: Integers, places: Integers, tiny: Floats, halves: Floats
) -> tuple[Floats, Floats]:
    """Return slopes, (places, parts, outputs), and differences that whole steps make, (places, outputs).

    Both are central, and averages over the rows that have a value. Steps are those of each column.
    """

    def values(place: int) -> Floats:
        own = columns.column(place)[rows]
        return np.stack([own + tiny[place], own - tiny[place], own + halves[place], own - halves[place]])

    asked = _ask_of_each(asking, columns, rows, places, values)
    slopes, sizes = np.zeros((len(places), *asked.shape[3:])), np.zeros((len(places), asked.shape[4]))
    for i, place in enumerate(places.tolist()):
        up, down, _, _ = values(place)
        seen = np.isfinite(up) & (up != down)
        if seen.any():  # the step that was made, which is not quite the one that was asked for
            made = (up - down)[seen, None, None]
            slopes[i] = ((asked[i, 0] - asked[i, 1])[seen] / made).mean(axis=0)
            sizes[i] = (asked[i, 2] - asked[i, 3])[seen, 0].mean(axis=0)
    return slopes, sizes


def _ask_each_value(asking: Asking, columns: Columns, rows: Integers, place: int, values: list[Any]) -> Floats:
    """Return answers for rows that all have one value in a column, then the next: (values, rows, parts, outputs)."""
    n = len(rows)
    edits: list[Edit] = [(place, slice(i * n, (i + 1) * n), value) for i, value in enumerate(values)]
    asked = asking(columns.take(np.tile(rows, len(values)), edits))
    return asked.reshape(len(values), n, *asked.shape[1:])


def _changes(asking: Asking, columns: Columns, rows: Integers, place: int, values: list[Any]) -> Floats:
    """Return what each value makes of the answers in place of the first, averaged: (values - 1, parts, outputs)."""
    asked = _ask_each_value(asking, columns, rows, place, values)
    return np.asarray((asked[1:] - asked[:1]).mean(axis=1))


def _curve(asking: Asking, columns: Columns, place: int) -> tuple[Floats, Floats]:
    """Return values of a column, and what the answers are on average where it has them, less their mean."""
    column = columns.column(place)
    grid = np.unique(np.quantile(column[np.isfinite(column)], np.linspace(0.01, 0.99, N_GRID)))
    affordable = CURVE_CELLS // (N_CURVES * N_GRID * len(columns.names))
    rows = _spread(len(columns), min(N_CURVE_ROWS, max(FEWEST_ROWS, affordable)))
    asked = _ask_each_value(asking, columns, rows, place, grid.tolist())[:, :, 0].mean(axis=1)
    return grid, asked - asked.mean(axis=0)


def _word_effects(
    asking: Asking, latent: LatentModel, words: Sequence[str], outputs: Outputs, answer: str
) -> Effects | None:
    """Return what one more occurrence of a word does, for the words that seem to matter most."""
    X = scipy.sparse.csr_array(latent.X)
    documents = X[_spread(X.shape[0], N_DOCUMENTS)]
    chosen = _find_distinctive_words(latent, X)

    def ask(counts: Any) -> Floats:
        return asking(counts if scipy.sparse.issparse(latent.X) else counts.toarray())[:, 0]

    before, n = ask(documents), documents.shape[0]
    changes = []
    for word in chosen:
        one = scipy.sparse.csr_array((np.ones(n), (np.arange(n), np.full(n, word))), shape=documents.shape)
        changes.append((ask(scipy.sparse.csr_array(documents + one)) - before).mean(axis=0))
    slopes = np.array(changes)
    spread = before.std(axis=0)
    order = np.argsort(-np.abs(slopes / np.where(spread > 0, spread, 1.0)).max(axis=1), kind="stable")
    empty = np.zeros((0, slopes.shape[1]))
    return Effects(
        linear=False,
        answer=answer,
        **_name_outputs(outputs, slopes.shape[1]),
        names=tuple(str(words[chosen[i]]) for i in order),
        kinds=("word",) * len(order),
        sizes=slopes[order],
        deviations=np.full(len(order), np.nan),
        slopes=slopes[order],
        direct=empty,
        categories=((),) * len(order),
        changes=(empty,) * len(order),
        direct_changes=(),
        grids=(np.zeros(0),) * len(order),
        curves=(empty,) * len(order),
        n_rows=n,
        n_inputs=X.shape[1],
        left_out=(),
        pictures=None,
        picture_limit=0.0,
    )


def _find_distinctive_words(latent: LatentModel, X: Any) -> Integers:
    """Return the words whose features have the largest weights, frequent ones before rare ones."""
    components = np.asarray(latent.model.components_, dtype=np.float64)
    documents = np.asarray((X != 0).sum(axis=0)).ravel().astype(np.float64)
    weights = weights_of(latent)
    if weights is None:
        return np.argsort(-documents, kind="stable")[:N_WORDS]
    if components.min() >= 0:  # topics: what a word says is what its topics say, more or less than usual
        total = components.sum(axis=0)
        share = np.divide(components, total, out=np.zeros_like(components), where=total > 0)
        says = weights @ (share - (components.sum(axis=1) / components.sum())[:, None])
    else:
        says = weights @ components
    score = np.abs(says).max(axis=0) * np.sqrt(documents)
    return np.argsort(-score, kind="stable")[:N_WORDS]
