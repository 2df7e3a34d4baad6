"""The rows that the page shows: their names, what is true of them, and small pictures of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from regbayes._types import Floats, Integers
from regbayes.report._targets import Outcomes, label_text
from regbayes.report.data import Examples

MAX_TEXT = 280
MAX_SIDE = 64  # pixels of a loading or a thumbnail
MAX_BYTES = 1_500_000  # of all thumbnails together
MAX_LABELS = 6  # of one row that are still listed
OUTLIERS = 0.5  # per cent of pixels at either end that may be clipped


class ExamplePool:
    """Collects rows as parts of the page ask for them; each row is kept once."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}

    def places(self, rows: Iterable[Any]) -> Integers:
        """Return the places of rows in the pool, adding those that are new."""
        return np.array([self._places.setdefault(int(row), len(self._places)) for row in rows], dtype=np.int64)

    @property
    def rows(self) -> Integers:
        """The rows, in the order of their places."""
        return np.array(list(self._places), dtype=np.int64)


def dense_rows(X: Any, rows: Integers) -> NDArray[Any]:
    """Return some rows as a dense array, whatever holds them."""
    if scipy.sparse.issparse(X):
        return np.asarray(X.tocsr()[rows].toarray())
    if hasattr(X, "iloc"):
        return np.asarray(X.iloc[rows])
    return np.asarray(X)[rows]


def describe(
    rows: Integers,
    outcomes: Outcomes | None,
    row_names: Sequence[Any] | None,
    texts: Sequence[str] | None,
    pictures: NDArray[np.uint8] | None,
) -> Examples:
    """Describe the rows of the pool."""
    truths, predictions = answers_of(rows, outcomes)
    names = [f"row {row}" if row_names is None else label_text(row_names[row]) for row in rows]
    if outcomes is not None and outcomes.layout == "ragged":
        task = dict(zip(outcomes.rows.tolist(), outcomes.tasks.tolist(), strict=True))
        names = [
            f"{name}, {outcomes.task_names[task[row]]}" if row in task else name
            for name, row in zip(names, rows.tolist(), strict=True)
        ]
    shown = [] if texts is None else [shortened(str(texts[row])) for row in rows]
    return Examples(
        names=tuple(names),
        truths=tuple(truths),
        predictions=tuple(predictions),
        texts=tuple(shown) or ("",) * len(rows),
        pictures=pictures,
    )


def shortened(text: str) -> str:
    """Return how a document begins, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_TEXT else line[:MAX_TEXT].rsplit(" ", 1)[0] + " …"


def answers_of(rows: Integers, outcomes: Outcomes | None) -> tuple[list[str], list[str]]:
    """Return what is true of rows and what was predicted for them, as text."""
    if outcomes is None:
        return [""] * len(rows), [""] * len(rows)
    cells: dict[int, list[int]] = {int(row): [] for row in rows}
    for cell, row in enumerate(outcomes.rows.tolist()):
        if row in cells:
            cells[row].append(cell)
    truths = [_answer(cells[int(row)], outcomes.values, outcomes) for row in rows]
    if outcomes.predicted is None:
        return truths, [""] * len(rows)
    if outcomes.layout == "matrix" and outcomes.kind == "classes":
        return truths, [_mistakes(cells[int(row)], outcomes, outcomes.predicted) for row in rows]
    return truths, [_answer(cells[int(row)], outcomes.predicted, outcomes) for row in rows]


def _mistakes(cells: list[int], outcomes: Outcomes, predicted: NDArray[Any]) -> str:
    """Say which of a row's labels are wrong; an empty string if none is."""
    wrong = [cell for cell in cells if outcomes.values[cell] != predicted[cell]]
    missed = [name for name in (_name_label(cell, outcomes.values, outcomes) for cell in wrong) if name]
    added = [name for name in (_name_label(cell, predicted, outcomes) for cell in wrong) if name]
    parts = [f"{verb} {_join_names(names)}" for verb, names in (("misses", missed), ("adds", added)) if names]
    return "; ".join(parts)


