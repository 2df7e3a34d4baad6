"""Cross-validation of settings on the training part, and evaluation on the test part."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from sklearn.metrics import accuracy_score, f1_score
from sklearn.model_selection import KFold, StratifiedKFold
from threadpoolctl import threadpool_limits

from regbayes.metrics import explained_variance_pooled, explained_variance_within_tasks, task_accuracy
from regbayes_paper.experiments.protocol import Cell, Context, Record, System
from regbayes_paper.experiments.samples import Sample


@dataclass(frozen=True)
class Kind:
    """A kind of problem: model outputs, selection criterion, and reported metrics."""

    outputs: Callable[[Any, Sample], Any]
    choose_by: Callable[[Sample, Any], float]
    report: Callable[[Sample, Any], dict[str, float]]


def fit(estimator: Any, sample: Sample) -> Any:
    """Fit without showing warnings; raise if Ctrl-C stopped the fit."""
    arguments = (sample.X, sample.y) if sample.task is None else (sample.X, sample.y, sample.task)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        estimator.fit(*arguments)
    if any(warning.category.__name__ == "InterruptedWarning" for warning in caught):
        raise KeyboardInterrupt
    return estimator


def predict(estimator: Any, sample: Sample) -> Any:
    """Predict the targets of a sample."""
    return np.asarray(estimator.predict(*((sample.X,) if sample.task is None else (sample.X, sample.task))))


def label_scores(estimator: Any, sample: Sample) -> Any:
    """Return a score for every label, positive for predicted labels."""
    if hasattr(estimator, "decision_function"):
        return np.asarray(estimator.decision_function(sample.X)).reshape(len(sample), -1)
    pairs = zip(estimator.predict_proba(sample.X), estimator.classes_, strict=True)
    return np.stack([shares @ (np.asarray(classes) == 1) for shares, classes in pairs], axis=1) - 0.5


def _multiway(sample: Sample, predicted: Any) -> dict[str, float]:
    f1 = f1_score(sample.y, predicted, average="macro", zero_division=0)
    return {"accuracy": float(accuracy_score(sample.y, predicted)), "f1": float(f1)}


def _ragged(sample: Sample, predicted: Any) -> dict[str, float]:
    parts = [sample.y[sample.task == one] for one in np.unique(sample.task)]
    unbiased = sum(len(part) ** 2 / max(len(part) - 1, 1) * float(np.var(part)) for part in parts)
    return {
        "within": explained_variance_within_tasks(sample.y, predicted, sample.task),
        "unbiased": 1.0 - float(np.sum((sample.y - predicted) ** 2)) / unbiased,
        "pooled": explained_variance_pooled(sample.y, predicted, sample.task),
    }


def _labels(sample: Sample, scores: Any) -> dict[str, float]:
    found = {"accuracy": task_accuracy(sample.y, (scores > 0).astype(int))}
    for average in ("micro", "macro"):
        found[f"f1_{average}"] = float(f1_score(sample.y, scores > 0, average=average, zero_division=0))
    return found


MULTIWAY = Kind(predict, lambda s, out: float(accuracy_score(s.y, out)), _multiway)
RAGGED = Kind(predict, lambda s, out: explained_variance_within_tasks(s.y, out, s.task), _ragged)
LABELS = Kind(label_scores, lambda s, out: task_accuracy(s.y, (out > 0).astype(int)), _labels)


def out_of_fold(make: Callable[[], Any], sample: Sample, n_folds: int, seed: int, kind: Kind) -> Any:
    """Return out-of-fold outputs, with folds stratified by task or class."""
    strata = sample.task if sample.task is not None else sample.y
    parts = (KFold if strata.ndim == 2 else StratifiedKFold)(n_folds, shuffle=True, random_state=seed)
    found: Any = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # classes or tasks with fewer samples than folds
        pairs = list(parts.split(sample.X, strata))
    for train, test in pairs:
        part = kind.outputs(fit(make(), sample.rows(train)), sample.rows(test))
        if found is None:
            found = np.zeros((len(sample), *part.shape[1:]), dtype=part.dtype)
        found[test] = part
    return found


def evaluate(
    cell: Cell,
    system: System,
    train: Sample,
    test: Sample,
    context: Context,
    kind: Kind,
    *,
    quick: bool = False,
    n_folds: int = 5,
) -> Record:
    """Choose a system's settings by cross-validation, refit, and score the test part once."""
    settings = system.settings(quick)

    def make(i: int) -> Any:
        return system.make(context, **settings[i])

    with threadpool_limits(1):
        started = time.process_time()
        if len(settings) > 1:
            tried = [out_of_fold(partial(make, i), train, n_folds, context.seed, kind) for i in range(len(settings))]
            best = int(np.argmax([kind.choose_by(train, out) for out in tried]))
        else:
            best = 0
        searched = time.process_time()
        model = fit(make(best), train)
        seconds = time.process_time() - searched
        values = kind.report(test, kind.outputs(model, test)) | features_in_use(model)
    return Record(cell, values, seconds, searched - started, dict(settings[best]))


def features_in_use(model: Any) -> dict[str, float]:
    """Return the number of latent features in use, if the model reports it."""
    steps = [step for _, step in getattr(model, "steps", [])] or [model]
    counts = [float(step.n_components_) for step in steps if hasattr(step, "n_components_")]
    return {"features": counts[0]} if counts else {}
