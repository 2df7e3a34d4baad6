"""What a fitted state says about rows."""

from __future__ import annotations

import numpy as np

from regbayes._types import Floats, Integers
from regbayes.models.mt_ilsvm.state import State

INPUT_GAIN = 3.0
"""How much larger inputs beside latent features are than 1 / (scale sqrt(D)) makes them: a latent feature sums many
columns, so a price C that suits it would all but switch single columns off."""


def latent_features(X: Floats, psi: Floats, input_scale: float) -> Floats:
    """Return ``E[Z]^T x / (scale sqrt(D))``, (n, K): of order one whatever the number of columns and their units."""
    return np.asarray(X @ _projection(psi, input_scale))


def _projection(psi: Floats, input_scale: float) -> Floats:
    return np.asarray(psi / (input_scale * np.sqrt(len(psi))))


def seen_features(X: Floats, psi: Floats, input_scale: float, include_inputs: bool, fit_intercept: bool) -> Floats:
    """Return the columns that outputs see, (n, P): latent features, inputs if included, the constant."""
    n_rows, (n_columns, n_features) = len(X), psi.shape
    seen = np.empty((n_rows, n_features + include_inputs * n_columns + fit_intercept))
    np.matmul(X, _projection(psi, input_scale), out=seen[:, :n_features])  # no copy in between
    if include_inputs:
        np.multiply(
            X, INPUT_GAIN / (input_scale * np.sqrt(n_columns)), out=seen[:, n_features : n_features + n_columns]
        )
    if fit_intercept:
        seen[:, -1] = 1.0
    return seen


def features(X: Floats, state: State) -> Floats:
    """Return the latent features of rows, (n, K)."""
    return latent_features(X, state.latent.psi, state.input_scale)


def decision(X: Floats, state: State, outputs: Integers | None = None) -> Floats:
    """Return the scores of rows.

    Parameters
    ----------
    X : (n, D)
    state : State
    outputs : (n,) or (n, c), optional
        One output per row, or several. -1 - g are the weights that group g shares, for a task that was not seen in
        training.

    Returns
    -------
    (n, M) scores of all outputs, or those asked for, in the shape of ``outputs``.
    """
    seen = seen_features(X, state.latent.psi, state.input_scale, state.include_inputs, state.fit_intercept)
    if outputs is None:
        return np.asarray(seen @ state.tasks.weights.T)
    # Negative indices count from the end, so group g's shared weights are put at -1 - g.
    table = np.concatenate([state.tasks.weights, state.tasks.shared[::-1]])
    columns = [np.einsum("np,np->n", seen, table[column]) for column in np.atleast_2d(outputs.T)]
    return np.asarray(columns[0] if outputs.ndim == 1 else np.stack(columns, axis=1))
