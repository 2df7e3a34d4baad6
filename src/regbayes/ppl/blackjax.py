"""Models given as JAX log-densities, sampled by BlackJAX."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import numpy as np

from regbayes._extras import import_extra
from regbayes._types import Floats
from regbayes.ppl.jax_chains import JAXModel, Kernel
from regbayes.ppl.nuts import scatter
from regbayes.ppl.tracing import trace_features


@final
class BlackJAXModel(JAXModel):
    """A log-density in JAX for `resample`, sampled by BlackJAX's NUTS.

    Parameters
    ----------
    log_density : callable
        Maps a position (an unconstrained array or dictionary of arrays) to its log-density up to a constant.
    initial_position : array or dictionary of arrays
        A position with finite density. Chains of the first run start within a distance of 2 in each coordinate.
    variables : callable, default=None
        Maps a position to a dictionary of arrays for the features. By default these are the arrays of the position,
        named ``x`` if there is only one array.

    Examples
    --------
    >>> from regbayes import E, resample
    >>> from regbayes.ppl import BlackJAXModel
    >>> model = BlackJAXModel(lambda x: -0.5 * x**2, 0.0)
    >>> resample(model, E("x") == 2).after.round(3)
    array([2.])
    """

    def __init__(
        self,
        log_density: Callable[[Any], Any],
        initial_position: Any,
        variables: Callable[[Any], Mapping[str, Any]] | None = None,
    ) -> None:
        for package in ("jax", "blackjax"):
            import_extra(package, "BlackJAXModel")
        import jax
        from jax.flatten_util import ravel_pytree

        if not callable(log_density):
            raise TypeError(f"log_density must be a function of a position, got {type(log_density).__name__}")
        super().__init__()
        self.function, self.variables = log_density, variables
        position = jax.tree.map(
            lambda leaf: jax.numpy.asarray(leaf, dtype=jax.numpy.result_type(float)), initial_position
        )
        flat, self._unravel = ravel_pytree(position)
        self._first = np.asarray(flat, dtype=np.float64)
        found = jax.numpy.asarray(log_density(position))
        if found.shape:
            raise ValueError(f"log_density must return one number, got shape {found.shape}: sum over its terms")
        value = float(found)
        if not np.isfinite(value):
            raise ValueError(f"the log-density is {value} at the initial position; it must be finite there")
        self._named = isinstance(position, dict)
        own = None if variables is None else variables(position)
        if own is not None and not isinstance(own, Mapping):
            raise TypeError(f"variables must return a dictionary of arrays by name, got {type(own).__name__}")

    def _density(self, position: Any) -> Any:
        return self.function(self._unravel(position))

    def _constrain(self, position: Any) -> Mapping[str, Any]:
        own = self._unravel(position)
        if self.variables is not None:
            return self.variables(own)
        return own if self._named else {"x": own}

    def starts(self, seed: int, n: int) -> Floats:
        """Return positions near the initial one with finite density."""
        import jax

        density = jax.vmap(self._density)
        return scatter(self._first, 2.0, lambda tried: np.asarray(density(jax.numpy.asarray(tried))), seed, n)

    def _kernel(self) -> Kernel:
        import blackjax

        kernel = blackjax.nuts.build_kernel()

        def step(key: Any, state: Any, density: Callable[..., Any], size: Any, covariance: Any) -> Any:
            state, info = kernel(key, state, density, size, covariance)
            return state, {
                "acceptance_rate": info.acceptance_rate,
                "diverging": info.is_divergent,
                "n_steps": info.num_integration_steps,
                "energy": info.energy,
                "lp": state.logdensity,
            }

        return Kernel(blackjax.nuts.init, step, lambda state: state.position)

    def add_factor(self, features: Sequence[Any], multipliers: Floats) -> Callable[[Any], Any]:
        """Return the log-density with ``<multipliers, features>`` added."""
        from jax import numpy as jnp

        phi = np.asarray(multipliers)

        def regularized(position: Any) -> Any:
            own = self.variables(position) if self.variables is not None else position
            own = own if isinstance(own, Mapping) else {"x": own}
            named = {name: jnp.asarray(value)[None] for name, value in own.items()}
            psi = trace_features(features, named, jnp, "jnp")
            return self.function(position) + jnp.asarray(phi) @ psi

        return regularized
