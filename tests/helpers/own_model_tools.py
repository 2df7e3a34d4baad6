"""Linear autoencoder in NumPy, the reference for the PyTorch and JAX adapters."""

from __future__ import annotations

import numpy as np

from regbayes.adapters import fit
from regbayes.adapters.model import LossSums, Pulled
from regbayes.joint.descent import DescentOptions
from regbayes.joint.model import Inferred, JointModel
from regbayes.joint.problem import JointProblem, hold_rows
from regbayes.margins.head import Head, Tolerance
from regbayes.margins.targets import Classes, zero_one_cost

D, K = 5, 2
WEIGHT, DECAY = 0.3, 0.05
TIGHT = Tolerance(gap=1e-11, max_epochs=100_000.0)


class LinearAutoencoder(JointModel):
    """Autoencoder with ``z = A x``, loss ``1/2 |x - B z|²`` and analytic gradients."""

    def split(self, params):
        return params[: K * D].reshape(K, D), params[K * D :].reshape(D, K)

    def infer(self, rows, params):
        A, B = self.split(params)
        z = rows @ A.T
        return Inferred(z, LossSums(float(len(rows)), 0.5 * float(np.sum((rows - z @ B.T) ** 2))))

    def pull_back(self, rows, params, inferred, gradient):
        B = self.split(params)[1]
        z = inferred.features
        off = WEIGHT * (z @ B.T - rows)
        by_z = off @ B if gradient is None else off @ B + gradient
        return Pulled(np.concatenate([(by_z.T @ rows).ravel(), (off.T @ z).ravel()]))

    def terms(self, params, stats):
        return {"generative": WEIGHT * stats.loss, "prior": 0.5 * DECAY * float(params @ params)}

    def gradient(self, params, stats, pulled):
        return pulled.by_params + DECAY * params

    def position(self, params):
        return params

    def move(self, params, position):
        return position


def make_data(n=60):
    rng = np.random.default_rng(0)
    y = np.arange(n) % 3
    return rng.standard_normal((n, D)) + 1.5 * np.eye(D)[y], y


def some_params(seed=1):
    return 0.5 * np.random.default_rng(seed).standard_normal(2 * D * K)


def pose(model, blocks, y):
    targets = Classes(y, zero_one_cost(3), np.full(len(y), 0.5))
    return JointProblem(model, hold_rows(blocks), Head(targets, squared=True), DescentOptions())


def check_same_problem(model, X, y, params):
    """Check that the objective and its gradient match those of `LinearAutoencoder`."""
    ours = pose(model, model.blocks(X), y)
    by_hand = pose(LinearAutoencoder(), [X], y)
    at, inferred = ours.evaluate(params, None, TIGHT)
    expected, inferred_by_hand = by_hand.evaluate(params, None, TIGHT)
    for name, value in expected.terms.items():
        np.testing.assert_allclose(at.terms[name], value, rtol=1e-9)
    np.testing.assert_allclose(
        ours.gradient(at, inferred), by_hand.gradient(expected, inferred_by_hand), rtol=1e-6, atol=1e-9
    )


def check_finite_differences(problem, params, rng, rel=1e-5):
    """Check the gradient of the objective against finite differences."""
    gradient = problem.gradient(*problem.evaluate(params, None, TIGHT))
    for direction in rng.standard_normal((3, params.size)):
        ahead, behind = (
            problem.evaluate(params + step * direction, None, TIGHT)[0].objective for step in (1e-5, -1e-5)
        )
        slope = (ahead - behind) / 2e-5
        np.testing.assert_allclose(np.vdot(gradient, direction), slope, rtol=rel)


def check_weights_are_copies(model):
    """Check that sample weights 1, 2 and 3 match repeated samples."""
    X, y = make_data()
    weights = 1.0 + np.arange(len(X)) % 3
    often = np.repeat(np.arange(len(X)), weights.astype(int))
    targets = Classes(y, zero_one_cost(3), 0.5 * weights)
    head = Head(targets, squared=True, row_weights=weights)
    weighted = JointProblem(model, hold_rows(model.blocks(X, weights=weights)), head, DescentOptions())
    copied = pose(model, model.blocks(X[often]), y[often])
    (at, inferred), (expected, of_copies) = (
        problem.evaluate(some_params(), None, TIGHT) for problem in (weighted, copied)
    )
    np.testing.assert_allclose(at.objective, expected.objective, rtol=1e-9)
    np.testing.assert_allclose(
        weighted.gradient(at, inferred), copied.gradient(expected, of_copies), rtol=1e-6, atol=1e-8
    )
    first = fit(model, X, targets, weights=weights, max_iter=3, tol=0.0).trace.objective
    largest = 1.2 * np.abs(np.diff(first)).max()  # `tol` is per unit of total weight, not per sample
    assert fit(model, X, targets, weights=weights, tol=largest / weights.sum()).n_iter == 3
