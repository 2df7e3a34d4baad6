"""Models written in PyMC."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from regbayes._extras import import_extra
from regbayes._types import Array, Flags, Floats
from regbayes.ppl.smoothness import PAIRS, check_gradients
from regbayes.ppl.symbolic import trace_features
from regbayes.resampling.sampler import Run, Sampler, Start, Tilt, count_examples

MULTIPLIERS, FACTOR = "regularization_multipliers", "regularization"
COLD, SHORT, LONG = 300, 50, 100  # warm-up steps of a first run, of a run that starts warm, of a final one
JITTER = 1.0
TARGET, CAREFUL, MOST_CAREFUL = 0.8, 0.95, 0.99  # acceptance asked for; after divergences; after more in a final run
DIVERGING = 1e-3  # share of the draws from which on the next run is made with more care


@dataclass(frozen=True)
class Adaptation:
    """What a run leaves to the next."""

    step: float
    covariance: Floats
    target: float


@final
class PyMCModel(Sampler):
    """A PyMC model for `regularize`, sampled by NUTS in this process.

    The model is copied; the multipliers are data of the copy, so that it is compiled once.

    Parameters
    ----------
    model : pymc.Model
    n_chains : int, default=4
    """

    def __init__(self, model: Any, n_chains: int = 4) -> None:
        pymc = import_extra("pymc", "PyMCModel", "pymc")
        if not isinstance(model, pymc.Model):
            raise TypeError(f"model must be a pymc.Model, got {type(model).__name__}")
        if not model.free_RVs:
            raise ValueError("the model has no latent variable to sample")
        if model.discrete_value_vars:
            raise ValueError(
                f"the model has discrete latent variables ({', '.join(v.name for v in model.discrete_value_vars)}), "
                "which NUTS cannot move: sum them out, or give regularize a sampler of your own (regbayes.ppl.Sampler)"
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

    def example(self) -> Mapping[str, Array]:
        """Return the variables at a few points to start from."""
        one = self._plain.variables(np.array([self._plain.start(0)]))
        return self._plain.variables(np.array([self._plain.start(seed) for seed in range(count_examples(one))]))

    def _for(self, tilt: Tilt) -> _Compiled:
        key = tuple(map(id, tilt.features))
        if not tilt.features:
            return self._plain
        if key not in self._compiled:
            self._compiled = {key: (tilt.features, _Compiled(self.model, tilt.features))}
        return self._compiled[key][1]

    def draw(self, tilt: Tilt, n_draws: int, *, seed: int, start: Start | None, final: bool) -> Run:
        """Run chains of NUTS, one after the other; the first run has twice as many."""
        compiled = self._for(tilt) if not tilt.is_none else self._plain
        cold = start is None or start.positions is None
        rng = np.random.default_rng(seed)
        if cold:
            positions = np.array([compiled.start(int(s)) for s in rng.integers(2**31, size=2 * self.n_chains)])
        else:
            assert start is not None
            positions = np.asarray(start.positions)
        left = start.adaptation if start is not None else None
        goes_on = not cold and isinstance(left, Adaptation) and start is not None and start.covariance is None
        covariance = None if start is None else start.covariance
        if covariance is None and isinstance(left, Adaptation):
            covariance = left.covariance
        step, target = (left.step, left.target) if isinstance(left, Adaptation) else (None, TARGET)
        if goes_on:
            tune = 0 if target <= TARGET else SHORT  # with smaller steps where it diverged
        else:
            tune = COLD if cold or left is None else LONG if final else SHORT
        kept = [
            compiled.chain(tilt.multipliers, z, n_draws, tune, covariance, step, target, int(s))
            for z, s in zip(positions, rng.integers(2**31, size=len(positions)), strict=True)
        ]
        trail = np.array([chain.positions for chain in kept])
        flat = compiled.variables(trail.reshape(-1, trail.shape[2]))
        variables = {n: v.reshape(len(kept), n_draws, *v.shape[1:]) for n, v in flat.items()}
        statistics = {name: np.array([chain.statistics[name] for chain in kept]) for name in kept[0].statistics}
        if np.mean(statistics["diverging"]) > DIVERGING:
            target = MOST_CAREFUL if final and target >= CAREFUL else max(target, CAREFUL)
        step = float(np.exp(np.mean([np.log(chain.step) for chain in kept])))
        spread = np.cov(trail.reshape(-1, trail.shape[2]).T).reshape(trail.shape[2], -1)
        adaptation = Adaptation(step, spread if covariance is None else covariance, target)
        return Run(variables, trail, statistics, sum(chain.n_gradients for chain in kept), adaptation)

    def log_density(self, tilt: Tilt, positions: Floats) -> Floats | None:
        """Return the tilted log-density at positions."""
        compiled = self._for(tilt) if not tilt.is_none else self._plain
        compiled.set(tilt.multipliers)
        with np.errstate(all="ignore"):
            return np.array([compiled.density(z) for z in positions])

    def find_smooth(self, tilt: Tilt, run: Run) -> Flags | None:
        """Compare differences of features between draws with the integral of their gradients along the way."""
        if run.positions is None:  # draws that came from elsewhere: points to start from serve as well
            flat = np.array([self._plain.start(seed) for seed in range(2 * PAIRS)])
            variables: Mapping[str, Array] = self._plain.variables(flat)
        else:
            flat = run.positions.reshape(-1, run.positions.shape[2])
            variables = {n: v.reshape(-1, *v.shape[2:]) for n, v in run.variables.items()}
        values = tilt.evaluate(variables)
        smooth: list[bool] = []
        for part in tilt.features:
            own = Tilt((part,), np.zeros(0)).evaluate(variables).shape[1]
            columns = slice(len(smooth), len(smooth) + own)
            try:
                smooth += list(check_gradients(flat, values[:, columns], self._plain.integrate((part,), own)))
            except Exception:  # what PyTensor cannot trace has no gradient
                smooth += [False] * own
        return np.array(smooth, dtype=np.bool_)

    def find_positions(self, variables: Mapping[str, Array]) -> Floats | None:
        """Return draws of the model's variables as unconstrained positions; None where one is missing."""
        return self._plain.positions_of(variables)

    def add_factor(self, features: Sequence[Any], multipliers: Floats) -> Any:
        """Return a copy of the model with a potential named "regularization"."""
        return _with_factor(self.model, tuple(features), multipliers)


