"""NumPyro models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import numpy as np

from regbayes._extras import import_extra
from regbayes._types import Array, Floats
from regbayes.ppl.jax_chains import JAXModel, Kernel
from regbayes.ppl.nuts import FACTOR
from regbayes.ppl.tracing import trace_features


@final
class NumPyroModel(JAXModel):
    """A NumPyro model for `resample`, sampled by NUTS.

    Parameters
    ----------
    model : callable
        The model function.
    *args, **kwargs
        Arguments of the model function, such as data.

    Examples
    --------
    >>> import numpyro
    >>> from regbayes import E, resample
    >>> from regbayes.ppl import NumPyroModel
    >>> model = NumPyroModel(lambda: numpyro.sample("x", numpyro.distributions.Normal()))
    >>> resample(model, E("x") == 2).after.round(3)
    array([2.])
    """

    def __init__(self, model: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        for package in ("jax", "numpyro"):
            import_extra(package, "NumPyroModel")
        import jax
        from jax.flatten_util import ravel_pytree
        from numpyro.infer.util import initialize_model

        super().__init__()
        if not callable(model):
            raise TypeError(f"model must be a NumPyro model function, got {type(model).__name__}")
        self.model, self.args, self.kwargs = model, args, kwargs
        self._check_sites()
        try:
            info = initialize_model(jax.random.PRNGKey(0), model, model_args=args, model_kwargs=kwargs)
        except RuntimeError as error:
            raise ValueError(f"the model's log-density is NaN or infinite wherever it was tried: {error}") from error
        if not info.param_info.z:
            raise ValueError("the model has no latent variable to sample")
        self._potential, self._postprocess = info.potential_fn, info.postprocess_fn
        flat, self._unravel = ravel_pytree(info.param_info.z)
        self._size = int(flat.size)

    def _check_sites(self) -> None:
        import jax
        from numpyro import handlers
        from numpyro.infer.initialization import init_to_uniform

        # Initial values are not prior draws, because priors may be improper.
        seeded = handlers.substitute(handlers.seed(self.model, jax.random.PRNGKey(0)), substitute_fn=init_to_uniform)
        sites = handlers.trace(seeded).get_trace(*self.args, **self.kwargs)
        sampled = {name: site for name, site in sites.items() if site["type"] == "sample"}
        self._observed = tuple(name for name, site in sampled.items() if site["is_observed"])
        latent = {name: site for name, site in sampled.items() if not site["is_observed"]}
        discrete = [name for name, site in latent.items() if site["fn"].is_discrete]
        if discrete:
            raise ValueError(
                f"the model has discrete latent variables ({', '.join(discrete)}), which NUTS cannot move: sum them "
                "out, or give regularize a sampler of your own (regbayes.ppl.Sampler), a Gibbs sampler for instance"
            )
        plates = {frame.dim: frame for site in sampled.values() for frame in site["cond_indep_stack"]}
        shown = {**latent, **{name: site for name, site in sites.items() if site["type"] == "deterministic"}}
        self._dims = {name: _dims_of(site, plates) for name, site in shown.items()}

    @property
    def observed(self) -> tuple[str, ...]:
        """Names of the observed sites."""
        return self._observed

    @property
    def labels(self) -> tuple[Mapping[str, tuple[str, ...]], Mapping[str, Any]]:
        """Dimension names from the model's plates."""
        return self._dims, {}

    def _density(self, position: Any) -> Any:
        return -self._potential(self._unravel(position))

    def _constrain(self, position: Any) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._postprocess(self._unravel(position))
        return found

    def starts(self, seed: int, n: int) -> Floats:
        """Return NumPyro's initial positions."""
        import jax
        from jax.flatten_util import ravel_pytree
        from numpyro.infer.util import initialize_model

        keys = jax.random.split(jax.random.PRNGKey(seed), n)
        info = initialize_model(keys, self.model, model_args=self.args, model_kwargs=self.kwargs)
        flat = jax.vmap(lambda z: ravel_pytree(z)[0])(info.param_info.z)
        return np.asarray(flat, dtype=np.float64)

    def _kernel(self) -> Kernel:
        return nuts_kernel()

    def find_positions(self, variables: Mapping[str, Array]) -> Floats | None:
        """Convert draws to unconstrained positions; None if a latent site is missing."""
        import jax
        from jax.flatten_util import ravel_pytree
        from numpyro.infer.util import unconstrain_fn

        names = set(self._unravel(jax.numpy.zeros(self._size)))
        if not names <= set(variables):
            return None
        latent = {name: np.asarray(variables[name]) for name in names}

        def one(values: Any) -> Any:
            return ravel_pytree(unconstrain_fn(self.model, self.args, self.kwargs, values))[0]

        return np.asarray(jax.vmap(one)(latent), dtype=np.float64)

    def add_factor(self, features: Sequence[Any], multipliers: Floats) -> Callable[..., Any]:
        """Return the model function with an additional factor site named "regularization"."""
        import numpyro
        from jax import numpy as jnp
        from numpyro import handlers

        model, phi = self.model, np.asarray(multipliers)

        def regularized(*args: Any, **kwargs: Any) -> Any:
            with handlers.trace() as sites:
                returned = model(*args, **kwargs)
            variables = {
                name: jnp.asarray(site["value"])[None]
                for name, site in sites.items()
                if site["type"] == "deterministic" or (site["type"] == "sample" and not site["is_observed"])
            }
            psi = trace_features(features, variables, jnp, "jnp")
            numpyro.factor(FACTOR, jnp.asarray(phi) @ psi)
            return returned

        return regularized


def _dims_of(site: Mapping[str, Any], plates: Mapping[int, Any]) -> tuple[str, ...]:
    """Return the axis names of a site, from plates of matching length counted from the right."""
    shape = np.shape(site["value"])
    n_event = site["fn"].event_dim if site["type"] == "sample" else 0
    names = []
    for axis, length in enumerate(shape):
        plate = plates.get(axis - len(shape) + n_event)
        own = f"{site['name']}_dim_{axis}"
        names.append(plate.name if plate is not None and plate.size == length else own)
    return tuple(names)


def nuts_kernel() -> Kernel:
    """Return NumPyro's no-U-turn sampler as a `Kernel`."""
    import jax
    from jax import numpy as jnp
    from numpyro.infer.hmc_util import build_tree, euclidean_kinetic_energy, velocity_verlet

    def init(position: Any, density: Callable[..., Any]) -> Any:
        value, gradient = jax.value_and_grad(density)(position)
        return position, -value, -gradient

    def step(key: Any, state: Any, density: Callable[..., Any], size: Any, covariance: Any) -> Any:
        position, energy, gradient = state
        for_momentum, for_tree = jax.random.split(key)
        noise = jax.random.normal(for_momentum, position.shape)
        if covariance.ndim == 1:
            momentum = noise / jnp.sqrt(covariance)
        else:
            root = jnp.linalg.cholesky(covariance)
            momentum = jax.scipy.linalg.solve_triangular(root.T, noise, lower=False)
        begin, update = velocity_verlet(lambda z: -density(z), euclidean_kinetic_energy)
        start = begin(position, momentum, energy, gradient)
        tree = build_tree(update, euclidean_kinetic_energy, start, covariance, size, for_tree)
        info = {
            "acceptance_rate": tree.sum_accept_probs / tree.num_proposals,
            "diverging": tree.diverging,
            "n_steps": tree.num_proposals,
            "energy": tree.z_proposal_energy,
            "lp": -tree.z_proposal_pe,
        }
        return (tree.z_proposal, tree.z_proposal_pe, tree.z_proposal_grad), info

    return Kernel(init, step, lambda state: state[0])
