"""Test values that `tools/fuzz.py regularize` found: each raises an error that names the argument."""

from __future__ import annotations

import numpy as np
import pytest

from regbayes import E, Samples


@pytest.mark.parametrize("penalty", [1j, "x", None, [1.0, 2.0]])
def test_soft_with_penalty_that_is_no_number_raises(penalty):
    with pytest.raises(TypeError, match="penalty must be a number"):
        (E("a") <= 1.0).soft(penalty)


@pytest.mark.parametrize("bound", [1j, np.array([1j]), "x", None])
def test_bound_that_is_no_real_number_raises(bound):
    for compare in (E("a").__le__, E("a").__ge__, E("a").__eq__):
        with pytest.raises((TypeError, ValueError), match=r"compare E\(psi\) with|must be"):
            compare(bound)
    with pytest.raises((TypeError, ValueError), match=r"compare E\(psi\) with|must be|at least one side"):
        E("a").between(bound, bound)


@pytest.mark.parametrize("weights", [[[1.0], [1.0, 2.0]], np.zeros(3, [("a", "f8"), ("b", "i4")]), ["a", "b", "c"]])
def test_log_weights_that_are_no_numbers_raise(weights):
    with pytest.raises(TypeError, match="log_weights must be a 1-D array of numbers"):
        Samples({"a": np.zeros(3)}, weights)
