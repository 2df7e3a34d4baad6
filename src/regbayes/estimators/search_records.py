"""Records of a search: scores and held-out predictions of each fit, in memory or in a file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regbayes._registry import persistable
from regbayes._types import Floats, Integers

__all__ = ["FoldRecord", "OutOfFold", "SearchInterrupted", "best_so_far", "read_records", "write_records"]

Setting = dict[str, Any]
ARRAY = {"dtype", "values"}  # keys of a stored array


@dataclass(frozen=True)
class FoldRecord:
    """Result of one setting on one fold.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.neighbors import KNeighborsClassifier
    >>> from regbayes import PathSearchCV
    >>> X, y = load_iris(return_X_y=True)
    >>> search = PathSearchCV(KNeighborsClassifier(), {"n_neighbors": [1, 5, 50]}, cv=3).fit(X, y)
    >>> record = search.records_[0]
    >>> record.params, record.fold, round(record.score, 2)
    ({'n_neighbors': 1}, 0, 0.98)
    """

    params: Setting
    fold: int
    scores: Mapping[str, float]  # by the name of the scorer, "score" for a single one
    fit_seconds: float
    score_seconds: float
    n_features: int | None  # number in use after the fit; None if the estimator has none
    rows: Integers  # (n,): indices of the held-out samples
    predictions: NDArray[Any] | None  # (n,) or (n, outputs): held-out predictions
    decisions: Floats | None  # (n,) or (n, k): decision values or probabilities; columns of all outputs

    @property
    def score(self) -> float:
        """The score, or the first of several."""
        return next(iter(self.scores.values()))

    @property
    def key(self) -> tuple[str, int]:
        """Identifier of the record in its search."""
        return setting_key(self.params), self.fold


@persistable
@dataclass(frozen=True)
class OutOfFold:
    """Held-out predictions of all fits of one setting, in the order of the samples.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.neighbors import KNeighborsClassifier
    >>> from regbayes import PathSearchCV
    >>> X, y = load_iris(return_X_y=True)
    >>> search = PathSearchCV(KNeighborsClassifier(), {"n_neighbors": [1, 5, 50]}, cv=3).fit(X, y)
    >>> found = search.out_of_fold_
    >>> round(float((found.predictions == y[found.rows]).mean()), 2)
    0.98
    """

    rows: Integers  # (n,): sorted indices of the samples; repeated for samples that were held out several times
    predictions: NDArray[Any] | None  # (n,) or (n, outputs)
    decisions: Floats | None  # (n,) or (n, k)

    @classmethod
    def collect(cls, records: Sequence[FoldRecord]) -> OutOfFold:
        """Combine the folds of one setting."""
        rows = np.concatenate([record.rows for record in records])
        order = np.argsort(rows, kind="stable")
        predictions = _stack([record.predictions for record in records], order)
        return cls(rows[order], predictions, _stack([record.decisions for record in records], order))


def _stack(parts: Sequence[NDArray[Any] | None], order: Integers) -> NDArray[Any] | None:
    """Combine the folds' arrays; None if one is missing or a fold has seen fewer classes than another."""
    found = [part for part in parts if part is not None]
    if len(found) < len(parts) or len({part.shape[1:] for part in found}) > 1:
        return None
    return np.concatenate(found)[order]


class SearchInterrupted(KeyboardInterrupt):
    """Ctrl-C interrupted the search before any setting had scores on every fold.

    Attributes
    ----------
    records : list of FoldRecord
        Records of the finished fits; ``fit(..., records=...)`` continues from them.
    """

    def __init__(self, records: Sequence[FoldRecord]) -> None:
        super().__init__(f"interrupted after {len(records)} fits, before a setting had been tried on every fold")
        self.records = list(records)


def best_so_far(records: Iterable[FoldRecord], score: str | None = None) -> Setting:
    """Return the setting with the best mean score.

    Only the settings with scores on the most folds are compared. Use it for a search that was interrupted early.
    ``score`` names one of several scores; None is the first.

    Raises
    ------
    ValueError
        If ``records`` is empty.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.neighbors import KNeighborsClassifier
    >>> from regbayes import PathSearchCV
    >>> from regbayes.search import best_so_far
    >>> X, y = load_iris(return_X_y=True)
    >>> search = PathSearchCV(KNeighborsClassifier(), {"n_neighbors": [1, 5, 50]}, cv=3).fit(X, y)
    >>> best_so_far(search.records_)
    {'n_neighbors': 5}
    """
    found: dict[str, list[FoldRecord]] = {}
    for record in records:
        found.setdefault(setting_key(record.params), []).append(record)
    if not found:
        raise ValueError("records is empty, so there is no best setting")
    most = max(map(len, found.values()))

    def mean(tried: list[FoldRecord]) -> float:
        return float(np.mean([record.score if score is None else record.scores[score] for record in tried]))

    return max((tried for tried in found.values() if len(tried) == most), key=mean)[0].params


