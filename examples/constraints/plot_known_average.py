"""
A known average
===============

Impose a known average on draws from a posterior.

A hierarchical model of eight schools was fitted with PyMC. Its draws put the mean effect of a coaching program at
about five points. A much larger study of the same program found three. You do not have its data, so there is no
likelihood to add. This example imposes the average on the draws.
"""

# %%
# State the constraint
# --------------------
# ArviZ ships the draws. A constraint function gets all draws of the variables that its arguments name, here ``theta``
# with its dimensions, and returns one number for each draw.

import arviz as az
import matplotlib.pyplot as plt
import numpy as np

from regbayes import E, InfeasibleError, Samples, regularize
from regbayes.plots import PosteriorShiftDisplay

schools = az.load_arviz_data("non_centered_eight")
posterior = Samples(schools)


def mean_effect(theta):
    return theta.mean("school")


result = regularize(posterior, E(mean_effect) == 3.0)
print(result)

# %%
# The result is the distribution closest to the posterior in KL divergence for which the average is three. It has the
# form ``q ∝ p exp(multiplier * mean_effect)``: the multiplier is the coefficient of the term that you would add to the
# model's log-density for the same effect.
#
# The first line is a verdict on the draws and on the solver. The gap bounds how far the solution is from the optimum.
# Pareto k-hat says how reliable reweighting is; above 0.7 it is not, and a warning says so. The columns marked ± are
# Monte Carlo standard errors.
#
# What changes for each school
# ----------------------------
# The other expectations change too. To first order, the effect of a school changes in proportion to its covariance with
# the average, so uncertain schools change most.

names = schools.posterior["school"].values
before, after = posterior.expectation("theta"), result.expectation("theta")
print("school             before  after  change")
for name, b, a in zip(names, before, after, strict=True):
    print(f"{name:17s} {b:7.2f} {a:6.2f} {a - b:7.2f}")

fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
PosteriorShiftDisplay.from_result(result, mean_effect, name="mean effect over the schools", bins=30, ax=left)
order = np.argsort(before)
position = np.arange(len(names))
right.hlines(position, after[order], before[order], color="#9a9a9a", linewidth=1.5)
right.plot(before[order], position, "o", color="#9a9a9a", label="before")
right.plot(after[order], position, "o", color="#0072b2", label="after")
right.set_yticks(position, names[order])
right.set(xlabel="effect of coaching (points)")
right.legend(frameon=False, loc="lower right", fontsize="small")
plt.show()

# %%
# Left: posterior of the mean effect before (gray) and after (blue). Right: expected effect of each school. The
# constraint moves the mean of the distribution. It does not claim that the mean effect is 3 in every draw.
#
# State how firmly you believe it
# -------------------------------
# ``within`` allows a tolerance. ``soft`` penalizes each unit of violation instead of forbidding it, or its square with
# ``power=2``. Unless violations are squared, no multiplier is larger than the penalty.

constraints = {
    "== 3": E(mean_effect) == 3.0,
    "within 1 of 3": E(mean_effect).within(1.0, of=3.0),
    "soft == 3, penalty 0.1": (E(mean_effect) == 3.0).soft(0.1),
    "soft == 3, penalty 0.1, squared": (E(mean_effect) == 3.0).soft(0.1, power=2),
}
print("constraint                        mean     KL (nats)  multiplier  effective draws")
for name, constraint in constraints.items():
    r = regularize(posterior, constraint)
    print(f"{name:32s} {r.after[0]:5.2f} {r.kl:13.3f} {r.multipliers[0]:11.3f} {r.effective_sample_size:16.0f}")

# %%
# Constraints that draws cannot meet
# ----------------------------------
# Reweighting cannot leave the range of the draws. The error reports how far the draws reach.

try:
    regularize(posterior, E(mean_effect) == 40.0)
except InfeasibleError as error:
    print(error)

# %%
# Return to ArviZ
# ---------------
# ``to_arviz`` resamples the draws by their new weights and keeps chains, dimensions, coordinates and the other groups.
# Resampling rounds the weights to whole copies of draws: use ``result.expectation`` for numbers, and ArviZ for plots
# and summaries.

resampled = result.to_arviz()
print(f"mean effect of the resampled draws: {float(resampled.posterior['theta'].mean()):.2f}")
