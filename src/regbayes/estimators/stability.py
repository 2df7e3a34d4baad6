"""`feature_stability`: which latent features recur when a model is fitted again."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.pipeline import Pipeline
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, validate_params
from sklearn.utils.validation import _is_fitted, _num_samples

from regbayes._registry import Saveable, persistable
from regbayes._types import Floats, Integers
from regbayes.estimators._search import Samples, fit_quietly, reseed

CONSTANT = 1e-3  # share of the largest standard deviation below which a feature is constant
STABLE = 0.8  # share of the fits in which a stable feature recurs


@persistable(name="regbayes.FeatureStability")
@dataclass(frozen=True, eq=False, repr=False)
class FeatureStability(Saveable):
    """How often the features of a model recur in fits to other samples.

    `feature_stability` returns it. The similarity of a feature is its absolute correlation with the matched feature of
    another fit, on the same samples. 1 is the same feature or its complement; 0 means that there was no match.

    Parameters
    ----------
    numbers : array of shape (n_features,)
        Column numbers of the features in ``transform``; constant columns are left out.
    similarity : array of shape (n_fits, n_features)
        Similarity of each feature in each of the other fits.
    n_found : array of shape (n_fits,)
        Number of features of each of the other fits.
    threshold : float
        Similarity at which a feature counts as recurred.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.decomposition import PCA
    >>> from regbayes import feature_stability
    >>> X, _ = load_iris(return_X_y=True)
    >>> found = feature_stability(PCA(2), X, n_resamples=3, random_state=0)
    >>> found.returned.tolist()
    [1.0, 1.0]
    """

    numbers: Integers
    similarity: Floats
    n_found: Integers
    threshold: float

    @property
    def returned(self) -> Floats:
        """Share of the fits in which each feature recurred, shape (n_features,)."""
        return np.asarray((self.similarity >= self.threshold).mean(axis=0))

    @property
    def median_similarity(self) -> Floats:
        """Median similarity of each feature over the fits, shape (n_features,)."""
        return np.asarray(np.median(self.similarity, axis=0))

    @property
    def match(self) -> float:
        """Median over the fits of the median similarity in a fit, where features without a match count as 0."""
        if not len(self.numbers):
            return 0.0
        most = np.maximum(self.n_found, len(self.numbers))
        padded = [np.append(one, np.zeros(n - len(one))) for one, n in zip(self.similarity, most, strict=True)]
        return float(np.median([np.median(one) for one in padded]))

    def table(self) -> dict[str, NDArray[Any]]:
        """Return the columns of a table with a row per feature, for a data frame."""
        return {
            "feature": self.numbers,
            "returned": self.returned,
            "median_similarity": self.median_similarity,
            "lowest_similarity": self.similarity.min(axis=0),
        }

    def __repr__(self) -> str:
        head = f"FeatureStability: {len(self.numbers)} features, {len(self.similarity)} resamples"
        lines = [f"{head}; a feature is found again at a similarity of {self.threshold:g}"]
        lines.append(f"{'feature':>8}{'returned':>10}{'median':>8}{'lowest':>8}")
        for n, share, middle, lowest in zip(*self.table().values(), strict=True):
            lines.append(f"{n:8d}{share:10.0%}{middle:8.2f}{lowest:8.2f}")
        lines.append(f"features found: {self.n_found.min()} to {self.n_found.max()}; median match {self.match:.2f}")
        stable = int(np.sum(self.returned >= STABLE))
        verdict = f"{stable} of {len(self.numbers)} recurred in {STABLE:.0%} of the fits or more"
        lines.append(verdict + ("; the others depend on the sample" if stable < len(self.numbers) else ""))
        return "\n".join(lines)


@validate_params(
    {
        "n_resamples": [Interval(Integral, 1, None, closed="left")],
        "subsample": [Interval(Real, 0, 1, closed="right")],
        "threshold": [Interval(Real, 0, 1, closed="right")],
        "random_state": ["random_state"],
    },
    prefer_skip_nested_validation=False,
)
def feature_stability(
    estimator: Any,
    X: Any,
    y: Any = None,
    *,
    n_resamples: int = 10,
    subsample: float = 0.9,
    threshold: float = 0.8,
    X_compare: Any = None,
    random_state: Any = None,
    n_jobs: int | None = None,
    **metadata: Any,
) -> FeatureStability:
    """Refit a model to random subsamples, and measure which of its features recur.

    Features have no order and no sign. The features of two fits are matched one to one, so that the sum of the absolute
    correlations on the same samples is largest (the Hungarian method).

    Parameters
    ----------
    estimator : estimator with ``transform``
        The model whose features are compared; it is fitted to all samples if it is not fitted. It may be a pipeline
        with a final classifier, or a fitted search, which stands for its best estimator. It is not changed.
    X : array-like or sparse matrix of shape (n_samples, n_features)
        The training samples of the model.
    y : array-like of shape (n_samples,) or (n_samples, n_outputs), default=None
    n_resamples : int, default=10
        Number of refits to random subsamples, each with its own seed.
    subsample : float, default=0.9
        Share of the samples in a subsample.
    threshold : float, default=0.8
        Absolute correlation at which a feature counts as recurred.
    X_compare : array-like, default=None
        Samples on which features are compared. None is ``X``; new samples are a stricter test.
    random_state : int, RandomState instance or None, default=None
        Controls the subsamples and the seeds.
    n_jobs : int or None, default=None
        Number of processes over the fits.
    **metadata : array-like of shape (n_samples,)
        Passed to ``fit``, restricted to the subsample: ``sample_weight``, ``task``.

    Returns
    -------
    FeatureStability
        Prints as a table; `regbayes.report.collect` accepts it as ``stability=``.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from regbayes import ILSVMClassifier, feature_stability
    >>> X, y = load_iris(return_X_y=True)
    >>> model = ILSVMClassifier(8, random_state=0).fit(X, y)
    >>> found = feature_stability(model, X, y, n_resamples=3, random_state=0)
    >>> found.similarity.shape == (3, len(found.numbers))
    True
    """
    random, n = check_random_state(random_state), _num_samples(X)
    if hasattr(y, "to_numpy") and not hasattr(y, "iloc"):  # arrays of pandas, which scikit-learn cannot index by row
        y = y.to_numpy()
    samples = Samples(X, y, {name: value for name, value in metadata.items() if value is not None})
    seeds = random.randint(np.iinfo(np.int32).max, size=n_resamples + 1)
    model = getattr(estimator, "best_estimator_", estimator)
    if not _is_fitted(model):
        model = fit_quietly(reseed(model, int(seeds[-1])), samples)
    rows = X if X_compare is None else X_compare
    own = _varying_features(model, rows)
    parts = [random.permutation(n)[: max(2, round(subsample * n))] for _ in range(n_resamples)]

    def fit(part: Integers, seed: int) -> Floats:
        return _varying_features(fit_quietly(reseed(model, seed), samples.take(part)), rows)[1]

    pairs = zip(parts, seeds.tolist(), strict=False)
    found = Parallel(n_jobs=n_jobs)(delayed(fit)(part, seed) for part, seed in pairs)
    similarity = np.array([match_features(own[1], other) for other in found]).reshape(n_resamples, len(own[0]))
    n_found = np.array([other.shape[1] for other in found], dtype=np.int64)
    return FeatureStability(own[0], similarity, n_found, threshold)


def match_features(first: Floats, second: Floats) -> Floats:
    """Return the absolute correlation of each feature of the first fit with its match in the second.

    It is 0 for features without a match. The rows of both are the same samples.
    """
    similarity = np.zeros(first.shape[1])
    if first.shape[1] and second.shape[1]:
        with np.errstate(invalid="ignore", divide="ignore"):  # constant features correlate with nothing
            found = np.nan_to_num(np.corrcoef(first, second, rowvar=False))
        all_pairs = np.abs(found[: first.shape[1], first.shape[1] :])
        places, partners = linear_sum_assignment(all_pairs, maximize=True)
        similarity[places] = all_pairs[places, partners]
    return similarity


def _varying_features(model: Any, X: Any) -> tuple[Integers, Floats]:
    """Return the numbers and values of the features that are not constant, of the last step with ``transform``."""
    while isinstance(model, Pipeline) and not hasattr(model, "transform"):
        model = model[:-1]
    if not hasattr(model, "transform"):
        raise TypeError(f"estimator must have transform, which returns features; got {type(model).__name__}")
    found = model.transform(X)
    values = np.asarray(found.toarray() if hasattr(found, "toarray") else found, dtype=np.float64)
    spread, rounding = values.std(axis=0), 1e-12 * np.abs(values).max(initial=0.0)
    numbers = np.flatnonzero(spread > max(CONSTANT * spread.max(initial=0.0), rounding))
    return numbers, values[:, numbers]
