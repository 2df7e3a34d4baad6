"""Chains of a NUTS kernel in JAX under a tilt: compiled once, with the multipliers as an argument.

Steps are made in chunks of one length, which is all that is compiled. The step size adapts inside, by the acceptance
of all chains; only at the beginning of a first run each chain has its own, since one that starts where the density is
steep would otherwise never move. Between chunks the mass matrix is taken from the draws of all of them.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from regbayes._types import Array, Flags, Floats
from regbayes.ppl.smoothness import PAIRS, check_gradients
from regbayes.ppl.symbolic import trace_features
from regbayes.resampling.sampler import (
    MOST_DENSE,
    Run,
    Sampler,
    Start,
    Tilt,
    climb_density,
    count_examples,
    shrunken_covariance,
)

CHUNK = 25  # steps
# Warm-up, window by window: steps; whether the mass matrix is taken from them; whether chains have steps of their own.
COLD = ((25, False, True), (25, True, True), (50, True, True), (75, True, False), (25, False, False))  # of a first run
SHORT = ((50, False, False),)  # of a run that starts warm
LONG = ((25, False, False), (75, True, False), (50, False, False))  # of a final run
TARGET, CAREFUL, MOST_CAREFUL = 0.8, 0.95, 0.99  # acceptance asked for; after divergences; after more in a final run
DIVERGING = 1e-3  # share of the draws from which on the next run is made with more care
FIRST_STEP = 0.1
STUCK, AWAY = 0.8, 30  # share of diverging steps by which a chain has not got going; steps uphill that it makes then
RATE = 1.5  # of the log step size's first moves, for an acceptance that is off by one
POINTS = 96  # at which densities are evaluated at once


class Averaging(NamedTuple):
    """The log step size of each chain on its way, and the average that is kept."""

    log_step: Any
    log_average: Any
    count: Any


@dataclass(frozen=True)
class Adaptation:
    """What a run leaves to the next."""

    step: float
    covariance: Floats  # (d, d) or (d,)
    target: float


@dataclass(frozen=True)
class Kernel:
    """A NUTS kernel: how a chain starts and how it steps."""

    init: Callable[..., Any]  # (position, log_density) -> state
    step: Callable[..., Any]  # (key, state, log_density, step_size, inverse_mass) -> state, info
    position: Callable[..., Any]  # state -> position


class JAXModel(Sampler):
    """A log-density in JAX over a flat position, and the variables that belong to it."""

    def __init__(self, n_chains: int = 4) -> None:
        self.n_chains = n_chains
        self._compiled: dict[tuple[int, ...], tuple[tuple[Any, ...], _Compiled]] = {}

    @abstractmethod
    def _density(self, position: Any) -> Any:
        """The model's log-density at a flat position, traced."""

    @abstractmethod
    def _constrain(self, position: Any) -> Mapping[str, Any]:
        """The model's variables at a flat position, traced."""

    @abstractmethod
    def _starts(self, seed: int, n: int) -> Floats:
        """Positions to start a first run from, (n, d)."""

    @abstractmethod
    def _kernel(self) -> Kernel:
        """The kernel to step with."""

    def example(self) -> Mapping[str, Array]:
        """Return the variables at a few points to start from."""
        return self._variables_at(self._starts(0, count_examples(self._variables_at(self._starts(0, 1)))))

    def _variables_at(self, positions: Floats) -> dict[str, Array]:
        import jax

        found = jax.vmap(self._constrain)(jax.numpy.asarray(positions))
        return {name: np.asarray(values) for name, values in found.items()}

    def _for(self, tilt: Tilt) -> _Compiled:
        """What was compiled for these features."""
        key = tuple(map(id, tilt.features))
        if key not in self._compiled:
            self._compiled = {key: (tilt.features, _Compiled(self, tilt.features))}  # holds what the ids belong to
        return self._compiled[key][1]

    def draw(self, tilt: Tilt, n_draws: int, *, seed: int, start: Start | None, final: bool) -> Run:
        """Run chains of NUTS; the first run has twice as many, from points far apart."""
        compiled = self._for(tilt)
        cold = start is None or start.positions is None
        positions = self._starts(seed, 2 * self.n_chains) if cold else np.asarray(start and start.positions)
        left = None if start is None else start.adaptation
        goes_on = not cold and isinstance(left, Adaptation) and start is not None and start.covariance is None
        d = positions.shape[1]
        covariance = np.eye(d) if d <= MOST_DENSE else np.ones(d)
        if start is not None and start.covariance is not None:
            covariance = start.covariance
        elif isinstance(left, Adaptation):
            covariance = left.covariance
        step, target = (left.step, left.target) if isinstance(left, Adaptation) else (FIRST_STEP, TARGET)
        windows: tuple[tuple[int, bool, bool], ...] = COLD if cold or left is None else LONG if final else SHORT
        if goes_on and target <= TARGET:  # otherwise with smaller steps, since it diverged
            windows = ()
        chains = _Chains(compiled, tilt.multipliers, positions, seed, covariance, step, target)
        for n_steps, renewed, alone in windows:
            diverging = chains.adapt(n_steps, renewed, alone)
            stuck = np.flatnonzero(diverging.mean(axis=1) > STUCK) if alone else ()
            for i in stuck:  # on a cliff that no step size is small enough for
                chains.positions[i] = climb_density(self, tilt, chains.positions[i], np.ones(d), AWAY)
        kept = chains.keep(n_draws)
        n = len(positions)
        trail = kept["position"]
        flat = self._variables_in_blocks(trail.reshape(-1, d))
        variables = {name: values.reshape(n, n_draws, *values.shape[1:]) for name, values in flat.items()}
        statistics = {name: kept[name] for name in ("diverging", "energy", "n_steps", "acceptance_rate", "lp")}
        statistics["step_size"] = np.repeat(chains.step_sizes[:, None], n_draws, axis=1)
        if np.mean(kept["diverging"]) > DIVERGING:
            target = MOST_CAREFUL if final and target >= CAREFUL else max(target, CAREFUL)
        adaptation = Adaptation(chains.step, chains.covariance, target)
        return Run(variables, trail, statistics, chains.n_gradients, adaptation)

    def _variables_in_blocks(self, positions: Floats) -> dict[str, Array]:
        import jax

        if not hasattr(self, "_constrain_many"):
            self._constrain_many = jax.jit(jax.vmap(self._constrain))
        blocks = [self._constrain_many(padded) for padded in _padded(positions, 400)]
        names = blocks[0].keys()
        return {n: np.concatenate([np.asarray(b[n]) for b in blocks])[: len(positions)] for n in names}

    def log_density(self, tilt: Tilt, positions: Floats) -> Floats | None:
        """Return the tilted log-density at positions."""
        compiled = self._for(tilt)
        blocks = [np.asarray(compiled.density(p, _array(tilt.multipliers))) for p in _padded(positions, POINTS)]
        values: Floats = np.concatenate(blocks)[: len(positions)].astype(np.float64)
        return values

    def log_density_gradient(self, tilt: Tilt, position: Floats) -> Floats | None:
        """Return the gradient of the tilted log-density at a position."""
        found = self._for(tilt).gradient(_array(position), _array(tilt.multipliers))
        return np.asarray(found, dtype=np.float64)

    def find_smooth(self, tilt: Tilt, run: Run) -> Flags | None:
        """Compare differences of features between draws with the integral of their gradients along the way."""
        if run.positions is None:  # draws that came from elsewhere: points to start from serve as well
            flat = self._starts(0, 2 * PAIRS)
            variables: Mapping[str, Array] = self._variables_at(flat)
        else:
            flat = run.positions.reshape(-1, run.positions.shape[2])
            variables = {n: v.reshape(-1, *v.shape[2:]) for n, v in run.variables.items()}
        values = tilt.evaluate(variables)
        smooth: list[bool] = []
        for part in tilt.features:
            own = Tilt((part,), np.zeros(0)).evaluate(variables).shape[1]
            columns = slice(len(smooth), len(smooth) + own)
            try:
                smooth += list(self._follows(part, flat, values[:, columns]))
            except Exception:  # what JAX cannot trace has no gradient
                smooth += [False] * own
        return np.array(smooth, dtype=np.bool_)

    def _follows(self, part: Any, positions: Floats, values: Floats) -> Flags:
        import jax

        def psi(z: Any) -> Any:
            return _traced(self, (part,), z)

        def integrate(first: Floats, last: Floats, nodes: Floats, weights: Floats) -> tuple[Array, Array]:
            def along(a: Any, b: Any) -> Any:
                def slope(t: Any) -> Any:
                    return jax.jvp(psi, (a + t * (b - a),), (b - a,))[1]

                return _array(weights) @ jax.vmap(slope)(_array(nodes))

            ahead = jax.vmap(psi)(_array(last)) - jax.vmap(psi)(_array(first))
            return np.asarray(jax.vmap(along)(_array(first), _array(last))), np.asarray(ahead)

        return check_gradients(positions, values, integrate)


