"""`has_jump` finds jumps of constraint functions by bisection."""

from __future__ import annotations

import numpy as np
import pytest

from regbayes.ppl.tracing import has_jump

RNG = np.random.default_rng(0)
FIRST, LAST = RNG.uniform(-2, 2, (12, 3)), 10 * RNG.uniform(-2, 2, (12, 3))

FUNCTIONS = {
    "square": (lambda z: z[:, 0] ** 2, False),
    "kink": (lambda z: np.abs(z[:, 0] - 1), False),
    "steep sigmoid": (lambda z: 1 / (1 + np.exp(-(z[:, 0] - 3) / 0.01)), False),
    "constant": (lambda z: np.ones(len(z)), False),
    "overflow": (lambda z: np.exp(100 * z[:, 0]), False),
    "rounded to single precision": (lambda z: np.float32(1000 + z[:, 0]), False),
    "cancellation": (lambda z: np.float32(np.exp(z[:, 1]) + np.exp(z[:, 0])) - np.float32(np.exp(z[:, 1])), False),
    "indicator": (lambda z: z[:, 0] > 3, True),
    "interval": (lambda z: np.abs(z[:, 0]) < 1, True),
    "steps on a slope": (lambda z: np.floor(20 * z[:, 0]) + 0.1 * z[:, 1], True),
    "jump on a slope": (lambda z: (z[:, 0] > 3) * z[:, 0], True),
    "pole": (lambda z: z[:, 1] / z[:, 0], True),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_has_jump_finds_jumps_and_poles(name):
    function, jumps = FUNCTIONS[name]
    with np.errstate(all="ignore"):
        assert has_jump(lambda z: 1.0 * function(z)[:, None], 0, FIRST, LAST) is jumps
