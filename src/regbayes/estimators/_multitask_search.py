"""Cross-validation of multi-task estimators: folds that leave no task unseen, scorers that know the tasks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.metrics import check_scoring
from sklearn.model_selection import check_cv
from sklearn.utils import check_random_state

from regbayes._types import Floats, Integers
from regbayes.estimators._common import check_listed
from regbayes.estimators._search import Fold, Samples, candidate_paths, refit_best, score_paths
from regbayes.estimators._tasks import Targets

GRID = {  # parameter of the estimator -> the list of its values; C goes up along a path
    "temperature": "temperatures",
    "generative_weight": "generative_weights",
    "task_sharing": "task_sharings",
    "include_inputs": "include_inputs",
    "C": "Cs",
}
DEFAULT_FOLDS = 5


def search_multitask(owner: Any, base: Any, X: Floats, y: Any, task: Any, targets: Targets, kinds: Integers) -> None:
    """Choose among the owner's lists by cross-validation, and fit the best to all rows.

    Parameters
    ----------
    kinds : (n,)
        What must be seen in every training part, for each observed target: its task, or the class of its task.
    """
    for name, listed in GRID.items():
        check_listed(owner, listed, base._parameter_constraints[name])
    random = check_random_state(owner.random_state)
    base.set_params(random_state=random.randint(np.iinfo(np.int32).max))
    paths = candidate_paths({name: (listed, getattr(owner, listed)) for name, listed in GRID.items()})
    samples = Samples(X, np.asarray(y), {} if task is None else {"task": np.asarray(task)})
    folds = list(multitask_folds(owner.cv, X, targets, kinds, random))
    score = TaskScorer(None if owner.scoring is None else check_scoring(base, owner.scoring))
    n_columns = 1 if samples.y.ndim == 1 else samples.y.shape[1]
    if isinstance(owner.scoring, str) and len(targets.rows) < n_columns * len(np.unique(targets.rows)):
        raise ValueError(
            f"scoring={owner.scoring!r} cannot leave missing targets out; use None, or a callable that can"
        )
    scores = score_paths(owner, base, samples, folds, paths, score)
    refit_best(owner, base, samples, [candidate for path in paths for candidate in path], scores)
    if targets.layout == "matrix":
        owner.tasks_ = owner.best_estimator_.tasks_ = targets.ids


def multitask_folds(
    cv: Any, X: Floats, targets: Targets, kinds: Integers, random: np.random.RandomState
) -> Iterator[Fold]:
    """Yield folds over the rows with targets; rows that some kind of target cannot do without stay in training."""
    rows, first = np.unique(targets.rows, return_index=True)
    rest = np.setdiff1d(np.arange(len(X)), rows)
    strata = kinds[first] if len(rows) == len(targets.rows) else np.zeros(len(rows), dtype=np.int64)
    for train, test in _split(cv, X[rows], strata, random):
        in_test = np.zeros(len(X), dtype=bool)
        in_test[rows[test]] = True
        cell_in_test = in_test[targets.rows]
        seen = np.isin(kinds, kinds[~cell_in_test & np.isin(targets.rows, rows[train])])
        in_test[targets.rows[cell_in_test & ~seen]] = False
        kept = rows[test][in_test[rows[test]]]
        if len(kept) == 0:
            raise ValueError("cv leaves no row to score: every row of a fold is needed to see its task at all")
        needed = np.setdiff1d(rows[test], kept)
        yield np.sort(np.concatenate([rows[train], needed, rest])), kept


def _split(cv: Any, X: Floats, strata: Integers, random: np.random.RandomState) -> Iterator[Fold]:
    """Yield folds of positions: random and even over the strata, or those of a splitter."""
    if cv is not None and not isinstance(cv, Integral):
        yield from check_cv(cv).split(X, strata)
        return
    n_folds = DEFAULT_FOLDS if cv is None else int(cv)
    if not 2 <= n_folds <= len(X):
        raise ValueError(f"cv={n_folds} folds need that many rows with targets, and at least 2; there are {len(X)}")
    shuffled = random.permutation(len(X))
    in_order = shuffled[np.argsort(strata[shuffled], kind="stable")]
    fold = np.empty(len(X), dtype=np.int64)
    fold[in_order] = np.arange(len(X)) % n_folds
    for i in range(n_folds):
        yield np.flatnonzero(fold != i), np.flatnonzero(fold == i)


@dataclass(frozen=True)
class TaskScorer:
    """Calls a scikit-learn scorer with an estimator that knows the rows' tasks."""

    scorer: Any  # None is the estimator's own score

    def __call__(self, estimator: Any, X: Floats, y: NDArray[Any], task: NDArray[Any] | None = None) -> float:
        """Return the score."""
        if self.scorer is None:
            return float(estimator.score(X, y, task))
        return float(self.scorer(estimator if task is None else AtTasks(estimator, task), X, y))


class AtTasks(BaseEstimator):
    """A fitted estimator for rows whose tasks are known beforehand."""

    def __init__(self, estimator: Any, task: ArrayLike) -> None:
        self.estimator = estimator
        self.task = task

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Predict at the tasks."""
        return self.estimator.predict(X, self.task)

    def decision_function(self, X: ArrayLike) -> Floats:
        """Score at the tasks."""
        return self.estimator.decision_function(X, self.task)

    @property
    def classes_(self) -> NDArray[Any]:
        """The classes of the estimator."""
        return self.estimator.classes_

    def __sklearn_tags__(self) -> Any:
        return self.estimator.__sklearn_tags__()

    def __sklearn_is_fitted__(self) -> bool:
        return True
