"""What several examples share: a sampler, and the option that writes the figure."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def elliptical_slice(
    log_likelihood: Callable[[Floats], float],
    prior_scale: Floats,
    n_draws: int,
    rng: np.random.Generator,
    n_warmup: int = 500,
) -> Floats:
    """Draw from ``likelihood x N(0, diag(prior_scale^2))`` (Murray, Adams and MacKay, AISTATS 2010).

    Any sampler would do. This one needs twenty lines and no tuning, and its draws are of the exact posterior.

    Returns
    -------
    array of shape (n_draws, d)
    """
    point = np.zeros_like(prior_scale)
    height = log_likelihood(point)
    draws = np.empty((n_draws, len(point)))
    for i in range(-n_warmup, n_draws):
        other = prior_scale * rng.standard_normal(len(point))
        level = height - rng.exponential()
        angle = rng.uniform(0.0, 2 * np.pi)
        low, high = angle - 2 * np.pi, angle
        while True:
            proposal = point * np.cos(angle) + other * np.sin(angle)
            height = log_likelihood(proposal)
            if height > level:
                break
            low, high = (angle, high) if angle < 0 else (low, angle)
            angle = rng.uniform(low, high)
        point = proposal
        if i >= 0:
            draws[i] = point
    return draws


def figure_path(description: str) -> Path | None:
    """Return where ``--figure`` says that the figure goes; None without the option."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--figure", type=Path, help="write the figure to this file")
    path: Path | None = parser.parse_args().figure
    return path