class _Compiled:
    """The functions of one list of features."""

    def __init__(self, model: JAXModel, features: tuple[Any, ...]) -> None:
        import jax

        self.kernel = model._kernel()
        traceable = bool(features)

        def density(position: Any, phi: Any) -> Any:
            value = model._density(position)
            if not traceable:
                return value

            def tilt(at: Any) -> Any:
                return phi @ _traced(model, features, at)

            # Not evaluated where there is no tilt: a feature may be infinite where the posterior is not.
            return value + jax.lax.cond(jax.numpy.any(phi != 0), tilt, lambda at: 0.0 * at[0], position)

        def plain(position: Any, phi: Any) -> Any:
            return model._density(position) + 0 * phi.sum()

        if traceable:
            try:
                jax.eval_shape(lambda z: _traced(model, features, z), _array(model._starts(0, 1)[0]))
            except Exception:  # some feature cannot be traced: `find_smooth` says which, and no run has a tilt
                density = plain
        self.density = jax.jit(jax.vmap(density, in_axes=(0, None)))
        self.gradient = jax.jit(jax.grad(density))
        self.chunk = jax.jit(self._steps(density))

    def _steps(self, density: Callable[..., Any]) -> Callable[..., Any]:
        """A chunk of steps of all chains; unless alone, each of their acceptances says something of all step sizes."""
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
    """Robbins-Monro on the log step size: after few steps dual averaging is still far below, from its first plunge."""
    count = state.count + 1
    log_step = state.log_step - RATE * (count + 1) ** -0.6 * shortfall
    share = count**-0.75
    return Averaging(log_step, share * log_step + (1 - share) * state.log_average, count)


