"""What the estimators share: parameters that may be "auto", threads, random numbers, features in use."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager
from functools import cache
from numbers import Integral, Real
from typing import Any

import numpy as np
from joblib import effective_n_jobs
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import _check_sample_weight
from threadpoolctl import ThreadpoolController

from regbayes._types import Flags, Floats

POSITIVE = Interval(Real, 0, None, closed="neither")
NOT_NEGATIVE = Interval(Real, 0, None, closed="left")

LATENT_CONSTRAINTS: dict[str, list[Any]] = {
    "n_components": [Interval(Integral, 1, None, closed="left")],
    "alpha": [POSITIVE],
    "temperature": [POSITIVE, StrOptions({"auto"})],
    "noise_variance": [POSITIVE, StrOptions({"auto", "estimate"})],
    "prior_variance": [POSITIVE, StrOptions({"auto", "estimate"})],
    "n_sweeps": [Interval(Integral, 1, None, closed="left")],
    "max_iter": [Interval(Integral, 0, None, closed="left")],
    "tol": [NOT_NEGATIVE],
    "warm_start": ["boolean"],
    "random_state": ["random_state"],
    "n_jobs": [Integral, None],
    "verbose": ["verbose"],
}


def generator(random_state: Any) -> np.random.Generator:
    """Return the generator that a scikit-learn ``random_state`` stands for."""
    return np.random.default_rng(check_random_state(random_state).randint(np.iinfo(np.int32).max))


def n_threads(n_jobs: int | None) -> int:
    """Return the number of threads that ``n_jobs`` asks for."""
    if n_jobs == 0:
        raise ValueError("n_jobs must be a number of threads, -1 for one on each core, or None; got 0")
    return int(effective_n_jobs(n_jobs))


def one_blas_thread() -> AbstractContextManager[Any]:
    """Keep BLAS to the thread that calls it, because ``n_jobs`` says how many threads there are.

    The products are those of chunks of rows, which threads of our own share out. BLAS threads on top of them gain
    little, and cost a great deal where other processes want the same cores.
    """
    return _thread_pools().limit(limits=1, user_api="blas")


@cache
def _thread_pools() -> ThreadpoolController:
    return ThreadpoolController()  # looks at every loaded library, which takes milliseconds


def row_weights(sample_weight: Any, X: Floats) -> Floats | None:
    """Return how often each row counts, None where all count once; none is negative, and some are positive."""
    if sample_weight is None:
        return None
    weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    if not np.any(weights > 0):
        raise ValueError("sample_weight must be positive for some row: all of them are zero")
    return None if np.all(weights == 1.0) else weights


def drop_weightless(X: Floats, y: Any, weights: Floats | None) -> tuple[Floats, Any, Floats | None]:
    """Return the rows that count, their labels if there are any, and how often they count."""
    if weights is None or np.all(weights > 0):
        return X, y, weights
    kept = weights > 0
    return X[kept], None if y is None else y[kept], weights[kept]


def labeled_rows(y: NDArray[Any], unlabeled: Any) -> Flags:
    """Which rows have a label: all those whose label is not the value that stands for "none"."""
    if unlabeled is None:
        return np.ones(len(y), dtype=bool)
    labeled = np.asarray(y != unlabeled, dtype=bool)
    if not labeled.any():
        raise ValueError(f"no row has a label: all of y is {unlabeled!r}, the value of unlabeled")
    return labeled


def in_use(psi: Floats) -> Flags:
    """Features that are on somewhere and not the same everywhere: max > .5 and max - min > .1 over the rows."""
    highest, lowest = psi.max(axis=0), psi.min(axis=0)
    return np.asarray((highest > 0.5) & (highest - lowest > 0.1))


def warn_if_unused(n_used: int) -> None:
    """Say when the features tell nothing about the rows."""
    if n_used == 0:
        warnings.warn(
            "no feature is in use: they are nearly the same for all rows. Lower temperature (or raise it, if it is "
            "below 0.01), and look whether X varies at all.",
            ConvergenceWarning,
            stacklevel=3,
        )


def warn_if_noise() -> None:
    """Say that what was found in the rows does not hold in others."""
    warnings.warn(
        "nothing was found: on rows that were set aside, inputs do not vary together, and labels, if there are any, are "
        "predicted no better than by the largest class. The features describe these rows alone.",
        ConvergenceWarning,
        stacklevel=3,
    )


def warn_if_truncated(n_used: int, n_components: int) -> None:
    """Say when every feature that the truncation allows is in use."""
    if n_used == n_components > 1:
        warnings.warn(
            f"all {n_used} features that n_components allows are in use: the data may ask for more. Raise n_components "
            "to let them decide; ignore this if you want just so many.",
            TruncationWarning,
            stacklevel=3,
        )


class TruncationWarning(ConvergenceWarning):
    """The truncation binds: the data may ask for more features than n_components allows."""
