"""Chains of a NUTS kernel in JAX under a tilt, compiled once for all multipliers.

Steps are made in compiled chunks of fixed length. The step size adapts within a chunk to the mean acceptance rate of
all chains. At the beginning of the first run, each chain has its own step size, so that chains in steep regions can
move. Between chunks, the mass matrix is estimated from the draws of all chains.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from regbayes._types import Array, Floats
from regbayes.ppl.nuts import Adaptation, Chains, NUTSModel, WarmUp
from regbayes.ppl.tracing import trace_features
from regbayes.resampling.sampler import MAX_DENSE_COORDINATES, Tilt, shrunken_covariance

CHUNK = 25  # steps per compiled chunk
# Warm-up windows: number of steps, whether to estimate the mass matrix, whether chains have their own step sizes.
WINDOWS: dict[WarmUp, tuple[tuple[int, bool, bool], ...]] = {
    "cold": ((25, False, True), (25, True, True), (50, True, True), (75, True, False), (25, False, False)),
    "short": ((50, False, False),),
    "long": ((25, False, False), (75, True, False), (50, False, False)),
}
STUCK, UPHILL_STEPS = 0.8, 30  # divergence rate of a stuck chain; L-BFGS steps to free it
BLOCK = 128  # positions per evaluation of densities and variables


class Averaging(NamedTuple):
    """Current log step size of each chain and its running average."""

    log_step: Any
    log_average: Any
    count: Any


@dataclass(frozen=True)
class Kernel:
    """Initialization and step functions of a NUTS kernel."""

    init: Callable[..., Any]  # (position, log_density) -> state
    step: Callable[..., Any]  # (key, state, log_density, step_size, inverse_mass) -> state, info
    position: Callable[..., Any]  # state -> position


class JAXModel(NUTSModel):
    """Base of models with a JAX log-density over flat positions."""

    def __init__(self, n_chains: int = 4) -> None:
        self.n_chains = n_chains
        self._compiled: dict[tuple[int, ...], tuple[tuple[Any, ...], _Compiled]] = {}

    @abstractmethod
    def _density(self, position: Any) -> Any:
        """Trace the model's log-density at a flat position."""

    @abstractmethod
    def _constrain(self, position: Any) -> Mapping[str, Any]:
        """Trace the model's variables at a flat position."""

    @abstractmethod
    def _kernel(self) -> Kernel:
        """Return the NUTS kernel."""

    def _for(self, tilt: Tilt) -> _Compiled:
        """Return the compiled code for the tilt's functions."""
        key = tuple(map(id, tilt.features))
        if key not in self._compiled:
            self._compiled = {key: (tilt.features, _Compiled(self, tilt.features))}  # keeps ids in the key valid
        return self._compiled[key][1]

    def run_chains(
        self, tilt: Tilt, positions: Floats, n_draws: int, warm_up: WarmUp, adaptation: Adaptation, seed: int
    ) -> Chains:
        """Warm up in windows, then draw with fixed step sizes."""
        d = positions.shape[1]
        covariance = adaptation.covariance
        if covariance is None:
            covariance = np.eye(d) if d <= MAX_DENSE_COORDINATES else np.ones(d)
        chains = _Moving(self._for(tilt), tilt.multipliers, positions, seed, covariance, adaptation)
        for n_steps, renews, is_alone in WINDOWS[warm_up]:
            diverging = chains.adapt(n_steps, renews, is_alone)
            for i in np.flatnonzero(diverging.mean(axis=1) > STUCK) if is_alone else ():
                chains.positions[i] = self.climb(tilt, chains.positions[i], np.ones(d), UPHILL_STEPS)
        kept = chains.run(n_draws, adapts=False)
        kept = {name: values[:, :n_draws] for name, values in kept.items()}
        statistics = {name: values for name, values in kept.items() if name != "position"}
        statistics["step_size"] = np.repeat(chains.step_sizes[:, None], n_draws, axis=1)
        left = Adaptation(chains.step, chains.covariance, adaptation.target)
        return Chains(kept["position"].astype(np.float64), statistics, chains.n_gradients, left)

    def variables_at(self, positions: Floats) -> dict[str, Array]:
        """Return the variables at positions, evaluated in blocks."""
        import jax

        if not hasattr(self, "_constrain_many"):
            self._constrain_many = jax.jit(jax.vmap(self._constrain))
        found: dict[str, Array] = _in_blocks(self._constrain_many, positions)
        return found

    def log_density(self, tilt: Tilt, positions: Floats) -> Floats | None:
        """Return the tilted log-density at positions."""
        compiled, phi = self._for(tilt), _array(tilt.multipliers)
        values: Floats = _in_blocks(lambda block: compiled.density(block, phi), positions).astype(np.float64)
        return values

    def log_density_gradient(self, tilt: Tilt, position: Floats) -> Floats:
        """Return the gradient of the tilted log-density at a position."""
        found = self._for(tilt).gradient(_array(position), _array(tilt.multipliers))
        return np.asarray(found, dtype=np.float64)

    def compile_functions(self, part: Any) -> Callable[[Floats], Array]:
        """Return a constraint's functions of positions."""
        import jax

        compiled = jax.jit(jax.vmap(lambda position: 1.0 * _trace(self, (part,), position)))
        return lambda positions: _in_blocks(compiled, positions)


