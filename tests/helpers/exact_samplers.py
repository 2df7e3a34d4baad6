"""Samplers with exact independent draws, for tests of `resample`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import logsumexp

from regbayes.ppl import Run, Sampler, Start, Tilt


class ExactGaussian(Sampler):
    """Sampler of ``x ~ N(mean, covariance)`` for affine constraint functions."""

    def __init__(self, mean: Any, covariance: Any, n_chains: int = 4) -> None:
        self.mean, self.covariance = np.asarray(mean, dtype=float), np.asarray(covariance, dtype=float)
        self.n_chains = n_chains
        self.starts: list[Start | None] = []

    def slope(self, tilt: Tilt) -> np.ndarray:
        d = len(self.mean)
        points = np.vstack([np.zeros(d), np.eye(d)])
        if not tilt.features:
            return np.zeros(d)
        scores = tilt({"x": points})
        return scores[1:] - scores[0]

    def draw(self, tilt: Tilt, n_draws: int, *, seed: int, start: Start | None, final: bool) -> Run:
        self.starts.append(start)
        rng = np.random.default_rng(seed)
        moved = self.mean + self.covariance @ self.slope(tilt)
        x = rng.multivariate_normal(moved, self.covariance, size=(self.n_chains, n_draws), method="cholesky")
        return Run({"x": x}, positions=x, n_gradients=self.n_chains * n_draws)

    def log_density(self, tilt: Tilt, positions: np.ndarray) -> np.ndarray:
        away = positions - self.mean
        plain = -0.5 * np.sum(away * np.linalg.solve(self.covariance, away.T).T, axis=1)
        return plain + (positions @ self.slope(tilt))


class ExactGrid(Sampler):
    """Sampler of one variable on a grid, for any constraint functions."""

    def __init__(self, grid: Any, log_density: Callable[[np.ndarray], np.ndarray], n_chains: int = 4) -> None:
        self.grid, self.plain, self.n_chains = np.asarray(grid, dtype=float), log_density, n_chains

    def log_weights(self, tilt: Tilt) -> np.ndarray:
        logs = self.plain(self.grid)
        if tilt.features:
            logs = logs + tilt({"x": self.grid})
        return logs - logsumexp(logs)

    def draw(self, tilt: Tilt, n_draws: int, *, seed: int, start: Start | None, final: bool) -> Run:
        rng = np.random.default_rng(seed)
        weights = np.exp(self.log_weights(tilt))
        chosen = rng.choice(len(self.grid), size=(self.n_chains, n_draws), p=weights / weights.sum())
        return Run({"x": self.grid[chosen]}, n_gradients=self.n_chains * n_draws)


class StuckGrid(ExactGrid):
    """Grid sampler whose chains do not cross zero, as if stuck in modes."""

    def __init__(self, grid: Any, log_density: Callable[[np.ndarray], np.ndarray], sides: Any) -> None:
        super().__init__(grid, log_density, len(sides))
        self.sides = np.asarray(sides)

    def draw(self, tilt: Tilt, n_draws: int, *, seed: int, start: Start | None, final: bool) -> Run:
        rng = np.random.default_rng(seed)
        logs = self.log_weights(tilt)
        chains = []
        for side in self.sides:
            weights = np.exp(logs) * (np.sign(self.grid) == side)
            chains.append(rng.choice(self.grid, size=n_draws, p=weights / weights.sum()))
        return Run({"x": np.array(chains)})
