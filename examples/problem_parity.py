"""Parity between groups: a risk model that does not see sex, and predicts more risk for one sex all the same.

The page docs/problems/parity.md walks through it.
"""

from __future__ import annotations

import warnings

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, log_expit
from sklearn.datasets import load_diabetes

from example_tools import figure_path
from regbayes import E, Gaussian, Samples, regularize

figure = figure_path(__doc__)
diabetes = load_diabetes(scaled=False)
high = diabetes.target > np.median(diabetes.target)
group_2 = diabetes.data[:, 1] == 2  # the data set codes sex as 1 and 2
train, test = np.array_split(np.random.default_rng(0).permutation(len(high)), 2)


# --- the posterior: logistic regression with a standard normal prior, by Laplace's approximation
def laplace_posterior(columns):
    values = diabetes.data[:, columns]
    rows = (values - values[train].mean(axis=0)) / values[train].std(axis=0)
    rows = np.column_stack([np.ones(len(rows)), rows])

    def minus_log_posterior(w):
        return w @ w / 2 - log_expit(np.where(high[train], 1, -1) * (rows[train] @ w)).sum()

    mode = minimize(minus_log_posterior, np.zeros(rows.shape[1]), method="BFGS").x
    rates = expit(rows[train] @ mode)
    precision = np.eye(len(mode)) + (rows[train].T * rates * (1 - rates)) @ rows[train]
    return rows, Gaussian(mode, np.linalg.inv(precision))


rows, posterior = laplace_posterior([0, 2, 3, 4, 5, 6, 7, 8, 9])  # every column but sex

# --- parity of the scores: an affine feature, so the answer is exact
score_gap = rows[train][group_2[train]].mean(axis=0) - rows[train][~group_2[train]].mean(axis=0)
result = regularize(posterior, E(score_gap, name="score gap").within(0.3, of=0))
print(result)


# --- what it costs on the patients kept aside
def report(name, rows, posterior):
    rates = expit(posterior.sample(0, size=4000) @ rows[test].T).mean(axis=0)
    gap = rates[group_2[test]].mean() - rates[~group_2[test]].mean()
    log_loss = -np.mean(np.log(np.where(high[test], rates, 1 - rates)))
    print(f"{name:34s} {gap:+8.3f} {np.mean((rates > 0.5) == high[test]):9.3f} {log_loss:9.3f}")
    return gap, log_loss


observed = high[test][group_2[test]].mean() - high[test][~group_2[test]].mean()
print(f"\nkept aside; observed gap {observed:+.3f}       gap  accuracy  log loss")
plain = report("without sex", rows, posterior)
report("without sex, score gap within 0.3", rows, result.posterior)
with_sex = report("with sex", *laplace_posterior(np.arange(10)))


print()
allowed = [0.8, 0.6, 0.4, 0.3, 0.2, 0.0]
path = [regularize(posterior, E(score_gap).within(eps, of=0)) for eps in allowed]
points = [report(f"score gap within {eps}", rows, r.posterior) for eps, r in zip(allowed, path, strict=True)]


# --- parity of the predicted rates: not affine, so it needs draws
def rate_gap(w):
    rates = expit(w @ rows[train].T)
    return rates[:, group_2[train]].mean(axis=1) - rates[:, ~group_2[train]].mean(axis=1)


print("\nfrom draws of the posterior:")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    far = regularize(Samples(posterior.sample(1, size=8000)), E(rate_gap).within(0.05, of=0))
print(f"after {far.after[0]:.3f}, k-hat {far.pareto_k:.2f}, effective draws {far.effective_sample_size:.0f} of 8000")
print(f"{caught[0].category.__name__}: {str(caught[0].message).split(' (')[0]}")

print("\nfrom draws near the answer:")
draws = result.sample(1, size=8000)
log_weights = -result.multipliers[0] * (draws @ score_gap)  # back from the tilted Gaussian to the posterior
near = regularize(Samples(draws, log_weights), E(rate_gap).within(0.05, of=0))
print(f"after {near.after[0]:.3f}, k-hat {near.pareto_k:.2f}, effective draws {near.effective_sample_size:.0f} of 8000")

if figure:
    import matplotlib.pyplot as plt

    from regbayes.plots import PosteriorShiftDisplay

    fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    PosteriorShiftDisplay.from_result(result, score_gap, name="gap between the mean scores", ax=left)
    right.plot(*np.transpose(points), "o-", color="#0072b2")
    for eps, point in zip(allowed, points, strict=True):
        right.annotate(f"within {eps}", point, xytext=(7, 3), textcoords="offset points", fontsize="small")
    for name, point in (("without sex", plain), ("with sex", with_sex)):
        right.plot(*point, "s", color="#d55e00")
        right.annotate(name, point, xytext=(0, -15), textcoords="offset points", ha="center", fontsize="small")
    right.set(xlabel="gap between predicted rates, kept aside", ylabel="log loss, kept aside")
    right.margins(x=0.22, y=0.14)
    right.locator_params(axis="x", nbins=5)
    for side in ("top", "right"):
        right.spines[side].set_visible(False)
    fig.savefig(figure, dpi=110)
