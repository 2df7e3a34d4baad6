"""Comparison with baselines, which are fitted to the folds of the search.

Every system is judged by the rows that a fold left out, all folds together: one score for all of them, which does not
hang on single folds as their mean does. Differences are paired, row by row.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from regbayes._types import Floats, Integers
from regbayes.cli import Kind
from regbayes.cli.errors import listed, plural
from regbayes.cli.scores import score_of
from regbayes.cli.targets import observed_rows, shown_label

__all__ = ["Judged", "Problem", "compare", "pooled_score"]

GROUPS = 20  # of rows, each left out in turn: how far a difference would move with other rows
CLEARLY = 2.0  # standard errors
RIDGES = np.logspace(-2, 4, 7)
PATIENCE = 30.0  # seconds that a plain system may take whatever the search took

Fold = tuple[Integers, Integers]  # rows to fit, rows to judge by


@dataclass(frozen=True)
class Problem:
    """What the model was fitted to, for other systems."""

    X: Any  # inputs, or counts of words
    y: NDArray[Any]  # (n,) or (n, targets), with holes
    kind: Kind
    names: Sequence[str]  # of the targets
    task: NDArray[Any] | None = None
    weights: Floats | None = None  # (n,): how often each row counts
    balanced: bool = False
    seed: int = 0

    @property
    def targets(self) -> NDArray[Any]:
        """The targets as columns."""
        return self.y[:, None] if self.y.ndim == 1 else self.y

    def score(self, predicted: NDArray[Any], rows: Integers) -> float:
        """Return the score of what was predicted for some rows, in their order."""
        weights = None if self.weights is None else self.weights[rows]
        return score_of(self.kind, self.y[rows], predicted, balanced=self.balanced, weights=weights)


@dataclass(frozen=True)
class Judged:
    """What the fits of one system on the folds said of the rows that they had not seen."""

    role: str  # "model", "baseline", "linear" or "boosting"
    name: str
    rows: Sequence[Integers]  # of each fold
    predictions: Sequence[NDArray[Any]]  # of each fold
    seconds: float
    size: int = 0  # features, inputs, words or trees that a reader would look at
    size_unit: str = ""  # their name, in the plural unless there is one
    note: str = ""  # why it was not judged on every fold


@dataclass(frozen=True)
class System:
    """A plain system: an estimator for one target, and how large it is."""

    role: str
    name: str
    X: Any  # what it sees of the rows
    make: Callable[[], Any]
    count: Callable[[Sequence[Any]], tuple[int, str]]  # of the fits to one fold, one for each target


def pooled_score(problem: Problem, judged: Judged) -> float:
    """Return the score of all left-out rows together."""
    return problem.score(np.concatenate(judged.predictions), np.concatenate(judged.rows))


def compare(
    problem: Problem, model: Judged, *, n_settings: int, with_peers: bool, patience: float, say: Callable[[str], None]
) -> dict[str, Any]:
    """Judge plain systems on the folds of a model, and say what follows for it.

    Parameters
    ----------
    problem : Problem
    model : Judged
        The chosen setting on its folds.
    n_settings : int
        How many were tried on them.
    with_peers : bool
        Whether to fit others than constants.
    patience : float
        Seconds that the search took; a plain system is given up when it would take longer, and more than `PATIENCE`.
    say : callable
        Hears what is being fitted.

    Returns
    -------
    dict
        Plain values, as docs/command_line.md lists them.
    """
    folds = [(np.setdiff1d(np.arange(len(problem.y)), rows), rows) for rows in model.rows]
    systems = [*_constants(problem), *(_peers(problem) if with_peers else ())]
    judged, interrupted = [model], False
    if with_peers:
        say(f"to compare with: {', '.join(one.name for one in systems)}, on the same folds")
    for system in systems:
        try:
            judged.append(_judge(system, problem, folds, max(PATIENCE, patience)))
        except KeyboardInterrupt:
            interrupted = True
            break
        except Exception as error:  # a plain system that fails must not cost the user the model
            reason = f"failed: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
            judged.append(Judged(system.role, system.name, (), (), 0.0, note=reason))
    table = [_row(one, model, problem) for one in judged]
    constants = [one for one in judged if one.role == "baseline" and one.rows]
    found = {
        "folds": len(folds),
        "best_of": n_settings,
        "systems": table,
        "no_better_than_baseline": _no_better(table),
        "outperformed_by": [
            one.name
            for one, row in zip(judged, table, strict=True)
            if one.role in ("linear", "boosting") and _clearly_better(row) and _beats(one, constants, problem)
        ],
        "never_predicted": never_predicted(problem, model),
        "interrupted": interrupted,
    }
    return {**found, "messages": _messages(found, problem)}


def _row(one: Judged, model: Judged, problem: Problem) -> dict[str, Any]:
    row: dict[str, Any] = {"role": one.role, "name": one.name}
    if len(one.rows) < len(model.rows):
        row |= dict.fromkeys(("score", "std", "difference", "error"))
    else:
        by_fold = [problem.score(found, rows) for found, rows in zip(one.predictions, one.rows, strict=True)]
        difference, error = _compare_pairs(problem, one, model)
        row |= {"score": pooled_score(problem, one), "std": float(np.std(by_fold))}
        row |= {"difference": difference, "error": error}
    return row | {"size": one.size, "size_unit": one.size_unit, "seconds": one.seconds, "note": one.note}


def _compare_pairs(problem: Problem, one: Judged, model: Judged) -> tuple[float, float]:
    """Return how much better a system is than the model, and the standard error: groups of rows left out in turn."""
    rows = np.concatenate(model.rows)
    mine, theirs = np.concatenate(model.predictions), np.concatenate(one.predictions)

    def difference(kept: Any) -> float:
        return problem.score(theirs[kept], rows[kept]) - problem.score(mine[kept], rows[kept])

    n = min(GROUPS, len(rows) // 2)
    found = difference(slice(None))
    if one is model or n < 2:
        return found, 0.0
    group = np.argsort(np.argsort(rows, kind="stable")) % n
    left_out = np.array([difference(group != i) for i in range(n) if _has_targets(problem.y[rows[group != i]])])
    return found, float(np.sqrt((n - 1) / n * np.sum((left_out - left_out.mean()) ** 2)))


def _has_targets(y: NDArray[Any]) -> bool:
    return bool(observed_rows(y).any())


def _no_better(table: Sequence[dict[str, Any]]) -> bool:
    """Whether some constant is as good as the model, to within a standard error of the difference."""
    constants = [row for row in table if row["role"] == "baseline" and row["difference"] is not None]
    return any(row["difference"] >= -row["error"] for row in constants)


def _clearly_better(row: dict[str, Any]) -> bool:
    return row["difference"] is not None and row["difference"] > max(CLEARLY * row["error"], 1e-9)


def _beats(one: Judged, constants: Sequence[Judged], problem: Problem) -> bool:
    """Whether a system is better than all constants by more than a standard error, as a model must be to be of use."""
    differences = [_compare_pairs(problem, constant, one) for constant in constants]
    return all(difference < -error for difference, error in differences)


def never_predicted(problem: Problem, model: Judged) -> list[str]:
    """Return the classes that no left-out row was given, though some are of them; with the target, if of several."""
    if problem.kind == "regressor":
        return []
    rows, answers = np.concatenate(model.rows), np.concatenate(model.predictions)
    found = []
    for j, truth in enumerate(problem.targets[rows].T):
        given = answers if answers.ndim == 1 else answers[:, j]
        seen = observed_rows(truth)
        classes = {shown_label(label) for label in truth[seen].tolist()}
        silent = sorted(classes - {shown_label(label) for label in given.tolist()})
        found += silent if problem.y.ndim == 1 else [f"{problem.names[j]}={label}" for label in silent]
    return found


def _messages(found: dict[str, Any], problem: Problem) -> list[str]:
    """Return what a user should know, the most important first."""
    model, said = found["systems"][0], []
    constants = [row for row in found["systems"] if row["role"] == "baseline" and row["score"] is not None]
    if found["no_better_than_baseline"]:
        best = max(constants, key=lambda row: row["score"])
        said.append(
            f"This model is no better than a baseline: on held-out rows, {best['name']} is as good "
            f"({model['score']:.3f} against {best['score']:.3f}, a difference of {-best['difference']:+.3f} ± "
            f"{best['error']:.3f})."
        )
    elif constants and (doubtful := [row for row in constants if row["difference"] > -CLEARLY * row["error"]]):
        best = max(doubtful, key=lambda row: row["score"])
        said.append(
            f"The model is hardly better than {best['name']}: {-best['difference']:+.3f} ± {best['error']:.3f} on rows "
            "that it had not seen."
        )
    better = [row for row in found["systems"] if row["name"] in found["outperformed_by"]]
    if better:
        best = max(better, key=lambda row: row["score"])
        others = f", and so does {better[0]['name']}" if len(better) > 1 and better[0] is not best else ""
        said.append(
            f"{best['name'][0].upper()}{best['name'][1:]} predicts clearly better ({best['score']:.3f} against "
            f"{model['score']:.3f}){others}: take it, unless you need the features."
        )
    if found["never_predicted"]:
        some = len(found["never_predicted"]) > 1
        rare = "" if problem.balanced or problem.kind != "classifier" else " --balanced lets rare classes count more."
        what = "Some classes are" if some else "One class is"
        said.append(f"{what} never predicted on held-out rows: {listed(found['never_predicted'], 6)}.{rare}")
    if found["best_of"] > 1:
        said.append(
            f"The model's score is the best of {found['best_of']} settings on these folds, and so slightly optimistic."
        )
    return said


# --- the systems


def _constants(problem: Problem) -> Iterator[System]:
    """Yield one answer for all rows, and one for each task."""
    from sklearn.dummy import DummyClassifier, DummyRegressor

    numbers = problem.kind == "regressor"
    name = "always the mean" if numbers else "always the most frequent class"
    noun = "number" if numbers else "class"

    def make() -> Any:
        return DummyRegressor() if numbers else DummyClassifier(strategy="most_frequent")

    n = problem.targets.shape[1]
    yield System("baseline", name, np.zeros((len(problem.y), 1)), make, lambda _: (n, plural(n, noun)))
    if problem.task is not None:
        tasks, codes = np.unique(problem.task, return_inverse=True)
        looks = len(tasks), plural(len(tasks), noun)
        yield System("baseline", f"{name} of its task", codes.reshape(-1, 1), lambda: _ByTask(make), lambda _: looks)


def _peers(problem: Problem) -> Iterator[System]:
    """Yield a linear model, and boosted trees where inputs are dense; tasks are further inputs."""
    numbers, weight = problem.kind == "regressor", "balanced" if problem.balanced else None
    if issparse(problem.X):
        n = problem.X.shape[1]
        name = f"{'ridge regression' if numbers else 'linear SVM'} on tf-idf of words"
        yield System("linear", name, problem.X, lambda: _tfidf(numbers, weight), lambda _: (n, plural(n, "word")))
        return
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from sklearn.linear_model import LogisticRegression, RidgeCV

    X = problem.X
    if problem.task is not None:
        X = np.column_stack([X, problem.task[:, None] == np.unique(problem.task)])

    def linear() -> Any:
        model = RidgeCV(RIDGES) if numbers else LogisticRegression(max_iter=1000, class_weight=weight)
        return _scaled(model)

    def boosted() -> Any:
        if numbers:
            return HistGradientBoostingRegressor(random_state=problem.seed)
        return HistGradientBoostingClassifier(random_state=problem.seed, class_weight=weight)

    name = "ridge regression" if numbers else "logistic regression"
    yield System("linear", name, X, linear, lambda _: (X.shape[1], plural(X.shape[1], "input")))
    yield System("boosting", "histogram gradient boosting", X, boosted, _count_trees)


def _count_trees(fits: Sequence[Any]) -> tuple[int, str]:
    n = sum(fit.n_iter_ * fit.n_trees_per_iteration_ for fit in fits if hasattr(fit, "n_iter_"))
    return n, plural(n, "tree")


def _scaled(model: Any) -> Any:
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), model)


def _tfidf(numbers: bool, weight: str | None) -> Any:
    from sklearn.feature_extraction.text import TfidfTransformer
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.svm import LinearSVC

    return make_pipeline(TfidfTransformer(sublinear_tf=True), Ridge() if numbers else LinearSVC(class_weight=weight))


class _ByTask:
    """A constant for each task, whose number is what X holds; one for all where a task is new."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make

    def fit(self, X: Any, y: NDArray[Any], sample_weight: Floats | None = None) -> _ByTask:
        """Learn the constants."""

        def constant(rows: Any) -> Any:
            weights = None if sample_weight is None else sample_weight[rows]
            return self.make().fit(X[rows], y[rows], sample_weight=weights).predict(X[:1])[0]

        self.constants = {task: constant(X[:, 0] == task) for task in np.unique(X).tolist()}
        self.shared = constant(slice(None))
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the constant of each row's task."""
        return np.array([self.constants.get(task, self.shared) for task in X[:, 0].tolist()])


