"""Squared hinges and tubes of rows that have every output, written as plainly as they are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from regbayes.margins.newton import BlockSums, _ease
from regbayes.regularization.dual_forms import BoxDual


@dataclass(frozen=True)
class RowBoxes:
    """Rows that have every output, judged one by one: what blocks of cells and rows on a device are compared with."""

    features: Any  # (n, d), an array or Columns
    form: BoxDual  # conjugate of the losses of *minus* the scores, row by row; every ridge is positive
    mixes: ClassVar[bool] = False

    def scores(self, weights):
        is_array = isinstance(self.features, np.ndarray)
        return self.features @ weights.T if is_array else self.features.scores(weights)

    def combine(self, coefficients):
        is_array = isinstance(self.features, np.ndarray)
        return coefficients.T @ self.features if is_array else self.features.combine(coefficients)

    def multipliers(self, weights):
        scores = self.scores(weights)
        return self.form.derivatives(-scores.ravel()).reshape(scores.shape)

    def sums(self, weights):
        form, scores = self.form, self.scores(weights)
        phi, away = form.derivatives(-scores.ravel()), -scores.ravel() - form.linear
        loss = float(phi @ away - form.absolute @ np.abs(phi) - 0.5 * form.ridge @ np.square(phi))
        return BlockSums(loss, 0.0, 0.0, self.combine(phi.reshape(scores.shape)))

    def curvature(self, weights):
        features = self.features if isinstance(self.features, np.ndarray) else self.features.array()
        bent = self.form.curvatures(-(features @ weights.T).ravel()).reshape(-1, len(weights))
        return np.einsum("ni,nt,nj->tij", features, bent, features)

    def product(self, weights, direction):
        bent = self.form.curvatures(-self.scores(weights).ravel()).reshape(-1, len(weights))
        return self.combine(bent * self.scores(direction))

    def ease(self):
        return [replace(self, form=form) for form in _ease(self.form)]
