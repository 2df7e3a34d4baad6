"""Regularized variational inference: a loss for NumPyro's SVI that adds regularizers of expectations to minus the ELBO.

RegBayes over a family of guides q minimises ``-ELBO(q) + g(E_q[psi])``, docs/math.md eq. (1) with q restricted. The
expectation stands inside g, so it is taken before g is: at the guide's means, or as an average of draws. One draw
inside a hinge would charge for the spread of q, and shrink it.

The framework's regularizers are NumPy. Their proximal map gives the Moreau envelope of g and its exact gradient,
``(x - prox(x)) / t``; a callback computes both on the host, and JAX takes the pair as value and derivative. So every
regularizer serves that is finite, and nothing is written twice.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from regbayes._extras import import_extra
from regbayes._types import Floats
from regbayes.regularization.constraints import Constraint
from regbayes.regularization.draws import as_draws, listed
from regbayes.regularization.features import OnEvent, Picked, columns_of, pick_columns
from regbayes.regularization.regularizers import KL, GeneralizedKL, Regularizer
from regbayes.regularization.regularizers.base import check_positive

KINDS = ("sample", "deterministic")
FAR = 1e6  # where a soft regularizer still has a value


@dataclass(frozen=True)
class EachRow:
    """What must hold of expectations that every row has: margins on the rows of a batch, say.

    Parameters
    ----------
    features : callable
        ``features(v, *args, **kwargs)`` gets the values ``v.z``, ``v.weights`` of the sites and what SVI's step was
        called with, and returns an array of shape (n,) or (n, m), written with jax.numpy.
    regularizer : callable
        ``regularizer(*args, **kwargs)`` gets the same arguments as NumPy arrays and returns a regularizer of the n m
        expectations, row by row; it must be a sum over rows.
    n_rows : int, default=None
        All rows that there are, where a step sees a batch of them: a batch of n counts ``n_rows / n`` times.
    name : str, default="rows"
    """

    features: Callable[..., Any]
    regularizer: Callable[..., Regularizer]
    n_rows: int | None = None
    name: str = "rows"


@dataclass(frozen=True)
class Regularization:
    """What one constraint comes to at given parameters of the guide."""

    label: str
    expectations: Floats  # (m,)
    multipliers: Floats  # (m,): minus the derivative of the regularizer; zero where nothing is asked for
    value: float


class RegularizedELBO:
    """Minus an ELBO plus regularizers of expectations under the guide: the loss of `numpyro.infer.SVI`.

    Parameters
    ----------
    constraints : constraint, EachRow, or list of those
        Soft ones, as in ``(E("mu") >= 2).soft(10)`` or ``E(f).regularized(Ridge(0))``. Features are as `regularize`
        takes them of draws: names of sites, or functions of their arrays, which have an axis of draws in front, written
        with jax.numpy. Sites are those of the guide and the deterministic ones of the model.
    elbo : numpyro.infer.ELBO, default=None
        What is added to; ``Trace_ELBO()`` by default. With ``TraceMeanField_ELBO()`` divergences that have closed forms
        are exact.
    draws : int, default=None
        Draws of the guide of which an expectation is the average. By default features are evaluated at the guide's
        means, which is exact where they are affine in each of the guide's independent sites (a product of weights and
        features of a row, say), and an approximation elsewhere.
    smoothing : float, default=1e-6
        The step of the Moreau envelope that stands for a regularizer: kinks are rounded over this times the slope, and
        values are too small by half of it times the squared slope at most.

    Notes
    -----
    All regularizers of `regbayes.regularizers` serve, combinations among them, except hard ones: a bound at any price
    has no gradient, so give it one with ``soft(penalty)``. The guide must be reparametrised, as for `Trace_ELBO`.
    A mean-field guide has too small variances wherever the posterior is correlated; what is minimised is a bound.

    Examples
    --------
    >>> import jax, numpyro
    >>> import numpyro.distributions as dist
    >>> from numpyro.infer import SVI, TraceMeanField_ELBO
    >>> from numpyro.infer.autoguide import AutoNormal
    >>> from regbayes import E
    >>> from regbayes.ppl import RegularizedELBO
    >>> def model():
    ...     numpyro.sample("mu", dist.Normal(0.0, 1.0))
    >>> loss = RegularizedELBO((E("mu") >= 2.0).soft(1.5), elbo=TraceMeanField_ELBO())
    >>> guide = AutoNormal(model)
    >>> svi = SVI(model, guide, numpyro.optim.Adam(0.02), loss)
    >>> params = svi.run(jax.random.key(0), 2000, progress_bar=False).params
    >>> print(round(float(params["mu_auto_loc"]), 2))
    1.5
    """

    def __init__(
        self,
        constraints: Any,
        *,
        elbo: Any = None,
        draws: int | None = None,
        smoothing: float = 1e-6,
    ) -> None:
        for package in ("jax", "numpyro"):
            import_extra(package, "RegularizedELBO", "numpyro")
        given = list(constraints) if isinstance(constraints, list | tuple) else [constraints]
        odd = [item for item in given if not isinstance(item, Constraint | EachRow)]
        if odd or not given:
            raise TypeError(f"constraints must be some, such as (E(psi) <= b).soft(10), or EachRow; got {odd or given}")
        if draws is not None and draws < 1:
            raise ValueError(f"draws must be a positive number of draws, or None for the guide's means; got {draws!r}")
        if elbo is None:
            from numpyro.infer import Trace_ELBO

            elbo = Trace_ELBO()
        if getattr(elbo, "multi_sample_guide", False):
            raise ValueError("an elbo with multi_sample_guide=True is not supported: give draws=... instead")
        self.constraints, self.elbo, self.draws = given, elbo, draws
        self.smoothing = check_positive("smoothing", smoothing)

    @property
    def can_infer_discrete(self) -> bool:
        """Whether the ELBO takes discrete latent variables."""
        return bool(self.elbo.can_infer_discrete)

    def loss(
        self, rng_key: Any, param_map: Mapping[str, Any], model: Any, guide: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Return the loss, to be minimised; arguments as in `numpyro.infer.ELBO`."""
        found = self.elbo.loss(rng_key, param_map, model, guide, *args, **kwargs)
        return found + self._penalty(rng_key, param_map, model, guide, args, kwargs)

    def loss_with_mutable_state(
        self, rng_key: Any, param_map: Mapping[str, Any], model: Any, guide: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Return the loss and the new mutable state; arguments as in `numpyro.infer.ELBO`."""
        found = self.elbo.loss_with_mutable_state(rng_key, param_map, model, guide, *args, **kwargs)
        penalty = self._penalty(rng_key, param_map, model, guide, args, kwargs)
        return {**found, "loss": found["loss"] + penalty}

    def evaluate(
        self, params: Mapping[str, Any], model: Any, guide: Any, *args: Any, seed: int = 0, **kwargs: Any
    ) -> list[Regularization]:
        """Return what the constraints come to at given parameters: expectations, multipliers, values.

        Parameters
        ----------
        params : mapping
            As SVI returns them.
        model, guide
        *args, **kwargs
            Of model and guide.
        seed : int, default=0
            Of draws, where expectations are averages of them.
        """
        import jax

        values = self._values(jax.random.key(seed), params, model, guide, args, kwargs)
        found = []
        for constraint in self.constraints:
            x = np.asarray(self._expect(constraint, values, args, kwargs), dtype=np.float64)
            regularizer, factor = _regularizer_of(constraint, x, args, kwargs)
            slope = self._envelope(constraint, x, args, kwargs)[1]
            label = constraint.name if isinstance(constraint, EachRow) else constraint.label()
            found.append(Regularization(label, x, -slope, factor * regularizer.value(x.ravel())))
        return found

    def _penalty(self, rng_key: Any, params: Mapping[str, Any], model: Any, guide: Any, args: Any, kwargs: Any) -> Any:
        """Return the sum of all regularizers, differentiable by the parameters."""
        import jax

        values = self._values(jax.random.fold_in(rng_key, 1), params, model, guide, args, kwargs)
        total = 0.0
        for constraint in self.constraints:
            x = self._expect(constraint, values, args, kwargs)
            arrays, rebuild = _split_arrays((args, kwargs) if isinstance(constraint, EachRow) else ((), {}))

            def on_host(
                x: Any, *arrays: Any, constraint: Any = constraint, rebuild: Any = rebuild, dtype: Any = x.dtype
            ) -> tuple[Any, Any]:
                x = np.asarray(x, dtype=np.float64)
                called, named = rebuild([np.asarray(array) for array in arrays])
                value, slope = self._envelope(constraint, x, called, named)
                return np.asarray(value, dtype), slope.astype(dtype)

            total = total + _call_host(on_host, x, arrays)
        return total

    def _envelope(self, constraint: Constraint | EachRow, x: Floats, args: Any, kwargs: Any) -> tuple[float, Floats]:
        """Return the Moreau envelope of a constraint's regularizer at given expectations, and its gradient."""
        if not np.all(np.isfinite(x)):
            return np.nan, np.full(x.shape, np.nan)
        regularizer, factor = _regularizer_of(constraint, x, args, kwargs)
        near = regularizer.prox(x.ravel(), self.smoothing)
        slope = (x.ravel() - near) / self.smoothing
        value = regularizer.value(near) + 0.5 * self.smoothing * float(slope @ slope)
        return factor * value, factor * slope.reshape(x.shape)

    def _values(self, rng_key: Any, params: Mapping[str, Any], model: Any, guide: Any, args: Any, kwargs: Any) -> Sites:
        """Return values of all sites, with an axis of draws in front: draws of the guide, or its means."""
        import jax

        words: list[Any] = []  # names do not travel through vmap

        def run(key: Any) -> dict[str, Any]:
            arrays, *found = _trace_sites(key, params, model, guide, args, kwargs, at_means=self.draws is None)
            words[:] = found
            return arrays

        arrays = jax.vmap(run)(jax.random.split(rng_key, self.draws or 1))
        return Sites(arrays, *words)

    def _expect(self, constraint: Constraint | EachRow, values: Sites, args: Any, kwargs: Any) -> Any:
        """Return the expectations of a constraint's features: (m,), or (n, m) of rows."""
        import jax
        import jax.numpy as jnp

        if isinstance(constraint, EachRow):
            called = jax.vmap(lambda of_draw: constraint.features(replace(values, arrays=of_draw), *args, **kwargs))
            x = called(values.arrays).mean(axis=0)
            if x.ndim not in (1, 2):
                raise ValueError(f"EachRow: features must have shape (n,) or (n, m), got {x.shape}")
            return x
        found = jnp.concatenate([_evaluate(feature, values) for feature in _listed(constraint.features)], axis=1)
        x = found.mean(axis=0)
        _check_soft(constraint.regularizer, len(x), constraint)
        return x


@dataclass(frozen=True)
class Sites(Mapping[str, Any]):
    """Values of sites as a feature function sees them: ``v["mu"]`` or ``v.mu``."""

    arrays: Mapping[str, Any]  # each (draws, ...), or of one draw
    without_mean: frozenset[str]  # sites whose mean under the guide has no closed form
    observed: frozenset[str]

    def __getitem__(self, name: str) -> Any:
        if name in self.without_mean:
            raise ValueError(
                f"the mean of {name} under this guide has no closed form; give RegularizedELBO(..., draws=100), or "
                "features of sites that the guide draws without a transform"
            )
        if name not in self.arrays:
            known = f"model and guide have the sites {listed(sorted(self.arrays))}"
            is_data = f"{name} is observed, and what is observed has no distribution to be constrained"
            raise KeyError(f"{is_data if name in self.observed else f'there is no site {name!r}'}; {known}")
        return self.arrays[name]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copy and pickle look for these before there is anything
            raise AttributeError(name)
        return self[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)


def _trace_sites(
    rng_key: Any, params: Mapping[str, Any], model: Any, guide: Any, args: Any, kwargs: Any, *, at_means: bool
) -> tuple[dict[str, Any], frozenset[str], frozenset[str]]:
    """Run the guide and the model after it; return values, names of sites without means, names of observed sites."""
    import jax
    import jax.numpy as jnp
    from numpyro.handlers import replay, seed, substitute, trace

    meanless: set[str] = set()

    def mean_of(site: dict[str, Any]) -> Any:
        if site["type"] != "sample" or site["is_observed"]:
            return None
        try:
            return site["fn"].mean
        except NotImplementedError:
            meanless.add(site["name"])
            return jnp.full(site["fn"].shape(), jnp.nan)

    for_guide, for_model = jax.random.split(rng_key)
    substituted = substitute(guide, data=dict(params))
    if at_means:
        substituted = substitute(substituted, substitute_fn=mean_of)
    guide_trace = trace(seed(substituted, for_guide)).get_trace(*args, **kwargs)
    replayed = replay(substitute(model, data=dict(params)), guide_trace)
    model_trace = trace(seed(replayed, for_model)).get_trace(*args, **kwargs)
    if at_means:
        meanless |= _transformed_sites(guide_trace, model_trace, meanless)
    sites = [site for site in (*guide_trace.values(), *model_trace.values()) if site["type"] in KINDS]
    observed = frozenset(site["name"] for site in sites if site.get("is_observed", False))
    # What is observed or depends on a site without a mean is no expectation: such values are NaN, and so is the loss.
    arrays = {site["name"]: jnp.asarray(site["value"]) for site in sites if site["name"] not in observed}
    return arrays, frozenset(meanless), observed


def _transformed_sites(guide_trace: Mapping[str, Any], model_trace: Mapping[str, Any], meanless: set[str]) -> set[str]:
    """Return the sites that an automatic guide makes of one latent vector by a transform: their means are not known."""
    from numpyro.distributions import constraints

    latent = [s for s in guide_trace.values() if s["type"] == "sample" and s["infer"].get("is_auxiliary", False)]
    if not latent:
        return set()
    all_lost = any(site["name"] in meanless for site in latent)
    made = [s["name"] for s in guide_trace.values() if s["type"] == "sample" and s not in latent]
    linear = (constraints.real, constraints.real_vector, constraints.real_matrix)

    def is_linear(name: str) -> bool:
        support = model_trace[name]["fn"].support
        while isinstance(support, constraints.independent):
            support = support.base_constraint
        return any(support is kind for kind in linear)

    return {name for name in made if name in model_trace and (all_lost or not is_linear(name))}


def _evaluate(feature: Any, sites: Sites) -> Any:
    """Return the values of a feature for every draw, (draws, m)."""
    import jax.numpy as jnp

    if isinstance(feature, Picked):
        inner = jnp.concatenate([_evaluate(one, sites) for one in _listed(feature.features)], axis=1)
        return inner[:, jnp.asarray(pick_columns([f"[{i}]" for i in range(inner.shape[1])], feature.index))]
    if isinstance(feature, str):
        name = feature.partition("[")[0]
        values = sites[name]
        # JAX takes the last entry for one beyond it, so names are looked up among those that there are.
        places = np.arange(math.prod(values.shape[1:])).reshape(1, *values.shape[1:])
        found, _ = columns_of(as_draws({name: places}, chains=False), feature, "features")
        return values.reshape(len(values), -1)[:, np.ravel(found)]
    if isinstance(feature, OnEvent):
        raise TypeError("given(event) has no gradient, so it cannot be a feature of RegularizedELBO")
    if not callable(feature):
        raise TypeError(f"features are names of sites or functions of them, got {type(feature).__name__}")
    names = [p.name for p in inspect.signature(feature).parameters.values() if p.default is p.empty]
    try:
        found = feature(*(sites[name] for name in names)) if _are_sites(names, sites) else feature(sites)
    except Exception as error:
        error.add_note(
            f"Raised by a feature function. It gets arrays of the sites {listed(sorted(sites))}, each with an axis of "
            "draws in front, and must be written with jax.numpy."
        )
        raise
    values = jnp.asarray(found)
    if not jnp.issubdtype(values.dtype, jnp.floating):
        raise TypeError(
            f"a feature returned values of type {values.dtype}, which have no gradient: write a smooth stand-in, "
            "sigmoid((f - c) / width) in place of f > c"
        )
    n = len(next(iter(sites.arrays.values())))
    if values.ndim not in (1, 2) or len(values) != n:
        raise ValueError(f"a feature must have shape ({n},) or ({n}, m) for {n} draws, got {values.shape}")
    return values.reshape(n, -1)


def _are_sites(names: Sequence[str], sites: Sites) -> bool:
    """Whether a feature function asks for sites by the names of its arguments."""
    return len(names) > 1 or (len(names) == 1 and names[0] in sites.arrays)


def _listed(features: Any) -> Sequence[Any]:
    return features if isinstance(features, list | tuple) else [features]


def _regularizer_of(constraint: Constraint | EachRow, x: Floats, args: Any, kwargs: Any) -> tuple[Regularizer, float]:
    """Return the regularizer of given expectations, and how often it counts."""
    if isinstance(constraint, Constraint):
        return constraint.regularizer, 1.0
    regularizer = constraint.regularizer(*args, **kwargs)
    if not isinstance(regularizer, Regularizer):
        raise TypeError(f"EachRow: regularizer must return one of regbayes.regularizers, got {regularizer!r}")
    _check_soft(regularizer, x.size, constraint.name)
    return regularizer, _count_times(constraint, len(x), (args, kwargs))


def _count_times(rows: EachRow, n: int, given: Any) -> float:
    """How often a batch of n rows counts."""
    import jax

    if rows.n_rows is None:
        return 1.0
    lengths = sorted({len(leaf) for leaf in jax.tree.leaves(given) if np.ndim(leaf) > 0})
    if lengths and n not in lengths:
        listed = ", ".join(map(str, lengths))
        raise ValueError(
            f"EachRow {rows.name!r}: features must return one row for each row of the step; it returned {n}, and the "
            f"step was called with arrays of {listed} rows"
        )
    if rows.n_rows < n:
        raise ValueError(f"EachRow {rows.name!r}: n_rows is {rows.n_rows}, fewer than the {n} rows of one step")
    return rows.n_rows / n


def _check_soft(regularizer: Regularizer, size: int, what: object) -> None:
    """Refuse a wrong number of expectations, and what has no value far away: a hard constraint has no gradient."""
    if regularizer.size is not None and regularizer.size != size:
        raise ValueError(f"{what}: the regularizer takes {regularizer.size} expectations, the features have {size}")
    sides = np.where(np.arange(size) % 2 == 0, FAR, -FAR)
    probes = (
        [np.full(size, FAR)] if _is_entropy(regularizer) else [sides, -sides, np.full(size, FAR), np.full(size, -FAR)]
    )
    if not all(np.isfinite(regularizer.value(probe)) for probe in probes):
        raise ValueError(f"{what} is a hard constraint, which has no gradient: give it a price, as in (...).soft(100)")


def _is_entropy(regularizer: Regularizer) -> bool:
    """Whether a divergence of proportions is in it, which is defined for positive expectations alone."""
    parts = [regularizer, *vars(regularizer).values()]
    inside = [p for part in parts for p in (part if isinstance(part, list | tuple) else [part])]
    return any(
        isinstance(p, KL | GeneralizedKL) or (isinstance(p, Regularizer) and p is not regularizer and _is_entropy(p))
        for p in inside
    )


def _call_host(on_host: Callable[..., Any], x: Any, arrays: Sequence[Any]) -> Any:
    """Return a function's value as JAX sees it; the function computes value and gradient in NumPy."""
    import jax

    shapes = jax.ShapeDtypeStruct((), x.dtype), jax.ShapeDtypeStruct(x.shape, x.dtype)

    def both(x: Any, *arrays: Any) -> Any:
        return jax.pure_callback(on_host, shapes, x, *arrays, vmap_method="sequential")

    def backward(slope: Any, cotangent: Any) -> tuple[Any, ...]:
        return cotangent * slope, *(None for _ in arrays)

    value = jax.custom_vjp(lambda x, *arrays: both(x, *arrays)[0])
    value.defvjp(both, backward)
    return value(x, *arrays)


def _split_arrays(arguments: Any) -> tuple[list[Any], Callable[[Sequence[Any]], Any]]:
    """Take the arrays out of arguments; return them, and a function that puts others in their places."""
    import jax

    leaves, tree = jax.tree.flatten(arguments)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array | np.ndarray)]

    def rebuild(arrays: Sequence[Any]) -> Any:
        filled = list(leaves)
        for place, array in zip(places, arrays, strict=True):
            filled[place] = array
        return jax.tree.unflatten(tree, filled)

    return [leaves[place] for place in places], rebuild
