"""Ctrl-C during a kernel raises KeyboardInterrupt instead of ending the process."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import signal
import numpy as np
from regbayes.margins.ascent import BoxAscent, SimplexAscent, TaskLayout
from regbayes.regularization.dual_forms import BoxDual, SimplexDual

n, ones = 200_000, np.ones(200_000)
X = np.random.default_rng(0).standard_normal((n, 8))
if {kind!r} == "box":
    layout = TaskLayout(np.arange(n), 0 * np.arange(n), np.zeros(1))
    problem = BoxAscent(X, BoxDual(-ones, 0 * ones, ones, 0 * ones, np.inf * ones), layout)
else:
    labels = np.arange(n) % 3
    problem = SimplexAscent(X, SimplexDual(np.eye(3) - 1, labels, np.inf * ones, ones), labels)
order = np.arange(n)
calls = {{
    "epoch": lambda: problem.epoch(problem.rows, order, True, problem.state), "certificate": problem.certificate
}}
call = calls[{method!r}]
call()  # compiled now
signal.signal(signal.SIGALRM, signal.default_int_handler)
try:
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    while True:
        call()
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="has no timers that send a signal")
@pytest.mark.parametrize("kind", ["box", "simplex"])
@pytest.mark.parametrize("method", ["epoch", "certificate"])
def test_signal_during_a_kernel_raises_keyboard_interrupt(kind, method):
    program = PROGRAM.format(kind=kind, method=method)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "interrupted\n"
