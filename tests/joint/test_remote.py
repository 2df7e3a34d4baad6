"""Remote rows have the same J and gradient as local rows, for any blocks and after a lost worker."""

from __future__ import annotations

import pickle
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from regbayes.engine import row_blocks
from regbayes.engine.source import LocalBlocks, order_sample
from regbayes.joint import descent
from regbayes.joint.descent import DescentOptions
from regbayes.joint.problem import JointProblem, RowBlock, SampledHead, hold_rows
from regbayes.margins.head import Head, HeadPolicy, Tolerance
from regbayes.margins.targets import Classes, zero_one_cost
from regbayes.models.ilsvm.model import BinaryFeatures, Params, centre_rows
from regbayes.models.indian_buffet import prior_sticks

EXACT = Tolerance(gap=1e-13, max_epochs=100.0)
N, D, K, N_CLASSES = 900, 6, 4, 3


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    features = (rng.random((N, K)) < 0.4).astype(float)
    X = features @ rng.normal(size=(K, D)) + 0.5 * rng.normal(size=(N, D)) + 3.0
    labels = np.argmax(features @ rng.normal(size=(K, N_CLASSES)) + 0.3 * rng.gumbel(size=(N, N_CLASSES)), axis=1)
    labels[rng.random(N) < 0.2] = -1
    start = Params(rng.normal(size=(K, D)), np.zeros(D), np.full(K, 0.1), prior_sticks(2.0, K), 0.5, 1.0, 2.0, 1)
    return X, labels, rng.uniform(0.5, 2.0, N), start


def make_head(labels, weights, one_vs_rest):
    labeled = np.flatnonzero(labels >= 0)
    classes = Classes(labels[labeled], zero_one_cost(N_CLASSES), 0.3 * weights[labeled])
    return Head(
        classes.one_vs_rest() if one_vs_rest else classes,
        squared=True,
        rows=labeled,
        row_weights=weights[labeled],
    )


def hold(X, labels, weights, mean, one_vs_rest, piece=100):
    rows = centre_rows(X, mean, weights)
    pieces = [rows.take(slice(first, first + piece)) for first in range(0, len(rows), piece)]
    lengths = tuple(map(len, pieces))
    return RowBlock(pieces, lengths, make_head(labels, weights, one_vs_rest).blocks(lengths))


def make_remote(data, one_vs_rest, cuts, n_drawn=600):
    X, labels, weights, _ = data
    mean = weights @ X / weights.sum()
    order = order_sample(labels, N)
    drawn = order[labels[order] >= 0][:n_drawn]
    sample = hold(X[drawn], labels[drawn], weights[drawn], mean, one_vs_rest)
    here = make_head(labels[drawn], weights[drawn], one_vs_rest)
    blocks = [hold(*(part[a:b] for part in (X, labels, weights)), mean, one_vs_rest) for a, b in pairwise(cuts)]
    share = len(drawn) / np.sum(labels >= 0)
    options = DescentOptions(blocks_every=3)
    return JointProblem(BinaryFeatures(2.0, 0.05), LocalBlocks(blocks), SampledHead(here, sample, share), options)


def make_local(data, one_vs_rest):
    X, labels, weights, _ = data
    rows = centre_rows(X, weights=weights)
    blocks = [rows.take(part) for part in row_blocks(N)]
    return JointProblem(
        BinaryFeatures(2.0, 0.05),
        hold_rows(blocks),
        make_head(labels, weights, one_vs_rest),
        DescentOptions(blocks_every=3),
    )


@pytest.mark.parametrize("cuts", [(0, N), (0, 700, N), (0, 13, 300, 301, 620, N)])
@pytest.mark.parametrize("one_vs_rest", [True, False])
def test_remote_objective_and_gradient_match_local_rows(data, one_vs_rest, cuts, monkeypatch):
    monkeypatch.setattr("regbayes.margins.head.HEAD_POLICY", HeadPolicy(max_ascent_scores=0))  # Newton's method
    remote, local = make_remote(data, one_vs_rest, cuts), make_local(data, one_vs_rest)
    (there, shared), (here, inferred) = (problem.evaluate(data[-1], None, EXACT) for problem in (remote, local))
    assert there.objective == pytest.approx(here.objective, rel=1e-11)
    assert there.terms.keys() == here.terms.keys()
    np.testing.assert_allclose(there.head.head.weights, here.head.head.weights, atol=2e-6)
    gradients = remote.gradient(there, shared), local.gradient(here, inferred)
    np.testing.assert_allclose(gradients[0], gradients[1], atol=1e-5)


def test_descent_is_independent_of_the_blocks(data):
    ends = []
    for cuts in [(0, N), (0, 700, N), (0, 13, 300, 301, 620, N)]:
        problem = make_remote(data, True, cuts)
        search = descent.start(problem, data[-1])
        objectives = [search.at.objective]
        for _ in range(6):
            search = descent.step(problem, search).state
            objectives.append(search.at.objective)
        assert np.all(np.diff(objectives) <= 0.0)
        ends.append(search.at)
    for other in ends[1:]:
        np.testing.assert_allclose(other.params.loadings, ends[0].params.loadings, atol=1e-10)
        np.testing.assert_allclose(other.head.head.weights, ends[0].head.head.weights, atol=1e-10)


def test_recomputed_block_infers_the_same_features(data):
    problem = make_remote(data, True, (0, 400, N))
    at, shared = problem.evaluate(data[-1], None, EXACT)
    expected = problem.gradient(at, shared)
    lost = [pickle.loads(pickle.dumps(block)) for block in problem.blocks.blocks]
    assert all(block.inferred is None for block in lost)  # the cache is not pickled
    again = replace(problem, blocks=LocalBlocks(lost)).gradient(at, shared)
    np.testing.assert_array_equal(again, expected)


def test_problem_without_head_is_the_generative_model(data):
    problem = make_remote(data, True, (0, 400, N))
    blocks = [replace(block, head=None) for block in problem.blocks.blocks]
    alone = replace(problem, blocks=LocalBlocks(blocks), head=None)
    local = replace(make_local(data, True), head=None)
    (there, shared), (here, inferred) = (p.evaluate(data[-1], None, EXACT) for p in (alone, local))
    assert there.head is None
    assert there.objective == pytest.approx(here.objective, rel=1e-12)
    np.testing.assert_allclose(alone.gradient(there, shared), local.gradient(here, inferred), rtol=1e-9)
