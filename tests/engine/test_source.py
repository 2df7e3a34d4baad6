"""Local sources and blocks: ordered sums, and samples that do not depend on the blocks."""

from __future__ import annotations

import numpy as np
import pytest

from regbayes.engine import LocalBlocks, Serial, Threads
from regbayes.engine.source import ArraySource, Samples, Strata

EXECUTORS = [Serial(), Threads(3)]


@pytest.fixture
def samples():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(9000, 3)) * 10.0 ** np.arange(-3, 3, 2)
    return Samples(X, (rng.random(9000) < 0.05).astype(int), rng.random(9000) + 0.5)


@pytest.mark.parametrize("executor", EXECUTORS, ids=repr)
@pytest.mark.parametrize("mapped", [False, True])
def test_persisted_blocks_sum_to_all_samples_bitwise(samples, executor, mapped, tmp_path):
    source = samples
    if mapped:
        np.save(tmp_path / "X.npy", samples.X)
        source = Samples(np.load(tmp_path / "X.npy", mmap_mode="r"), samples.y, samples.weights)
    blocks = ArraySource(source, executor).persist(lambda block, power: block.weights @ block.X**power, 2)
    assert blocks.is_local
    one_thread = ArraySource(samples).persist(lambda block, power: block.weights @ block.X**power, 2)
    found = blocks.map_sum(lambda part, factor: factor * part, 2.0)
    np.testing.assert_array_equal(found, one_thread.map_sum(lambda part, factor: factor * part, 2.0))
    np.testing.assert_allclose(found, 2.0 * samples.weights @ samples.X**2, rtol=1e-12)
    np.testing.assert_array_equal(ArraySource(source, executor).summarize(len), 9000)


@pytest.mark.parametrize("executor", EXECUTORS, ids=repr)
def test_blocks_made_on_demand_match_stored_ones(samples, executor):
    slices = [slice(0, 4000), slice(4000, 9000)]
    made = LocalBlocks(slices, executor, make=lambda rows: samples.X[rows])
    kept = LocalBlocks([samples.X[rows] for rows in slices], executor)
    np.testing.assert_array_equal(made.map_sum(np.sum, 0), kept.map_sum(np.sum, 0))
    assert [len(part) for part in made.gather(np.negative)] == [4000, 5000]


def test_prefixes_of_a_sample_are_stratified(samples):
    rare = int(samples.y.sum())
    strata = Strata(np.array([9000 - rare, rare]), lambda block: block.y)
    found = ArraySource(samples).sample(1000, strata)
    assert len(found) == strata.wanted(1000).sum()
    assert found.y.sum() == strata.wanted(1000)[1]
    for n in (100, 300):
        assert abs(found.y[:n].sum() - n * rare / 9000) <= 1.5
    rows = {tuple(row) for row in samples.X.tolist()}
    assert len({tuple(row) for row in found.X.tolist()} & rows) == len(found)


def test_sample_is_independent_of_executor_and_may_be_complete(samples):
    one, two = (ArraySource(samples, executor).sample(500, Strata.alone(9000)) for executor in EXECUTORS)
    np.testing.assert_array_equal(one.X, two.X)
    every = ArraySource(samples).sample(10**6, Strata.alone(9000))
    np.testing.assert_array_equal(np.sort(every.X[:, 0]), np.sort(samples.X[:, 0]))
