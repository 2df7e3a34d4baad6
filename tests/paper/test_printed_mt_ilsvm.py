"""Algorithm 2: optimality of block updates, and expected errors by enumeration."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from regbayes_paper.printed_mt_ilsvm import PrintedMTILSVMClassifier, Problem
from regbayes_paper.tasks import TaskProblem

RNG = np.random.default_rng(0)
OUTPUTS, ROWS = np.nonzero(RNG.random((3, 20)) < 0.8)
TASKS = TaskProblem(RNG.standard_normal((20, 4)), ROWS, OUTPUTS, RNG.choice([-1.0, 1.0], len(ROWS)), 3)
PROBLEM = Problem(TASKS, 0.5, 1.5)


@parametrize_with_checks([PrintedMTILSVMClassifier(3, C=10.0, random_state=0)])
def test_scikit_learn_checks_pass(estimator, check):
    check(estimator)


@pytest.fixture
def state():
    found = PROBLEM.start(3, np.random.RandomState(0))
    found = replace(found, psi=RNG.uniform(0.1, 0.9, (4, 3)), noise=RNG.uniform(0.5, 2.0, len(ROWS)))
    return PROBLEM.update_classifier(PROBLEM.update_weights(PROBLEM.update_sticks(found)))


def test_errors_match_enumeration_of_features(state):
    """``errors`` is E |x - Z w|^2 over binary Z and Gaussian w."""
    expected = np.zeros(len(ROWS))
    for flat in product([0.0, 1.0], repeat=12):
        Z = np.array(flat).reshape(4, 3)
        weight = np.prod(np.where(Z, state.psi, 1.0 - state.psi))
        rest = np.sum((PROBLEM.inputs - state.means @ Z.T) ** 2, axis=1)
        expected += weight * (rest + state.spread * np.sum(Z))
    np.testing.assert_allclose(PROBLEM.errors(state), expected)


def test_coordinate_updates_minimize_lagrangian(state):
    def rises(updated, name, index, moves):
        best = PROBLEM.lagrangian(updated)
        for move in moves:
            array = getattr(updated, name).copy()
            array[index] = move(array[index])
            assert PROBLEM.lagrangian(replace(updated, **{name: array})) > best, name

    both, scaled = [lambda a: a + 1e-3, lambda a: a - 1e-3], [lambda a: 1.01 * a, lambda a: 0.99 * a]
    features = PROBLEM.update_features(state)  # only the last feature is optimal given the final values of all others
    assert PROBLEM.lagrangian(features) < PROBLEM.lagrangian(state)
    weights, variances = PROBLEM.update_weights(state), PROBLEM.update_variances(state)
    for d in range(4):
        rises(features, "psi", (d, 2), [lambda a: a + 0.1 * a * (1 - a), lambda a: a - 0.1 * a * (1 - a)])
    for i in (0, 10, 30):
        rises(weights, "means", (i, 1), both)
        rises(weights, "spread", i, scaled)
        rises(variances, "noise", i, scaled)
    for m in range(3):
        rises(variances, "prior_variance", m, scaled)


def test_update_classifier_minimizes_kl_plus_hinge_losses(state):
    best = PROBLEM.objective(state)
    for size in (1e-2, 1e-1):
        for _ in range(20):
            moved = state.classifier + size * RNG.standard_normal(state.classifier.shape)
            assert PROBLEM.objective(replace(state, classifier=moved)) > best - 1e-3


def test_inner_loop_does_not_increase_lagrangian(state):
    values = [PROBLEM.lagrangian(state)]
    for _ in range(20):
        for update in (PROBLEM.update_sticks, PROBLEM.update_weights, PROBLEM.update_features):
            state = update(state)
            values.append(PROBLEM.lagrangian(state))
    assert np.all(np.diff(values) <= 1e-9)


def test_start_is_random_around_one_half():
    first, second = (PROBLEM.start(50, np.random.RandomState(seed)).psi for seed in (0, 1))
    assert not np.allclose(first, second)
    assert first.std() == pytest.approx(np.sqrt(1e-3), rel=0.2)
    X = RNG.standard_normal((100, 6))
    Y = X @ RNG.standard_normal((6, 4)) > 0
    model = PrintedMTILSVMClassifier(5, C=1.0, random_state=0).fit(X, Y)
    np.testing.assert_allclose(model.decision_function(X), ((X - X.mean(0)) / X.std(0)) @ model.coef_.T)
