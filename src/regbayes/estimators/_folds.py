"""Folds in which samples without a target stay in training, and every task is seen."""

from __future__ import annotations

from collections.abc import Iterator
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regbayes._types import Integers
from regbayes.estimators._search import Fold
from regbayes.estimators._task_bases import Targets


def split_rows(cv: Any, rows: Integers, y: NDArray[Any]) -> Iterator[Fold]:
    """Yield folds of some rows by a splitter; folds from an iterable are restricted to these rows."""
    if hasattr(cv, "split"):
        for train, test in cv.split(np.zeros(len(rows)), y[rows]):
            yield rows[train], rows[test]
        return
    for train, test in cv:
        yield rows[np.isin(rows, train)], rows[np.isin(rows, test)]


def multitask_folds(
    cv: Any, n_rows: int, targets: Targets, kinds: Integers, random: np.random.RandomState
) -> Iterator[Fold]:
    """Yield folds of the samples with targets, whose training parts have all ``kinds``.

    ``kinds`` are the task or class of each target. A sample that is needed to represent one stays in training. A number
    of folds gives random ones, stratified by kind if there is one target per sample.
    """
    rows, first = np.unique(targets.rows, return_index=True)
    rest = np.setdiff1d(np.arange(n_rows), rows)
    strata = np.zeros(n_rows, dtype=np.int64)
    if len(rows) == len(targets.rows):
        strata[rows] = kinds[first]
    if cv is None or isinstance(cv, Integral):
        cv = _random_folds(5 if cv is None else int(cv), rows, strata[rows], random)
    for train, test in split_rows(cv, rows, strata):
        in_test = np.zeros(n_rows, dtype=bool)
        in_test[test] = True
        target_in_test = in_test[targets.rows]
        seen = np.isin(kinds, kinds[~target_in_test & np.isin(targets.rows, train)])
        in_test[targets.rows[target_in_test & ~seen]] = False
        kept = test[in_test[test]]
        if len(kept) == 0:
            raise ValueError("A fold of `cv` has no sample to score: each is needed in training to represent its task.")
        needed = np.setdiff1d(test, kept)
        yield np.sort(np.concatenate([train, needed, rest])), kept


def _random_folds(n_folds: int, rows: Integers, strata: Integers, random: np.random.RandomState) -> Iterator[Fold]:
    """Yield random folds, stratified by ``strata``."""
    n = len(rows)
    if not 2 <= n_folds <= n:
        raise ValueError(
            f"`cv` must be between 2 and the number of samples with a target, n_samples={n}; got {n_folds}."
        )
    shuffled = random.permutation(n)
    in_order = shuffled[np.argsort(strata[shuffled], kind="stable")]
    fold = np.empty(n, dtype=np.int64)
    fold[in_order] = np.arange(n) % n_folds
    for i in range(n_folds):
        yield rows[fold != i], rows[fold == i]
