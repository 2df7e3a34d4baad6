"""``regbayes fit`` without the command line: from a table to a model file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regbayes.cli.errors import BadDataError, UserError, counted, listed
from regbayes.cli.journal import score_of
from regbayes.cli.modelfile import ModelFile
from regbayes.cli.output import Output
from regbayes.cli.schema import learn_schema, text_of
from regbayes.cli.search import FitSettings, Fitted, Problem, fit_model
from regbayes.cli.tables import Table
from regbayes.cli.targets import (
    Kind,
    TargetSpec,
    as_labels,
    choose_targets,
    decide,
    observed_rows,
    target_values,
    task_values,
)

__all__ = [
    "Wishes",
    "baseline_score",
    "collect_report",
    "column_of",
    "facts_of",
    "metric_name",
    "rows_with_target",
    "train",
]


@dataclass(frozen=True)
class Wishes:
    """What the user wants of a fit, beside its settings."""

    targets: tuple[str, ...] = ()
    kind: Kind | None = None
    task: str | None = None
    ignore: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    names: str | None = None  # the column that names rows on the page
    standardize: bool = True
    image_shape: tuple[int, int] | None = None  # the inputs are the pixels of a picture


def train(table: Table, wishes: Wishes, settings: FitSettings, output: Output) -> ModelFile:
    """Fit a model to a table, and gather what its page shows.

    Raises
    ------
    UserError
        If the table or the wishes make no sense; the message says which.
    StoppedError
        If the user stopped it before there was anything to keep.
    """
    for note in table.notes:
        output.warn(note)
    names = choose_targets(table, wishes.targets)
    spec, why = decide(table, names, wishes.kind, wishes.task)
    output.say(why)
    if settings.balanced and spec.kind == "regressor":
        raise UserError("--balanced is about classes, and this target asks for a regressor")
    table, y, row_names = rows_with_target(table, spec, wishes, output)
    if table.first is not None:
        output.say(f"the columns of {table.source} are counted from {table.first}")
    task = task_values(table, spec)
    inputs = _input_columns(table, spec, wishes)
    plain = wishes.image_shape is not None
    schema = learn_schema(
        table, inputs, output.say, standardize=wishes.standardize and not plain, categorical=wishes.categorical
    )
    X = schema.encode(table, output.warn)
    _check_image(wishes.image_shape, X.shape[1])
    sizes = [counted(len(X), "row"), f"{counted(X.shape[1], 'input')} from {counted(len(schema.columns), 'column')}"]
    output.say(", ".join(sizes if task is None else [*sizes, counted(len(np.unique(task)), "task")]))
    problem = Problem(X, y, spec.kind, task, settings)
    fitted = fit_model(problem, output)
    scaled = wishes.standardize and not plain
    shown = {
        "task": task,
        "feature_names": schema.encoded_names,
        "row_names": row_names,
        "image_shape": wishes.image_shape,
        "data_name": "training rows" + (", numbers in standard deviations" if scaled else ""),
    }
    report = collect_report(fitted, problem, spec, shown, output)
    facts = facts_of(problem, fitted, spec, why, table)
    return ModelFile(fitted.estimator, schema, spec, fitted.search, report, facts)


def facts_of(problem: Problem, fitted: Fitted, spec: TargetSpec, why: str, table: Table) -> dict[str, Any]:
    """Return what the model's file says of the fit."""
    balanced = problem.settings.balanced
    return {
        "rows": problem.X.shape[0],
        "inputs": problem.X.shape[1],
        "why": why,
        "seconds": fitted.seconds,
        "interrupted": fitted.interrupted,
        "baseline": baseline_score(problem.y, spec.kind, balanced=balanced),
        "metric": metric_name(spec, balanced=balanced),
        "source": table.source,
        "first_column": table.first,
    }


