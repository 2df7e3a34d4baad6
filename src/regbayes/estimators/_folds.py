"""Folds in which samples without a target stay in training, and every task is seen."""

from __future__ import annotations

from collections.abc import Iterator
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import check_cv

from regbayes._types import Flags, Floats, Integers
from regbayes.estimators._search import Fold
from regbayes.estimators._task_bases import Targets

DEFAULT_FOLDS = 5


def split_rows(cv: Any, rows: Integers, y: NDArray[Any], *, classifier: bool = False) -> Iterator[Fold]:
    """Yield folds of some rows; folds from an iterable are restricted to these rows."""
    if cv is None or isinstance(cv, Integral) or hasattr(cv, "split"):
        for train, test in check_cv(cv, y[rows], classifier=classifier).split(np.zeros(len(rows)), y[rows]):
            yield rows[train], rows[test]
        return
    for train, test in cv:
        yield rows[np.isin(rows, train)], rows[np.isin(rows, test)]


def split_scored(cv: Any, y: NDArray[Any], scored: Flags, *, classifier: bool = False) -> Iterator[Fold]:
    """Yield folds of the samples that can be scored; the others are in every training part."""
    rest = np.flatnonzero(~scored)
    for train, test in split_rows(cv, np.flatnonzero(scored), y, classifier=classifier):
        yield np.sort(np.concatenate([train, rest])), test


def multitask_folds(
    cv: Any, X: Floats, targets: Targets, kinds: Integers, random: np.random.RandomState
) -> Iterator[Fold]:
    """Yield folds of the samples with targets; samples needed to represent a task or class stay in training."""
    rows, first = np.unique(targets.rows, return_index=True)
    rest = np.setdiff1d(np.arange(len(X)), rows)
    strata = np.zeros(len(X), dtype=np.int64)
    if len(rows) == len(targets.rows):
        strata[rows] = kinds[first]
    own_folds = cv is None or isinstance(cv, Integral)
    found = _random_folds(cv, rows, strata[rows], random) if own_folds else split_rows(cv, rows, strata)
    for train, test in found:
        in_test = np.zeros(len(X), dtype=bool)
        in_test[test] = True
        target_in_test = in_test[targets.rows]
        seen = np.isin(kinds, kinds[~target_in_test & np.isin(targets.rows, train)])
        in_test[targets.rows[target_in_test & ~seen]] = False
        kept = test[in_test[test]]
        if len(kept) == 0:
            raise ValueError("cv leaves no row to score: every row of a fold is needed to see its task at all")
        needed = np.setdiff1d(test, kept)
        yield np.sort(np.concatenate([train, needed, rest])), kept


def _random_folds(
    n_folds: int | None, rows: Integers, strata: Integers, random: np.random.RandomState
) -> Iterator[Fold]:
    """Yield random folds, stratified by ``strata``."""
    n, n_folds = len(rows), DEFAULT_FOLDS if n_folds is None else int(n_folds)
    if not 2 <= n_folds <= n:
        raise ValueError(f"cv={n_folds} folds need that many rows with targets, and at least 2; there are {n}")
    shuffled = random.permutation(n)
    in_order = shuffled[np.argsort(strata[shuffled], kind="stable")]
    fold = np.empty(n, dtype=np.int64)
    fold[in_order] = np.arange(n) % n_folds
    for i in range(n_folds):
        yield rows[fold != i], rows[fold == i]
