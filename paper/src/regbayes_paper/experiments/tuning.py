"""Choosing settings inside the training part, and one score on the test part: the same for every system.

Each setting gets predictions of the training rows by models that were not fitted to them; whatever is chosen (settings,
thresholds) is chosen on those. The test part is looked at once, by the models chosen.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score, f1_score
from sklearn.model_selection import KFold, StratifiedKFold

from regbayes.estimators._bases import InterruptedWarning, one_blas_thread
from regbayes.estimators.thresholds import draw_resamples, find_threshold
from regbayes.metrics import explained_variance_pooled, explained_variance_within_tasks, task_accuracy
from regbayes_paper.experiments.data import Sample
from regbayes_paper.experiments.measure import measured
from regbayes_paper.experiments.protocol import Measurement
from regbayes_paper.experiments.registry import Context, System

Outputs = NDArray[Any]


@dataclass(frozen=True)
class Task:
    """A kind of problem: what models put out, what is chosen by, and what is reported."""

    outputs: Callable[[Any, Sample], Outputs]
    choose_by: Callable[[Sample, Outputs], float]
    report: Callable[[Sample, Outputs], dict[str, float]]


def fit(estimator: Any, sample: Sample) -> Any:
    """Fit to a sample, with the tasks of the rows if it has them.

    What the fit warns of is not shown, except that Ctrl-C, which our models answer with what they have and a warning,
    is Ctrl-C again: a model that is half done must not be scored.
    """
    arguments = (sample.X, sample.y) if sample.task is None else (sample.X, sample.y, sample.task)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", InterruptedWarning)
        try:
            return estimator.fit(*arguments)
        except InterruptedWarning:
            raise KeyboardInterrupt from None


def predict(estimator: Any, sample: Sample) -> Outputs:
    """Predict the rows of a sample."""
    known = (sample.X,) if sample.task is None else (sample.X, sample.task)
    return np.asarray(estimator.predict(*known))


def _multiway_report(sample: Sample, predicted: Outputs) -> dict[str, float]:
    f1 = f1_score(sample.y, predicted, average="macro", zero_division=0)
    return {"accuracy": float(accuracy_score(sample.y, predicted)), "f1": float(f1)}


def _ragged_report(sample: Sample, predicted: Outputs) -> dict[str, float]:
    return {
        "pooled": explained_variance_pooled(sample.y, predicted, sample.task),
        "within": explained_variance_within_tasks(sample.y, predicted, sample.task),
    }


def _label_report(sample: Sample, scores: Outputs) -> dict[str, float]:
    predicted = (scores > 0).astype(int)
    return {
        "accuracy": task_accuracy(sample.y, predicted),
        "f1_micro": float(f1_score(sample.y, predicted, average="micro", zero_division=0)),
        "f1_macro": float(f1_score(sample.y, predicted, average="macro", zero_division=0)),
    }


def label_scores(estimator: Any, sample: Sample) -> Outputs:
    """Return a score for every label, above zero for yes."""
    if hasattr(estimator, "decision_function"):
        return np.asarray(estimator.decision_function(sample.X)).reshape(len(sample), -1)
    columns = []
    for shares, classes in zip(estimator.predict_proba(sample.X), estimator.classes_, strict=True):
        yes = np.flatnonzero(np.asarray(classes) == 1)
        columns.append(shares[:, yes[0]] if len(yes) else np.zeros(len(sample)))
    return np.stack(columns, axis=1) - 0.5


MULTIWAY = Task(predict, lambda s, out: float(accuracy_score(s.y, out)), _multiway_report)
RAGGED = Task(predict, lambda s, out: explained_variance_pooled(s.y, out, s.task), _ragged_report)
LABELS = Task(label_scores, lambda s, out: task_accuracy(s.y, (out > 0).astype(int)), _label_report)


def folds(sample: Sample, n_folds: int, seed: int) -> list[tuple[Any, Any]]:
    """Random folds that divide every task, or every class, evenly."""
    kinds = sample.task if sample.task is not None else sample.y
    if kinds.ndim == 2:
        return list(KFold(n_folds, shuffle=True, random_state=seed).split(sample.X))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a class or task smaller than the number of folds
        return list(StratifiedKFold(n_folds, shuffle=True, random_state=seed).split(sample.X, kinds))


def out_of_fold(make: Callable[[], Any], sample: Sample, parts: Sequence[tuple[Any, Any]], task: Task) -> Outputs:
    """Return outputs for every row by a model that was fitted without it."""
    found: Outputs | None = None
    for train, test in parts:
        part = task.outputs(fit(make(), sample.rows(train)), sample.rows(test))
        if found is None:
            found = np.zeros((len(sample), *part.shape[1:]), dtype=part.dtype)
        found[test] = part
    assert found is not None
    return found


def evaluate(
    system: System, train: Sample, test: Sample, context: Context, task: Task, *, quick: bool, n_folds: int
) -> Measurement:
    """Choose among a system's settings by cross-validation in the training part, refit, and score the test part once.

    Labels are scored at the default threshold and, in ``f1_micro_cut`` and ``f1_macro_cut``, with one threshold for all
    labels or one for each; these, and the settings that go with them, come from the same out-of-fold scores.
    """
    settings = system.settings(quick)
    makers = [_maker(system, context, s) for s in settings]
    with one_blas_thread(), measured(memory=True) as whole:
        with measured() as search:
            parts = folds(train, n_folds, context.seed)
            need_outputs = len(settings) > 1 or task is LABELS
            held_out = [out_of_fold(make, train, parts, task) for make in makers] if need_outputs else []
            best = int(np.argmax([task.choose_by(train, out) for out in held_out])) if held_out else 0
        with measured() as final:
            model = fit(makers[best](), train)
        outputs = task.outputs(model, test)
        values = task.report(test, outputs) | features_in_use(model)
        if task is LABELS:
            values |= _with_thresholds(makers, held_out, train, test, {best: outputs})
    return Measurement(values, final.seconds, search.seconds, whole.memory_mb, dict(settings[best]))


def _maker(system: System, context: Context, settings: Any) -> Callable[[], Any]:
    return lambda: system.estimator(context, settings)


def _with_thresholds(
    makers: Sequence[Callable[[], Any]],
    held_out: Sequence[Outputs],
    train: Sample,
    test: Sample,
    known: dict[int, Outputs],
) -> dict[str, float]:
    """Score with thresholds: settings that are best out of fold for the same score, thresholds that are on average."""
    values = {}
    exact, resamples = (draw_resamples(len(train.y), n, np.random.RandomState(0)) for n in (0, 50))
    for key, shared, average in (("f1_micro_cut", True, "micro"), ("f1_macro_cut", False, "macro")):
        cuts = [_thresholds(scores, train.y == 1, exact, shared=shared) for scores in held_out]
        best = int(np.argmax([_f1(train, *pair, average) for pair in zip(held_out, cuts, strict=True)]))
        if best not in known:
            known[best] = label_scores(fit(makers[best](), train), test)
        thresholds = _thresholds(held_out[best], train.y == 1, resamples, shared=shared)
        values[key] = _f1(test, known[best], thresholds, average)
    return values


def _thresholds(scores: Outputs, positive: Outputs, resamples: Sequence[Outputs], *, shared: bool) -> Outputs:
    """Return the threshold of each label, or one for all, of complete (n, labels) scores."""
    rows = np.broadcast_to(np.arange(len(scores))[:, None], scores.shape)
    if shared:
        return np.array([find_threshold(scores.ravel(), positive.ravel(), rows.ravel(), resamples)])
    return np.array([find_threshold(*label, resamples) for label in zip(scores.T, positive.T, rows.T, strict=True)])


def _f1(sample: Sample, scores: Outputs, cuts: Outputs, average: str) -> float:
    return float(f1_score(sample.y, (scores > cuts).astype(int), average=average, zero_division=0))


def features_in_use(model: Any) -> dict[str, float]:
    """Return how many latent features a model uses, if it says so."""
    steps = [step for _, step in getattr(model, "steps", [])] or [model]
    counts = [float(step.n_components_) for step in steps if hasattr(step, "n_components_")]
    return {"features": counts[0]} if counts else {}
