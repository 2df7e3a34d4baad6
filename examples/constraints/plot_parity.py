"""
Parity between groups
=====================

Reduce the difference between the risks that a model predicts for two groups.

The diabetes data of scikit-learn contain 442 patients. A logistic regression predicts whether the disease of a patient
progresses faster than the median, without the column for sex. On held-out patients the two sexes progress about
equally often, but the model predicts fast progression more often for one: other columns are proxies for sex.
"""

# %%
# A Gaussian posterior
# --------------------
# Half of the patients determine the posterior, by Laplace's approximation. The other half are held out.

import matplotlib.pyplot as plt
import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, log_expit
from sklearn.datasets import load_diabetes

from regbayes import E, Gaussian, Samples, regularize
from regbayes.plots import PosteriorShiftDisplay

diabetes = load_diabetes(scaled=False)
is_high = diabetes.target > np.median(diabetes.target)
is_group_2 = diabetes.data[:, 1] == 2  # the data set codes sex as 1 and 2
train, test = np.array_split(np.random.default_rng(0).permutation(len(is_high)), 2)


def laplace_posterior(columns):
    values = diabetes.data[:, columns]
    inputs = (values - values[train].mean(axis=0)) / values[train].std(axis=0)
    inputs = np.column_stack([np.ones(len(inputs)), inputs])

    def minus_log_posterior(w):
        return w @ w / 2 - log_expit(np.where(is_high[train], 1, -1) * (inputs[train] @ w)).sum()

    mode = minimize(minus_log_posterior, np.zeros(inputs.shape[1]), method="BFGS").x
    rates = expit(inputs[train] @ mode)
    precision = np.eye(len(mode)) + (inputs[train].T * rates * (1 - rates)) @ inputs[train]
    return inputs, Gaussian(mode, np.linalg.inv(precision))


inputs, posterior = laplace_posterior([0, 2, 3, 4, 5, 6, 7, 8, 9])  # every column except sex

# %%
# Parity of the scores
# --------------------
# Constraint functions of a ``Gaussian`` are affine functions of the coefficients. The difference between the mean
# scores (log-odds) of the groups is one. Tilting a Gaussian along an affine function moves its mean, so the solution
# is exact. The divergence is large: under the posterior, a model with so small a gap is rare.

score_gap = inputs[train][is_group_2[train]].mean(axis=0) - inputs[train][~is_group_2[train]].mean(axis=0)
result = regularize(posterior, E(score_gap, name="score gap").within(0.3, of=0))
print(result)

# %%
# What parity costs
# -----------------
# The table has the gap between the predicted rates, accuracy and log loss on held-out patients. Parity lowers
# accuracy. A model that uses sex has hardly any gap and the lowest log loss, because it does not need to infer
# sex from blood values. If using sex is permitted, it is the better remedy.


def evaluate(name, inputs, posterior):
    rates = expit(posterior.sample(0, size=4000) @ inputs[test].T).mean(axis=0)
    gap = rates[is_group_2[test]].mean() - rates[~is_group_2[test]].mean()
    log_loss = -np.mean(np.log(np.where(is_high[test], rates, 1 - rates)))
    print(f"{name:34s} {gap:+8.3f} {np.mean((rates > 0.5) == is_high[test]):9.3f} {log_loss:9.3f}")
    return gap, log_loss


print(f"{'held-out patients':34s} {'gap':>8s} {'accuracy':>9s} {'log loss':>9s}")
without_sex = evaluate("without sex", inputs, posterior)
with_sex = evaluate("with sex", *laplace_posterior(np.arange(10)))
tolerances = [0.8, 0.6, 0.4, 0.3, 0.2, 0.0]
path = [regularize(posterior, E(score_gap).within(eps, of=0)) for eps in tolerances]
points = [evaluate(f"score gap within {eps}", inputs, r.posterior) for eps, r in zip(tolerances, path, strict=True)]

fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
PosteriorShiftDisplay.from_result(result, score_gap, name="gap between the mean scores", ax=left)
right.plot(*np.transpose(points), "o-", color="#0072b2")
for eps, point in zip(tolerances, points, strict=True):
    right.annotate(f"within {eps}", point, xytext=(7, 3), textcoords="offset points", fontsize="small")
for name, point in (("without sex", without_sex), ("with sex", with_sex)):
    right.plot(*point, "s", color="#d55e00")
    right.annotate(name, point, xytext=(0, -15), textcoords="offset points", ha="center", fontsize="small")
right.set(xlabel="gap between predicted rates, held out", ylabel="log loss, held out")
right.margins(x=0.22, y=0.14)
plt.show()

# %%
# Left: posterior of the score gap before (gray) and after (blue). Right: held-out log loss against the gap between
# predicted rates, for decreasing tolerances (blue) and for the unconstrained models (orange).
#
# Parity of the predicted rates
# -----------------------------
# The difference between predicted *rates* is not affine, so it needs draws. Almost no draw of the posterior is
# near the solution: the weighted draws satisfy the constraint, but k-hat is above 0.7 and the draws are unreliable.


def rate_gap(w):
    rates = expit(w @ inputs[train].T)
    return rates[:, is_group_2[train]].mean(axis=1) - rates[:, ~is_group_2[train]].mean(axis=1)


far = regularize(Samples(posterior.sample(1, size=8000)), E(rate_gap).within(0.05, of=0))
print(far)

# %%
# The Gaussian solution above is close, and easy to sample. Its importance weights relative to the posterior are one
# line, because it is the posterior tilted by ``multiplier * score_gap``. The draws then support the solution. Do not
# read ``near.before`` and ``near.kl`` here, because the weights of the *input* are now poor. With a model instead of
# a Gaussian, :func:`regbayes.resample` does the same automatically.

draws = result.sample(1, size=8000)
log_weights = -result.multipliers[0] * (draws @ score_gap)
near = regularize(Samples(draws, log_weights), E(rate_gap).within(0.05, of=0))
print(f"after {near.after[0]:.3f}, k-hat {near.pareto_k:.2f}, effective draws {near.effective_sample_size:.0f} of 8000")

# %%
# What expectation constraints do not guarantee
# ---------------------------------------------
# The gap is small on average over the posterior. A single draw of the coefficients can have a larger gap, and so can
# new patients. To bound the probability of a large gap, constrain its indicator: ``E(lambda w: np.abs(rate_gap(w)) >
# 0.1) <= 0.05``.
