"""Complete MT-iLSVM fits: descent, limits that are other models, symmetries, prediction."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit

from mt_ilsvm_tools import (
    LOSSES,
    cells_of,
    exact,
    exact_gradient,
    fit,
    is_regression,
    noise_for,
    small_settings,
    toy,
    toy_latent,
    toy_problem,
)
from regbayes.engine import Status, Threads, executor
from regbayes.margins.design import Design
from regbayes.margins.targets import observe_classes, observe_numbers
from regbayes.models.ilsvm.starts import POLICY
from regbayes.models.indian_buffet import Sticks
from regbayes.models.mt_ilsvm.fit import Problem, carry_weights, factor_analysis, prepare
from regbayes.models.mt_ilsvm.model import Settings, decision, feature_logits, features, update_factors


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("sharing", [0.0, 1.0])
def test_objective_never_increases(loss, sharing):
    X, Y = toy(20, n_rows=40, loss=loss, missing=0.2)
    for tol, gap in ((1e-5, 1e-4), (1e-7, 1e-6)):
        settings = small_settings(loss, task_sharing=sharing, tol=tol, max_iter=40, generative_weight=0.1)
        result = fit(X, *cells_of(Y, loss), settings, noise_for(X))
        assert len(result.trace) > 2
        assert result.trace.objective[-1] < result.trace.objective[0]
        assert result.trace.rises.largest <= 1e-13 * abs(result.trace.objective[0])
        gaps = result.trace.diagnostics["gap"][1:]
        gaps = gaps[-1:] if loss.startswith("squared") else gaps  # earlier Newton solves may stop early
        assert np.all(gaps <= gap * abs(result.trace.objective[0]))


def test_objective_never_increases_with_estimated_variances():
    X, Y = toy(21, n_rows=40)
    settings = small_settings(variances="always", max_iter=30)
    result = fit(X, *cells_of(Y, settings.loss), settings, noise_for(X))
    frozen = fit(X, *cells_of(Y, settings.loss), replace(settings, variances="start"), noise_for(X))
    assert result.trace.rises.largest <= 1e-13 * abs(result.trace.objective[0])
    assert result.trace.objective[-1] < frozen.trace.objective[-1]


def test_given_variances_are_fixed():
    X, Y = toy(21)
    settings = small_settings(variances="always", noise_variance=0.4, weight_variance=0.7)
    latent = fit(X, *cells_of(Y, settings.loss), settings, noise_for(X)).state.latent
    assert (latent.noise_variance, latent.weight_variance) == (0.4, 0.7)


def test_converged_fit_is_stationary():
    X, Y = toy(22, n_rows=40)
    settings = small_settings(max_iter=3000, tol=1e-14)
    cells, outputs = cells_of(Y, settings.loss)
    result = fit(X, cells, outputs, settings, noise_for(X))
    assert result.status in (Status.CONVERGED, Status.STALLED)
    problem = prepare(X, cells, outputs, settings)
    latent, model = result.state.latent, problem.model
    factors = update_factors(latent, model.moments)
    wanted = feature_logits(latent, factors, model.scales.temperature)
    wanted = wanted - exact_gradient(problem, latent)[1] / model.scales.generative
    assert np.allclose(latent.psi, expit(wanted), atol=1e-5)


def test_alternation_returns_best_state_and_reports_increases():
    X, Y = toy(23, n_rows=40)
    cells, outputs = cells_of(Y, "squared_hinge")
    settings = small_settings(margins="posterior", generative_weight=0.02, max_iter=25)
    result = fit(X, cells, outputs, settings, noise_for(X))
    assert result.trace.rises.count > 0  # it descends a Lagrangian, not the objective
    assert result.kept_iteration == len(result.trace) - 1 - np.argmin(result.trace.objective[::-1])
    problem = prepare(X, cells, outputs, settings)
    at_kept, _ = exact(problem, result.state.latent, result.state.tasks)
    assert at_kept.objective == pytest.approx(result.trace.objective.min(), rel=1e-9)


def test_untempered_alternation_is_coordinate_descent():
    problem, X, _ = toy_problem(24, temperature=0.0)
    assert problem.model.scales.temperature == 1.0
    result = factor_analysis(problem, noise_for(X))
    assert result.trace.rises.largest <= 1e-12 * abs(result.trace.objective[0])


def test_fit_without_a_penalty_is_factor_analysis():
    X, Y = toy(25, n_rows=60)
    settings = small_settings(C=1e-9, start_iter=3000, tol=1e-13)
    cells, outputs = cells_of(Y, settings.loss)
    alone = factor_analysis(prepare(X, cells, outputs, settings), noise_for(X)).state.latent
    for margins in ("posterior", "decoupled"):  # without pruning
        found = fit(X, cells, outputs, replace(settings, margins=margins), noise_for(X)).state
        assert np.allclose(found.latent.psi, alone.psi, atol=1e-5)
        assert np.allclose(decision(X, found), 0.0, atol=1e-6)


def test_joint_fits_lower_the_objective_of_the_decoupled_fit():
    X, Y = toy(26, n_rows=40)
    cells, outputs = cells_of(Y, "squared_hinge")
    settings = small_settings(generative_weight=0.1, margins="decoupled")
    decoupled = fit(X, cells, outputs, settings, noise_for(X))
    joint = fit(X, cells, outputs, replace(settings, margins="consistent"), noise_for(X))
    problem = prepare(X, cells, outputs, settings)
    start, _ = exact(problem, decoupled.state.latent, decoupled.state.tasks)
    assert joint.trace.objective[-1] < start.objective


@pytest.mark.parametrize("loss", ["hinge", "squared_epsilon_insensitive"])
def test_search_keeps_features_that_the_objective_misses(loss):
    """Without any feature that is left, the normalized objective of refitted weights is clearly higher."""
    X, Y = toy(27, n_rows=200, n_columns=8, n_tasks=2, loss=loss)
    settings = small_settings(
        loss, n_components=16, tol=1e-4, temperature="auto", generative_weight="auto", max_iter=60
    )
    state = fit(X, *cells_of(Y, loss), settings, noise_for(X, 16)).state
    n_features = state.latent.logits.shape[1]
    assert 1 < n_features < 16
    problem = prepare(X, *cells_of(Y, loss), settings).at_temperature(state.scales.tau)

    def judge(kept):
        latent, sticks = state.latent, state.latent.sticks
        smaller = replace(latent, logits=latent.logits[:, kept], sticks=Sticks(sticks.first[kept], sticks.second[kept]))
        return problem.model.normalise(exact(problem, smaller)[0].objective, smaller)

    every = np.arange(n_features)
    gains = [judge(np.delete(every, k)) - judge(every) for k in every]
    assert min(gains) > 0.5 * POLICY.min_gain * settings.C * problem.n_targets


# Many rows


@pytest.fixture
def small_blocks(monkeypatch):
    """Use blocks of 64 rows."""
    monkeypatch.setattr(executor, "BLOCK_ROWS", 64)


@pytest.mark.usefixtures("small_blocks")
def test_threads_do_not_change_the_fit_to_many_rows():
    X, Y = toy(28, n_rows=300, missing=0.3)
    given = (X, *cells_of(Y, "squared_hinge"), small_settings(task_sharing=0.7, tol=1e-4), noise_for(X))
    one, two, five = (fit(*given, executor=Threads(n)) for n in (1, 2, 5))
    assert one.state.tasks.multipliers.size == 0  # Newton's method returns none
    for other in (two, five):
        np.testing.assert_array_equal(other.trace.objective, one.trace.objective)
        np.testing.assert_array_equal(other.state.latent.logits, one.state.latent.logits)
        np.testing.assert_array_equal(other.state.tasks.weights, one.state.tasks.weights)


@pytest.mark.usefixtures("small_blocks")
def test_interrupt_of_the_last_solve_keeps_the_fit(monkeypatch):
    X, Y = toy(28, n_rows=300)
    given = (X, *cells_of(Y, "squared_hinge"), small_settings(max_iter=0), noise_for(X))
    calls = []

    def evaluate(problem, params, known, tolerance):
        if calls:  # the first call starts the descent, and the second follows it
            raise KeyboardInterrupt
        calls.append(problem)
        return whole(problem, params, known, replace(tolerance, gap=1.0, max_epochs=1.0))

    whole = Problem.evaluate
    monkeypatch.setattr(Problem, "evaluate", evaluate)
    found = fit(*given)
    assert found.status is Status.INTERRUPTED
    assert np.all(np.isfinite(decision(X, found.state)))


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_fit_resumes_an_earlier_one(loss):
    X, Y = toy(29, n_rows=300)
    given = (X, *cells_of(Y, loss), small_settings(loss, tol=1e-7))
    start = fit(*given, noise_for(X))
    assert fit(*given, start.state).trace.objective[0] == pytest.approx(start.trace.objective[-1], rel=1e-5)


@pytest.mark.parametrize("n_columns", [3, 12])
def test_weights_at_other_features_match_least_squares(n_columns):
    X, Y = toy(30, n_rows=200, n_columns=n_columns)
    settings = small_settings()
    problem = prepare(X, *cells_of(Y, settings.loss), settings)
    before, _ = exact(problem, toy_latent(34, n_columns))
    params = problem.model.at(toy_latent(35, n_columns))
    found = carry_weights(problem, before, params).weights
    old, new = (np.asarray(problem.model.infer(X, at).features) for at in (before.params, params))
    weights = before.head.head.weights
    missed = new @ found[:, :3].T - old @ weights[:, :3].T
    gradient = 2.0 * settings.C * new.T @ missed + found[:, :3].T  # gradient of C |missed|^2 + |weights|^2 / 2
    np.testing.assert_allclose(gradient, 0.0, atol=1e-9 * np.abs(new.T @ old @ weights[:, :3].T).max())
    np.testing.assert_array_equal(found[:, 3:], weights[:, 3:])
    hinges = replace(settings, loss="hinge")
    kept, _ = exact(prepare(X, *cells_of(Y, "hinge"), hinges), toy_latent(34, n_columns))
    assert carry_weights(problem, kept, params).multipliers is kept.head.dual  # multipliers are kept as a warm start


# Fixed Z: independent solvers


@pytest.mark.parametrize("loss", LOSSES)
def test_one_task_with_fixed_features_matches_liblinear(loss):
    from sklearn.svm import LinearSVC, LinearSVR

    X, Y = toy(30, n_tasks=1, loss=loss)
    settings = small_settings(loss, margins="decoupled", fit_intercept=False)
    state = fit(X, *cells_of(Y, loss), settings, noise_for(X)).state
    kind = LinearSVR if is_regression(loss) else LinearSVC
    extra = {"epsilon": 0.1} if is_regression(loss) else {}
    oracle = kind(
        C=0.3, loss=loss, fit_intercept=False, dual=True, tol=1e-10, max_iter=10_000_000, random_state=0, **extra
    ).fit(features(X, state), Y[:, 0])
    assert np.allclose(state.tasks.weights, np.ravel(oracle.coef_)[None], atol=1e-6)


def test_intercept_is_a_penalized_constant_feature():
    from sklearn.svm import LinearSVC

    X, Y = toy(31, n_tasks=1)
    state = fit(X, *cells_of(Y, "squared_hinge"), small_settings(margins="decoupled"), noise_for(X)).state
    with_constant = np.hstack([features(X, state), np.ones((len(X), 1))])
    oracle = LinearSVC(C=0.3, fit_intercept=False, dual=True, tol=1e-10, max_iter=1_000_000, random_state=0)
    assert np.allclose(decision(X, state)[:, 0], oracle.fit(with_constant, Y[:, 0]).decision_function(with_constant))


def test_task_without_sharing_depends_on_its_own_rows_only():
    from sklearn.svm import LinearSVC

    problem, _, Y = toy_problem(32, missing=0.4)
    Y = Y[~np.isnan(Y).all(axis=1)]  # rows without targets are dropped
    at, inferred = exact(problem, toy_latent(33))
    (features,), weights = problem.features(inferred), at.head.head.weights
    seen = Design(features, fit_intercept=True).array()
    for task, found in enumerate(weights):
        rows = ~np.isnan(Y[:, task])
        oracle = LinearSVC(C=0.3, fit_intercept=False, dual=True, tol=1e-10, max_iter=1_000_000, random_state=0)
        assert np.allclose(found, oracle.fit(seen[rows], Y[rows, task]).coef_[0], atol=1e-6)


@pytest.mark.parametrize("sharing", [0.0, 1.5])
def test_duplicated_tasks_have_equal_weights(sharing):
    X, Y = toy(34, missing=0.2)
    settings = small_settings(task_sharing=sharing)
    state = fit(X, *cells_of(np.hstack([Y, Y[:, :1]]), settings.loss), settings, noise_for(X)).state
    assert np.allclose(state.tasks.weights[0], state.tasks.weights[3], atol=1e-6)


# Symmetries


@pytest.mark.parametrize("loss", ["hinge", "squared_epsilon_insensitive"])
@pytest.mark.parametrize("sharing", [0.0, 1.0])
def test_order_of_rows_columns_and_tasks_does_not_matter(loss, sharing):
    rng = np.random.default_rng(40)
    X, Y = toy(41, n_rows=30, loss=loss, missing=0.2)
    settings, noise = small_settings(loss, task_sharing=sharing), noise_for(X)
    plain = fit(X, *cells_of(Y, loss), settings, noise)
    rows, columns, tasks = rng.permutation(30), rng.permutation(5), rng.permutation(3)
    moved = fit(X[rows][:, columns], *cells_of(Y[rows][:, tasks], loss), settings, noise[columns])
    assert np.allclose(moved.state.latent.psi, plain.state.latent.psi[columns], atol=1e-6)
    assert np.allclose(decision(X[:, columns], moved.state), decision(X, plain.state)[:, tasks], atol=1e-6)


def test_units_of_the_inputs_do_not_matter():
    X, Y = toy(43)
    settings = small_settings()
    plain = fit(X, *cells_of(Y, settings.loss), settings, noise_for(X)).state
    for unit in (1e-6, 1e6):
        scaled = fit(unit * X, *cells_of(Y, settings.loss), settings, noise_for(X)).state
        assert np.allclose(scaled.latent.psi, plain.latent.psi, atol=1e-6)
        assert np.allclose(decision(unit * X, scaled), decision(X, plain), atol=1e-6)


@pytest.mark.parametrize("weight", [0.7, "auto"])
@pytest.mark.parametrize(("loss", "sharing"), [("squared_hinge", 0.0), ("epsilon_insensitive", 1.0)])
def test_complete_targets_match_stacked_rows(loss, sharing, weight):
    X, Y = toy(44, loss=loss)
    n_rows, n_tasks = Y.shape
    settings = small_settings(loss, task_sharing=sharing, generative_weight=weight)
    together = fit(X, *cells_of(Y, loss), settings, noise_for(X)).state

    stacked_rows, tasks, targets = np.arange(n_rows * n_tasks), np.repeat(np.arange(n_tasks), n_rows), Y.T.ravel()
    if is_regression(loss):
        cells = observe_numbers(stacked_rows, tasks, targets, n_tasks)
    else:
        cells = observe_classes(stacked_rows, tasks, targets.astype(np.int64), np.full(n_tasks, 2))
    per_copy = weight if weight == "auto" else weight / n_tasks
    ragged = replace(settings, generative_weight=per_copy)
    stacked = fit(np.tile(X, (n_tasks, 1)), *cells, ragged, noise_for(X)).state
    assert np.allclose(stacked.latent.psi, together.latent.psi, atol=1e-6)
    assert np.allclose(decision(X, stacked), decision(X, together), atol=1e-6)


def test_fit_counts_weight_two_as_row_twice():
    X, Y = toy(45)
    settings = small_settings()
    counts = np.random.default_rng(46).integers(1, 4, len(X))
    rows, tasks = np.nonzero(~np.isnan(Y))
    labels, two = Y[rows, tasks].astype(np.int64), np.full(3, 2)
    cells = observe_classes(rows, tasks, labels, two)
    weighted = fit(X, *cells, settings, noise_for(X), sample_weight=counts.astype(float)).state
    repeated = fit(
        np.repeat(X, counts, axis=0), *cells_of(np.repeat(Y, counts, axis=0), settings.loss), settings, noise_for(X)
    ).state
    assert np.allclose(weighted.latent.psi, repeated.latent.psi, atol=1e-6)
    assert np.allclose(decision(X, weighted), decision(X, repeated), atol=1e-6)


def test_multi_class_task_matches_multi_label_indicators():
    X, Y = toy(47, loss="epsilon_insensitive")
    labels = np.argmax(Y, axis=1)
    settings, rows = small_settings(), np.arange(len(X))
    one_task = fit(X, *observe_classes(rows, np.zeros_like(rows), labels, np.array([3])), settings, noise_for(X))
    indicator = fit(X, *cells_of(np.eye(3)[labels], settings.loss), settings, noise_for(X))
    assert np.array_equal(decision(X, one_task.state), decision(X, indicator.state))


def test_rows_without_targets_inform_the_features_only():
    X, Y = toy(48, n_rows=60)
    Y[20:] = np.nan
    settings = small_settings(generative_weight="auto")
    cells, outputs = cells_of(Y, settings.loss)
    problem = prepare(X, cells, outputs, settings)
    assert [block.pieces[0].shape for block in problem.blocks.blocks] == [(20, 5)]
    assert np.allclose(problem.moments.gram, X.T @ X)
    with_all = fit(X, cells, outputs, settings, noise_for(X)).state
    labelled = fit(X[:20], *cells_of(Y[:20], settings.loss), settings, noise_for(X)).state
    assert not np.allclose(with_all.latent.psi, labelled.latent.psi, atol=1e-3)


# Prediction


def test_decisions_for_one_output_per_row_and_unseen_tasks():
    X, Y = toy(60)
    state = fit(X, *cells_of(Y, "squared_hinge"), small_settings(task_sharing=1.0), noise_for(X)).state
    every, chosen = decision(X, state), np.arange(len(X)) % 3
    assert np.allclose(decision(X, state, chosen), every[np.arange(len(X)), chosen])
    several = np.column_stack([chosen, (chosen + 1) % 3])
    assert np.allclose(decision(X, state, several), np.take_along_axis(every, several, axis=1))
    shared = np.hstack([features(X, state), np.ones((len(X), 1))]) @ state.tasks.shared[0]
    assert np.allclose(decision(X, state, np.full(len(X), -1)), shared)


def test_inputs_are_used_in_addition_to_latent_features():
    X, Y = toy(61)
    state = fit(X, *cells_of(Y, "squared_hinge"), small_settings(include_inputs=True), noise_for(X)).state
    seen = np.hstack([features(X, state), 3 * X / (state.input_scale * np.sqrt(5)), np.ones((len(X), 1))])
    assert state.tasks.weights.shape == (3, 3 + 5 + 1)
    assert np.allclose(decision(X, state), seen @ state.tasks.weights.T)


def test_state_can_be_saved_and_loaded(tmp_path):
    from regbayes.persistence import load, save

    X, Y = toy(65)
    state = fit(X, *cells_of(Y, "squared_hinge"), small_settings(task_sharing=1.0), noise_for(X)).state
    save(state, tmp_path / "state.rb")
    assert np.array_equal(decision(X, load(tmp_path / "state.rb")), decision(X, state))


def test_simulated_features_are_recovered():
    """Three overlapping groups of columns, each driven by one latent variable per row."""
    rng = np.random.default_rng(64)
    Z = np.zeros((12, 3))
    Z[0:6, 0] = Z[4:10, 1] = Z[8:12, 2] = 1.0
    X = rng.standard_normal((400, 3)) @ Z.T + 0.3 * rng.standard_normal((400, 12))
    nothing = np.zeros(0, dtype=np.int64)
    cells, outputs = observe_numbers(nothing, nothing, np.zeros(0), 0)
    settings = Settings(n_components=4, temperature=0.0, start_iter=500, tol=1e-9)
    latent = factor_analysis(prepare(X, cells, outputs, settings), noise_for(X, 4, seed=1)).state.latent
    found = latent.psi > 0.5
    for planted in (Z > 0.5).T:
        assert any(np.array_equal(planted, column) for column in found.T)
    assert latent.noise_variance == pytest.approx(0.09, rel=0.03)
