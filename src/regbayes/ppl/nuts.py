"""Common base of NumPyro, BlackJAX and PyMC models: adaptive NUTS under a tilt."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from regbayes._types import Array, Flags, Floats
from regbayes.ppl.tracing import has_jump, is_conditional
from regbayes.resampling.sampler import Run, Sampler, Start, Tilt

FACTOR = "regularization"  # name of the factor in returned models
TARGETS = (0.8, 0.95, 0.99)  # target acceptance rates without, after and after repeated divergences
MANY_DIVERGENCES = 1e-3  # divergence rate that raises the target acceptance rate of the next run
N_LINES = 12  # lines for detecting jumps

WarmUp = Literal["cold", "short", "long"]


@dataclass(frozen=True)
class Adaptation:
    """Adaptation state passed from one run to the next."""

    step: float = 0.1
    covariance: Floats | None = None  # (d, d) or (d,)
    target: float = TARGETS[0]


@dataclass(frozen=True, eq=False)
class Chains:
    """Draws and statistics of NUTS chains."""

    positions: Floats  # (n_chains, n_draws, d)
    statistics: Mapping[str, Array]  # name -> (n_chains, n_draws)
    n_gradients: int
    adaptation: Adaptation


def scatter(center: Floats, spread: float, density: Callable[[Floats], Array], seed: int, n: int) -> Floats:
    """Return random positions (n, d) near a center, where the log-density is finite; the center if none is found."""
    rng = np.random.default_rng(seed)
    found = np.repeat(center[None], n, axis=0)
    is_missing = np.ones(n, dtype=bool)
    for shrinkage in 0.9 ** np.arange(50):
        tried = center + shrinkage * spread * rng.uniform(-1, 1, found.shape)
        fine = is_missing & np.isfinite(density(tried))
        found[fine] = tried[fine]
        is_missing &= ~fine
        if not is_missing.any():
            break
    return found


class NUTSModel(Sampler):
    """A model with a log-density and its gradient over a flat, unconstrained position."""

    @abstractmethod
    def starts(self, seed: int, n: int) -> Floats:
        """Return initial positions of a first run, (n, d)."""

    @abstractmethod
    def variables_at(self, positions: Floats) -> dict[str, Array]:
        """Return the model's variables at positions, (n, ...) each."""

    @abstractmethod
    def run_chains(
        self, tilt: Tilt, positions: Floats, n_draws: int, warm_up: WarmUp, adaptation: Adaptation, seed: int
    ) -> Chains:
        """Run one chain from each position, (n, d)."""

    def example(self) -> Mapping[str, Array]:
        """Return the variables at n initial points, with n unlike any axis length."""
        shapes = {length for values in self.variables_at(self.starts(0, 1)).values() for length in values.shape[1:]}
        return self.variables_at(self.starts(0, min(set(range(2, len(shapes) + 3)) - shapes)))

    def draw(self, tilt: Tilt, n_draws: int, *, seed: int, start: Start | None, final: bool) -> Run:
        """Run NUTS chains; the first run has twice as many, from overdispersed points."""
        left = None if start is None else start.adaptation
        if start is None or start.positions is None:
            positions, warm_up = self.starts(seed, 2 * self.n_chains), "cold"
        else:
            positions, warm_up = start.positions, "cold" if left is None else "long" if final else "short"
        adaptation: Adaptation = left or Adaptation()
        if start is not None and start.covariance is not None:
            adaptation = replace(adaptation, covariance=start.covariance)
        chains = self.run_chains(tilt, positions, n_draws, warm_up, adaptation, seed)  # type: ignore[arg-type]
        flat = self.variables_at(chains.positions.reshape(-1, chains.positions.shape[2]))
        variables = {name: values.reshape(len(positions), n_draws, *values.shape[1:]) for name, values in flat.items()}
        target = adaptation.target
        if np.mean(chains.statistics["diverging"]) > MANY_DIVERGENCES:
            target = TARGETS[2] if final and target >= TARGETS[1] else max(target, TARGETS[1])
        adaptation = replace(chains.adaptation, target=target)
        return Run(variables, chains.positions, chains.statistics, chains.n_gradients, adaptation)

    @abstractmethod
    def compile_functions(self, part: Any) -> Callable[[Floats], Array]:
        """Return a constraint's functions of positions, (n, d) -> (n, k)."""

    @np.errstate(all="ignore")
    def find_smooth(self, tilt: Tilt) -> Flags:
        """Test each function for jumps along lines from initial points to distant points."""
        ends = self.starts(0, 2 * N_LINES)
        first, last = ends[:N_LINES], 10.0 * ends[N_LINES:]
        smooth: list[bool] = []
        for part in tilt.features:
            if is_conditional(part):  # an indicator jumps at the boundary of its event
                smooth += [False] * Tilt((part,), np.zeros(0)).evaluate(self.variables_at(first)).shape[1]
                continue
            evaluate = self.compile_functions(part)
            smooth += [not has_jump(evaluate, j, first, last) for j in range(evaluate(first).shape[1])]
        return np.array(smooth, dtype=np.bool_)
