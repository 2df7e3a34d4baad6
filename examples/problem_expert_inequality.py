"""An expert's inequality: a dose-response table that is not in order, and a pharmacologist who says it must be.

The page docs/problems/expert_inequality.md walks through it.
"""

from __future__ import annotations

import numpy as np

from example_tools import figure_path
from regbayes import E, InfeasibleError, Samples, regularize

figure = figure_path(__doc__)

# --- the posterior: four doses, twenty patients each, uniform priors
doses = ["5 mg", "10 mg", "20 mg", "40 mg"]
responders = np.array([3, 8, 5, 11])
rate = np.random.default_rng(0).beta(1 + responders, 21 - responders, size=(20_000, 4))
posterior = Samples({"rate": rate})


def step_up(v):
    return np.diff(v["rate"], axis=1)


def in_order(v):
    return np.all(np.diff(v["rate"], axis=1) >= 0, axis=1)


# --- three readings of "the response does not fall with the dose"
on_average = regularize(posterior, E(step_up) >= 0)
probably = regularize(posterior, E(in_order) >= 0.95)
surely = regularize(posterior, E(in_order) == 1)
print(on_average)
print(probably)
print(surely)

# --- side by side
print(f"\n{'':28s}" + "".join(f"{dose:>8s}" for dose in doses) + "   P(in order)")
print(f"{'responders of 20':28s}" + "".join(f"{n:8d}" for n in responders))
readings = {
    "posterior": posterior,
    "in order on average": on_average,
    "in order, probability 0.95": probably,
    "in order surely": surely,
}
for name, q in readings.items():
    print(f"{name:28s}" + "".join(f"{m:8.3f}" for m in q.expectation("rate")) + f"{q.expectation(in_order)[0]:14.3f}")

# --- an expert who may be wrong
print("\npenalty   step 10 to 20 mg      KL (nats)")
for penalty in (1, 2, 4, 8):
    doubted = regularize(posterior, (E(step_up) >= 0).soft(penalty))
    print(f"{penalty:7d}   {doubted.after[1]:+16.3f}   {doubted.kl:12.3f}")

# --- an expert who asks for too much
highest_dose_does_most = E(lambda v: v["rate"][:, 3] - v["rate"][:, 0], name="40 mg minus 5 mg") >= 0.5
little_at_any_step = E(step_up) <= 0.1
try:
    regularize(posterior, [highest_dose_does_most, little_at_any_step])
except InfeasibleError as error:
    print(f"\n{error}")

if figure:
    import matplotlib.pyplot as plt

    from regbayes.plots import PosteriorShiftDisplay

    fig, axes = plt.subplots(1, 3, figsize=(10.5, 3.3), layout="constrained")
    step = {"name": "rate at 20 mg minus rate at 10 mg", "bins": 40}
    feature = step_up({"rate": rate})[:, 1]
    PosteriorShiftDisplay.from_result(on_average, feature, ax=axes[0], **step)
    PosteriorShiftDisplay.from_result(surely, feature, ax=axes[1], **step)
    axes[0].set_title("in order on average", fontsize="medium")
    axes[1].set_title("in order surely", fontsize="medium")
    for (name, q), color in zip(readings.items(), ("#9a9a9a", "#0072b2", "#56b4e9", "#d55e00"), strict=True):
        axes[2].plot(doses, q.expectation("rate"), "o-", color=color, label=name)
    axes[2].plot(doses, responders / 20, "kx", label="observed")
    axes[2].set(ylabel="mean response rate", ylim=(0.0, 0.95))
    axes[2].legend(frameon=False, loc="upper left", fontsize="small")
    for side in ("top", "right"):
        axes[2].spines[side].set_visible(False)
    fig.savefig(figure, dpi=110)
