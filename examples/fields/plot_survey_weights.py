"""
Survey weights that match known totals
======================================

A survey has too few young respondents, and a census gives the totals of age groups and regions. Raking (iterative
proportional fitting) changes the weights of the respondents until the margins match. It finds the weights closest to
the design weights in KL divergence, so it is a special case of posterior regularization.
"""

# %%
# A survey and two known margins
# ------------------------------
# The survey is simulated: older people respond more often, and the response depends on age.

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from ipfn import ipfn

from regbayes import E, Samples, regularize

rng = np.random.default_rng(0)
ages, regions = ["18-34", "35-54", "55+"], ["north", "south"]
n = 2_000
survey = pd.DataFrame(
    {"age": rng.choice(ages, n, p=[0.15, 0.35, 0.50]), "region": rng.choice(regions, n, p=[0.6, 0.4])}
)
survey["approves"] = rng.random(n) < survey["age"].map({"18-34": 0.65, "35-54": 0.50, "55+": 0.35})
age_shares = pd.Series({"18-34": 0.30, "35-54": 0.33, "55+": 0.37})
region_shares = pd.Series({"north": 0.45, "south": 0.55})

# %%
# Calibrate the weights
# ---------------------
# Each respondent is a draw, and each known share a constraint on an indicator. The last share of a margin follows from
# the others; such a redundant constraint gets the multiplier zero.

respondents = Samples({"approves": survey["approves"].to_numpy(float)})
constraints = [
    E((survey[column] == category).to_numpy(float), name=f"{column} {category}") == share
    for column, shares in (("age", age_shares), ("region", region_shares))
    for category, share in shares.items()
]
result = regularize(respondents, constraints)
print(result)
before, after = respondents.expectation("approves")[0], result.expectation("approves")[0]
print(f"approval: {before:.3f} unweighted, {after:.3f} calibrated")

# %%
# The same with ipfn
# ------------------
# The package scales the cells of the table until both margins match. All respondents of a cell have the same weight.

table = survey.groupby(["age", "region"]).size().rename("total").astype(float).reset_index()
margins = [n * age_shares.rename_axis("age"), n * region_shares.rename_axis("region")]
raked = ipfn.ipfn(table, margins, [["age"], ["region"]], convergence_rate=1e-12).iteration()
cells = survey.assign(weight=result.posterior.weights * n).groupby(["age", "region"])["weight"].sum()
difference = raked.set_index(["age", "region"])["total"] - cells
print(f"largest difference of a cell of {n} respondents: {difference.abs().max():.1e}")

# %%
# Margins with errors
# -------------------
# Shares that come from another survey have errors. ``within`` gives each a tolerance, and the weights change less:
# the effective sample size is larger.

tolerant = regularize(
    respondents,
    [E((survey["age"] == age).to_numpy(float), name=f"age {age}").within(0.03, of=s) for age, s in age_shares.items()],
)
sizes = {"exact": result.effective_sample_size, "within 0.03": tolerant.effective_sample_size}
print("effective sample size:", {name: round(size) for name, size in sizes.items()})

fig, ax = plt.subplots(figsize=(5.5, 3.2), layout="constrained")
weights = pd.DataFrame(
    {"age": survey["age"], "exact": n * result.posterior.weights, "within 0.03": n * tolerant.posterior.weights}
)
weights.groupby("age").mean().plot.bar(ax=ax, rot=0, ylabel="mean weight")
ax.axhline(1.0, color="#9a9a9a", linewidth=1)
plt.show()

# %%
# Mean weight by age group; the design weight is one (gray line). Young respondents count more after calibration.
