"""The line search meets Armijo's condition and ends after its maximum number of trials."""

from __future__ import annotations

import math
from itertools import pairwise
from types import SimpleNamespace

import pytest

from regbayes.engine import backtrack
from regbayes.engine.line_search import ARMIJO


def at(function):
    return lambda length: SimpleNamespace(objective=function(length))


@pytest.mark.parametrize("far", [1.0, 3.0, 100.0])
def test_backtrack_meets_the_armijo_condition(far):
    """On a parabola the search ends at the minimum, for any distance of the first trial beyond it."""
    steep = lambda x: far * x**2 - x  # noqa: E731
    length, point = backtrack(at(steep), 0.0, -1.0, max_trials=10)
    assert point.objective <= -ARMIJO * length
    assert length == pytest.approx(0.5 / far)


def test_backtrack_without_a_decrease_returns_none():
    tried = []

    def rise(length):
        tried.append(length)
        return SimpleNamespace(objective=length)

    assert backtrack(rise, 0.0, -1.0, max_trials=4) is None
    assert len(tried) == 4
    assert all(0.1 * before <= after <= 0.5 * before for before, after in pairwise(tried))


@pytest.mark.parametrize("bad", [None, math.nan, math.inf])
def test_backtrack_shortens_steps_with_undefined_objective(bad):
    def evaluate(length):
        if length > 0.05:
            return None if bad is None else SimpleNamespace(objective=bad)
        return SimpleNamespace(objective=-length)

    length, point = backtrack(evaluate, 0.0, -1.0, max_trials=5)
    assert point.objective == -length
    assert length <= 0.05


def test_backtrack_with_slope_zero_accepts_no_increase():
    length, _ = backtrack(at(lambda x: max(x - 0.3, 0.0)), 0.0, 0.0, max_trials=5, shortest=0.5)
    assert length == 0.25
