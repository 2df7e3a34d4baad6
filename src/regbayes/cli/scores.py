"""Scores for model selection and for ``regbayes evaluate``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from regbayes._types import Floats, Integers
from regbayes.cli import Kind
from regbayes.cli.errors import counted, listed
from regbayes.cli.targets import observed_rows, row_weights, rows_with_target, shown_label, task_values
from regbayes.estimators._calibration import codes_of

if TYPE_CHECKING:
    from regbayes.cli.modelfile import ModelFile
    from regbayes.cli.output import Output
    from regbayes.cli.read import Table

__all__ = ["baseline_score", "codes_by_text", "evaluate", "metric_name", "score_fit", "score_of"]

Details = list[dict[str, Any]]


def score_of(
    kind: Kind,
    y: NDArray[Any],
    predicted: NDArray[Any],
    *,
    balanced: bool = False,
    weights: Floats | None = None,
) -> float:
    """Return the weighted accuracy of observed labels, or R² of observed numbers.

    R² and the balanced accuracy (the mean recall of the classes) are averaged over targets, which may have different
    units and classes.
    """
    from regbayes.metrics import explained_variance_pooled, task_accuracy

    if kind != "regressor" and not balanced:
        return task_accuracy(y, predicted, sample_weight=weights)
    score = explained_variance_pooled if kind == "regressor" else _mean_recall
    if y.ndim == 1:
        return score(y, predicted, sample_weight=weights)
    found = []
    for j in range(y.shape[1]):
        seen = observed_rows(y[:, j])
        if seen.any():
            some = None if weights is None else weights[seen]
            found.append(score(y[seen, j], predicted[seen, j], sample_weight=some))
    return float(np.mean(found))


def _mean_recall(y: NDArray[Any], predicted: NDArray[Any], sample_weight: Floats | None = None) -> float:
    """Return the balanced accuracy, without scikit-learn's warning about predicted classes absent from `y`."""
    from sklearn.metrics import recall_score

    truth, answer = y.astype(str), predicted.astype(str)
    return float(recall_score(truth, answer, labels=np.unique(truth), average="macro", sample_weight=sample_weight))


def score_fit(
    estimator: Any, X: Any, y: NDArray[Any], *, sample_weight: Floats | None = None, kind: Kind, balanced: bool
) -> float:
    """Score a fit; a scikit-learn scorer once `kind` and `balanced` are bound."""
    return score_of(kind, y, np.asarray(estimator.predict(X)), balanced=balanced, weights=sample_weight)


def metric_name(kind: Kind, n_targets: int, *, balanced: bool = False) -> str:
    """Return the name of the score that `score_of` computes."""
    several = "" if n_targets == 1 else ", mean over targets"
    if balanced:
        return f"balanced accuracy{several}"
    if kind == "regressor":
        return f"R²{several}"
    return "accuracy" if kind == "classifier" else "accuracy over all labels"


def baseline_score(y: NDArray[Any], kind: Kind, *, balanced: bool = False, weights: Floats | None = None) -> float:
    """Return the score of predicting the most frequent class or the mean of each target."""
    from sklearn.dummy import DummyClassifier, DummyRegressor

    columns = y[:, None] if y.ndim == 1 else y
    predicted = np.empty(columns.shape, dtype=columns.dtype)
    nothing = np.zeros((len(y), 1))
    for j, column in enumerate(columns.T):
        seen = observed_rows(column)
        model = DummyRegressor() if kind == "regressor" else DummyClassifier(strategy="most_frequent")
        some = None if weights is None else weights[seen]
        predicted[:, j] = model.fit(nothing[seen], column[seen], sample_weight=some).predict(nothing)
    return score_of(kind, y, predicted[:, 0] if y.ndim == 1 else predicted, balanced=balanced, weights=weights)


def evaluate(model: ModelFile, table: Table, output: Output, threshold: Sequence[str] = ()) -> dict[str, Any]:
    """Return scores of a model's predictions, at probability thresholds if some are given.

    Returns
    -------
    dict
        ``rows``, ``scores`` (a name and a number each) and ``details`` (a row per class, label or target).
    """
    spec = model.target
    table, y, _ = rows_with_target(table, spec, output)
    with output.catch_warnings():
        shares = model.probabilities(table) if threshold or model.calibration is not None else []
        predicted = model.predict_at(shares, threshold) if threshold else model.predict(table)
    name = model.facts.get("weight")
    weights = row_weights(table, name) if name is not None and name in table else None
    if weights is not None:
        output.say(f"rows count as often as {name!r} says")
    columns = y[:, None] if y.ndim == 1 else y
    for name, column, known in zip(spec.names, columns.T, model.classes, strict=False):
        labels = [shown_label(label) for label in column[observed_rows(column)].tolist()]
        new = [label for label in labels if label not in {shown_label(label) for label in known}]
        if new:
            output.warn(
                f"classes of {name!r} that were not there in training ({listed(sorted(set(new)), 4)}), in "
                f"{counted(len(new), 'row')}: the model cannot predict them, and they count as errors"
            )
    if spec.kind == "regressor":
        scores, details = _of_numbers(y, predicted, spec.names, task_values(table, spec), weights)
    elif spec.kind == "multilabel":
        scores, details = _of_labels(y, predicted, spec.names, model.classes, weights)
    else:
        scores, details = _of_classes(y, predicted, weights)
    if shares:
        scores["log-loss"] = _log_loss(shares, columns, model.classes, weights)
    return {"rows": len(y), "scores": scores, "details": details}


