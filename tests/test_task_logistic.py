"""The Bayesian logistic baselines: the bound against the loss, blocks against perturbations, and what was planted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import log_expit
from scipy.stats import norm

from regbayes.baselines import DirichletProcessTaskClassifier, PredictorSubspaceClassifier, SingleTaskClassifier
from regbayes.models.linear_tasks import predictor_subspace, shared_clusters
from regbayes.models.linear_tasks.logistic import best_xi, quadratic_bound
from regbayes.models.linear_tasks.predictor_subspace import SubspaceSettings
from regbayes.models.linear_tasks.problem import LinearTasks
from regbayes.models.linear_tasks.shared_clusters import ClusterSettings
from regbayes.models.mt_ilsvm.cells import classification_cells


def small_problem(n_tasks: int = 4, n_columns: int = 5, n_rows: int = 30, seed: int = 0) -> LinearTasks:
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.standard_normal((n_rows, n_columns - 1)), np.ones(n_rows)])
    tasks, rows = np.nonzero(rng.random((n_tasks, n_rows)) < 0.8)
    weights = 2.0 * rng.standard_normal((n_tasks, n_columns))
    answers = np.sum(X[rows] * weights[tasks], axis=1) + rng.logistic(size=len(rows)) > 0
    cells, _ = classification_cells(rows, tasks, answers.astype(np.int64), np.full(n_tasks, 2))
    return LinearTasks(X, cells, n_tasks, "logistic")


# --- the bound


def test_the_quadratic_bound_is_below_the_log_likelihood_and_touches_it():
    problem = small_problem()
    rng = np.random.default_rng(1)
    for size in (0.0, 0.1, 1.0, 10.0):
        W = size * rng.standard_normal((4, 5))
        likelihood = np.bincount(problem.cells.outputs, log_expit(problem.cells.targets * problem.scores(W)))
        seconds = W[:, :, None] * W[:, None, :]
        tight = quadratic_bound(problem, best_xi(problem, seconds)).expected(W, seconds)
        np.testing.assert_allclose(tight, likelihood, rtol=1e-6)
        loose = quadratic_bound(problem, 3.0 * rng.random(len(problem.cells))).expected(W, seconds)
        assert np.all(loose <= likelihood + 1e-9)


def test_one_cluster_bounds_the_evidence():
    """With a single weight the evidence is an integral in one dimension."""
    problem = small_problem(n_tasks=1, n_columns=1)
    settings = ClusterSettings(1, 1.0, 200, 1e-10)
    result = shared_clusters.fit(problem, settings, np.random.default_rng(0), [])
    state, targets = result.state, problem.cells.targets
    found, _ = quad(
        lambda w: np.exp(np.sum(log_expit(targets * w)) + norm.logpdf(w, scale=np.sqrt(state.variance))), -10, 10
    )
    bound = -result.trace.objective[-1]
    assert np.log(found) - 0.3 < bound < np.log(found)
    mean, _ = quad(
        lambda w: w * np.exp(np.sum(log_expit(targets * w)) + norm.logpdf(w, scale=np.sqrt(state.variance))) / found,
        -10,
        10,
    )
    assert state.means[0, 0] == pytest.approx(mean, rel=0.1)


# --- blocks


def test_no_perturbation_of_a_block_of_the_clusters_beats_its_update():
    problem, settings = small_problem(), ClusterSettings(3, 1.0, 5, 0.0)
    state = shared_clusters.fit(problem, settings, np.random.default_rng(0), []).state
    rng = np.random.default_rng(2)

    def value(s):
        return sum(shared_clusters.objective(quadratic_bound(problem, s.xi), s, settings).values())

    def turned(members):
        moved = members * np.exp(0.1 * rng.standard_normal(members.shape))
        return moved / moved.sum(axis=1, keepdims=True)

    def spread(covariances):
        root = np.eye(5) + 0.03 * rng.standard_normal(covariances.shape)
        return root @ covariances @ root.transpose(0, 2, 1)

    bound = quadratic_bound(problem, state.xi)
    blocks = {
        "sticks": (
            shared_clusters.update_sticks(state, settings),
            lambda a: a * np.exp(0.05 * rng.standard_normal(a.shape)),
        ),
        "memberships": (shared_clusters.update_memberships(bound, state), turned),
        "means": (shared_clusters.update_weights(bound, state), lambda a: a + 0.05 * rng.standard_normal(a.shape)),
        "covariances": (shared_clusters.update_weights(bound, state), spread),
        "xi": (shared_clusters.update_xi(problem, state), lambda a: a * np.exp(0.1 * rng.standard_normal(a.shape))),
        "variance": (shared_clusters.update_variance(state), lambda a: a * np.exp(0.1 * rng.standard_normal())),
    }
    for name, (updated, move) in blocks.items():
        best = value(updated)
        assert best <= value(state) + 1e-9, name
        for _ in range(10):
            assert value(replace(updated, **{name: move(getattr(updated, name))})) > best, name


@pytest.mark.parametrize("augmented", [False, True])
def test_no_perturbation_of_a_block_of_the_subspace_beats_its_update(augmented):
    problem, settings = small_problem(), SubspaceSettings(3, 2.0, augmented, 3, 0.0)
    state = predictor_subspace.fit(problem, settings, np.random.default_rng(0), []).state
    rng = np.random.default_rng(2)
    bound = quadratic_bound(problem, state.xi)

    def value(s):
        return sum(predictor_subspace.objective(problem, bound, s, settings).values())

    updated = predictor_subspace.update_loadings(bound, state)
    best = value(updated)
    assert best < value(replace(state, loadings=state.loadings + 0.1))
    for _ in range(10):
        assert value(replace(updated, loadings=updated.loadings + 0.05 * rng.standard_normal((4, 4)))) > best
    if augmented:
        noise = state.inputs.noise_variance
        seen = predictor_subspace.update_inputs(problem, state)
        assert value(seen) <= value(state)
        kept = replace(seen, inputs=replace(seen.inputs, noise_variance=noise))
        for _ in range(10):
            means = kept.inputs.means + 0.05 * rng.standard_normal(kept.inputs.means.shape)
            assert value(replace(kept, inputs=replace(kept.inputs, means=means))) > value(kept)
    # entries are updated one after the other, so the last one is at its best given all others
    basis = predictor_subspace.update_basis(problem, bound, state).basis
    lowest = value(replace(state, basis=basis))
    assert lowest < value(state)
    for name, change in (("mean", 0.05), ("mean", -0.05), ("probability", 0.02), ("probability", -0.02)):
        moved = getattr(basis, name).copy()
        moved[-1, -1] += change
        if name == "mean" or 0 < moved[-1, -1] < 1:
            assert value(replace(state, basis=replace(basis, **{name: moved}))) > lowest, name


@pytest.mark.parametrize("seed", range(3))
def test_the_bound_never_falls(seed):
    problem, rng = small_problem(seed=seed), np.random.default_rng(seed)
    for augmented in (False, True):
        result = predictor_subspace.fit(problem, SubspaceSettings(4, 2.0, augmented, 40, 0.0), rng, [])
        assert result.trace.rises.largest < 1e-7
    assert shared_clusters.fit(problem, ClusterSettings(4, 1.0, 40, 0.0), rng, []).trace.rises.largest < 1e-7


# --- what was planted


def test_planted_clusters_are_recovered_and_worth_it():
    rng = np.random.default_rng(0)
    centres = np.array([[3.0, 0.0, -2.0, 0.0], [-3.0, 2.0, 0.0, 0.0], [0.0, 0.0, 0.0, 3.0]])
    task = np.repeat(np.arange(15), 30)
    X = rng.standard_normal((len(task), 4))
    y = np.sum(X * centres[task % 3], axis=1) + rng.logistic(size=len(task)) > 0
    fitted = DirichletProcessTaskClassifier(random_state=0).fit(X, y, task=task)
    assert fitted.n_clusters_ == 3
    found = fitted.memberships_.argmax(axis=1)
    assert found.tolist() == [found[t % 3] for t in range(15)]
    np.testing.assert_allclose(fitted.coef_[:3], centres, atol=0.8)
    test = rng.standard_normal((1500, 4))
    truth, groups = np.sum(test * centres[np.arange(1500) % 3], axis=1) > 0, np.arange(1500) % 15
    alone = max(SingleTaskClassifier(C).fit(X, y, task=task).score(test, truth, groups) for C in (0.01, 0.1, 1.0))
    assert fitted.score(test, truth, groups) > alone + 0.01


def test_a_planted_subspace_is_recovered_with_the_help_of_inputs():
    rng = np.random.default_rng(0)
    basis = np.zeros((2, 10))
    basis[0, :5], basis[1, 4:8] = rng.standard_normal(5), rng.standard_normal(4)
    X = 2.0 * rng.standard_normal((300, 2)) @ basis + 0.5 * rng.standard_normal((300, 10))
    weights = 2.0 * rng.standard_normal((8, 2)) @ basis
    Y = (X @ weights.T + rng.logistic(size=(300, 8)) > 0).astype(float)
    Y[30:] = np.nan  # nine rows of ten have no label
    fitted = PredictorSubspaceClassifier(6, augmented=True, scale_inputs=False, max_iter=300, random_state=0)
    fitted.fit(X, Y)
    assert fitted.n_components_ == 2
    used = fitted.inclusion_.max(axis=0) > 0.5
    assert used.tolist() == [True] * 8 + [False] * 2
    np.testing.assert_allclose(fitted.coef_, fitted.loadings_ @ fitted.components_)
    planted = np.linalg.qr(basis.T)[0]
    directions = np.linalg.svd(fitted.coef_, full_matrices=False)[2][:2]
    assert np.linalg.svd(directions @ planted, compute_uv=False).min() > 0.95
