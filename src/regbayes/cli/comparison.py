"""Comparison with baselines, which are fitted to the folds of the search.

Every system is judged by the held-out rows of all folds together: one score for all of them. Differences are paired,
row by row.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from regbayes._types import Integers
from regbayes.cli import interrupts
from regbayes.cli.context import FitContext
from regbayes.cli.errors import listed, plural
from regbayes.cli.targets import observed_rows, shown_label
from regbayes.cli.words import TOKEN

__all__ = ["Judged", "System", "compare"]

GROUPS = 20  # of rows, each left out in turn: how far a difference would move with other rows
CLEARLY = 2.0  # standard errors
POINT = 0.01  # of a score: what a clear difference is at least
RIDGES = np.logspace(-2, 4, 7)
PATIENCE_SECONDS = 30.0  # that a baseline may take however short the search was

Fold = tuple[Integers, Integers]  # rows to fit, rows to judge by


@dataclass(frozen=True, eq=False)
class Judged:
    """Predictions of one system for the held-out rows of the folds."""

    role: str  # "model", "baseline", "linear", "boosting", "interpretable" or "predictive"
    name: str
    rows: Sequence[Integers]  # of each fold
    predictions: Sequence[NDArray[Any]]  # of each fold
    seconds: float
    size: int = 0  # features, inputs, words or trees
    size_unit: str = ""
    note: str = ""  # why it was not judged on every fold

    def pooled(self, context: FitContext) -> float:
        """Return the score of all held-out rows together."""
        return context.score(np.concatenate(self.predictions), np.concatenate(self.rows))


@dataclass(frozen=True, eq=False)
class System:
    """A system to compare with: an estimator, and how large it is."""

    role: str
    name: str
    X: Any  # its inputs
    make: Callable[[], Any]
    count: Callable[[Sequence[Any]], tuple[int, str]]  # of the fits to one fold, one for each target


def compare(
    context: FitContext, model: Judged, *, estimator: Any, n_settings: int, with_baselines: bool, patience: float
) -> dict[str, Any]:
    """Judge baselines on the folds of a model, and say what follows for it.

    Parameters
    ----------
    context : FitContext
    model : Judged
        The chosen setting on its folds.
    estimator : estimator
        The fitted model: an iLSVM is compared with its other setting, interpretable or predictive.
    n_settings : int
        How many were tried on the folds.
    with_baselines : bool
        Whether to fit others than constants.
    patience : float
        Seconds that the search took; a baseline that takes longer, and more than `PATIENCE_SECONDS`, is left out.

    Returns
    -------
    dict
        Plain values, as docs/command_line.md lists them.
    """
    folds = [(np.setdiff1d(np.arange(len(context.y)), rows), rows) for rows in model.rows]
    systems = [*_constants(context), *(_baselines(context, estimator) if with_baselines else ())]
    judged, interrupted = [model], False
    if with_baselines:
        context.output.say(f"to compare with: {', '.join(one.name for one in systems)}, on the same folds")
    for system in systems:
        one, interrupted = interrupts.run_stoppable(
            lambda system=system: _judge(system, context, folds, max(PATIENCE_SECONDS, patience))  # type: ignore[misc]
        )
        if one is None or interrupted:  # an iLSVM that a signal ended early would be judged by a poor fit
            context.output.warn("the comparison with baselines was interrupted")
            break
        judged.append(one)
    table = [_row(one, model, context) for one in judged]
    constants = [one for one in judged if one.role == "baseline" and one.rows]
    found = {
        "metric": context.metric,
        "folds": len(folds),
        "best_of": n_settings,
        "systems": table,
        "no_better_than_baseline": any(
            row["difference"] >= -row["error"]
            for row in table
            if row["role"] == "baseline" and row["difference"] is not None
        ),
        "outperformed_by": [
            one.name
            for one, row in zip(judged, table, strict=True)
            if one.role in ("linear", "boosting") and _clearly_better(row) and _is_useful(one, constants, context)
        ],
        "never_predicted": _never_predicted(context, model),
        "interrupted": interrupted,
    }
    return {**found, "messages": _messages(found, context)}


def _row(one: Judged, model: Judged, context: FitContext) -> dict[str, Any]:
    row: dict[str, Any] = {"role": one.role, "name": one.name}
    if len(one.rows) < len(model.rows):
        row |= dict.fromkeys(("score", "std", "difference", "error"))
    else:
        by_fold = [context.score(found, rows) for found, rows in zip(one.predictions, one.rows, strict=True)]
        difference, error = _compare_pairs(context, one, model)
        row |= {"score": one.pooled(context), "std": float(np.std(by_fold)), "difference": difference, "error": error}
    return row | {"size": one.size, "size_unit": one.size_unit, "seconds": one.seconds, "note": one.note}


def _compare_pairs(context: FitContext, one: Judged, model: Judged) -> tuple[float, float]:
    """Return how much better a system is than the model, and the standard error: groups of rows left out in turn."""
    rows = np.concatenate(model.rows)
    of_model, of_one = np.concatenate(model.predictions), np.concatenate(one.predictions)

    def difference(kept: Any) -> float:
        return context.score(of_one[kept], rows[kept]) - context.score(of_model[kept], rows[kept])

    n = min(GROUPS, len(rows) // 2)
    found = difference(slice(None))
    if one is model or n < 2:
        return found, 0.0
    group = np.argsort(np.argsort(rows, kind="stable")) % n
    kept = [group != i for i in range(n)]
    left_out = np.array([difference(some) for some in kept if observed_rows(context.y[rows[some]]).any()])
    return found, float(np.sqrt((n - 1) / n * np.sum((left_out - left_out.mean()) ** 2)))


def _clearly_better(row: dict[str, Any]) -> bool:
    return row["difference"] is not None and row["difference"] >= max(CLEARLY * row["error"], POINT)


def _is_useful(one: Judged, constants: Sequence[Judged], context: FitContext) -> bool:
    """Return whether a system is better than all constants by more than a standard error."""
    differences = [_compare_pairs(context, constant, one) for constant in constants]
    return all(difference < -error for difference, error in differences)


def _never_predicted(context: FitContext, model: Judged) -> list[str]:
    """Return the classes of held-out rows that are never predicted; with the target, if of several."""
    if context.kind == "regressor":
        return []
    rows, predicted = np.concatenate(model.rows), np.concatenate(model.predictions)
    found = []
    for j, truth in enumerate(context.targets[rows].T):
        column = predicted if predicted.ndim == 1 else predicted[:, j]
        classes = {shown_label(label) for label in truth[observed_rows(truth)].tolist()}
        silent = sorted(classes - {shown_label(label) for label in column.tolist()})
        found += silent if context.y.ndim == 1 else [f"{context.spec.names[j]}={label}" for label in silent]
    return found


def _messages(found: dict[str, Any], context: FitContext) -> list[str]:
    """Return what a user should know, the most important first."""
    model, said = found["systems"][0], []
    constants = [row for row in found["systems"] if row["role"] == "baseline" and row["score"] is not None]
    doubtful = [row for row in constants if row["difference"] > -CLEARLY * row["error"]]
    if doubtful:
        best = max(doubtful, key=lambda row: row["score"])
        how = "no better than a baseline" if found["no_better_than_baseline"] else "hardly better than a baseline"
        said.append(
            f"This model is {how}: on held-out rows it has {model['score']:.3f}, and {best['name']} "
            f"{best['score']:.3f} (a difference of {-best['difference']:+.3f} ± {best['error']:.3f})."
        )
    better = [row for row in found["systems"] if row["name"] in found["outperformed_by"]]
    if better:
        best = max(better, key=lambda row: row["score"])
        said.append(
            f"{best['name'][0].upper()}{best['name'][1:]} predicts clearly better ({best['score']:.3f} against "
            f"{model['score']:.3f}): take it, unless you need the features."
        )
    if found["never_predicted"]:
        balanced = context.request.balanced or context.kind != "classifier"
        remedy = "" if balanced else " --balanced lets rare classes count more."
        said.append(f"Never predicted on held-out rows: {listed(found['never_predicted'], 6)}.{remedy}")
    if found["best_of"] > 1:
        said.append(
            f"The model's score is the best of {found['best_of']} settings on these folds, and so slightly optimistic."
        )
    return said


# --- the systems


def _constants(context: FitContext) -> Iterator[System]:
    """Yield one prediction for all rows, and one for each task: a tree that splits by tasks alone."""
    from sklearn.dummy import DummyClassifier, DummyRegressor
    from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

    numbers = context.kind == "regressor"
    name = "always the mean" if numbers else "always the most frequent class"
    noun = "number" if numbers else "class"
    constant = DummyRegressor() if numbers else DummyClassifier(strategy="most_frequent")
    by_task = (DecisionTreeRegressor if numbers else DecisionTreeClassifier)(random_state=0)
    n = context.targets.shape[1]
    yield System(
        "baseline", name, np.zeros((len(context.y), 1)), lambda: clone(constant), lambda _: (n, plural(n, noun))
    )
    if context.task is not None:
        X = context.task[:, None] == np.unique(context.task)
        size = X.shape[1], plural(X.shape[1], noun)
        yield System("baseline", f"{name} of its task", X, lambda: clone(by_task), lambda _: size)


def _baselines(context: FitContext, estimator: Any) -> Iterator[System]:
    """Yield a linear model, boosted trees where inputs are dense, and an iLSVM with its other setting."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from sklearn.linear_model import LogisticRegression, RidgeCV

    from regbayes import ILSVMClassifier

    numbers, weight = context.kind == "regressor", "balanced" if context.request.balanced else None
    seed, X = context.request.seed, context.X
    if context.of_documents:
        yield _linear_on_words(context, weight)
        return
    if context.task is not None:  # tasks are further inputs
        X = np.column_stack([X, context.task[:, None] == np.unique(context.task)])

    def linear() -> Any:
        model = RidgeCV(RIDGES) if numbers else LogisticRegression(max_iter=1000, class_weight=weight)
        return make_pipeline(StandardScaler(), model)

    def boosted() -> Any:
        if numbers:
            return HistGradientBoostingRegressor(random_state=seed)
        return HistGradientBoostingClassifier(random_state=seed, class_weight=weight)

    name, n = "ridge regression" if numbers else "logistic regression", X.shape[1]
    yield System("linear", name, X, linear, lambda _: (n, plural(n, "input")))
    yield System("boosting", "histogram gradient boosting", X, boosted, _count_trees)
    if isinstance(estimator, ILSVMClassifier):
        role, slab = ("interpretable", "half-normal") if estimator.slab is None else ("predictive", None)
        other = clone(estimator).set_params(slab=slab, C="auto", temperature="auto")
        how = "--slab half-normal" if slab else "without --slab"
        yield System(role, f"{role} features ({how})", X, lambda: clone(other), _count_features)


