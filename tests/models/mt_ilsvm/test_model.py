"""Parts of MT-iLSVM: expectations by enumeration, gradients by differences, updates by perturbation."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from mt_ilsvm_tools import LOSSES, exact, exact_gradient, is_regression, toy, toy_latent, toy_problem
from regbayes.engine import Serial, Threads, row_blocks
from regbayes.joint.problem import hold_rows
from regbayes.margins.design import Design
from regbayes.margins.targets import Cells, observe_classes, observe_numbers
from regbayes.models.indian_buffet import cross_entropy_features, kl_sticks, stick_expectations
from regbayes.models.mt_ilsvm.fit import prepare, start_latent
from regbayes.models.mt_ilsvm.model import (
    Factors,
    Settings,
    expected_residual,
    feature_entropy,
    generative_terms,
    resolve_scales,
    sum_moments,
    update_factors,
    update_features,
    update_noise_variance,
    update_sticks,
    update_weight_variance,
)


def factors_at(projection, covariance, stats):
    """Return q(w) with given linear means and covariance."""
    cross = stats.gram @ projection
    return Factors(projection, covariance, cross, projection.T @ cross + stats.n_rows * covariance)


def free_energy(latent, factors, stats, temperature=4.0, alpha=2.0):
    return sum(generative_terms(latent, factors, stats, alpha, temperature).values())


# Expectations and terms


def test_expected_residual_and_entropy_by_enumeration():
    rng = np.random.default_rng(0)
    X, latent = rng.standard_normal((4, 3)), toy_latent(1, n_columns=3, n_features=2)
    half = rng.standard_normal((2, 2))
    factors = factors_at(rng.standard_normal((3, 2)), half @ half.T + np.eye(2), sum_moments(X))
    psi, residual, entropy = latent.psi, 0.0, 0.0
    for bits in product([0.0, 1.0], repeat=6):
        Z = np.reshape(bits, (3, 2))
        probability = np.prod(np.where(Z == 1, psi, 1 - psi))
        for x in X:
            mean = factors.projection.T @ x
            residual += probability * (np.sum((x - Z @ mean) ** 2) + np.trace(Z @ factors.covariance @ Z.T))
        entropy -= probability * np.log(probability)
    assert expected_residual(latent, factors, sum_moments(X)) == pytest.approx(residual, rel=1e-12)
    assert feature_entropy(latent.logits) == pytest.approx(entropy, rel=1e-12)


def test_entropy_of_certain_features_is_zero_and_finite():
    assert feature_entropy(np.array([[-800.0, 800.0]])) == 0.0
    assert feature_entropy(np.zeros((1, 1))) == pytest.approx(np.log(2))


def test_terms_sum_to_the_free_energy_of_the_joint_density():
    """Compare the terms including constants with -E log p(X, w | Z) - H(q(w)) by row."""
    rng = np.random.default_rng(3)
    X, latent = rng.standard_normal((6, 4)), toy_latent(2, n_columns=4, n_features=2)
    stats = sum_moments(X)
    factors = factors_at(rng.standard_normal((4, 2)), np.diag([0.3, 0.7]), stats)
    noise, prior = latent.noise_variance, latent.weight_variance
    total = 0.0
    for x in X:
        mean, covariance = factors.projection.T @ x, factors.covariance
        residual = expected_residual(latent, factors_at_row(mean, covariance, x), sum_moments(x[None]))
        total += 0.5 * (4 * np.log(2 * np.pi * noise) + residual / noise)
        total += 0.5 * (2 * np.log(2 * np.pi * prior) + (mean @ mean + np.trace(covariance)) / prior)
        total -= 0.5 * np.linalg.slogdet(2 * np.pi * np.e * covariance)[1]
    terms = generative_terms(latent, factors, stats, 2.0, 4.0)
    assert terms["kl_factors"] + terms["likelihood"] == pytest.approx(total, rel=1e-12)
    counts = latent.psi.sum(axis=0)
    prior = cross_entropy_features(stick_expectations(latent.sticks), counts, 4.0)
    assert terms["kl_features"] == pytest.approx(prior - 4.0 * feature_entropy(latent.logits), rel=1e-14)
    assert terms["kl_sticks"] == kl_sticks(latent.sticks, 2.0)


def factors_at_row(mean, covariance, x):
    return Factors(np.zeros((len(x), len(mean))), covariance, np.outer(x, mean), np.outer(mean, mean) + covariance)


# Blocks: no perturbation beats an update


def test_factors_are_optimal_in_their_family():
    """Other means and variances increase the objective; a free covariance, outside the family, lowers it."""
    rng = np.random.default_rng(4)
    X, latent = rng.standard_normal((10, 5)), toy_latent(5)
    moments = sum_moments(X)
    best = update_factors(latent, moments)
    value = free_energy(latent, best, moments)
    for _ in range(30):
        step = 10.0 ** rng.uniform(-4, -1)
        moved = factors_at(best.projection + step * rng.standard_normal((5, 3)), best.covariance, moments)
        assert free_energy(latent, moved, moments) > value
        spread = best.covariance * np.exp(step * rng.standard_normal())
        assert free_energy(latent, factors_at(best.projection, spread, moments), moments) > value
    psi = latent.psi
    products = psi.T @ psi + np.diag(psi.sum(axis=0) - (psi**2).sum(axis=0))
    free = np.linalg.inv(products / latent.noise_variance + np.eye(3) / latent.weight_variance)
    assert free_energy(latent, factors_at(best.projection, free, moments), moments) < value


def test_variances_are_optimal():
    X, latent = np.random.default_rng(8).standard_normal((10, 5)), toy_latent(9)
    stats = sum_moments(X)
    factors = update_factors(latent, stats)
    for update, name in ((update_noise_variance, "noise_variance"), (update_weight_variance, "weight_variance")):
        best = update(latent, factors, stats)
        value = free_energy(best, factors, stats)
        for factor in (0.5, 0.99, 1.01, 2.0):
            moved = replace(best, **{name: factor * getattr(best, name)})
            assert free_energy(moved, factors, stats) > value


def test_stick_updates_lower_their_objective():
    latent = toy_latent(10)
    better = update_sticks(latent, 2.0)
    factors = update_factors(latent, sum_moments(np.eye(5)))
    assert free_energy(better, factors, sum_moments(np.eye(5))) < free_energy(latent, factors, sum_moments(np.eye(5)))


def test_feature_updates_of_alternation_minimize_the_lagrangian():
    """At fixed q(w) and multipliers, each column is optimal given the preceding ones."""
    rng = np.random.default_rng(11)
    X, latent = rng.standard_normal((20, 5)), toy_latent(12)
    stats = sum_moments(X)
    factors = update_factors(latent, stats)
    pull = rng.standard_normal((5, 3))
    temperature = 3.0

    def lagrangian(at):
        return free_energy(at, factors, stats, temperature) / temperature - np.sum(pull * at.psi)

    swept = update_features(latent, factors, temperature, pull)
    assert lagrangian(swept) < lagrangian(latent)
    for k in range(3):
        # The sweep up to column k, with later columns unchanged.
        logits = np.hstack([swept.logits[:, : k + 1], latent.logits[:, k + 1 :]])
        at = replace(latent, logits=logits)
        for _ in range(10):
            moved = logits.copy()
            moved[:, k] += 10.0 ** rng.uniform(-3, 0) * rng.standard_normal(5)
            assert lagrangian(replace(latent, logits=moved)) > lagrangian(at)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("sharing", [0.0, 1.3])
def test_margins_agree_with_cvxpy(loss, sharing):
    cp = pytest.importorskip("cvxpy")
    problem, _, _ = toy_problem(13, loss, missing=0.2, task_sharing=sharing)
    at, inferred = exact(problem, toy_latent(14))
    head, found = problem.head, at.head
    (features,) = problem.features(inferred)
    seen = Design(features, inputs=head.inputs, fit_intercept=head.fit_intercept).array()

    own, common = cp.Variable((3, seen.shape[1])), cp.Variable(seen.shape[1])
    observed, C, epsilon = head.targets.cells, problem.settings.C, problem.settings.epsilon
    weights = own + sharing * cp.vstack([common] * 3)
    scores = cp.sum(cp.multiply(seen[observed.rows], weights[observed.outputs]), axis=1)
    if is_regression(loss):
        miss = cp.pos(cp.abs(observed.targets - scores) - epsilon)
    else:
        miss = cp.pos(1 - cp.multiply(observed.targets, scores))
    losses = C * cp.sum(cp.square(miss) if loss.startswith("squared") else miss)
    value = 0.5 * (cp.sum_squares(own) + cp.sum_squares(common)) + losses
    oracle = cp.Problem(cp.Minimize(value)).solve(solver=cp.CLARABEL)

    assert found.value == pytest.approx(oracle, rel=1e-6)
    assert found.gap <= 1e-10 * found.value
    assert np.allclose(found.head.weights, weights.value, atol=1e-4)
    assert np.allclose(found.shared[0], sharing * common.value, atol=1e-4)
    assert found.terms["margin"] == pytest.approx(losses.value, rel=1e-4)


# The gradient of J


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("missing", [0.0, 0.2])
@pytest.mark.parametrize("options", [{}, {"task_sharing": 0.7, "include_inputs": True, "fit_intercept": False}])
def test_gradient_of_the_objective_by_finite_differences(loss, missing, options):
    problem, _, _ = toy_problem(15, loss, missing=missing, **options)
    latent = toy_latent(16)

    def objective(logits):
        return exact(problem, replace(latent, logits=logits))[0].objective

    gradient, _ = exact_gradient(problem, latent)
    numeric = np.zeros_like(gradient)
    for index in np.ndindex(gradient.shape):
        step = np.zeros_like(gradient)
        step[index] = 1e-4
        numeric[index] = (objective(latent.logits + step) - objective(latent.logits - step)) / 2e-4
    assert np.allclose(gradient, numeric, atol=1e-7 * np.abs(gradient).max())


@pytest.mark.parametrize("loss", LOSSES)
def test_objective_counts_weights_as_repeated_rows(loss):
    """Compares J, its terms and its gradient at the same parameters."""
    X, Y = toy(45, loss=loss, missing=0.2)
    counts = np.random.default_rng(46).integers(0, 4, len(X))
    settings = Settings(n_components=3, C=0.3, loss=loss, temperature=0.05, include_inputs=True)
    kept = np.flatnonzero(counts)
    weighted = prepare(X[kept], *observe(Y[kept], loss), settings, sample_weight=counts[kept].astype(float))
    repeated = prepare(np.repeat(X, counts, axis=0), *observe(np.repeat(Y, counts, axis=0), loss), settings)
    latent = toy_latent(47)
    assert weighted.n_targets == repeated.n_targets
    assert weighted.model.scales == repeated.model.scales
    assert weighted.model.input_scale == pytest.approx(repeated.model.input_scale, rel=1e-14)
    # Copies of a row share a kink of the plain losses, so weights and gradient are less accurate.
    tolerance = 1e-12 if loss.startswith("squared") else 1e-6
    one, other = exact(weighted, latent)[0], exact(repeated, latent)[0]
    assert one.objective == pytest.approx(other.objective, rel=1e-12)
    for name in one.terms:
        assert one.terms[name] == pytest.approx(other.terms[name], rel=tolerance)
    gradient, expected = exact_gradient(weighted, latent)[0], exact_gradient(repeated, latent)[0]
    assert np.allclose(gradient, expected, rtol=0, atol=tolerance * np.abs(expected).max())


def observe(Y, loss):
    rows, tasks = np.nonzero(~np.isnan(Y))
    values = Y[rows, tasks]
    if is_regression(loss):
        return observe_numbers(rows, tasks, values, Y.shape[1])
    return observe_classes(rows, tasks, values.astype(np.int64), np.full(Y.shape[1], 2))


def test_threads_and_blocks_do_not_change_the_gradient():
    X, Y = toy(49, n_rows=5000, missing=0.2)
    settings = Settings(n_components=3, temperature=0.05)
    found = [
        exact_gradient(prepare(X, *observe(Y, "squared_hinge"), settings, executor=executor), toy_latent(50))[0]
        for executor in (Serial(), Threads(2), Threads(5))
    ]
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])
    whole = prepare(X, *observe(Y, "squared_hinge"), settings)
    assert len(whole.blocks.blocks) > 1
    one_block = replace(whole, blocks=hold_rows([np.concatenate([block.pieces[0] for block in whole.blocks.blocks])]))
    assert np.allclose(exact_gradient(one_block, toy_latent(50))[0], found[0], rtol=1e-10)


# Observations, statistics, scales, the start


def test_order_of_the_observations_does_not_matter():
    rng = np.random.default_rng(42)
    rows, tasks, targets = rng.integers(0, 9, 20), rng.integers(0, 3, 20), rng.standard_normal(20)
    order = rng.permutation(20)
    one, _ = observe_numbers(rows, tasks, targets, 3, weights=np.arange(20.0))
    other, _ = observe_numbers(rows[order], tasks[order], targets[order], 3, weights=np.arange(20.0)[order])
    assert len(one) == 19  # a target with weight zero is dropped
    assert np.array_equal(one.rows, other.rows)
    assert np.array_equal(one.outputs, other.outputs)
    assert sorted(zip(one.outputs, one.rows, one.targets, one.weights, strict=True)) == sorted(
        zip(other.outputs, other.rows, other.targets, other.weights, strict=True)
    )


def test_outputs_of_mixed_tasks_are_enumerated():
    rows, tasks, labels = np.array([0, 1, 1, 2]), np.array([0, 0, 1, 1]), np.array([1, 0, 2, 0])
    cells, outputs = observe_classes(rows, tasks, labels, np.array([2, 3]))
    assert outputs.tasks.tolist() == [0, 1, 1, 1]
    assert outputs.classes.tolist() == [1, 0, 1, 2]
    assert outputs.groups.tolist() == [0, 1, 2, 3]
    table = Cells(cells, 3, 4, 1.0, None).by_row(cells.targets).T.toarray()
    assert table.tolist() == [
        [1, -1, 0],
        [0, -1, 1],
        [0, -1, -1],
        [0, 1, -1],
    ]


@pytest.mark.parametrize(
    ("cost", "labels", "expected"),
    [
        ([[0, 5], [7, 0]], [1, 0], [[70, 5]]),
        ([[0, 1, 3], [1, 0, 1], [0, 4, 0]], [2, 0], [[0, 2], [40, 1], [20, 3]]),  # cost 0 drops a target
    ],
)
def test_costs_of_wrong_classes_weight_the_observations(cost, labels, expected):
    first = np.zeros(2, dtype=int)
    cells, outputs = observe_classes(
        np.arange(2), first, np.array(labels), np.array([len(cost)]), np.array([10.0, 1.0]), np.array(cost, dtype=float)
    )
    table = np.zeros((len(outputs), 2))
    table[cells.outputs, cells.rows] = cells.weights
    assert table.tolist() == expected


def test_statistics_are_additive_for_any_number_of_threads():
    rng = np.random.default_rng(50)
    X, weights = rng.standard_normal((5000, 4)), rng.uniform(0.5, 2.0, 5000)
    nothing = observe_numbers(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0), 0)
    for given in (None, weights):
        one, four = (prepare(X, *nothing, Settings(), given, Threads(n)).moments for n in (1, 4))
        assert np.array_equal(one.gram, four.gram)
        assert one.n_rows == four.n_rows
        parts = [sum_moments(X[rows], None if given is None else given[rows]) for rows in row_blocks(len(X))]
        assert len(parts) > 1
        part, rest = (sum_moments(X[rows], None if given is None else given[rows]) for rows in HALVES)
        assert np.allclose((part + rest).gram, one.gram)
        expected = X.T @ X if given is None else (X * weights[:, None]).T @ X
        assert np.allclose(one.gram, expected)
        assert one.n_rows == pytest.approx(5000 if given is None else weights.sum())


HALVES = (slice(0, 1234), slice(1234, None))


def test_scales_match_their_formulas():
    settings = Settings(C=0.2, generative_weight=3.0)
    complete = resolve_scales(settings, 0.1, 100.0, 400.0)
    assert (complete.multiplicity, complete.temperature) == (4.0, pytest.approx(40.0))
    assert complete.generative == pytest.approx(0.2 * 3.0 / 4.0)
    mostly_unlabelled = resolve_scales(settings, 0.1, 100.0, 5.0)
    assert (mostly_unlabelled.multiplicity, mostly_unlabelled.temperature) == (1.0, pytest.approx(10.0))
    assert resolve_scales(settings, 0.0, 100.0, 400.0).temperature == 1.0
    automatic = resolve_scales(replace(settings, generative_weight="auto"), 0.1, 100.0, 400.0)
    explicit = replace(settings, generative_weight=automatic.generative_weight)
    assert resolve_scales(explicit, 0.1, 100.0, 400.0).generative == pytest.approx(automatic.generative)


def test_start_has_a_feature_per_sign_of_principal_directions():
    X, _ = toy(51, n_rows=50, n_columns=6)
    latent = start_latent(sum_moments(X), Settings(n_components=4), np.zeros((6, 4)))
    directions = np.linalg.svd(X)[2][:2].T
    logits = latent.logits / np.linalg.norm(latent.logits, axis=0)
    overlap = np.abs(directions.T @ logits).max(axis=0)
    assert np.allclose(overlap, 1.0)
    assert np.allclose(sorted(latent.logits.sum(axis=0)), sorted(-latent.logits.sum(axis=0)))
    assert np.all(np.diff(latent.psi.sum(axis=0)) <= 1e-12)
