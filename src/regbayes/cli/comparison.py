"""Comparison of a model with baselines on the cross-validation folds of the search.

Each system has one score, computed on the held-out rows of all folds together. Differences are paired by row.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.dummy import DummyClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from regbayes._types import Integers
from regbayes.cli import interrupts
from regbayes.cli.context import FitContext
from regbayes.cli.errors import listed, plural
from regbayes.cli.inputs import TOKEN
from regbayes.cli.targets import is_observed, observed_rows, shown_label

PATIENCE_SECONDS = 30.0  # minimum time limit of a baseline, for short searches


@dataclass(frozen=True, eq=False)
class System:
    """A baseline: an estimator, its inputs and its size."""

    role: str  # "baseline", "linear", "boosting", "interpretable" or "predictive"
    name: str
    X: Any  # inputs of the estimator
    estimator: Any
    unit: str  # unit of the size
    count: Callable[[Any], int]  # returns the size of a fitted estimator
    is_joint: bool = False  # whether all targets are fitted together


def compare(
    context: FitContext,
    model: dict[str, Any],
    rows: Sequence[Integers],
    predictions: Sequence[NDArray[Any]],
    *,
    estimator: Any,
    n_settings: int,
    with_baselines: bool,
) -> dict[str, Any]:
    """Compare a model with baselines; docs/command_line.md lists the returned keys.

    An iLSVM is also compared with its other setting, interpretable or predictive. The time limit of a baseline is
    the larger of the seconds of the search and `PATIENCE_SECONDS`.

    Parameters
    ----------
    model : dict
        The role, name, size and seconds of the model.
    rows, predictions : sequence of arrays
        The held-out rows of each fold, and their predictions by the model.
    """
    table, interrupted, own = [model], False, np.concatenate(predictions)
    found: list[NDArray[Any] | None] = [own]
    systems = [*_constants(context), *(_baselines(context, estimator) if with_baselines else ())]
    if with_baselines:
        context.output.say(f"to compare with: {', '.join(one.name for one in systems)}, on the same folds")
    for system in systems:
        patience = max(PATIENCE_SECONDS, model["seconds"])
        judged, interrupted = interrupts.run_stoppable(partial(_judge, system, context, rows, patience))
        if judged is None or interrupted:  # an interrupted fit does not show how good an iLSVM is
            context.output.warn("the comparison with baselines was interrupted")
            break
        table.append(judged[0])
        found.append(judged[1])
    everywhere, ends = np.concatenate(rows), np.cumsum([len(test) for test in rows])
    n_groups = min(20, len(everywhere) // 2)  # groups of the jackknife for standard errors of differences
    group = np.argsort(np.argsort(everywhere, kind="stable")) % max(n_groups, 1)
    parts = [part for part in (group != i for i in range(n_groups)) if observed_rows(context.y[everywhere[part]]).any()]

    def difference(one: NDArray[Any], other: NDArray[Any]) -> tuple[float, float]:
        """Return the score difference of two predictions and its standard error."""

        def gain(kept: Any) -> float:
            return context.score(one[kept], everywhere[kept]) - context.score(other[kept], everywhere[kept])

        gains = np.array([gain(part) for part in parts]) if n_groups > 1 else np.zeros(1)
        return gain(slice(None)), float(np.sqrt(np.sum((gains - gains.mean()) ** 2) * (1 - 1 / max(n_groups, 1))))

    constants = [one for one, row in zip(found, table, strict=True) if row["role"] == "baseline" and one is not None]
    better = []
    for one, row in zip(found, table, strict=True):
        row |= dict.fromkeys(("score", "std", "difference", "error"))
        if one is None:
            continue
        by_fold = [context.score(*pair) for pair in zip(np.split(one, ends[:-1]), rows, strict=True)]
        row["score"], row["std"] = context.score(one, everywhere), float(np.std(by_fold))
        row["difference"], row["error"] = difference(one, own)
        clear = row["difference"] >= max(2 * row["error"], 0.01)  # two standard errors and one point
        if clear and row["role"] in ("linear", "boosting"):
            above = [difference(one, constant) for constant in constants]
            better += [row["name"]] if all(gain > error for gain, error in above) else []
    against = [row for row in table if row["role"] == "baseline" and row["score"] is not None]
    result = {
        "metric": context.metric,
        "folds": len(rows),
        "best_of": n_settings,
        "systems": table,
        "no_better_than_baseline": any(row["difference"] >= -row["error"] for row in against),
        "outperformed_by": better,
        "never_predicted": _never_predicted(context, everywhere, own),
        "interrupted": interrupted,
    }
    return {**result, "messages": _messages(result, context)}


def _never_predicted(context: FitContext, rows: Integers, predicted: NDArray[Any]) -> list[str]:
    """Return the classes that are never predicted for held-out rows, with their target if there are several."""
    found: list[str] = []
    columns = zip(context.spec.names, context.targets[rows].T, predicted.reshape(len(rows), -1).T, strict=True)
    for name, truth, answers in columns if context.kind != "regressor" else ():
        classes = {shown_label(label) for label in truth[is_observed(truth)].tolist()}
        missed = sorted(classes - {shown_label(label) for label in answers.tolist()})
        found += missed if context.y.ndim == 1 else [f"{name}={label}" for label in missed]
    return found


def _messages(found: dict[str, Any], context: FitContext) -> list[str]:
    """Return messages about the comparison, the most important first."""
    model, messages = found["systems"][0], []
    constants = [row for row in found["systems"] if row["role"] == "baseline" and row["score"] is not None]
    if found["no_better_than_baseline"]:
        best = max(constants, key=lambda row: row["score"])
        messages.append(
            f"This model is no better than a baseline: on held-out rows it has {model['score']:.3f}, and "
            f"{best['name']} {best['score']:.3f} (a difference of {-best['difference']:+.3f} ± {best['error']:.3f})."
        )
    better = [row for row in found["systems"] if row["name"] in found["outperformed_by"]]
    if better:
        best = max(better, key=lambda row: row["score"])
        messages.append(
            f"{best['name'][0].upper()}{best['name'][1:]} predicts clearly better ({best['score']:.3f} against "
            f"{model['score']:.3f}): take it, unless you need the features."
        )
    if found["never_predicted"]:
        balanced = context.request.balanced or context.kind != "classifier"
        remedy = "" if balanced else " --balanced lets rare classes count more."
        messages.append(f"Never predicted on held-out rows: {listed(found['never_predicted'], 6)}.{remedy}")
    if found["best_of"] > 1:
        messages.append(
            f"The model's score is the best of {found['best_of']} settings on these folds, and so slightly optimistic."
        )
    return messages


# --- systems to compare


def _constants(context: FitContext) -> Iterator[System]:
    """Yield the constant baseline and, with tasks, one constant per task (a tree that splits by task)."""
    from sklearn.dummy import DummyRegressor
    from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

    numbers = context.kind == "regressor"
    name, noun = ("always the mean", "number") if numbers else ("always the most frequent class", "class")
    constant = DummyRegressor() if numbers else DummyClassifier(strategy="most_frequent")
    yield System("baseline", name, np.zeros((len(context.y), 1)), constant, noun, lambda _: 1)
    if context.task is not None:
        by_task = (DecisionTreeRegressor if numbers else DecisionTreeClassifier)(random_state=0)
        X = context.task[:, None] == np.unique(context.task)
        yield System("baseline", f"{name} of its task", X, by_task, noun, lambda _: X.shape[1])


def _baselines(context: FitContext, estimator: Any) -> Iterator[System]:
    """Yield a linear model, boosted trees for dense inputs, and an iLSVM with its other setting."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from sklearn.linear_model import LogisticRegression, RidgeCV

    from regbayes import ILSVMClassifier, ILSVMRegressor

    numbers, weight = context.kind == "regressor", "balanced" if context.request.balanced else None
    seed, X = context.request.seed, context.X
    if context.of_documents:
        yield _linear_on_words(context, weight)
        return
    if context.task is not None:  # the baselines take indicators of the tasks as inputs
        X = np.column_stack([X, context.task[:, None] == np.unique(context.task)])
    if numbers:
        name, linear = "ridge regression", RidgeCV(np.logspace(-2, 4, 7))
        boosted: Any = HistGradientBoostingRegressor(random_state=seed)
    else:
        name, linear = "logistic regression", LogisticRegression(max_iter=1000, class_weight=weight)
        boosted = HistGradientBoostingClassifier(random_state=seed, class_weight=weight)
    yield System("linear", name, X, make_pipeline(StandardScaler(), linear), "input", lambda _: X.shape[1])
    trees = "histogram gradient boosting"
    yield System("boosting", trees, X, boosted, "tree", lambda fit: fit.n_iter_ * fit.n_trees_per_iteration_)
    if isinstance(estimator, ILSVMClassifier | ILSVMRegressor):
        role, slab = ("interpretable", "half-normal") if estimator.slab is None else ("predictive", None)
        other = clone(estimator).set_params(slab=slab, C="auto", temperature="auto")
        name = f"{role} features (--slab {slab or 'none'})"
        yield System(role, name, X, other, "feature", lambda fit: fit.n_components_, True)


