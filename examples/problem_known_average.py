"""A known average: draws from a probabilistic program, and an expert who knows the mean effect.

The page docs/problems/known_average.md walks through it. Needs ArviZ (``pip install -e '.[ppl]'``).
"""

from __future__ import annotations

import arviz as az
import numpy as np

from example_tools import figure_path
from regbayes import E, InfeasibleError, Samples, regularize

figure = figure_path(__doc__)

# --- the posterior, as the sampler left it
schools = az.load_arviz_data("non_centered_eight")
posterior = Samples(schools)


def mean_effect(theta):
    return theta.mean("school")


# --- the answer
result = regularize(posterior, E(mean_effect) == 3.0)
print(result)

# --- what it did to the schools
names = schools.posterior["school"].values
before, after = posterior.expectation("theta"), result.expectation("theta")
print("\nschool             before  after  moved")
for name, b, a in zip(names, before, after, strict=True):
    print(f"{name:17s} {b:7.2f} {a:6.2f} {a - b:6.2f}")
print(f"{'sd between':17s} {posterior.expectation('tau')[0]:7.2f} {result.expectation('tau')[0]:6.2f}")

# --- how firmly to believe it
wishes = {
    "== 3": E(mean_effect) == 3.0,
    "within 1 of 3": E(mean_effect).within(1.0, of=3.0),
    "soft == 3, penalty 0.1": (E(mean_effect) == 3.0).soft(0.1),
    "soft == 3, penalty 0.1, squared": (E(mean_effect) == 3.0).soft(0.1, power=2),
}
print("\nwish                              mean     KL (nats)  multiplier  effective draws")
for wish, constraint in wishes.items():
    r = regularize(posterior, constraint)
    print(f"{wish:32s} {r.after[0]:5.2f} {r.kl:13.3f} {r.multipliers[0]:11.3f} {r.effective_sample_size:16.0f}")

# --- asking for more than the draws hold
print()
try:
    regularize(posterior, E(mean_effect) == 40.0)
except InfeasibleError as error:
    print(error)

# --- back to ArviZ
back = result.to_arviz()
print(f"\nin ArviZ: {float(back.posterior['theta'].mean()):.2f}")

if figure:
    import matplotlib.pyplot as plt

    from regbayes.plots import PosteriorShiftDisplay

    fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    PosteriorShiftDisplay.from_result(result, mean_effect, name="mean effect over the schools", bins=30, ax=left)
    order = np.argsort(before)
    rows = np.arange(len(names))
    right.hlines(rows, after[order], before[order], color="#9a9a9a", linewidth=1.5)
    right.plot(before[order], rows, "o", color="#9a9a9a", label="before")
    right.plot(after[order], rows, "o", color="#0072b2", label="after")
    right.set_yticks(rows, names[order])
    right.set(xlabel="effect of coaching (points)")
    right.legend(frameon=False, loc="lower right", fontsize="small")
    for side in ("top", "right"):
        right.spines[side].set_visible(False)
    fig.savefig(figure, dpi=110)
