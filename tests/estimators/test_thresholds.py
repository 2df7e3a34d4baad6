"""Thresholds: exact searches against brute force, the estimator against what it promises."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, balanced_accuracy_score, f1_score
from sklearn.model_selection import KFold, RepeatedKFold
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier
from sklearn.utils.estimator_checks import check_estimator

import regbayes
from multitask_tools import classifier, holes, labels
from regbayes import MultiLabelThresholdCV
from regbayes.estimators._cutoffs import Cells, Ladder, choose_thresholds, draw_resamples

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

METRICS = {
    "f1_macro": lambda truth, answer: f1_score(truth, answer, average="macro", zero_division=0),
    "f1_micro": lambda truth, answer: f1_score(truth, answer, average="micro", zero_division=0),
    "accuracy": lambda truth, answer: accuracy_score(truth.ravel(), answer.ravel()),
}


def cells_of(scores, positive):
    rows = np.arange(len(scores))
    return [Cells(s, p, rows) for s, p in zip(scores.T, positive.T, strict=True)]


def scored(seed, n_rows=6, n_labels=2):
    rng = np.random.default_rng(seed)
    truth = (rng.random((n_rows, n_labels)) < 0.4).astype(int)
    scores = np.round(truth + 1.5 * rng.standard_normal(truth.shape), 1)  # with ties
    return scores, truth, cells_of(scores, truth == 1)


def every_cut(scores):
    levels = np.unique(scores)
    return np.concatenate([[levels[0] - 1], 0.5 * (levels[:-1] + levels[1:]), [levels[-1] + 1]])


@pytest.mark.parametrize("scoring", METRICS)
@settings(max_examples=15)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_shared_threshold_is_the_best_of_all(scoring, seed):
    scores, truth, cells = scored(seed)
    chosen = choose_thresholds(cells, "shared", scoring, 0.0)
    assert chosen[0] == chosen[1]
    best = max(METRICS[scoring](truth, (scores > cut).astype(int)) for cut in every_cut(scores))
    assert METRICS[scoring](truth, (scores > chosen).astype(int)) == pytest.approx(best)


@pytest.mark.parametrize("scoring", ["f1_macro", "accuracy"])
@settings(max_examples=15)
@given(seed=st.integers(0, 2**32 - 1))
def test_thresholds_per_label_are_the_best_of_all_pairs(scoring, seed):
    scores, truth, cells = scored(seed)
    chosen = choose_thresholds(cells, "per_label", scoring, 0.0)
    pairs = itertools.product(*(every_cut(column) for column in scores.T))
    best = max(METRICS[scoring](truth, (scores > np.array(pair)).astype(int)) for pair in pairs)
    assert METRICS[scoring](truth, (scores > chosen).astype(int)) == pytest.approx(best)


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32 - 1))
def test_micro_f1_with_thresholds_per_label_is_no_worse_than_shared_and_no_single_change_helps(seed):
    scores, truth, cells = scored(seed, n_rows=8, n_labels=3)
    chosen = choose_thresholds(cells, "per_label", "f1_micro", 0.0)
    shared = choose_thresholds(cells, "shared", "f1_micro", 0.0)
    value = METRICS["f1_micro"](truth, (scores > chosen).astype(int))
    assert value >= METRICS["f1_micro"](truth, (scores > shared).astype(int)) - 1e-12
    for label in range(3):
        for cut in every_cut(scores[:, label]):
            other = chosen.copy()
            other[label] = cut
            assert METRICS["f1_micro"](truth, (scores > other).astype(int)) <= value + 1e-12


def test_a_function_is_maximised_too():
    _, _, cells = scored(3, n_rows=50)
    found = choose_thresholds(cells, "per_label", lambda truth, answer: f1_score(truth, answer, zero_division=0), 0.0)
    np.testing.assert_allclose(found, choose_thresholds(cells, "per_label", "f1_macro", 0.0))


def test_the_default_stays_where_nothing_is_better():
    cells = cells_of(np.array([[-2.0, -1.0, 1.0, 2.0]]).T, np.array([[False, False, True, True]]).T)
    never = cells_of(np.array([[-2.0, -1.0]]).T, np.array([[False, False]]).T)
    for resamples in (None, np.ones((3, 4), dtype=np.uint8)):
        assert choose_thresholds(cells, "per_label", "f1_macro", 0.3, resamples) == 0.3
        assert choose_thresholds(never, "per_label", "f1_macro", 0.0, resamples) == 0.0


def resampled(seed, n_rows, n_resamples=4):
    return draw_resamples(n_rows, n_resamples, np.random.RandomState(seed))


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_resample_counts_rows_as_often_as_they_were_drawn(seed):
    scores, truth, cells = scored(seed)
    for drawn in resampled(seed, len(scores)):
        assert drawn.sum() == len(scores)
        for label, cell in enumerate(cells):
            cuts = every_cut(scores[:, label])
            counts = Ladder.of(cell, cuts).counts(drawn)
            again, answers = np.repeat(truth[:, label], drawn), np.repeat(scores[:, label], drawn) > cuts[:, None]
            np.testing.assert_array_equal(counts.tp, np.sum(answers & (again == 1), axis=1))
            np.testing.assert_array_equal(counts.fp, np.sum(answers & (again == 0), axis=1))
            np.testing.assert_array_equal(counts.fn, np.sum(~answers & (again == 1), axis=1))
            np.testing.assert_array_equal(counts.tn, np.sum(~answers & (again == 0), axis=1))


KINDS = [("shared", "f1_micro"), ("shared", "f1_macro"), ("per_label", "f1_micro"), ("per_label", "f1_macro")]


def best_per_label(cells, drawn, start):
    """Thresholds for F1 of all labels on rows that are repeated: change one as long as that helps."""
    repeated = [(np.repeat(c.scores, drawn), np.repeat(c.positive, drawn)) for c in cells]
    thresholds = np.full(len(cells), start)

    def value(candidate):
        pairs = list(zip(repeated, candidate, strict=True))
        tp = sum(np.sum((s > cut) & p) for (s, p), cut in pairs)
        return 2 * tp / max(sum(np.sum(s > cut) + np.sum(p) for (s, p), cut in pairs), 1)

    while True:
        before = thresholds
        for label, cell in enumerate(cells):
            options = [np.r_[thresholds[:label], cut, thresholds[label + 1 :]] for cut in cell.cuts(start)]
            values = np.array([value(option) for option in options])
            if values.max() > value(thresholds) + 1e-12:
                best = [option for option, v in zip(options, values, strict=True) if v >= values.max() - 1e-12]
                thresholds = best[np.argmin([abs(option[label] - thresholds[label]) for option in best])]
        if np.array_equal(before, thresholds):
            return thresholds


@pytest.mark.parametrize(("kind", "scoring"), KINDS)
@settings(max_examples=8)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_threshold_has_the_mean_number_of_yeses_of_the_resamples(kind, scoring, seed):
    scores, _, cells = scored(seed, n_rows=12)
    resamples = resampled(seed, len(scores))

    def yeses(thresholds):
        above = np.sum(scores > thresholds, axis=0)
        return above if kind == "per_label" else above.sum(keepdims=True)

    if (kind, scoring) == ("per_label", "f1_micro"):  # every search starts from the same shared threshold
        start = choose_thresholds(cells, "shared", scoring, 0.0, resamples)[0]
        single = [best_per_label(cells, drawn, start) for drawn in resamples]
    else:
        single = [choose_thresholds(cells, kind, scoring, 0.0, drawn[None]) for drawn in resamples]
    wanted = np.mean([yeses(thresholds) for thresholds in single], axis=0)
    found = yeses(choose_thresholds(cells, kind, scoring, 0.0, resamples))
    columns = scores.T if kind == "per_label" else [scores.ravel()]
    for column, number, mean in zip(columns, found, wanted, strict=True):
        possible = np.sum(column > every_cut(column)[:, None], axis=1)
        assert abs(number - mean) == pytest.approx(np.abs(possible - mean).min())


@pytest.mark.parametrize(("kind", "scoring"), KINDS)
def test_neither_the_order_of_labels_nor_a_monotone_scale_matters(kind, scoring):
    scores, truth, cells = scored(5, n_rows=40, n_labels=4)
    resamples = resampled(0, 40)
    found = choose_thresholds(cells, kind, scoring, 0.0, resamples)
    order = [2, 0, 3, 1]
    again = choose_thresholds([cells[i] for i in order], kind, scoring, 0.0, resamples)
    np.testing.assert_array_equal(scores[:, order] > again, (scores > found)[:, order])
    bent = np.tanh(scores / 4)
    again = choose_thresholds(cells_of(bent, truth == 1), kind, scoring, 0.0, resamples)
    np.testing.assert_array_equal(bent > again, scores > found)


def test_rows_as_they_are_are_one_resample():
    _, _, cells = scored(2, n_rows=60, n_labels=3)
    once = np.ones((2, 60), dtype=np.uint8)
    for kind, scoring in KINDS:
        np.testing.assert_array_equal(
            choose_thresholds(cells, kind, scoring, 0.0, once), choose_thresholds(cells, kind, scoring, 0.0)
        )
    assert draw_resamples(60, 0, np.random.RandomState(0)) is None


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32 - 1), unit=st.sampled_from([1.0, 1e-3]))
def test_weights_of_rows_are_repeated_rows_in_any_unit(seed, unit):
    scores, truth, cells = scored(seed, n_rows=12)
    weights = np.random.default_rng(seed).integers(1, 4, 12)
    repeated = cells_of(np.repeat(scores, weights, axis=0), np.repeat(truth, weights, axis=0) == 1)
    for kind, scoring in KINDS:
        found = choose_thresholds(cells, kind, scoring, 0.0, weights=unit * weights)
        np.testing.assert_array_equal(found, choose_thresholds(repeated, kind, scoring, 0.0))
    found = choose_thresholds(cells, "per_label", balanced_accuracy_score, 0.0, weights=unit * weights)
    np.testing.assert_array_equal(found, choose_thresholds(repeated, "per_label", balanced_accuracy_score, 0.0))


def test_rows_of_weight_zero_are_not_there():
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
    plain = clone(model).fit(X[there], Y[there])
    assert not np.array_equal(found.thresholds_, plain.thresholds_)
    with pytest.raises(ValueError, match="sample_weight"):
        clone(model).fit(X, Y, sample_weight=-weights)


def test_thresholds_of_resamples_are_nearer_to_the_best_of_the_population():
    """Scores are normal with mean 0 or 1.5, one label in ten is on: F1 of every threshold is known."""
    cuts = np.linspace(-2, 4, 601)
    on, off = 0.1 * norm.sf(cuts - 1.5), 0.9 * norm.sf(cuts)
    best = cuts[np.argmax(2 * on / (on + off + 0.1))]
    jumps, means = [], []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        truth = rng.random(300) < 0.1
        cells = cells_of((rng.standard_normal(300) + 1.5 * truth)[:, None], truth[:, None])
        jumps.append(choose_thresholds(cells, "per_label", "f1_macro", 0.0)[0] - best)
        means.append(choose_thresholds(cells, "per_label", "f1_macro", 0.0, resampled(seed, 300, 50))[0] - best)
    assert np.mean(np.square(means)) < 0.8 * np.mean(np.square(jumps))


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        (MultiLabelThresholdCV(LogisticRegression(), cv=2), 62),
        (MultiLabelThresholdCV(classifier(3, C=1.0, max_iter=2, temperature=0.0), cv=2), 67),
    ],
    ids=["logistic regression", "multi-task"],
)
def test_all_of_scikit_learns_checks_pass(estimator, expected):
    by_rows = {"check_sample_weight_equivalence_on_dense_data": "folds and resamples are drawn by rows"}
    by_rows["check_sample_weight_equivalence_on_sparse_data"] = by_rows["check_sample_weight_equivalence_on_dense_data"]
    results = check_estimator(estimator, on_skip=None, on_fail=None, expected_failed_checks=by_rows)
    failed = {result["check_name"]: result["exception"] for result in results if result["status"] == "failed"}
    skipped = {result["check_name"] for result in results if result["status"] == "skipped"}
    assert not failed
    assert skipped <= {"check_array_api_input", "check_classifiers_multilabel_output_format_predict_proba"}
    assert Counter(result["status"] for result in results)["passed"] == expected - len(skipped)


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
def test_rare_labels_are_found_at_their_thresholds(inner):
    X, Y = rare()
    tuned = MultiLabelThresholdCV(inner, cv=3, random_state=0).fit(X, Y)
    plain = clone(inner).fit(X, Y)
    assert tuned.thresholds_.shape == (3,)
    assert METRICS["f1_macro"](Y, tuned.predict(X)) > METRICS["f1_macro"](Y, plain.predict(X)) + 0.1
    np.testing.assert_array_equal(tuned.predict(X), tuned.decision_function(X) > 0)


def test_probabilities_and_log_odds_are_cut_alike():
    X, Y = rare()
    odds = MultiLabelThresholdCV(OneVsRestClassifier(LogisticRegression()), cv=3, random_state=0).fit(X, Y)
    shares = MultiLabelThresholdCV(MultiOutputClassifier(LogisticRegression()), cv=3, random_state=0).fit(X, Y)
    np.testing.assert_array_equal(odds.predict(X), shares.predict(X))
    exact = MultiLabelThresholdCV(odds.estimator, n_resamples=0, cv=3, random_state=0).fit(X, Y)
    assert np.any(exact.thresholds_ != odds.thresholds_)
    with pytest.raises(ValueError, match="n_resamples"):
        MultiLabelThresholdCV(odds.estimator, n_resamples=-1).fit(X, Y)


def test_repeated_folds_score_a_row_several_times():
    X, Y = rare(n_rows=80)
    inner = OneVsRestClassifier(LogisticRegression())
    folds = RepeatedKFold(n_splits=2, n_repeats=2, random_state=0)
    tuned = MultiLabelThresholdCV(inner, n_resamples=0, cv=folds).fit(X, Y)
    parts = list(folds.split(X))
    rows = np.concatenate([test for _, test in parts])
    scores = np.concatenate([clone(inner).fit(X[train], Y[train]).decision_function(X[test]) for train, test in parts])
    assert len(rows) == 2 * len(X)
    values = [
        max(f1_score(truth, column > cut) for cut in every_cut(column))
        for column, truth in zip(scores.T, Y[rows].T, strict=True)
    ]
    assert METRICS["f1_macro"](Y[rows], (scores > tuned.thresholds_).astype(int)) == pytest.approx(np.mean(values))


def test_shared_thresholds_are_one_number():
    X, Y = rare()
    tuned = MultiLabelThresholdCV(classifier(), thresholds="shared", cv=3, random_state=0).fit(X, Y)
    assert len(set(tuned.thresholds_)) == 1
    assert METRICS["f1_micro"](Y, tuned.predict(X)) > METRICS["f1_micro"](Y, tuned.estimator_.predict(X))
    balanced = MultiLabelThresholdCV(classifier(), scoring=balanced_accuracy_score, cv=3, random_state=0).fit(X, Y)
    assert np.all(balanced.thresholds_ < 0)


@pytest.mark.parametrize("scoring", [None, "accuracy", "f1_micro", accuracy_score])
def test_a_label_that_no_fold_can_score_keeps_the_default(scoring):
    """With one yes and one no, every fold that holds one of them out has only the other class to learn from."""
    X, Y = rare()
    Y = Y.astype(float)
    Y[:, 0] = np.nan
    Y[:2, 0] = [0.0, 1.0]
    tuned = MultiLabelThresholdCV(classifier(), scoring=scoring, cv=2, random_state=0).fit(X, Y)
    if scoring == "f1_micro":
        shared = MultiLabelThresholdCV(classifier(), thresholds="shared", cv=2, random_state=0).fit(X, Y)
        assert tuned.thresholds_[0] == shared.thresholds_[0]
    else:
        assert tuned.thresholds_[0] == 0.0
    if scoring is None:
        assert np.all(tuned.thresholds_[1:] != 0.0)  # the others are searched as ever


def test_missing_labels_are_left_out():
    X, Y = rare()
    some = holes(Y)
    tuned = MultiLabelThresholdCV(classifier(), cv=3, random_state=0).fit(X, some)
    seen = ~np.isnan(some)
    assert tuned.score(X, some) == pytest.approx(np.mean(tuned.predict(X)[seen] == some[seen]))
    first = (np.arange(len(X)) < 10).astype(float)
    assert tuned.score(X, some, sample_weight=first) == pytest.approx(tuned.score(X[:10], some[:10]))
    marked = Y.copy()
    marked[0, 0] = 5
    with pytest.raises(ValueError, match="Only binary classification is supported"):
        MultiLabelThresholdCV(classifier()).fit(X, marked)


def test_saving(tmp_path):
    X, Y = rare()
    tuned = MultiLabelThresholdCV(classifier(), cv=KFold(2), random_state=0).fit(X, Y)
    tuned.save(tmp_path / "tuned.regbayes")
    np.testing.assert_array_equal(regbayes.load(tmp_path / "tuned.regbayes").predict(X), tuned.predict(X))
