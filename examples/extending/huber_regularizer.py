"""
A regularizer of your own
=========================

The Huber penalty, for expert values with occasional outliers. :doc:`/adding_a_regularizer` explains it.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from regbayes import E, Gaussian, load, regularize
from regbayes.persistence import persistable
from regbayes.regularizers import EpsilonInsensitive, Regularizer, Ridge
from regbayes.testing import check_regularizer


# --- the class
@persistable(name="my_project.Huber")
class Huber(Regularizer):
    """``C sum_i h(x_i - target_i)``: h is ``d^2 / (2 delta)`` up to ``|d| = delta`` and ``|d| - delta / 2`` beyond."""

    def __init__(self, target, delta=1.0, C=1.0):
        self.target = np.atleast_1d(np.asarray(target, dtype=float))
        self.delta = delta
        self.C = C

    @property
    def size(self):
        return self.target.size

    def value(self, x):
        away = np.abs(np.asarray(x) - self.target)
        return float(self.C * np.sum(np.where(away <= self.delta, away**2 / (2 * self.delta), away - self.delta / 2)))

    def conjugate(self, u):
        u = np.atleast_1d(u)
        if np.any(np.abs(u) > self.C):
            return np.inf
        return float(u @ self.target + self.delta / (2 * self.C) * (u @ u))

    def prox(self, x, step=1.0):
        x = np.atleast_1d(x)
        away, reach = x - self.target, self.C * np.asarray(step)
        pull = np.clip(away * reach / (self.delta + reach), -reach, reach)
        return (x - pull).astype(np.result_type(x, np.float32))

    def clip_dual(self, u):
        return np.clip(u, -self.C, self.C)

    def slack(self, x):
        return -np.abs(np.asarray(x, dtype=float) - self.target)


# --- the check
check_regularizer(Huber([1.0], delta=0.5, C=2.0), size=1)
check_regularizer(Huber([1.0, -2.0, 0.0], delta=0.5, C=2.0), size=3)
print("check_regularizer: passed")


# --- the check detects an error
class Wrong(Huber):
    def conjugate(self, u):  # the factor 1/2 is missing
        u = np.atleast_1d(u)
        return np.inf if np.any(np.abs(u) > self.C) else float(u @ self.target + self.delta / self.C * (u @ u))


try:
    check_regularizer(Wrong([1.0], delta=0.5, C=2.0), size=1)
except AssertionError as error:
    print(str(error).split(" at ")[0])

# --- use: three effects, and an outlier in the last expert value
posterior = Gaussian(mean=[0.0, 0.0, 0.0], covariance=[1.0, 1.0, 1.0])
expert = [0.5, -0.3, 8.0]
effects = E(np.eye(3), name="effect")
penalties = {
    "Ridge": Ridge(expert, scale=0.5),
    "Huber": Huber(expert, delta=0.5, C=1.0),
    "EpsilonInsensitive": EpsilonInsensitive(expert, C=1.0),
}
print("\nexpert              " + "".join(f"{value:8.2f}" for value in expert))
for name, penalty in penalties.items():
    result = regularize(posterior, effects.regularized(penalty))
    print(f"{name:20s}" + "".join(f"{value:8.2f}" for value in result.after) + f"   gap {result.gap:.0e}")

# --- save and load
with TemporaryDirectory() as folder:
    path = Path(folder) / "effects.regbayes"
    regularize(posterior, effects.regularized(penalties["Huber"])).save(path)
    print(f"\nloaded: {load(path).regularizer.value([0.5, -0.3, 7.0]):.2f}")
