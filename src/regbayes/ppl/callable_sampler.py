"""Wrapper for custom samplers, such as Metropolis, Gibbs or Stan through BridgeStan."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, final

import numpy as np

from regbayes._types import Array
from regbayes.resampling.sampler import Run, Sampler, Start, Tilt


@final
class CallableSampler(Sampler):
    """A model sampled by a user's function, which draws one chain.

    Parameters
    ----------
    draw : callable
        ``draw(tilt, n_draws, rng, start)`` returns a mapping from names to arrays of shape (n_draws, ...), one chain of
        ``p exp<multipliers, features>``. Add ``tilt(variables)`` to the log-density; the arrays need a leading axis of
        draws (for one draw, ``tilt({"x": x[None]})[0]``). ``rng`` is a NumPy generator. ``start`` is None in the first
        run, and otherwise a mapping with an earlier draw as the initial point.
    n_chains : int, default=4

    Examples
    --------
    A random-walk Metropolis sampler of a standard normal variable, with a mean of 3:

    >>> import numpy as np
    >>> from regbayes import E, resample
    >>> from regbayes.ppl import CallableSampler
    >>> def metropolis(tilt, n_draws, rng, start):
    ...     x = rng.normal() if start is None else float(start["x"])
    ...     def log_density(x):
    ...         return -0.5 * x**2 + tilt({"x": np.array([x])})[0]
    ...     kept, here = [], log_density(x)
    ...     for i in range(20 * (n_draws + 20)):
    ...         y = x + 2 * rng.normal()
    ...         there = log_density(y)
    ...         if np.log(rng.random()) < there - here:
    ...             x, here = y, there
    ...         if i % 20 == 19 and i >= 400:
    ...             kept.append(x)
    ...     return {"x": np.array(kept)}
    >>> result = resample(CallableSampler(metropolis), E("x") == 3, n_draws=200)
    >>> str(result.status), bool(abs(result.multipliers[0] - 3) < 5 * result.multipliers_mcse[0])
    ('optimal', True)
    """

    def __init__(self, draw: Callable[..., Mapping[str, Any]], n_chains: int = 4) -> None:
        if not callable(draw):
            raise TypeError(f"draw must be a function that draws a chain, got {type(draw).__name__}")
        try:
            inspect.signature(draw).bind(None, 1, None, None)
        except TypeError as error:
            raise TypeError(
                f"draw is called as draw(tilt, n_draws, rng, start), which it does not take: {error}"
            ) from None
        if n_chains < 2:
            raise ValueError(f"n_chains must be at least 2, so that chains can be compared, got {n_chains!r}")
        self.function, self.n_chains = draw, n_chains

    def draw(self, tilt: Tilt, n_draws: int, *, seed: int, start: Start | None, final: bool) -> Run:
        """Draw the chains sequentially."""
        chains = []
        given = 0 if start is None else len(next(iter(start.variables.values())))
        for i, own in enumerate(np.random.SeedSequence(seed).spawn(max(self.n_chains, given))):
            at = None if start is None else {name: values[i] for name, values in start.variables.items()}
            found = self.function(tilt, n_draws, np.random.default_rng(own), at)
            chains.append(_checked(found, n_draws))
        return Run({name: np.stack([chain[name] for chain in chains]) for name in chains[0]})


def _checked(found: Any, n_draws: int) -> dict[str, Array]:
    if not isinstance(found, Mapping) or not found:
        raise TypeError(
            f"the sampler's function must return a mapping from names to arrays, got {type(found).__name__}"
        )
    chain = {str(name): np.asarray(values) for name, values in found.items()}
    for name, values in chain.items():
        if values.ndim == 0 or len(values) != n_draws:
            raise ValueError(f"the sampler's function was asked for {n_draws} draws; {name!r} has shape {values.shape}")
        if values.dtype.kind == "f" and not np.all(np.isfinite(values)):
            raise ValueError(f"the sampler's function returned NaN or infinite draws of {name!r}")
    return chain
