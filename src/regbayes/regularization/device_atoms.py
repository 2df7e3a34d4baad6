"""Weighted atoms on a device: the log-partition of features that lie there, by `regbayes.kernels.arrays_atoms`.

The dual solver looks at atoms through sums over them, and they are taken where the features are. What is rarely needed,
faces of the support and problems that stall, asks for the features themselves: then they come to the host.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from regbayes._types import Floats, Indices
from regbayes.kernels import arrays, arrays_atoms
from regbayes.kernels.arrays import DeviceArray, integers_to_device, namespace_of, to_device, to_host
from regbayes.kernels.arrays_atoms import score_atoms
from regbayes.regularization.log_partition import FEW, WeightedAtoms


class DeviceAtoms(WeightedAtoms):
    """Atoms with log-weights, whose features lie on a device; the weights are known on the host too.

    Parameters
    ----------
    held : array of shape (n, m)
    log_weights : array of shape (n,)
        Normalised, on the host; ``-inf`` marks atoms outside the support, which are left out.
    """

    def __init__(self, held: DeviceArray, log_weights: Floats) -> None:
        self.n_atoms = len(log_weights)
        self.support: Indices | None = None
        xp = namespace_of(held)
        if not np.all(log_weights > -np.inf):
            self.support = np.flatnonzero(log_weights > -np.inf)
            held, log_weights = xp.take(held, integers_to_device(self.support, held), axis=0), log_weights[self.support]
        self.held, self.log_weights = held, log_weights
        self._logs = to_device(log_weights, held, xp.float64)
        self._settle(np.asarray(to_host(held[int(np.argmax(log_weights)), :]), dtype=np.float64))

    @cached_property
    def features(self) -> Any:  # type: ignore[override]
        """The features on the host, (n, m), in double precision."""
        return np.ascontiguousarray(to_host(self.held), dtype=np.float64)

    def _precision(self) -> float:
        xp = namespace_of(self.held)
        return float(xp.finfo(self.held.dtype).eps)

    def _divide(self) -> None:
        """Sums over all atoms are taken at once, second moments with them where there are few features."""
        self.fused = self.held.shape[1] <= FEW

    def _ranges(self) -> tuple[Floats, Floats]:
        return arrays.find_ranges(self.held)

    def _moments(self, phi: Floats, second: bool) -> tuple[float, Floats, Floats]:
        sums = arrays_atoms.sum_atoms(self.held, self._logs, phi, self._reference, second)
        away, covariance = sums.first / sums.total, np.empty((0, 0))
        if sums.second is not None:
            covariance = sums.second / sums.total - away[:, None] * away
        return sums.top + float(np.log(sums.total)), self._reference + away, covariance

    def span(self, direction: Floats) -> float:
        """Return how far a combination of the features reaches, from its smallest value to its largest."""
        return self._range(score_atoms(self.held, None, direction))

    def log_weight_range(self, phi: Floats) -> float:
        """Return by how much the largest log-weight of the supported atoms under a tilt is above the smallest."""
        return self._range(score_atoms(self.held, self._logs, phi))

    def living_variances(self, phi: Floats, nats: float) -> Floats:
        """Return the variances of features under a tilt, over the atoms that are at most so far behind the first."""
        xp, scores = namespace_of(self.held), score_atoms(self.held, self._logs, phi)
        logs = xp.where(scores > xp.max(scores) - nats, self._logs, xp.full_like(self._logs, -np.inf))
        about = self._reference
        for second in (False, True):  # about the mean of those that live: another may be far out
            sums = arrays_atoms.sum_atoms(self.held, logs, phi, about, second)
            about = about + sums.first / sums.total
        assert sums.second is not None
        return np.asarray(np.diag(sums.second) / sums.total - np.square(sums.first / sums.total))

    @staticmethod
    def _range(scores: DeviceArray) -> float:
        lowest, highest = arrays.find_ranges(scores[:, None])
        return float(highest[0] - lowest[0])

    def _score(self, phi: Floats) -> Floats:
        return np.asarray(to_host(score_atoms(self.held, None, phi)), dtype=np.float64)

    def change_units(self, center: Floats | float, scale: Floats | float) -> WeightedAtoms:
        """Return the atoms with features ``(psi - center) / scale``."""
        m = self.held.shape[1]
        about, unit = (to_device(np.broadcast_to(by, (m,)), self._logs) for by in (center, scale))
        xp = namespace_of(self.held)  # differences of features that agree in most digits need those that are left
        return DeviceAtoms((xp.astype(self.held, xp.float64) - about) / unit, self.log_weights)

    def mean_about(self, center: Floats) -> Floats:
        """Return the expectation of the features less some numbers."""
        sums = arrays_atoms.sum_atoms(self.held, self._logs, np.zeros(len(center)), center, False)
        return sums.first / sums.total