def is_number(value: Any) -> bool:
    """Whether a value of a parameter is a number; booleans are not."""
    return isinstance(value, Real) and not isinstance(value, bool)


def setting_key(params: Mapping[str, Any]) -> str:
    """Return a string that is equal for equal settings, also if a file has turned an integer into a float."""
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in params.items()}
    numbers = {name: float(value) if is_number(value) else value for name, value in plain.items()}
    return json.dumps(numbers, sort_keys=True, default=repr)


def write_records(records: Iterable[FoldRecord], path: str | os.PathLike[str], *, append: bool = False) -> None:
    """Write records to a file of JSON lines, one per record.

    Parameters
    ----------
    records : iterable of FoldRecord
    path : str or path-like
    append : bool, default=False
        Whether to append to the file. A search that appends each record as it arrives can be resumed after any
        interruption.

    Raises
    ------
    ValueError
        If a setting has a value that JSON does not support, such as an estimator or a function.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.neighbors import KNeighborsClassifier
    >>> from regbayes import PathSearchCV
    >>> from regbayes.search import read_records, write_records
    >>> X, y = load_iris(return_X_y=True)
    >>> search = PathSearchCV(KNeighborsClassifier(), {"n_neighbors": [1, 5, 50]}, cv=3).fit(X, y)
    >>> write_records(search.records_, "search.jsonl")
    >>> len(read_records("search.jsonl"))
    9
    """
    with Path(path).open("a" if append else "w", encoding="utf-8") as file:
        for record in records:
            try:
                line = json.dumps(vars(record), default=_encode)
            except TypeError:
                raise ValueError(f"JSON does not support a value of the setting {record.params}.") from None
            file.write(line + "\n")


def read_records(path: str | os.PathLike[str]) -> list[FoldRecord]:
    """Read the records of `write_records`, without an incomplete last line.

    Raises
    ------
    ValueError
        If a line is not a record; the message has its number.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.neighbors import KNeighborsClassifier
    >>> from regbayes import PathSearchCV
    >>> from regbayes.search import read_records, write_records
    >>> X, y = load_iris(return_X_y=True)
    >>> search = PathSearchCV(KNeighborsClassifier(), {"n_neighbors": [1, 5, 50]}, cv=3).fit(X, y)
    >>> write_records(search.records_[:6], "half.jsonl")
    >>> search = search.fit(X, y, records=read_records("half.jsonl"))  # only the other 3 are fitted
    """
    found = []
    *lines, _ = Path(path).read_text(encoding="utf-8").split("\n")  # after the last line break: nothing, or a part
    for number, line in enumerate(lines, start=1):
        try:
            found.append(_decode(line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"Line {number} of {os.fspath(path)} is not a record of a search: {error}") from None
    return found


def _encode(value: Any) -> Any:
    """Return what JSON stores for a NumPy array or number."""
    if isinstance(value, np.ndarray):
        return {"dtype": value.dtype.str, "values": value.tolist()}
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is not supported")


def _decode(line: str) -> FoldRecord:
    """Return the record in a line; raise an error if its entries have other types or lengths."""
    body = json.loads(line, object_hook=lambda d: np.array(d["values"], d["dtype"]) if d.keys() == ARRAY else d)
    body |= {name: float(body[name]) for name in ("fit_seconds", "score_seconds")}
    body |= {"params": dict(body["params"]), "fold": int(body["fold"])}
    body["scores"] = {str(name): float(score) for name, score in body["scores"].items()}
    body["n_features"] = None if body["n_features"] is None else int(body["n_features"])
    record = FoldRecord(**body)
    if not isinstance(record.rows, np.ndarray) or record.rows.ndim != 1 or record.rows.dtype.kind != "i":
        raise ValueError("rows must be an array of integers")
    for name in ("predictions", "decisions"):
        values = getattr(record, name)
        if values is not None and (not isinstance(values, np.ndarray) or len(values) != len(record.rows)):
            raise ValueError(f"{name} must have an entry for each of {len(record.rows)} rows")
    return record
