"""Rows of iLSVM on a device: the arrays of the rows' size stay there, and K-sized sums come to the host.

The model, its descent and its parameters are those of `model.py`; what is done with a block of rows is done by
`regbayes.kernels.arrays`. The start and the warm-up see few rows, which come to the host (`DeviceRows.take`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from scipy.special import expit

from regbayes._types import Floats, Integers
from regbayes.joint.model import Inferred
from regbayes.kernels import arrays
from regbayes.kernels.arrays import DeviceArray, namespace_of, to_device, to_host
from regbayes.margins.device import DeviceColumns, DeviceHead, DeviceInputs
from regbayes.margins.head import LinearHead
from regbayes.margins.targets import Classes
from regbayes.models.ilsvm.model import UNLABELED, Data, Params, Pulled, Rows, Settings, Stats
from regbayes.priors.indian_buffet import stick_expectations

BLOCK_ROWS = 1 << 20  # work on a block is launched operation by operation: few large ones


@dataclass(frozen=True)
class DeviceRows(Rows):
    """Centred rows on a device. What they are less their mean is algebra: there is no copy of the inputs."""

    X: Any  # (N, D), as they came
    squared_norms: Any  # (): of all centred rows together, each as often as it counts
    on_device: ClassVar[bool] = True

    @classmethod
    def centre(cls, X: DeviceArray, mean: Any = None, weights: Floats | None = None) -> DeviceRows:
        """Return rows less a mean: their own, unless it is given. Weights are on the host."""
        counts = None if weights is None else to_device(weights, X)
        mean = None if mean is None else np.asarray(to_host(mean), dtype=np.float64)
        if mean is None:
            total = _add_rows(X, counts)
            mean = total / (float(X.shape[0]) if weights is None else float(weights.sum()))
        return cls(X, mean, _square_rows(X, mean, counts), weights)

    def __len__(self) -> int:
        return int(self.X.shape[0])

    @cached_property
    def counts(self) -> DeviceArray | None:
        """How often each row counts, (N,), on the device; None: once."""
        return None if self.weights is None else to_device(self.weights, self.X)

    @property
    def mean_square(self) -> float:
        """Mean squared length of the rows."""
        return float(self.squared_norms) / self.total_weight

    @cached_property
    def total(self) -> Floats:
        """The sum of the centred rows, each as often as it counts, shape (D,)."""
        return _add_rows(self.X, self.counts) - self.total_weight * self.mean

    def blocks(self) -> list[Rows]:
        """Return the rows in blocks of fixed size."""
        return self._blocks

    @cached_property
    def _blocks(self) -> list[Rows]:
        parts = arrays.pieces(len(self), BLOCK_ROWS)
        if len(parts) == 1:
            return [self]
        weights = [None if self.weights is None else self.weights[part] for part in parts]
        return [DeviceRows.centre(self.X[part, :], self.mean, own) for part, own in zip(parts, weights, strict=True)]

    def take(self, rows: Integers | slice) -> Rows:
        """Return some of the rows on the host, less the same mean."""
        chosen = np.arange(len(self))[rows]
        some = namespace_of(self.X).take(self.X, arrays.integers_to_device(chosen, self.X), axis=0)
        weights = None if self.weights is None else self.weights[chosen]
        return Rows.centre(np.asarray(to_host(some), dtype=np.float64), self.mean, weights)

    def array(self) -> DeviceArray:
        """Return the centred rows themselves, shape (N, D)."""
        return self.X - to_device(self.mean, self.X)

    def project_on(self, params: Params) -> DeviceArray:
        """Return theta, the part of the logits that does not depend on other features, (K, N)."""
        directions = params.precision * params.loadings
        theta = to_device(directions, self.X) @ self.X.T
        theta += to_device(params.constant_logits - directions @ self.mean, self.X)[:, None]
        return theta

    def sweep(self, params: Params, theta: DeviceArray) -> list[DeviceArray]:
        """Return the features after each sweep, (K, N)."""
        return arrays.sweep_features(theta, params.coupling, expit(params.log_odds), params.n_sweeps)

    def infer_features(self, params: Params) -> DeviceArray:
        """Return the features of the rows, shape (N, K): what prediction needs."""
        found = [block.sweep(params, block.project_on(params))[-1].T for block in self.blocks()]  # type: ignore[attr-defined]
        return arrays.join(found)

    def infer(self, params: Params) -> Inferred[Stats]:
        """Infer the features of the rows, and sum what the rest of the model needs; `BinaryFeatures.infer` there."""
        theta = self.project_on(params)
        history = self.sweep(params, theta)
        sums = arrays.sum_features(history[-1], theta, self.counts)
        explained = (sums.by_theta - float(sums.counts @ params.constant_logits)) / params.precision
        stats = Stats(
            self.total_weight,
            float(self.squared_norms),
            self.total,
            sums.counts,
            sums.gram,
            explained,
            sums.entropy,
        )
        return Inferred(history[-1].T, stats, history[:-1])

    def pull_back(
        self, params: Params, weight: float, inferred: Inferred[Stats], gradient: DeviceArray | None
    ) -> Pulled:
        """Differentiate through the sweeps; `BinaryFeatures.pull_back` there, whose weight r is given."""
        psi, coupling, start = inferred.features.T, params.coupling, expit(params.log_odds)
        below = np.tril(coupling, -1)
        if inferred.cache:
            own = to_device(weight * below.T, psi) @ (psi - inferred.cache[-1])
        else:
            own = to_device(weight * below.T, psi) @ psi
            own -= to_device(weight * (start @ below), psi)[:, None]
        if self.counts is not None:
            own *= self.counts
        if gradient is not None:
            own += gradient.T
        by_theta, by_coupling, theta_sum = arrays.reverse_features(own, [*inferred.cache, psi], coupling, start)
        acting = psi if self.counts is None else psi * self.counts
        left = by_theta - weight * acting
        products, sums = arrays.multiply_rows(left, self.X.T), arrays.sum_of(left, axis=1)
        found = arrays.gather(by_coupling, theta_sum, products, sums)
        return Pulled(found[0], found[1], found[2] - found[3][:, None] * self.mean)

    def scores(self, head: LinearHead, psi: DeviceArray, input_scale: float) -> DeviceArray:
        """Return the score of each class for the rows, whose features are given, shape (N, classes)."""
        inputs = DeviceInputs(self.X, self.mean, input_scale) if input_scale else None
        return DeviceColumns(psi.T, head.centre, inputs, head.fit_intercept).scores(head.weights).T

    def build_head(self, data: Data, settings: Settings) -> DeviceHead:
        """Return the head of the labelled rows."""
        labeled = data.labels != UNLABELED
        classes = Classes(np.where(labeled, data.labels, 0), data.cost, settings.C * np.where(labeled, data.weights, 0))
        counts = self.weights
        if not labeled.all():
            counts = labeled.astype(np.float64) if counts is None else counts * labeled
        return DeviceHead(
            classes,
            settings.squared,
            settings.fit_intercept,
            inputs=DeviceInputs(self.X, self.mean, settings.input_scale) if settings.input_scale else None,
            row_weights=counts,
            in_blocks=True,
            like=self.X,
            one_vs_rest=settings.one_vs_rest,
        )

    def bound(self, params: Params) -> DeviceArray:
        """Return a lower bound on each row's log-density, shape (N,); `bound_rows` is the law."""
        xp, psi = namespace_of(self.X), self.infer_features(params)
        expected = stick_expectations(params.sticks)
        squares = np.einsum("kd,kd->k", params.loadings, params.loadings)
        rest, entropy_of = 1.0 - psi, arrays.find_entropy(xp)
        entropy = xp.sum(entropy_of(psi) + entropy_of(rest), axis=1)
        away = self.X - reconstruct(psi, params, self.mean)
        residual = xp.sum(away * away, axis=1) + (psi * rest) @ to_device(squares, psi)
        residual += self.n_inputs * (psi @ to_device(params.variances, psi))
        prior = psi @ to_device(expected.log_use, psi) + rest @ to_device(expected.log_rest, psi)
        normaliser = 0.5 * self.n_inputs * np.log(2.0 * np.pi * params.noise_variance)
        return entropy + prior - (0.5 / params.noise_variance) * residual - float(normaliser)