def _answer(cells: list[int], values: NDArray[Any], outcomes: Outcomes) -> str:
    if not cells:
        return "no target" if outcomes.layout != "matrix" else "no label"
    if outcomes.layout == "matrix" and outcomes.kind == "classes":
        found = [_name_label(cell, values, outcomes) for cell in cells]
        return _join_names([name for name in found if name]) or "none"
    if outcomes.layout == "matrix":
        return _join_names([f"{outcomes.task_names[outcomes.tasks[cell]]} {values[cell]:.3g}" for cell in cells])
    cell = cells[0]
    if outcomes.kind == "numbers":
        return f"{values[cell]:.4g}".replace("-", "−")
    return outcomes.class_names[outcomes.tasks[cell]][values[cell]]


def _name_label(cell: int, values: NDArray[Any], outcomes: Outcomes) -> str:
    """Name a label that a row has; of two classes the first is the absence of it."""
    task, labels = outcomes.task_names[outcomes.tasks[cell]], outcomes.class_names[outcomes.tasks[cell]]
    if len(labels) <= 2:
        return task if values[cell] == len(labels) - 1 else ""
    return f"{task}: {labels[values[cell]]}"


def _join_names(names: list[str]) -> str:
    more = len(names) - MAX_LABELS
    return ", ".join(names[:MAX_LABELS]) + (f" and {more} more" if more > 0 else "")


def check_image_shape(image_shape: Sequence[int], n_inputs: int) -> tuple[int, ...]:
    """Return the shape of images as a tuple: (height, width) or (height, width, 3)."""
    shape = tuple(int(length) for length in image_shape)
    if len(shape) not in (2, 3) or min(shape) < 1 or (len(shape) == 3 and shape[2] not in (1, 3)):
        raise ValueError(f"image_shape must be (height, width) or (height, width, 3), got {tuple(image_shape)}")
    if np.prod(shape) != n_inputs:
        raise ValueError(f"image_shape {shape} has {np.prod(shape)} pixels, but X has {n_inputs} columns")
    return shape[:2] if shape[2:] == (1,) else shape


def thumbnails(rows: NDArray[Any], shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return rows as small pictures, black the lowest value and white the highest."""
    images = np.asarray(rows, dtype=np.float64).reshape(-1, *shape)
    n_values = len(images) * (shape[2] if len(shape) == 3 else 1)
    images = shrunk(images, int(np.clip(np.sqrt(MAX_BYTES / max(n_values, 1)), 16, MAX_SIDE)))
    if images.size == 0:
        return images.astype(np.uint8)
    low, high = np.nanpercentile(images, [OUTLIERS, 100 - OUTLIERS])
    scaled = (images - low) / (high - low if high > low else 1.0)
    return np.asarray(np.round(255 * np.clip(np.nan_to_num(scaled), 0.0, 1.0)), dtype=np.uint8)


def loading_pictures(loadings: Floats, shape: tuple[int, ...]) -> tuple[NDArray[np.int8], float]:
    """Return loadings as pictures of signed bytes, colours averaged, and the loading that 127 stands for."""
    images = loadings.reshape(-1, *shape)
    images = shrunk(images.mean(axis=3) if len(shape) == 3 else images, MAX_SIDE)
    limit = float(np.abs(images).max(initial=0.0))
    return np.round(127 * images / (limit or 1.0)).astype(np.int8), limit


def shrunk(images: Floats, side: int) -> Floats:
    """Return images whose longer side has at most so many pixels, by averaging blocks of them."""
    factor = -(-max(images.shape[1:3]) // side)
    if factor == 1:
        return images
    height, width = (-(-length // factor) for length in images.shape[1:3])
    padding = [(0, 0), (0, height * factor - images.shape[1]), (0, width * factor - images.shape[2])]
    padded = np.pad(images, padding + [(0, 0)] * (images.ndim - 3), mode="edge")
    blocks = padded.reshape(len(images), height, factor, width, factor, *images.shape[3:])
    return np.asarray(blocks.mean(axis=(2, 4)))
