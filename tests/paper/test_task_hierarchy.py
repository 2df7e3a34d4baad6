"""BMTL against brute force: the evidence of a Gaussian, its posterior, and what was planted."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from multitask_tools import groups
from regbayes.engine import Status
from regbayes.margins.targets import observe_numbers
from regbayes_paper.baselines import BMTLRegressor
from regbayes_paper.models.linear_tasks import hierarchy
from regbayes_paper.models.linear_tasks.hierarchy import HierarchySettings, TaskPrior
from regbayes_paper.models.linear_tasks.problem import LinearTasks


def small_problem(n_tasks: int = 4, n_columns: int = 3):
    rng = np.random.default_rng(0)
    task = np.repeat(np.arange(n_tasks), [5, 2, 7, 3])
    X = np.column_stack([rng.standard_normal((len(task), n_columns - 1)), np.ones(len(task))])
    observations, _ = observe_numbers(np.arange(len(task)), task, rng.standard_normal(len(task)), n_tasks)
    return LinearTasks(X, observations, n_tasks, "squared", np.ones(len(task)))


def some_prior(n_clusters: int, n_weights: int, hidden=None) -> TaskPrior:
    rng = np.random.default_rng(1)
    roots = rng.standard_normal((n_clusters, n_weights, n_weights))
    covariances = roots @ roots.transpose(0, 2, 1) + 0.1 * np.eye(n_weights)
    shares = rng.dirichlet(np.ones(n_clusters))
    return TaskPrior(shares, rng.standard_normal((n_clusters, n_weights)), covariances, 0.7, hidden)


@pytest.mark.parametrize("n_hidden", [None, 2])
@pytest.mark.parametrize("n_clusters", [1, 3])
def test_evidence_and_posterior_are_those_of_the_joint_gaussian(n_clusters, n_hidden):
    problem = small_problem()
    hidden = None if n_hidden is None else np.random.default_rng(2).standard_normal((n_hidden, 3))
    prior = some_prior(n_clusters, 3, hidden)
    found = hierarchy.infer(hierarchy.moments(problem, hidden), prior)
    H = hierarchy.hidden_features(problem.X, hidden)
    for t, here in enumerate(problem.slices):
        h, y = H[problem.observations.rows[here]], problem.observations.targets[here]
        joint = np.empty(n_clusters)
        for c in range(n_clusters):
            S, m = prior.covariances[c], prior.means[c]
            spread = h @ S @ h.T + prior.noise_variance * np.eye(len(y))
            joint[c] = np.log(prior.shares[c]) + multivariate_normal(h @ m, spread).logpdf(y)
            gain = S @ h.T @ np.linalg.inv(spread)
            np.testing.assert_allclose(found.weights[t, c], m + gain @ (y - h @ m), rtol=1e-8)
            np.testing.assert_allclose(found.covariances[t, c], S - gain @ h @ S, rtol=1e-7, atol=1e-9)
        assert found.log_evidence[t] == pytest.approx(logsumexp(joint), rel=1e-10)
        np.testing.assert_allclose(found.memberships[t], np.exp(joint - logsumexp(joint)), rtol=1e-8)


@pytest.mark.parametrize("n_hidden", [None, 3])
@pytest.mark.parametrize("n_clusters", [1, 2])
def test_the_objective_never_rises_and_ends_where_no_step_helps(n_clusters, n_hidden):
    problem = small_problem()
    settings = HierarchySettings(n_clusters, n_hidden, 300 if n_hidden is None else 40, 1e-12)
    result = hierarchy.fit(problem, settings, np.random.default_rng(0), [])
    assert result.trace.rises.largest < 1e-9
    assert result.trace.objective[0] - result.trace.objective[-1] > 0.1
    if n_hidden is not None:
        return
    lowest, prior = result.trace.objective[-1], result.state.prior
    rng, found = np.random.default_rng(3), hierarchy.moments(problem, None)
    for _ in range(20):
        turn = rng.standard_normal(prior.covariances.shape)
        nearby = TaskPrior(
            prior.shares,
            prior.means + 0.03 * rng.standard_normal(prior.means.shape),
            prior.covariances + 0.01 * (turn @ turn.transpose(0, 2, 1)) * prior.covariances[0, 0, 0],
            prior.noise_variance * np.exp(0.03 * rng.standard_normal()),
            None,
        )
        state = hierarchy.Hierarchy(nearby, hierarchy.infer(found, nearby))
        assert sum(hierarchy.objective(state).values()) > lowest


def planted(n_tasks: int = 60, n_rows: int = 20):
    rng = np.random.default_rng(5)
    kind = np.arange(n_tasks) % 2
    centres = np.array([[2.0, 0.0, -1.0], [-2.0, 1.0, 0.0]])
    weights = centres[kind] + 0.2 * rng.standard_normal((n_tasks, 3))
    task = np.repeat(np.arange(n_tasks), n_rows)
    X = rng.standard_normal((len(task), 3))
    return X, np.sum(X * weights[task], axis=1) + 0.5 * rng.standard_normal(len(task)), task, kind


def test_planted_clusters_are_recovered():
    X, y, task, kind = planted()
    fitted = BMTLRegressor(2, scale_inputs=False, random_state=0).fit(X, y, task=task)
    found = fitted.memberships_.argmax(axis=1)
    assert len(np.unique(found[kind == 0])) == len(np.unique(found[kind == 1])) == 1
    assert found[0] != found[1]
    centres = fitted.prior_mean_[found[:2], :3] * fitted.target_scale_[0]
    np.testing.assert_allclose(centres, [[2.0, 0.0, -1.0], [-2.0, 1.0, 0.0]], atol=0.2)
    assert fitted.noise_variance_ * fitted.target_scale_[0] ** 2 == pytest.approx(0.25, rel=0.15)
    assert fitted.log_evidence_ > BMTLRegressor().fit(X, y, task=task).log_evidence_


def test_hidden_units_learn_what_a_line_cannot():
    rng = np.random.default_rng(0)
    X, task = rng.uniform(-2, 2, (400, 1)), np.arange(400) % 8
    y = (1.0 + 0.1 * task) * np.abs(X[:, 0]) + 0.1 * rng.standard_normal(400)
    line, units = BMTLRegressor(), BMTLRegressor(n_hidden=4, random_state=0, max_iter=60, tol=1e-3)
    own = task[:, None] == np.arange(8)
    design = np.hstack([own, own * X])  # a line of its own for every task
    least = np.sum((y - design @ np.linalg.lstsq(design, y, rcond=None)[0]) ** 2)

    def left_over(fitted):
        return np.sum((y - fitted.predict(X, task=task)) ** 2)

    assert left_over(units.fit(X, y, task=task)) < least <= left_over(line.fit(X, y, task=task))
    assert units.hidden_coef_.shape == (4, 2)


def test_new_tasks_are_served_with_the_mean_of_the_prior():
    X, y, task = groups()
    y = np.where(task == "north", np.nan, y)
    with pytest.raises(ValueError, match="no target is observed for task 'north'"):
        BMTLRegressor().fit(X, y, task=task)
    fitted = BMTLRegressor(unseen_tasks="shared").fit(X, y, task=task)
    weights = fitted.prior_mean_[0]
    scores = (X - fitted.mean_) / fitted.scale_ @ weights[:-1] + weights[-1]
    expected = scores * fitted.target_scale_[0] + fitted.target_mean_[0]
    for name in ("north", "moon"):
        np.testing.assert_allclose(fitted.predict(X, task=np.full(len(X), name)), expected)


def test_the_warm_up_with_one_cluster_is_seen_and_can_end_the_fit():
    problem, stages = small_problem(), []

    def look(progress):
        stages.append(progress.stage)
        assert progress.state.posterior.memberships.shape == (4, 1 if progress.stage == hierarchy.WARM_UP else 2)

    settings = HierarchySettings(2, None, 5, 0.0)
    result = hierarchy.fit(problem, settings, np.random.default_rng(0), [look])
    assert stages == [hierarchy.WARM_UP] * hierarchy.WARM_UP_STEPS + [hierarchy.CLUSTERS] * 5
    assert hierarchy.list_stages(2, 5) == {hierarchy.WARM_UP: hierarchy.WARM_UP_STEPS, hierarchy.CLUSTERS: 5}
    assert result.n_iter == 5
    cut = hierarchy.fit(problem, settings, np.random.default_rng(0), [lambda _: True])
    assert (cut.status, cut.n_iter) == (Status.STOPPED, 0)
    assert cut.state.posterior.memberships.shape == (4, 2)
