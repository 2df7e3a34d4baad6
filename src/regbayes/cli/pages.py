"""What the page about a model shows, gathered from the rows it was fitted to or from new ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regbayes.cli.errors import BadDataError
from regbayes.cli.modelfile import ModelFile, classes_by_target
from regbayes.cli.output import Output
from regbayes.cli.probabilities import codes_by_text, reliability_of
from regbayes.cli.tables import Table
from regbayes.cli.targets import as_labels, observed_rows, target_values, task_values
from regbayes.cli.words import WordCounts, show_documents

__all__ = ["collect_page", "collect_training_page"]

NAMES = {"accuracy over all labels": "label accuracy", "R², mean over targets": "R²"}  # as the page calls scores


def collect_training_page(
    model: ModelFile,
    table: Table,
    X: Any,
    y: NDArray[Any],
    predictions: NDArray[Any] | None,
    shown: Mapping[str, Any],
) -> Any:
    """Gather what the page shows of a fit to these rows.

    Parameters
    ----------
    model : ModelFile
        The fit, still without a report.
    table, X, y : the rows, the estimator's inputs that were made of them, and their targets
    predictions : of rows by fits that had not seen them, or None
    shown : further options of `regbayes.report.collect`

    Returns
    -------
    ReportData
    """
    noun = "document" if model.of_documents else "row"
    note = (
        f"Predictions are of the {noun}s that the model was fitted to, so they look better than those of new {noun}s."
        if predictions is None
        else f"Predictions are those of cross-validation: each {noun} was predicted by a fit that had not seen it."
    )
    found = model.facts["cross_validation"]
    scores = {} if found is None else {NAMES.get(found["metric"], found["metric"]): (found["pooled"], found["std"])}
    told = {"predictions": predictions, "prediction_note": note, "scores": scores, "fitted_to": True}
    return _collect(model, table, X, y, {**shown, **told})


def collect_page(model: ModelFile, table: Table, output: Output) -> Any:
    """Gather what the page shows of a model by rows that it was not fitted to.

    Raises
    ------
    BadDataError
        If no row has a target, or the rows do not fit the model.
    """
    spec = model.target
    y = target_values(table, spec)
    kept = observed_rows(y)
    if model.of_documents and y.ndim == 2:
        kept = np.all([observed_rows(column) for column in y.T], axis=0)
    if not kept.any():
        raise BadDataError(f"{table.source} has no value of the target in any row, so there is nothing to compare with")
    key = next(iter(table.keys), None)
    row_names = [f"row {i + 1}" for i in range(len(kept))] if key is None else table.column(key).tolist()
    if not kept.all():
        output.warn(f"{int((~kept).sum())} of {len(kept)} rows have no target and are left out")
        table, y = table.take(kept), y[kept]
        row_names = [name for name, here in zip(row_names, kept, strict=True) if here]
    y = as_labels(y) if spec.kind == "classifier" else y
    if model.of_documents and spec.kind == "multilabel":
        y = y.astype(np.int64)
    X = model.encode(table)
    found = model.facts["cross_validation"]
    scores = {}
    if found is not None:
        scores[f"{NAMES.get(found['metric'], found['metric'])} in cross-validation"] = (found["pooled"], found["std"])
    noun = "document" if model.of_documents else "row"
    shown: dict[str, Any] = {
        "row_names": row_names,
        "data_name": f"new {noun}s of {Path(table.source).name}",
        "prediction_note": f"Predictions of the fitted model for {noun}s that it was not fitted to.",
        "scores": scores,
        "fitted_to": False,
    }
    if isinstance(model.inputs, WordCounts):
        shown |= {"kind": "text", "texts": show_documents(table, model.inputs, X)}
    else:
        shown["task"] = task_values(table, spec)
    if model.certainty is not None:
        classes = classes_by_target(model.estimator, len(spec.names))
        columns = y[:, None] if y.ndim == 1 else y
        codes = np.column_stack([codes_by_text(*pair) for pair in zip(columns.T, classes, strict=True)])
        note = f"Of {noun}s that the model was not fitted to."
        shown["reliability"] = reliability_of(model.probabilities(table), codes, None, note)
    if model.report is not None:
        shown |= {"image_shape": model.report.image_shape or None, "comparison": model.report.comparison}
    try:
        report = _collect(model, table, X, y, shown)
    except ValueError as error:
        raise BadDataError(str(error)) from None
    return report if model.report is None else _with_returns(report, model.report.features)


def _with_returns(report: Any, fitted: Any) -> Any:
    """Return a page that says of its features how often they came back, which only the fit could see."""
    if fitted.returned is None:
        return report
    found = {}
    for name in ("returned", "likeness"):
        of_all = np.full(len(fitted.all_use), np.nan)
        of_all[fitted.number] = getattr(fitted, name)
        found[name] = of_all[report.features.number]
    return replace(report, features=replace(report.features, **found, returned_note=fitted.returned_note))


def _collect(model: ModelFile, table: Table, X: Any, y: NDArray[Any], shown: Mapping[str, Any]) -> Any:
    from regbayes.report import collect

    inputs, spec, facts = model.inputs, model.target, model.facts
    source = Path(facts["source"]).name
    more = " and more" if len(spec.names) > 3 else ""
    doubts = [("warning", words) for words in facts.get("warnings", ())]  # older files have none
    told = {
        "title": f"Predicting {', '.join(spec.names[:3])}{more} from {source}",
        "target_names": list(spec.names) if len(spec.names) > 1 else None,
        "target_name": spec.names[0] if len(spec.names) == 1 else "target",
        **shown,
        "notices": [*interruption(facts), *shown.get("notices", ()), *doubts],
    }
    if isinstance(inputs, WordCounts):
        return collect(model.estimator, X, y, feature_names=inputs.get_feature_names_out().tolist(), **told)
    report = collect(model.pipeline, inputs.spread_dates(table.select(inputs.columns_)), y, **told)
    return replace(report, model=replace(report.model, name=type(model.estimator).__name__))


def interruption(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Say of a fit that was interrupted what it is worth."""
    if not facts["interrupted"]:
        return []
    said = f"This fit was interrupted before it was done. {facts['kept']} Fit again for a model to rely on."
    return [("warning", said)]
