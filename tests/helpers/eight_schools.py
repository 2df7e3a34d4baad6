"""Eight schools in NumPyro, and exact results by quadrature."""

from __future__ import annotations

from typing import Any

import numpy as np

EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
STANDARD_ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
TARGET = 20.0


def schools(effects: Any, errors: Any) -> None:
    import numpyro
    from numpyro import distributions as dist

    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("school", 8):
        standard = numpyro.sample("standard", dist.Normal(0.0, 1.0))
        theta = numpyro.deterministic("theta", mu + tau * standard)
        numpyro.sample("y", dist.Normal(theta, errors), obs=effects)


def mean_effect(v: Any) -> Any:
    return v.theta.mean(axis=1)


def exact_log_partition(phi: float) -> tuple[float, float]:
    """Return ``A(phi)`` and its derivative by quadrature over mu and log(tau)."""
    mu = np.linspace(-40, 60, 801)[:, None]
    u = np.linspace(-9, 7, 801)[None]
    tau = np.exp(u)
    logs = -0.5 * (mu / 5) ** 2 - np.log1p((tau / 5) ** 2) + u
    mean = np.zeros_like(logs)
    plain = logs.copy()
    for y, s in zip(EFFECTS, STANDARD_ERRORS, strict=True):
        precision = 1 / s**2 + 1 / tau**2
        center = (y / s**2 + mu / tau**2) / precision
        evidence = -0.5 * np.log(s**2 + tau**2) - 0.5 * (y - mu) ** 2 / (s**2 + tau**2)
        logs = logs + evidence + phi / 8 * center + 0.5 * (phi / 8) ** 2 / precision
        plain = plain + evidence
        mean += (center + phi / 8 / precision) / 8
    top = logs.max()
    weights = np.exp(logs - top)
    value = top + np.log(weights.sum()) - plain.max() - np.log(np.exp(plain - plain.max()).sum())
    return float(value), float((weights * mean).sum() / weights.sum())


def exact_answer() -> tuple[float, float]:
    """Return the multiplier for the target mean effect, and the KL divergence."""
    from scipy.optimize import brentq

    phi = float(brentq(lambda x: exact_log_partition(x)[1] - TARGET, 0, 3))
    return phi, phi * TARGET - exact_log_partition(phi)[0]
