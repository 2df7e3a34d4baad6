"""How right the model is: scores, what is confused with what, each task, the worst rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from regbayes._types import Floats, Integers
from regbayes.plots.models import correlations, related_order
from regbayes.report._examples import ExamplePool
from regbayes.report._targets import Outcomes
from regbayes.report.data import Confusion, Regression, Tasks, Worst

Score = tuple[str, float, str]

N_WORST = 12
N_PAIRS = 8
N_PAIR_EXAMPLES = 4
MAX_POINTS = 1500  # of predicted against observed
MAX_RELATED = 120  # tasks whose relations are shown


def scores_of(outcomes: Outcomes) -> list[Score]:
    """Return the scores of the predictions; none if nothing was predicted."""
    if outcomes.predicted is None:
        return []
    if outcomes.kind == "numbers":
        return _number_scores(outcomes, outcomes.predicted)
    right = outcomes.values == outcomes.predicted
    if outcomes.pooled_classes:
        counts = _counts(outcomes.values, outcomes.predicted, len(outcomes.class_names[0]))
        f1 = _f1(np.diag(counts), counts.sum(axis=1), counts.sum(axis=0))[counts.sum(axis=1) > 0].mean()
        return [
            ("accuracy", float(right.mean()), "share of rows whose class is predicted"),
            ("class-average F1", float(f1), "mean over classes of the harmonic mean of precision and recall"),
            ("largest class", float(counts.sum(axis=1).max() / counts.sum()), "accuracy of always naming that class"),
        ]
    found: list[Score] = [("label accuracy", float(right.mean()), "share of all observed labels that are predicted")]
    if all(len(names) == 2 for names in outcomes.class_names):
        hits, actual, said = _positives(outcomes, outcomes.predicted)
        found += [
            ("F1-micro", float(_f1(hits.sum(), actual.sum(), said.sum())), "F1 of all labels counted together"),
            ("F1-macro", float(_f1(hits, actual, said).mean()), "mean over labels of the F1 of each"),
        ]
    return found


def _number_scores(outcomes: Outcomes, predicted: Floats) -> list[Score]:
    residual = outcomes.values - predicted
    pooled = outcomes.values - outcomes.values.mean()
    if outcomes.layout == "matrix" and len(outcomes.task_names) > 1:  # targets of different units
        names, columns = _task_columns(outcomes)
        shares = columns[:, names.index("R²")]
        return [("R²", float(np.nanmean(shares)), "share of a target's variance that is explained, mean over targets")]
    found = [("R²", _explain_variance(residual, pooled), "share of the targets' variance that is explained")]
    if len(outcomes.task_names) > 1:
        meaning = "share of the variance around each task's own mean that is explained"
        found.append(("R² within tasks", _explain_variance(residual, outcomes.values - _task_means(outcomes)), meaning))
    found.append(("RMSE", float(np.sqrt(np.mean(residual**2))), "root mean squared error, in units of the target"))
    return found


def _explain_variance(residual: Floats, spread: Floats) -> float:
    total = float(np.sum(spread**2))
    return 1.0 - float(np.sum(residual**2)) / total if total > 0 else float("nan")


def _task_means(outcomes: Outcomes) -> Floats:
    """Return the mean target of each target's task, (n,)."""
    return _by_task(outcomes.values, outcomes)[outcomes.tasks]


def _by_task(values: NDArray[Any], outcomes: Outcomes) -> Floats:
    """Return means over the targets of each task, (tasks,); NaN for a task without any."""
    n_tasks = len(outcomes.task_names)
    n = np.bincount(outcomes.tasks, minlength=n_tasks)
    sums = np.bincount(outcomes.tasks, weights=values.astype(np.float64), minlength=n_tasks)
    return np.divide(sums, n, out=np.full(n_tasks, np.nan), where=n > 0)


def _counts(truth: Integers, predicted: Integers, n_classes: int) -> Integers:
    flat = np.bincount(truth * n_classes + predicted, minlength=n_classes**2)
    return flat.reshape(n_classes, n_classes).astype(np.int64)


def _f1(hits: Any, actual: Any, said: Any) -> Any:
    both = np.asarray(actual + said, dtype=np.float64)
    return np.divide(2.0 * hits, both, out=np.zeros_like(both), where=both > 0)


def _positives(outcomes: Outcomes, predicted: NDArray[Any]) -> tuple[Floats, Floats, Floats]:
    """Return by task how many labels are there and predicted, there, and predicted."""
    truth, said = outcomes.values == 1, predicted == 1
    n = len(outcomes.task_names)
    hits, actual, claimed = (
        np.bincount(outcomes.tasks[flags], minlength=n).astype(np.float64) for flags in (truth & said, truth, said)
    )
    return hits, actual, claimed


