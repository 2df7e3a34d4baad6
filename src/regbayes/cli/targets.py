"""The target: which columns it is, what kind of model it asks for, and its values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regbayes._registry import persistable
from regbayes._types import Flags, Floats
from regbayes.cli import Kind
from regbayes.cli.dates import find_dates
from regbayes.cli.errors import BadDataError, UserError, listed, not_among
from regbayes.cli.inputs import LARGEST
from regbayes.cli.tables import Table, plain_number, text_of

__all__ = ["TargetSpec", "choose_targets", "decide", "observed_rows", "row_weights", "target_values", "task_values"]

MAX_CLASSES = 20  # different whole numbers that still count as classes
FARTHEST_RATING = 10  # from zero: stars, marks, degrees of approval


@persistable(name="regbayes.cli.TargetSpec")
@dataclass(frozen=True)
class TargetSpec:
    """What is predicted."""

    names: tuple[str, ...]
    kind: Kind
    as_text: tuple[bool, ...]  # of each column: whether its labels are text
    task: str | None = None  # the column that says which task a row belongs to


def choose_targets(table: Table, wanted: Sequence[str]) -> tuple[str, ...]:
    """Return the target columns: those that are wanted, or those that the file itself names."""
    if not wanted:
        if table.targets:
            return table.targets
        archive = ""
        if table.source.endswith(".npy"):
            archive = '. Targets in another file go with the inputs into an archive: numpy.savez("data.npz", X=X, y=y)'
        raise UserError(
            f"say which column to predict, with --target (several times for several columns). {table.source} has "
            f"{listed(table.names)}{archive}"
        )
    names: list[str] = []
    for name in wanted:
        names += table.groups[name] if name not in table and name in table.groups else [name]
    for name in names:
        if name not in table:
            way_out = ""
            if table.inputs is None and any(re.fullmatch(r"-?\d+\.?\d*", other) for other in table.names):
                way_out = (
                    ". If the first line of a CSV file is data, --no-header names its columns column1, column2, ..."
                )
            raise BadDataError(
                f"--target {name}: {table.source} has no such column; {not_among(name, table.names)}{way_out}"
            )
    if len(set(names)) < len(names):
        raise UserError(f"--target names a column twice: {listed(names)}")
    return tuple(names)


def decide(
    table: Table, names: tuple[str, ...], kind: Kind | None = None, task: str | None = None, *, of_texts: bool = False
) -> tuple[TargetSpec, str]:
    """Return what kind of model the target asks for, and a sentence that says why and which option changes it.

    Few whole numbers are classes: digits, codes. Beside texts (``of_texts``) those near zero are amounts: people who
    write also give stars and marks, and two stars are nearer to three than to five.
    """
    columns = [table.column(name) for name in names]
    for name, column in zip(names, columns, strict=True):
        if not _is_observed(column).any():
            raise BadDataError(f"the target {name!r} has no value in any row")
    if task is not None and len(names) > 1:
        raise UserError("--task goes with one --target: with several, each target is a task of its own")
    if kind is not None:
        found, why = kind, f"{_word(kind)}, as --kind says"
    else:
        found, why = _guess(names, columns, of_texts)
    texts = [name for name, column in zip(names, columns, strict=True) if column.dtype == object]
    if found == "regressor" and texts:
        digits = "".join(str(value) for value in columns[names.index(texts[0])][:3] if value is not None)
        why = "; whole numbers of so many digits count as names: divide them first" if digits.isdigit() else ""
        raise BadDataError(f"the target {texts[0]!r} is text, which a regressor cannot predict{why}")
    if found == "classifier" and len(names) > 1:
        raise UserError(f"--kind classifier takes one target, but there are {len(names)}; use --kind multilabel")
    if found == "multilabel" and len(names) == 1:
        raise UserError("--kind multilabel takes several targets, but there is one; use --kind classifier")
    # Classes that are broken numbers (0.5, 1.5) are names all the same.
    as_text = tuple(found != "regressor" and not _whole(column) for column in columns)
    spec = TargetSpec(names, found, as_text, task)
    _check_classes(spec, columns)
    return spec, why


def _guess(names: tuple[str, ...], columns: list[NDArray[Any]], of_texts: bool) -> tuple[Kind, str]:
    texts = [column.dtype == object for column in columns]
    labels = [_looks_like_classes(column) for column in columns]
    ratings = of_texts and all(_looks_like_ratings(column) for column in columns)
    if len(names) == 1:
        n = len(_distinct(columns[0]))
        holds = f"{names[0]!r} holds {n} different"
        if texts[0]:
            return "classifier", f"classifier: {holds} texts"
        if ratings:
            return (
                "regressor",
                f"regressor: {holds} whole numbers, read as a rating (--kind classifier if they are classes)",
            )
        if labels[0]:
            what = "whole numbers" if _whole(columns[0]) else "numbers"
            return "classifier", f"classifier: {holds} {what} (--kind regressor if they are amounts)"
        return "regressor", f"regressor: {holds} numbers (--kind classifier if they are classes)"
    if all(labels) and not ratings:
        several = not any(texts) and max(len(_distinct(column)) for column in columns) > 2
        change = " (--kind regressor if they are amounts)" if several else ""
        return "multilabel", f"multi-label classifier: all {len(names)} targets hold classes{change}"
    if not any(texts):
        change = " (--kind multilabel if they are classes)" if ratings else ""
        return "regressor", f"regressor for {len(names)} targets: they hold numbers{change}"
    classes = [name for name, is_class in zip(names, labels, strict=True) if is_class]
    raise BadDataError(
        f"some targets hold classes ({listed(classes)}) and others numbers; one model cannot predict both. Fit one "
        "model to each kind, or say --kind multilabel"
    )


def _looks_like_classes(column: NDArray[Any]) -> bool:
    """Whether a column holds text, two values, or few whole numbers."""
    if column.dtype == object:
        return True
    n = len(_distinct(column))
    return n <= 2 or (_whole(column) and n <= MAX_CLASSES)


def _looks_like_ratings(column: NDArray[Any]) -> bool:
    """Whether a column holds three or more different whole numbers near zero."""
    if not _whole(column):
        return False
    seen = _distinct(column)
    return len(seen) > 2 and bool(np.abs(seen).max() <= FARTHEST_RATING)


def _check_classes(spec: TargetSpec, columns: list[NDArray[Any]]) -> None:
    if spec.kind == "regressor":
        for name, column in zip(spec.names, columns, strict=True):
            if np.abs(column[np.isfinite(column)]).max() > LARGEST:
                raise BadDataError(f"the target {name!r} holds numbers beyond {LARGEST:.0e}; take their logarithm")
        return
    counts = [len(_distinct(column)) for column in columns]
    if spec.kind == "classifier" and counts[0] < 2:
        raise BadDataError(
            f"the target {spec.names[0]!r} has the same value, {text_of(_distinct(columns[0]))[0]!r}, in every row, so "
            "there is nothing to learn"
        )
    if spec.kind == "multilabel" and max(counts) < 2:
        raise BadDataError("every target has the same value in all rows, so there is nothing to learn")
    answers = {text for column in columns for text in text_of(_distinct(column))}
    if spec.kind == "multilabel" and min(counts) < 2 and len(answers) > 2:  # of two answers, the one not seen is known
        same = [name for name, n in zip(spec.names, counts, strict=True) if n < 2]
        raise BadDataError(f"the same value in every row, so there is nothing to learn: {listed(same)}. Leave it out")
    rows = len(columns[0])
    for name, n, column in zip(spec.names, counts, columns, strict=True):
        if n > 100 and n > rows / 3:
            dates = find_dates(text_of(column)) if column.dtype == object else None
            raise BadDataError(
                f"the target {name!r} has {n} different values in {rows} rows: too many to be classes. "
                + (
                    f"They are dates, like {dates['like']!r}: write days since some date, or the month, into a column"
                    if dates
                    else "If it names rows, predict another column"
                )
            )


def target_values(table: Table, spec: TargetSpec) -> NDArray[Any]:
    """Return the targets of a table: (n,) for one, (n, targets) for several; NaN or None where missing.

    Labels that were text in training are text again, and whole numbers are whole.
    """
    columns = [_values(table, name, spec, i) for i, name in enumerate(spec.names)]
    if len(columns) == 1:
        return columns[0]
    if any(column.dtype == object for column in columns):
        columns = [column.astype(object) for column in columns]
    return np.column_stack(columns)


def _values(table: Table, name: str, spec: TargetSpec, place: int) -> NDArray[Any]:
    column = table.column(name)
    if spec.as_text[place]:
        return np.array(text_of(column), dtype=object)
    if column.dtype == object and spec.kind != "regressor":  # classes that are new among numbers
        return np.array([_number_or_text(text) for text in text_of(column)], dtype=object)
    if column.dtype == object:
        odd = next((value for value in column if value is not None), None)
        raise BadDataError(f"the target {name!r} held numbers in training, but {table.source} has {odd!r} there")
    return np.where(np.isfinite(column), column, np.nan)


def _number_or_text(text: str | None) -> Any:
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


def task_values(table: Table, spec: TargetSpec) -> NDArray[Any] | None:
    """Return the task of each row, as text; None if the model has none."""
    if spec.task is None:
        return None
    if spec.task not in table:
        raise BadDataError(
            f"{table.source} has no column {spec.task!r}, which should say the task of each row; it has "
            f"{listed(table.names)}"
        )
    texts = text_of(table.column(spec.task))
    if None in texts:
        raise BadDataError(
            f"the task column {spec.task!r} is empty in row {texts.index(None) + 1}; every row needs a task"
        )
    return np.array(texts)


def row_weights(table: Table, name: str) -> Floats:
    """Return how often each row counts: a column of numbers, none negative; 0 where it is missing."""
    column = table.column(name, "--weight")
    if column.dtype == object:
        odd = next((value for value in column if value is not None), None)
        raise BadDataError(f"--weight {name}: the column should hold numbers, but it has {odd!r}")
    if np.any(column < 0) or np.any(np.isinf(column)):
        odd = column[(column < 0) | np.isinf(column)][0]
        raise BadDataError(f"--weight {name}: weights are numbers of 0 or more, but there is {odd:g}")
    weights = np.nan_to_num(column)
    if not np.any(weights > 0):
        raise BadDataError(f"--weight {name}: no row has a weight above 0")
    return weights


def observed_rows(y: NDArray[Any]) -> Flags:
    """Which rows have a target, at least one."""
    seen = _is_observed(y)
    return seen if seen.ndim == 1 else np.asarray(seen.any(axis=1))


def as_labels(y: NDArray[Any]) -> NDArray[Any]:
    """Return labels of one target without missing ones as an array of text or of numbers, whole if they all are."""
    if y.dtype == object:
        return np.array([str(value) for value in y])
    whole = np.all(y == np.round(y)) and np.all(np.abs(y) < 2.0**63)
    return y.astype(np.int64) if whole else y


def _is_observed(column: NDArray[Any]) -> Flags:
    if column.dtype == object:
        flat = [value is not None and value == value for value in column.ravel()]  # NaN differs from itself
        return np.array(flat, dtype=bool).reshape(column.shape)
    return np.asarray(np.isfinite(column)) if column.dtype.kind == "f" else np.ones(column.shape, dtype=bool)


def _distinct(column: NDArray[Any]) -> NDArray[Any]:
    return np.unique(column[_is_observed(column)])


def _whole(column: NDArray[Any]) -> bool:
    seen = column[_is_observed(column)]
    return column.dtype != object and bool(np.all(seen == np.round(seen)))


def _word(kind: Kind) -> str:
    return {"classifier": "classifier", "multilabel": "multi-label classifier", "regressor": "regressor"}[kind]


def shown_label(label: Any) -> str:
    """Return a label as it is written to files and tables."""
    return str(label) if isinstance(label, str) else str(plain_number(float(label)))
