"""What the page about a model shows, gathered from the rows it was fitted to or from new ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regbayes.cli.context import FitContext, rows_to_judge
from regbayes.cli.errors import BadDataError
from regbayes.cli.modelfile import ModelFile
from regbayes.cli.output import Output
from regbayes.cli.probabilities import codes_by_text, reliability_of
from regbayes.cli.tables import Table, text_of
from regbayes.cli.targets import as_labels, target_values, task_values
from regbayes.cli.words import WordCounts, show_documents

__all__ = ["collect_page", "collect_training_page"]

NAMES = {"accuracy over all labels": "label accuracy", "R², mean over targets": "R²"}  # of scores on the page


def collect_training_page(
    model: ModelFile, context: FitContext, predictions: NDArray[Any] | None, *, reliability: Any, stability: Any
) -> Any:
    """Gather what the page shows of a fit.

    Parameters
    ----------
    model : ModelFile
        The fit, still without a report.
    context : FitContext
    predictions : of rows by fits that had not seen them, or None
    reliability, stability : as `regbayes.report.collect` takes them

    Returns
    -------
    ReportData
    """
    noun, found = context.noun, model.facts["cross_validation"]
    note = (
        f"Predictions are of the {noun}s that the model was fitted to, so they look better than those of new {noun}s."
        if predictions is None
        else f"Predictions are those of cross-validation: each {noun} was predicted by a fit that had not seen it."
    )
    shown: dict[str, Any] = {
        "row_names": context.row_names,
        "data_name": f"training {noun}s",
        "predictions": predictions,
        "prediction_note": note,
        "scores": {}
        if found is None
        else {NAMES.get(found["metric"], found["metric"]): (found["pooled"], found["std"])},
        "fitted_to": True,
        "comparison": _comparison(model.facts["comparison"]),
        "reliability": reliability,
        "stability": stability,
    }
    if context.of_documents:
        shown |= {"kind": "text", "texts": context.texts}
    else:
        shown |= {"task": context.task, "image_shape": context.request.image_shape}
    return _collect(model, context.table, context.X, context.y, shown)


def collect_page(model: ModelFile, table: Table, output: Output) -> Any:
    """Gather what the page shows of a model by rows that it was not fitted to."""
    spec = model.target
    y = target_values(table, spec)
    kept = rows_to_judge(y, needs_all=model.of_documents)
    if not kept.any():
        raise BadDataError(f"{table.source} has no value of the target in any row, so there is nothing to compare with")
    key = next(iter(table.keys), None)
    names = [f"row {i + 1}" for i in range(len(kept))] if key is None else text_of(table.column(key))
    if not kept.all():
        output.warn(f"{int((~kept).sum())} of {len(kept)} rows have no target and are left out")
        table, y = table.take(kept), y[kept]
    y = as_labels(y) if spec.kind == "classifier" else y
    if model.of_documents and spec.kind == "multilabel":
        y = y.astype(np.int64)
    X = model.encode(table)
    noun, found = "document" if model.of_documents else "row", model.facts["cross_validation"]
    shown: dict[str, Any] = {
        "row_names": [name for name, here in zip(names, kept, strict=True) if here],
        "data_name": f"new {noun}s of {Path(table.source).name}",
        "prediction_note": f"Predictions of the fitted model for {noun}s that it was not fitted to.",
        "fitted_to": False,
    }
    if found is not None:
        name = f"{NAMES.get(found['metric'], found['metric'])} in cross-validation"
        shown["scores"] = {name: (found["pooled"], found["std"])}
    if isinstance(model.inputs, WordCounts):
        shown |= {"kind": "text", "texts": show_documents(table, model.inputs, X)}
    else:
        shown["task"] = task_values(table, spec)
    if model.certainty is not None:
        columns = y[:, None] if y.ndim == 1 else y
        codes = np.column_stack([codes_by_text(*pair) for pair in zip(columns.T, model.classes, strict=True)])
        shown["reliability"] = reliability_of(model.probabilities(table), codes, None, f"Of new {noun}s.")
    if model.report is not None:
        shown |= {"image_shape": model.report.image_shape or None, "comparison": model.report.comparison}
    try:
        report = _collect(model, table, X, y, shown)
    except ValueError as error:
        raise BadDataError(str(error)) from None
    return report if model.report is None else _with_stability(report, model.report.features)


def _with_stability(report: Any, fitted: Any) -> Any:
    """Return a page that says of its features how often they recur, which only the fit could see."""
    if fitted.returned is None:
        return report
    found = {}
    for name in ("returned", "similarity"):
        of_all = np.full(len(fitted.all_use), np.nan)
        of_all[fitted.number] = getattr(fitted, name)
        found[name] = of_all[report.features.number]
    return replace(report, features=replace(report.features, **found, returned_note=fitted.returned_note))


def _comparison(found: Mapping[str, Any] | None) -> Any:
    """Return the table of the comparison as the page takes it."""
    from regbayes.report.data import Comparison

    if found is None:
        return None
    systems = [row for row in found["systems"] if row["score"] is not None]
    return Comparison(
        metric=found["metric"],
        names=tuple(row["name"] for row in systems),
        own=0,
        scores=np.array([row["score"] for row in systems]),
        deviations=np.array([row["std"] for row in systems]),
        n_things=np.array([row["size"] for row in systems], dtype=np.int64),
        seconds=np.array([row["seconds"] for row in systems]),
        verdict=" ".join(found["messages"]),
    )


def _collect(model: ModelFile, table: Table, X: Any, y: NDArray[Any], shown: Mapping[str, Any]) -> Any:
    from regbayes.report import collect

    inputs, spec, facts = model.inputs, model.target, model.facts
    notices = [("warning", text) for text in facts["warnings"]]
    if facts["no_better_than_baseline"]:
        notices.insert(0, ("warning", facts["comparison"]["messages"][0]))
    if facts["interrupted"]:
        notices.insert(0, ("warning", f"{facts['kept']} Fit again for a model to rely on."))
    more = " and more" if len(spec.names) > 3 else ""
    options = {
        "title": f"Predicting {', '.join(spec.names[:3])}{more} from {Path(facts['source']).name}",
        "target_names": list(spec.names) if len(spec.names) > 1 else None,
        "target_name": spec.names[0] if len(spec.names) == 1 else "target",
        "notices": notices,
        **shown,
    }
    if isinstance(inputs, WordCounts):
        return collect(model.estimator, X, y, feature_names=inputs.get_feature_names_out().tolist(), **options)
    report = collect(model.pipeline, inputs.spread_dates(table.select(inputs.columns_)), y, **options)
    return replace(report, model=replace(report.model, name=type(model.estimator).__name__))
