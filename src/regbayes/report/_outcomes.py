"""Targets and predictions: scores, confusion matrix, tasks and worst errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.base import is_classifier, is_regressor
from sklearn.metrics import confusion_matrix, f1_score
from sklearn.utils.multiclass import type_of_target

from regbayes._types import Floats, Integers
from regbayes.estimators._task_bases import Layout, Targets, natural, read_targets
from regbayes.kernels.arrays import to_host
from regbayes.plots.models import correlations, related_order
from regbayes.report.data import LIMITS, Confusion, Regression, Tasks, Worst

if TYPE_CHECKING:
    from regbayes.report._examples import ExamplePool

Score = tuple[str, float, str]


@dataclass(frozen=True)
class Outcomes:
    """The observed targets of all tasks, with predictions and names.

    `values` and `predicted` contain class codes of each task, or numbers for regression. `predicted` is None without
    predictions.
    """

    kind: Literal["classes", "numbers"]
    layout: Layout
    task_names: list[str]  # (tasks,)
    class_names: list[list[str]]  # of each task; empty lists for numbers
    rows: Integers  # (n,)
    tasks: Integers  # (n,)
    values: NDArray[Any]  # (n,)
    predicted: NDArray[Any] | None  # (n,)

    @property
    def pooled_classes(self) -> bool:
        """Whether all targets have the same classes, so that one confusion matrix suffices."""
        return self.kind == "classes" and self.layout != "matrix"

    @property
    def several(self) -> bool:
        """Whether there are several targets, each in units of its own."""
        return self.layout == "matrix" and len(self.task_names) > 1

    def labels(self) -> Iterator[tuple[str, int, int]]:
        """Yield the name, the task and the code of each label: the second of two classes, or each of several."""
        for place, (task, names) in enumerate(zip(self.task_names, self.class_names, strict=True)):
            if len(names) <= 2:
                yield task, place, len(names) - 1
            else:
                yield from ((f"{task}: {name}", place, code) for code, name in enumerate(names))

    def by_task(self, values: NDArray[Any]) -> Floats:
        """Return means over the targets of each task, (tasks,); NaN for a task without any."""
        n_tasks = len(self.task_names)
        sums = np.bincount(self.tasks, weights=values.astype(np.float64), minlength=n_tasks)
        return _ratio(sums, np.bincount(self.tasks, minlength=n_tasks))

    @property
    def within_tasks(self) -> Floats:
        """The targets less the mean of their task, (n,)."""
        return self.values - self.by_task(self.values)[self.tasks]

    def positives(self) -> Floats:
        """Return the shares of true positives, positives and predicted positives, (3, tasks)."""
        truth, said = self.values == 1, self.predicted == 1
        return np.array([self.by_task(some) for some in (truth & said, truth, said)])


def label_text(label: Any) -> str:
    """Return a label as text; 1.0, from an integer column with missing values, becomes "1"."""
    value = label.item() if isinstance(label, np.generic) else label
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def read_outcomes(
    estimator: Any, model: Any, X: Any, y: Any, task: Any, predictions: Any, target_names: Sequence[str] | None
) -> Outcomes:
    """Return the observed targets and their predictions.

    Parameters
    ----------
    estimator, model : fitted estimator and the latent-feature model inside
    X : samples, used for their number
    y, task : targets and tasks as in ``fit``
    predictions : predictions in the shape of y, or None
    target_names : names of the classes, or of the columns of a matrix
    """
    numeric = is_regressor(estimator) or (
        not is_classifier(estimator) and type_of_target(y, input_name="y").startswith("continuous")
    )
    targets = read_targets(y, task, X, numeric=numeric, unlabeled=getattr(model, "unlabeled", None))
    matrix, n_tasks = targets.layout == "matrix", len(targets.ids)
    answers = None if predictions is None else _at_targets(predictions, targets, len(np.asarray(y)))
    task_names = [label_text(name) for name in targets.ids]
    if matrix and target_names is not None:
        if len(target_names) != n_tasks:
            raise ValueError(f"target_names has {len(target_names)} names, but y has {n_tasks} columns")
        task_names = [str(name) for name in target_names]
    kept = (targets.rows, targets.tasks)
    if numeric:
        predicted = None if answers is None else answers.astype(np.float64)
        return Outcomes("numbers", targets.layout, task_names, [[]] * n_tasks, *kept, targets.values, predicted)
    known = getattr(estimator, "classes_", getattr(model, "classes_", None))
    if matrix and not hasattr(model, "tasks_"):
        known = None  # indicators: the classes are column numbers
    classes, (codes, predicted) = _encode(targets, answers, known)
    names = [[label_text(label) for label in these] for these in classes]
    if not matrix and target_names is not None:
        if len(target_names) != len(classes[0]):
            raise ValueError(
                f"target_names has {len(target_names)} names, but there are {len(classes[0])} classes: "
                f"{', '.join(names[0][:10])}"
            )
        names = [[str(name) for name in target_names]] * n_tasks
    return Outcomes("classes", targets.layout, task_names, names, *kept, codes, None if answers is None else predicted)


def _at_targets(predictions: Any, targets: Targets, n_rows: int) -> NDArray[Any]:
    found = np.asarray(predictions)
    n_columns = len(targets.ids) if targets.layout == "matrix" else 1
    if found.ndim not in (1, 2) or found.reshape(len(found), -1).shape != (n_rows, n_columns):
        raise ValueError(
            f"predictions must have the shape of y: {n_rows} rows and {n_columns} column(s); got {found.shape}"
        )
    return np.asarray(found.reshape(n_rows, -1)[targets.rows, targets.tasks if n_columns > 1 else 0])


def _encode(targets: Targets, answers: NDArray[Any] | None, known: Any) -> tuple[list[NDArray[Any]], Integers]:
    """Return the classes of each task, and the codes of targets and predictions, (2, n).

    The classes are those of the estimator and others among the targets and predictions.
    """
    n_tasks, pooled = len(targets.ids), targets.layout != "matrix"
    classes, codes = [], np.empty((2, len(targets.rows)), dtype=np.int64)
    for place in range(1 if pooled else n_tasks):
        mine = np.flatnonzero(targets.tasks >= 0 if pooled else targets.tasks == place)
        given = known[place] if isinstance(known, list) else () if known is None else known
        some = [targets.values[mine], (targets.values if answers is None else answers)[mine]]
        parts = [natural(np.asarray(part), "y") for part in (to_host(given), *some) if len(part)]
        if len({part.dtype.kind in "US" for part in parts}) > 1:
            raise ValueError("y has other labels than the estimator was fitted to: text among numbers")
        found, places = np.unique(np.concatenate(parts) if parts else np.zeros(0), return_inverse=True)
        codes[:, mine] = places[len(places) - 2 * len(mine) :].reshape(2, -1)
        classes.append(found)
    return classes * n_tasks if pooled else classes, codes


def _ratio(part: Any, whole: Any) -> Floats:
    part, whole = np.asarray(part, dtype=np.float64), np.asarray(whole, dtype=np.float64)
    return np.divide(part, whole, out=np.full(part.shape, np.nan), where=whole > 0)


def _f1_by_task(outcomes: Outcomes) -> Floats:
    hits, actual, said = outcomes.positives()
    return np.nan_to_num(_ratio(2.0 * hits, actual + said))


# --- Scores


def scores_of(outcomes: Outcomes) -> list[Score]:
    """Return the scores of the predictions, empty without predictions."""
    if outcomes.predicted is None:
        return []
    if outcomes.kind == "numbers":
        return _number_scores(outcomes, outcomes.values - outcomes.predicted)
    right = float(np.mean(outcomes.values == outcomes.predicted))
    if outcomes.pooled_classes:
        found = np.unique(outcomes.values)
        f1 = f1_score(outcomes.values, outcomes.predicted, labels=found, average="macro", zero_division=0)
        largest = np.bincount(outcomes.values).max() / len(outcomes.values)
        return [
            ("accuracy", right, "share of rows whose class is predicted"),
            ("class-average F1", float(f1), "mean over classes of the harmonic mean of precision and recall"),
            ("largest class", float(largest), "accuracy of always predicting that class"),
        ]
    scores: list[Score] = [("label accuracy", right, "share of all observed labels that are predicted")]
    if all(len(names) == 2 for names in outcomes.class_names):
        micro = f1_score(outcomes.values, outcomes.predicted, zero_division=0)
        scores.append(("F1-micro", float(micro), "F1 of all labels counted together"))
        scores.append(("F1-macro", float(_f1_by_task(outcomes).mean()), "mean over labels of the F1 of each"))
    return scores


def _number_scores(outcomes: Outcomes, residual: Floats) -> list[Score]:
    def explained(values: Floats) -> float:
        return 1.0 - float(_ratio(np.sum(residual**2), np.sum(values**2)))

    if outcomes.several:
        shares = 1.0 - _ratio(outcomes.by_task(residual**2), outcomes.by_task(outcomes.within_tasks**2))
        return [("R²", float(np.nanmean(shares)), "share of a target's variance that is explained, mean over targets")]
    whole = explained(outcomes.values - outcomes.values.mean())
    found = [("R²", whole, "share of the targets' variance that is explained")]
    if len(outcomes.task_names) > 1:
        meaning = "share of the variance around each task's own mean that is explained"
        found.append(("R² within tasks", explained(outcomes.within_tasks), meaning))
    found.append(("RMSE", float(np.sqrt(np.mean(residual**2))), "root mean squared error, in units of the target"))
    return found


# --- Errors


def confusion_of(outcomes: Outcomes, pool: ExamplePool, margins: Floats | None = None) -> Confusion | None:
    """Return the confusion matrix, or None without predictions or common classes.

    Examples of a pair are those with the smallest margins, or the first ones.
    """
    if outcomes.predicted is None or not outcomes.pooled_classes:
        return None
    counts = confusion_matrix(outcomes.values, outcomes.predicted, labels=np.arange(len(outcomes.class_names[0])))
    wrong = counts - np.diag(np.diag(counts))
    order = np.argsort(-wrong, axis=None, kind="stable")[: LIMITS.confused_pairs]
    pairs = [divmod(int(place), len(counts)) for place in order if wrong.flat[place] > 0]
    examples = []
    for truth, answer in pairs:
        cells = np.flatnonzero((outcomes.values == truth) & (outcomes.predicted == answer))
        if margins is not None:
            cells = cells[np.argsort(margins[cells], kind="stable")]
        examples.append(tuple(pool.places(outcomes.rows[cells[: LIMITS.pair_examples]]).tolist()))
    found = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return Confusion(tuple(outcomes.class_names[0]), counts, found, tuple(examples))


def class_margins(scores: Any, outcomes: Outcomes) -> Floats | None:
    """Return the margins: the score of the true class minus the best other score.

    ``scores`` is the output of `decision_function`. The result is None if its shape is not supported.
    """
    margins = np.full(len(outcomes.rows), np.nan)
    for task in np.unique(outcomes.tasks):
        mine = np.flatnonzero(outcomes.tasks == task)
        rows, codes = outcomes.rows[mine], outcomes.values[mine]
        block = np.asarray(scores[task] if isinstance(scores, list) else scores)
        if not isinstance(scores, list) and outcomes.layout == "matrix" and block.ndim == 2:
            block = block[:, task]
        n_classes = len(outcomes.class_names[task])
        if block.ndim == 1 and n_classes == 2:
            margins[mine] = np.where(codes == 1, 1.0, -1.0) * block[rows]
        elif block.ndim == 2 and block.shape[1] == n_classes:
            others = np.where(np.eye(n_classes, dtype=bool)[codes], -np.inf, block[rows])
            margins[mine] = block[rows, codes] - others.max(axis=1)
        else:
            return None
    return margins


def worst_labels(outcomes: Outcomes, margins: Floats | None, pool: ExamplePool, *, own: bool) -> Worst | None:
    """Return the wrong predictions with the most negative margins, or the first ones.

    `own` is True if the margins are from the fits that made the predictions, and False if from the final fit.
    """
    if outcomes.predicted is None:
        return None
    wrong = np.flatnonzero(outcomes.values != outcomes.predicted)
    title = f"{min(LIMITS.worst, len(wrong))} of the {len(wrong)} wrong predictions"
    if margins is not None:
        wrong = wrong[np.argsort(margins[wrong], kind="stable")]
        title = "The wrong predictions that the model is most sure of, the worst first"
        if not own:
            title = "Wrong predictions of cross-validation, those first with the largest margins of the final fit"
    wrong, notes = wrong[: LIMITS.worst], []
    for cell in wrong:
        labels, task = outcomes.class_names[outcomes.tasks[cell]], outcomes.task_names[outcomes.tasks[cell]]
        note = f"is {labels[outcomes.values[cell]]}, predicted as {labels[outcomes.predicted[cell]]}"
        if outcomes.layout == "matrix" and len(labels) > 2:
            note = f"{task}: {note}"
        elif outcomes.layout == "matrix":
            note = f"{'misses' if outcomes.values[cell] == 1 else 'adds'} {task}"
        notes.append(note)
    places = pool.places(outcomes.rows[wrong])
    if margins is None:
        return Worst(title, places, tuple(notes))
    meaning = "margin: the score of the true class less that of the best other one"
    return Worst(title, places, tuple(notes), margins[wrong], meaning)


def worst_numbers(outcomes: Outcomes, pool: ExamplePool) -> Worst | None:
    """Return the largest residuals, in standard deviations of the task's targets."""
    if outcomes.predicted is None:
        return None
    sizes, meaning = outcomes.predicted - outcomes.values, "difference: predicted less observed"
    if outcomes.layout == "matrix":
        variance = outcomes.by_task(outcomes.within_tasks**2)[outcomes.tasks]
        sizes = sizes / np.sqrt(np.where(variance > 0, variance, 1.0))
        meaning += ", in standard deviations of the target"
    order = np.argsort(-np.abs(sizes), kind="stable")[: LIMITS.worst]
    notes = []
    for cell in order:
        text = f"observed {outcomes.values[cell]:.4g}, predicted {outcomes.predicted[cell]:.4g}".replace(" -", " −")
        notes.append(f"{outcomes.task_names[outcomes.tasks[cell]]}: {text}" if outcomes.several else text)
    title = "The largest differences between predicted and observed, the worst first"
    return Worst(title, pool.places(outcomes.rows[order]), tuple(notes), sizes[order], meaning)