@dataclass(frozen=True)
class _Chain:
    positions: Floats
    statistics: Mapping[str, Array]
    n_gradients: int
    step: float


def _with_factor(model: Any, features: tuple[Any, ...], multipliers: Any) -> Any:
    """A copy of the model with <multipliers, features> as a potential."""
    import pymc
    from pymc.model.fgraph import clone_model
    from pytensor import tensor as pt

    copy = clone_model(model)
    with copy:
        variables = {v.name: v[None] for v in (*copy.free_RVs, *copy.deterministics)}
        psi = trace_features(features, variables, (pt, pt.special))
        phi = pymc.Data(MULTIPLIERS, np.asarray(multipliers, dtype=np.float64))
        pymc.Potential(FACTOR, phi.dot(psi))
    return copy


class _Compiled:
    """A model's functions, with the multipliers as data."""

    def __init__(self, model: Any, features: tuple[Any, ...]) -> None:
        self.features, self.model = features, model
        self.names = [v.name for v in model.value_vars]  # the order of coordinates; a copy of a model has another one
        if features:
            try:
                self.model = _with_factor(model, features, np.zeros(1))  # how many there are is set with their values
            except Exception:  # some feature cannot be traced: `find_smooth` says which, and no run has a tilt
                self.features = ()
        self._step: Any = None
        self._functions: dict[str, Any] = {}
        self._point = self.model.initial_point()

    def set(self, multipliers: Floats) -> None:
        if self.features:
            self.model[MULTIPLIERS].set_value(np.asarray(multipliers, dtype=np.float64))

    def _map(self) -> Any:
        from pymc.blocking import DictToArrayBijection

        return DictToArrayBijection.map({name: self._point[name] for name in self.names})

    def start(self, seed: int) -> Floats:
        """A point to start from: the model's own with jitter, where the density is finite."""
        rng = np.random.default_rng(seed)
        flat = np.asarray(self._map().data, dtype=np.float64)
        for _ in range(50):
            tried = flat + rng.uniform(-JITTER, JITTER, len(flat))
            if np.isfinite(self.density(tried)):
                return tried
        if not np.isfinite(self.density(flat)):
            raise ValueError("the model's log-density is NaN or infinite wherever it was tried")
        return flat

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
        """Where the coordinates of variables in another order are among ours."""
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

    def integrate(self, features: tuple[Any, ...], size: int) -> Callable[..., tuple[Array, Array]]:
        """Gains of features along lines: by their gradients, and by their values at the ends (`check_gradients`)."""
        from pytensor import tensor as pt

        variables = {v.name: v[None] for v in (*self.model.free_RVs, *self.model.deterministics)}
        psi = trace_features(features, variables, (pt, pt.special))
        (replaced,) = self.model.replace_rvs_by_values([psi])
        inputs = {v.name: v for v in self.model.value_vars}
        slopes = [
            pt.grad(replaced[j], [inputs[n] for n in self.names], disconnected_inputs="ignore") for j in range(size)
        ]
        rows = [pt.concatenate([slope.ravel() for slope in own]) for own in slopes]
        function = self.model.compile_fn(
            [replaced, pt.stack(rows)], inputs=self.model.value_vars, on_unused_input="ignore"
        )

        def gains(first: Floats, last: Floats, nodes: Floats, weights: Floats) -> tuple[Array, Array]:
            gained, ahead = [], []
            for a, b in zip(first, last, strict=True):
                along = [function(self._dictionary(a + t * (b - a)))[1] @ (b - a) for t in nodes]
                gained.append(weights @ np.array(along))
                ahead.append(function(self._dictionary(b))[0] - function(self._dictionary(a))[0])
            return np.array(gained), np.array(ahead)

        return gains

    def chain(
        self,
        multipliers: Floats,
        position: Floats,
        n_draws: int,
        tune: int,
        covariance: Floats | None,
        step: float | None,
        target: float,
        seed: int,
    ) -> _Chain:
        """One chain of NUTS."""
        import pymc
        from pymc.step_methods.hmc.quadpotential import QuadPotentialDiag, QuadPotentialDiagAdapt, QuadPotentialFull

        self.set(multipliers)
        d = len(position)
        if self._step is None:
            with self.model:
                self._step = pymc.NUTS(target_accept=target)
        nuts = self._step
        order = self._order([v.name for v in nuts.vars])
        if covariance is None:
            nuts.potential = QuadPotentialDiagAdapt(d, position[order], np.ones(d), 10)
        else:
            covariance = covariance[order] if covariance.ndim == 1 else covariance[np.ix_(order, order)]
            nuts.potential = QuadPotentialDiag(covariance) if covariance.ndim == 1 else QuadPotentialFull(covariance)
        nuts.integrator = type(nuts.integrator)(nuts.potential, nuts._logp_dlogp_func)
        nuts.set_rng(np.random.default_rng(seed))
        nuts.potential.set_rng(np.random.default_rng([seed, 1]))
        first = step if step is not None else 0.1
        nuts.step_adapt = type(nuts.step_adapt)(first, target, 0.05, 0.75, 10)
        nuts.tune = tune > 0
        nuts.iter_count = 0
        at = self._dictionary(position)
        point = {v.name: at[v.name] for v in nuts.vars}  # NUTS reads a point in the order that it comes in
        kept, rows, n_gradients = [], [], 0
        for i in range(tune + n_draws):
            if i == tune:
                nuts.stop_tuning()
            point, (stats, *_) = nuts.step(point)
            n_gradients += int(stats["tree_size"])
            if i >= tune:
                kept.append(self._flat(point))
                rows.append(stats)
        statistics = {
            "diverging": np.array([bool(r["diverging"]) for r in rows]),
            "energy": np.array([float(r["energy"]) for r in rows]),
            "n_steps": np.array([int(r["tree_size"]) for r in rows]),
            "acceptance_rate": np.array([float(r["mean_tree_accept"]) for r in rows]),
            "step_size": np.array([float(r["step_size_bar"]) for r in rows]),  # "step_size" is tuning's last
        }
        return _Chain(np.array(kept), statistics, n_gradients, float(rows[-1]["step_size_bar"]))