def _linear_on_words(context: FitContext, weight: str | None) -> System:
    """Return a linear model on tf-idf features of words, or of words and pairs, chosen inside the fold.

    Without text, tf-idf is computed from the word counts.
    """
    from sklearn.feature_extraction.text import TfidfTransformer, TfidfVectorizer
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import GridSearchCV
    from sklearn.svm import LinearSVC

    numbers = context.kind == "regressor"
    model = Ridge() if numbers else LinearSVC(class_weight=weight)
    name = f"{'ridge regression' if numbers else 'linear SVM'} on tf-idf of words"
    if context.table.counts is not None:
        counts = make_pipeline(TfidfTransformer(sublinear_tf=True), model)
        return System("linear", name, context.X, counts, "word", lambda fit: fit[0].idf_.size)
    pipeline = make_pipeline(TfidfVectorizer(sublinear_tf=True, token_pattern=TOKEN), model)
    search = GridSearchCV(pipeline, {"tfidfvectorizer__ngram_range": [(1, 1), (1, 2)]}, cv=3)
    return System("linear", name, context.texts, search, "word", lambda fit: fit.best_estimator_[0].idf_.size)


def _judge(
    system: System, context: FitContext, rows: Sequence[Integers], patience: float
) -> tuple[dict[str, Any], NDArray[Any] | None]:
    """Fit a system without each fold; return its facts, and its predictions unless it failed or took too long."""
    began, predictions, size, note = time.perf_counter(), [], 0, ""
    try:
        for test in rows:
            train, columns, size = np.setdiff1d(np.arange(len(context.y)), test), [], 0
            for y in (context.y,) if system.is_joint else context.targets.T:
                if time.perf_counter() - began > patience:
                    raise TimeoutError
                fit = _fit(system, context, y, train)
                columns.append(fit.predict(system.X[test]))
                size += 1 if isinstance(fit, DummyClassifier) else system.count(fit)
            same = len({column.dtype.kind for column in columns}) == 1  # stacking mixed types would yield text
            side_by_side = np.column_stack(columns if same else [column.astype(object) for column in columns])
            predictions.append(columns[0] if context.y.ndim == 1 or system.is_joint else side_by_side)
    except TimeoutError:
        note = f"left out: it takes longer than {patience:.0f} s"
    except Exception as error:  # a failing baseline must not end the command
        note = f"failed: {(str(error) or type(error).__name__).splitlines()[0]}"
    size, unit = (0, "") if note else (size, plural(size, system.unit))
    facts = {"role": system.role, "name": system.name, "size": size, "size_unit": unit}
    facts |= {"seconds": time.perf_counter() - began, "note": note}
    return facts, None if note else np.concatenate(predictions)


def _fit(system: System, context: FitContext, y: NDArray[Any], train: Integers) -> Any:
    """Fit a system to one target, using the rows where it is observed."""
    rows = train[observed_rows(y[train])]
    y, numbers = y[rows], context.kind == "regressor"
    if not numbers and y.dtype == object:
        y = y.astype(str) if all(isinstance(label, str) for label in y) else y.astype(np.float64)
    constant = not numbers and not system.is_joint and len(np.unique(y)) == 1
    model = DummyClassifier() if constant else clone(system.estimator)
    steps = getattr(getattr(model, "estimator", model), "steps", None)
    where = "sample_weight" if steps is None else f"{steps[-1][0]}__sample_weight"
    weights = {} if context.weights is None else {where: context.weights[rows]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the warnings concern only the baselines
        return model.fit(system.X[rows], y, **weights)
