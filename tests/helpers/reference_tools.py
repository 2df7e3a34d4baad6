"""What predictions are compared with: answers handed out to other rows, a constant, and one who knows the truth."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def fits_its_rows(predicted: Any, targets: Any, task: Any = None, n_shuffles: int = 199) -> bool:
    """Whether predictions suit the targets of their rows better than those of other rows.

    The rows of the targets are shuffled, within each task where tasks are given, and the predictions must agree less
    with each shuffle than with the truth. Predictions that know nothing of the rows, a constant among them, pass once
    in ``n_shuffles + 1`` times at most.

    Parameters
    ----------
    predicted, targets : (rows,) or (rows, tasks)
        Numbers agree by their squared distance, anything else where they are the same. NaN and None are no targets.
    task : (rows,), optional
    """
    predicted, targets = np.asarray(predicted), np.asarray(targets)
    groups = np.zeros(len(targets), dtype=int) if task is None else np.unique(task, return_inverse=True)[1]
    rng = np.random.default_rng(0)
    best = max(_agreement(predicted, targets[_shuffled(groups, rng)]) for _ in range(n_shuffles))
    return bool(_agreement(predicted, targets) > best)


def is_nearer_to(knowing: float, constant: float, found: float) -> bool:
    """Whether a score is nearer to that of one who knows the truth than to that of a constant prediction."""
    assert knowing > constant
    return knowing - found < found - constant


def _shuffled(groups: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Return an order of the rows that exchanges only rows of one group."""
    order = np.arange(len(groups))
    for group in np.unique(groups):
        mine = np.flatnonzero(groups == group)
        order[mine] = rng.permutation(mine)
    return order


def _agreement(predicted: NDArray[Any], targets: NDArray[Any]) -> float:
    if targets.dtype.kind == "f" and predicted.dtype.kind == "f":
        return -float(np.nanmean((predicted - targets) ** 2))
    known = np.array([value is not None and value == value for value in targets.ravel()])  # NaN differs from itself
    return float(np.mean((predicted.ravel() == targets.ravel())[known]))