def _of_classes(y: NDArray[Any], predicted: NDArray[Any], weights: Floats | None) -> tuple[dict[str, float], Details]:
    from sklearn.metrics import accuracy_score, precision_recall_fscore_support

    truth, found = _as_text(y), _as_text(predicted)
    classes = np.unique(truth)
    parts = precision_recall_fscore_support(truth, found, labels=classes, zero_division=0, sample_weight=weights)
    scores = {
        "accuracy": accuracy_score(truth, found, sample_weight=weights),
        "balanced accuracy": float(np.mean(parts[1])),
        "F1, class average": float(np.mean(parts[2])),
        "always the most frequent class": baseline_score(truth, "classifier", weights=weights),
    }
    details = [
        {
            "class": str(label),
            "rows": int(np.sum(truth == label)),
            "precision": float(p),
            "recall": float(r),
            "F1": float(f),
        }
        for label, p, r, f in zip(classes, *parts[:3], strict=True)
    ]
    return scores, details


def _of_labels(
    y: NDArray[Any], predicted: NDArray[Any], names: Sequence[str], classes: list[Any], weights: Floats | None
) -> tuple[dict[str, float], Details]:
    from sklearn.metrics import f1_score

    weights = np.ones(len(y)) if weights is None else weights
    details: Details = []
    seen = np.column_stack([observed_rows(column) for column in y.T])
    hits = np.zeros(y.shape, dtype=bool)
    yes: list[Any] = []  # truth, prediction and weights of binary labels
    for j, name in enumerate(names):
        rows = seen[:, j]
        truth, found, counts = _as_text(y[rows, j]), _as_text(predicted[rows, j]), weights[rows]
        hits[rows, j] = truth == found
        detail = {"target": name, "rows": int(rows.sum()), "accuracy": _mean(truth == found, counts)}
        if len(classes[j]) == 2:  # the second class is the positive one (1, true, yes)
            positive = shown_label(classes[j][1])
            yes.append((truth == positive, found == positive, counts))
            detail["share"] = _mean(truth == positive, counts)
            detail["F1"] = float(f1_score(*yes[-1][:2], zero_division=0, sample_weight=counts))
        details.append(detail)
    scores = {"accuracy over all labels": _mean(hits[seen], np.broadcast_to(weights[:, None], y.shape)[seen])}
    if len(yes) == len(names):
        truth, found, counts = (np.concatenate(parts) for parts in zip(*yes, strict=True))
        scores["F1, micro"] = float(f1_score(truth, found, zero_division=0, sample_weight=counts))
        scores["F1, macro"] = float(np.mean([detail["F1"] for detail in details]))
    if seen.all():
        scores["all labels of a row right"] = _mean(hits.all(axis=1), weights)
    return scores, details


def _of_numbers(
    y: NDArray[Any], predicted: NDArray[Any], names: Sequence[str], task: NDArray[Any] | None, weights: Floats | None
) -> tuple[dict[str, float], Details]:
    from sklearn.metrics import mean_absolute_error, root_mean_squared_error

    from regbayes.metrics import explained_variance_within_tasks

    r2 = score_of("regressor", y, predicted, weights=weights)
    if y.ndim == 1:
        scores = {
            "R²": r2,
            "root mean squared error": root_mean_squared_error(y, predicted, sample_weight=weights),
            "mean absolute error": mean_absolute_error(y, predicted, sample_weight=weights),
        }
        if task is not None:
            scores["R² within tasks"] = explained_variance_within_tasks(y, predicted, task, weights)
        return scores, []
    details: Details = []
    for name, truth, found in zip(names, y.T, predicted.T, strict=True):
        rows = observed_rows(truth)
        if rows.any():
            numbers, _ = _of_numbers(truth[rows], found[rows], (), None, None if weights is None else weights[rows])
            details.append({"target": name, "rows": int(rows.sum()), **numbers})
    return {"R², mean over targets": r2}, details


def _log_loss(shares: Sequence[Floats], y: NDArray[Any], classes: Sequence[Any], weights: Floats | None) -> float:
    """Return the mean log loss over all observed targets, (n, targets), without unknown classes."""
    losses, counts = [], []
    for column, found, known in zip(y.T, shares, classes, strict=True):
        codes = codes_by_text(column, known)
        here = np.flatnonzero(codes >= 0)
        losses.append(-np.log(np.maximum(found[here, codes[here]], np.finfo(np.float64).eps)))
        counts.append(np.ones(len(here)) if weights is None else weights[here])
    return _mean(np.concatenate(losses), np.concatenate(counts))


def codes_by_text(labels: NDArray[Any], classes: Any) -> Integers:
    """Return the indices of labels in `classes`, compared as text; -1 for unknown labels."""
    texts = np.array([None if value is None or value != value else shown_label(value) for value in labels.tolist()])
    return codes_of(texts, np.array([shown_label(label) for label in classes], dtype=object))


def _as_text(labels: NDArray[Any]) -> NDArray[Any]:
    return np.array([shown_label(label) for label in labels], dtype=object)


def _mean(values: NDArray[Any], weights: Floats) -> float:
    return float(np.average(values, weights=weights)) if weights.any() else float("nan")
