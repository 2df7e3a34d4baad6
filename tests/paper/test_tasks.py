"""Multi-task baselines: optimality, reference densities, and simulated data with known ground truth."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from itertools import product
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import log_expit
from scipy.stats import beta, multivariate_normal, norm
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import parametrize_with_checks

from regbayes_paper import baselines, dirichlet_process
from regbayes_paper.baselines import bmtl, gaussian_process, predictor_subspace, task_clusters
from regbayes_paper.baselines.bmtl import Moments, TaskPrior
from regbayes_paper.baselines.linear_tasks import LinearTasks
from regbayes_paper.descent import alternate
from regbayes_paper.dirichlet_process import Sticks
from regbayes_paper.indian_buffet import Sticks as BuffetSticks
from regbayes_paper.logistic import best_xi, quadratic_bound
from regbayes_paper.tasks import TaskProblem

MODELS = [
    baselines.SingleTaskRegressor(),
    baselines.SingleTaskClassifier(),
    baselines.MTRLRegressor(max_iter=20),
    baselines.MTRLClassifier(max_iter=20),
    baselines.ASORegressor(),
    baselines.ASOClassifier(),
    baselines.BMTLRegressor(max_iter=20),
    baselines.DirichletProcessTaskClassifier(n_clusters=2, max_iter=20),
    baselines.PredictorSubspaceClassifier(n_components=2, max_iter=20),
]


@parametrize_with_checks(MODELS)
def test_scikit_learn_checks_pass(estimator, check):
    check(estimator)


def small_problem(n_tasks: int = 4, n_columns: int = 4, n_rows: int = 30, labels: bool = True) -> TaskProblem:
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.standard_normal((n_rows, n_columns)), np.ones(n_rows)])
    outputs, rows = np.nonzero(rng.random((n_tasks, n_rows)) < 0.8)
    scores = np.sum(X[rows] * 2.0 * rng.standard_normal((n_tasks, n_columns + 1))[outputs], axis=1)
    noisy = scores + rng.logistic(size=len(rows))
    return TaskProblem(X, rows, outputs, np.where(noisy > 0, 1.0, -1.0) if labels else noisy, n_tasks)


def groups(seed: int = 0) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    X, task = rng.standard_normal((90, 3)), np.array(["east", "north", "west"])[np.arange(90) % 3]
    return X, X @ [1.0, -1.0, 0.5] + (task == "west") + 0.3 * rng.standard_normal(90), task


# --- Targets


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_matrix_with_missing_targets_matches_task_argument(model):
    """A matrix with one observed target per sample is equivalent to ``task=``, up to scaling of targets."""
    X, y, task = groups()
    codes = np.unique(task, return_inverse=True)[1]
    numbers = (hasattr(model, "_hinge") and not model._hinge) or type(model).__name__ == "BMTLRegressor"
    values = y if numbers else (y > 0).astype(float)
    if numbers:  # columns are standardized separately: give all the same mean and standard deviation
        for k in range(3):
            values[codes == k] = StandardScaler().fit_transform(values[codes == k, None])[:, 0]
    matrix = np.full((len(X), 3), np.nan)
    matrix[np.arange(len(X)), codes] = values
    if "random_state" in model.get_params():
        model.set_params(random_state=0)
    ragged = model.fit(X, values, task=task).predict(X, task=task)
    np.testing.assert_allclose(model.fit(X, matrix).predict(X)[np.arange(len(X)), codes], ragged, atol=1e-6)
    with pytest.raises(ValueError, match="task must hold tasks of fit; got 'moon'"):
        model.fit(X, values, task=task).predict(X[:1], task=["moon"])


# --- Linear models


def test_single_task_models_match_scikit_learn():
    X, y, task = groups()
    model = baselines.SingleTaskRegressor(alpha=3.0).fit(X, y, task=task)
    labels = baselines.SingleTaskClassifier(C=0.1).fit(X, y > 0, task=task)
    scaled = StandardScaler().fit_transform(X)
    for name in model.tasks_:
        own = task == name
        theirs = Ridge(3.0).fit(scaled[own], y[own])
        np.testing.assert_allclose(model.predict(X[own], task=task[own]), theirs.predict(scaled[own]), rtol=1e-8)
        machine = LinearSVC(C=0.1, tol=1e-10, max_iter=100_000).fit(scaled[own], y[own] > 0)
        scores = labels.decision_function(X[own], task=task[own])
        np.testing.assert_allclose(scores, machine.decision_function(scaled[own]), atol=1e-5)


@pytest.mark.parametrize("hinge", [False, True])
def test_mtrl_minimizes_squared_trace_norm(hinge):
    """With the optimal covariance the penalty is the squared trace norm of the weights, which is convex."""
    problem = small_problem(labels=hinge)
    model = (baselines.MTRLClassifier if hinge else baselines.MTRLRegressor)(2.0, balance_tasks=False, tol=1e-9)
    inner = replace(problem, X=problem.X[:, :-1])
    model._learn(inner)
    W = cp.Variable((4, 5))
    scores = cp.sum(cp.multiply(problem.X[problem.rows], W[problem.outputs]), axis=1)
    loss = cp.pos(1 - cp.multiply(problem.targets, scores)) if hinge else problem.targets - scores
    cost = 0.5 * cp.sum_squares(loss) + 0.25 * cp.square(cp.normNuc(W))
    best = cp.Problem(cp.Minimize(cost))
    best.solve(solver=cp.SCS, eps=1e-8)
    assert model.objectives_[-1] == pytest.approx(best.value, rel=1e-3)
    assert np.all(np.diff(model.objectives_) <= 1e-9)
    assert np.trace(model.task_covariance_) == pytest.approx(4.0)


@pytest.mark.parametrize("hinge", [False, True])
def test_aso_subspace_beats_perturbations(hinge):
    problem = small_problem(labels=hinge)
    model = (baselines.ASOClassifier if hinge else baselines.ASORegressor)(2, alpha=5.0, tol=1e-12)
    model._learn(replace(problem, X=problem.X[:, :-1]))
    assert np.all(np.diff(model.objectives_) <= 1e-9)
    np.testing.assert_allclose(model.components_ @ model.components_.T, np.eye(2), atol=1e-9)
    linear, rng = LinearTasks(problem, hinge, np.ones(len(problem.rows))), np.random.default_rng(1)
    weights = np.column_stack([model.coef_, model.intercept_])
    for _ in range(20):
        moved = weights + 0.01 * rng.standard_normal(weights.shape)
        turned = np.linalg.qr((model.components_ + 0.01 * rng.standard_normal((2, 4))).T)[0].T
        inside = np.sum((moved[:, :-1] @ turned.T) ** 2)
        cost = 2.5 * (np.sum(moved[:, :-1] ** 2) - inside + 0.01 * inside)
        assert linear.loss(moved) + cost > model.objectives_[-1]


# --- BMTL


def test_bmtl_posterior_matches_joint_gaussian():
    problem, rng = small_problem(n_columns=2, labels=False), np.random.default_rng(1)
    root = rng.standard_normal((3, 3))
    S, m = root @ root.T + 0.1 * np.eye(3), rng.standard_normal(3)
    found = bmtl.infer(Moments.of(problem), TaskPrior(m, S, 0.7))
    for t, part in enumerate(problem.slices):
        h, y = problem.X[problem.rows[part]], problem.targets[part]
        spread = h @ S @ h.T + 0.7 * np.eye(len(y))
        gain = S @ h.T @ np.linalg.inv(spread)
        np.testing.assert_allclose(found.weights[t], m + gain @ (y - h @ m), rtol=1e-7)
        np.testing.assert_allclose(found.covariances[t], S - gain @ h @ S, rtol=1e-6, atol=1e-9)
        assert found.log_evidence[t] == pytest.approx(multivariate_normal(h @ m, spread).logpdf(y), rel=1e-10)


def test_bmtl_converges_to_local_optimum_of_prior():
    problem, rng = small_problem(n_columns=2, labels=False), np.random.default_rng(3)
    model = baselines.BMTLRegressor(max_iter=1000, tol=1e-13)
    model._learn(replace(problem, X=problem.X[:, :-1]))
    assert np.all(np.diff(model.objectives_) <= 1e-9)
    prior, found = model.prior_, Moments.of(problem)
    for _ in range(20):
        turn = np.eye(3) + 0.02 * rng.standard_normal((3, 3))
        nearby = TaskPrior(
            prior.mean + 0.03 * rng.standard_normal(3),
            turn @ prior.covariance @ turn.T,
            prior.noise_variance * np.exp(0.03 * rng.standard_normal()),
        )
        assert bmtl.objective(found, nearby) > model.objectives_[-1]


# --- Logistic models


def test_quadratic_bound_is_tight_at_xi():
    problem, rng = small_problem(), np.random.default_rng(1)
    for size in (0.0, 0.1, 1.0, 10.0):
        W = size * rng.standard_normal((4, 5))
        likelihood = np.bincount(problem.outputs, log_expit(problem.targets * problem.scores(W)))
        seconds = W[:, :, None] * W[:, None, :]
        tight = quadratic_bound(problem, best_xi(problem, seconds)).expected(W, seconds)
        np.testing.assert_allclose(tight, likelihood, rtol=1e-6)
        loose = quadratic_bound(problem, 3.0 * rng.random(len(problem.rows))).expected(W, seconds)
        assert np.all(loose <= likelihood + 1e-9)


def moved(value: Any, rng: np.random.Generator) -> Any:
    """Perturb a block; probabilities and covariances stay valid."""
    if is_dataclass(value):
        return replace(value, **{f.name: moved(getattr(value, f.name), rng) for f in fields(value)})
    if np.ndim(value) == 3:
        root = np.eye(value.shape[1]) + 0.02 * rng.standard_normal(value.shape)
        return root @ value @ root.transpose(0, 2, 1)
    if np.ndim(value) == 2:
        return value + 0.03 * rng.standard_normal(value.shape)
    return value * np.exp(0.05 * rng.standard_normal(np.shape(value)))


@pytest.mark.parametrize("kernel", [False, True])
def test_cluster_updates_beat_perturbations(kernel):
    problem, rng = small_problem(), np.random.default_rng(2)
    near = -np.abs(np.subtract.outer(np.arange(4.0), np.arange(4.0))) if kernel else np.zeros((4, 4))
    model = task_clusters.Model(problem, 1.0, near)
    state, objectives = model.start(3, np.random.RandomState(0)), []
    for _ in range(8):
        bound, state = model.update(state)
        objectives.append(model.objective(bound, state))
    assert np.all(np.diff(objectives) <= 1e-8)

    def value(some):
        return model.objective(quadratic_bound(problem, some.xi), some)

    state = replace(state, memberships=0.9 * state.memberships + 0.1 / 3)  # away from probabilities 0 and 1
    bound = quadratic_bound(problem, state.xi)
    blocks = {
        "memberships": model.update_memberships(bound, state),
        "means": model.update_weights(bound, state),
        "covariances": model.update_weights(bound, state),
        "xi": replace(state, xi=best_xi(problem, state.task_seconds)),
    }
    if not kernel:  # with a kernel the stick update is a majorize-minimize step
        blocks["sticks"] = model.update_sticks(state)
    for name, updated in blocks.items():
        best = value(updated)
        assert best <= value(state) + 1e-9, name
        for _ in range(10):
            block = moved(getattr(updated, name), rng)
            if name == "memberships":
                block = np.abs(block) / np.abs(block).sum(axis=1, keepdims=True)
            assert value(replace(updated, **{name: block})) > best - 1e-10, name


def test_one_cluster_objective_bounds_evidence():
    """With a single weight the evidence is a one-dimensional integral."""
    problem = small_problem(n_tasks=1, n_columns=0)
    model = task_clusters.Model(problem, 1.0, np.zeros((1, 1)))

    def step(state):
        bound, after = model.update(state)
        return after, model.objective(bound, after)

    state, objectives = alternate(step, model.start(1, np.random.RandomState(0)), 200, 1e-12)
    scale = np.sqrt(state.variance)

    def density(w):
        return np.exp(np.sum(log_expit(problem.targets * w)) + norm.logpdf(w, scale=scale))

    evidence = quad(density, -10, 10)[0]
    bound = np.log(2.0) - objectives[-1]  # q has one cluster, whereas the process has infinitely many
    assert np.log(evidence) - 0.3 < bound < np.log(evidence)
    assert state.means[0, 0] == pytest.approx(quad(lambda w: w * density(w) / evidence, -10, 10)[0], rel=0.1)


STICKS = Sticks(np.array([2.0, 1.5, 3.0]), np.array([1.0, 2.5, 0.7]))
LOG_KERNEL = np.log(np.random.default_rng(1).uniform(0.1, 0.9, (5, 3)))
MEMBERS = np.random.default_rng(2).dirichlet(np.ones(3), 5)


def test_log_shares_is_lower_bound_of_expectation():
    v = np.random.default_rng(0).beta(STICKS.first, STICKS.second, size=(100_000, 3))
    taken = v[:, None] * np.exp(LOG_KERNEL)
    rest = np.concatenate([np.ones((len(v), 5, 1)), np.cumprod(1 - taken, axis=2)[:, :, :-1]], axis=2)
    expected = np.log(taken * rest).mean(axis=0)
    found = dirichlet_process.log_shares(STICKS, LOG_KERNEL)
    np.testing.assert_allclose(found[:, 0], expected[:, 0], atol=0.01)  # the bound is exact for the first cluster
    assert np.all(found[:, 1:] < expected[:, 1:])
    assert np.all(found > expected - 0.8)


def test_update_sticks_with_kernel_converges_to_optimum():
    def value(sticks):
        return np.sum(MEMBERS * dirichlet_process.log_shares(sticks, LOG_KERNEL)) - sticks.kl(0.7)

    sticks, values = STICKS, [value(STICKS)]
    for _ in range(200):
        sticks = dirichlet_process.update_sticks(sticks, LOG_KERNEL, MEMBERS, 0.7)
        values.append(value(sticks))
    assert np.all(np.diff(values) > -1e-12)
    rng = np.random.default_rng(3)
    assert all(value(moved(sticks, rng)) < values[-1] for _ in range(20))


def test_best_centres_matches_search_over_all_combinations():
    candidates = np.log(np.random.default_rng(4).uniform(0.05, 0.95, (5, 4)))
    found = dirichlet_process.best_centres(STICKS, candidates, MEMBERS)
    values = {
        centres: np.sum(MEMBERS * dirichlet_process.log_shares(STICKS, candidates[:, list(centres)]))
        for centres in product(range(4), repeat=3)
    }
    assert max(values, key=values.__getitem__) == tuple(found)


def test_dirichlet_process_recovers_simulated_task_clusters():
    rng = np.random.default_rng(0)
    X, group = rng.standard_normal((600, 3)), np.arange(600) % 6
    weights = np.array([[3.0, 0.0, 0.0], [0.0, -3.0, 3.0]])[group % 2]
    y = np.sum(X * weights, axis=1) + rng.logistic(size=600) > 0
    model = baselines.DirichletProcessTaskClassifier(random_state=0).fit(X, y, task=group)
    assert model.n_clusters_ == 2
    assert len({tuple(np.flatnonzero(row > 0.5)) for row in model.memberships_[::2]}) == 1


@pytest.mark.parametrize("augmented", [False, True])
def test_subspace_updates_beat_perturbations(augmented):
    problem, rng = small_problem(), np.random.default_rng(2)
    state, objectives = predictor_subspace.start(problem, 3, 1.5, augmented, np.random.RandomState(0)), []
    for _ in range(6):
        bound, state = predictor_subspace.update(problem, state, 1.5)
        objectives.append(predictor_subspace.objective(problem, bound, state, 1.5))
    assert np.all(np.diff(objectives) <= 1e-8)

    def value(some):
        return predictor_subspace.objective(problem, quadratic_bound(problem, some.xi), some, 1.5)

    bound = quadratic_bound(problem, state.xi)
    loaded = predictor_subspace.update_loadings(bound, state)
    blocks = {
        "loadings": loaded,
        "covariances": loaded,
        "xi": replace(state, xi=best_xi(problem, state.seconds)),
    }
    for name, updated in blocks.items():
        best = value(updated)
        assert best <= value(state) + 1e-9, name
        for _ in range(10):
            assert value(replace(updated, **{name: moved(getattr(updated, name), rng)})) > best - 1e-10, name
    if augmented:
        inputs = predictor_subspace.update_inputs(problem, state).inputs
        best = value(replace(state, inputs=inputs))
        for _ in range(10):
            noise = inputs.noise_variance * np.exp(0.05 * rng.standard_normal())
            assert value(replace(state, inputs=replace(inputs, noise_variance=noise))) > best


def test_predictor_subspace_recovers_simulated_directions():
    rng = np.random.default_rng(0)
    basis = np.zeros((2, 10))
    basis[0, :3], basis[1, 5:8] = 1.0, -1.0
    X = rng.standard_normal((400, 10))
    Y = X @ basis.T @ rng.standard_normal((2, 12)) * 2.0 + rng.logistic(size=(400, 12)) > 0
    model = baselines.PredictorSubspaceClassifier(6, random_state=0).fit(X, Y)
    assert model.n_components_ == 2
    used = model.inclusion_[model.inclusion_.max(axis=1) > 0.5].max(axis=0) > 0.5
    np.testing.assert_array_equal(np.flatnonzero(used), [0, 1, 2, 5, 6, 7])


# --- Sticks of the Indian buffet process


def test_indian_buffet_bound_is_below_expectation_tight_at_one():
    sticks = BuffetSticks(np.array([2.0, 0.8, 1.7, 3.0]), np.array([1.0, 2.5, 0.6, 1.2]))
    nu = np.random.default_rng(0).beta(sticks.first, sticks.second, size=(400_000, 4))
    pi = np.cumprod(nu, axis=1)
    np.testing.assert_allclose(sticks.log_on, np.log(pi).mean(axis=0), atol=0.02)
    expected = np.log1p(-pi).mean(axis=0)
    assert sticks.log_off[0] == pytest.approx(expected[0], abs=0.01)
    assert np.all(sticks.log_off[1:] < expected[1:])
    ratio = beta.logpdf(nu, sticks.first, sticks.second) - beta.logpdf(nu, 1.5, 1.0)
    assert sticks.kl(1.5) == pytest.approx(ratio.sum(axis=1).mean(), abs=0.02)


def test_indian_buffet_update_converges_to_optimum():
    counts, rng = np.array([9.0, 4.0, 4.5, 0.3]), np.random.default_rng(0)
    sticks, values = BuffetSticks.of_prior(2.0, 4), []
    for _ in range(300):
        sticks = sticks.update(counts, 12, 2.0)
        values.append(sticks.cost(counts, 12) + sticks.kl(2.0))
    assert np.all(np.diff(values) < 1e-12)
    for _ in range(20):
        near = moved(sticks, rng)
        assert near.cost(counts, 12) + near.kl(2.0) > values[-1]


# --- Gaussian processes


def test_gaussian_process_with_all_inputs_is_exact():
    pytest.importorskip("torch")
    X, y, task = groups()
    X, y, task = X[:30], y[:30], task[:30]
    model = baselines.MTGPRegressor(rank=1, n_inducing=30, max_iter=20, random_state=0).fit(X, y, task=task)
    rows, codes = (X - model.mean_) / model.scale_, np.unique(task, return_inverse=True)[1]
    near = model.covariances_.near(rows, rows) * model.task_covariance_[np.ix_(codes, codes)]
    joint = near + model.covariances_.noise_variance * np.eye(30)
    targets = (y - model.target_mean_) / model.target_scale_
    density = multivariate_normal(np.zeros(30), joint).logpdf(targets)
    assert model.log_marginal_likelihood_ == pytest.approx(density, abs=0.01)
    mean = near @ np.linalg.solve(joint, targets) * model.target_scale_ + model.target_mean_
    np.testing.assert_allclose(model.predict(X, task=task), mean, atol=1e-2)


def test_inducing_inputs_include_each_distinct_input():
    X = np.repeat(np.random.default_rng(0).standard_normal((5, 2)), 4, axis=0)
    like = gaussian_process.Covariances(np.ones((1, 1)), 0.2, 1.0, 0.3)
    assert len(np.unique(gaussian_process.inducing_inputs(X, like, 12), axis=0)) == 5
    np.testing.assert_allclose(like.unpack(like.pack()).factor, like.factor)
