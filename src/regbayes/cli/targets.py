"""The target: its columns, the kind of model, its values, and scores of predictions."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from regbayes._registry import persistable
from regbayes._types import Flags, Floats, Integers
from regbayes.cli import Kind
from regbayes.cli.errors import BadDataError, UserError, counted, listed, not_among
from regbayes.cli.inputs import MAX_NUMBER, as_numbers
from regbayes.cli.read import Table, plain_number, text_of
from regbayes.estimators._calibration import codes_of

if TYPE_CHECKING:
    from regbayes.cli.modelfile import ModelFile
    from regbayes.cli.output import Output

MAX_CLASSES = 20  # integral targets with at most this many distinct values are classes


@persistable(name="regbayes.cli.TargetSpec")
@dataclass(frozen=True)
class TargetSpec:
    """Target columns, kind of model and task column."""

    names: tuple[str, ...]
    kind: Kind
    as_text: tuple[bool, ...]  # whether the labels of each column are text
    task: str | None = None  # the column with the task of each row


def choose_targets(table: Table, wanted: Sequence[str]) -> tuple[str, ...]:
    """Return the requested target columns, or those that the file marks as targets."""
    if not wanted and table.targets:
        return table.targets
    if not wanted:
        archive = '; an archive has both: numpy.savez("data.npz", X=X, y=y)' if table.source.endswith(".npy") else ""
        raise UserError(
            f"name the column to predict with --target (repeatable). {table.source} has {listed(table.names)}{archive}"
        )
    names = [one for name in wanted for one in ((name,) if name in table else table.groups.get(name, (name,)))]
    for name in names:
        if name not in table:
            raise BadDataError(f"--target {name}: {table.source} has no such column; {not_among(name, table.names)}")
    if len(set(names)) < len(names):
        raise UserError(f"--target names a column twice: {listed(names)}")
    return tuple(names)


def decide(
    table: Table, names: tuple[str, ...], kind: Kind | None = None, task: str | None = None, *, of_texts: bool = False
) -> tuple[TargetSpec, str]:
    """Return the target specification and a sentence that explains it.

    A target with at most `MAX_CLASSES` distinct integers has classes. In tables of documents (``of_texts``), integers
    near zero are ratings, which are predicted as numbers.
    """
    columns = [table.column(name) for name in names]
    seen = {name: np.unique(column[is_observed(column)]) for name, column in zip(names, columns, strict=True)}
    for name, values in seen.items():
        if len(values) == 0:
            raise BadDataError(f"the target {name!r} has no value in any row")
    if task is not None and len(names) > 1:
        raise UserError("--task goes with one --target: with several, each target is a task of its own")
    found, why = (kind, f"{kind}, by --kind") if kind is not None else _guess(seen, table.n_rows, of_texts)
    texts = [name for name, values in seen.items() if values.dtype == object]
    if found == "regressor" and texts:
        raise BadDataError(f"the target {texts[0]!r} is text, which a regressor cannot predict")
    if found == "classifier" and len(names) > 1:
        raise UserError(f"--kind classifier takes one target, but there are {len(names)}; use --kind multilabel")
    if found == "multilabel" and len(names) == 1:
        raise UserError("--kind multilabel takes several targets, but there is one; use --kind classifier")
    large = [name for name, values in seen.items() if found == "regressor" and np.abs(values).max() > MAX_NUMBER]
    if large:
        raise BadDataError(f"the target {large[0]!r} holds numbers beyond {MAX_NUMBER:.0e}; take their logarithm")
    same = [name for name, values in seen.items() if len(values) == 1]
    labels = {text for values in seen.values() for text in text_of(values)}
    indicators = found != "regressor" and len(labels) == 2 and len(same) < len(names)  # a constant label is harmless
    if same and found != "regressor" and not indicators:
        raise BadDataError(f"the same value in every row, so there is nothing to learn: {listed(same)}. Leave it out")
    as_text = tuple(found != "regressor" and not _is_whole(values) for values in seen.values())
    return TargetSpec(names, found, as_text, task), why


def _guess(
    seen: dict[str, NDArray[Any]], n_rows: int, of_texts: bool, *, max_rating: int = 10, max_texts: int = 100
) -> tuple[Kind, str]:
    """Return the kind of model for targets with these distinct values, and a sentence that explains it.

    Integers up to `max_rating` are ratings in a table of documents. More than `max_texts` distinct texts are not
    classes, unless each occurs in three rows or more.
    """
    texts, of_classes, ratings = [], [], []
    for name, values in seen.items():
        n, whole, is_text = len(values), _is_whole(values), values.dtype == object
        texts += [name] if is_text else []
        of_classes += [name] if is_text or n <= 2 or (whole and n <= MAX_CLASSES) else []
        ratings += [name] if of_texts and n > 2 and whole and np.abs(values).max() <= max_rating else []
        if is_text and n > max_texts and n > n_rows / 3:
            raise BadDataError(
                f"the target {name!r} has {n} different texts in {n_rows} rows: too many for classes; write what "
                "should be predicted as a number, or give --kind classifier"
            )
    are_classes = len(of_classes) == len(seen) > len(ratings)
    to_number = "" if texts else " (--kind regressor if they are quantities)"
    if len(seen) == 1:
        ((name, values),) = seen.items()
        what = "texts" if texts else "whole numbers" if _is_whole(values) else "numbers"
        found: Kind = "classifier" if are_classes else "regressor"
        change = to_number if are_classes else " (--kind classifier if not)"
        return found, f"{found}: {name!r} holds {len(values)} different {what}{change}"
    if are_classes:
        return "multilabel", f"multilabel classifier: all {len(seen)} targets hold classes{to_number}"
    if not texts:
        return "regressor", f"regressor for {len(seen)} targets: they hold numbers (--kind multilabel if not)"
    raise BadDataError(
        f"some targets hold classes ({listed(of_classes)}) and others numbers; one model cannot predict both. Fit one "
        "model to each kind, or give --kind multilabel"
    )


def target_values(table: Table, spec: TargetSpec) -> NDArray[Any]:
    """Return targets of shape (n,) or (n, targets), with NaN or None for missing values.

    Labels that were text in training are returned as text.
    """
    columns = []
    for name, as_text in zip(spec.names, spec.as_text, strict=True):
        column = table.column(name)
        if as_text:
            columns.append(np.array(text_of(column), dtype=object))
        elif column.dtype == object and spec.kind != "regressor":  # text in a column of numeric classes
            columns.append(np.array([_number_or_text(text) for text in text_of(column)], dtype=object))
        else:
            columns.append(as_numbers(column, name))
    if len(columns) == 1:
        return columns[0]
    if any(column.dtype == object for column in columns):
        columns = [column.astype(object) for column in columns]
    return np.column_stack(columns)


def _number_or_text(text: str | None) -> Any:
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


def rows_with_target(table: Table, spec: TargetSpec, *, needs_all: bool = False) -> tuple[Table, NDArray[Any], Flags]:
    """Return the rows with a target (or all targets), their targets and the row mask; warn about the others."""
    y = target_values(table, spec)
    kept = np.asarray(is_observed(y).reshape(len(y), -1).all(axis=1)) if needs_all else observed_rows(y)
    if not kept.any():
        raise BadDataError(f"{table.source} has no value of the target in any row, so there is nothing to compare with")
    if not kept.all():
        warnings.warn(f"{np.sum(~kept)} of {len(kept)} rows have no target and are left out", stacklevel=2)
    y = y[kept]
    return table.take(kept), as_labels(y) if spec.kind == "classifier" and y.dtype != object else y, kept


def task_values(table: Table, spec: TargetSpec) -> NDArray[Any] | None:
    """Return the task of each row as text, or None without tasks."""
    if spec.task is None:
        return None
    texts = text_of(table.column(spec.task, "--task"))
    if None in texts:
        raise BadDataError(
            f"the task column {spec.task!r} is empty in row {texts.index(None) + 1}; every row needs a task"
        )
    return np.array(texts)


def row_weights(table: Table, name: str) -> Floats:
    """Return nonnegative sample weights from a column; missing weights are 0."""
    column = table.column(name, "--weight")
    odd = column if column.dtype == object else column[(column < 0) | np.isinf(column)]
    if len(odd):
        raise BadDataError(f"--weight {name}: weights are numbers of 0 or more, but there is {str(odd[0])!r}")
    if not np.any(column > 0):
        raise BadDataError(f"--weight {name}: no row has a weight above 0")
    return np.nan_to_num(column)


def observed_rows(y: NDArray[Any]) -> Flags:
    """Return the mask of rows with at least one observed target."""
    return np.asarray(is_observed(y).reshape(len(y), -1).any(axis=1))


def as_labels(y: NDArray[Any]) -> NDArray[Any]:
    """Return complete labels of one target as text, integers or floats."""
    if y.dtype == object:
        return np.array([str(value) for value in y])
    return y.astype(np.int64) if np.all(y == np.round(y)) else y


def is_observed(values: NDArray[Any]) -> Flags:
    """Return where values are neither None nor NaN nor infinite."""
    if values.dtype == object:
        flat = [value is not None and value == value for value in values.ravel()]  # NaN is not equal to itself
        return np.array(flat, dtype=bool).reshape(values.shape)
    return np.asarray(np.isfinite(values)) if values.dtype.kind == "f" else np.ones(values.shape, dtype=bool)


def _is_whole(values: NDArray[Any]) -> bool:
    return values.dtype != object and bool(np.all(values == np.round(values)) and np.all(np.abs(values) < 2.0**53))


def shown_label(label: Any) -> str:
    """Return the text of a label in files and tables."""
    return str(label) if isinstance(label, str) else str(plain_number(float(label)))


# --- scores


def score_of(
    kind: Kind, y: NDArray[Any], predicted: NDArray[Any], *, balanced: bool = False, weights: Floats | None = None
) -> float:
    """Return the weighted accuracy of observed labels, or R² of observed numbers.

    R² and the balanced accuracy (the mean recall of the classes) are averaged over targets, which may have different
    units and classes.
    """
    from regbayes.metrics import explained_variance_pooled, task_accuracy

    if kind != "regressor" and not balanced:
        return task_accuracy(y, predicted, sample_weight=weights)
    found = []
    for truth, answer in zip(y.reshape(len(y), -1).T, predicted.reshape(len(y), -1).T, strict=True):
        seen = observed_rows(truth)
        if seen.any():
            some = None if weights is None else weights[seen]
            score = explained_variance_pooled if kind == "regressor" else _mean_recall
            found.append(score(truth[seen], answer[seen], sample_weight=some))
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
    if kind == "regressor" or balanced:
        return ("balanced accuracy" if balanced else "R²") + ("" if n_targets == 1 else ", mean over targets")
    return "accuracy" if kind == "classifier" else "accuracy over all labels"


def baseline_score(y: NDArray[Any], kind: Kind, *, balanced: bool = False, weights: Floats | None = None) -> float:
    """Return the score of predicting the most frequent class or the mean of each target."""
    from sklearn.dummy import DummyClassifier, DummyRegressor

    predicted, nothing = np.empty_like(y).reshape(len(y), -1), np.zeros((len(y), 1))
    for j, column in enumerate(y.reshape(len(y), -1).T):
        seen = observed_rows(column)
        model = DummyRegressor() if kind == "regressor" else DummyClassifier(strategy="most_frequent")
        some = None if weights is None else weights[seen]
        predicted[:, j] = model.fit(nothing[seen], column[seen], sample_weight=some).predict(nothing)
    return score_of(kind, y, predicted.reshape(y.shape), balanced=balanced, weights=weights)


def evaluate(model: ModelFile, table: Table, output: Output, threshold: Sequence[str] = ()) -> dict[str, Any]:
    """Return scores of a model's predictions, at probability thresholds if some are given.

    Returns
    -------
    dict
        ``rows``, ``scores`` (a name and a number each) and ``details`` (a row per class, label or target).
    """
    spec, weight = model.target, model.facts["weight"]
    with output.catch_warnings():
        table, y, _ = rows_with_target(table, spec)
        shares = model.probabilities(table) if threshold or model.calibration is not None else []
        predicted = model.predict_at(shares, threshold) if threshold else model.predict(table)
    weights = np.ones(len(y))
    if weight is not None and weight in table:
        output.say(f"rows count as often as {weight!r} says")
        weights = row_weights(table, weight)
    columns = y.reshape(len(y), -1)
    for name, column, known in zip(spec.names, columns.T, model.classes, strict=False):
        new = {text for text in text_of(column) if text is not None} - {shown_label(label) for label in known}
        if new:
            output.warn(
                f"classes of {name!r} that were not there in training ({listed(sorted(new), 4)}), in "
                f"{counted(sum(text in new for text in text_of(column)), 'row')}: the model cannot predict them, and "
                "they count as errors"
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


def _of_classes(y: NDArray[Any], predicted: NDArray[Any], weights: Floats) -> tuple[dict[str, float], list[Any]]:
    from sklearn.metrics import accuracy_score, precision_recall_fscore_support

    truth, found = _as_text(y), _as_text(predicted)
    classes, n_rows = np.unique(truth, return_counts=True)
    parts = precision_recall_fscore_support(truth, found, labels=classes, zero_division=0, sample_weight=weights)[:3]
    names = ("class", "rows", "precision", "recall", "F1")
    columns = (classes.tolist(), n_rows.tolist(), *(part.tolist() for part in parts))
    scores = {
        "accuracy": accuracy_score(truth, found, sample_weight=weights),
        "balanced accuracy": float(np.mean(parts[1])),
        "F1, class average": float(np.mean(parts[2])),
        "always the most frequent class": baseline_score(truth, "classifier", weights=weights),
    }
    return scores, [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _of_labels(
    y: NDArray[Any], predicted: NDArray[Any], names: Sequence[str], classes: list[Any], weights: Floats
) -> tuple[dict[str, float], list[Any]]:
    from sklearn.metrics import f1_score

    details: list[dict[str, Any]] = []
    seen, truth, found = is_observed(y), _as_text(y), _as_text(predicted)
    hits = truth == found
    yes: list[Any] = []  # truth, prediction and weights of binary labels
    for j, name in enumerate(names):
        rows = seen[:, j]
        detail = {"target": name, "rows": int(rows.sum()), "accuracy": _mean(hits[rows, j], weights[rows])}
        if len(classes[j]) == 2:  # the second class is the positive one (1, true, yes)
            positive = shown_label(classes[j][1])
            yes.append((truth[rows, j] == positive, found[rows, j] == positive, weights[rows]))
            detail["share"] = _mean(yes[-1][0], weights[rows])
            detail["F1"] = float(f1_score(*yes[-1][:2], zero_division=0, sample_weight=weights[rows]))
        details.append(detail)
    scores = {"accuracy over all labels": _mean(hits[seen], np.broadcast_to(weights[:, None], y.shape)[seen])}
    if len(yes) == len(names):
        *pair, counts = (np.concatenate(parts) for parts in zip(*yes, strict=True))
        scores["F1, micro"] = float(f1_score(*pair, zero_division=0, sample_weight=counts))
        scores["F1, macro"] = float(np.mean([detail["F1"] for detail in details]))
    if seen.all():
        scores["all labels of a row right"] = _mean(hits.all(axis=1), weights)
    return scores, details


def _of_numbers(
    y: NDArray[Any], predicted: NDArray[Any], names: Sequence[str], task: NDArray[Any] | None, weights: Floats
) -> tuple[dict[str, float], list[Any]]:
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
    details = []
    for name, truth, found in zip(names, y.T, predicted.T, strict=True):
        rows = observed_rows(truth)
        if rows.any():
            numbers, _ = _of_numbers(truth[rows], found[rows], (), None, weights[rows])
            details.append({"target": name, "rows": int(rows.sum()), **numbers})
    return {"R², mean over targets": r2}, details


def _log_loss(shares: Sequence[Floats], y: NDArray[Any], classes: Sequence[Any], weights: Floats) -> float:
    """Return the mean log loss over all observed targets, (n, targets), without unknown classes."""
    losses, counts = [], []
    for column, found, known in zip(y.T, shares, classes, strict=True):
        codes = codes_by_text(column, known)
        here = np.flatnonzero(codes >= 0)
        losses.append(-np.log(np.maximum(found[here, codes[here]], np.finfo(np.float64).eps)))
        counts.append(weights[here])
    return _mean(np.concatenate(losses), np.concatenate(counts))


def codes_by_text(labels: NDArray[Any], classes: Any) -> Integers:
    """Return the indices of labels in `classes`, compared as text; -1 for unknown labels."""
    return codes_of(_as_text(labels), np.array([shown_label(label) for label in classes], dtype=object))


def _as_text(labels: NDArray[Any]) -> NDArray[Any]:
    """Return labels as text, with None for missing ones."""
    texts = [
        shown_label(one) if seen else None for one, seen in zip(labels.flat, is_observed(labels).flat, strict=True)
    ]
    return np.array(texts, dtype=object).reshape(labels.shape)


def _mean(values: NDArray[Any], weights: Floats) -> float:
    return float(np.average(values, weights=weights)) if weights.any() else float("nan")
