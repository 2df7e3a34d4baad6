"""
Estimates that must add up to a published total
===============================================

A model estimates unemployment in six districts, and the official statistics publish the total. The estimates must add
up to it. If the posterior of the estimates is Gaussian, the closest posterior with that mean moves each estimate in
proportion to its covariance with the total.
"""

# %%
# A Gaussian posterior of district estimates
# ------------------------------------------
# Means and covariance are simulated. A constraint on a Gaussian moves its mean, and the solution is exact.

import matplotlib.pyplot as plt
import numpy as np
from hierarchicalforecast.methods import MinTrace

from regbayes import E, Gaussian, regularize

rng = np.random.default_rng(0)
districts = [f"district {k}" for k in "ABCDEF"]
factor = 0.3 * rng.standard_normal((6, 6)) + np.diag(rng.uniform(0.3, 1.5, 6))
mean, covariance = rng.uniform(5, 15, 6), factor @ factor.T
published = 70.0

result = regularize(Gaussian(mean, covariance), E(np.ones(6), name="total") == published)
print(result)

# %%
# The same with hierarchicalforecast
# ----------------------------------
# Minimum trace reconciliation (Wickramasuriya, Athanasopoulos and Hyndman, JASA 2019) makes forecasts of a hierarchy
# add up. It estimates the covariance from residuals. Residuals drawn from the posterior, and a total with hardly any
# error, give the same problem, up to the sampling error of the covariance.

residuals = rng.multivariate_normal(np.zeros(6), covariance, size=200_000).T
residuals = np.vstack([1e-4 * rng.standard_normal(residuals.shape[1]), residuals])
hierarchy = np.vstack([np.ones(6), np.eye(6)])
forecasts = np.concatenate([[published], mean])[:, None]
mint = (
    MinTrace(method="mint_cov").fit_predict(hierarchy, forecasts, residuals, np.zeros_like(residuals))["mean"].ravel()
)

after = result.posterior.mean
print(f"{'':12s}{'estimate':>10s}{'regbayes':>10s}{'MinT':>10s}")
for name, *numbers in zip(districts, mean, after, mint[1:], strict=True):
    print(f"{name:12s}" + "".join(f"{number:10.3f}" for number in numbers))
print(f"{'total':12s}" + "".join(f"{sum(numbers):10.3f}" for numbers in (mean, after, mint[1:])))

# %%
# Inequalities and tolerances
# ---------------------------
# Add constraints for other knowledge: two districts together have at least 25, and the total is known within 0.5.

both = E(np.array([1.0, 1, 0, 0, 0, 0]), name="districts A and B") >= 25
rough = regularize(Gaussian(mean, covariance), [E(np.ones(6), name="total").within(0.5, of=published), both])
print(rough)

fig, ax = plt.subplots(figsize=(6, 3.2), layout="constrained")
error = np.sqrt(np.diag(covariance))
ax.errorbar(mean, np.arange(6) + 0.12, xerr=error, fmt="o", color="#9a9a9a", label="estimate")
ax.errorbar(after, np.arange(6) - 0.12, xerr=error, fmt="o", color="#0072b2", label="adds up to the total")
ax.set(yticks=range(6), yticklabels=districts, xlabel="unemployed (thousands)")
ax.legend(frameon=False, fontsize="small")
plt.show()

# %%
# Estimates and standard deviations before (gray) and after (blue). Uncertain districts move most. The constraint
# holds for the means, so standard deviations do not change.
