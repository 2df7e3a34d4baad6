"""The one place where a backend is chosen.

A backend is a module with the functions of ``Backend``; ``reference`` documents them and is the law.
"""

from __future__ import annotations

from typing import Literal, Protocol

from regbayes.kernels import cpu, reference
from regbayes.kernels.types import Floats, Reals, SweepGradient

BackendName = Literal["cpu", "reference"]


class Backend(Protocol):
    """The kernels every backend has; see the docstrings in ``reference``."""

    def sweep_features(
        self, theta: Reals, coupling: Floats, start: Reals, n_sweeps: int, out: Reals, n_threads: int = 1
    ) -> float:
        """Run mean-field sweeps over binary features."""

    def reverse_features(
        self,
        grad: Reals,
        psi: Reals,
        theta: Reals | None,
        coupling: Floats,
        start: Reals,
        n_sweeps: int,
        grad_theta: Reals,
        n_threads: int = 1,
    ) -> SweepGradient:
        """Differentiate through the sweeps."""


def get_backend(name: BackendName = "cpu") -> Backend:
    """Return the kernels of the named backend."""
    if name == "reference":
        return reference
    return cpu
