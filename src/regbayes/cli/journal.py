"""A journal of the fits of a search, kept in a folder by whichever process makes them.

It tells how many fits are done, which settings were best so far, and what fits said of rows that they had not seen.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from regbayes.cli.targets import Kind, observed_rows

__all__ = ["Journal", "JournalScorer", "score_of"]

RECORDS = "?" * 32 + ".npz"


def score_of(kind: Kind, y: NDArray[Any], predicted: NDArray[Any], *, balanced: bool = False) -> float:
    """Return the accuracy over observed labels, or R² over observed numbers.

    R² and the balanced accuracy (the mean of the classes' recalls) are means over targets where there are several: they
    may be in different units, and have different classes.
    """
    from regbayes.metrics import explained_variance_pooled, task_accuracy

    if kind != "regressor" and not balanced:
        return task_accuracy(y, predicted)
    score = explained_variance_pooled if kind == "regressor" else _mean_recall
    if y.ndim == 1:
        return score(y, predicted)
    pairs = [(observed_rows(y[:, j]), j) for j in range(y.shape[1])]
    return float(np.mean([score(y[seen, j], predicted[seen, j]) for seen, j in pairs if seen.any()]))


def _mean_recall(y: NDArray[Any], predicted: NDArray[Any]) -> float:
    truth, hits = y.astype(str), np.asarray(y == predicted)
    return float(np.mean([hits[truth == label].mean() for label in np.unique(truth)]))


@dataclass(frozen=True)
class JournalScorer:
    """Scores a fit and leaves a record of it in a folder."""

    folder: str
    kind: Kind
    names: tuple[str, ...]  # of the settings to record
    balanced: bool = False

    def __call__(self, estimator: Any, X: Any, y: NDArray[Any]) -> float:
        """Return the score."""
        predicted = np.asarray(estimator.predict(X))
        score = score_of(self.kind, y, predicted, balanced=self.balanced)
        parameters = getattr(estimator, "estimator", estimator).get_params()  # inside, where tasks are known
        record = {"settings": {name: parameters[name] for name in self.names}, "score": score}
        if predicted.dtype == object:  # labels of several types: not kept, since nothing is pickled
            predicted = np.empty(0)
        place = Path(self.folder) / uuid.uuid4().hex
        rows = _row_marks(X, getattr(estimator, "task", None))
        np.savez(f"{place}.part", record=json.dumps(record), rows=rows, predicted=predicted)
        os.replace(f"{place}.part.npz", f"{place}.npz")
        return score


@dataclass(frozen=True)
class Journal:
    """The records of all fits so far."""

    folder: Path

    def count(self) -> int:
        """Return how many fits are done."""
        return len(list(self.folder.glob(RECORDS)))

    def scores(self) -> dict[str, list[float]]:
        """Return the scores of each setting, by the setting as JSON."""
        found: dict[str, list[float]] = {}
        for record, _, _ in self._records():
            found.setdefault(json.dumps(record["settings"], sort_keys=True), []).append(record["score"])
        return found

    def predictions(self, settings: dict[str, Any], X: Any, task: NDArray[Any] | None) -> NDArray[Any] | None:
        """Return the predictions of each row by the fit with these settings that had not seen it; None if some lack."""
        by_mark: dict[int, Any] = {}
        for record, rows, predicted in self._records():
            if record["settings"] == settings and len(predicted) == len(rows):
                by_mark.update(zip(rows.tolist(), predicted, strict=True))
        marks = _row_marks(X, task).tolist()  # equal rows share their predictions
        if any(mark not in by_mark for mark in marks):
            return None
        return np.array([by_mark[mark] for mark in marks])

    def _records(self) -> Iterator[tuple[dict[str, Any], NDArray[Any], NDArray[Any]]]:
        for path in sorted(self.folder.glob(RECORDS)):
            with np.load(path, allow_pickle=False) as saved:
                yield json.loads(str(saved["record"])), saved["rows"], saved["predicted"]


def _row_marks(X: Any, task: NDArray[Any] | None) -> NDArray[np.uint64]:
    """Return a number for each row that tells it from others."""
    tasks = [b""] * X.shape[0] if task is None else [str(name).encode() for name in task]
    digests = (
        hashlib.blake2b(row + name, digest_size=8).digest() for row, name in zip(_row_bytes(X), tasks, strict=True)
    )
    return np.array([int.from_bytes(digest, "little") for digest in digests], dtype=np.uint64)


def _row_bytes(X: Any) -> Iterator[bytes]:
    """Return the content of each row: its numbers, and where they are in a sparse matrix of rows."""
    if not issparse(X):
        return (row.tobytes() for row in np.ascontiguousarray(X))
    parts = zip(X.indptr[:-1], X.indptr[1:], strict=True)
    return (X.indices[start:end].astype(np.int64).tobytes() + X.data[start:end].tobytes() for start, end in parts)
