"""Reweighting and rerunning a model with the multipliers as a factor agree.

Constraints are imposed on NUTS draws of non-centered eight schools (Rubin 1981). The same model then runs with the
multipliers as a factor. Constrained and other expectations must agree.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from regbayes import E, RegularizedPosterior, Samples, regularize

pytestmark = pytest.mark.numpyro

EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
STANDARD_ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
N_CHAINS, N_DRAWS = 4, 2500
OTHERS = ["theta[0]", "theta[2]", "theta[7]"]


def psi(v: Any) -> Any:
    """Return the average effect and log(1 + tau), whose tail is light."""
    return np.column_stack([v.mu, np.log1p(v.tau)])


@dataclass(frozen=True)
class Runs:
    before: Samples
    regularized: RegularizedPosterior
    after: Samples


def effective_draws(samples: Samples, feature: Any) -> np.ndarray:
    """Effective sample size of the chains per feature, at most their size.

    NUTS may exceed it for a mean, but this advantage is lost under weights.
    """
    from numpyro.diagnostics import effective_sample_size

    values = samples.evaluate(feature).values
    return np.minimum(effective_sample_size(values.reshape(N_CHAINS, N_DRAWS, -1)), len(values))


@pytest.fixture(scope="module")
def runs() -> Runs:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # import warnings of NumPyro and JAX are not ours
        import jax.numpy as jnp
        import numpyro
        from jax import random
        from numpyro import distributions as dist
        from numpyro.infer import MCMC, NUTS

    def eight_schools(multipliers: Any) -> None:
        mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
        tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
        standard = numpyro.sample("standard", dist.Normal(0.0, 1.0).expand([8]))
        theta = numpyro.deterministic("theta", mu + tau * standard)
        numpyro.factor("regularization", multipliers @ jnp.stack([mu, jnp.log1p(tau)]))
        numpyro.sample("y", dist.Normal(theta, STANDARD_ERRORS), obs=EFFECTS)

    def draw(seed: int, multipliers: np.ndarray) -> Samples:
        sampler = MCMC(
            NUTS(eight_schools, target_accept_prob=0.95),
            num_warmup=1000,
            num_samples=N_DRAWS,
            num_chains=N_CHAINS,
            chain_method="vectorized",
            progress_bar=False,
        )
        sampler.run(random.PRNGKey(seed), jnp.asarray(multipliers))
        return Samples(sampler.get_samples(group_by_chain=True), chains=True)

    before = draw(0, np.zeros(2))
    constraints = [E("mu") >= 6.0, E(lambda v: np.log1p(v.tau), name="log1p(tau)") <= 1.0]
    regularized = regularize(before, constraints)
    return Runs(before, regularized, draw(1, regularized.multipliers))


def standard_errors(runs: Runs, feature: Any) -> np.ndarray:
    """Monte Carlo standard errors of reweighted minus rerun expectations.

    The effective sample size of reweighted draws is that of the chain times that of the weights.
    """
    weights_kept = runs.regularized.effective_sample_size / runs.before.n_atoms
    spread = runs.after.evaluate(feature).values.std(axis=0)
    reweighted = effective_draws(runs.before, feature) * weights_kept
    return spread * np.sqrt(1 / reweighted + 1 / effective_draws(runs.after, feature))


def test_both_constraints_are_active_and_weights_are_reliable(runs: Runs) -> None:
    result = runs.regularized
    assert result.status == "optimal"
    assert result.gap < 1e-8
    assert result.multipliers[0] > 0 > result.multipliers[1]
    np.testing.assert_allclose(result.expectation(psi), [6.0, 1.0], atol=1e-6)
    assert result.pareto_k < 0.5
    assert result.effective_sample_size > 0.2 * result.base.n_atoms


def test_rerun_with_multipliers_meets_constraints(runs: Runs) -> None:
    rerun = runs.after.expectation(psi)
    errors = standard_errors(runs, psi)
    assert np.all(np.abs(rerun - [6.0, 1.0]) < 4 * errors)
    # Without the factor, the expectations are many standard errors away.
    assert np.all(np.abs(runs.before.expectation(psi) - [6.0, 1.0]) > 12 * errors)


@pytest.mark.parametrize("feature", OTHERS)
def test_unconstrained_expectations_agree(runs: Runs, feature: str) -> None:
    reweighted, rerun = runs.regularized.expectation(feature), runs.after.expectation(feature)
    assert np.all(np.abs(reweighted - rerun) < 4 * standard_errors(runs, feature))


def test_probabilities_agree(runs: Runs) -> None:
    def first_is_best(v: Any) -> Any:
        return v.theta.argmax(axis=1) == 0

    reweighted, rerun = runs.regularized.expectation(first_is_best), runs.after.expectation(first_is_best)
    assert np.all(np.abs(reweighted - rerun) < 4 * standard_errors(runs, first_is_best))


def test_regularizing_the_rerun_has_no_effect_beyond_noise(runs: Runs) -> None:
    """The rerun meets the constraints already, so its own multipliers are noise."""
    again = regularize(runs.after, E(psi, name="psi") == [6.0, 1.0])
    covariance = np.cov(runs.after.evaluate(psi).values.T)
    allowed = 4 * np.abs(np.linalg.inv(covariance)) @ standard_errors(runs, psi)
    assert np.all(np.abs(again.multipliers) < allowed)
    assert again.kl < 0.1 * runs.regularized.kl


def test_to_arviz_keeps_chains(runs: Runs) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # ArviZ before 1 announces ArviZ 1 when imported
        pytest.importorskip("arviz")
    posterior = runs.regularized.to_arviz()["posterior"]
    assert posterior["theta"].shape == (N_CHAINS, N_DRAWS, 8)
    np.testing.assert_allclose(float(posterior["mu"].mean()), 6.0, atol=0.05)
