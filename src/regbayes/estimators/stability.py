"""`feature_stability`: which latent features come back when a model is fitted again."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.pipeline import Pipeline
from sklearn.utils import check_random_state
from sklearn.utils.validation import _is_fitted, _num_samples

from regbayes._registry import Saveable, persistable
from regbayes._types import Floats, Integers
from regbayes.estimators._search import Samples, fit_quietly, reseed

LEAST_SPREAD = 1e-3  # of the largest standard deviation: what varies less has been left out by the model
USUALLY = 0.8  # share of the fits in which a feature comes back that can be read


@persistable(name="regbayes.FeatureStability")
@dataclass(frozen=True, eq=False, repr=False)
class FeatureStability(Saveable):
    """How often the features of a model come back, and how alike.

    Make one with `feature_stability`. Likeness is the absolute correlation with the feature that it was matched with,
    on the same rows: 1 is the same feature, or its complement; 0 that there was none left to match.

    Parameters
    ----------
    numbers : array of shape (n_features,)
        Which features of the model they are: columns of ``transform`` that vary. ``n_components_`` of a model may be
        smaller: it does not count features that are nearly the same for all rows.
    likeness : array of shape (n_fits, n_features)
        Of each feature in each of the other fits, those to resamples first.
    n_found : array of shape (n_fits,)
        Features that each of the other fits had.
    n_resamples : int
        How many of the fits were to resamples; the rest were to the same rows from other starts.
    threshold : float
        Likeness from which on a feature has come back.
    """

    numbers: Integers
    likeness: Floats
    n_found: Integers
    n_resamples: int
    threshold: float

    @property
    def returned(self) -> Floats:
        """Share of the fits in which each feature came back, shape (n_features,)."""
        return np.asarray((self.likeness >= self.threshold).mean(axis=0))

    @property
    def median_likeness(self) -> Floats:
        """Median likeness of each feature over the fits, shape (n_features,)."""
        return np.asarray(np.median(self.likeness, axis=0))

    @property
    def match(self) -> float:
        """Median over the fits of the median likeness of features in a fit, surplus ones on either side counting 0."""
        if not len(self.numbers):
            return 0.0
        most = np.maximum(self.n_found, len(self.numbers))
        padded = [np.append(one, np.zeros(n - len(one))) for one, n in zip(self.likeness, most, strict=True)]
        return float(np.median([np.median(one) for one in padded]))

    def table(self) -> dict[str, NDArray[Any]]:
        """Return the columns of a table with a row per feature, as a data frame takes them."""
        return {
            "feature": self.numbers,
            "returned": self.returned,
            "median_likeness": self.median_likeness,
            "lowest_likeness": self.likeness.min(axis=0),
        }

    def __repr__(self) -> str:
        n_seeds = len(self.likeness) - self.n_resamples
        fits = " and ".join(
            f"{n} {what}" for n, what in ((self.n_resamples, "resamples"), (n_seeds, "other starts")) if n
        )
        head = f"FeatureStability: {len(self.numbers)} features, {fits}; a likeness of {self.threshold:g} is a return"
        lines = [f"{'feature':>8}{'returned':>10}{'median':>8}{'lowest':>8}"]
        for n, share, middle, lowest in zip(*self.table().values(), strict=True):
            lines.append(f"{n:8d}{share:10.0%}{middle:8.2f}{lowest:8.2f}")
        found = f"features found: {self.n_found.min()} to {self.n_found.max()}; median match {self.match:.2f}"
        steady = int(np.sum(self.returned >= USUALLY))
        verdict = f"{steady} of {len(self.numbers)} came back in {USUALLY:.0%} of the fits or more"
        if steady < len(self.numbers):
            verdict += ": the others say more about the sample than about what it is a sample of"
        return "\n".join([head, *lines, found, verdict])


def feature_stability(
    estimator: Any,
    X: Any,
    y: Any = None,
    *,
    n_resamples: int = 10,
    n_seeds: int = 0,
    subsample: float = 0.9,
    threshold: float = 0.8,
    X_compare: Any = None,
    random_state: Any = None,
    n_jobs: int | None = None,
    **metadata: Any,
) -> FeatureStability:
    """Fit a model again and again, and see which of its features come back.

    Features have no order and no sign, so those of two fits are matched: one to one, so that the absolute correlations
    of their values on the same rows add up to the most (the Hungarian method).

    Parameters
    ----------
    estimator : estimator with ``transform``
        Its own features are judged if it is fitted, otherwise those of a fit to all rows. Also a pipeline, whose last
        step may be a classifier behind the features; a fitted search stands for its best estimator. It is not changed.
    X : array-like or sparse matrix of shape (n_samples, n_features)
        What the model is, or was, fitted to.
    y : array-like of shape (n_samples,) or (n_samples, n_outputs), default=None
    n_resamples : int, default=10
        Fits to random parts of the rows, in another order, each from a start of its own.
    n_seeds : int, default=0
        Fits to all rows that differ in their start alone. A start that ignores the seed makes them all alike: resamples
        say more.
    subsample : float, default=0.9
        Share of the rows in a part.
    threshold : float, default=0.8
        Absolute correlation from which on a feature counts as having come back.
    X_compare : array-like, default=None
        Rows on which features are compared; X by default. New ones are the stricter judge.
    random_state : int, RandomState instance or None, default=None
        For the parts and the starts.
    n_jobs : int or None, default=None
        Processes over the fits.
    **metadata : array-like of shape (n_samples,)
        Given to ``fit``, row by row: ``sample_weight``, ``task``.

    Returns
    -------
    FeatureStability
        Printed, it is a table; `regbayes.report.collect` takes it as ``stability=``.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from regbayes import ILSVMClassifier, feature_stability
    >>> X, y = load_iris(return_X_y=True)
    >>> model = ILSVMClassifier(8, random_state=0).fit(X, y)
    >>> found = feature_stability(model, X, y, n_resamples=3, random_state=0)
    >>> found.likeness.shape == (3, len(found.numbers))
    True
    """
    _check_amounts(n_resamples, n_seeds, subsample, threshold)
    random, n = check_random_state(random_state), _num_samples(X)
    if hasattr(y, "to_numpy") and not hasattr(y, "iloc"):  # pandas' arrays, which scikit-learn cannot take rows of
        y = y.to_numpy()
    samples = Samples(X, y, {name: value for name, value in metadata.items() if value is not None})
    model = getattr(estimator, "best_estimator_", estimator)
    if not _is_fitted(model):
        model = fit_quietly(reseed(model, random.randint(np.iinfo(np.int32).max)), samples)
    rows = X if X_compare is None else X_compare
    own = _features(model, rows)
    numbers = _find_varying(own)
    size = max(2, round(subsample * n))
    parts = [random.permutation(n)[:size] for _ in range(n_resamples)] + [None] * n_seeds
    seeds = random.randint(np.iinfo(np.int32).max, size=len(parts))
    found = Parallel(n_jobs=n_jobs)(
        delayed(_fit_features)(reseed(model, int(seed)), samples, part, rows)
        for part, seed in zip(parts, seeds, strict=True)
    )
    return FeatureStability(
        numbers,
        np.array([match_features(own[:, numbers], other) for other in found]).reshape(len(parts), len(numbers)),
        np.array([other.shape[1] for other in found], dtype=np.int64),
        n_resamples,
        threshold,
    )


def match_features(first: Floats, second: Floats) -> Floats:
    """Return the absolute correlation of each feature of the first with the one of the second it is matched with.

    Parameters
    ----------
    first, second : (n, K), (n, M)
        Values of features on the same rows. Where M < K, some of the first have no match, and 0.
    """
    likeness = np.zeros(first.shape[1])
    if first.shape[1] and second.shape[1]:
        one, other = (_standardize(values) for values in (first, second))
        alike = np.minimum(np.abs(one.T @ other), 1.0)
        places, partners = linear_sum_assignment(alike, maximize=True)
        likeness[places] = alike[places, partners]
    return likeness


def _standardize(values: Floats) -> Floats:
    """Return columns of mean zero and length one; constant ones are zero."""
    centred = values - values.mean(axis=0)
    lengths = np.linalg.norm(centred, axis=0)
    return np.divide(centred, lengths, out=np.zeros_like(centred), where=lengths > 0)


def _find_varying(values: Floats) -> Integers:
    """Return the features that tell rows apart: the others were left out, or are the same for all."""
    spread, rounding = values.std(axis=0), 1e-12 * np.abs(values).max(initial=0.0)
    return np.flatnonzero(spread > max(LEAST_SPREAD * spread.max(initial=0.0), rounding))


def _features(model: Any, X: Any) -> Floats:
    """Return the features of rows: of the last step of a pipeline that has any."""
    while isinstance(model, Pipeline) and not hasattr(model, "transform"):
        model = model[:-1]
    if not hasattr(model, "transform"):
        raise TypeError(
            f"estimator must have transform, which says the features of rows; {type(model).__name__} has none"
        )
    values = model.transform(X)
    return np.asarray(values.toarray() if hasattr(values, "toarray") else values, dtype=np.float64)


def _fit_features(estimator: Any, samples: Samples, part: Integers | None, rows: Any) -> Floats:
    """Fit to some rows, or to all, and return the features of those that are compared."""
    found = _features(fit_quietly(estimator, samples if part is None else samples.take(part)), rows)
    return found[:, _find_varying(found)]


def _check_amounts(n_resamples: Any, n_seeds: Any, subsample: float, threshold: float) -> None:
    for name, value in (("n_resamples", n_resamples), ("n_seeds", n_seeds)):
        if not isinstance(value, Integral):
            raise TypeError(f"{name} must be a whole number, got {value!r}")
    if min(n_resamples, n_seeds) < 0 or n_resamples + n_seeds == 0:
        raise ValueError(f"there must be fits to compare with: got n_resamples={n_resamples} and n_seeds={n_seeds}")
    for name, value in (("subsample", subsample), ("threshold", threshold)):
        if not 0.0 < value <= 1.0:
            raise ValueError(f"{name} must be above 0 and at most 1, got {value}")