def _judge(system: System, problem: Problem, folds: Sequence[Fold], patience: float) -> Judged:
    """Fit a system on every fold, target by target; give it up when it would take too long."""
    n_targets = problem.targets.shape[1]
    predictions: list[NDArray[Any]] = []
    fits: list[Any] = []
    began = time.perf_counter()
    for fold, (train, test) in enumerate(folds):
        columns, fits = [], []
        for j in range(n_targets):
            model = _fit(system, problem, j, train)
            fits.append(model)
            columns.append(model.predict(system.X[test]))
            done, spent = fold * n_targets + j + 1, time.perf_counter() - began
            if spent / done * len(folds) * n_targets > patience and done < len(folds) * n_targets:
                note = f"given up: it would take longer than {patience:.0f} s"
                return Judged(system.role, system.name, (), (), spent, note=note)
        predictions.append(columns[0] if problem.y.ndim == 1 else _side_by_side(columns))
    seconds = time.perf_counter() - began
    return Judged(system.role, system.name, [test for _, test in folds], predictions, seconds, *system.count(fits))


def _side_by_side(columns: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Put columns together; text beside numbers stays text beside numbers."""
    same = len({column.dtype.kind for column in columns}) == 1
    return np.column_stack(columns if same else [column.astype(object) for column in columns])


def _fit(system: System, problem: Problem, j: int, train: Integers) -> Any:
    """Fit a system to one target on the rows that have it."""
    from sklearn.dummy import DummyClassifier

    y = problem.targets[train, j]
    seen = observed_rows(y)
    rows, y = train[seen], y[seen]
    if problem.kind != "regressor" and y.dtype == object:
        y = y.astype(str) if all(isinstance(label, str) for label in y) else y.astype(np.float64)
    weights = None if problem.weights is None else problem.weights[rows]
    model = system.make()
    if problem.kind != "regressor" and len(np.unique(y)) == 1:
        model = DummyClassifier()
    where = f"{model.steps[-1][0]}__sample_weight" if hasattr(model, "steps") else "sample_weight"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are about the systems compared with
        return model.fit(system.X[rows], y, **({} if weights is None else {where: weights}))
