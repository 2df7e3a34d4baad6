"""Samplers are calibrated: ranks of the truth among their draws are uniform. See benchmarks/bench_calibration.py."""

from __future__ import annotations

import numpy as np
import pytest

import calibration


@pytest.mark.parametrize("name", calibration.SAMPLERS)
def test_ranks_of_the_truth_are_uniform(name):
    p_values = calibration.calibrate(calibration.SAMPLERS[name], range(60))
    assert min(p_values.values()) > 1e-4, p_values


def test_ranks_of_a_wrong_sampler_are_not_uniform():
    rng = np.random.default_rng(0)
    too_narrow = [np.mean(rng.normal(size=100) < 1.3 * rng.normal()) for _ in range(1000)]
    assert calibration.uniformity(too_narrow) < 1e-4
