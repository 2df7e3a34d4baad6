"""
Conditional expectations, probabilities and variances
=====================================================

Constrain probabilities, quantiles, conditional expectations, predictions, variances and correlations.
:doc:`/statements` explains them. Needs ArviZ.
"""

from __future__ import annotations

import arviz as az

from regbayes import Corr, E, Var, regularize, regularize_moments

schools = az.load_arviz_data("non_centered_eight")


def shown(name, result, *features):
    values = "  ".join(f"{float(result.expectation(f)):.3f} ± {result.mcse(f)[0]:.3f}" for f in features)
    print(f"{name:44s} {values}")


# --- draws in an ArviZ object
print(regularize(schools, E("mu") >= 6))
print()

# --- constraint functions of named variables
spread = E(lambda v: v.theta.std("school"), name="spread of the schools") <= 2
choate = E(lambda v: v.theta.sel(school="Choate") - v.theta.sel(school="Deerfield"), name="Choate - Deerfield") <= 1
signal = E(lambda mu, tau: mu / (1 + tau), name="mu / (1 + tau)") >= 2
ready_made = E(schools.posterior["theta"].mean("school"), name="mean effect") >= 5
print(regularize(schools, [spread, choate, signal, ready_made]))
print()

# --- probabilities and quantiles, by expectations of indicators
likely = regularize(schools, E(lambda mu: mu > 0) >= 0.99)
median = regularize(schools, E(lambda mu: mu <= 3) == 0.5)
shown("P(mu > 0) >= 0.99: mean of mu", likely, "mu")
print(f"{'median of mu at 3: quartiles of mu':44s} {median.quantile('mu', [0.25, 0.5, 0.75])[0].round(2)}")

# --- conditional expectations
large_spread = E("mu").given(lambda v: v.tau > 5, name="tau > 5")
conditional = regularize(schools, large_spread == 2)
shown("E(mu | tau > 5) == 2: given, and over all", conditional, large_spread, "mu")

# --- predictions
school = E(lambda v: v.posterior_predictive.obs[:, 0] > 20, name="P(y > 20) at Choate")
predicted = regularize(schools, school <= 0.1)
shown("P(y > 20) at Choate <= 0.1: mean of mu", predicted, "mu")

# --- variances and correlations
narrow = regularize_moments(schools, [Var("mu") <= 4, E("mu") == 4])
print()
print(narrow)
apart = regularize_moments(schools, Corr("mu", lambda v: v.theta.sel(school="Choate"), name="mu, Choate") == 0.2)
print()
print(f"correlation {apart.before[0]:.3f} before, {abs(apart.after[0]):.3f} after {apart.regularized.kl:.3f} nats")
