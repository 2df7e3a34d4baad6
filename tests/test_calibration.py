"""Samplers are calibrated: ranks of the truth among their draws are uniform. See benchmarks/bench_calibration.py."""

from __future__ import annotations

import pytest

import calibration


@pytest.mark.parametrize("name", calibration.SAMPLERS)
def test_ranks_of_the_truth_are_uniform(name):
    p_values = calibration.calibrate(calibration.SAMPLERS[name], range(60))
    assert min(p_values.values()) > 1e-4, p_values
