"""Test random restarts (`n_init`), and restarts after a poor fit."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
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
from regbayes.estimators._bases import IterativeEstimator, find_fault
from regbayes.margins.targets import zero_one_cost
from regbayes.models.ilsvm.model import BinaryFeatures, centre_rows
from regbayes.models.indian_buffet import stick_expectations

RNG = np.random.default_rng(0)
LABELS = np.repeat(np.arange(4), [5, 25, 15, 25])  # imbalanced classes
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


# --- choice among restarts, with a fake estimator


class Toy(IterativeEstimator):
    """Estimator whose restarts end at given objectives, some of them with a fault."""

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


def test_single_start_without_fault_is_not_repeated():
    assert Toy().learn([2.0, 1.0]).tried == [2.0]


def test_restarts_keep_lowest_objective():
    model = Toy().learn([2.0, 1.0, 3.0, 0.0], n_init=3)
    assert model.tried == [2.0, 1.0, 3.0]
    assert model.state_ == model.objective_ == 1.0


def test_restarts_prefer_fit_without_fault():
    model = Toy().learn([1.0, 2.0, 0.0], faulty=[1.0])
    assert model.tried == [1.0, 2.0]
    assert model.state_ == 2.0
    several = Toy().learn([1.0, 4.0, 3.0], faulty=[1.0], n_init=3)
    assert several.state_ == 3.0
    only_faults = Toy().learn([1.0, 4.0, 3.0], faulty=[1.0], n_init=3, only_faults=True)
    assert only_faults.tried == [1.0, 4.0]
    assert only_faults.state_ == 4.0


def test_persistent_fault_warns():
    model = Toy()
    with pytest.warns(PoorFitWarning, match="Toy is at fault, from another start too"):
        model.learn([2.0, 1.0, 0.0], faulty=[1.0, 2.0])
    assert model.tried == [2.0, 1.0]
    assert model.state_ == 1.0


def test_interrupted_fit_ends_restarts():
    assert Toy().learn([1.0, 2.0], faulty=[1.0], status={1.0: Status.STOPPED}).tried == [1.0]
    model = Toy()
    with pytest.warns(ConvergenceWarning, match="interrupted"):
        model.learn([2.0, 1.0, 0.0], n_init=3, status={1.0: Status.INTERRUPTED})
    assert model.tried == [2.0, 1.0]
    assert model.state_ == 2.0  # the result of the completed start


# --- the models


@pytest.mark.parametrize(
    ("model", "targets"),
    [
        (MultiTaskILSVMClassifier(3, max_iter=5, random_state=1), TASKS),
        (MultiTaskILSVMRegressor(3, max_iter=5, random_state=1), X[:, :2]),
    ],
    ids=lambda one: type(one).__name__,
)
def test_objective_never_rises_with_n_init(model, targets):
    found = [quiet(model.set_params(n_init=n).fit, X, targets).objective_ for n in (1, 2, 4)]
    assert found[0] >= found[1] >= found[2]


def test_warm_start_skips_restarts():
    model = quiet(ILSVMClassifier(6, max_iter=5, n_init=3, warm_start=True, random_state=0).fit, X, LABELS > 1)
    calls = []
    model._start = lambda *given: calls.append(given)
    quiet(model.fit, X, LABELS > 1)
    assert not calls


def test_fit_of_constant_inputs_warns_of_unpredicted_classes():
    """No restart helps if the inputs are constant."""
    model = ILSVMClassifier(3, class_weight="balanced", random_state=0)
    with pytest.warns(PoorFitWarning, match="never predicts .* from another start too"):
        quiet_of_others(model.fit, np.ones((70, 2)), LABELS)
    few = np.r_[np.zeros(60), np.ones(10)]  # always predicting the majority class is optimal
    quiet_of_others(ILSVMClassifier(3, random_state=0).fit, np.ones((70, 2)), few, action="error")
    quiet_of_others(model.set_params(max_iter=0).fit, np.ones((70, 2)), LABELS, action="error")  # not checked


def test_callbacks_are_called_for_every_restart():
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


# --- objective for the comparison of restarts


def test_objective_normalizes_prior_over_binary_features():
    model = quiet(ILSVMClassifier(4, C=2.0, generative_weight=0.1, max_iter=10, random_state=0).fit, X, LABELS)
    params = model._state.params
    expected, T = stick_expectations(params.sticks), params.temperature
    on = expected.log_use / T - X.shape[1] * params.variances / (2 * params.noise_variance * T)
    off = expected.log_rest / T
    per_row = np.log(np.exp(on) + np.exp(off))[np.linalg.norm(params.loadings, axis=1) > 0].sum()
    assert model.objective_ == pytest.approx(model.trace_.objective[-1] + 0.1 * len(X) * per_row)


def test_objective_does_not_depend_on_unused_features():
    model = quiet(IBPFactorAnalysis(3, max_iter=10, random_state=0).fit, X)
    rows, few = centre_rows(X), model._state.params
    more = pad(few, 4, model.alpha)
    joint = BinaryFeatures(model.alpha, 1.0)
    values = [sum(joint.terms(params, joint.infer(rows, params).stats).values()) for params in (few, more)]
    assert abs(values[1] - values[0]) > 1e-3

    def normalised(params, value):
        return joint.normalise(value, params, len(X))

    # With negligible nonzero loadings the added feature counts as used.
    there = replace(more, loadings=np.where(more.loadings.any(axis=1, keepdims=True), more.loadings, 1e-12))
    assert normalised(there, values[1]) == pytest.approx(normalised(few, values[0]))


# --- find_fault


COST = zero_one_cost(3)
NAMES = np.array(["a", "b", "c"])


def test_predictions_worse_than_constant_are_a_fault():
    codes = np.repeat([0, 1, 2], [6, 2, 2])
    ones = np.ones(10)
    always = np.zeros(10, dtype=int)
    worse = np.r_[1, 1, 1, 0, 0, 0, 1, 0, 2, 0]  # 5 errors; a constant prediction has 4
    assert "worse on its training samples than one class" in find_fault(codes, worse, COST, ones, NAMES)
    assert "'a' for every row 4" in find_fault(codes, worse, COST, ones, NAMES)
    assert "never predicts 'b', 'c'" in find_fault(codes, always, COST, ones, NAMES)  # 40% of the weight
    assert find_fault(codes, codes, COST, ones, NAMES) == ""


def test_fault_depends_on_weights_and_costs():
    codes = np.repeat([0, 1], [9, 3])
    cost, names = zero_one_cost(2), NAMES[:2]
    answers = np.r_[np.ones(4, dtype=int), np.zeros(5, dtype=int), np.ones(3, dtype=int)]  # 4 errors in 9
    assert find_fault(codes, answers, cost, np.ones(12), names)
    balanced = np.where(codes == 0, 1 / 9, 1 / 3)
    assert find_fault(codes, answers, cost, balanced, names) == ""
    assert find_fault(codes, answers, np.array([[0.0, 1.0], [5.0, 0.0]]), np.ones(12), names) == ""
    assert find_fault(codes, np.zeros(12, dtype=int), cost, np.ones(12), names) == ""  # 25% is below the threshold
    assert "never predicts 'b'" in find_fault(codes, np.zeros(12, dtype=int), cost, balanced, names)


def test_fault_does_not_depend_on_class_order():
    codes = RNG.integers(0, 3, 60)
    answers = np.where(RNG.random(60) < 0.4, codes, 0)
    weights = RNG.random(60)
    order = np.array([2, 0, 1])
    back = np.argsort(order)
    found = find_fault(codes, answers, COST, weights, NAMES)
    turned = find_fault(back[codes], back[answers], COST, weights, NAMES[order])
    assert bool(found) == bool(turned)


def test_search_passes_n_init_to_best_estimator():
    search = quiet(ILSVMClassifierCV(4, Cs=(1.0,), n_init=2, max_iter=3, cv=2, random_state=0).fit, X, LABELS)
    assert search.best_estimator_.n_init == 2
    assert search.objective_ == search.best_estimator_.objective_
