"""Rows of iLSVM on a device: the arrays of the rows' size stay there, and K-sized sums come to the host.

The model, its descent and its parameters are those of `model.py`; what is done with a block of rows is done by
`regbayes.kernels.arrays_features`. The structure search sees few rows, which come to the host (`DeviceRows.take`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from regbayes._types import Floats, Integers
from regbayes.joint.model import Inferred
from regbayes.kernels import arrays, arrays_features
from regbayes.kernels.arrays import DeviceArray, namespace_of, to_device, to_host
from regbayes.kernels.arrays_features import Swept
from regbayes.margins.device import DeviceColumns, DeviceHead, DeviceInputs
from regbayes.margins.targets import Classes
from regbayes.models.ilsvm.model import UNLABELED, Data, HostRows, Params, Pulled, Settings, State, Stats, Totals

BLOCK_ROWS = 1 << 20  # work on a block is launched operation by operation: few large ones


@dataclass(frozen=True)
class DeviceRows:
    """Centred rows on a device. What they are less their mean is algebra: there is no copy of the inputs."""

    X: DeviceArray  # (N, D), as they came
    mean: Floats  # (D,)
    weights: Floats | None = None  # (N,): how often each row counts; None: once
    max_threads: ClassVar[int] = 1  # one keeps a device busy
    join = staticmethod(arrays.join)

    @classmethod
    def centre(cls, X: DeviceArray, weights: Floats | None = None) -> DeviceRows:
        """Return rows less their own mean; that and the weights are on the host."""
        total = _add_rows(X, None if weights is None else to_device(weights, X))
        return cls(X, total / (float(X.shape[0]) if weights is None else float(weights.sum())), weights)

    def __len__(self) -> int:
        return int(self.X.shape[0])

    @property
    def n_inputs(self) -> int:
        """How many columns the rows have, D."""
        return int(self.X.shape[1])

    @cached_property
    def counts(self) -> DeviceArray | None:
        """How often each row counts, (N,), on the device; None: once."""
        return None if self.weights is None else to_device(self.weights, self.X)

    @cached_property
    def totals(self) -> Totals:
        """Sums over the rows as they are, on the host."""
        n_rows = float(len(self)) if self.weights is None else float(self.weights.sum())
        total = _add_rows(self.X, self.counts) - n_rows * self.mean
        squares = _square_inputs(self.X, self.mean, self.counts)
        return Totals(n_rows, total, squares, float(squares.sum()) / n_rows)

    def blocks(self) -> list[DeviceRows]:
        """Return the rows in blocks of fixed size."""
        return self._blocks

    @cached_property
    def _blocks(self) -> list[DeviceRows]:
        parts = arrays.pieces(len(self), BLOCK_ROWS)
        if len(parts) == 1:
            return [self]
        weights = [None if self.weights is None else self.weights[part] for part in parts]
        return [DeviceRows(self.X[part, :], self.mean, own) for part, own in zip(parts, weights, strict=True)]

    def take(self, rows: Integers | slice | None) -> HostRows:
        """Return some of the rows on the host, less the same mean; None: all of them."""
        chosen = np.arange(len(self))[slice(None) if rows is None else rows]
        weights = None if self.weights is None else self.weights[chosen]
        return HostRows(to_host(arrays.take_rows(self.X, chosen)).astype(np.float64), self.mean, weights)

    def project(self, directions: Floats, constant: Floats | None = None) -> DeviceArray:
        """Return the products of the rows with directions (K, D), plus a constant for each (K,), shape (N, K)."""
        above = -directions @ self.mean if constant is None else constant - directions @ self.mean
        products = to_device(directions, self.X) @ self.X.T
        products += to_device(above, self.X)[:, None]
        return products.T

    def combine(self, coefficients: DeviceArray) -> Floats:
        """Return sums of the rows with coefficients (N, K), shape (K, D). Weights do not enter."""
        products, sums = arrays.gather(
            arrays.multiply_rows(self.X.T, coefficients.T).T, arrays.sum_of(coefficients, axis=0)
        )
        return products - sums[:, None] * self.mean

    def weigh(self, values: DeviceArray) -> DeviceArray:
        """Return values of the rows (N, K), each as often as its row counts."""
        return values if self.counts is None else values * self.counts[:, None]

    def sweep(self, params: Params) -> Swept:
        """Sweep over the features of the rows, all (K, N)."""
        field = params.mean_field
        products = to_device(field.directions, self.X) @ self.X.T
        constant = field.constant - field.directions @ self.mean
        return arrays_features.sweep_features(products, constant, field.coupling, field.start[0], params.n_sweeps)

    def infer_features(self, params: Params, few: bool = False) -> DeviceArray:
        """Return the features of the rows, shape (N, K)."""
        return self.sweep(params).history[-1].T

    def infer(self, params: Params) -> Inferred[Stats]:
        """Infer the features of the rows, and sum what the rest of the model needs, as `HostRows.infer` does."""
        swept, field = self.sweep(params), params.mean_field
        sums = arrays_features.sum_features(swept, self.counts)
        explained = (sums.by_theta - float(sums.counts @ field.constant)) / field.precision
        totals, second = self.totals, sums.gram
        squared_norm = float(np.sum(totals.squares / field.ratios))
        np.fill_diagonal(second, sums.counts)  # z z = z
        stats = Stats(
            totals.n_rows, squared_norm, totals.rows, sums.counts, sums.counts, second, explained, sums.entropy
        )
        return Inferred(swept.history[-1].T, stats, swept.history[:-1])

    def pull_back(
        self, params: Params, weight: float, inferred: Inferred[Stats], gradient: DeviceArray | None
    ) -> Pulled:
        """Differentiate through the sweeps, as `HostRows.pull_back` does."""
        stats, field = inferred.stats, params.mean_field
        history = [*inferred.cache, inferred.features.T]
        given = None if gradient is None else gradient.T
        left, by_coupling, left_sum = arrays_features.reverse_features(
            given, history, field.coupling, field.start[0], weight, self.counts
        )
        cross, coupled, summed = arrays.gather(arrays.multiply_rows(self.X.T, left).T, by_coupling, left_sum)
        return Pulled(coupled, summed + weight * stats.counts, cross - summed[:, None] * self.mean)

    def score(self, state: State, features: DeviceArray) -> DeviceArray:
        """Return the score of each class for the rows, whose features are given, shape (N, classes)."""
        head = state.head
        assert head is not None
        inputs = DeviceInputs(self.X, self.mean, state.input_scale) if state.input_scale else None
        return DeviceColumns(features.T, head.centre, inputs, head.fit_intercept).scores(head.weights).T

    def choose(self, state: State, features: DeviceArray) -> Integers:
        """Return the class with the highest score for each of the rows, on the host, shape (N,)."""
        scores = self.score(state, features)
        return to_host(namespace_of(scores).argmax(scores, axis=1))

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
        """Return a lower bound on each row's log-density, shape (N,), as `HostRows.bound` does."""
        xp, psi = namespace_of(self.X), self.infer_features(params)
        expected = params.mean_field.expected
        rest, entropy = 1.0 - psi, xp.sum(arrays.find_entropy(xp)(psi), axis=1)
        away = self.X - reconstruct(psi, params, self.mean)
        away = away if params.noise_ratios is None else away / to_device(np.sqrt(params.noise_ratios), psi)
        squares = np.diag(params.mean_field.coupling) / params.mean_field.precision
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


def _square_inputs(X: DeviceArray, mean: Floats, counts: DeviceArray | None) -> Floats:
    """Return the sum of the squares of each input less a mean, each row as often as it counts, (D,)."""
    about, found = to_device(mean, X), []
    for rows in arrays.pieces(X.shape[0], max(1, arrays.ROOM // X.shape[1])):
        away = X[rows, :] - about
        squares = away * away
        found.append(arrays.sum_of(squares if counts is None else squares * counts[rows][:, None], axis=0))
    return np.add.reduce(arrays.gather(*found))
