"""MT-iLSVM over rows on a device: features, targets and scores stay there, moments and weights come to the host."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from regbayes._types import Flags, Floats, Integers
from regbayes.engine import Executor
from regbayes.joint.model import Inferred
from regbayes.kernels import arrays
from regbayes.kernels.arrays import DeviceArray, to_device, to_host
from regbayes.margins.design import Design, Inputs
from regbayes.models.mt_ilsvm.model import (
    ByFeatures,
    Moments,
    MultiTaskModel,
    NoSums,
    Posterior,
    State,
    input_factor,
)

BLOCK_ROWS = 1 << 20


@dataclass(frozen=True)
class DeviceTaskModel(MultiTaskModel):
    """The model, whose rows are blocks of X on a device."""

    def infer(self, rows: DeviceArray, params: Posterior) -> Inferred[NoSums]:
        """Return the features of rows, (n, K), in memory (K, n)."""
        psi = params.latent.psi / (self.input_scale * np.sqrt(rows.shape[1]))
        return Inferred((to_device(psi.T, rows) @ rows.T).T, NoSums())

    def pull_back(
        self, rows: DeviceArray, params: Posterior, inferred: Inferred[NoSums], gradient: DeviceArray | None
    ) -> ByFeatures:
        """Return what a gradient by features is by the probabilities."""
        if gradient is None:
            return ByFeatures(np.zeros_like(params.latent.logits))
        scale = self.input_scale * np.sqrt(rows.shape[1])
        return ByFeatures(arrays.gather(arrays.multiply_rows(rows.T, gradient.T))[0] / scale)


@dataclass(frozen=True)
class DeviceMoments(Moments):
    """The moments of rows on a device: products with them are taken there."""

    like: DeviceArray = None  # of the rows

    def multiply(self, columns: Floats) -> Floats:
        """Return ``X^T X`` times columns (D, K), on the host."""
        return arrays.gather(self._there @ to_device(columns, self._there))[0]

    @cached_property
    def _there(self) -> DeviceArray:
        return to_device(self.gram, self.like, arrays.namespace_of(self.like).float64)


@dataclass(frozen=True)
class DeviceRows:
    """Centred inputs of rows on a device."""

    X: DeviceArray  # (N, D)
    model: ClassVar[type[MultiTaskModel]] = DeviceTaskModel
    in_turn: ClassVar[bool] = True  # one block keeps a device busy

    def sum_moments(self, sample_weight: Floats | None, executor: Executor | None = None) -> DeviceMoments:
        """Return the moments of the rows."""
        X = self.X
        weighed = X.T if sample_weight is None else X.T * to_device(sample_weight, X)
        n_rows = float(X.shape[0]) if sample_weight is None else float(sample_weight.sum())
        return DeviceMoments(arrays.gather(arrays.multiply_rows(weighed, X.T))[0], n_rows, X[:1, :1])

    def keep(self, wanted: Flags) -> DeviceRows:
        """Return some of the rows."""
        return DeviceRows(arrays.take_rows(self.X, np.flatnonzero(wanted)))

    def blocks(self) -> list[DeviceArray]:
        """Return the rows in blocks of fixed size."""
        return [self.X[rows, :] for rows in arrays.pieces(self.X.shape[0], BLOCK_ROWS)]

    def infer(self, state: State) -> DeviceArray:
        """Return the latent features of the rows, (n, K)."""
        return self.X @ to_device(state.latent.psi / (state.input_scale * np.sqrt(self.X.shape[1])), self.X)

    def decide(self, state: State, outputs: Integers | None = None) -> Floats:
        """Return the scores of the rows on the host; see `regbayes.models.mt_ilsvm.model.decision`."""
        X, table = self.X, state.tasks.weights
        if outputs is not None:
            table = np.concatenate([table, state.tasks.shared[::-1]])
        psi = state.latent.psi / (state.input_scale * np.sqrt(X.shape[1]))
        found: list[Any] = []
        for some in self.blocks():
            inputs = None
            if state.include_inputs:
                factor = float(input_factor(X.shape[1], state.input_scale))
                inputs = Inputs(some, factor=factor)
            features = (to_device(psi.T, X) @ some.T).T
            design = Design(features, inputs=inputs, fit_intercept=state.fit_intercept)
            found.append(to_host(design.scores(table).T))
        scores = np.asarray(np.concatenate(found), dtype=np.float64)
        if outputs is None:
            return scores
        wanted = outputs if outputs.ndim == 2 else outputs[:, None]
        # Negative numbers count from the end: group g's shared weights are at -1 - g.
        taken = np.take_along_axis(scores, np.where(wanted < 0, wanted + len(table), wanted), axis=1)
        return taken.reshape(outputs.shape)
