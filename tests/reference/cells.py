"""Squared losses of a matrix or a list of cells in plain NumPy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from regbayes._types import Floats
from regbayes.kernels.cells import CellForms, CellSums, Listed


def reference_evaluate(features: Floats, weights: Floats, constant: Floats, forms: CellForms, phi: Floats) -> CellSums:
    """`evaluate` in plain NumPy."""
    away = -(features @ weights.T + constant) - forms.linear
    away = away - np.clip(away, -forms.absolute, forms.absolute)
    away = away * (forms.side != 0) if forms.is_free else forms.side * np.maximum(forms.side * away, 0.0)
    phi[...] = forms.stiffness * away
    return CellSums(0.5 * float(np.vdot(phi, away)), phi.T @ features, phi.sum(axis=0))


def reference_add_curvature(features: Floats, weights: Floats, forms: CellForms, found: Floats) -> None:
    """`add_curvature` in plain NumPy."""
    phi = np.empty((len(features), len(weights)))
    unit = forms._replace(stiffness=np.ones((1, 1)))
    reference_evaluate(features, weights, np.zeros(len(weights)), unit, phi)
    curved = (phi != 0.0) | (forms.is_free & (forms.absolute == 0.0) & (forms.side != 0))
    bent = np.broadcast_to(forms.stiffness, phi.shape) * curved
    for output, own in enumerate(bent.T):
        found[output] += (features * own[:, None]).T @ features


def reference_evaluate_list(
    features: Floats, weights: Floats, constant: Floats, forms: CellForms, listed: Listed, phi: Floats
) -> CellSums:
    """`evaluate_list` in plain NumPy."""
    away, output_of = _shrink(features, weights, constant, forms, listed)
    phi[...] = forms.stiffness * away
    pulled, totals = np.zeros(weights.shape), np.zeros(len(weights))
    np.add.at(pulled, output_of, phi * features[listed.rows])
    np.add.at(totals, output_of, phi[:, 0])
    return CellSums(0.5 * float(np.vdot(phi, away)), pulled, totals)


def reference_add_list_curvature(
    features: Floats, weights: Floats, forms: CellForms, listed: Listed, found: Floats
) -> None:
    """`add_list_curvature` in plain NumPy."""
    away, output_of = _shrink(features, weights, np.zeros(len(weights)), forms, listed)
    curved = (away != 0.0) | (forms.is_free & (forms.absolute == 0.0) & (forms.side != 0))
    seen = features[listed.rows]
    np.add.at(found, output_of, (forms.stiffness * curved)[:, :, None] * seen[:, :, None] * seen[:, None, :])


def _shrink(
    features: Floats, weights: Floats, constant: Floats, forms: CellForms, listed: Listed
) -> tuple[Floats, NDArray[np.int64]]:
    output_of = np.repeat(listed.outputs, np.diff(listed.edges))
    scores = np.einsum("ck,ck->c", features[listed.rows], weights[output_of]) + constant[output_of]
    away = -scores[:, None] - forms.linear
    away = away - np.clip(away, -forms.absolute, forms.absolute)
    return away * (forms.side != 0) if forms.is_free else forms.side * np.maximum(forms.side * away, 0.0), output_of
