"""Comparison of predictions with shuffled targets and reference scores."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def fits_its_rows(predicted: Any, targets: Any, task: Any = None, n_shuffles: int = 199) -> bool:
    """Return whether predictions agree with the targets in a permutation test.

    Predictions must agree better with the targets than with each of the random permutations (within tasks, if given).
    Predictions that are independent of the targets pass with probability at most ``1 / (n_shuffles + 1)``.

    Parameters
    ----------
    predicted, targets : (rows,) or (rows, tasks)
        Agreement is the squared error for numbers and accuracy otherwise. NaN and None are missing targets.
    task : (rows,), optional
    """
    predicted, targets = np.asarray(predicted), np.asarray(targets)
    groups = np.zeros(len(targets), dtype=int) if task is None else np.unique(task, return_inverse=True)[1]
    rng = np.random.default_rng(0)
    best = max(_agreement(predicted, targets[_shuffled(groups, rng)]) for _ in range(n_shuffles))
    return bool(_agreement(predicted, targets) > best)


def is_nearer_to(knowing: float, constant: float, found: float) -> bool:
    """Return whether a score is closer to the oracle's than to the baseline's."""
    assert knowing > constant
    return knowing - found < found - constant


def _shuffled(groups: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Return a random permutation of the samples within groups."""
    order = np.arange(len(groups))
    for group in np.unique(groups):
        mine = np.flatnonzero(groups == group)
        order[mine] = rng.permutation(mine)
    return order


def _agreement(predicted: NDArray[Any], targets: NDArray[Any]) -> float:
    if targets.dtype.kind == "f" and predicted.dtype.kind == "f":
        return -float(np.nanmean((predicted - targets) ** 2))
    known = np.array([value is not None and value == value for value in targets.ravel()])  # NaN is not equal to itself
    return float(np.mean((predicted.ravel() == targets.ravel())[known]))
