"""The multi-task estimators: scikit-learn's promises, the two ways to give tasks, missing targets, prices."""

from __future__ import annotations

import pickle
from collections import Counter

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import clone
from sklearn.callback import ScoringMonitor
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.metrics import accuracy_score, hamming_loss, r2_score
from sklearn.model_selection import KFold, cross_validate
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import check_estimator

import regbayes
from multitask_tools import classifier, classifier_cv, groups, holes, labels, numbers, regressor, regressor_cv
from regbayes import TruncationWarning
from regbayes.estimators._multitask_search import multitask_folds
from regbayes.estimators._tasks import read_targets
from regbayes.models.mt_ilsvm.predict import INPUT_GAIN

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

MAKERS = {
    "classifier": classifier,
    "regressor": regressor,
    "classifier CV": classifier_cv,
    "regressor CV": regressor_cv,
}
every_estimator = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())


def data_for(make):
    return numbers() if make in (regressor, regressor_cv) else labels()


def ragged_for(make):
    X, y, task = groups()
    return (X, y, task) if make in (regressor, regressor_cv) else (X, (y > np.median(y)).astype(int), task)


# --- scikit-learn's own checks


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        (classifier(C=1.0), 67),
        (regressor(C=1.0, max_iter=30), 59),
        (classifier_cv(3, Cs=(1.0,), include_inputs=(False,), temperatures=(0.0,), max_iter=2), 67),
        (regressor_cv(3, Cs=(1.0,), include_inputs=(False,), temperatures=(0.0,), max_iter=3), 59),
    ],
    ids=MAKERS.keys(),
)
def test_all_of_scikit_learns_checks_pass(estimator, expected):
    results = check_estimator(estimator, on_skip=None, on_fail=None)
    failed = {result["check_name"]: result["exception"] for result in results if result["status"] == "failed"}
    skipped = {result["check_name"] for result in results if result["status"] == "skipped"}
    assert not failed
    # the first runs where SCIPY_ARRAY_API is set, the second is about predict_proba
    assert skipped <= {"check_array_api_input", "check_classifiers_multilabel_output_format_predict_proba"}
    assert Counter(result["status"] for result in results)["passed"] == expected - len(skipped)


# --- the two ways in


@every_estimator
def test_a_matrix_gives_a_column_per_task(make):
    X, Y = data_for(make)
    fitted = make().fit(X, Y)
    assert fitted.predict(X).shape == Y.shape
    assert fitted.tasks_.tolist() == [0, 1, 2]
    assert fitted.coef_.shape == (3, 4)
    with pytest.raises(ValueError, match="fitted without task="):
        fitted.predict(X, task=np.zeros(len(X)))


@every_estimator
def test_ragged_tasks_give_one_answer_per_row_and_must_be_named(make):
    X, y, task = ragged_for(make)
    fitted = make().fit(X, y, task=task)
    assert fitted.predict(X, task=task).shape == y.shape
    assert fitted.tasks_.tolist() == ["east", "north", "south", "west"]
    with pytest.raises(ValueError, match=r"fitted with task=.*needs task= too"):
        fitted.predict(X)
    with pytest.raises(ValueError, match="one entry per row"):
        fitted.predict(X, task=task[:-1])
    with pytest.raises(ValueError, match="task has dtype"):
        fitted.predict(X, task=np.arange(len(X)))


@every_estimator
def test_a_vector_is_one_task(make):
    X, Y = data_for(make)
    vector, column = make().fit(X, Y[:, 0]), make().fit(X, Y[:, :1])
    assert vector.predict(X).shape == (len(X),)
    np.testing.assert_array_equal(vector.predict(X), column.predict(X)[:, 0])


@pytest.mark.parametrize("weight", [0.7, "auto"])
@pytest.mark.parametrize("sharing", [0.0, 1.0])
@pytest.mark.parametrize("make", [classifier, regressor])
def test_a_complete_matrix_equals_stacked_rows_at_a_generative_weight_divided_by_the_tasks(make, sharing, weight):
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
def test_the_order_of_tasks_and_rows_does_not_matter(make, sharing):
    X, Y = data_for(make)
    Y = holes(Y)
    tasks, rows = [2, 0, 1], np.random.default_rng(3).permutation(len(X))
    plain = make(task_sharing=sharing, max_iter=5).fit(X, Y)
    moved = make(task_sharing=sharing, max_iter=5).fit(X[rows], Y[rows][:, tasks])
    scale = np.abs(plain.coef_).max()
    np.testing.assert_allclose(moved.components_, plain.components_, atol=1e-3)
    np.testing.assert_allclose(moved.coef_, plain.coef_[tasks], atol=2e-2 * scale)


