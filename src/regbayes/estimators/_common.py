"""What the estimators share: parameters that may be "auto", threads, random numbers, features in use."""

from __future__ import annotations

import warnings
from numbers import Integral, Real
from typing import Any

import numpy as np
from joblib import effective_n_jobs
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions

Floats = NDArray[np.float64]

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
    return int(effective_n_jobs(n_jobs))


def in_use(psi: Floats) -> NDArray[np.bool_]:
    """Features that are on somewhere and not the same everywhere: max > .5 and max - min > .1 over the rows."""
    highest, lowest = psi.max(axis=0), psi.min(axis=0)
    return np.asarray((highest > 0.5) & (highest - lowest > 0.1))


def warn_if_truncated(estimator: Any, n_used: int) -> None:
    """Say when every feature that the truncation allows is in use."""
    if n_used == estimator.n_components > 1:
        warnings.warn(
            f"all {n_used} features that n_components allows are in use: the data may ask for more. Raise n_components "
            "to let them decide; ignore this if you want just so many.",
            TruncationWarning,
            stacklevel=3,
        )


class TruncationWarning(ConvergenceWarning):
    """The truncation binds: the data may ask for more features than n_components allows."""
