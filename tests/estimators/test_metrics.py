"""Test metrics of several tasks against scikit-learn and explicit formulas."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, r2_score

from regbayes.metrics import explained_variance_pooled, explained_variance_within_tasks, subset_accuracy, task_accuracy


def ragged(seed):
    rng = np.random.default_rng(seed)
    task = rng.integers(0, 4, 50)
    y = rng.standard_normal(50) + 2.0 * task
    return y, y + rng.standard_normal(50), task


@given(st.integers(0, 2**32 - 1))
def test_explained_variances_match_r2_score(seed):
    y, predicted, task = ragged(seed)
    assert explained_variance_pooled(y, predicted, task) == pytest.approx(r2_score(y, predicted))
    # Within tasks: R² after centering targets and predictions by the task means of the targets.
    means = np.array([y[task == t].mean() for t in task])
    assert explained_variance_within_tasks(y, predicted, task) == pytest.approx(r2_score(y - means, predicted - means))
    assert explained_variance_within_tasks(y, predicted, task) <= explained_variance_pooled(y, predicted) + 1e-12


def test_matrix_with_missing_values_matches_long_format():
    rng = np.random.default_rng(1)
    Y = rng.standard_normal((20, 3)) + np.array([0.0, 5.0, -5.0])
    predicted = Y + rng.standard_normal(Y.shape)
    Y[rng.random(Y.shape) < 0.3] = np.nan
    seen = ~np.isnan(Y)
    cells, answers, task = Y[seen], predicted[seen], np.nonzero(seen)[1]
    assert explained_variance_pooled(Y, predicted) == pytest.approx(explained_variance_pooled(cells, answers))
    within = explained_variance_within_tasks(cells, answers, task)
    assert explained_variance_within_tasks(Y, predicted) == pytest.approx(within)


def test_explained_variance_of_constant_target_is_one_or_zero():
    assert explained_variance_pooled([2.0, 2.0], [2.0, 2.0]) == 1.0
    assert explained_variance_pooled([2.0, 2.0], [2.0, 3.0]) == 0.0


def test_accuracy_ignores_missing_labels():
    truth = np.array([["a", "b"], ["b", None], [None, "a"]], dtype=object)
    predicted = np.array([["a", "a"], ["b", "b"], ["a", "a"]])
    assert task_accuracy(truth, predicted) == pytest.approx(3 / 4)
    assert task_accuracy([1, 0, -1], [1, 1, 1], unlabeled=-1) == pytest.approx(1 / 2)
    assert task_accuracy([1, 0, 2], [1, 1, 2]) == accuracy_score([1, 0, 2], [1, 1, 2])
    assert subset_accuracy(truth, predicted) == pytest.approx(2 / 3)
    unseen = np.array([["a", "b"], [None, None], ["b", "a"]], dtype=object)
    assert subset_accuracy(unseen, predicted) == 0.0
    Y, guesses = np.random.default_rng(0).integers(0, 2, (2, 50, 3))
    weights = np.arange(50) % 4
    expected = accuracy_score(Y, guesses, sample_weight=weights)
    assert subset_accuracy(Y, guesses, sample_weight=weights) == pytest.approx(expected)


def test_metrics_with_different_shapes_raise():
    with pytest.raises(ValueError, match=r"y_pred has shape \(4, 2\), but y_true has \(4, 3\)"):
        explained_variance_pooled(np.zeros((4, 3)), np.zeros((4, 2)))
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        task_accuracy([1, 2], [1, 2, 3])


def test_metrics_sample_weights_match_copies():
    y, predicted, task = ragged(2)
    weights = np.arange(len(y)) % 4
    copies = np.repeat(np.arange(len(y)), weights)
    pooled = explained_variance_pooled(y, predicted, task, sample_weight=weights)
    assert pooled == pytest.approx(r2_score(y, predicted, sample_weight=weights))
    within = explained_variance_within_tasks(y, predicted, task, sample_weight=weights)
    assert within == pytest.approx(explained_variance_within_tasks(y[copies], predicted[copies], task[copies]))
    labels, answers = y > 3, predicted > 3
    assert task_accuracy(labels, answers, sample_weight=weights) == pytest.approx(
        accuracy_score(labels, answers, sample_weight=weights)
    )
    with pytest.raises(ValueError, match="sample_weight"):
        task_accuracy(labels, answers, sample_weight=weights[:-1])
