"""
Views on scenarios
==================

A risk model generates scenarios of returns, and analysts have views that the scenarios do not satisfy. Entropy pooling
(Meucci, 2008) reweights the scenarios so that the views hold. It is a special case of posterior regularization: the
scenarios are draws, and views are constraints.
"""

# %%
# Scenarios and views
# -------------------
# The scenarios are simulated. The views: the mean return of bonds is 1%, the root mean square return of stocks is at
# most 18%, and stocks return at least two points more than bonds.

import matplotlib.pyplot as plt
import numpy as np
from entropy_pooling import ep

from regbayes import E, Samples, regularize
from regbayes.plots import PosteriorShiftDisplay

rng = np.random.default_rng(0)
names = ["bonds", "stocks", "gold"]
covariance = np.array([[0.0025, 0.0010, 0.0], [0.0010, 0.0400, 0.0030], [0.0, 0.0030, 0.0225]])
returns = rng.multivariate_normal([0.02, 0.05, 0.03], covariance, size=10_000)
scenarios = Samples(dict(zip(names, returns.T, strict=True)))

views = [
    E("bonds") == 0.01,
    E(lambda v: v.stocks**2, name="second moment of stocks") <= 0.18**2,
    E(lambda v: v.stocks - v.bonds, name="stocks minus bonds") >= 0.02,
]
result = regularize(scenarios, views)
print(result)

# %%
# The same with entropy-pooling
# -----------------------------
# The package takes matrices of equalities and inequalities. Both solve the same convex problem.

bonds, stocks, _ = returns.T
prior = np.full((len(returns), 1), 1 / len(returns))
equalities = np.vstack([np.ones(len(returns)), bonds]), np.array([[1.0], [0.01]])
inequalities = np.vstack([stocks**2, bonds - stocks]), np.array([[0.18**2], [-0.02]])
probabilities = ep(prior, *equalities, *inequalities).ravel()
print(f"largest difference of a probability: {np.abs(probabilities - result.posterior.weights).max():.1e}")

# %%
# Multipliers and diagnostics
# ---------------------------
# Multipliers show which views bind: the last one holds without reweighting, so its multiplier is zero. The duality gap
# certifies the solution, and Monte Carlo errors and Pareto k-hat show whether there are enough scenarios. A view may
# be soft.

soft = regularize(scenarios, [(E("bonds") == 0.01).soft(50.0), *views[1:]])
print(f"mean of bonds with a soft view: {soft.expectation('bonds')[0]:.4f}, KL {soft.kl:.4f} nats")

fig, axes = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
for ax, name in zip(axes, names, strict=False):
    PosteriorShiftDisplay.from_result(result, name, name=f"return of {name}", bins=40, ax=ax)
plt.show()

# %%
# Returns of bonds and stocks before (gray) and after (blue) the views.
