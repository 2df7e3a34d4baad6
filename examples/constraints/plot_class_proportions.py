"""
Known class proportions
=======================

You have a few labels, many samples without one, and you know how often each class occurs.

A cellar holds 178 bottles from three growers. Nine have been identified, three of each grower. The inventory lists how
many bottles of each grower there are, but not which. The example is a Bayesian form of label regularization (Mann and
McCallum, JMLR 2010): the predicted proportions of the classifier are constrained to the known ones.
"""

# %%
# A posterior from nine labels
# ----------------------------
# The model is a softmax regression with a standard normal prior on its coefficients. Elliptical slice sampling (Murray,
# Adams and MacKay, AISTATS 2010) draws from the exact posterior; draws of any other sampler would do.

import matplotlib.pyplot as plt
import numpy as np
from scipy.special import log_softmax, softmax
from sklearn.datasets import load_wine

from regbayes import E, Samples, regularize
from regbayes.plots import PosteriorShiftDisplay
from regbayes.regularizers import KL

wine = load_wine()
standardized = (wine.data - wine.data.mean(axis=0)) / wine.data.std(axis=0)
inputs = np.column_stack([np.ones(len(standardized)), standardized])
n_classes = 3
shape = inputs.shape[1], n_classes
rng = np.random.default_rng(0)


def choose_labeled(rng):
    per_class = [rng.choice(np.flatnonzero(wine.target == k), 3, replace=False) for k in range(n_classes)]
    labeled = np.concatenate(per_class)
    return labeled, np.setdiff1d(np.arange(len(inputs)), labeled)


def sample_posterior(labeled, rng, n_draws, n_warmup=500):
    def log_likelihood(coefficients):
        scores = inputs[labeled] @ coefficients.reshape(shape)
        return log_softmax(scores, axis=1)[np.arange(len(labeled)), wine.target[labeled]].sum()

    point = np.zeros(np.prod(shape))
    current = log_likelihood(point)
    draws = np.empty((n_draws, *shape))
    for i in range(-n_warmup, n_draws):
        direction, level = rng.standard_normal(len(point)), current - rng.exponential()
        angle = rng.uniform(0.0, 2 * np.pi)
        low, high = angle - 2 * np.pi, angle
        while True:
            proposal = point * np.cos(angle) + direction * np.sin(angle)
            current = log_likelihood(proposal)
            if current > level:
                break
            low, high = (angle, high) if angle < 0 else (low, angle)
            angle = rng.uniform(low, high)
        point = proposal
        if i >= 0:
            draws[i] = point.reshape(shape)
    return draws


labeled, unlabeled = choose_labeled(rng)
coefficients = sample_posterior(labeled, rng, n_draws=4000)
posterior = Samples({"coefficients": coefficients})

# %%
# Impose the proportions
# ----------------------
# The constraint function returns the predicted shares of the growers among the unlabeled bottles, for each draw.
# ``KL(known, weight=100)`` penalizes 100 times their divergence from the known shares. The weight acts like a number
# of labels of which only the counts by class are known. ``E(share_of_grower) == known`` would impose exact shares.

known = np.array([59, 71, 48]) / 178


def predict(coefficients, bottles):
    return softmax(np.einsum("nd,sdk->snk", inputs[bottles], coefficients), axis=2)


def share_of_grower(v):
    return predict(v["coefficients"], unlabeled).mean(axis=1)


result = regularize(posterior, E(share_of_grower).regularized(KL(known, weight=100)))
print(result)

# %%
# The sampler mixes slowly, so the effective sample size is small, and ``regularize`` warns. The columns
# marked ± are Monte Carlo standard errors. The three shares add up to one, so only differences of the multipliers
# matter: grower 1, whose multiplier is the largest, gains. The column ``miss`` is the remaining distance to the
# target.

fig, axes = plt.subplots(1, 3, figsize=(10, 3.2), layout="constrained", sharey=True)
shares = predict(coefficients, unlabeled).mean(axis=1)
for k, ax in enumerate(axes):
    PosteriorShiftDisplay.from_result(result, shares[:, k], name=f"share of grower {k}", bins=35, ax=ax)
    ax.axvline(known[k], color="#d55e00", linewidth=1.8, label=f"known, {known[k]:.3f}")
    ax.legend(frameon=False, loc="upper right", fontsize="small")
plt.show()

# %%
# Posterior of the predicted shares before (gray) and after (blue), with the known share (orange).
#
# Does it help?
# -------------
# One choice of nine bottles says little. Ten other choices give the mean change of accuracy and log loss on the
# unlabeled bottles, with its standard error. Proportions do not identify the grower of a bottle, but they
# distinguish between classifiers that fit the nine labels equally well.


def score(weights, probabilities, truth):
    predicted = np.einsum("s,snk->nk", weights, probabilities)
    return np.mean(predicted.argmax(axis=1) == truth), -np.mean(np.log(predicted[np.arange(len(truth)), truth]))


def gain(seed):
    rng = np.random.default_rng(seed)
    labeled, unlabeled = choose_labeled(rng)
    probabilities = predict(sample_posterior(labeled, rng, n_draws=500), unlabeled)
    r = regularize(Samples({"shares": probabilities.mean(axis=1)}), E("shares").regularized(KL(known, weight=100)))
    truth = wine.target[unlabeled]
    return np.subtract(score(r.posterior.weights, probabilities, truth), score(r.base.weights, probabilities, truth))


gains = np.array([gain(seed) for seed in range(1, 11)])
errors = gains.std(axis=0, ddof=1) / np.sqrt(len(gains))
print(f"accuracy {gains[:, 0].mean():+.3f} ± {errors[0]:.3f}, log loss {gains[:, 1].mean():+.3f} ± {errors[1]:.3f}")

# %%
# Before you use it
# -----------------
# - The proportions must be those of the samples you average over. If the unlabeled samples are a biased sample of the
#   population whose proportions you know, the constraint is wrong.
# - With many labels the posterior is narrow. If a proportion is far from its prediction, too few draws support it,
#   and ``regularize`` warns. :ref:`sphx_glr_auto_examples_constraints_plot_parity.py` shows two remedies.
# - Expectations that need not add up to one, such as rates of overlapping labels, need ``GeneralizedKL`` in place of
#   ``KL``.