def regression_of(outcomes: Outcomes) -> Regression | None:
    """Return predicted and observed numbers, thinned evenly over the sorted observations."""
    if outcomes.predicted is None or outcomes.kind != "numbers":
        return None
    order = np.lexsort((outcomes.values, outcomes.tasks))
    n = len(order)
    kept = order[np.unique(np.linspace(0, n - 1, min(n, LIMITS.points)).round().astype(int))]
    return Regression(
        tasks=outcomes.tasks[kept] if outcomes.several else np.zeros(len(kept), dtype=np.int64),
        task_names=tuple(outcomes.task_names) if outcomes.several else (),
        observed=outcomes.values[kept],
        predicted=outcomes.predicted[kept],
        n_all=n,
    )


def tasks_of(outcomes: Outcomes, output_scores: Floats | None) -> Tasks | None:
    """Return the scores and relations of the tasks, or None for a single task.

    Parameters
    ----------
    output_scores : (rows, tasks)
        Scores predicted from the features, whose correlations are the relations. None if a task has several outputs.
    """
    n_tasks, ragged = len(outcomes.task_names), outcomes.layout == "ragged"
    if n_tasks < 2:
        return None
    counts = np.bincount(outcomes.tasks, minlength=n_tasks)
    shown, relations = np.zeros(0, dtype=np.int64), np.zeros((0, 0))
    if output_scores is not None and output_scores.shape[1] == n_tasks:
        kept = np.sort(np.argsort(-counts, kind="stable")[: LIMITS.related_tasks])
        relations = correlations(output_scores[:, kept], centered=ragged)
        order = related_order(relations)
        shown, relations = kept[order].astype(np.int64), relations[np.ix_(order, order)]
    name = "correlation over the samples between the scores of two tasks"
    name += ", minus the score of the average task" if ragged else ""
    columns = {"targets": counts.astype(np.float64), **_task_scores(outcomes)}
    table = np.stack(list(columns.values()), axis=1)
    return Tasks(tuple(outcomes.task_names), tuple(columns), table, name, relations, shown)


def _task_scores(outcomes: Outcomes) -> dict[str, Floats]:
    """Return the scores of each task by their names."""
    predicted = outcomes.predicted
    if outcomes.kind == "numbers":
        found = {"mean": outcomes.by_task(outcomes.values)}
        if predicted is not None:
            squared = outcomes.by_task((outcomes.values - predicted) ** 2)
            found["R²"] = 1.0 - _ratio(squared, outcomes.by_task(outcomes.within_tasks**2))
            found["RMSE"] = np.sqrt(squared)
        return found
    if predicted is None:
        return {}
    accuracy = {"accuracy": outcomes.by_task(outcomes.values == predicted)}
    if any(len(labels) != 2 for labels in outcomes.class_names):
        return accuracy
    what = "yes" if outcomes.layout == "matrix" else outcomes.class_names[0][1]
    hits, actual, said = outcomes.positives()
    scores = {"precision": _ratio(hits, said), "recall": _ratio(hits, actual), "F1": _f1_by_task(outcomes)}
    return {f"share of {what}": outcomes.by_task(outcomes.values == 1), **accuracy, **scores}
