"""Mini-batch learning is exact for a full batch, independent of block sizes, and keeps no samples."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from regbayes.joint import online
from regbayes.joint.descent import DescentOptions
from regbayes.joint.online import OnlineOptions, OnlineState
from regbayes.joint.problem import JointProblem, hold_rows
from regbayes.margins.head import Head, Tolerance
from regbayes.margins.targets import Classes, Numbers, zero_one_cost
from regbayes.models.ilsvm.model import BinaryFeatures, Params, centre_rows
from regbayes.models.indian_buffet import prior_sticks

N, D, K, N_CLASSES = 600, 5, 3, 3
STILL = OnlineOptions(step=0.0, blocks_every=10**9)  # options that keep the features fixed
MODEL = BinaryFeatures(2.0, 0.05)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    features = (rng.random((N, K)) < 0.4).astype(float)
    loadings = 2.0 * rng.normal(size=(K, D))
    X = features @ loadings + 0.5 * rng.normal(size=(N, D))
    labels = np.argmax(3.0 * features @ rng.normal(size=(K, N_CLASSES)) + rng.gumbel(size=(N, N_CLASSES)), axis=1)
    noisy = loadings + 0.7 * rng.normal(size=(K, D))
    start = Params(noisy, np.zeros(D), np.full(K, 0.1), prior_sticks(2.0, K), 0.5, 1.0, 2.0, 1)
    return centre_rows(X), labels, start


def class_head(labels, one_vs_rest=True):
    classes = Classes(labels, zero_one_cost(N_CLASSES), np.ones(len(labels)))
    return Head(classes.one_vs_rest() if one_vs_rest else classes, squared=True)


def test_full_batch_with_quadratic_loss_gives_the_solution(data):
    rows, labels, start = data
    head = Head(Numbers(np.eye(N_CLASSES)[labels], np.ones((N, N_CLASSES))), squared=True)
    state = online.step(MODEL, OnlineState.begin(MODEL, start, K), rows, head, N, N, STILL)
    exact = head.solve([start.infer(rows)], None, Tolerance(1e-14, 50.0))
    np.testing.assert_allclose(state.weights, exact.slope.weights, atol=1e-8)
    np.testing.assert_allclose(state.centre, exact.head.centre, atol=1e-12)


@pytest.mark.parametrize("one_vs_rest", [True, False])
def test_batches_at_fixed_features_approach_the_exact_head(data, one_vs_rest):
    rows, labels, start = data
    exact = class_head(labels, one_vs_rest).minimize([start.infer(rows)], None, Tolerance(1e-10, 100.0))
    state, rng = OnlineState.begin(MODEL, start, K), np.random.default_rng(1)
    for _ in range(10):
        for batch in np.split(rng.permutation(N), 6):
            here = class_head(labels[batch], one_vs_rest)
            state = online.step(MODEL, state, rows.take(batch), here, len(batch), N, STILL)
    error = np.linalg.norm(state.weights - exact.slope.weights) / np.linalg.norm(exact.slope.weights)
    assert error < 0.1
    assert state.n_batches == 60
    assert state.n_rows == 10 * N


def test_objective_decreases_over_batches(data):
    rows, labels, start = data
    options = OnlineOptions()

    def cost(params):
        """Return J at the optimal head."""
        stats = MODEL.infer(rows, params).stats
        head = class_head(labels).solve([params.infer(rows)], None, Tolerance(1e-6, 100.0))
        return sum(MODEL.terms(params, stats).values()) + head.value

    state, rng = OnlineState.begin(MODEL, start, K), np.random.default_rng(2)
    costs = [cost(start)]
    for _ in range(4):
        for batch in np.split(rng.permutation(N), 10):
            state = online.step(MODEL, state, rows.take(batch), class_head(labels[batch]), len(batch), N, options)
        costs.append(cost(state.params))
    assert costs[-1] < 0.9 * costs[0]
    assert costs[-1] <= 1.02 * min(costs)


def test_full_batch_steps_along_the_gradient_of_the_objective(data):
    rows, labels, start = data
    numbers = Numbers(np.eye(N_CLASSES)[labels], np.ones((N, N_CLASSES)))
    head = Head(numbers, squared=True, fit_intercept=False)
    problem = JointProblem(MODEL, hold_rows([rows]), head, DescentOptions())
    at, inferred = problem.evaluate(start, None, Tolerance(1e-14, 50.0))
    expected = MODEL.precondition(start, at.stats)(problem.gradient(at, inferred)) / N
    state = online.step(MODEL, OnlineState.begin(MODEL, start, K), rows, head, N, N, OnlineOptions())
    np.testing.assert_allclose(state.mean, 0.1 * expected, rtol=1e-6, atol=1e-9 * np.abs(expected).max())
    moved = MODEL.position(state.params) - MODEL.position(start)
    clear = np.abs(expected) > 1e-6 * np.abs(expected).max()
    np.testing.assert_array_equal(np.sign(moved[clear]), -np.sign(expected[clear]))


def test_batches_continue_from_the_weights_of_an_earlier_solve(data):
    rows, labels, start = data
    exact = class_head(labels).solve([start.infer(rows)], None, Tolerance(1e-10, 100.0))
    state = OnlineState.begin(MODEL, start, K, exact.head, n_rows=50.0 * N)
    for batch in np.split(np.arange(N), 6):
        state = online.step(MODEL, state, rows.take(batch), class_head(labels[batch]), len(batch), N, STILL)
    assert np.linalg.norm(state.weights - exact.slope.weights) < 0.1 * np.linalg.norm(exact.slope.weights)
    settled = state.settle(exact.head, 1.0)
    np.testing.assert_allclose(settled.picture.minimise(state.n_rows), exact.slope.weights, rtol=1e-6, atol=1e-8)


def test_state_does_not_keep_samples(data):
    rows, labels, start = data
    few, many = (
        online.step(
            MODEL,
            OnlineState.begin(MODEL, start, K),
            rows.take(slice(n)),
            class_head(labels[:n]),
            n,
            N,
            OnlineOptions(),
        )
        for n in (50, N)
    )
    for f in fields(OnlineState):
        a, b = getattr(few, f.name), getattr(many, f.name)
        assert np.shape(a) == np.shape(b), f.name
    assert few.picture.curvature.shape == many.picture.curvature.shape


def test_batches_without_labels_fit_the_generative_model(data):
    rows, _, start = data
    state = online.step(MODEL, OnlineState.begin(MODEL, start, K), rows, None, N, N, OnlineOptions())
    assert state.weights is None
    assert state.picture is None
    assert not np.array_equal(state.params.loadings, start.loadings)
    np.testing.assert_array_equal(
        online.step(MODEL, state, rows, None, N, N, STILL).params.loadings, state.params.loadings
    )
