"""Multi-task Gaussian processes against scikit-learn's, and what was planted."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from scipy.stats import multivariate_normal
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.preprocessing import StandardScaler

from multitask_tools import groups, numbers
from regbayes.baselines import MTGPRegressor

needs_gpytorch = pytest.mark.skipif(
    importlib.util.find_spec("gpytorch") is None, reason="needs GPyTorch (the `gp` extra)"
)


@needs_gpytorch
def test_a_single_task_is_the_process_of_scikit_learn():
    X, Y = numbers()
    y = Y[:, 0]
    fitted = MTGPRegressor(tol=1e-9, max_iter=100, random_state=0).fit(X, y)
    rows, targets = StandardScaler().fit_transform(X), (y - y.mean()) / y.std()
    kernel = ConstantKernel(fitted.task_covariance_[0, 0]) * RBF(fitted.length_scale_)
    same = GaussianProcessRegressor(kernel + WhiteKernel(fitted.noise_variance_), optimizer=None).fit(rows, targets)
    np.testing.assert_allclose(fitted.predict(X), same.predict(rows) * y.std() + y.mean(), rtol=1e-6)
    assert fitted.log_marginal_likelihood_ == pytest.approx(same.log_marginal_likelihood(), rel=1e-6)
    kernel = ConstantKernel(1.0) * RBF(2.0, (1e-2, 1e3)) + WhiteKernel(0.1)
    best = GaussianProcessRegressor(kernel).fit(rows, targets)
    assert fitted.log_marginal_likelihood_ == pytest.approx(best.log_marginal_likelihood_value_, abs=0.01)


@needs_gpytorch
def test_the_likelihood_of_several_tasks_is_that_of_the_joint_gaussian():
    X, y, task = groups()
    fitted = MTGPRegressor(max_iter=5, random_state=0).fit(X, y, task=task)
    rows, codes = StandardScaler().fit_transform(X), np.searchsorted(fitted.tasks_, task)
    distances = np.sum((rows[:, None] - rows) ** 2, axis=2)
    spread = fitted.task_covariance_[np.ix_(codes, codes)] * np.exp(-0.5 * distances / fitted.length_scale_**2)
    noisy = spread + fitted.noise_variance_ * np.eye(len(y))
    targets = (y - y.mean()) / y.std()
    expected = multivariate_normal(np.zeros(len(y)), noisy).logpdf(targets)
    assert fitted.log_marginal_likelihood_ == pytest.approx(expected, rel=1e-6)
    smooth = spread @ np.linalg.solve(noisy, targets) * y.std() + y.mean()
    np.testing.assert_allclose(fitted.predict(X, task=task), smooth, rtol=1e-6)


@needs_gpytorch
def test_inducing_targets_bound_the_likelihood_and_come_near():
    X, y, task = groups()
    start = {"max_iter": 0, "random_state": 0}
    exact = MTGPRegressor(**start).fit(X, y, task=task)
    bounds = []
    for n in (30, 115, 1000):
        some = MTGPRegressor(n_inducing=n, **start).fit(X, y, task=task)
        bounds.append(some.log_marginal_likelihood_)
        if n == 1000:
            np.testing.assert_array_equal(some.predict(X, task=task), exact.predict(X, task=task))
    assert bounds[0] < bounds[1] < bounds[2] == exact.log_marginal_likelihood_


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
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'regbayes\[gp\]'"):
        MTGPRegressor().fit(X, Y)
