"""
A Gibbs sampler of your own under constraints
=============================================

Eighty years of counts, with a rate that falls in an unknown year. The sampler adds the log-factor of the constraint to
its log-density. :doc:`/own_sampler` explains it.
"""

from __future__ import annotations

import numpy as np
from scipy.special import gammaln

from regbayes import E, Finite, regularize, resample
from regbayes.ppl import CallableSampler

rng = np.random.default_rng(0)
COUNTS = np.concatenate([rng.poisson(4.0, 40), rng.poisson(1.5, 40)])
YEARS = np.arange(1, 80)  # the change comes after so many years
BEFORE = np.cumsum(COUNTS)[:-1]  # events up to then, and from then on
AFTER = COUNTS.sum() - BEFORE


def gibbs(tilt, n_draws, rng, start):
    early, late = (2.0, 2.0) if start is None else (float(start["early"]), float(start["late"]))
    kept = {"year": [], "early": [], "late": []}
    for sweep in range(-100, 3 * n_draws):
        # The year given both rates: all years at once, each with its tilt.
        logs = BEFORE * np.log(early) - YEARS * early + AFTER * np.log(late) - (80 - YEARS) * late
        logs += tilt({"year": YEARS, "early": np.full(79, early), "late": np.full(79, late)})
        chances = np.exp(logs - logs.max())
        year = rng.choice(YEARS, p=chances / chances.sum())
        # The rates given the year, as without a tilt; then the tilt decides whether to go there.
        proposed = rng.gamma(1 + BEFORE[year - 1]) / (1 + year), rng.gamma(1 + AFTER[year - 1]) / (81 - year)
        both = {"year": np.array([year, year])}
        both |= {name: np.array(pair) for name, *pair in zip(("early", "late"), (early, late), proposed, strict=True)}
        here, there = tilt(both)
        if np.log(rng.random()) < there - here:
            early, late = proposed
        if sweep >= 0 and sweep % 3 == 2:
            for name, value in (("year", year), ("early", early), ("late", late)):
                kept[name].append(value)
    return {name: np.array(values) for name, values in kept.items()}


def exact(asked):
    """Integrate the rates in closed form, and enumerate the years."""
    logs = gammaln(1 + BEFORE) - (1 + BEFORE) * np.log(1 + YEARS)
    logs += gammaln(1 + AFTER) - (1 + AFTER) * np.log(81 - YEARS)
    return regularize(Finite({"year": YEARS}, log_weights=logs), asked)


def main():
    asked = E("year") == 50  # a new statute lowered the rate then
    result = resample(CallableSampler(gibbs), asked)
    print(result)
    print(result.runs_table())
    truth = exact(asked)
    print(f"exactly: multiplier {truth.multipliers[0]:.4f}, KL {truth.kl:.3f} nats")
    ratio = result.expectation(lambda early, late: early / late)
    print(f"early rate over late rate, with the change there: {float(ratio[0]):.2f}")


if __name__ == "__main__":
    main()