class _Compiled:
    """Compiled functions for one list of features."""

    def __init__(self, model: JAXModel, features: tuple[Any, ...]) -> None:
        import jax

        self.kernel = model._kernel()

        def density(position: Any, phi: Any) -> Any:
            value = model._density(position)
            if not features:
                return value

            def tilt(at: Any) -> Any:
                return phi @ _trace(model, features, at)

            # Skipped for zero multipliers, where an infinite function would give NaN.
            return value + jax.lax.cond(jax.numpy.any(phi != 0), tilt, lambda at: 0.0 * at[0], position)

        self.density = jax.jit(jax.vmap(density, in_axes=(0, None)))
        self.gradient = jax.jit(jax.grad(density))
        self.chunk = jax.jit(self._steps(density))

    def _steps(self, density: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that makes a chunk of steps, adapting step sizes jointly unless `alone`."""
        import jax
        from jax import numpy as jnp

        kernel = self.kernel

        def steps(
            z: Any, key: Any, phi: Any, state: Averaging, covariance: Any, adapts: Any, alone: Any, target: Any
        ) -> Any:
            def tilted(position: Any) -> Any:
                return density(position, phi)

            def one(carry: Any, key: Any) -> Any:
                chains, average = carry
                sizes = jnp.exp(jnp.where(adapts, average.log_step, average.log_average))

                def move(key: Any, chain: Any, size: Any) -> Any:
                    return kernel.step(key, chain, tilted, size, covariance)

                chains, info = jax.vmap(move)(jax.random.split(key, z.shape[0]), chains, sizes)
                accepted = jnp.nan_to_num(info["acceptance_rate"])
                moved = _averaged(average, target - jnp.where(alone, accepted, accepted.mean()))
                average = jax.tree.map(lambda new, old: jnp.where(adapts, new, old), moved, average)
                return (chains, average), {"position": jax.vmap(kernel.position)(chains), **info}

            begun = jax.vmap(lambda at: kernel.init(at, tilted))(z)
            (chains, average), trail = jax.lax.scan(one, (begun, state), jax.random.split(key, CHUNK))
            trail = jax.tree.map(lambda values: jnp.swapaxes(values, 0, 1), trail)
            return jax.vmap(kernel.position)(chains), average, trail

        return steps


def _averaged(state: Averaging, shortfall: Any) -> Averaging:
    """Update the log step size by Robbins-Monro, faster than dual averaging in short warm-ups."""
    count = state.count + 1
    log_step = state.log_step - 1.5 * (count + 1) ** -0.6 * shortfall
    share = count**-0.75
    return Averaging(log_step, share * log_step + (1 - share) * state.log_average, count)


class _Moving:
    """State of the chains between chunks: positions, step sizes and mass matrix."""

    def __init__(
        self,
        compiled: _Compiled,
        phi: Floats,
        positions: Floats,
        seed: int,
        covariance: Floats,
        adaptation: Adaptation,
    ) -> None:
        import jax

        self.compiled, self.phi, self.positions, self.covariance = compiled, _array(phi), positions, covariance
        self.key = jax.random.PRNGKey(seed)
        self.step, self.target = adaptation.step, adaptation.target
        self.n_gradients = 0
        self._average = self._begin()

    def _begin(self) -> Averaging:
        logs = _array(np.full(len(self.positions), math.log(self.step)))
        return Averaging(logs, logs, _array(0.0))

    @property
    def step_sizes(self) -> Floats:
        """Step sizes after warm-up, (n_chains,)."""
        return np.exp(np.asarray(self._average.log_average, dtype=np.float64))

    def run(self, n_steps: int, adapts: bool, is_alone: bool = False) -> dict[str, Array]:
        """Make steps in chunks and return the draws of every chain."""
        import jax

        trails = []
        for _ in range(-(-n_steps // CHUNK)):
            self.key, own = jax.random.split(self.key)
            z, self._average, trail = self.compiled.chunk(
                _array(self.positions),
                own,
                self.phi,
                self._average,
                _array(self.covariance),
                adapts,
                is_alone,
                self.target,
            )
            self.positions = np.array(z, dtype=np.float64)
            trails.append({name: np.asarray(values) for name, values in trail.items()})
            self.n_gradients += int(trails[-1]["n_steps"].sum()) + len(self.positions)
        return {name: np.concatenate([t[name] for t in trails], axis=1) for name in trails[0]}

    def adapt(self, n_steps: int, renews: bool, is_alone: bool) -> Array:
        """Run a warm-up window, estimate the mass matrix if ``renews``, return divergences."""
        trail = self.run(n_steps, adapts=True, is_alone=is_alone)
        self.step = math.exp(float(np.median(np.asarray(self._average.log_average))))
        if renews:
            moved = trail["position"].astype(np.float64)
            flat = moved.reshape(-1, moved.shape[2])
            weights = np.full(len(flat), 1 / len(flat))
            self.covariance = shrunken_covariance(flat, weights, len(flat) / 4)  # discounts autocorrelated draws
            self._average = self._begin()
        return trail["diverging"]


def _trace(model: JAXModel, features: tuple[Any, ...], position: Any) -> Any:
    from jax import numpy as jnp

    variables = {name: jnp.asarray(value)[None] for name, value in model._constrain(position).items()}
    return trace_features(features, variables, jnp, "jnp")


def _array(values: Any) -> Any:
    from jax import numpy as jnp

    return jnp.asarray(values, dtype=jnp.result_type(float))


def _in_blocks(function: Callable[[Any], Any], positions: Floats) -> Any:
    """Evaluate a function in padded blocks of equal size, so that only one shape is compiled."""
    import jax

    blocks = [positions[begin : begin + BLOCK] for begin in range(0, len(positions), BLOCK)]
    padded = [np.concatenate([b, np.repeat(b[-1:], BLOCK - len(b), axis=0)]) for b in blocks]
    found = [function(_array(block)) for block in padded]
    return jax.tree.map(lambda *parts: np.concatenate(parts)[: len(positions)], *found)
