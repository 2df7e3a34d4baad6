"""Classes of rows that have one label each: their codes, their weights, and the costs of wrong answers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import compute_class_weight
from sklearn.utils.validation import check_array

from regbayes._types import Floats, Integers
from regbayes.margins.targets import zero_one_cost


def coded_classes(estimator: Any, y: NDArray[Any]) -> tuple[NDArray[Any], Integers]:
    """Return the classes and the code of each label, having seen that there is something to tell apart."""
    classes, codes = np.unique(y, return_inverse=True)
    check_several(estimator, classes)
    return classes, codes.astype(np.int64)


def check_several(estimator: Any, classes: NDArray[Any]) -> None:
    """Refuse a single class."""
    if len(classes) < 2:
        raise ValueError(f"{type(estimator).__name__} needs labels of at least 2 classes, got {len(classes)} class(es)")


def weights_by_class(
    class_weight: Any, classes: NDArray[Any], codes: Integers, sample_weight: Floats | None = None
) -> Floats:
    """Return the factor of each class that scikit-learn's ``class_weight`` stands for; rows count as often as said."""
    found = compute_class_weight(class_weight, classes=classes, y=classes[codes], sample_weight=sample_weight)
    weights = np.asarray(found, dtype=np.float64)
    if not np.all((weights >= 0) & np.isfinite(weights)):
        raise ValueError(f"class_weight must be finite and not negative, got {class_weight!r}")
    return weights


def cost_matrix(cost: ArrayLike | None, n_classes: int) -> Floats:
    """Return the costs of wrong answers, a row per true class; 1 for each of them where nothing is said."""
    if cost is None:
        return zero_one_cost(n_classes)
    matrix: Floats = check_array(cost, dtype=np.float64, input_name="cost", copy=True)
    if matrix.shape != (n_classes, n_classes):
        raise ValueError(f"cost must have shape ({n_classes}, {n_classes}), a row per true class; got {matrix.shape}")
    if np.any(np.diag(matrix) != 0) or np.any(matrix < 0):
        raise ValueError(f"cost must be non-negative with a zero diagonal, got {matrix.tolist()}")
    return matrix


def chosen_classes(scores: Floats, classes: NDArray[Any]) -> NDArray[Any]:
    """Return the class that scores name: (n,) of two classes, (n, n_classes) of more."""
    best = (scores > 0).astype(int) if scores.ndim == 1 else np.argmax(scores, axis=1)
    return np.asarray(classes[best])


NEGLECTED = 0.2  # share of the weight that classes without an answer must have, and that of an average class at least


def find_fault(codes: Integers, answers: Integers, cost: Floats, weights: Floats, classes: NDArray[Any]) -> str:
    """Return what is wrong with the answers for training rows; nothing where they are of some use.

    They are at fault where they cost more than one answer for all rows would, or where classes that hold much of the
    weight are never answered. Costs and weights are those of the fit: with balanced classes, balanced ones.
    """
    by_class = np.bincount(codes, weights, minlength=len(classes))
    constant = float(np.min(by_class @ cost))
    found = float(weights @ cost[codes, answers])
    if found > constant * (1.0 + 1e-9):
        return (
            f"does worse on its training rows than one answer for all of them: wrong answers weigh {found:.4g}, those "
            f"of {classes.tolist()[np.argmin(by_class @ cost)]!r} for every row {constant:.4g}"
        )
    silent = np.bincount(answers, minlength=len(classes)) == 0
    share = by_class[silent].sum() / by_class.sum()
    if share >= max(NEGLECTED, 1.0 / len(classes)) - 1e-9:
        named = ", ".join(repr(one) for one in classes[silent][:3].tolist()) + ", ..." * bool(np.sum(silent) > 3)
        return f"never answers {named} on its training rows, though {share:.0%} of their weight is there"
    return ""
