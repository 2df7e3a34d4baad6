"""
An expert's inequality
======================

Impose an order that an expert knows and the data violate.

Four doses of a drug were given to twenty patients each; 3, 8, 5 and 11 of them responded (simulated). A
pharmacologist states that the response rate does not fall with the dose. Under independent uniform priors its posterior
mean falls between 10 and 20 mg.
"""

# %%
# Three meanings of an order
# --------------------------
# The expert may mean that the rates are ordered on average, with probability 0.95, or almost surely.

import matplotlib.pyplot as plt
import numpy as np

from regbayes import E, InfeasibleError, Samples, regularize
from regbayes.plots import PosteriorShiftDisplay

doses = ["5 mg", "10 mg", "20 mg", "40 mg"]
responders = np.array([3, 8, 5, 11])
rate = np.random.default_rng(0).beta(1 + responders, 21 - responders, size=(20_000, 4))
posterior = Samples({"rate": rate})


def step_up(v):
    return np.diff(v["rate"], axis=1)


def in_order(v):
    return np.all(np.diff(v["rate"], axis=1) >= 0, axis=1)


on_average = regularize(posterior, E(step_up) >= 0)
probably = regularize(posterior, E(in_order) >= 0.95)
surely = regularize(posterior, E(in_order) == 1)

# %%
# ``step_up`` has three columns, so the first statement is three constraints. Only the violated one has a multiplier;
# the others hold with slack.

print(on_average)

# %%
# The expectation of an indicator is a probability.

print(probably)

# %%
# No finite multiplier gives probability one. The status is ``boundary``, and the solution is the limit: the posterior
# conditional on ordered rates, as with an ordered prior.

print(surely)

# %%
# Compare them
# ------------
# The first statement changes the posterior least, and its rates still violate the order with a probability of two
# thirds. If the order is certain, use the third statement. If violations are unlikely, use the second, or a penalty.

readings = {
    "posterior": posterior,
    "in order on average": on_average,
    "in order, probability 0.95": probably,
    "in order surely": surely,
}
print(f"{'':28s}" + "".join(f"{dose:>8s}" for dose in doses) + "   P(in order)")
for name, q in readings.items():
    print(f"{name:28s}" + "".join(f"{m:8.3f}" for m in q.expectation("rate")) + f"{q.expectation(in_order)[0]:14.3f}")

fig, axes = plt.subplots(1, 3, figsize=(10.5, 3.3), layout="constrained")
difference = step_up({"rate": rate})[:, 1]
for ax, title, r in zip(axes, ("in order on average", "in order surely"), (on_average, surely), strict=False):
    PosteriorShiftDisplay.from_result(r, difference, ax=ax, name="rate at 20 mg minus rate at 10 mg", bins=40)
    ax.set_title(title, fontsize="medium")
for (name, q), color in zip(readings.items(), ("#9a9a9a", "#0072b2", "#56b4e9", "#d55e00"), strict=True):
    axes[2].plot(doses, q.expectation("rate"), "o-", color=color, label=name)
axes[2].plot(doses, responders / 20, "kx", label="observed")
axes[2].set(ylabel="mean response rate", ylim=(0.0, 0.95))
axes[2].legend(frameon=False, loc="upper left", fontsize="small")
plt.show()

# %%
# Posterior of the difference between 20 mg and 10 mg, unconstrained (gray) and constrained (blue), in expectation
# (left) and surely (middle). Right: posterior mean response rate by dose; only the unconstrained posterior falls.
#
# An expert who may be wrong
# --------------------------
# ``soft(penalty)`` penalizes each unit of violation. A penalty above the multiplier of the hard constraint is
# equivalent to the hard constraint.

print("penalty   step 10 to 20 mg      KL (nats)")
for penalty in (1, 2, 4, 8):
    soft = regularize(posterior, (E(step_up) >= 0).soft(penalty))
    print(f"{penalty:7d}   {soft.after[1]:+16.3f}   {soft.kl:12.3f}")

# %%
# Contradictory constraints
# -------------------------
# A difference of at least 0.5 between the lowest and the highest dose contradicts three steps of at most 0.1. The error
# names the constraints and the smallest violation that they need.

highest_minus_lowest = E(lambda v: v["rate"][:, 3] - v["rate"][:, 0], name="40 mg minus 5 mg")
try:
    regularize(posterior, [highest_minus_lowest >= 0.5, E(step_up) <= 0.1])
except InfeasibleError as error:
    print(error)
