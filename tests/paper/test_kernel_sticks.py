"""Kernel stick-breaking against draws, enumeration and the Dirichlet process."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from regbayes_paper.priors import dirichlet_process, kernel_sticks
from regbayes_paper.priors.dirichlet_process import Sticks, log_sticks

STICKS = Sticks(np.array([2.0, 1.5, 3.0]), np.array([3.0, 0.8, 2.0]))
LOG_KERNEL = np.log(np.random.default_rng(0).uniform(0.05, 0.95, (5, 3)))
MEMBERS = np.random.default_rng(1).dirichlet([1.0, 0.5, 0.7], size=5)


def test_a_kernel_of_one_is_the_dirichlet_process():
    flat = np.zeros((5, 3))
    np.testing.assert_allclose(
        kernel_sticks.log_shares(STICKS, flat), np.tile(dirichlet_process.log_weights(STICKS), (5, 1))
    )
    expected = dirichlet_process.update_sticks(MEMBERS.sum(axis=0), 0.7)
    found = kernel_sticks.update_sticks(STICKS, flat, MEMBERS, 0.7)
    np.testing.assert_allclose([found.first, found.second], [expected.first, expected.second])


def test_log_shares_are_below_their_expectation():
    v, kernel = np.random.default_rng(0).beta(STICKS.first, STICKS.second, size=(100_000, 3)), np.exp(LOG_KERNEL)
    taken = v[:, None] * kernel
    rest = np.concatenate([np.ones((len(v), 5, 1)), np.cumprod(1 - taken, axis=2)[:, :, :-1]], axis=2)
    expected = np.log(taken * rest).mean(axis=0)
    found = kernel_sticks.log_shares(STICKS, LOG_KERNEL)
    np.testing.assert_allclose(found[:, 0], expected[:, 0], atol=0.01)  # nothing is passed by before the first
    assert np.all(found[:, 1:] < expected[:, 1:])
    assert np.all(found > expected - 0.8)


def enumerated_value(sticks, log_kernel, members, taken):
    """What mean field keeps of log p(c, taken, open | v) for a distribution of what was taken among those passed by.

    For every component that is passed by, (taken, open) is one of (1, 0), (0, 1), (0, 0), with probabilities ``taken``.
    """
    log_v, log_rest = log_sticks(sticks)
    kernel, total = np.exp(log_kernel), 0.0
    for m, k in product(range(5), range(3)):
        total += members[m, k] * (log_v[k] + log_kernel[m, k])
        for j in range(k):
            price = np.array(
                [
                    log_v[j] + np.log(1 - kernel[m, j]),
                    log_rest[j] + log_kernel[m, j],
                    log_rest[j] + np.log(1 - kernel[m, j]),
                ]
            )
            q = taken[m, j]
            total += members[m, k] * (q @ price - q @ np.log(q))
    return total


def test_log_shares_are_the_best_that_a_distribution_of_the_auxiliary_variables_can_do():
    rng = np.random.default_rng(2)
    log_v, log_rest = log_sticks(STICKS)
    kernel = np.exp(LOG_KERNEL)
    weights = np.stack(
        [np.exp(log_v) * (1 - kernel), np.exp(log_rest) * kernel, np.exp(log_rest) * (1 - kernel)], axis=2
    )
    best = weights / weights.sum(axis=2, keepdims=True)
    value = enumerated_value(STICKS, LOG_KERNEL, MEMBERS, best)
    assert value == pytest.approx(np.sum(MEMBERS * kernel_sticks.log_shares(STICKS, LOG_KERNEL)), rel=1e-10)
    for _ in range(10):
        moved = best * np.exp(0.2 * rng.standard_normal(best.shape))
        moved /= moved.sum(axis=2, keepdims=True)
        assert enumerated_value(STICKS, LOG_KERNEL, MEMBERS, moved) < value


def test_updates_of_sticks_climb_to_where_no_perturbation_helps():
    def value(sticks):
        shares = np.sum(MEMBERS * kernel_sticks.log_shares(sticks, LOG_KERNEL))
        return shares - dirichlet_process.kl_sticks(sticks, 0.7)

    sticks, values = STICKS, [value(STICKS)]
    for _ in range(200):
        sticks = kernel_sticks.update_sticks(sticks, LOG_KERNEL, MEMBERS, 0.7)
        values.append(value(sticks))
    assert np.all(np.diff(values) > -1e-12)
    rng = np.random.default_rng(3)
    for _ in range(20):
        a, b = np.exp(0.1 * rng.standard_normal((2, 3)))
        assert value(Sticks(sticks.first * a, sticks.second * b)) < values[-1]


def test_centres_are_the_best_of_all_combinations():
    candidates = np.log(np.random.default_rng(4).uniform(0.05, 0.95, (5, 4)))
    found = kernel_sticks.best_centres(STICKS, candidates, MEMBERS)
    values = {
        centres: np.sum(MEMBERS * kernel_sticks.log_shares(STICKS, candidates[:, list(centres)]))
        for centres in product(range(4), repeat=3)
    }
    assert max(values, key=values.__getitem__) == tuple(found)
