"""Test that summaries of blocks add up to those of all samples."""

from __future__ import annotations

from functools import reduce
from operator import add

import numpy as np
import pytest

from regbayes.engine.source import Samples
from regbayes.estimators._sources import Labels, Moments


@pytest.mark.parametrize("weighted", [False, True])
def test_moments_of_blocks_match_all_samples(weighted):
    rng = np.random.default_rng(0)
    X, weights = rng.normal(size=(50, 3)) + 1e6, rng.uniform(0.5, 2.0, 50)
    own = weights if weighted else np.ones(50)
    parts = [Moments.of(X[a:b], weights[a:b] if weighted else None) for a, b in [(0, 0), (0, 7), (7, 50)]]
    joined = reduce(add, parts)
    mean = np.average(X, axis=0, weights=own)
    np.testing.assert_allclose(joined.mean, mean, rtol=1e-14)
    np.testing.assert_allclose(joined.squares, own @ (X - mean) ** 2, rtol=1e-9)


def test_labels_of_blocks_match_all_samples():
    y, weights = np.array(["b", "a", "none", "c", "a", "none"]), np.arange(1.0, 7.0)
    joined = reduce(
        add, [Labels.of(Samples(y[a:b], y[a:b], weights[a:b]), "none") for a, b in [(0, 1), (1, 3), (3, 6)]]
    )
    assert joined.classes.tolist() == ["a", "b", "c"]
    assert joined.counts.tolist() == [2, 1, 1]
    assert joined.weights.tolist() == [7.0, 1.0, 4.0]
    assert (joined.n_rest, joined.rest_weight) == (2, 9.0)
    np.testing.assert_allclose(joined.weights_by_class("balanced"), 12.0 / (3 * joined.weights))
    with pytest.raises(ValueError, match="text in some blocks and numbers in others"):
        joined + Labels.of(Samples(np.ones((2, 1)), np.array([0, 1])))