@pytest.mark.parametrize("make", [classifier, regressor])
def test_the_names_of_ragged_tasks_do_not_matter(make):
    X, y, task = ragged_for(make)
    fitted = make().fit(X, y, task=task)
    other_names = {"north": 7, "south": 3, "east": 11, "west": 5}
    renamed = np.array([other_names[name] for name in task])
    again = make().fit(X, y, task=renamed)
    order = [list(again.tasks_).index(other_names[name]) for name in fitted.tasks_]
    np.testing.assert_allclose(again.coef_[order], fitted.coef_, atol=2e-2 * np.abs(fitted.coef_).max())


def test_task_needs_one_target_per_row():
    X, Y = labels()
    with pytest.raises(ValueError, match="a column per task; with task= it must have one target per row"):
        classifier().fit(X, Y, task=np.zeros(len(X)))
    with pytest.raises(ValueError, match="task contains NaN or None"):
        classifier().fit(X, Y[:, 0], task=[None] * len(X))
    with pytest.raises(ValueError, match="task mixes text with other types"):
        classifier().fit(X, Y[:, 0], task=np.array(["a", 1] * (len(X) // 2), dtype=object))


def test_columns_of_a_frame_name_the_tasks():
    X, Y = labels()
    frame = pd.DataFrame(Y, columns=["calm", "happy", "sad"])
    for make in (classifier, classifier_cv):
        assert make().fit(X, frame).tasks_.tolist() == ["calm", "happy", "sad"]


# --- classes


def test_any_labels_will_do():
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


def test_columns_may_have_different_classes():
    X, Y = numbers()
    mixed = np.empty(Y.shape, dtype=object)
    mixed[:, 0] = np.where(Y[:, 0] > 0, "yes", "no")
    mixed[:, 1] = np.digitize(Y[:, 1], [-1, 1])
    mixed[:, 2] = np.array(["a", "b", "c", "d"])[np.digitize(Y[:, 2], [-1, 0, 1])]
    fitted = classifier(C=1.0).fit(X, mixed)
    assert [classes.tolist() for classes in fitted.classes_] == [["no", "yes"], [0, 1, 2], ["a", "b", "c", "d"]]
    scores, predicted = fitted.decision_function(X), fitted.predict(X)
    assert [score.shape for score in scores] == [(60,), (60, 3), (60, 4)]
    assert fitted.coef_.shape == (1 + 3 + 4, 4)
    for task, score in enumerate(scores):
        best = (score > 0).astype(int) if score.ndim == 1 else score.argmax(axis=1)
        assert predicted[:, task].tolist() == fitted.classes_[task][best].tolist()
    assert fitted.score(X, mixed) == np.mean(predicted == mixed) > 0.5


def test_a_multi_class_task_is_the_multi_label_problem_of_its_indicator():
    X, Y = numbers()
    y = Y.argmax(axis=1)
    one, many = classifier().fit(X, y), classifier().fit(X, np.eye(3, dtype=int)[y])
    np.testing.assert_array_equal(one.decision_function(X), many.decision_function(X))
    np.testing.assert_array_equal(one.predict(X), many.decision_function(X).argmax(axis=1))


def test_ragged_tasks_with_several_classes():
    X, y, task = groups()
    y = np.digitize(y, np.quantile(y, [0.3, 0.6]))
    fitted = classifier(C=1.0).fit(X, y, task=task)
    scores = fitted.decision_function(X, task=task)
    assert scores.shape == (len(X), 3)
    np.testing.assert_array_equal(fitted.predict(X, task=task), scores.argmax(axis=1))
    code = np.searchsorted(fitted.tasks_, task)
    by_hand = fitted.transform(X) @ fitted.coef_.T + fitted.intercept_
    for c in range(3):
        np.testing.assert_allclose(scores[:, c], by_hand[np.arange(len(X)), 3 * code + c], rtol=1e-9, atol=1e-12)


def test_a_label_that_is_never_on_is_learned_as_such():
    X, Y = labels()
    Y[:, 1] = 0
    assert not classifier().fit(X, Y).predict(X)[:, 1].any()


def test_too_few_classes_are_refused():
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
def test_rows_without_targets_shape_the_features(make):
    X, Y = data_for(make)
    Y = np.where(np.arange(len(X))[:, None] < 30, Y, np.nan)
    with_all, labelled = make().fit(X, Y), make().fit(X[:30], Y[:30])
    assert not np.allclose(with_all.mean_, labelled.mean_)
    assert not np.allclose(with_all.components_, labelled.components_, atol=1e-3)
    vector = make().fit(X, Y[:, 0])
    ragged = make(task_sharing=0).fit(X, Y[:, 0], task=np.zeros(len(X), dtype=int))
    scale = np.abs(vector.coef_).max()
    np.testing.assert_allclose(ragged.coef_, vector.coef_, atol=1e-6 * scale)


def test_a_value_may_mark_missing_labels():
    X, Y = labels()
    Y = holes(Y)
    marked = np.where(np.isnan(Y), -1, Y).astype(int)
    plain, other = classifier().fit(X, Y), classifier(unlabeled=-1).fit(X, marked)
    np.testing.assert_array_equal(plain.decision_function(X), other.decision_function(X))
    assert other.classes_.tolist() == [0, 1]
    assert other.score(X, marked) == plain.score(X, Y)


def test_scores_are_over_observed_cells():
    X, Y = labels()
    fitted, some = classifier().fit(X, Y), holes(Y)
    assert fitted.score(X, Y) == pytest.approx(1 - hamming_loss(Y, fitted.predict(X)))
    seen = ~np.isnan(some)
    assert fitted.score(X, some) == pytest.approx(accuracy_score(Y[seen], fitted.predict(X)[seen]))
    X, Y = numbers()
    fitted, some = regressor().fit(X, Y), holes(Y)
    assert fitted.score(X, some) == pytest.approx(r2_score(Y[seen], fitted.predict(X)[seen]))
    assert regressor().fit(X, Y[:, 0]).score(X, Y[:, 0]) > 0.5


@pytest.mark.parametrize("make", [classifier, regressor])
def test_tasks_without_targets_are_refused_or_served_by_the_shared_weights(make):
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
    with pytest.raises(ValueError, match="unseen_tasks='shared' needs weights that tasks share"):
        make(unseen_tasks="shared", task_sharing=0).fit(X, y, task=task)


def test_an_empty_column_is_refused_or_served_by_the_shared_weights():
    X, Y = labels()
    Y = np.column_stack([Y, np.full(len(X), np.nan)])
    with pytest.raises(ValueError, match="no target is observed for task 3"):
        classifier().fit(X, Y)
    served = classifier(unseen_tasks="shared", task_sharing=1.0).fit(X, Y)
    shared = served._state.tasks.shared[0]
    np.testing.assert_allclose(served.coef_[3], shared[:4], rtol=1e-9)
    X, Y = numbers()
    Y = np.column_stack([Y, np.full(len(X), np.nan)])
    with pytest.raises(ValueError, match="needs targets in one unit"):
        regressor(unseen_tasks="shared", task_sharing=1.0).fit(X, Y)
    predicted = regressor(unseen_tasks="shared", task_sharing=1.0, scale_targets="pooled").fit(X, Y).predict(X)
    assert np.all(np.isfinite(predicted))
    with pytest.raises(ValueError, match="every value is missing"):
        regressor().fit(X, np.full(Y.shape, np.nan))


# --- weights and prices


@pytest.mark.parametrize("include_inputs", [False, True])
@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("make", [classifier, regressor])
def test_answers_are_linear_in_what_tasks_see(make, fit_intercept, include_inputs):
    X, Y = data_for(make)
    fitted = make(include_inputs=include_inputs, fit_intercept=fit_intercept).fit(X, Y)
    by_hand = fitted.transform(X) @ fitted.coef_.T + fitted.intercept_
    if include_inputs:
        by_hand += (X - fitted.mean_) / fitted.scale_ @ fitted.coef_inputs_.T
    else:
        assert not hasattr(fitted, "coef_inputs_")
    answers = fitted.predict(X) if make is regressor else fitted.decision_function(X)
    np.testing.assert_allclose(answers, by_hand, rtol=1e-9, atol=1e-9)
    if make is classifier:
        np.testing.assert_array_equal(fitted.predict(X), answers > 0)


@pytest.mark.parametrize("include_inputs", [False, True])
def test_decoupled_is_factor_analysis_and_then_liblinear(include_inputs):
    X, Y = labels()
    fitted = classifier(margins="decoupled", include_inputs=include_inputs, C=0.5).fit(X, Y)
    seen = fitted.transform(X)
    if include_inputs:
        standardized = (X - X.mean(axis=0)) / X.std(axis=0)
        seen = np.hstack([seen, INPUT_GAIN * standardized / np.sqrt(X.shape[1])])
    for task, y in enumerate(Y.T):
        svm = LinearSVC(C=0.5, intercept_scaling=1.0, tol=1e-8, max_iter=100_000, random_state=0).fit(seen, y)
        np.testing.assert_allclose(fitted.decision_function(X)[:, task], svm.decision_function(seen), atol=5e-2)
    other = classifier(margins="decoupled", include_inputs=include_inputs).fit(X, 1 - Y)
    np.testing.assert_array_equal(other.components_, fitted.components_)


def test_prices_by_class():
    X, Y = labels()
    rng = np.random.default_rng(5)
    Y = np.where(rng.random(Y.shape) < 0.3, 1 - Y, Y)
    heavy = {"class_weight": {1: 50.0}}
    plain, dear = classifier().fit(X, Y).predict(X), classifier(**heavy).fit(X, Y).predict(X)
    assert dear.mean() > plain.mean() + 0.1
    # a cost on missed positives is a weight on positives
    cost = classifier(cost=[[0.0, 1.0], [50.0, 0.0]]).fit(X, Y)
    np.testing.assert_array_equal(cost.predict(X), dear)
    only_first = classifier(class_weight=[{1: 50.0}, {}, {}]).fit(X, Y).predict(X)
    assert only_first[:, 0].mean() > plain[:, 0].mean() + 0.1
    with pytest.raises(ValueError, match="lists 1 dicts, but there are 3 tasks"):
        classifier(class_weight=[{1: 2.0}]).fit(X, Y)
    with pytest.raises(ValueError, match="class_weight has 7, which is a class of no task"):
        classifier(class_weight={7: 2.0}).fit(X, Y)
    with pytest.raises(ValueError, match="class_weight must not be negative"):
        classifier(class_weight={1: -2.0}).fit(X, Y)


def test_balanced_weights_are_those_of_each_task():
    X, Y = labels()
    Y[:40, 0] = 0
    balanced = classifier(class_weight="balanced").fit(X, Y)
    counts = [np.bincount(y) for y in Y.T]
    by_hand = [dict(enumerate(len(X) / (2 * count))) for count in counts]
    np.testing.assert_allclose(
        balanced.decision_function(X), classifier(class_weight=by_hand).fit(X, Y).decision_function(X), rtol=1e-9
    )


def test_costs_say_which_mistakes_are_dear():
    rng = np.random.default_rng(0)
    y = np.arange(300) % 3
    X = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])[y] + rng.standard_normal((300, 2))
    cost = np.array([[0.0, 20.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 0.0]])

    def mistakes(**given):
        predicted = classifier(6, C=1.0, **given).fit(X, y).predict(X)
        return np.sum((y == 0) & (predicted == 1))

    assert mistakes(cost=cost) < 0.5 * mistakes()
    assert mistakes(cost=1.0 - np.eye(3)) == mistakes()
    with pytest.raises(ValueError, match=r"cost must have shape \(3, 3\)"):
        mistakes(cost=np.zeros((2, 2)))
    with pytest.raises(ValueError, match="zero diagonal"):
        mistakes(cost=np.ones((3, 3)))
    with pytest.raises(ValueError, match="tasks with the same classes"):
        classifier(cost=cost).fit(X, np.column_stack([y, y > 0]))


def test_sharing_pulls_a_small_task_to_the_others():
    rng = np.random.default_rng(8)
    X, slopes = rng.standard_normal((300, 5)), rng.standard_normal(5)
    task = np.where(np.arange(300) < 4, 9, np.arange(300) % 5)
    y = X @ slopes + 0.3 * rng.standard_normal(300)
    new = rng.standard_normal((200, 5))
    alone = regressor(8, task_sharing=0).fit(X, y, task=task).score(new, new @ slopes, task=[9] * 200)
    shared = regressor(8).fit(X, y, task=task).score(new, new @ slopes, task=[9] * 200)  # auto: 1
    assert shared > 0.8
    assert shared > alone + 0.1


def test_epsilon_is_in_units_of_the_target():
    X, Y = numbers()
    for scale in (1e-3, 1e3):
        wide = regressor(epsilon=100.0).fit(X, scale * Y)
        np.testing.assert_allclose(wide.predict(X), np.tile(scale * Y.mean(axis=0), (len(X), 1)), rtol=1e-6)
        one, other = regressor(epsilon=0.3).fit(X, Y), regressor(epsilon=0.3).fit(X, scale * Y + 5.0)
        np.testing.assert_allclose(other.predict(X), scale * one.predict(X) + 5.0, rtol=1e-3, atol=1e-2 * scale)
    raw = regressor(scale_targets=False).fit(X, Y)
    assert raw.target_mean_.tolist() == [0.0] * 3
    assert raw.target_scale_.tolist() == [1.0] * 3


# --- bad and awkward input


@pytest.mark.parametrize("make", [classifier, regressor])
def test_awkward_arrays_give_the_same_answer(make):
    X, Y = data_for(make)
    X = X.astype(np.float32).astype(np.float64)
    plain = make().fit(X, Y).predict(X)
    read_only = X.copy()
    read_only.flags.writeable = False
    for awkward in (
        X.astype(np.float32),
        np.asfortranarray(X),
        read_only,
        X.tolist(),
        np.hstack([X, X])[:, : X.shape[1]],
    ):
        np.testing.assert_allclose(make().fit(awkward, np.asfortranarray(Y)).predict(X), plain, rtol=1e-6)


@pytest.mark.parametrize("make", [classifier, regressor])
@pytest.mark.parametrize("unit", [1e-150, 1e-8, 1e8, 1e150])
def test_units_of_the_inputs_do_not_matter(make, unit):
    X, Y = data_for(make)
    np.testing.assert_allclose(
        make(max_iter=5).fit(unit * X, Y).transform(unit * X), make(max_iter=5).fit(X, Y).transform(X), atol=1e-5
    )


def test_values_too_large_to_square_are_refused():
    X, Y = labels()
    with pytest.raises(ValueError, match="too large to square"):
        classifier(scale_inputs=False).fit(1e200 * X, Y)


@pytest.mark.parametrize("make", [classifier, regressor])
def test_constant_columns_and_duplicated_rows_do_no_harm(make):
    X, Y = data_for(make)
    X = np.column_stack([X, np.full(len(X), 0.1), np.zeros(len(X)), 1e9 * (1 + 1e-16 * np.arange(len(X)))])
    X[1], Y[1] = X[0], Y[0]
    fitted = make(20).fit(X, Y)
    assert np.all(np.isfinite(fitted.transform(X)))
    assert fitted.scale_[-3:-1].tolist() == [1.0, 1.0]
    assert fitted.score(X, Y) > 0.3
    with pytest.raises(ValueError, match="every column of X is constant"):
        make().fit(np.ones((len(X), 2)), Y)


@every_estimator
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_bad_inputs_are_refused(make, bad):
    X, Y = data_for(make)
    broken = X.copy()
    broken[3, 2] = bad
    with pytest.raises(ValueError, match=r"Input X contains (NaN|infinity)"):
        make().fit(broken, Y)
    with pytest.raises(ValueError, match=r"Input X contains (NaN|infinity)"):
        make().fit(X, Y).predict(broken)


@every_estimator
def test_bad_targets_are_refused(make):
    X, Y = data_for(make)
    with pytest.raises(ValueError, match="Input y contains infinity"):
        make().fit(X, np.where(np.isclose(Y, Y[0, 0]), np.inf, Y))
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        make().fit(X, Y[:-1])
    with pytest.raises(ValueError, match="y is None"):
        make().fit(X, None)


# --- scikit-learn's manners


@every_estimator
def test_features_have_names(make):
    X, Y = data_for(make)
    frame = pd.DataFrame(X, columns=[f"input {i}" for i in range(X.shape[1])])
    fitted = make().set_output(transform="pandas").fit(frame, Y)
    names = [f"{type(fitted).__name__.lower()}{k}" for k in range(4)]
    assert list(fitted.get_feature_names_out()) == names
    assert list(fitted.transform(frame).columns) == names
    np.testing.assert_allclose(make().fit_transform(X, Y), fitted.transform(frame))


@every_estimator
def test_a_failed_fit_does_not_look_like_a_fitted_one(make):
    X, _ = data_for(make)
    model = make()
    with pytest.raises(ValueError, match="y is None"):
        model.fit(X, None)
    with pytest.raises(NotFittedError):
        model.predict(X)


@every_estimator
def test_saving_pickling_and_cloning(make, tmp_path):
    X, y, task = ragged_for(make)
    fitted = make().fit(X, y, task=task)
    fitted.save(tmp_path / "model.regbayes")
    for found in (regbayes.load(tmp_path / "model.regbayes"), pickle.loads(pickle.dumps(fitted))):
        np.testing.assert_array_equal(found.predict(X, task=task), fitted.predict(X, task=task))
        np.testing.assert_array_equal(found.trace_.objective, fitted.trace_.objective)
        assert found.tasks_.tolist() == fitted.tasks_.tolist()
    again = clone(fitted)
    assert not hasattr(again, "coef_")
    np.testing.assert_array_equal(again.fit(X, y, task=task).predict(X, task=task), fitted.predict(X, task=task))


def test_mixed_classes_can_be_saved(tmp_path):
    X, Y = numbers()
    mixed = np.empty((len(X), 2), dtype=object)
    mixed[:, 0], mixed[:, 1] = np.where(Y[:, 0] > 0, "yes", "no"), np.digitize(Y[:, 1], [-1, 1])
    fitted = classifier().fit(X, mixed)
    fitted.save(tmp_path / "model.regbayes")
    np.testing.assert_array_equal(regbayes.load(tmp_path / "model.regbayes").predict(X), fitted.predict(X))


@every_estimator
def test_tasks_are_routed_as_metadata(make):
    X, y, task = ragged_for(make)
    with sklearn.config_context(enable_metadata_routing=True):
        model = make().set_fit_request(task=True).set_score_request(task=True).set_predict_request(task=True)
        found = cross_validate(model, X, y, params={"task": task}, cv=KFold(2, shuffle=True, random_state=0))
        assert np.all(found["test_score"] > 0)
        assert model.get_metadata_routing().predict.requests == {"task": True}


def test_callbacks_see_every_step():
    X, Y = labels()
    monitor = ScoringMonitor(scoring="accuracy")
    fitted = classifier(max_iter=5, tol=0).set_callbacks(monitor).fit(X, Y)
    logs = monitor.get_logs()
    assert logs is not None
    assert fitted.n_iter_ == 5


@pytest.mark.parametrize("make", [classifier, regressor])
def test_a_warm_start_goes_on(make):
    X, Y = data_for(make)
    model = make(max_iter=4, tol=0, warm_start=True).fit(X, Y)
    first = model.trace_.objective[-1]
    model.fit(X, Y)
    assert model.trace_.objective[0] == pytest.approx(first, rel=1e-3)
    assert model.trace_.objective[-1] < first
    model.set_params(n_components=5).fit(X, Y)
    assert model.components_.shape == (5, X.shape[1])


@pytest.mark.parametrize("sharing", [0.0, 1.0])
def test_the_objective_never_rises(sharing):
    X, Y = labels()
    trace = classifier(task_sharing=sharing, tol=0, max_iter=30).fit(X, holes(Y)).trace_
    assert len(trace.objective) > 3
    assert trace.rises.largest <= 1e-13 * abs(trace.objective[0])


def test_threads_do_not_change_the_result():
    X, Y = labels()
    one, two = classifier(n_jobs=1).fit(X, Y), classifier(n_jobs=2).fit(X, Y)
    np.testing.assert_array_equal(one.coef_, two.coef_)


def test_warnings_say_what_to_do():
    X, Y = labels()
    with pytest.warns(ConvergenceWarning, match="Raise max_iter"):
        classifier(max_iter=1, tol=0).fit(X, Y)
    with pytest.warns(TruncationWarning, match="Raise n_components"):
        classifier(2, temperature=0.0, max_iter=100, tol=1e-2).fit(X, Y)


def test_progress_is_shown(capsys):
    X, Y = labels()
    classifier(verbose=1).fit(X, Y)
    assert "MultiTaskILSVMClassifier" in capsys.readouterr().err
    classifier_cv(verbose=1).fit(X, Y)
    assert "path" in capsys.readouterr().err


def test_features_that_factor_analysis_switches_off_come_back():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 10))
    X = np.sqrt(200) * np.linalg.qr(X - X.mean(axis=0))[0]  # white: nothing to find without the targets
    Y = X[:, :2] + 0.5 * rng.standard_normal((200, 2))
    given = {"alpha": 0.01, "temperature": 0.01, "max_iter": 60}
    assert np.all(regressor(margins="decoupled", **given).fit(X, Y).components_ < 0.5)
    assert regressor(**given).fit(X, Y).score(X, Y) > 0.5


# --- cross-validation


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
