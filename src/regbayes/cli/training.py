"""``regbayes fit`` without the command line: from a table, or from documents, to a model file."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.pipeline import Pipeline

from regbayes._types import Floats, Integers
from regbayes.cli.big import WholeFile, find_big
from regbayes.cli.documents import read_documents
from regbayes.cli.errors import BadDataError, UserError, counted, listed
from regbayes.cli.inputs import TableInputs
from regbayes.cli.modelfile import ModelFile
from regbayes.cli.options import FitRequest
from regbayes.cli.output import Output
from regbayes.cli.scores import baseline_score, metric_name
from regbayes.cli.search import fit_model
from regbayes.cli.tables import Table, read_table, text_of
from regbayes.cli.targets import (
    TargetSpec,
    as_labels,
    choose_targets,
    decide,
    observed_rows,
    row_weights,
    shown_label,
    target_values,
    task_values,
)
from regbayes.cli.words import learn_words, show_documents

if TYPE_CHECKING:
    from regbayes import FeatureStability

__all__ = ["train", "train_documents", "train_table"]

SAMPLE_KEPT = "interrupted: the model is that of the sample, and the other rows were not fitted"


def train(request: FitRequest, output: Output) -> ModelFile:
    """Read the data, fit a model, and gather what its page shows.

    Raises
    ------
    UserError
        If the data or the request make no sense; the message says which.
    StoppedError
        If the user stopped it before there was anything to keep.
    """
    request.check()
    by_itself = "medlda" if request.text or os.path.isdir(request.data) else "ilsvm"
    model = request.model or by_itself
    request.check_model(model)
    if model == "medlda":
        return train_documents(request, read_documents(request.data, **request.reading()), output)
    big = find_big(request.data, request.format)
    if big is not None:
        whole = WholeFile.of(big, request, output)
        return train_table(request, whole.sample(), output, whole)
    return train_table(request, read_table(request.data, **request.reading()), output)


def train_table(request: FitRequest, table: Table, output: Output, whole: WholeFile | None = None) -> ModelFile:
    """Fit iLSVM, or MT-iLSVM where there are several targets or tasks, to the columns of a table.

    Where the table is a sample of a large file, ``whole`` is that file, all of whose rows are fitted in the end.
    """
    _tell_of_reading(table, output)
    if whole is None:
        spec, why = decide(table, choose_targets(table, request.target), request.kind, request.task)
    else:
        spec, why = whole.spec, whole.why
    output.say(why)
    if request.balanced and spec.kind == "regressor":
        raise UserError("--balanced is about classes, and this target asks for a regressor")
    table, y, row_names, weights = _rows_with_target(table, spec, request, output)
    task = task_values(table, spec)
    inputs = _learn_inputs(table, spec, request, output)
    with output.catch_warnings():
        X = inputs.encode(table)
    if request.image_shape is not None and np.prod(request.image_shape) != X.shape[1]:
        pixels = np.prod(request.image_shape)
        raise UserError(f"--image {request.image} has {pixels} pixels, but there are {X.shape[1]} inputs")
    columns = counted(len(inputs.columns_), "column")
    sizes = [counted(len(X), "row"), f"{counted(X.shape[1], 'input')} from {columns}"]
    output.say(", ".join(sizes if task is None else [*sizes, counted(len(np.unique(task)), "task")]))
    shown = {
        "task": task,
        "weights": weights,
        "row_names": row_names,
        "image_shape": request.image_shape,
        "data_name": "training rows",
    }
    facts = {"why": why, "source": table.source, "first_column": table.first}
    return _fit_and_report(request, spec, inputs, table, X, y, shown, facts, output, whole)


def train_documents(request: FitRequest, table: Table, output: Output) -> ModelFile:
    """Fit MedLDA to the words of documents."""
    _tell_of_reading(table, output)
    names = choose_targets(table, request.target)
    spec, why = decide(table, names, request.kind, of_texts=table.counts is None)
    output.say(f"MedLDA, {why}")
    _check_documents(spec, request)
    table, y, row_names, weights = _rows_with_target(table, spec, request, output, needs_all=True)
    if spec.kind == "multilabel":
        y = _indicators(y, spec)
    words, X = learn_words(
        table,
        request.text,
        output,
        min_df=request.min_df,
        max_words=request.max_words,
        stop_words=request.stop_words,
    )
    full = np.diff(X.indptr) > 0
    if not full.all():
        output.say(f"{int((~full).sum())} of {len(full)} documents have no words and are left out")
        table, y, X = table.take(full), y[full], X[full]
        row_names = [name for name, kept in zip(row_names, full, strict=True) if kept]
        weights = None if weights is None else weights[full]
    _check_classes(y, spec, request, output)
    output.say(f"{counted(X.shape[0], 'document')} with {X.sum():.0f} words, {X.shape[1]} different ones")
    if X.dtype.kind == "f" and request.inference is None:
        output.say("counts are not whole, so topics are inferred by mean field (--inference variational)")
    shown = {
        "kind": "text",
        "weights": weights,
        "row_names": row_names,
        "texts": show_documents(table, words, X),
        "data_name": "training documents",
    }
    facts = {"why": why, "source": table.source, "first_column": table.first}
    return _fit_and_report(request, spec, words, table, X, y, shown, facts, output)


def _tell_of_reading(table: Table, output: Output) -> None:
    for note in table.notes:
        output.warn(note)
    for remark in table.remarks:
        output.say(remark)


def _fit_and_report(  # noqa: PLR0913 - all that a fit is made of
    request: FitRequest,
    spec: TargetSpec,
    inputs: Any,
    table: Table,
    X: Any,
    y: NDArray[Any],
    shown: dict[str, Any],
    facts: dict[str, Any],
    output: Output,
    whole: WholeFile | None = None,
) -> ModelFile:
    weights, n_before = shown.pop("weights"), len(output.warnings)
    estimator, predictions, found = fit_model(
        request, spec.kind, X, y, shown.get("task"), output, weights=weights, names=spec.names
    )
    certainty, reliability = found.pop("certainty"), found.pop("reliability")
    metric = metric_name(spec.kind, len(spec.names), balanced=request.balanced)
    comparison = found["comparison"]
    baseline: float | None
    if comparison is None:
        baseline = baseline_score(y, spec.kind, balanced=request.balanced, weights=weights)
    else:
        scores = [row["score"] for row in comparison["systems"] if row["role"] == "baseline"]
        baseline = scores[0] if scores else None  # None: Ctrl-C came before
        found["cross_validation"] = {"metric": metric, **found["cross_validation"]}
    facts = {
        **facts,
        **found,
        "rows": X.shape[0],
        "inputs": X.shape[1],
        "weight": request.weight,
        "baseline": baseline,
        "no_better_than_baseline": None if comparison is None else comparison["no_better_than_baseline"],
        "metric": metric,
    }
    if request.stability:
        metadata = {"task": shown.get("task"), "sample_weight": weights}
        shown["stability"] = _find_stability(request, estimator, X, y, metadata, output)
        facts["stability"] = _plain_stability(shown["stability"])
    shown |= {**_told_on_page(comparison), "reliability": reliability}
    if whole is not None:
        estimator = _fit_whole(whole, estimator, inputs, request, shown, facts, output)
    facts["warnings"] = [told for told in output.warnings[n_before:] if told not in output.interruptions]
    model = ModelFile(Pipeline([("inputs", inputs), ("model", estimator)]), spec, None, facts, certainty)
    return replace(model, report=_collect_report(model, table, X, y, predictions, shown, output))


def _fit_whole(
    whole: WholeFile,
    estimator: Any,
    inputs: TableInputs,
    request: FitRequest,
    shown: dict[str, Any],
    facts: dict[str, Any],
    output: Output,
) -> Any:
    """Fit all rows of a large file after its sample, and say on the page and in the facts what is of which."""
    shown["data_name"] = f"a sample of {facts['rows']} training rows"
    facts["sample_rows"] = facts["rows"]
    if facts["interrupted"]:
        output.warn(SAMPLE_KEPT, interruption=True)
        return estimator
    began = time.perf_counter()
    try:
        estimator, ended = whole.refit(estimator, inputs, request, output)
    except KeyboardInterrupt:  # while rows were encoded or read: there is no state of theirs
        output.warn(SAMPLE_KEPT, interruption=True)
        facts |= {"interrupted": True, "kept": SAMPLE_KEPT.capitalize() + "."}
        return estimator
    facts["rows"], facts["seconds"] = len(whole.y), facts["seconds"] + time.perf_counter() - began
    if ended:
        facts |= {"interrupted": True, "kept": "Interrupted: the fit to all rows was ended early, at its best state."}
    shown["notices"] = [*shown.get("notices", ()), ("note", whole.told)]
    return estimator


def _told_on_page(comparison: dict[str, Any] | None) -> dict[str, Any]:
    """Return the options of `collect` that show the comparison, and perhaps a notice."""
    from regbayes.report.data import Comparison

    if comparison is None:
        return {}
    systems = [row for row in comparison["systems"] if row["score"] is not None]
    table = Comparison(
        metric=comparison["metric"],
        names=tuple(row["name"] for row in systems),
        own=0,
        scores=np.array([row["score"] for row in systems]),
        deviations=np.array([row["std"] for row in systems]),
        n_things=np.array([row["size"] for row in systems], dtype=np.int64),
        seconds=np.array([row["seconds"] for row in systems]),
        verdict=" ".join(comparison["messages"]),
    )
    return {
        "comparison": table,
        "notices": [("warning", comparison["messages"][0])] if comparison["no_better_than_baseline"] else [],
    }


def _rows_with_target(
    table: Table, spec: TargetSpec, request: FitRequest, output: Output, *, needs_all: bool = False
) -> tuple[Table, NDArray[Any], list[str], Floats | None]:
    """Leave out rows without any target, with a hole in one of several, or without weight.

    Returns
    -------
    table, y
    row_names : list of str
        What to call the rows.
    weights : (n,) or None
        How often each counts.
    """
    y = target_values(table, spec)
    kept = observed_rows(y)
    if needs_all and y.ndim == 2:
        kept = np.all([observed_rows(column) for column in y.T], axis=0)
    key = request.names or next(iter(table.keys), None)
    called: Sequence[str | None] = [None] * len(kept) if key is None else text_of(table.column(key, "--names"))
    if not kept.all():
        lack = "lack a target" if needs_all and y.ndim == 2 else "have no target"
        output.say(f"{int((~kept).sum())} of {len(kept)} rows {lack} and are left out")
    weights = None
    if request.weight is not None:
        weights = row_weights(table, request.weight)
        idle = kept & ~(weights > 0)
        if idle.any():
            output.say(f"{int(idle.sum())} of {len(kept)} rows have no weight and are left out")
        kept &= weights > 0
        weights = weights[kept]
    row_names = [name or f"row {i + 1}" for i, name in enumerate(called) if kept[i]]
    table, y = (table, y) if kept.all() else (table.take(kept), y[kept])
    if len(y) < 2:
        raise BadDataError(
            f"{table.source} has {len(y)} row with a target; at least 2 are needed, and many more to learn"
        )
    if table.first is not None:
        output.say(f"the columns of {table.source} are counted from {table.first}")
    return table, as_labels(y) if spec.kind == "classifier" else y, row_names, weights


def _learn_inputs(table: Table, spec: TargetSpec, request: FitRequest, output: Output) -> TableInputs:
    """Choose the inputs among the columns, and say what becomes of the others."""
    for option, names in (("--ignore", request.ignore), ("--categorical", request.categorical)):
        for name in names:
            table.column(name, option)
    if spec.task is not None and spec.task in spec.names:
        raise UserError(f"--task and --target name the same column, {spec.task!r}")
    if request.weight is not None and request.weight in spec.names:
        raise UserError(f"--weight and --target name the same column, {request.weight!r}")
    used = {*spec.names, *table.targets, *request.ignore, spec.task, request.names, request.weight}
    possible = table.names if table.inputs is None else table.inputs
    inputs = TableInputs(request.scaled, request.categorical)
    inputs.fit(table.frame[[name for name in possible if name not in used]])
    for reason, names in inputs.left_out_.items():
        output.say(f"left out, {reason}: {listed(names)}")
    if not inputs.numbers_ and not inputs.categories_:
        more = "".join(f"; {hint}" for hint in inputs.hints_)
        raise BadDataError(f"{table.source} has no column left that could be an input{more}")
    for remark in (*inputs.remarks_, *inputs.hints_):
        output.say(remark)
    for doubt in inputs.doubts_:
        output.warn(doubt)
    return inputs


def _check_documents(spec: TargetSpec, request: FitRequest) -> None:
    if request.balanced and spec.kind != "classifier":
        raise UserError("--balanced is about the classes of one target")
    both = [name for name in request.text if name in spec.names]
    if both:
        raise UserError(f"--text and --target name the same column, {both[0]!r}")


def _indicators(y: NDArray[Any], spec: TargetSpec) -> Integers:
    """Return labels as zeros and ones."""
    values = {shown_label(value) for value in y.ravel().tolist()}
    if y.dtype == object or not np.all((y == 0) | (y == 1)):
        raise BadDataError(
            f"several targets of documents must be 0 or 1 each; {listed(spec.names)} hold {listed(sorted(values))}"
        )
    return np.asarray(y, dtype=np.int64)


def _check_classes(y: NDArray[Any], spec: TargetSpec, request: FitRequest, output: Output) -> None:
    """Say which classes have too few documents to be judged; refuse a single class."""
    if spec.kind == "regressor" and len(y) < 2:
        raise BadDataError("only one document is left; at least 2 are needed, and many more to learn")
    if spec.kind != "classifier":
        return
    labels, counts = np.unique(y, return_counts=True)
    if len(labels) < 2:
        raise BadDataError(f"all documents with words are of one class, {labels.tolist()[0]!r}: nothing to learn")
    rare = [shown_label(label) for label in labels[counts < (request.folds if request.cv else 0)].tolist()]
    if rare:
        output.warn(
            f"classes with fewer documents than folds ({listed(rare, 4)}; the smallest has {counts.min()}): what "
            "cross-validation says of them is worth little"
        )


def _find_stability(
    request: FitRequest, estimator: Any, X: Any, y: NDArray[Any], metadata: dict[str, Any], output: Output
) -> FeatureStability | None:
    """Fit again to parts of the rows; Ctrl-C leaves the page without, and the model as it is."""
    from regbayes import feature_stability

    output.say(f"{counted(request.stability or 0, 'fit')} to parts of the rows, to see which features come back")
    try:
        with output.catch_warnings():
            found = feature_stability(
                estimator,
                X,
                y,
                n_resamples=request.stability or 0,
                random_state=request.seed,
                n_jobs=request.jobs,
                **metadata,
            )
    except KeyboardInterrupt:
        output.warn("stopped before it was seen which features come back; the page does not say", interruption=True)
        return None
    output.say(repr(found))
    return found


def _plain_stability(found: FeatureStability | None) -> dict[str, Any] | None:
    """Return which features came back, for the model's file and for JSON; None where Ctrl-C came before."""
    if found is None:
        return None
    columns = {name: values.tolist() for name, values in found.table().items()}
    return {
        "resamples": found.n_resamples,
        "threshold": found.threshold,
        "match": found.match,
        "features": [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)],
    }


def _collect_report(
    model: ModelFile,
    table: Table,
    X: Any,
    y: NDArray[Any],
    predictions: NDArray[Any] | None,
    shown: dict[str, Any],
    output: Output,
) -> Any:
    """Gather what the page shows; a failure must not cost the user the fit."""
    from regbayes.cli.pages import collect_training_page

    try:
        with output.catch_warnings():
            return collect_training_page(model, table, X, y, predictions, shown)
    except (Exception, KeyboardInterrupt) as error:
        reason = "interrupted" if isinstance(error, KeyboardInterrupt) else error
        output.warn(f"the page about the model could not be prepared, and the model is saved without ({reason})")
        return None