def confusion_of(outcomes: Outcomes, pool: ExamplePool, margins: Floats | None = None) -> Confusion | None:
    """Count what each class is taken for; None where there is more than one question, or no prediction.

    Examples of a pair are the worst by their margins, or the first.
    """
    if outcomes.predicted is None or not outcomes.pooled_classes:
        return None
    n_classes = len(outcomes.class_names[0])
    counts = _counts(outcomes.values, outcomes.predicted, n_classes)
    wrong = counts - np.diag(np.diag(counts))
    order = np.argsort(-wrong, axis=None, kind="stable")[:N_PAIRS]
    pairs = [divmod(int(place), n_classes) for place in order if wrong.flat[place] > 0]
    examples = []
    for truth, answer in pairs:
        cells = np.flatnonzero((outcomes.values == truth) & (outcomes.predicted == answer))
        if margins is not None:
            cells = cells[np.argsort(margins[cells], kind="stable")]
        examples.append(tuple(pool.places(outcomes.rows[cells[:N_PAIR_EXAMPLES]]).tolist()))
    return Confusion(
        classes=tuple(outcomes.class_names[0]),
        counts=counts,
        pairs=np.array(pairs, dtype=np.int64).reshape(-1, 2),
        pair_examples=tuple(examples),
    )


def class_margins(scores: Any, outcomes: Outcomes) -> Floats | None:
    """Return by how much the right answer of each target beats the best other one; None if scores do not say.

    Parameters
    ----------
    scores : array or list of arrays
        What `decision_function` returned.
    """
    margins = np.full(len(outcomes.rows), np.nan)
    blocks = scores if isinstance(scores, list) else None
    for task in np.unique(outcomes.tasks):
        mine = np.flatnonzero(outcomes.tasks == task)
        rows, codes = outcomes.rows[mine], outcomes.values[mine]
        if blocks is not None:
            block = np.asarray(blocks[task])
        elif outcomes.layout == "matrix" and np.ndim(scores) == 2:
            block = np.asarray(scores)[:, task]
        else:
            block = np.asarray(scores)
        n_classes = len(outcomes.class_names[task])
        if block.ndim == 1 and n_classes == 2:
            margins[mine] = np.where(codes == 1, 1.0, -1.0) * block[rows]
        elif block.ndim == 2 and block.shape[1] == n_classes:
            own = block[rows, codes]
            others = block[rows].copy()
            others[np.arange(len(rows)), codes] = -np.inf
            margins[mine] = own - others.max(axis=1)
        else:
            return None
    return margins


def worst_labels(outcomes: Outcomes, margins: Floats | None, pool: ExamplePool, *, own: bool) -> Worst | None:
    """Return the wrong answers that the model is most sure of; without margins, the first ones.

    `own` margins are those of the fits that predicted; otherwise they are of the final fit, which has seen the rows.
    """
    if outcomes.predicted is None:
        return None
    wrong = np.flatnonzero(outcomes.values != outcomes.predicted)
    title = f"{min(N_WORST, len(wrong))} of the {len(wrong)} wrong answers"
    if margins is not None:
        wrong = wrong[np.argsort(margins[wrong], kind="stable")]
        title = "The wrong answers that the model is most sure of, the worst first"
        if not own:
            title = "Wrong answers of cross-validation, those first that the final fit is furthest from getting right"
    wrong = wrong[:N_WORST]
    notes = tuple(_mistake(cell, outcomes, outcomes.predicted) for cell in wrong)
    places = pool.places(outcomes.rows[wrong])
    if margins is None:
        return Worst(title, places, notes)
    meaning = "margin: the score of the right answer less that of the best other one"
    return Worst(title, places, notes, margins[wrong], meaning)


def _mistake(cell: int, outcomes: Outcomes, predicted: NDArray[Any]) -> str:
    labels = outcomes.class_names[outcomes.tasks[cell]]
    text = f"is {labels[outcomes.values[cell]]}, taken for {labels[predicted[cell]]}"
    if outcomes.layout != "matrix":
        return text
    task = outcomes.task_names[outcomes.tasks[cell]]
    if len(labels) > 2:
        return f"{task}: {text}"
    return f"misses {task}" if outcomes.values[cell] == 1 else f"adds {task}"


