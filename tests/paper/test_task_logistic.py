"""The Bayesian logistic baselines: the bound against the loss, blocks against perturbations, and what was planted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.spatial.distance import pdist, squareform
from scipy.special import log_expit
from scipy.stats import norm

from regbayes.margins.targets import observe_classes
from regbayes_paper.baselines import DirichletProcessTaskClassifier, PredictorSubspaceClassifier, SingleTaskClassifier
from regbayes_paper.models.linear_tasks import predictor_subspace, shared_clusters
from regbayes_paper.models.linear_tasks.logistic import best_xi, quadratic_bound
from regbayes_paper.models.linear_tasks.predictor_subspace import SubspaceSettings
from regbayes_paper.models.linear_tasks.problem import LinearTasks
from regbayes_paper.models.linear_tasks.shared_clusters import ClusterSettings
from regbayes_paper.priors.dirichlet_process import Sticks


def small_problem(n_tasks: int = 4, n_columns: int = 5, n_rows: int = 30, seed: int = 0) -> LinearTasks:
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.standard_normal((n_rows, n_columns - 1)), np.ones(n_rows)])
    tasks, rows = np.nonzero(rng.random((n_tasks, n_rows)) < 0.8)
    weights = 2.0 * rng.standard_normal((n_tasks, n_columns))
    answers = np.sum(X[rows] * weights[tasks], axis=1) + rng.logistic(size=len(rows)) > 0
    observations, _ = observe_classes(rows, tasks, answers.astype(np.int64), np.full(n_tasks, 2))
    return LinearTasks(X, observations, n_tasks, "logistic", np.ones(len(X)))


# --- the bound


def test_the_quadratic_bound_is_below_the_log_likelihood_and_touches_it():
    problem = small_problem()
    rng = np.random.default_rng(1)
    for size in (0.0, 0.1, 1.0, 10.0):
        W = size * rng.standard_normal((4, 5))
        likelihood = np.bincount(
            problem.observations.outputs, log_expit(problem.observations.targets * problem.scores(W))
        )
        seconds = W[:, :, None] * W[:, None, :]
        tight = quadratic_bound(problem, best_xi(problem, seconds)).expected(W, seconds)
        np.testing.assert_allclose(tight, likelihood, rtol=1e-6)
        loose = quadratic_bound(problem, 3.0 * rng.random(len(problem.observations))).expected(W, seconds)
        assert np.all(loose <= likelihood + 1e-9)


def test_one_cluster_bounds_the_evidence():
    """With a single weight the evidence is an integral in one dimension."""
    problem = small_problem(n_tasks=1, n_columns=1)
    settings = ClusterSettings(1, 1.0, 200, 1e-10)
    result = shared_clusters.fit(problem, settings, np.random.default_rng(0), [])
    state, targets = result.state, problem.observations.targets
    found, _ = quad(
        lambda w: np.exp(np.sum(log_expit(targets * w)) + norm.logpdf(w, scale=np.sqrt(state.variance))), -10, 10
    )
    bound = -result.trace.objective[-1] + np.log(2.0)  # the process has other clusters, q has one
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

    def stretched(sticks):
        return Sticks(*[a * np.exp(0.05 * rng.standard_normal(a.shape)) for a in (sticks.first, sticks.second)])

    blocks = {
        "sticks": (shared_clusters.update_sticks(state, settings), stretched),
        "memberships": (shared_clusters.update_memberships(bound, state, settings), turned),
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

    np.testing.assert_allclose(
        predictor_subspace.update_xi(problem, state), best_xi(problem, state.second_moments), rtol=1e-10
    )
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
    for kernel in (None, log_kernel(rng.standard_normal((4, 2)))):
        settings = ClusterSettings(4, 1.0, 40, 0.0, kernel)
        assert shared_clusters.fit(problem, settings, rng, []).trace.rises.largest < 1e-7


# --- kernels between tasks


def log_kernel(places, width=1.0):
    return -0.5 * squareform(pdist(places, "sqeuclidean")) / width**2


def test_a_kernel_that_reaches_everywhere_is_the_plain_process():
    problem = small_problem(n_tasks=6)
    places = np.random.default_rng(0).standard_normal((6, 2))
    found = [
        shared_clusters.fit(problem, ClusterSettings(4, 1.0, 20, 0.0, kernel), np.random.default_rng(0), [])
        for kernel in (None, log_kernel(places, 1e9))
    ]
    np.testing.assert_allclose(found[1].trace.objective, found[0].trace.objective, rtol=1e-10)
    np.testing.assert_allclose(found[1].state.memberships, found[0].state.memberships, atol=1e-8)


@pytest.mark.parametrize("scale", [1.0, 1e-200, 1e200])
def test_any_width_and_any_unit_of_places_will_do(scale):
    rng = np.random.default_rng(0)
    X, places = rng.standard_normal((60, 3)), rng.standard_normal((4, 2))
    Y = X @ rng.standard_normal((3, 4)) + rng.logistic(size=(60, 4)) > 0

    def scores(**parameters):
        return DirichletProcessTaskClassifier(random_state=0, **parameters).fit(X, Y).decision_function(X)

    moved = scores(kernel_width=1.0, task_locations=scale * places)
    np.testing.assert_allclose(moved, scores(kernel_width=1.0, task_locations=places), rtol=1e-6)
    assert np.all(np.isfinite(scores(kernel_width=scale, task_locations=places)))
    np.testing.assert_allclose(scores(kernel_width=1e200, task_locations=places), scores(), rtol=1e-6)


def test_tasks_that_are_near_share_a_cluster_where_labels_are_few():
    rng = np.random.default_rng(0)
    task = np.repeat(np.arange(12), 8)
    X = rng.standard_normal((len(task), 3))
    weights = np.array([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0]])
    y = np.sum(X * weights[task % 2], axis=1) + rng.logistic(size=len(task)) > 0
    places = np.column_stack([np.arange(12) % 2, 0.05 * rng.standard_normal(12)])
    kernel = DirichletProcessTaskClassifier(kernel_width=0.2, task_locations=places, random_state=0)
    kernel.fit(X, y, task=task)
    found = kernel.memberships_.argmax(axis=1)
    assert kernel.n_clusters_ == 2
    assert found.tolist() == [found[t % 2] for t in range(12)]
    assert kernel.centres_[found[0]] % 2 == 0
    assert kernel.centres_[found[1]] % 2 == 1
    plain = DirichletProcessTaskClassifier(random_state=0).fit(X, y, task=task)
    assert plain.n_clusters_ == 1  # labels alone do not tell the two apart


def test_a_kernel_needs_a_place_for_every_task():
    X, y, task = np.eye(6), np.arange(6) % 2, np.arange(6) // 2
    model = DirichletProcessTaskClassifier(kernel_width=1.0, task_locations=np.zeros((2, 1)))
    with pytest.raises(ValueError, match="task_locations has 2 rows; there must be one for each of the 3 rows"):
        model.fit(X, y, task=task)


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
