"""Cross-validation of the multi-task estimators."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.model_selection import KFold

from multitask_tools import (
    classifier_cv,
    groups,
    holes,
    labels,
    numbers,
    regressor_cv,
)
from regbayes.estimators._folds import multitask_folds
from regbayes.estimators._task_bases import read_targets

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def test_every_combination_is_tried_and_the_best_is_refitted():
    X, Y = labels()
    model = classifier_cv(task_sharings=(0.0, 1.0)).fit(X, holes(Y))
    results = model.cv_results_
    assert len(results["mean_test_score"]) == 2 * 2 * 2
    best = int(np.argmax(results["mean_test_score"]))
    assert model.best_score_ == results["mean_test_score"][best]
    for name in ("C", "task_sharing", "include_inputs", "temperature", "generative_weight"):
        assert getattr(model, f"{name}_") == results[f"param_{name}"][best]
        assert getattr(model.best_estimator_, name) == getattr(model, f"{name}_")
    np.testing.assert_array_equal(model.predict(X), model.best_estimator_.predict(X))
    with pytest.raises(ValueError, match="Cs is empty"):
        classifier_cv(Cs=()).fit(X, Y)
    with pytest.raises(ValueError, match=r"task_sharings\[1\]"):
        classifier_cv(task_sharings=(1.0, -1.0)).fit(X, Y)


def test_named_scores_know_the_tasks():
    X, y, task = groups()
    own = regressor_cv().fit(X, y, task=task)
    named = regressor_cv(scoring="r2").fit(X, y, task=task)
    np.testing.assert_allclose(named.cv_results_["mean_test_score"], own.cv_results_["mean_test_score"])
    ranked = classifier_cv(scoring="roc_auc").fit(X, (y > np.median(y)).astype(int), task=task)
    assert 0.5 < ranked.best_score_ <= 1.0
    with pytest.raises(ValueError, match="cannot leave missing targets out"):
        regressor_cv(scoring="r2").fit(*(numbers()[0], holes(numbers()[1])))


def test_folds_divide_every_task_and_leave_none_unseen():
    rng = np.random.default_rng(0)
    task = np.concatenate([np.repeat(np.arange(5), 20), [7]])  # one task has a single row
    y = rng.standard_normal(len(task))
    y[:4] = np.nan
    X = rng.standard_normal((len(task), 2))
    targets = read_targets(y, task, X, numeric=True)
    folds = list(multitask_folds(4, X, targets, targets.tasks, np.random.RandomState(0)))
    assert len(folds) == 4
    for train, test in folds:
        assert not set(train) & set(test)
        assert set(train) | set(test) == set(range(len(task)))
        assert set(range(4)) <= set(train)  # rows without a target
        assert len(task) - 1 in train  # the only row of its task
        assert np.ptp(np.bincount(task[test], minlength=5)) <= 1
    tested = np.concatenate([test for _, test in folds])
    assert sorted(tested) == list(range(4, len(task) - 1))
    for fold in multitask_folds(KFold(3), X, targets, targets.tasks, np.random.RandomState(0)):
        assert len(task) - 1 in fold[0]


def test_processes_do_not_change_the_choice():
    X, Y = labels()
    one, two = classifier_cv(n_jobs=1).fit(X, Y), classifier_cv(n_jobs=2).fit(X, Y)
    np.testing.assert_array_equal(one.cv_results_["mean_test_score"], two.cv_results_["mean_test_score"])
