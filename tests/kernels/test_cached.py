"""Kernels are bitwise identical in the process that compiles them and in processes that load the cache."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
import hashlib
import numpy as np
from regbayes.kernels.binary import reverse_features, sweep_features

rng = np.random.default_rng(0)
theta, start, gradient = rng.normal(size=(100, 23)), rng.random((1, 23)), rng.normal(size=(100, 23))
coupling = rng.normal(size=(23, 23))
psi = np.empty_like(theta)
sweep_features(theta, coupling, start, 2, psi)
sums = reverse_features(gradient, psi, theta, coupling, start, 2, gradient)
print(*(hashlib.md5(array.tobytes()).hexdigest() for array in (psi, gradient, sums.coupling, sums.theta_sum)))
"""


def test_compiled_and_cached_sweeps_are_bitwise_identical(tmp_path):
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    first, second = (
        subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
        for _ in range(2)
    )
    assert any(tmp_path.rglob("*.nbc"))
    assert first.stdout == second.stdout
