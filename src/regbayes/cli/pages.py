"""Data of the HTML report about a model, from its training rows or from new rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regbayes._types import Floats, Integers
from regbayes.cli.context import FitContext
from regbayes.cli.errors import BadDataError
from regbayes.cli.modelfile import ModelFile
from regbayes.cli.output import Output
from regbayes.cli.read import Table, text_of
from regbayes.cli.scores import codes_by_text
from regbayes.cli.targets import as_labels, rows_with_target, task_values
from regbayes.cli.words import WordCounts, show_documents

__all__ = ["collect_new_page", "collect_training_page", "reliability_of"]


def collect_training_page(
    model: ModelFile, context: FitContext, predictions: NDArray[Any] | None, shown: Mapping[str, Any]
) -> Any:
    """Return the `ReportData` of a fit.

    `predictions` are out-of-fold predictions or None; `shown` are further options of `regbayes.report.collect`.
    """
    noun, found = "document" if context.of_documents else "row", model.facts["cross_validation"]
    note = (
        f"Predictions are of the {noun}s that the model was fitted to, so they look better than those of new {noun}s."
        if predictions is None
        else f"Predictions are those of cross-validation: each {noun} was predicted by a fit that had not seen it."
    )
    scores = {} if found is None else {_name_score(found["metric"]): (found["pooled"], found["std"])}
    options: dict[str, Any] = {
        "row_names": context.row_names,
        "data_name": f"training {noun}s",
        "predictions": predictions,
        "prediction_note": note,
        "scores": scores,
        "fitted_to": True,
        "texts": context.texts,
        "task": context.task,
        "image_shape": context.request.image_shape,
    }
    compared = model.facts["comparison"]
    if compared is not None:
        from regbayes.report.data import Comparison

        systems = [row for row in compared["systems"] if row["score"] is not None]
        columns = {name: np.array([row[name] for row in systems]) for name in ("score", "std", "size", "seconds")}
        options["comparison"] = Comparison(
            metric=compared["metric"],
            names=tuple(row["name"] for row in systems),
            own=0,
            scores=columns["score"],
            deviations=columns["std"],
            n_things=columns["size"].astype(np.int64),
            seconds=columns["seconds"],
            verdict=" ".join(compared["messages"]),
        )
    return _collect(model, context.table, context.X, context.y, {**options, **shown})


def collect_new_page(model: ModelFile, table: Table, output: Output) -> Any:
    """Return the `ReportData` of a model on new rows."""
    spec = model.target
    table, y, kept = rows_with_target(table, spec, output, needs_all=model.of_documents)
    y = as_labels(y) if spec.kind == "classifier" else y
    numbered = [f"row {i + 1}" for i in np.flatnonzero(kept)]
    names = numbered if table.key is None else text_of(table.column(table.key))
    if model.of_documents and spec.kind == "multilabel":
        y = y.astype(np.int64)
    X = model.encode(table)
    noun, found = "document" if model.of_documents else "row", model.facts["cross_validation"]
    shown: dict[str, Any] = {
        "row_names": names,
        "data_name": f"new {noun}s of {Path(table.source).name}",
        "prediction_note": f"Predictions of the fitted model for {noun}s that it was not fitted to.",
        "fitted_to": False,
        "task": task_values(table, spec),
    }
    if found is not None:
        shown["scores"] = {f"{_name_score(found['metric'])} in cross-validation": (found["pooled"], found["std"])}
    if isinstance(model.inputs, WordCounts):
        shown["texts"] = show_documents(table, model.inputs, X)
    if model.calibration is not None:
        columns = y[:, None] if y.ndim == 1 else y
        codes = np.column_stack([codes_by_text(*pair) for pair in zip(columns.T, model.classes, strict=True)])
        shown["reliability"] = reliability_of(model.probabilities(table), codes, None, f"Of new {noun}s.")
    if model.report is not None:
        shown |= {"image_shape": model.report.image_shape or None, "comparison": model.report.comparison}
    try:
        report = _collect(model, table, X, y, shown)
    except ValueError as error:
        raise BadDataError(str(error)) from None
    if model.report is None or model.report.features.returned is None:
        return report
    fitted, recurrence = model.report.features, {}  # only the fit computes which features recur
    for name in ("returned", "similarity"):
        of_all = np.full(fitted.n_in_use, np.nan)
        of_all[fitted.number] = getattr(fitted, name)
        recurrence[name] = of_all[report.features.number]
    return replace(report, features=replace(report.features, **recurrence, returned_note=fitted.returned_note))


def reliability_of(shares: Sequence[Floats], codes: Integers, weights: Floats | None, note: str) -> Any:
    """Return the reliability diagram of predicted classes, in ten bins of equal width.

    Parameters
    ----------
    shares : of each target, (n, classes)
    codes : (n, targets)
        The true classes; -1 where unknown.
    weights : (n,) or None
    note : str
        Source of the probabilities.
    """
    from regbayes.report.data import Reliability

    largest = np.column_stack([found.max(axis=1) for found in shares])
    hits = np.column_stack([found.argmax(axis=1) for found in shares]) == codes
    seen, n_bins = codes >= 0, 10
    counts = np.broadcast_to(np.ones(len(codes))[:, None] if weights is None else weights[:, None], codes.shape)[seen]
    place = np.minimum((n_bins * largest[seen]).astype(np.int64), n_bins - 1)
    in_bin = np.bincount(place, counts, n_bins)
    kept = in_bin > 0
    mean, share = (np.bincount(place, counts * values[seen], n_bins)[kept] / in_bin[kept] for values in (largest, hits))
    error = np.average(np.abs(share - mean), weights=in_bin[kept])
    said = f"{note} Probability and share differ by {error:.3f} on average (expected calibration error)."
    return Reliability(mean, share, np.bincount(place, minlength=n_bins)[kept], said)


def _name_score(metric: str) -> str:
    """Return the name of a score in the report."""
    return {"accuracy over all labels": "label accuracy", "R², mean over targets": "R²"}.get(metric, metric)


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
    report = collect(model.pipeline, inputs.expand_dates(table.select(inputs.columns_)), y, **options)
    return replace(report, model=replace(report.model, name=type(model.estimator).__name__))
