"""Test threshold selection against brute force, and `MultiLabelThresholdCV`."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import KFold
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier

import regbayes
from multitask_tools import classifier, holes, labels
from regbayes import MultiLabelThresholdCV
from regbayes.estimators.thresholds import find_threshold

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def f1(truth, predicted, average="binary", weights=None):
    return f1_score(truth, predicted, average=average, zero_division=0, sample_weight=weights)


def scored(seed, n=12):
    rng = np.random.default_rng(seed)
    truth = rng.random(n) < 0.4
    return np.round(truth + 1.5 * rng.standard_normal(n), 1), truth, np.arange(n)  # rounded to create ties


def resampled(seed, n, n_resamples):
    drawn = np.random.RandomState(seed).randint(n, size=(n_resamples, n))
    return [np.bincount(rows, minlength=n) for rows in drawn]


def every_cut(scores):
    levels = np.unique(scores)
    return np.concatenate([[levels[0] - 1], 0.5 * (levels[:-1] + levels[1:]), [levels[-1] + 1]])


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), weighted=st.booleans())
def test_find_threshold_maximizes_weighted_f1(seed, weighted):
    scores, truth, rows = scored(seed)
    weights = np.random.default_rng(seed).integers(1, 4, len(rows)) if weighted else np.ones(len(rows))
    found = find_threshold(scores, truth, rows, [weights])
    best = max(f1(truth, scores > cut, weights=weights) for cut in every_cut(scores))
    assert f1(truth, scores > found, weights=weights) == pytest.approx(best)


def test_find_threshold_keeps_default_if_none_is_better():
    scores, rows = np.array([-2.0, -1.0, 1.0, 2.0]), np.arange(4)
    assert find_threshold(scores, scores > 0, rows, [np.ones(4)], 0.3) == 0.3
    assert find_threshold(scores, scores > 5, rows, [np.ones(4)]) == 0.0
    assert find_threshold(scores[:0], scores[:0] > 0, rows[:0], [np.ones(4)], 0.5) == 0.5


def test_resampling_brings_threshold_closer_to_optimum():
    """The scores are normal, so the population F1 of every threshold is known."""
    cuts = np.linspace(-2, 4, 601)
    positive, negative = 0.1 * norm.sf(cuts - 1.5), 0.9 * norm.sf(cuts)
    best = cuts[np.argmax(2 * positive / (positive + negative + 0.1))]
    errors = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        truth = rng.random(300) < 0.1
        scores = rng.standard_normal(300) + 1.5 * truth
        counts = ([np.ones(300)], resampled(seed, 300, 50))
        found = [find_threshold(scores, truth, np.arange(300), some) for some in counts]
        errors.append(np.square(np.array(found) - best))
    exact, averaged = np.mean(errors, axis=0)
    assert averaged < 0.8 * exact


def test_zero_sample_weight_matches_removed_samples():
    X, Y = rare()
    weights = np.random.default_rng(0).integers(0, 3, len(X)).astype(float)
    there = weights > 0
    model = MultiLabelThresholdCV(classifier(C=1.0), random_state=0)
    found = clone(model).fit(X, Y, sample_weight=weights)
    without = clone(model).fit(X[there], Y[there], sample_weight=weights[there])
    np.testing.assert_array_equal(found.decision_function(X), without.decision_function(X))
    np.testing.assert_array_equal(
        clone(model).fit(X, Y, sample_weight=np.ones(len(X))).thresholds_, clone(model).fit(X, Y).thresholds_
    )
    assert not np.array_equal(found.thresholds_, clone(model).fit(X[there], Y[there]).thresholds_)
    with pytest.raises(ValueError, match="sample_weight"):
        clone(model).fit(X, Y, sample_weight=-weights)


def rare(seed=0, n_rows=300):
    X, Y = labels(seed, n_rows=n_rows)
    rng = np.random.default_rng(seed)
    keep = rng.random(Y.shape) < 0.3  # most positives become negatives
    return X, np.where(keep, Y, 0)


INNER = {
    "multi-task": classifier(C=1.0),
    "one-vs-rest": OneVsRestClassifier(LogisticRegression()),
    "multi-output": MultiOutputClassifier(LogisticRegression()),
    "forest": RandomForestClassifier(20, max_depth=3, random_state=0),
}


@pytest.mark.parametrize("inner", INNER.values(), ids=INNER.keys())
def test_tuned_thresholds_improve_f1_of_rare_labels(inner):
    X, Y = rare()
    tuned = MultiLabelThresholdCV(inner, cv=3, random_state=0).fit(X, Y)
    plain = clone(inner).fit(X, Y)
    assert tuned.thresholds_.shape == (3,)
    assert f1(Y, tuned.predict(X), "macro") > f1(Y, plain.predict(X), "macro") + 0.1
    np.testing.assert_array_equal(tuned.predict(X), tuned.decision_function(X) > 0)


def test_probabilities_and_log_odds_give_same_predictions():
    X, Y = rare()
    odds = MultiLabelThresholdCV(OneVsRestClassifier(LogisticRegression()), cv=3, random_state=0).fit(X, Y)
    shares = MultiLabelThresholdCV(MultiOutputClassifier(LogisticRegression()), cv=3, random_state=0).fit(X, Y)
    np.testing.assert_array_equal(odds.predict(X), shares.predict(X))
    exact = MultiLabelThresholdCV(odds.estimator, n_resamples=0, cv=3, random_state=0).fit(X, Y)
    assert np.any(exact.thresholds_ != odds.thresholds_)
    with pytest.raises(ValueError, match="n_resamples"):
        MultiLabelThresholdCV(odds.estimator, n_resamples=-1).fit(X, Y)


def test_shared_threshold_is_one_number():
    X, Y = rare()
    tuned = MultiLabelThresholdCV(classifier(), thresholds="shared", cv=3, random_state=0).fit(X, Y)
    assert len(set(tuned.thresholds_)) == 1
    assert f1(Y, tuned.predict(X), "micro") > f1(Y, tuned.estimator_.predict(X), "micro")


def test_label_without_scorable_fold_keeps_default():
    """A fold that holds out one of the two labeled samples lacks a class in training."""
    X, Y = rare()
    Y = Y.astype(float)
    Y[:, 0] = np.nan
    Y[:2, 0] = [0.0, 1.0]
    tuned = MultiLabelThresholdCV(classifier(), cv=2, random_state=0).fit(X, Y)
    assert tuned.thresholds_[0] == 0.0
    assert np.all(tuned.thresholds_[1:] != 0.0)


def test_missing_labels_are_ignored():
    X, Y = rare()
    some = holes(Y)
    tuned = MultiLabelThresholdCV(classifier(), cv=3, random_state=0).fit(X, some)
    seen = ~np.isnan(some)
    assert tuned.score(X, some) == np.mean(np.all((tuned.predict(X) == some) | ~seen, axis=1)[seen.any(axis=1)])
    first = (np.arange(len(X)) < 10).astype(float)
    assert tuned.score(X, some, sample_weight=first) == pytest.approx(tuned.score(X[:10], some[:10]))
    marked = Y.copy()
    marked[0, 0] = 5
    with pytest.raises(ValueError, match="Only binary classification is supported"):
        MultiLabelThresholdCV(classifier()).fit(X, marked)


def test_thresholds_can_be_saved(tmp_path):
    X, Y = rare()
    tuned = MultiLabelThresholdCV(classifier(), cv=KFold(2), random_state=0).fit(X, Y)
    tuned.save(tmp_path / "tuned.regbayes")
    np.testing.assert_array_equal(regbayes.load(tmp_path / "tuned.regbayes").predict(X), tuned.predict(X))
