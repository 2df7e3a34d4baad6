"""Adapter for models in JAX."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import numpy as np

from regbayes._extras import import_extra
from regbayes._types import Floats, Reals
from regbayes.adapters.model import Function, OwnModel, RowBlock, call_encoder, call_in_turn


def from_jax(
    encoder: Function, generative_loss: Function, params: Any, *, weight: float = 1.0, prior: float | Function = 0.0
) -> JaxModel:
    """Create a joint model from JAX functions.

    Parameters
    ----------
    encoder : callable
        ``encoder(params, rows)`` returns features (n, K), or a tuple with the features first. It receives no labels,
        and the features of a sample must not depend on other samples. An optional argument ``key`` receives a random
        key during training (for example, for dropout) and None in predictions.
    generative_loss : callable
        ``generative_loss(params, rows, *encoded)`` returns the loss of each sample, shape (n,), such as its negative
        evidence lower bound. An optional argument ``key`` receives a random key for the block.
    params : pytree of arrays
        Initial parameters, all float32 or all float64. In float64, the line search can detect smaller improvements.
    weight : float, default=1.0
        Weight of the generative loss in the objective.
    prior : float or callable, default=0.0
        Precision of a Gaussian prior on all parameters, or a function of params that returns their negative log prior,
        a scalar.

    Returns
    -------
    JaxModel
        Joint model whose functions are compiled once per block shape.

    Examples
    --------
    >>> import numpy as np
    >>> from regbayes.adapters import from_jax
    >>> params = {"encode": np.ones((64, 5)), "decode": np.ones((5, 64))}
    >>> model = from_jax(
    ...     lambda p, rows: rows @ p["encode"], lambda p, rows, z: ((rows - z @ p["decode"]) ** 2).sum(1), params
    ... )
    >>> model.start.shape
    (640,)
    """
    return JaxModel(encoder, generative_loss, params, weight, prior)


class JaxModel(OwnModel):
    """A joint model in JAX; create it with `from_jax`."""

    def __init__(
        self, encoder: Function, generative_loss: Function, params: Any, weight: float, prior: float | Function
    ) -> None:
        import_extra("jax", "from_jax")
        import jax
        from jax.flatten_util import ravel_pytree

        super().__init__(encoder, generative_loss, weight, prior)
        params = jax.tree.map(jax.numpy.asarray, params)
        if not jax.tree.leaves(params):
            raise ValueError("`params` must have at least one array.")
        kinds = sorted({str(leaf.dtype) for leaf in jax.tree.leaves(params)})
        if len(kinds) > 1 or kinds[0] not in ("float32", "float64"):
            raise ValueError(f"`params` must all be of one type, float32 or float64; got {', '.join(kinds)}.")
        self._unravel: Any
        flat, self._unravel = ravel_pytree(params)
        self._start: Reals = np.asarray(flat)
        self._features = jax.jit(self._encode)
        self._forward = jax.jit(self._call)
        self._backward = jax.jit(jax.grad(self._total))
        if callable(prior):
            self._prior = jax.jit(jax.value_and_grad(self._call_prior))

    @property
    def start(self) -> Reals:
        """The initial parameters, shape (P,)."""
        return self._start

    def to_rows(self, X: Any) -> Any:
        """Convert rows to a JAX array, with floats in the type of the parameters."""
        import jax.numpy as jnp

        rows = jnp.asarray(X)
        return rows.astype(self._start.dtype) if jnp.issubdtype(rows.dtype, jnp.floating) else rows

    def features(self, rows: Any, params: Reals) -> Reals:
        """Return features without a random key."""
        return np.asarray(self._features(params, rows))

    def forward(self, block: RowBlock, params: Reals) -> tuple[Reals, Reals]:
        """Return features and losses as arrays."""
        features, losses = self._forward(params, block.rows, block.seed)
        return np.asarray(features), np.asarray(losses)

    def backward(self, block: RowBlock, params: Reals, by_features: Floats | None) -> Reals:
        """Return the gradient with respect to the parameters."""
        given = None if by_features is None else by_features.astype(params.dtype)
        weights = None if block.weights is None else block.weights.astype(params.dtype)
        return np.asarray(self._backward(params, block.rows, block.seed, given, weights))

    def call_prior(self, params: Reals) -> tuple[float, Reals]:
        """Return the value and gradient of the user's negative log prior."""
        value, gradient = self._prior(params)
        return float(value), np.asarray(gradient)

    def state_dict(self, params: Reals) -> dict[str, Any]:
        """Return the parameters as NumPy arrays by their path in the tree."""
        import jax

        places = jax.tree_util.tree_leaves_with_path(self._unravel(params))
        return {jax.tree_util.keystr(path) or "params": np.asarray(leaf) for path, leaf in places}

    def tree(self, params: Reals) -> Any:
        """Return parameters in the original tree, for use outside of regbayes."""
        return self._unravel(params)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the model by its constructor arguments."""
        made_of = (self.encoder, self.generative_loss, self.tree(self._start), self.weight, self.prior)
        return type(self), made_of

    def _encode(self, flat: Any, rows: Any) -> Any:
        key = {"key": None} if _takes_key(self.encoder) else {}
        return call_encoder(partial(self.encoder, self._unravel(flat), **key), rows)[0]

    def _call(self, flat: Any, rows: Any, seed: Any) -> tuple[Any, Any]:
        import jax

        params, key = self._unravel(flat), jax.random.key(seed)
        encode, loss = (
            partial(function, params, **({"key": own} if _takes_key(function) else {}))
            for function, own in ((self.encoder, jax.random.fold_in(key, 1)), (self.generative_loss, key))
        )
        return call_in_turn(encode, loss, rows)

    def _call_prior(self, flat: Any) -> Any:
        assert callable(self.prior)
        value = self.prior(self._unravel(flat))
        if np.shape(value) != ():
            raise ValueError(f"`prior` must return a scalar; got shape {np.shape(value)}.")
        return value

    def _total(self, flat: Any, rows: Any, seed: Any, by_features: Any, weights: Any) -> Any:
        features, losses = self._call(flat, rows, seed)
        total = self.weight * (losses if weights is None else weights * losses).sum()
        return total if by_features is None else total + (features * by_features).sum()


def _takes_key(function: Function) -> bool:
    """Whether a function has an argument ``key``."""
    try:
        return "key" in inspect.signature(function).parameters
    except ValueError:  # builtins may have no signature
        return False
