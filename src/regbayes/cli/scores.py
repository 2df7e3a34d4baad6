"""How good predictions are: the numbers that ``regbayes evaluate`` shows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from regbayes._types import Flags
from regbayes.cli.errors import BadDataError
from regbayes.cli.journal import score_of
from regbayes.cli.modelfile import ModelFile
from regbayes.cli.schema import Say
from regbayes.cli.tables import Table
from regbayes.cli.targets import TargetSpec, as_labels, observed_rows, shown_label, target_values, task_values

__all__ = ["evaluate"]

Details = list[dict[str, Any]]


def evaluate(model: ModelFile, table: Table, say: Say) -> dict[str, Any]:
    """Return scores of a model's predictions for a table with targets.

    Returns
    -------
    dict
        ``rows``, ``scores`` (a name and a number each) and ``details`` (a row per class, label or target).
    """
    spec = model.target
    for name in spec.names:
        table.column(name)
    y = target_values(table, spec)
    kept = observed_rows(y)
    if not kept.any():
        raise BadDataError(f"{table.source} has no value of the target in any row, so there is nothing to compare with")
    if not kept.all():
        say(f"{int((~kept).sum())} of {len(kept)} rows have no target and are left out")
        table, y = table.take(kept), y[kept]
    predicted = model.predict(table, say)
    if spec.kind == "classifier":
        scores, details = _of_classes(as_labels(y), predicted)
    elif spec.kind == "multilabel":
        scores, details = _of_labels(y, predicted, spec, _classes_by_target(model))
    else:
        scores, details = _of_numbers(y, predicted, spec, task_values(table, spec))
    return {"rows": len(y), "scores": scores, "details": details}


def _of_classes(y: NDArray[Any], predicted: NDArray[Any]) -> tuple[dict[str, float], Details]:
    from sklearn.metrics import precision_recall_fscore_support

    truth, answer = (np.array([shown_label(label) for label in labels]) for labels in (y, predicted))
    classes = np.unique(truth)
    parts = precision_recall_fscore_support(truth, answer, labels=classes, zero_division=0)
    scores = {
        "accuracy": float(np.mean(truth == answer)),
        "balanced accuracy": float(np.mean(parts[1])),
        "F1, class average": float(np.mean(parts[2])),
        "always the most frequent class": float(max(np.mean(truth == label) for label in classes)),
    }
    details = [
        {"class": str(label), "rows": int(n), "precision": float(p), "recall": float(r), "F1": float(f)}
        for label, p, r, f, n in zip(classes, *parts, strict=True)
    ]
    return scores, details


def _classes_by_target(model: ModelFile) -> list[Any]:
    """Return the classes of each target; those of documents' labels are no and yes."""
    n = len(model.target.names)
    if not hasattr(model.estimator, "tasks_"):
        return [(0, 1)] * n
    classes = model.estimator.classes_
    return classes if isinstance(classes, list) else [classes] * n


def _of_labels(
    y: NDArray[Any], predicted: NDArray[Any], spec: TargetSpec, by_target: list[Any]
) -> tuple[dict[str, float], Details]:
    from sklearn.metrics import f1_score

    details: Details = []
    hits: list[Flags] = []
    yes: list[tuple[Flags, Flags]] = []
    for j, name in enumerate(spec.names):
        seen = observed_rows(y[:, j])
        truth = np.array([shown_label(value) for value in y[seen, j]])
        answer = np.array([shown_label(value) for value in predicted[seen, j]])
        hits.append(truth == answer)
        detail: dict[str, Any] = {"target": name, "rows": int(seen.sum()), "accuracy": _mean(truth == answer)}
        if len(by_target[j]) == 2:  # yes is the later of two: 1, true, yes
            positive = shown_label(by_target[j][1])
            yes.append((truth == positive, answer == positive))
            detail |= {"share": _mean(truth == positive), "F1": float(f1_score(*yes[-1], zero_division=0))}
        details.append(detail)
    scores = {"accuracy over all labels": _mean(np.concatenate(hits))}
    if len(yes) == len(spec.names):
        together = [np.concatenate(parts) for parts in zip(*yes, strict=True)]
        scores["F1, micro"] = float(f1_score(*together, zero_division=0))
        scores["F1, macro"] = float(np.mean([detail["F1"] for detail in details]))
    if all(len(hit) == len(y) for hit in hits):
        scores["all labels of a row right"] = float(np.mean(np.all(hits, axis=0)))
    return scores, details


def _of_numbers(
    y: NDArray[Any], predicted: NDArray[Any], spec: TargetSpec, task: NDArray[Any] | None
) -> tuple[dict[str, float], Details]:
    from regbayes.metrics import explained_variance_within_tasks

    if y.ndim == 1:
        seen = observed_rows(y)
        errors = (y - predicted)[seen]
        scores = {
            "R²": score_of("regressor", y, predicted),
            "root mean squared error": float(np.sqrt(np.mean(errors**2))),
            "mean absolute error": float(np.mean(np.abs(errors))),
        }
        if task is not None:
            scores["R² within tasks"] = explained_variance_within_tasks(y, predicted, task)
        return scores, []
    details: Details = []
    for j, name in enumerate(spec.names):
        rows = np.isfinite(y[:, j])
        if rows.any():
            truth, answer = y[rows, j], predicted[rows, j]
            error = float(np.sqrt(np.mean((truth - answer) ** 2)))
            r2 = score_of("regressor", truth, answer)
            details.append({"target": name, "rows": int(rows.sum()), "R²": r2, "root mean squared error": error})
    return {"R², mean over targets": score_of("regressor", y, predicted)}, details


def _mean(values: NDArray[Any]) -> float:
    return float(np.mean(values)) if len(values) else float("nan")
