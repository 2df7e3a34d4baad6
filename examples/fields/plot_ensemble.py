"""
Ensembles that match an experiment with errors
==============================================

A simulation gives an ensemble of molecular structures, and an experiment measures averages over the true ensemble,
with errors. The ensemble is reweighted so that its averages agree with the measurements within their errors (Hummer
and Köfinger, J. Chem. Phys. 2015): the weights minimize ``theta * KL + chi² / 2``.
"""

# %%
# An ensemble and three measurements
# ----------------------------------
# The structures are simulated: each has three observables. ``theta`` expresses the confidence in the simulation.

import matplotlib.pyplot as plt
import numpy as np
from scipy.optimize import minimize
from scipy.special import softmax

from regbayes import E, Samples, regularize
from regbayes.regularizers import Ridge

rng = np.random.default_rng(0)
observables = rng.gamma([2.0, 4.0, 6.0], [1.0, 0.5, 0.4], size=(5_000, 3))
measured, errors = np.array([2.6, 1.8, 2.7]), np.array([0.10, 0.05, 0.20])
theta = 10.0

# %%
# In units of the errors, ``chi² / 2`` divided by ``theta`` is a ridge penalty around the measurements.

ensemble = Samples(observables)
result = regularize(ensemble, E(lambda x: x / errors, name="scaled").regularized(Ridge(measured / errors, theta)))
print(result)

# %%
# The same by direct minimization
# -------------------------------
# Packages for this problem minimize over the weights of all structures, here by L-BFGS. RegBayes solves the dual,
# which has one variable for each measurement. The package ``bioen`` 0.1.3 cannot be imported with NumPy 2, so SciPy
# is the reference.


def objective(logits):
    weights = softmax(logits)
    excess = (weights @ observables - measured) / errors
    divergence = weights @ np.log(weights * len(weights))
    by_weight = theta * (np.log(weights * len(weights)) + 1) + observables @ (excess / errors)
    return theta * divergence + excess @ excess / 2, weights * (by_weight - weights @ by_weight)


direct = minimize(
    objective, np.zeros(len(observables)), jac=True, method="L-BFGS-B", options={"maxiter": 2_000, "gtol": 1e-10}
)
at_solution = theta * result.kl + np.sum(((result.posterior.weights @ observables - measured) / errors) ** 2) / 2
print(f"objective: {at_solution:.8f} regbayes, {direct.fun:.8f} L-BFGS over {len(observables)} weights")

# %%
# Choose theta
# ------------
# A small ``theta`` also fits the errors of the measurements. The usual choice is the elbow of chi² against the
# divergence.

thetas = np.geomspace(0.1, 1000, 9)
path = [regularize(ensemble, E(lambda x: x / errors).regularized(Ridge(measured / errors, t))) for t in thetas]
chi2 = [np.sum(((r.posterior.weights @ observables - measured) / errors) ** 2) for r in path]
fig, ax = plt.subplots(figsize=(5, 3.2), layout="constrained")
ax.plot([r.kl for r in path], chi2, "o-", color="#0072b2")
for t, r, value in zip(thetas[::2], path[::2], chi2[::2], strict=True):
    ax.annotate(f"{t:g}", (r.kl, value), xytext=(6, 4), textcoords="offset points", fontsize="small")
ax.set(xlabel="KL divergence from the simulation (nats)", ylabel="chi²", yscale="log")
plt.show()

# %%
# Agreement with the measurements (chi²) against the divergence from the simulation, for several values of ``theta``.
