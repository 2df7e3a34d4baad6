"""Cells of rows and outputs in one call: the loops against the law, and the law against the derivative of the loss."""

from __future__ import annotations

import numpy as np
import pytest

from regbayes.kernels.cells import (
    add_curvature,
    ask,
    find_multipliers,
    look,
    reference_add_curvature,
    reference_look,
)

N, K, M = 70, 5, 4


def make(kind, rng):
    """What is asked: signs with holes, numbers with holes and a tube, numbers everywhere, also of weighted rows."""
    if kind == "signs":
        side = rng.choice(np.array([-1, 0, 1], dtype=np.int8), size=(N, M))
        return ask(-side, np.array(0.0), rng.uniform(1.0, 2.0, size=(N, 1)), side, None)
    values = rng.normal(size=(N, M))
    if kind == "tube":
        return ask(values, np.array(0.3), rng.uniform(1.0, 2.0, size=(1, M)), None, rng.random((N, M)) < 0.7)
    if kind == "weighted":
        return ask(values, np.array(0.0), rng.uniform(1.0, 2.0, size=(N, 1)), None, None)
    return ask(
        values.astype(np.float32),
        np.zeros((N, 1)) if kind == "zero tubes" else np.array(0.0),
        np.array(1.5),
        None,
        None,
    )


def loss_of(features, weights, constant, asked):
    return reference_look(features, weights, constant, asked, np.empty((N, M))).loss


@pytest.fixture(params=["signs", "tube", "zero tubes", "numbers", "weighted"])
def problem(request):
    rng = np.random.default_rng(0)
    features, weights, constant = rng.normal(size=(N, K)), rng.normal(size=(M, K)), rng.normal(size=M)
    return features, weights, constant, make(request.param, rng)


def test_a_look_is_that_of_the_law(problem):
    here, law, alone = (np.empty((N, M)) for _ in range(3))
    found, expected = look(*problem, here), reference_look(*problem, law)
    find_multipliers(*problem, alone)
    for phi in (here, alone):
        np.testing.assert_allclose(phi, law, atol=1e-12)
    assert found.loss == pytest.approx(expected.loss, rel=1e-12)
    np.testing.assert_allclose(found.pulled, expected.pulled, atol=1e-11)
    np.testing.assert_allclose(found.totals, expected.totals, atol=1e-11)


def test_curvature_is_that_of_the_law_and_is_added(problem):
    features, weights, _, asked = problem
    found, expected = np.ones((M, K, K)), np.ones((M, K, K))
    add_curvature(features, weights, asked, found)
    reference_add_curvature(features, weights, asked, expected)
    np.testing.assert_allclose(found, expected, atol=1e-11)


def test_sums_are_minus_the_derivative_of_the_loss_and_curvature_is_the_second(problem):
    features, weights, constant, asked = problem
    direction = np.random.default_rng(1).normal(size=weights.shape)
    step = 1e-6
    slope = (
        loss_of(features, weights + step * direction, constant, asked)
        - loss_of(features, weights - step * direction, constant, asked)
    ) / (2 * step)
    seen = look(*problem, np.empty((N, M)))
    assert slope == pytest.approx(-np.vdot(seen.pulled, direction), rel=1e-6)
    ahead, behind = (
        look(features, weights + sign * step * direction, np.zeros(M), asked, np.empty((N, M))).pulled
        for sign in (1.0, -1.0)
    )
    curvature = np.zeros((M, K, K))
    add_curvature(features, weights, asked, curvature)
    bent = np.einsum("mij,mj->mi", curvature, direction)
    np.testing.assert_allclose((behind - ahead) / (2 * step), bent, rtol=1e-5, atol=1e-5)
