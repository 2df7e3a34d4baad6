"""Multi-task Gaussian processes against scikit-learn's, and what was planted."""

from __future__ import annotations

import importlib.util
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import multivariate_normal
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.preprocessing import StandardScaler

from multitask_tools import groups, numbers
from regbayes_paper.baselines import MTGPRegressor
from regbayes_paper.baselines._process import (
    Covariances,
    ExactLikelihood,
    LikelihoodBound,
    TaskRows,
    backtrack,
    bound_weights,
    exact_weights,
    inducing_inputs,
)

needs_gpytorch = pytest.mark.skipif(
    importlib.util.find_spec("gpytorch") is None, reason="needs GPyTorch (the `gp` extra)"
)


@needs_gpytorch
def test_a_single_task_is_the_process_of_scikit_learn():
    X, Y = numbers()
    y = Y[:, 0]
    fitted = MTGPRegressor(tol=1e-7, random_state=0).fit(X, y)
    rows, targets = StandardScaler().fit_transform(X), (y - y.mean()) / y.std()
    kernel = ConstantKernel(fitted.task_covariance_[0, 0]) * RBF(fitted.length_scale_)
    same = GaussianProcessRegressor(kernel + WhiteKernel(fitted.noise_variance_), optimizer=None).fit(rows, targets)
    np.testing.assert_allclose(fitted.predict(X), same.predict(rows) * y.std() + y.mean(), rtol=1e-6)
    assert fitted.log_marginal_likelihood_ == pytest.approx(same.log_marginal_likelihood(), rel=1e-6)
    kernel = ConstantKernel(1.0) * RBF(2.0, (1e-2, 1e3)) + WhiteKernel(0.1)
    best = GaussianProcessRegressor(kernel).fit(rows, targets)
    assert fitted.log_marginal_likelihood_ == pytest.approx(best.log_marginal_likelihood_value_, abs=0.01)


@needs_gpytorch
@pytest.mark.parametrize("n_inducing", [None, 200])
def test_the_likelihood_of_several_tasks_is_that_of_the_joint_gaussian(n_inducing):
    """With all inputs as inducing ones the bound is the likelihood, up to the jitter."""
    X, y, task = groups()
    with pytest.warns(ConvergenceWarning, match="max_iter=5"):
        fitted = MTGPRegressor(n_inducing=n_inducing, max_iter=5, random_state=0).fit(X, y, task=task)
    rows, codes = StandardScaler().fit_transform(X), np.searchsorted(fitted.tasks_, task)
    distances = np.sum((rows[:, None] - rows) ** 2, axis=2)
    spread = fitted.task_covariance_[np.ix_(codes, codes)] * np.exp(-0.5 * distances / fitted.length_scale_**2)
    noisy = spread + fitted.noise_variance_ * np.eye(len(y))
    targets = (y - y.mean()) / y.std()
    expected = multivariate_normal(np.zeros(len(y)), noisy).logpdf(targets)
    accuracy = 1e-6 if n_inducing is None else 1e-3
    assert fitted.log_marginal_likelihood_ == pytest.approx(expected, rel=accuracy)
    smooth = spread @ np.linalg.solve(noisy, targets) * y.std() + y.mean()
    np.testing.assert_allclose(fitted.predict(X, task=task), smooth, atol=accuracy * y.std())


def ragged_rows(n_tasks=5, seed=0, weights=None):
    """Tasks of different sizes, one of them without targets."""
    rng = np.random.default_rng(seed)
    tasks = np.sort(rng.choice([0, 1, 2, 4], 40, p=[0.5, 0.3, 0.15, 0.05]))
    start = Covariances(rng.standard_normal((n_tasks, 2)), own=0.3, length_scale=1.5, noise_variance=0.2)
    weights = np.ones(40) if weights is None else weights
    return TaskRows(rng.standard_normal((40, 3)), tasks, rng.standard_normal(40), weights, n_tasks), start


def repeat(rows, counts):
    """The same targets, each as often as it counts."""
    return TaskRows(
        rows.X.repeat(counts, axis=0),
        rows.tasks.repeat(counts),
        rows.targets.repeat(counts),
        np.ones(counts.sum()),
        rows.n_tasks,
    )