def rows_with_target(
    table: Table, spec: TargetSpec, wishes: Wishes, output: Output, *, needs_all: bool = False
) -> tuple[Table, NDArray[Any], list[str]]:
    """Leave out rows without any target, or with a hole in one of several; return what to call the others, too."""
    y = target_values(table, spec)
    kept = observed_rows(y)
    if needs_all and y.ndim == 2:
        kept = np.all([observed_rows(y[:, j]) for j in range(y.shape[1])], axis=0)
    given = wishes.names or next(iter(table.keys), None)
    called = [None] * len(kept) if given is None else text_of(column_of(table, "--names", given))
    row_names = [name or f"row {i + 1}" for i, name in enumerate(called) if kept[i]]
    if not kept.all():
        lack = "lack a target" if needs_all and y.ndim == 2 else "have no target"
        output.say(f"{int((~kept).sum())} of {len(kept)} rows {lack} and are left out")
        table, y = table.take(kept), y[kept]
    if len(y) < 2:
        raise BadDataError(
            f"{table.source} has {len(y)} row with a target; at least 2 are needed, and many more to learn"
        )
    return table, as_labels(y) if spec.kind == "classifier" else y, row_names


def _input_columns(table: Table, spec: TargetSpec, wishes: Wishes) -> list[str]:
    for option, names in (("--ignore", wishes.ignore), ("--categorical", wishes.categorical)):
        for name in names:
            column_of(table, option, name)
    if spec.task is not None and spec.task in spec.names:
        raise UserError(f"--task and --target name the same column, {spec.task!r}")
    used = {*spec.names, *table.targets, *wishes.ignore, spec.task, wishes.names}
    possible: Sequence[str] = table.names if table.inputs is None else table.inputs
    return [name for name in possible if name not in used]


def column_of(table: Table, option: str, name: str) -> NDArray[Any]:
    """Return the column that an option names; an error that says so if there is none."""
    if name not in table:
        raise BadDataError(f"{option}: {table.source} has no column {name!r}; it has {listed(table.names)}")
    return table.column(name)


def _check_image(shape: tuple[int, int] | None, n_inputs: int) -> None:
    if shape is not None and shape[0] * shape[1] != n_inputs:
        raise UserError(
            f"--image {shape[0]}x{shape[1]} has {shape[0] * shape[1]} pixels, but there are {n_inputs} inputs"
        )


def baseline_score(y: NDArray[Any], kind: Kind, *, balanced: bool = False) -> float:
    """Return the score of always answering the most frequent class, or the mean, of each target."""
    columns = y[:, None] if y.ndim == 1 else y
    answers = np.empty(columns.shape, dtype=object if kind != "regressor" else float)
    for j in range(columns.shape[1]):
        column = columns[:, j]
        seen = column[observed_rows(column)] if column.dtype.kind in "fO" else column
        if kind == "regressor":
            answers[:, j] = seen.mean()
        else:
            values, counts = np.unique(seen.astype(str), return_counts=True)
            common = values[np.argmax(counts)]
            answers[:, j] = next(value for value in seen if str(value) == common)
    return score_of(kind, y, answers[:, 0] if y.ndim == 1 else answers, balanced=balanced)


def metric_name(spec: TargetSpec, *, balanced: bool = False) -> str:
    """Return what `score_of` is called for this model."""
    if balanced:
        return "balanced accuracy" if len(spec.names) == 1 else "balanced accuracy, mean over targets"
    if spec.kind == "regressor":
        return "R²" if len(spec.names) == 1 else "R², mean over targets"
    return "accuracy" if spec.kind == "classifier" else "accuracy over all labels"


def collect_report(fitted: Fitted, problem: Problem, spec: TargetSpec, shown: dict[str, Any], output: Output) -> Any:
    """Gather what the page shows, with options of `collect`; a failure must not cost the user the fit."""
    from regbayes.report import collect

    noun = "document" if shown.get("kind") == "text" else "row"
    note = (
        f"Predictions are of the {noun}s that the model was fitted to, so they look better than those of new {noun}s."
        if fitted.predictions is None
        else f"Predictions are those of cross-validation: each {noun} was predicted by a fit that had not seen it."
    )
    scores = {}
    if fitted.search is not None:
        metric = metric_name(spec, balanced=problem.settings.balanced)
        scores[f"{metric}, cross-validated"] = float(fitted.search.mean[fitted.search.best])
    try:
        with output.hearing_warnings():
            return collect(
                fitted.estimator,
                problem.X,
                problem.y,
                target_names=list(spec.names) if len(spec.names) > 1 else None,
                predictions=fitted.predictions,
                prediction_note=note,
                scores=scores,
                title=f"{', '.join(spec.names[:3])}{' and more' if len(spec.names) > 3 else ''}",
                **shown,
            )
    except Exception as error:
        output.warn(f"the page about the model could not be prepared, and the model is saved without ({error})")
        return None