class _Chains:
    """Chains on their way: positions, step sizes and the mass matrix between chunks."""

    def __init__(
        self,
        compiled: _Compiled,
        phi: Floats,
        positions: Floats,
        seed: int,
        covariance: Floats,
        step: float,
        target: float,
    ) -> None:
        import jax

        self.compiled, self.phi, self.positions, self.covariance = compiled, _array(phi), positions, covariance
        self.key = jax.random.PRNGKey(seed)
        self.step, self.target = step, target
        self.n_gradients = 0
        self._average = self._begin(step)

    def _begin(self, step: float) -> Averaging:
        logs = _array(np.full(len(self.positions), math.log(step)))
        return Averaging(logs, logs, _array(0.0))

    @property
    def step_sizes(self) -> Floats:
        """What draws are made with, (n_chains,)."""
        return np.exp(np.asarray(self._average.log_average, dtype=np.float64))

    def _run(self, n_steps: int, adapts: bool, alone: bool = False) -> dict[str, Array]:
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
                alone,
                self.target,
            )
            self.positions = np.array(z, dtype=np.float64)
            trails.append({name: np.asarray(values) for name, values in trail.items()})
            self.n_gradients += int(trails[-1]["n_steps"].sum()) + len(self.positions)
        return {name: np.concatenate([t[name] for t in trails], axis=1) for name in trails[0]}

    def adapt(self, n_steps: int, renewed: bool, alone: bool) -> Array:
        """Go on with adaptation; ``renewed`` takes the mass matrix from these steps. Return where they diverged."""
        trail = self._run(n_steps, adapts=True, alone=alone)
        self.step = math.exp(float(np.median(np.asarray(self._average.log_average))))
        if renewed:
            moved = trail["position"].astype(np.float64)
            flat = moved.reshape(-1, moved.shape[2])
            weights = np.full(len(flat), 1 / len(flat))
            self.covariance = shrunken_covariance(flat, weights, len(flat) / 4)  # they repeat each other
            self._average = self._begin(self.step)
        return trail["diverging"]

    def keep(self, n_draws: int) -> dict[str, Array]:
        """Draw without adaptation."""
        trail = self._run(n_draws, adapts=False)
        kept = {name: values[:, :n_draws] for name, values in trail.items()}
        kept["position"] = kept["position"].astype(np.float64)
        return kept


def _traced(model: JAXModel, features: tuple[Any, ...], position: Any) -> Any:
    import jax
    from jax import numpy as jnp

    variables = {name: jnp.asarray(value)[None] for name, value in model._constrain(position).items()}
    return trace_features(features, variables, (jnp, jax.scipy.special, jax.nn))


def _array(values: Any) -> Any:
    from jax import numpy as jnp

    return jnp.asarray(values, dtype=jnp.result_type(float))


def _padded(positions: Floats, size: int) -> list[Any]:
    """Cut positions into pieces of one size, the last filled up, so that one shape is compiled."""
    pieces = []
    for begin in range(0, len(positions), size):
        piece = positions[begin : begin + size]
        filled = np.concatenate([piece, np.repeat(piece[-1:], size - len(piece), axis=0)])
        pieces.append(_array(filled))
    return pieces