def reconstruct(psi: DeviceArray, params: Params, mean: Floats) -> DeviceArray:
    """Return the expected rows given their features on a device, (n, D), with the mean of the rows."""
    return psi @ to_device(params.loadings, psi) + to_device(params.offset + mean, psi)


def _add_rows(X: DeviceArray, counts: DeviceArray | None) -> Floats:
    """Return the sum of rows, each as often as it counts, (D,)."""
    if counts is None:
        return arrays.gather(arrays.sum_of(X, axis=0))[0]
    xp, found = namespace_of(X), []
    for rows in arrays.pieces(X.shape[0], max(1, arrays.ROOM // X.shape[1])):
        weights = xp.astype(counts[rows], xp.float64, copy=False)
        found.append(weights @ xp.astype(X[rows, :], xp.float64, copy=False))
    return np.add.reduce(arrays.gather(*found))


def _square_rows(X: DeviceArray, mean: Floats, counts: DeviceArray | None) -> float:
    """Return the sum of the squared lengths of rows less a mean, each as often as it counts."""
    about, found = to_device(mean, X), []
    for rows in arrays.pieces(X.shape[0], max(1, arrays.ROOM // X.shape[1])):
        away = X[rows, :] - about
        squares = away * away
        found.append(arrays.sum_of(squares if counts is None else squares * counts[rows][:, None]))
    return float(np.sum(arrays.gather(*found)))
