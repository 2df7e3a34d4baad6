"""The example model of docs/adding_a_model.md: a special case, perturbed blocks, limits, symmetry, the estimator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import parametrize_with_checks

import regbayes
from relevant_inputs.estimator import RelevantInputsClassifier
from relevant_inputs.fit import fit
from relevant_inputs.init import initial_state
from relevant_inputs.objective import terms
from relevant_inputs.state import Data, Settings
from relevant_inputs.updates import update_precisions, update_weights

SETTINGS = Settings(C=0.7, shape=1.0, rate=0.05)


@pytest.fixture(scope="module")
def data() -> Data:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((80, 6))
    return Data(X, np.where(X[:, 0] - X[:, 1] + rng.standard_normal(80) > 0, 1.0, -1.0))


def objective(state, data, settings=SETTINGS):
    return sum(terms(state, data, settings).values())


def test_unit_precisions_are_liblinear(data):
    state = update_weights(initial_state(data, SETTINGS), data, SETTINGS, tol=1e-12)
    svm = LinearSVC(loss="hinge", C=SETTINGS.C, fit_intercept=False, tol=1e-10, max_iter=10**6)
    np.testing.assert_allclose(state.mean, svm.fit(data.X, data.signs).coef_[0], atol=1e-6)


def test_no_perturbation_of_a_block_beats_its_update(data):
    state = fit(data, SETTINGS, max_iter=3, tol=0.0).state
    rng = np.random.default_rng(1)
    for update, names in (
        (lambda s: update_weights(s, data, SETTINGS, tol=1e-12), ("mean", "variance")),
        (lambda s: update_precisions(s, SETTINGS), ("shape", "rate")),
    ):
        best = update(state)
        for name in names:
            for size in (1e-3, 1e-1):
                block = getattr(best, name)
                moved = block + size * np.abs(block) * rng.standard_normal(block.shape)
                assert objective(replace(best, **{name: moved}), data) > objective(best, data)


def test_the_objective_rises_by_no_more_than_the_gap_of_its_inner_solver(data):
    result = fit(data, SETTINGS, max_iter=200, tol=1e-10)
    assert result.status.name == "CONVERGED"
    largest_gap = 1e-6 * SETTINGS.C * len(data.X)  # the large-margin problem is worth at most C n, at weights of zero
    assert result.trace.rises.largest <= largest_gap


def test_without_margins_the_precisions_are_those_of_the_prior(data):
    settings = replace(SETTINGS, C=1e-9)
    state = fit(data, settings, max_iter=2000, tol=1e-13).state
    np.testing.assert_allclose(state.precision, settings.shape / settings.rate, rtol=1e-3)
    np.testing.assert_allclose(state.mean, 0.0, atol=1e-8)


def test_permuted_rows_and_inputs_give_the_permuted_answer(data):
    rng = np.random.default_rng(2)
    rows, inputs = rng.permutation(len(data.X)), rng.permutation(data.X.shape[1])
    one = fit(data, SETTINGS, max_iter=300, tol=1e-12).state
    other = fit(Data(data.X[rows][:, inputs], data.signs[rows]), SETTINGS, max_iter=300, tol=1e-12).state
    np.testing.assert_allclose(other.mean, one.mean[inputs], atol=1e-4)


@parametrize_with_checks([RelevantInputsClassifier()])
def test_scikit_learn(estimator, check):
    check(estimator)


def test_a_saved_model_predicts_as_before(data, tmp_path):
    model = RelevantInputsClassifier().fit(data.X, data.signs)
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(
        regbayes.load(tmp_path / "model").decision_function(data.X), model.decision_function(data.X)
    )
