"""Example samples of the report: names, targets, predictions and thumbnails."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regbayes._types import Floats, Integers
from regbayes.report._outcomes import Outcomes, label_text
from regbayes.report.data import LIMITS, Cell, Examples


class ExamplePool:
    """Set of the samples that parts of the report refer to."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}

    def places(self, rows: Iterable[Any]) -> Integers:
        """Return the positions of samples in the pool, adding new ones."""
        return np.array([self._places.setdefault(int(row), len(self._places)) for row in rows], dtype=np.int64)

    @property
    def rows(self) -> Integers:
        """The sample indices in the order of the pool."""
        return np.array(list(self._places), dtype=np.int64)


def describe(
    rows: Integers,
    outcomes: Outcomes | None,
    row_names: Sequence[Any] | None,
    texts: Sequence[str] | None,
    pictures: NDArray[np.uint8] | None,
    inputs: tuple[tuple[str, ...], tuple[tuple[Cell, ...], ...]],
) -> Examples:
    """Describe the samples of the pool; ``inputs`` are names and values of the main inputs."""
    names = [f"row {row}" if row_names is None else label_text(row_names[row]) for row in rows]
    truths, predictions = [""] * len(rows), [""] * len(rows)
    if outcomes is not None:
        cells: dict[int, list[int]] = {int(row): [] for row in rows}
        for cell, row in enumerate(outcomes.rows.tolist()):
            if row in cells:
                cells[row].append(cell)
        truths = [_answer(mine, outcomes.values, outcomes) for mine in cells.values()]
        if outcomes.predicted is not None:
            of_labels = outcomes.layout == "matrix" and outcomes.kind == "classes"
            tell = _mistakes if of_labels else _answer
            predictions = [tell(mine, outcomes.predicted, outcomes) for mine in cells.values()]
        if outcomes.layout == "ragged":
            tasks = [[outcomes.task_names[outcomes.tasks[cell]] for cell in mine[:1]] for mine in cells.values()]
            names = [", ".join([name, *task]) for name, task in zip(names, tasks, strict=True)]
    shown = [""] * len(rows) if texts is None else [_shorten(str(texts[row])) for row in rows]
    return Examples(tuple(names), tuple(truths), tuple(predictions), tuple(shown), pictures, *inputs)


def _shorten(text: str) -> str:
    """Return the beginning of a document on one line."""
    line = " ".join(text.split())
    return line if len(line) <= LIMITS.characters else line[: LIMITS.characters].rsplit(" ", 1)[0] + " …"


def _mistakes(cells: list[int], predicted: NDArray[Any], outcomes: Outcomes) -> str:
    """Describe the wrong labels of a sample; empty if there are none."""
    wrong = [cell for cell in cells if outcomes.values[cell] != predicted[cell]]
    missed = [name for name in (_name_label(cell, outcomes.values, outcomes) for cell in wrong) if name]
    added = [name for name in (_name_label(cell, predicted, outcomes) for cell in wrong) if name]
    return "; ".join(f"{verb} {_join(names)}" for verb, names in (("misses", missed), ("adds", added)) if names)


def _answer(cells: list[int], values: NDArray[Any], outcomes: Outcomes) -> str:
    if not cells:
        return "no target" if outcomes.layout != "matrix" else "no label"
    if outcomes.layout == "matrix" and outcomes.kind == "classes":
        return _join([name for name in (_name_label(cell, values, outcomes) for cell in cells) if name]) or "none"
    if outcomes.layout == "matrix":
        return _join([f"{outcomes.task_names[outcomes.tasks[cell]]} {values[cell]:.3g}" for cell in cells])
    if outcomes.kind == "numbers":
        return f"{values[cells[0]]:.4g}".replace("-", "−")
    return outcomes.class_names[outcomes.tasks[cells[0]]][values[cells[0]]]


def _name_label(cell: int, values: NDArray[Any], outcomes: Outcomes) -> str:
    """Name a label of a sample; the first of two classes is the absence of the label."""
    task, labels = outcomes.task_names[outcomes.tasks[cell]], outcomes.class_names[outcomes.tasks[cell]]
    if len(labels) <= 2:
        return task if values[cell] == len(labels) - 1 else ""
    return f"{task}: {labels[values[cell]]}"


def _join(names: list[str]) -> str:
    more = len(names) - LIMITS.labels
    return ", ".join(names[: LIMITS.labels]) + (f" and {more} more" if more > 0 else "")


def check_image_shape(image_shape: Sequence[int], n_inputs: int) -> tuple[int, ...]:
    """Return the shape of images as a tuple: (height, width) or (height, width, 3)."""
    shape = tuple(int(length) for length in image_shape)
    if len(shape) not in (2, 3) or min(shape) < 1 or (len(shape) == 3 and shape[2] not in (1, 3)):
        raise ValueError(f"image_shape must be (height, width) or (height, width, 3), got {tuple(image_shape)}")
    if np.prod(shape) != n_inputs:
        raise ValueError(f"image_shape {shape} has {np.prod(shape)} pixels, but X has {n_inputs} columns")
    return shape[:2] if shape[2:] == (1,) else shape


def thumbnails(rows: NDArray[Any], shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return thumbnails of samples, scaled from black (minimum) to white (maximum)."""
    images = np.asarray(rows, dtype=np.float64).reshape(-1, *shape)
    n_values = len(images) * (shape[2] if len(shape) == 3 else 1)
    images = shrunk(images, int(np.clip(np.sqrt(LIMITS.thumbnail_bytes / max(n_values, 1)), 16, LIMITS.pixels)))
    if images.size == 0:
        return images.astype(np.uint8)
    low, high = np.nanpercentile(images, [0.5, 99.5])
    scaled = (images - low) / (high - low if high > low else 1.0)
    return np.asarray(np.round(255 * np.clip(np.nan_to_num(scaled), 0.0, 1.0)), dtype=np.uint8)


def loading_pictures(loadings: Floats, shape: tuple[int, ...]) -> tuple[NDArray[np.int8], float]:
    """Return loadings as int8 images and the loading that 127 represents."""
    images = loadings.reshape(-1, *shape)
    images = shrunk(images.mean(axis=3) if len(shape) == 3 else images, LIMITS.pixels)
    limit = float(np.abs(images).max(initial=0.0))
    return np.round(127 * images / (limit or 1.0)).astype(np.int8), limit


def shrunk(images: Floats, side: int) -> Floats:
    """Downsample images by block averages until the longer side has at most `side` pixels."""
    factor = -(-max(images.shape[1:3]) // side)
    if factor == 1:
        return images
    height, width = (-(-length // factor) for length in images.shape[1:3])
    padding = [(0, 0), (0, height * factor - images.shape[1]), (0, width * factor - images.shape[2])]
    padded = np.pad(images, padding + [(0, 0)] * (images.ndim - 3), mode="edge")
    blocks = padded.reshape(len(images), height, factor, width, factor, *images.shape[3:])
    return np.asarray(blocks.mean(axis=(2, 4)))
