"""PyMC models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import numpy as np

from regbayes._extras import import_extra
from regbayes._types import Array, Floats
from regbayes.ppl.nuts import FACTOR, Adaptation, Chains, NUTSModel, WarmUp, scatter
from regbayes.ppl.tracing import trace_features
from regbayes.resampling.sampler import Tilt

MULTIPLIERS = "regularization_multipliers"  # name of the data of returned models
WARM_UP_STEPS: dict[WarmUp, int] = {"cold": 300, "short": 50, "long": 100}


@final
class PyMCModel(NUTSModel):
    """A PyMC model for `resample`, sampled by NUTS in this process.

    The model is copied. The multipliers are data of the copy, so it is compiled only once.

    Parameters
    ----------
    model : pymc.Model
    n_chains : int, default=4

    Examples
    --------
    >>> from regbayes import E, resample
    >>> from regbayes.ppl import PyMCModel
    >>> import pymc
    >>> with pymc.Model() as model:
    ...     x = pymc.Normal("x")
    >>> resample(PyMCModel(model), E("x") == 2).after.round(3)
    array([2.])
    """

    def __init__(self, model: Any, n_chains: int = 4) -> None:
        pymc = import_extra("pymc", "PyMCModel")
        if not isinstance(model, pymc.Model):
            raise TypeError(f"`model` must be a pymc.Model; got {type(model).__name__}.")
        if not model.free_RVs:
            raise ValueError("`model` must have a latent variable to sample.")
        if model.discrete_value_vars:
            names = ", ".join(v.name for v in model.discrete_value_vars)
            raise ValueError(
                f"`model` has discrete latent variables ({names}), which NUTS cannot sample. Sum them out, or use a "
                "sampler of your own (regbayes.ppl.Sampler)."
            )
        self.model, self.n_chains = model, n_chains
        self._compiled: dict[tuple[int, ...], tuple[tuple[Any, ...], _Compiled]] = {}
        self._plain = _Compiled(model, ())

    @property
    def observed(self) -> tuple[str, ...]:
        """Names of the observed variables."""
        return tuple(v.name for v in self.model.observed_RVs)

    @property
    def labels(self) -> tuple[Mapping[str, tuple[str, ...]], Mapping[str, Any]]:
        """Dimensions and coordinates of the model."""
        dims = {name: tuple(axes) for name, axes in self.model.named_vars_to_dims.items() if None not in axes}
        return dims, {name: np.asarray(values) for name, values in self.model.coords.items() if values is not None}

    def _for(self, tilt: Tilt) -> _Compiled:
        """Return the compiled model for the tilt's functions, with its multipliers set."""
        if tilt.is_none:
            return self._plain
        key = tuple(map(id, tilt.features))
        if key not in self._compiled:
            self._compiled = {key: (tilt.features, _Compiled(self.model, tilt.features))}
        compiled = self._compiled[key][1]
        compiled.model[MULTIPLIERS].set_value(np.asarray(tilt.multipliers, dtype=np.float64))
        return compiled

    def starts(self, seed: int, n: int) -> Floats:
        """Return the model's own initial point with jitter."""
        plain = self._plain
        center = np.asarray(plain._map().data, dtype=np.float64)
        found = scatter(center, 1.0, lambda tried: np.array([plain.density(z) for z in tried]), seed, n)
        if not all(np.isfinite(plain.density(z)) for z in found):
            raise ValueError("the model's log-density is NaN or infinite wherever it was tried")
        return found

    def variables_at(self, positions: Floats) -> dict[str, Array]:
        """Return the variables at positions."""
        return self._plain.variables(positions)

    def run_chains(
        self, tilt: Tilt, positions: Floats, n_draws: int, warm_up: WarmUp, adaptation: Adaptation, seed: int
    ) -> Chains:
        """Run the chains sequentially."""
        compiled, tune = self._for(tilt), WARM_UP_STEPS[warm_up]
        seeds = np.random.default_rng(seed).integers(2**31, size=len(positions))
        kept = [
            compiled.chain(position, n_draws, tune, adaptation, int(s))
            for position, s in zip(positions, seeds, strict=True)
        ]
        trail = np.array([chain for chain, *_ in kept])
        statistics = {name: np.array([own[name] for _, own, _ in kept]) for name in kept[0][1]}
        flat = trail.reshape(-1, trail.shape[2])
        covariance = (
            np.cov(flat.T).reshape(trail.shape[2], -1) if adaptation.covariance is None else adaptation.covariance
        )
        step = float(np.exp(np.mean(np.log(statistics["step_size"][:, -1]))))
        return Chains(trail, statistics, sum(n for *_, n in kept), Adaptation(step, covariance, adaptation.target))

    def log_density(self, tilt: Tilt, positions: Floats) -> Floats | None:
        """Return the tilted log-density at positions."""
        compiled = self._for(tilt)
        with np.errstate(all="ignore"):
            return np.array([compiled.density(position) for position in positions])

    def compile_functions(self, part: Any) -> Callable[[Floats], Array]:
        """Return a constraint's functions of positions."""
        return self._plain.compile_functions(part)

    def find_positions(self, variables: Mapping[str, Array]) -> Floats | None:
        """Convert draws to unconstrained positions; None if a variable is missing."""
        return self._plain.positions_of(variables)

    def add_factor(self, features: Sequence[Any], multipliers: Floats) -> Any:
        """Return a copy of the model with a potential named "regularization"."""
        return _with_factor(self.model, tuple(features), multipliers)


