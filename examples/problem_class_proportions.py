"""Known class proportions: nine labelled bottles, and the shares of the three growers in the whole cellar.

The page docs/problems/class_proportions.md walks through it.
"""

from __future__ import annotations

import warnings

import numpy as np
from scipy.special import log_softmax, softmax
from sklearn.datasets import load_wine

from example_tools import elliptical_slice, figure_path
from regbayes import E, Samples, UnreliableWeightsWarning, regularize
from regbayes.regularizers import KL

figure = figure_path(__doc__)
wine = load_wine()
rows = (wine.data - wine.data.mean(axis=0)) / wine.data.std(axis=0)
rows = np.column_stack([np.ones(len(rows)), rows])
n_classes, n_inputs = 3, rows.shape[1]


# --- the posterior of a softmax regression, from three labelled bottles of each grower
def label_some(rng):
    labelled = [rng.choice(np.flatnonzero(wine.target == k), 3, replace=False) for k in range(n_classes)]
    labelled = np.concatenate(labelled)
    return labelled, np.setdiff1d(np.arange(len(rows)), labelled)


def draw_posterior(labelled, rng, n_draws=4000):
    def log_likelihood(coefficients):
        scores = rows[labelled] @ coefficients.reshape(n_inputs, n_classes)
        return log_softmax(scores, axis=1)[np.arange(len(labelled)), wine.target[labelled]].sum()

    draws = elliptical_slice(log_likelihood, np.ones(n_inputs * n_classes), n_draws, rng)
    return draws.reshape(n_draws, n_inputs, n_classes)


rng = np.random.default_rng(0)
labelled, unlabelled = label_some(rng)
coefficients = draw_posterior(labelled, rng)


# --- what is known
known = np.array([59, 71, 48]) / 178


def predictions(coefficients, bottles):
    return softmax(np.einsum("nd,sdk->snk", rows[bottles], coefficients), axis=2)


def share_of_grower(v):
    return predictions(v["coefficients"], unlabelled).mean(axis=1)


posterior = Samples({"coefficients": coefficients})
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    result = regularize(posterior, E(share_of_grower).regularized(KL(known, weight=100)))
print(result)
print(f"{caught[0].category.__name__}: {str(caught[0].message).split(': ')[0]}")
warnings.simplefilter("ignore", UnreliableWeightsWarning)  # said once: the shorter chains below mix no faster


# --- what it is worth
def score(weights, probabilities, truth):
    predicted = np.einsum("s,snk->nk", weights, probabilities)
    accuracy = np.mean(predicted.argmax(axis=1) == truth)
    return accuracy, -np.mean(np.log(predicted[np.arange(len(truth)), truth]))


drawn, truth = predictions(coefficients, unlabelled), wine.target[unlabelled]
before, after = score(posterior.weights, drawn, truth), score(result.posterior.weights, drawn, truth)
print("\n169 unlabelled bottles      accuracy  log loss")
print(f"nine labels                 {before[0]:8.3f}  {before[1]:8.3f}")
print(f"nine labels and the shares  {after[0]:8.3f}  {after[1]:8.3f}")


# --- the same with twenty other choices of the nine bottles
def gain(seed):
    rng = np.random.default_rng(seed)
    labelled, unlabelled = label_some(rng)
    coefficients = draw_posterior(labelled, rng, n_draws=1000)
    drawn, truth = predictions(coefficients, unlabelled), wine.target[unlabelled]
    result = regularize(Samples({"coefficients": coefficients}), drawn.mean(axis=1), KL(known, weight=100))
    return np.subtract(score(result.posterior.weights, drawn, truth), score(result.base.weights, drawn, truth))


gains = np.array([gain(seed) for seed in range(1, 21)])
mean, error = gains.mean(axis=0), gains.std(axis=0, ddof=1) / np.sqrt(len(gains))
print("\nchange over 20 choices     accuracy           log loss")
print(f"mean and standard error    {mean[0]:+.3f} ({error[0]:.3f})     {mean[1]:+.3f} ({error[1]:.3f})")
print(f"improved in                {np.sum(gains[:, 0] > 0)} of 20           {np.sum(gains[:, 1] < 0)} of 20")

if figure:
    import matplotlib.pyplot as plt

    from regbayes.plots import PosteriorShiftDisplay

    fig, axes = plt.subplots(1, 3, figsize=(10, 3.2), layout="constrained", sharey=True)
    shares = drawn.mean(axis=1)
    for k, ax in enumerate(axes):
        PosteriorShiftDisplay.from_result(result, shares[:, k], name=f"share of grower {k}", bins=35, ax=ax)
        ax.vlines(known[k], 0.0, 5.8, color="#d55e00", linewidth=1.8, label=f"known, {known[k]:.3f}")
        ax.legend(frameon=False, loc="upper right", fontsize="small")
        ax.set(xlim=(0.0, 0.75), ylim=(0.0, 8.5))
    for ax in axes[1:]:
        ax.set_ylabel("")
    fig.savefig(figure, dpi=110)
