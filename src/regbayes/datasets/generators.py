"""Simulated data with known ground truth, drawn from the models' own priors."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.utils import Bunch, check_random_state
from sklearn.utils._param_validation import Interval, validate_params

from regbayes._types import Flags, Floats

__all__ = ["draw_indian_buffet", "make_ibp_classification", "make_ibp_multitask"]

_COUNT = Interval(Integral, 1, None, closed="left")
_POSITIVE = Interval(Real, 0, None, closed="neither")
_NOT_NEGATIVE = Interval(Real, 0, None, closed="left")
_SHARE = Interval(Real, 0, 1, closed="left")


def draw_indian_buffet(n_rows: int, n_components: int, alpha: float, rng: np.random.Generator) -> tuple[Flags, Floats]:
    """Draw binary features from the truncated Indian buffet process, docs/math.md eq. (20).

    Returns
    -------
    features : array of shape (n_rows, n_components)
    probabilities : array of shape (n_components,)
        Prior probability of each feature, decreasing: products of Beta(alpha, 1) sticks.
    """
    probabilities = np.asarray(np.cumprod(rng.beta(alpha, 1.0, n_components)), dtype=np.float64)
    return rng.random((n_rows, n_components)) < probabilities, probabilities


@validate_params(
    {
        "n_samples": [_COUNT],
        "n_features": [_COUNT],
        "n_classes": [Interval(Integral, 2, None, closed="left")],
        "n_components": [_COUNT],
        "alpha": [_POSITIVE],
        "noise": [_NOT_NEGATIVE],
        "label_noise": [_NOT_NEGATIVE],
        "random_state": ["random_state"],
    },
    prefer_skip_nested_validation=True,
)
def make_ibp_classification(
    n_samples: int = 300,
    n_features: int = 30,
    *,
    n_classes: int = 3,
    n_components: int = 20,
    alpha: float = 4.0,
    noise: float = 0.5,
    label_noise: float = 0.1,
    random_state: Any = None,
) -> Bunch:
    """Draw labeled samples from iLSVM: binary features and a linear classifier.

    Parameters
    ----------
    n_samples, n_features, n_classes : int
    n_components : int, default=20
        Truncation of the Indian buffet process; late features occur in few samples or none.
    alpha : float, default=4.0
        Controls the number of features: about ``alpha`` per sample.
    noise : float, default=0.5
        Standard deviation of the noise on the inputs; loadings are standard normal.
    label_noise : float, default=0.1
        Standard deviation of the noise on the scores, which have unit variance.
    random_state : int, RandomState instance or None, default=None

    Returns
    -------
    Bunch
        ``data``, ``target``, ``features`` (the true binary features), ``components`` (their loadings) and ``coef`` (the
        classifier's weights).

    Examples
    --------
    >>> from regbayes.datasets import make_ibp_classification
    >>> found = make_ibp_classification(100, 10, n_components=4, random_state=0)
    >>> found.data.shape, found.features.shape, found.coef.shape
    ((100, 10), (100, 4), (3, 4))
    """
    rng = np.random.default_rng(check_random_state(random_state).randint(np.iinfo(np.int32).max))
    features, probabilities = draw_indian_buffet(n_samples, n_components, alpha, rng)
    components = rng.standard_normal((n_components, n_features))
    X = features @ components + noise * rng.standard_normal((n_samples, n_features))
    coef = rng.standard_normal((n_classes, n_components))
    scores = (features - probabilities) @ coef.T
    scores = scores / max(float(scores.std()), 1e-12) + label_noise * rng.standard_normal(scores.shape)
    return Bunch(data=X, target=np.argmax(scores, axis=1), features=features, components=components, coef=coef)


@validate_params(
    {
        "n_samples": [_COUNT],
        "n_features": [_COUNT],
        "n_tasks": [_COUNT],
        "n_components": [_COUNT],
        "alpha": [_POSITIVE],
        "noise": [_NOT_NEGATIVE],
        "missing": [_SHARE],
        "classes": ["boolean"],
        "random_state": ["random_state"],
    },
    prefer_skip_nested_validation=True,
)
def make_ibp_multitask(
    n_samples: int = 300,
    n_features: int = 30,
    n_tasks: int = 10,
    *,
    n_components: int = 8,
    alpha: float = 4.0,
    noise: float = 0.5,
    missing: float = 0.0,
    classes: bool = False,
    random_state: Any = None,
) -> Bunch:
    """Draw targets of related tasks from MT-iLSVM, with features that all tasks share.

    Parameters
    ----------
    n_samples, n_features, n_tasks : int
    n_components : int, default=8
        Truncation of the Indian buffet process over the inputs.
    alpha : float, default=4.0
        Controls the number of features: about ``alpha`` per input.
    noise : float, default=0.5
        Standard deviation of the noise on inputs and on targets, which have unit variance without it.
    missing : float, default=0.0
        Share of the targets that are missing (NaN), at random.
    classes : bool, default=False
        Whether targets are 0 and 1, split at their median, instead of numbers.
    random_state : int, RandomState instance or None, default=None

    Returns
    -------
    Bunch
        ``data``; ``target`` of shape (n_samples, n_tasks); ``features`` of shape (n_features, n_components), the inputs
        of each feature; and ``coef`` of shape (n_tasks, n_components), the tasks' weights.

    Examples
    --------
    >>> from regbayes.datasets import make_ibp_multitask
    >>> found = make_ibp_multitask(50, 10, n_tasks=3, missing=0.2, random_state=0)
    >>> found.data.shape, found.target.shape, found.features.shape
    ((50, 10), (50, 3), (10, 8))
    """
    rng = np.random.default_rng(check_random_state(random_state).randint(np.iinfo(np.int32).max))
    features, _ = draw_indian_buffet(n_features, n_components, alpha, rng)
    X = rng.standard_normal((n_samples, n_components)) @ features.T + noise * rng.standard_normal(
        (n_samples, n_features)
    )
    coef = rng.standard_normal((n_tasks, n_components))
    scores = X @ features @ coef.T
    scores = scores / np.maximum(scores.std(axis=0), 1e-12) + noise * rng.standard_normal(scores.shape)
    target = (scores > np.median(scores, axis=0)).astype(float) if classes else scores
    target = np.where(rng.random(target.shape) < missing, np.nan, target)
    return Bunch(data=X, target=target, features=features, coef=coef)