def _with_factor(model: Any, features: tuple[Any, ...], multipliers: Any) -> Any:
    """Copy the model and add <multipliers, features> as a potential."""
    import pymc
    from pymc.model.fgraph import clone_model
    from pytensor import tensor as pt

    copy = clone_model(model)
    with copy:
        variables = {v.name: v[None] for v in (*copy.free_RVs, *copy.deterministics)}
        psi = trace_features(features, variables, pt, "pt")
        phi = pymc.Data(MULTIPLIERS, np.asarray(multipliers, dtype=np.float64))
        pymc.Potential(FACTOR, phi.dot(psi))
    return copy


class _Compiled:
    """Compiled functions of a model with the multipliers as data."""

    def __init__(self, model: Any, features: tuple[Any, ...]) -> None:
        self.names = [v.name for v in model.value_vars]  # order of coordinates, which a copy may change
        self.model = _with_factor(model, features, np.zeros(1)) if features else model  # resized when values are set
        self._step: Any = None
        self._functions: dict[str, Any] = {}
        self._point = self.model.initial_point()

    def _map(self) -> Any:
        from pymc.blocking import DictToArrayBijection

        return DictToArrayBijection.map({name: self._point[name] for name in self.names})

    def density(self, position: Floats) -> float:
        if "density" not in self._functions:
            self._functions["density"] = self.model.compile_logp()
        return float(self._functions["density"](self._dictionary(position)))

    def _dictionary(self, position: Floats) -> dict[str, Array]:
        from pymc.blocking import DictToArrayBijection, RaveledVars

        return dict(DictToArrayBijection.rmap(RaveledVars(position, self._map().point_map_info)))

    def _flat(self, point: Mapping[str, Array]) -> Floats:
        return np.concatenate([np.ravel(point[name]) for name in self.names])

    def _order(self, names: Sequence[str]) -> Array:
        """Return the indices of coordinates of reordered variables."""
        sizes = {name: np.size(self._point[name]) for name in self.names}
        begins = dict(zip(self.names, np.cumsum([0, *sizes.values()])[:-1], strict=True))
        return np.concatenate([begins[name] + np.arange(sizes[name]) for name in names])

    def variables(self, positions: Floats) -> dict[str, Array]:
        """The model's variables at positions, (n, ...) each."""
        wanted = [*self.model.free_RVs, *self.model.deterministics]
        if "variables" not in self._functions:
            replaced = self.model.replace_rvs_by_values(wanted)
            self._functions["variables"] = self.model.compile_fn(
                replaced, inputs=self.model.value_vars, on_unused_input="ignore"
            )
        rows = [self._functions["variables"](self._dictionary(z)) for z in positions]
        return {v.name: np.array([row[i] for row in rows]) for i, v in enumerate(wanted)}

    def positions_of(self, variables: Mapping[str, Array]) -> Floats | None:
        names = [v.name for v in self.model.free_RVs]
        if not set(names) <= set(variables):
            return None
        if "forward" not in self._functions:
            import pytensor

            outputs, inputs = [], []
            for rv in self.model.free_RVs:
                value = rv.type()
                transform = self.model.rvs_to_transforms[rv]
                inputs.append(value)
                outputs.append(value if transform is None else transform.forward(value, *rv.owner.inputs))
            self._functions["forward"] = pytensor.function(inputs, outputs, on_unused_input="ignore")
        order = [self.model.rvs_to_values[rv].name for rv in self.model.free_RVs]
        rows = []
        for i in range(len(next(iter(variables.values())))):
            found = self._functions["forward"](*(np.asarray(variables[name][i]) for name in names))
            at = dict(zip(order, found, strict=True))
            rows.append(self._flat(at))
        return np.array(rows, dtype=np.float64)

    def compile_functions(self, part: Any) -> Callable[[Floats], Array]:
        """Compile the functions of a constraint, (n, d) -> (n, k)."""
        from pytensor import tensor as pt

        variables = {v.name: v[None] for v in (*self.model.free_RVs, *self.model.deterministics)}
        psi = 1.0 * trace_features((part,), variables, pt, "pt")  # converts Boolean indicators to numbers
        (replaced,) = self.model.replace_rvs_by_values([psi])
        function = self.model.compile_fn(replaced, inputs=self.model.value_vars, on_unused_input="ignore")
        return lambda positions: np.array([function(self._dictionary(z)) for z in positions])

    def chain(
        self, position: Floats, n_draws: int, tune: int, adaptation: Adaptation, seed: int
    ) -> tuple[Floats, dict[str, Array], int]:
        """Run one NUTS chain; return positions, statistics and the number of gradients."""
        import pymc
        from pymc.step_methods.hmc.quadpotential import QuadPotentialDiag, QuadPotentialDiagAdapt, QuadPotentialFull

        if self._step is None:
            with self.model:
                self._step = pymc.NUTS(target_accept=adaptation.target)
        nuts, covariance = self._step, adaptation.covariance
        order = self._order([v.name for v in nuts.vars])
        if covariance is None:
            nuts.potential = QuadPotentialDiagAdapt(len(position), position[order], np.ones(len(position)), 10)
        elif covariance.ndim == 1:
            nuts.potential = QuadPotentialDiag(covariance[order])
        else:
            nuts.potential = QuadPotentialFull(covariance[np.ix_(order, order)])
        nuts.integrator = type(nuts.integrator)(nuts.potential, nuts._logp_dlogp_func)
        nuts.set_rng(np.random.default_rng(seed))
        nuts.potential.set_rng(np.random.default_rng([seed, 1]))
        nuts.step_adapt = type(nuts.step_adapt)(adaptation.step, adaptation.target, 0.05, 0.75, 10)
        nuts.tune = tune > 0
        nuts.iter_count = 0
        at = self._dictionary(position)
        point = {v.name: at[v.name] for v in nuts.vars}  # NUTS depends on the order of the entries
        kept, rows, n_gradients = [], [], 0
        for i in range(tune + n_draws):
            if i == tune:
                nuts.stop_tuning()
            point, (stats, *_) = nuts.step(point)
            n_gradients += int(stats["tree_size"])
            if i >= tune:
                kept.append(self._flat(point))
                rows.append(stats)
        names = {"energy": "energy", "n_steps": "tree_size", "acceptance_rate": "mean_tree_accept"}
        names |= {"diverging": "diverging", "step_size": "step_size_bar"}  # "step_size" is the last value of tuning
        return np.array(kept), {name: np.array([row[own] for row in rows]) for name, own in names.items()}, n_gradients