def worst_numbers(outcomes: Outcomes, pool: ExamplePool) -> Worst | None:
    """Return the largest residuals, in units of the deviation of the task's targets."""
    if outcomes.predicted is None:
        return None
    residual = outcomes.values - outcomes.predicted
    unit = np.ones(len(residual))
    if outcomes.layout == "matrix":
        variance = _by_task((outcomes.values - _task_means(outcomes)) ** 2, outcomes)[outcomes.tasks]
        unit = np.sqrt(np.where(variance > 0, variance, 1.0))
    order = np.argsort(-np.abs(residual / unit), kind="stable")[:N_WORST]
    notes = []
    for cell in order:
        text = f"observed {outcomes.values[cell]:.4g}, predicted {outcomes.predicted[cell]:.4g}".replace(" -", " −")
        several = outcomes.layout == "matrix" and len(outcomes.task_names) > 1
        notes.append(f"{outcomes.task_names[outcomes.tasks[cell]]}: {text}" if several else text)
    title = "The largest differences between predicted and observed, the worst first"
    meaning = "difference: predicted less observed"
    meaning += ", in standard deviations of the target" if outcomes.layout == "matrix" else ""
    return Worst(title, pool.places(outcomes.rows[order]), tuple(notes), -(residual / unit)[order], meaning)


def regression_of(outcomes: Outcomes) -> Regression | None:
    """Return predicted and observed numbers, evenly thinned over the range of the observed ones."""
    if outcomes.predicted is None or outcomes.kind != "numbers":
        return None
    order = np.lexsort((outcomes.values, outcomes.tasks))
    n = len(order)
    kept = order[np.unique(np.linspace(0, n - 1, min(n, MAX_POINTS)).round().astype(int))]
    several = outcomes.layout == "matrix" and len(outcomes.task_names) > 1
    return Regression(
        tasks=outcomes.tasks[kept] if several else np.zeros(len(kept), dtype=np.int64),
        task_names=tuple(outcomes.task_names) if several else (),
        observed=outcomes.values[kept],
        predicted=outcomes.predicted[kept],
        n_all=n,
    )


def tasks_of(outcomes: Outcomes, output_scores: Floats | None) -> Tasks | None:
    """Return the scores of each task and their relations; None for a single task.

    Parameters
    ----------
    output_scores : (rows, tasks)
        What the features say about every row for every task; their correlations are the relations. None where
        a task has more than one output.
    """
    if len(outcomes.task_names) < 2:
        return None
    names, columns = _task_columns(outcomes)
    shown = np.zeros(0, dtype=np.int64)
    relations = np.zeros((0, 0))
    if output_scores is not None and output_scores.shape[1] == len(outcomes.task_names):
        counts = np.bincount(outcomes.tasks, minlength=len(outcomes.task_names))
        kept = np.sort(np.argsort(-counts, kind="stable")[:MAX_RELATED])
        relations = correlations(output_scores[:, kept], centered=outcomes.layout == "ragged")
        order = related_order(relations)
        shown, relations = kept[order].astype(np.int64), relations[np.ix_(order, order)]
    name = "correlation over the samples between the scores of two tasks"
    name += ", minus the score of the average task" if outcomes.layout == "ragged" else ""
    return Tasks(tuple(outcomes.task_names), tuple(names), columns, name, relations, shown)


def _task_columns(outcomes: Outcomes) -> tuple[list[str], Floats]:
    """Return counts and scores of each task: names of the columns, and the columns, (tasks, columns)."""
    columns = {"targets": np.bincount(outcomes.tasks, minlength=len(outcomes.task_names)).astype(np.float64)}
    if outcomes.kind == "numbers":
        columns["mean"] = _by_task(outcomes.values, outcomes)
        if outcomes.predicted is not None:
            squared = _by_task((outcomes.values - outcomes.predicted) ** 2, outcomes)
            variance = _by_task((outcomes.values - _task_means(outcomes)) ** 2, outcomes)
            columns |= {"R²": 1.0 - _ratio(squared, variance), "RMSE": np.sqrt(squared)}
    elif outcomes.predicted is not None:
        accuracy = _by_task(outcomes.values == outcomes.predicted, outcomes)
        if all(len(labels) == 2 for labels in outcomes.class_names):
            what = "yes" if outcomes.layout == "matrix" else outcomes.class_names[0][1]
            hits, actual, said = _positives(outcomes, outcomes.predicted)
            columns |= {f"share of {what}": _by_task(outcomes.values == 1, outcomes), "accuracy": accuracy}
            columns |= {"precision": _ratio(hits, said), "recall": _ratio(hits, actual), "F1": _f1(hits, actual, said)}
        else:
            columns["accuracy"] = accuracy
    return list(columns), np.stack(list(columns.values()), axis=1)


def _ratio(part: Floats, whole: Floats) -> Floats:
    return np.divide(part, whole, out=np.full(len(whole), np.nan), where=whole > 0)
