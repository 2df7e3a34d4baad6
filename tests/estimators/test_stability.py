"""Test `feature_stability` with a fake transformer and with real models."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import regbayes
from regbayes import ILSVMClassifier, PathSearchCV, feature_stability
from regbayes.estimators.stability import match_features

RNG = np.random.default_rng(3)
X = RNG.normal(size=(400, 6))
Y = (X[:, 0] > 0).astype(int)


class Planted(TransformerMixin, BaseEstimator):
    """Return columns of X, permuted and flipped by the seed, and noise columns.

    Fits with an even seed have ``lucky`` further columns.
    """

    def __init__(self, steady=2, lucky=0, noise=0, constant=0, random_state=None):
        self.steady = steady
        self.lucky = lucky
        self.noise = noise
        self.constant = constant
        self.random_state = random_state

    def fit(self, X, y=None, sample_weight=None):
        self.n_rows_ = len(X)
        self.weight_ = None if sample_weight is None else float(np.sum(sample_weight))
        self.rng_ = np.random.default_rng(self.random_state)
        even = self.random_state % 2 == 0
        self.columns_ = self.rng_.permutation(self.steady + even * self.lucky)
        self.signs_ = self.rng_.choice([-1.0, 1.0], len(self.columns_))
        return self

    def transform(self, X):
        found = 0.5 + self.signs_ * X[:, self.columns_]
        noise = np.random.default_rng(self.random_state).normal(size=(len(X), self.noise))
        return np.hstack([found, noise, np.full((len(X), self.constant), 0.3)])


def test_stability_separates_recurring_features_from_noise():
    model = Planted(steady=3, noise=2, constant=4, random_state=0).fit(X)
    found = feature_stability(model, X, n_resamples=10, random_state=0)
    assert_array_equal(found.numbers, np.arange(5))  # constant columns are excluded
    assert found.similarity.shape == (10, 5)
    assert_allclose(found.similarity[:, :3], 1.0)
    assert_allclose(found.returned[:3], 1.0)
    assert_array_equal(found.returned[3:], 0.0)
    assert np.all(found.median_similarity[3:] < 0.3)
    assert_array_equal(found.n_found, 5)


def test_match_penalizes_surplus_features_on_either_side():
    few = feature_stability(Planted(steady=1, lucky=2, random_state=0).fit(X), X, n_resamples=9)
    assert set(few.n_found) == {1, 3}
    assert_allclose(np.sort(few.returned), [np.mean(few.n_found == 3)] * 2 + [1.0])
    by_fit = [1.0 if n == 3 else 0.0 for n in few.n_found]  # the median is zero if one of three features matches
    assert few.match == pytest.approx(np.median(by_fit))
    more = regbayes.FeatureStability(np.arange(1), np.ones((2, 1)), np.array([3, 3]), 0.8)
    assert more.match == 0.0
    assert more.returned[0] == 1.0


def test_match_features_finds_optimal_pairing():
    values = RNG.random((50, 4))
    other = np.column_stack([1.0 - values[:, 2], values[:, 0], 3.0 - 2.0 * values[:, 3], values[:, 1]])
    assert_allclose(match_features(values, other), 1.0)
    assert_allclose(match_features(values, other[:, :0]), 0.0)
    noisy = other + RNG.normal(size=other.shape)
    alike = np.abs(np.corrcoef(values.T, noisy.T)[:4, 4:])
    best = max(sum(alike[i, j] for i, j in enumerate(order)) for order in permutations(range(4)))
    assert match_features(values, noisy).sum() == pytest.approx(best)
    assert np.count_nonzero(match_features(values, noisy[:, :2])) == 2
    assert_allclose(match_features(values, np.ones((50, 4))), 0.0)  # a constant feature has no similarity


def test_resamples_are_subsets_with_aligned_metadata():
    fits = []

    class Seen(Planted):
        def fit(self, X, y=None, sample_weight=None):
            fits.append((X, y, sample_weight))
            return super().fit(X, y, sample_weight)

    weights = X[:, 1] ** 2
    feature_stability(Seen(random_state=0), X, Y, n_resamples=2, subsample=0.5, sample_weight=weights, random_state=0)
    reference, *parts = fits
    assert_array_equal(reference[0], X)
    for rows, labels, own in parts:
        assert len(rows) == 200
        assert len(np.unique(rows[:, 0])) == 200
        assert_array_equal(labels, rows[:, 0] > 0)
        assert_allclose(own, rows[:, 1] ** 2)
    assert not np.array_equal(parts[0][0], parts[1][0])


def test_stability_keeps_estimator_and_is_reproducible():
    model = Planted(noise=3, random_state=5).fit(X)
    before = dict(vars(model))
    found = [feature_stability(model, X, n_resamples=3, random_state=7).similarity for _ in range(2)]
    assert vars(model) == before
    assert_array_equal(*found)
    new = feature_stability(model, X, X_compare=X[:50], n_resamples=3, random_state=7).similarity
    assert not np.array_equal(new, found[0])


def test_stability_accepts_pandas_labels():
    pd = pytest.importorskip("pandas")
    texts = np.where(X[:, 0] > 0, "yes", "no")
    found = [
        feature_stability(Planted(noise=1, random_state=5), X, y, n_resamples=2, random_state=7).similarity
        for y in (texts, pd.Series(texts), pd.array(list(texts)))
    ]
    assert_array_equal(found[0], found[1])
    assert_array_equal(found[0], found[2])


def test_stability_supports_pipelines_and_searches():
    pipeline = make_pipeline(StandardScaler(), PCA(2), LogisticRegression())
    stretched = X * [5.0, 3.0, 1.0, 1.0, 1.0, 1.0]
    found = feature_stability(
        make_pipeline(PCA(2), LogisticRegression()).fit(stretched, Y), stretched, Y, n_resamples=3
    )
    assert np.all(found.similarity > 0.9)  # well-separated variances give the same components
    assert len(feature_stability(pipeline, X, Y, n_resamples=1).numbers) == 2  # the pipeline is not fitted yet
    search = PathSearchCV(ILSVMClassifier(12, max_iter=50), {"tol": [1e-2]}, cv=2, random_state=0)
    search.fit(X[:60], Y[:60])
    assert feature_stability(search, X[:60], Y[:60], n_resamples=2).similarity.shape[0] == 2


def test_stability_repr_is_a_table(tmp_path):
    found = feature_stability(Planted(steady=2, noise=1, random_state=0).fit(X), X, n_resamples=3)
    text = repr(found)
    assert "3 features, 3 resamples" in text
    lines = text.splitlines()
    assert len(lines) == 2 + 3 + 2
    assert lines[-1].startswith("2 of 3 recurred in 80% of the fits or more; ")
    assert lines[2].split() == ["0", "100%", "1.00", "1.00"]
    assert lines[4].split()[:2] == ["2", "0%"]
    assert list(found.table()) == ["feature", "returned", "median_similarity", "lowest_similarity"]
    assert {len(column) for column in found.table().values()} == {3}
    found.save(tmp_path / "stability")
    assert repr(regbayes.load(tmp_path / "stability")) == text
    nothing = feature_stability(Planted(steady=0, constant=2, random_state=0).fit(X), X, n_resamples=2)
    assert (nothing.similarity.shape, nothing.match) == ((2, 0), 0.0)
    assert "0 features" in repr(nothing)


def test_stability_with_invalid_options_raises():
    model = Planted(random_state=0)
    for option in ({"n_resamples": 0}, {"n_resamples": 1.5}, {"subsample": 1.5}, {"threshold": 0.0}):
        with pytest.raises(ValueError, match=f"The '{next(iter(option))}' parameter of feature_stability"):
            feature_stability(model, X, **option)
    with pytest.raises(TypeError, match="transform"):
        feature_stability(clone(LogisticRegression()), X, Y)