@needs_gpytorch
@pytest.mark.parametrize("kind", ["exact", "bound"])
def test_a_target_of_weight_two_is_the_target_twice(kind):
    """Likelihood and bound, their gradients, and what predicts, against those of repeated targets."""
    counts = np.random.default_rng(1).integers(1, 4, 40)
    weighted, start = ragged_rows(weights=counts.astype(float))
    repeated, found = repeat(weighted, counts), []
    Z = np.random.default_rng(2).standard_normal((5, 3))
    for rows in (weighted, repeated):
        inducing = inducing_inputs(rows.X, start, 6)
        likelihood = ExactLikelihood(rows, start) if kind == "exact" else LikelihoodBound(rows, start, inducing)
        weights = exact_weights(rows, start) if kind == "exact" else bound_weights(rows, start, inducing)
        found.append((*likelihood.evaluate(likelihood.flat()), start.near(Z, weights.centres) @ weights.weights))
    for one, two in zip(*found, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-9)


@needs_gpytorch
def test_the_bound_rises_to_the_likelihood_with_inducing_inputs():
    rows, start = ragged_rows()
    exact = ExactLikelihood(rows, start)
    value, _ = exact.evaluate(exact.flat())
    bounds = []
    for n in (1, 5, 20, 40):
        bound = LikelihoodBound(rows, start, inducing_inputs(rows.X, start, n))
        bounds.append(bound.evaluate(bound.flat())[0])
    assert bounds[0] > bounds[1] > bounds[2] > bounds[3] > value
    assert bounds[3] == pytest.approx(value, abs=1e-3)


@needs_gpytorch
@pytest.mark.parametrize("kind", ["exact", "bound"])
def test_gradients_of_the_likelihood_are_its_slopes(kind):
    rows, start = ragged_rows()
    if kind == "exact":
        likelihood = ExactLikelihood(rows, start)
    else:
        likelihood = LikelihoodBound(rows, start, inducing_inputs(rows.X, start, 6))
    flat, step = likelihood.flat(), 1e-5
    _, gradient = likelihood.evaluate(flat)
    slopes = [
        (likelihood.evaluate(flat + step * way)[0] - likelihood.evaluate(flat - step * way)[0]) / (2 * step)
        for way in np.eye(len(flat))
    ]
    np.testing.assert_allclose(gradient, slopes, rtol=1e-5, atol=1e-5)


def test_inducing_inputs_are_different_ones_and_no_more_than_there_are():
    rng = np.random.default_rng(0)
    distinct = rng.standard_normal((7, 2))
    X = distinct[rng.integers(0, 7, 60)]
    found = inducing_inputs(X, Covariances(np.ones((1, 1)), 0.1, 1.0, 0.1), 30)
    assert len(found) == 7
    np.testing.assert_array_equal(np.unique(found, axis=0), np.unique(X, axis=0))


@needs_gpytorch
def test_related_tasks_learn_from_each_other():
    rng = np.random.default_rng(0)
    task = np.repeat([0, 1, 2], [60, 8, 60])
    X = rng.uniform(-3, 3, (len(task), 1))
    sign = np.array([1.0, -1.0, 1.0])
    y = sign[task] * np.sin(2 * X[:, 0]) + 0.1 * rng.standard_normal(len(task))
    fitted = MTGPRegressor(1, random_state=0).fit(X, y, task=task)
    correlation = fitted.task_covariance_ / np.sqrt(np.outer(*[np.diag(fitted.task_covariance_)] * 2))
    np.testing.assert_allclose(correlation, np.outer(sign, sign), atol=0.1)
    grid = np.linspace(-2.5, 2.5, 50)[:, None]
    np.testing.assert_allclose(fitted.predict(grid, task=np.ones(50)), -np.sin(2 * grid[:, 0]), atol=0.3)


def test_without_gpytorch_a_message_says_how_to_get_it(monkeypatch):
    X, Y = numbers()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "torch", None)  # an import of it fails, as it does without the extra
    with pytest.raises(ModuleNotFoundError, match=r"pip install -e '\./paper\[gp\]'"):
        MTGPRegressor().fit(X, Y)


@pytest.mark.parametrize("slope", [0.0, 1.0, np.nan])
def test_backtrack_uphill_evaluates_nothing(slope):
    def evaluate(_):
        raise AssertionError("evaluated")

    assert backtrack(evaluate, 0.0, slope, 5) is None


def test_backtrack_shortens_steps_out_of_the_domain():
    def barrier(length):
        x = 1.0 - length * 4.0
        return SimpleNamespace(objective=x - np.log(x) if x > 0 else np.inf)

    moved, length = backtrack(barrier, 10.0, -1.0, 20)
    assert 0 < length < 0.25
    assert moved.objective < 10.0
    assert backtrack(lambda _: SimpleNamespace(objective=np.nan), 0.0, -1.0, 5) is None
