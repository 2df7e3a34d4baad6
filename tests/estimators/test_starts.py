"""Several starts of a fit, and the check of every fit: one that does poorly on its training rows starts again."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.exceptions import ConvergenceWarning

from ilsvm_model_tools import pad
from regbayes import (
    IBPFactorAnalysis,
    ILSVMClassifier,
    ILSVMClassifierCV,
    MultiTaskILSVMClassifier,
    MultiTaskILSVMRegressor,
    PoorFitWarning,
)
from regbayes.engine import Status, StepResult, run
from regbayes.estimators import ilsvm
from regbayes.estimators._bases import IterativeEstimator, find_fault
from regbayes.margins.targets import zero_one_cost
from regbayes.models.ilsvm.model import BinaryFeatures, centre_rows
from regbayes.models.indian_buffet import stick_expectations

RNG = np.random.default_rng(0)
LABELS = np.repeat(np.arange(4), [5, 25, 15, 25])  # as votes are: few abstain
X = RNG.normal(size=(70, 5)) + 1.5 * np.eye(4, 5)[LABELS]
TASKS = np.column_stack([LABELS > 1, LABELS == 1]).astype(int)


def quiet(fit, *given, **named):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return fit(*given, **named)


def quiet_of_others(fit, *given, action="always"):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter(action, PoorFitWarning)
        return fit(*given)


# --- the choice among starts, on fits of a number to a number


class Toy(IterativeEstimator):
    """Every start ends where it is told to: at its objective, with its fault or none."""

    max_iter, tol = 3, 1e-6

    def learn(self, objectives, faulty=(), n_init=1, status=None, only_faults=False):
        self.tried = []

        def find_fault(state):
            return "is at fault" if state in faulty else ""

        with self._fitting(lambda state: {"state_": state}, {"only": 3}, {}) as reporter:
            for value in self._try_starts(reporter, iter(objectives), n_init, find_fault, only_faults):
                self.tried.append(value)
                step = StepResult(value, status=(status or {}).get(value, Status.CONVERGED))
                reporter.result = run(lambda _, step=step: step, value, objective=lambda x: {"x": x}, max_iter=3)
        return self


def test_one_start_without_a_fault_is_all():
    assert Toy().learn([2.0, 1.0]).tried == [2.0]


def test_of_several_starts_the_lowest_objective_is_kept():
    model = Toy().learn([2.0, 1.0, 3.0, 0.0], n_init=3)
    assert model.tried == [2.0, 1.0, 3.0]
    assert model.state_ == model.objective_ == 1.0


def test_a_fault_gets_another_start_and_a_fit_without_one_is_kept_whatever_its_objective():
    model = Toy().learn([1.0, 2.0, 0.0], faulty=[1.0])
    assert model.tried == [1.0, 2.0]
    assert model.state_ == 2.0
    several = Toy().learn([1.0, 4.0, 3.0], faulty=[1.0], n_init=3)
    assert several.state_ == 3.0
    only_faults = Toy().learn([1.0, 4.0, 3.0], faulty=[1.0], n_init=3, only_faults=True)
    assert only_faults.tried == [1.0, 4.0]
    assert only_faults.state_ == 4.0


def test_a_fault_that_stays_is_said():
    model = Toy()
    with pytest.warns(PoorFitWarning, match="Toy is at fault, from another start too"):
        model.learn([2.0, 1.0, 0.0], faulty=[1.0, 2.0])
    assert model.tried == [2.0, 1.0]
    assert model.state_ == 1.0


def test_a_fit_that_is_cut_short_is_not_judged_and_ends_the_attempts():
    assert Toy().learn([1.0, 2.0], faulty=[1.0], status={1.0: Status.STOPPED}).tried == [1.0]
    model = Toy()
    with pytest.warns(ConvergenceWarning, match="interrupted"):
        model.learn([2.0, 1.0, 0.0], n_init=3, status={1.0: Status.INTERRUPTED})
    assert model.tried == [2.0, 1.0]
    assert model.state_ == 2.0  # what was finished


# --- the models


@pytest.mark.parametrize(
    ("model", "targets"),
    [
        (MultiTaskILSVMClassifier(3, max_iter=5, random_state=1), TASKS),
        (MultiTaskILSVMRegressor(3, max_iter=5, random_state=1), X[:, :2]),
    ],
    ids=lambda one: type(one).__name__,
)
def test_more_starts_never_end_higher(model, targets):
    found = [quiet(model.set_params(n_init=n).fit, X, targets).objective_ for n in (1, 2, 4)]
    assert found[0] >= found[1] >= found[2]


def test_a_fit_that_goes_on_from_another_has_one_start():
    model = quiet(ILSVMClassifier(6, max_iter=5, n_init=3, warm_start=True, random_state=0).fit, X, LABELS > 1)
    calls = []
    model._start = lambda *given: calls.append(given)
    quiet(model.fit, X, LABELS > 1)
    assert not calls


def test_a_fit_with_a_fault_starts_again(monkeypatch):
    """What happened to votes under balanced weights: one feature, and the largest class without an answer."""
    starts, answers = [], []

    class Counted(ILSVMClassifier):
        def _start(self, *given):
            starts.append(given)
            return super()._start(*given)

    def faulty_at_first(codes, found, *others):
        answers.append(found)
        return "never predicts" if len(answers) < 3 else ""

    model = Counted(6, C=3.0, class_weight="balanced", max_iter=10, random_state=2)
    monkeypatch.setattr(ilsvm, "find_fault", faulty_at_first)
    with pytest.warns(PoorFitWarning, match="never predicts"):
        quiet_of_others(model.fit, X, LABELS)
    assert len(starts) == 2
    assert_array_equal(answers[0].shape, LABELS.shape)
    quiet(model.fit, X, LABELS)
    assert len(starts) == 3  # nothing is wrong with the third answer


def test_a_model_that_can_only_give_one_answer_is_said_to():
    """No start can help where the inputs do not vary."""
    model = ILSVMClassifier(3, class_weight="balanced", random_state=0)
    with pytest.warns(PoorFitWarning, match="never predicts .* from another start too"):
        quiet_of_others(model.fit, np.ones((70, 2)), LABELS)
    few = np.r_[np.zeros(60), np.ones(10)]  # the frequent class for all: no better, and no worse
    quiet_of_others(ILSVMClassifier(3, random_state=0).fit, np.ones((70, 2)), few, action="error")
    quiet_of_others(model.set_params(max_iter=0).fit, np.ones((70, 2)), LABELS, action="error")  # that is no fit


def test_fits_of_several_starts_tell_callbacks_of_all():
    seen = []

    class Hear:
        def setup(self, estimator, context): ...

        def teardown(self, estimator, context): ...

        def on_fit_task_begin(self, estimator, context, **_):
            seen.append(context.task_name)

        def on_fit_task_end(self, estimator, context, **_):
            return False

    model = ILSVMClassifier(4, class_weight="balanced", max_iter=3, n_init=3, random_state=0).set_callbacks(Hear())
    quiet(model.fit, np.ones((70, 2)), LABELS)
    assert seen.count("descent") == 4  # a fit that never predicts a class, and three restarts


# --- what starts are compared by


def test_the_prior_of_the_objective_is_normalised_over_on_and_off():
    model = quiet(ILSVMClassifier(4, C=2.0, generative_weight=0.1, max_iter=10, random_state=0).fit, X, LABELS)
    params = model._state.params
    expected, T = stick_expectations(params.sticks), params.temperature
    on = expected.log_use / T - X.shape[1] * params.variances / (2 * params.noise_variance * T)
    off = expected.log_rest / T
    per_row = np.log(np.exp(on) + np.exp(off))[np.linalg.norm(params.loadings, axis=1) > 0].sum()
    assert model.objective_ == pytest.approx(model.trace_.objective[-1] + 0.1 * len(X) * per_row)


def test_a_feature_without_loadings_adds_to_the_objective_what_normalising_takes_off():
    model = quiet(IBPFactorAnalysis(3, max_iter=10, random_state=0).fit, X)
    rows, few = centre_rows(X), model._state.params
    more = pad(few, 4, model.alpha)
    joint = BinaryFeatures(model.alpha, 1.0)
    values = [sum(joint.terms(params, joint.infer(rows, params).stats).values()) for params in (few, more)]
    assert abs(values[1] - values[0]) > 1e-3

    def normalised(params, value):
        return joint.normalise(value, params, len(X))

    # Loadings too small to matter: the feature counts as one that is there.
    there = replace(more, loadings=np.where(more.loadings.any(axis=1, keepdims=True), more.loadings, 1e-12))
    assert normalised(there, values[1]) == pytest.approx(normalised(few, values[0]))


# --- what is a fault


COST = zero_one_cost(3)
NAMES = np.array(["a", "b", "c"])


def test_answers_that_cost_more_than_one_answer_for_all_are_a_fault():
    codes = np.repeat([0, 1, 2], [6, 2, 2])
    ones = np.ones(10)
    always = np.zeros(10, dtype=int)
    worse = np.r_[1, 1, 1, 0, 0, 0, 1, 0, 2, 0]  # 5 wrong, against 4
    assert "worse on its training samples than one class" in find_fault(codes, worse, COST, ones, NAMES)
    assert "'a' for every row 4" in find_fault(codes, worse, COST, ones, NAMES)
    assert "never predicts 'b', 'c'" in find_fault(codes, always, COST, ones, NAMES)  # 40 % of the weight
    assert find_fault(codes, codes, COST, ones, NAMES) == ""


def test_weights_and_costs_decide_what_an_answer_costs():
    codes = np.repeat([0, 1], [9, 3])
    cost, names = zero_one_cost(2), NAMES[:2]
    answers = np.r_[np.ones(4, dtype=int), np.zeros(5, dtype=int), np.ones(3, dtype=int)]  # 4 of 9 wrong, and no other
    assert find_fault(codes, answers, cost, np.ones(12), names)
    balanced = np.where(codes == 0, 1 / 9, 1 / 3)
    assert find_fault(codes, answers, cost, balanced, names) == ""
    assert find_fault(codes, answers, np.array([[0.0, 1.0], [5.0, 0.0]]), np.ones(12), names) == ""
    assert find_fault(codes, np.zeros(12, dtype=int), cost, np.ones(12), names) == ""  # a quarter may go unanswered
    assert "never predicts 'b'" in find_fault(codes, np.zeros(12, dtype=int), cost, balanced, names)


def test_a_fault_does_not_depend_on_the_order_of_classes():
    codes = RNG.integers(0, 3, 60)
    answers = np.where(RNG.random(60) < 0.4, codes, 0)
    weights = RNG.random(60)
    order = np.array([2, 0, 1])
    back = np.argsort(order)
    found = find_fault(codes, answers, COST, weights, NAMES)
    turned = find_fault(back[codes], back[answers], COST, weights, NAMES[order])
    assert bool(found) == bool(turned)


def test_searches_hand_the_number_of_starts_on():
    search = quiet(ILSVMClassifierCV(4, Cs=(1.0,), n_init=2, max_iter=3, cv=2, random_state=0).fit, X, LABELS)
    assert search.best_estimator_.n_init == 2
    assert search.objective_ == search.best_estimator_.objective_
