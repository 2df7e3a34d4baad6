"""Joint models in JAX."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from regbayes._extras import import_extra
from regbayes._types import Floats, Reals
from regbayes.adapters.model import OwnModel, RowBlock, call_encoder, call_in_turn


def from_jax(
    encoder: Callable[..., Any],
    generative_loss: Callable[..., Any],
    params: Any,
    *,
    weight: float = 1.0,
    prior: float | Callable[..., Any] = 0.0,
) -> JaxModel:
    """Make a joint model of code in JAX.

    Parameters
    ----------
    encoder : callable
        ``encoder(params, rows)`` returns features (n, K), or a tuple whose first item they are. It gets no labels, and
        the features of a sample must not depend on other samples. If it has an argument ``key``, that is a random key
        while parameters are learned (for dropout, say) and None in predictions.
    generative_loss : callable
        ``generative_loss(params, rows, *encoded)`` returns the cost of explaining each sample, shape (n,), such as
        minus its evidence lower bound. If it has an argument ``key``, that is a random key of the block's own.
    params : pytree of arrays
        Parameters to start from, all float32 or all float64. In float64 the line search sees smaller gains.
    weight : float, default=1.0
        Weight of the generative loss in the objective.
    prior : float or callable, default=0.0
        Precision of a Gaussian prior of all parameters; or a function of params that returns minus the logarithm of
        their prior, a scalar.

    Returns
    -------
    JaxModel
        Its functions are compiled once for each shape of a block.

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
    """A joint model in JAX; made by `from_jax`."""

    def __init__(
        self,
        encoder: Callable[..., Any],
        generative_loss: Callable[..., Any],
        params: Any,
        weight: float,
        prior: float | Callable[..., Any],
    ) -> None:
        import_extra("jax", "from_jax", "numpyro")
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
        """The parameters that were given, shape (P,)."""
        return self._start

    def to_rows(self, X: Any) -> Any:
        """Return rows as an array of JAX, numbers with a point in the parameters' type."""
        import jax.numpy as jnp

        rows = jnp.asarray(X)
        return rows.astype(self._start.dtype) if jnp.issubdtype(rows.dtype, jnp.floating) else rows

    def features(self, rows: Any, params: Reals) -> Reals:
        """Return features without a random key."""
        return np.asarray(self._features(params, rows))

    def forward(self, block: RowBlock, params: Reals) -> tuple[Reals, Reals]:
        """Return features and losses, as arrays."""
        features, losses = self._forward(params, block.rows, block.seed)
        return np.asarray(features), np.asarray(losses)

    def backward(self, block: RowBlock, params: Reals, by_features: Floats | None) -> Reals:
        """Return the gradient by the parameters."""
        given = None if by_features is None else by_features.astype(params.dtype)
        weights = None if block.weights is None else block.weights.astype(params.dtype)
        return np.asarray(self._backward(params, block.rows, block.seed, given, weights))

    def call_prior(self, params: Reals) -> tuple[float, Reals]:
        """Return the value of the user's function, and its gradient."""
        value, gradient = self._prior(params)
        return float(value), np.asarray(gradient)

    def state_dict(self, params: Reals) -> dict[str, Any]:
        """Return the parameters by their places in the tree, as NumPy arrays."""
        import jax

        places = jax.tree_util.tree_leaves_with_path(self._unravel(params))
        return {jax.tree_util.keystr(path) or "params": np.asarray(leaf) for path, leaf in places}

    def tree(self, params: Reals) -> Any:
        """Return parameters in the tree that was given, for use outside of regbayes."""
        return self._unravel(params)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what it is made of, to pickle it."""
        made_of = (self.encoder, self.generative_loss, self.tree(self._start), self.weight, self.prior)
        return type(self), made_of

    def _encode(self, flat: Any, rows: Any) -> Any:
        key = {"key": None} if _takes_key(self.encoder) else {}
        leading = "params, key=None (as in predictions) and " if key else "params and "
        return call_encoder(partial(self.encoder, self._unravel(flat), **key), rows, leading)[0]

    def _call(self, flat: Any, rows: Any, seed: Any) -> tuple[Any, Any]:
        import jax

        params, key = self._unravel(flat), jax.random.key(seed)
        encode, loss = (
            partial(function, params, **({"key": own} if _takes_key(function) else {}))
            for function, own in ((self.encoder, jax.random.fold_in(key, 1)), (self.generative_loss, key))
        )
        return call_in_turn(encode, loss, rows, "params, ")

    def _call_prior(self, flat: Any) -> Any:
        assert callable(self.prior)
        try:
            value = self.prior(self._unravel(flat))
        except Exception as error:
            error.add_note("Raised by prior, a function of params.")
            raise
        if np.shape(value) != ():
            raise ValueError(f"`prior` must return a scalar; got shape {np.shape(value)}.")
        return value

    def _total(self, flat: Any, rows: Any, seed: Any, by_features: Any, weights: Any) -> Any:
        features, losses = self._call(flat, rows, seed)
        total = self.weight * (losses if weights is None else weights * losses).sum()
        return total if by_features is None else total + (features * by_features).sum()


def _takes_key(function: Callable[..., Any]) -> bool:
    """Whether a function has an argument for a random key."""
    try:
        return "key" in inspect.signature(function).parameters
    except ValueError:  # it has no signature
        return False
