"""Folds: rows without a target are in every training part, and none leaves a task unseen."""

from __future__ import annotations

from collections.abc import Iterator
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import check_cv

from regbayes._types import Flags, Floats, Integers
from regbayes.estimators._search import Fold
from regbayes.estimators._tasks import Targets

DEFAULT_FOLDS = 5


def split_scored(splitter: Any, y: NDArray[Any], scored: Flags) -> Iterator[Fold]:
    """Yield the folds of a splitter over the rows that can be scored; the others are in every training part."""
    rows, rest = np.flatnonzero(scored), np.flatnonzero(~scored)
    for train, test in splitter.split(np.zeros(len(rows)), y[rows]):
        yield np.sort(np.concatenate([rows[train], rest])), rows[test]


def multitask_folds(
    cv: Any, X: Floats, targets: Targets, kinds: Integers, random: np.random.RandomState
) -> Iterator[Fold]:
    """Yield folds over the rows with targets; rows that some kind of target cannot do without stay in training.

    Parameters
    ----------
    kinds : (n,)
        What must be seen in every training part, for each observed target: its task, or the class of its task.
    """
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
