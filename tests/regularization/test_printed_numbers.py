"""Numbers of a result match its posterior, even if rounding is large."""

from __future__ import annotations

import numpy as np
import pytest

from regbayes import E, Finite, Gaussian, Samples, regularize
from regbayes.regularizers import MultiClassHinge


def test_between_contains_its_endpoints():
    """A constant feature meets bounds equal to it, despite rounding of the width."""
    rng = np.random.default_rng(0)
    pairs = [(-0.7896410810468496, -0.001092145226820616), *np.sort(rng.normal(size=(200, 2)), axis=1)]
    for low, high in pairs:
        for value in (low, high):
            assert regularize(Finite(np.arange(4.0)), E(np.full(4, value)).between(low, high)).status == "optimal"


@pytest.mark.parametrize("penalty", [1e3, 1e6])
def test_gap_of_soft_constraints_is_value_minus_dual(penalty):
    """The value of the result's own posterior, KL + g(E), is at most dual + gap."""
    rng = np.random.default_rng(0)
    posteriors = [(Gaussian([0.0], [1.0]), np.ones(1), 0.7)]
    for _ in range(30):
        features = rng.normal(size=(200, rng.integers(1, 5)))
        aim = features.mean(axis=0) + 0.3 * rng.normal(size=features.shape[1])
        posteriors.append((Finite(np.arange(200.0)), features, aim))
    for posterior, features, aim in posteriors:
        result = regularize(posterior, (E(features) == aim).soft(penalty))
        value = result.kl + result.regularizer.value(result.after)
        assert value <= result.dual + result.gap + 1e-12 * (1 + abs(value))
        assert result.gap <= 1e-8 * (1 + abs(value))


def test_weights_sum_to_one_with_large_constant_feature():
    """A constant feature changes no weights, whatever its penalty."""
    constant = regularize(Finite(np.arange(60.0)), (E(np.full(60, 1e12)) <= 0).soft(1000.0))
    classes = np.column_stack([np.full(60, 1e20), np.zeros(60), np.random.default_rng(0).normal(size=60)])
    hinge = regularize(Finite(np.arange(60.0)), classes, MultiClassHinge(1.0, cost=[0.0, 1.0, 1.0]))
    for result in (constant, hinge):
        np.testing.assert_allclose(result.posterior.weights, 1 / 60, rtol=1e-12)
        assert result.kl == 0


@pytest.mark.parametrize("n", [3, 20, 92])
def test_k_hat_of_few_draws_in_event_is_infinite(n):
    """All draws in the event have equal weights, so that no tail can be estimated."""
    rng = np.random.default_rng(0)
    outside = np.ones(4000)
    outside[rng.choice(4000, n, replace=False)] = 0.0
    with pytest.warns(UserWarning, match="draws"):
        result = regularize(Samples(outside), E(outside) == 0)
    assert result.status == "boundary"
    assert np.isinf(result.pareto_k)
    assert "k-hat -" not in str(result)
