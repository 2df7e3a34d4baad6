"""Test the two formats of tasks, their classes, and missing targets."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import accuracy_score, r2_score

from multitask_tools import (
    classifier,
    classifier_cv,
    data_for,
    every_estimator,
    groups,
    holes,
    labels,
    numbers,
    ragged_for,
    regressor,
)
from reference_tools import fits_its_rows

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


# --- matrix and ragged tasks


@every_estimator
def test_matrix_of_targets_has_one_task_per_column(make):
    X, Y = data_for(make)
    fitted = make().fit(X, Y)
    assert fitted.predict(X).shape == Y.shape
    assert fitted.tasks_.tolist() == [0, 1, 2]
    assert fitted.coef_features_.shape == (3, fitted.n_components_)
    with pytest.raises(ValueError, match="fitted without `task`"):
        fitted.predict(X, task=np.zeros(len(X)))


@every_estimator
def test_ragged_tasks_predict_one_value_per_sample(make):
    X, y, task = ragged_for(make)
    fitted = make().fit(X, y, task=task)
    assert fitted.predict(X, task=task).shape == y.shape
    assert fitted.tasks_.tolist() == ["east", "north", "south", "west"]
    with pytest.raises(ValueError, match=r"fitted with `task`.*requires `task`"):
        fitted.predict(X)
    with pytest.raises(ValueError, match="one entry per row"):
        fitted.predict(X, task=task[:-1])
    with pytest.raises(ValueError, match="task has dtype"):
        fitted.predict(X, task=np.arange(len(X)))


@every_estimator
def test_vector_of_targets_is_one_task(make):
    X, Y = data_for(make)
    vector, column = make().fit(X, Y[:, 0]), make().fit(X, Y[:, :1])
    assert vector.predict(X).shape == (len(X),)
    np.testing.assert_array_equal(vector.predict(X), column.predict(X)[:, 0])


@pytest.mark.parametrize("weight", [0.7, "auto"])
@pytest.mark.parametrize("sharing", [0.0, 1.0])
@pytest.mark.parametrize("make", [classifier, regressor])
def test_complete_matrix_matches_stacked_ragged_tasks(make, sharing, weight):
    X, Y = data_for(make)
    n_rows, n_tasks = Y.shape
    given = {"task_sharing": sharing, "max_iter": 6} | ({"scale_targets": "pooled"} if make is regressor else {})
    together = make(generative_weight=weight, **given).fit(X, Y)
    task = np.repeat(np.arange(n_tasks), n_rows)
    per_copy = weight if weight == "auto" else weight / n_tasks
    stacked = make(generative_weight=per_copy, **given).fit(np.tile(X, (n_tasks, 1)), Y.T.ravel(), task=task)
    np.testing.assert_allclose(stacked.components_, together.components_, atol=1e-3)
    method = "predict" if make is regressor else "decision_function"
    one_by_one = getattr(stacked, method)(np.tile(X, (n_tasks, 1)), task=task)
    at_once = getattr(together, method)(X)
    np.testing.assert_allclose(one_by_one.reshape(n_tasks, n_rows).T, at_once, atol=2e-2 * np.abs(at_once).max())


@pytest.mark.parametrize("make", [classifier, regressor])
@pytest.mark.parametrize("sharing", [0.0, 1.0])
def test_fit_does_not_depend_on_order_of_tasks_and_samples(make, sharing):
    X, Y = data_for(make)
    Y = holes(Y)
    tasks, rows = [2, 0, 1], np.random.default_rng(3).permutation(len(X))
    plain = make(task_sharing=sharing, max_iter=5).fit(X, Y)
    moved = make(task_sharing=sharing, max_iter=5).fit(X[rows], Y[rows][:, tasks])
    scale = np.abs(plain.coef_features_).max()
    np.testing.assert_allclose(moved.components_, plain.components_, atol=1e-3)
    np.testing.assert_allclose(moved.coef_features_, plain.coef_features_[tasks], atol=2e-2 * scale)


@pytest.mark.parametrize("make", [classifier, regressor])
def test_fit_does_not_depend_on_task_names(make):
    X, y, task = ragged_for(make)
    fitted = make().fit(X, y, task=task)
    other_names = {"north": 7, "south": 3, "east": 11, "west": 5}
    renamed = np.array([other_names[name] for name in task])
    again = make().fit(X, y, task=renamed)
    order = [list(again.tasks_).index(other_names[name]) for name in fitted.tasks_]
    np.testing.assert_allclose(
        again.coef_features_[order], fitted.coef_features_, atol=2e-2 * np.abs(fitted.coef_features_).max()
    )


def test_fit_with_task_and_matrix_raises():
    X, Y = labels()
    with pytest.raises(ValueError, match="a column per task; with task= it must have one target per row"):
        classifier().fit(X, Y, task=np.zeros(len(X)))
    with pytest.raises(ValueError, match="task contains NaN or None"):
        classifier().fit(X, Y[:, 0], task=[None] * len(X))
    with pytest.raises(ValueError, match=r"task must be of shape \(n_samples,\), got \(60, 2\)"):
        classifier().fit(X, Y[:, 0], task=Y[:, :2])
    with pytest.raises(ValueError, match=r"task must be of shape \(n_samples,\), got \(\)"):
        classifier().fit(X, Y[:, 0], task="north")
    with pytest.raises(ValueError, match="task mixes text with other types"):
        classifier().fit(X, Y[:, 0], task=np.array(["a", 1] * (len(X) // 2), dtype=object))


def test_columns_of_frame_name_the_tasks():
    X, Y = labels()
    frame = pd.DataFrame(Y, columns=["calm", "happy", "sad"])
    for make in (classifier, classifier_cv):
        assert make().fit(X, frame).tasks_.tolist() == ["calm", "happy", "sad"]


# --- classes


def test_labels_may_have_any_type():
    X, Y = labels()
    plain = classifier().fit(X, Y)
    assert plain.classes_.tolist() == [0, 1]
    words = classifier().fit(X, np.array(["no", "yes"])[Y])
    assert words.classes_.tolist() == ["no", "yes"]
    np.testing.assert_array_equal(words.predict(X) == "yes", plain.predict(X) == 1)
    with_holes = np.array(["no", "yes"], dtype=object)[Y]
    with_holes[3, 1] = None
    with_holes[4, 2] = np.nan
    assert set(np.unique(classifier().fit(X, with_holes).predict(X))) <= {"no", "yes"}


def test_tasks_may_have_different_classes():
    X, Y = numbers()
    mixed = np.empty(Y.shape, dtype=object)
    mixed[:, 0] = np.where(Y[:, 0] > 0, "yes", "no")
    mixed[:, 1] = np.digitize(Y[:, 1], [-1, 1])
    mixed[:, 2] = np.array(["a", "b", "c", "d"])[np.digitize(Y[:, 2], [-1, 0, 1])]
    fitted = classifier(C=1.0).fit(X, mixed)
    assert [classes.tolist() for classes in fitted.classes_] == [["no", "yes"], [0, 1, 2], ["a", "b", "c", "d"]]
    scores, predicted = fitted.decision_function(X), fitted.predict(X)
    assert [score.shape for score in scores] == [(60,), (60, 3), (60, 4)]
    assert fitted.coef_features_.shape == (1 + 3 + 4, 4)
    for task, score in enumerate(scores):
        best = (score > 0).astype(int) if score.ndim == 1 else score.argmax(axis=1)
        assert predicted[:, task].tolist() == fitted.classes_[task][best].tolist()
    assert fitted.score(X, mixed) == np.mean(np.all(predicted == mixed, axis=1))
    assert fits_its_rows(predicted, mixed)


def test_multiclass_task_matches_its_indicator_matrix():
    X, Y = numbers()
    y = Y.argmax(axis=1)
    one, many = classifier().fit(X, y), classifier().fit(X, np.eye(3, dtype=int)[y])
    np.testing.assert_array_equal(one.decision_function(X), many.decision_function(X))
    np.testing.assert_array_equal(one.predict(X), many.decision_function(X).argmax(axis=1))


def test_ragged_multiclass_scores_are_linear_in_features():
    X, y, task = groups()
    y = np.digitize(y, np.quantile(y, [0.3, 0.6]))
    fitted = classifier(C=1.0).fit(X, y, task=task)
    scores = fitted.decision_function(X, task=task)
    np.testing.assert_array_equal(fitted.predict(X, task=task), scores.argmax(axis=1))
    code = np.searchsorted(fitted.tasks_, task)
    by_hand = fitted.transform(X) @ fitted.coef_features_.T + fitted.intercept_
    for c in range(3):
        np.testing.assert_allclose(scores[:, c], by_hand[np.arange(len(X)), 3 * code + c], rtol=1e-9, atol=1e-12)


def test_label_that_is_always_zero_is_predicted_zero():
    X, Y = labels()
    Y[:, 1] = 0
    assert not classifier().fit(X, Y).predict(X)[:, 1].any()


def test_fit_with_too_few_classes_raises():
    X, Y = labels()
    with pytest.raises(ValueError, match="at least 2 classes"):
        classifier().fit(X, np.zeros(len(X)))
    several = np.column_stack([Y[:, 0], np.arange(len(X)) % 3, np.full(len(X), 5)])
    with pytest.raises(ValueError, match="fewer than 2 classes are observed for task 2"):
        classifier().fit(X, several)
    with pytest.raises(ValueError, match="Unknown label type"):
        classifier().fit(X, Y + 0.5 * np.random.default_rng(0).random(Y.shape))


# --- missing targets


@pytest.mark.parametrize("make", [classifier, regressor])
def test_samples_without_targets_affect_features(make):
    X, Y = data_for(make)
    Y = np.where(np.arange(len(X))[:, None] < 30, Y, np.nan)
    with_all, labelled = make().fit(X, Y), make().fit(X[:30], Y[:30])
    assert not np.allclose(with_all.mean_, labelled.mean_)
    assert not np.allclose(with_all.components_, labelled.components_, atol=1e-3)
    vector = make().fit(X, Y[:, 0])
    ragged = make(task_sharing=0).fit(X, Y[:, 0], task=np.zeros(len(X), dtype=int))
    scale = np.abs(vector.coef_features_).max()
    np.testing.assert_allclose(ragged.coef_features_, vector.coef_features_, atol=1e-6 * scale)


def test_unlabeled_value_matches_nan():
    X, Y = labels()
    Y = holes(Y)
    marked = np.where(np.isnan(Y), -1, Y).astype(int)
    plain, other = classifier().fit(X, Y), classifier(unlabeled=-1).fit(X, marked)
    np.testing.assert_array_equal(plain.decision_function(X), other.decision_function(X))
    assert other.classes_.tolist() == [0, 1]
    assert other.score(X, marked) == plain.score(X, Y)


def test_score_ignores_missing_targets():
    X, Y = labels()
    fitted, some = classifier().fit(X, Y), holes(Y)
    assert fitted.score(X, Y) == pytest.approx(accuracy_score(Y, fitted.predict(X)))
    seen = ~np.isnan(some)
    is_right = np.all((fitted.predict(X) == Y) | ~seen, axis=1)
    assert fitted.score(X, some) == pytest.approx(is_right[seen.any(axis=1)].mean())
    X, Y = numbers()
    fitted, some = regressor().fit(X, Y), holes(Y)
    assert fitted.score(X, some) == pytest.approx(r2_score(Y[seen], fitted.predict(X)[seen]))
    one = regressor().fit(X, Y[:, 0])
    assert one.score(X, Y[:, 0]) == pytest.approx(r2_score(Y[:, 0], one.predict(X)))
    assert fits_its_rows(one.predict(X), Y[:, 0])


@pytest.mark.parametrize("make", [classifier, regressor])
def test_ragged_task_without_targets_needs_shared_weights(make):
    X, y, task = ragged_for(make)
    y = np.where(task == "west", np.nan, y)
    with pytest.raises(ValueError, match=r"no target is observed for task 'west'.*unseen_tasks='shared'"):
        make().fit(X, y, task=task)
    fitted = make(unseen_tasks="shared").fit(X, y, task=task)
    answer = fitted.predict if make is regressor else fitted.decision_function
    as_west, as_new = answer(X, task=["west"] * len(X)), answer(X, task=["nowhere"] * len(X))
    np.testing.assert_allclose(as_west, as_new, rtol=1e-9, atol=1e-9)
    assert np.std(as_new) > 0.1 * np.std(answer(X, task=task))
    known = task != "west"
    others = make().fit(X[known], y[known], task=task[known])
    with pytest.raises(ValueError, match=r"task contains 'nowhere'.*had no target in training"):
        others.predict(X, task=["nowhere"] * len(X))
    with pytest.raises(ValueError, match="unseen_tasks='shared'` requires `task_sharing` above 0"):
        make(unseen_tasks="shared", task_sharing=0).fit(X, y, task=task)


def test_column_without_targets_needs_shared_weights():
    X, Y = labels()
    Y = np.column_stack([Y, np.full(len(X), np.nan)])
    with pytest.raises(ValueError, match="no target is observed for task 3"):
        classifier().fit(X, Y)
    served = classifier(unseen_tasks="shared", task_sharing=1.0).fit(X, Y)
    shared = served._state.tasks.shared[0]
    np.testing.assert_allclose(served.coef_features_[3], shared[served._used], rtol=1e-9)
    X, Y = numbers()
    Y = np.column_stack([Y, np.full(len(X), np.nan)])
    with pytest.raises(ValueError, match="requires targets in one unit"):
        regressor(unseen_tasks="shared", task_sharing=1.0).fit(X, Y)
    predicted = regressor(unseen_tasks="shared", task_sharing=1.0, scale_targets="pooled").fit(X, Y).predict(X)
    assert np.all(np.isfinite(predicted))
    with pytest.raises(ValueError, match="every value is missing"):
        regressor().fit(X, np.full(Y.shape, np.nan))