def _linear_on_words(context: FitContext, weight: str | None) -> System:
    """Return a linear model on tf-idf of all words, and of pairs of words if these are better inside the fold.

    Where there are counts and no text, it has tf-idf of the counts.
    """
    from sklearn.feature_extraction.text import TfidfTransformer, TfidfVectorizer
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import GridSearchCV
    from sklearn.svm import LinearSVC

    numbers = context.kind == "regressor"
    counts_only = context.table.counts is not None
    documents = context.X if counts_only else np.array(context.texts, dtype=object)

    def make() -> Any:
        model = Ridge() if numbers else LinearSVC(class_weight=weight)
        if counts_only:
            return make_pipeline(TfidfTransformer(sublinear_tf=True), model)
        pipeline = make_pipeline(TfidfVectorizer(sublinear_tf=True, token_pattern=TOKEN), model)
        return GridSearchCV(pipeline, {"tfidfvectorizer__ngram_range": [(1, 1), (1, 2)]}, cv=3)

    def count(fits: Sequence[Any]) -> tuple[int, str]:
        pipeline = getattr(fits[0], "best_estimator_", fits[0])
        n = pipeline[0].idf_.size
        return n, plural(n, "word")

    name = f"{'ridge regression' if numbers else 'linear SVM'} on tf-idf of words"
    return System("linear", name, documents, make, count)


def _count_trees(fits: Sequence[Any]) -> tuple[int, str]:
    n = sum(fit.n_iter_ * fit.n_trees_per_iteration_ for fit in fits if hasattr(fit, "n_iter_"))
    return n, plural(n, "tree")


def _count_features(fits: Sequence[Any]) -> tuple[int, str]:
    n = sum(getattr(fit, "n_components_", 0) for fit in fits)
    return n, plural(n, "feature")


def _judge(system: System, context: FitContext, folds: Sequence[Fold], patience: float) -> Judged:
    """Fit a system on every fold, target by target; give up where it fails or would take too long."""
    n_targets = context.targets.shape[1]
    predictions: list[NDArray[Any]] = []
    fits: list[Any] = []
    began = time.perf_counter()
    try:
        for fold, (train, test) in enumerate(folds):
            columns, fits = [], []
            for j in range(n_targets):
                fits.append(_fit(system, context, j, train))
                columns.append(fits[-1].predict(system.X[test]))
                done, spent = fold * n_targets + j + 1, time.perf_counter() - began
                if spent > patience and done < len(folds) * n_targets:
                    note = f"left out: it takes longer than {patience:.0f} s"
                    return Judged(system.role, system.name, (), (), spent, note=note)
            predictions.append(columns[0] if context.y.ndim == 1 else _side_by_side(columns))
    except Exception as error:  # a baseline that fails must not cost the user the model
        reason = f"failed: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
        return Judged(system.role, system.name, (), (), time.perf_counter() - began, note=reason)
    seconds = time.perf_counter() - began
    return Judged(system.role, system.name, [test for _, test in folds], predictions, seconds, *system.count(fits))


def _side_by_side(columns: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Put columns together without turning numbers into text."""
    same = len({column.dtype.kind for column in columns}) == 1
    return np.column_stack(columns if same else [column.astype(object) for column in columns])


def _fit(system: System, context: FitContext, j: int, train: Integers) -> Any:
    """Fit a system to one target on the rows that have it."""
    from sklearn.dummy import DummyClassifier

    y = context.targets[train, j]
    seen = observed_rows(y)
    rows, y = train[seen], y[seen]
    if context.kind != "regressor" and y.dtype == object:
        y = y.astype(str) if all(isinstance(label, str) for label in y) else y.astype(np.float64)
    model = system.make()
    if context.kind != "regressor" and len(np.unique(y)) == 1:
        model = DummyClassifier()
    steps = getattr(getattr(model, "estimator", model), "steps", None)
    where = "sample_weight" if steps is None else f"{steps[-1][0]}__sample_weight"
    weights = {} if context.weights is None else {where: context.weights[rows]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are about the baselines
        return model.fit(system.X[rows], y, **weights)
