"""
A Boltzmann machine with a prior on its weights
===============================================

Constrain hidden units of an undirected model by enumerating its posterior.

Six patients report three symptoms (fever, cough, rash). One hidden binary unit for each patient says whether the
patient has a condition. A Boltzmann machine connects it to the symptoms. Its three weights are unknown and have a
prior, so prior and machine together are a chain graph (appendix A of the paper)::

    p(M, D) = p(w) prod_n exp(-energy(h_n, v_n, w)) / Z(w),        M = (w, h_1, ..., h_6)

The normalizing constant ``Z(w)`` depends on the weights, which makes such posteriors hard. This one has 64 weight
vectors and 64 settings of the hidden units, so every number below is exact. ``regularize`` uses the log-joint alone.
"""

# %%
# Enumerate the posterior
# -----------------------

import itertools

import numpy as np
from scipy.special import logsumexp

from regbayes import E, Finite, regularize

SYMPTOMS = ("fever", "cough", "rash")
ANSWERS = np.array([[1, 1, 0], [1, 0, 0], [0, 1, 1], [0, 0, 0], [1, 1, 1], [0, 0, 1]])  # (patients, symptoms)
WEIGHTS = (-1.0, 0.0, 1.0, 2.0)  # possible values of each weight; the prior p(w) is proportional to exp(-|w|)
VISIBLE_BIAS, HIDDEN_BIAS = -0.5, -0.3


def negative_energy(hidden: np.ndarray, visible: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return ``h <w, v> + bias_v sum v + bias_h h`` for one machine."""
    return hidden * np.sum(weights * visible, axis=-1) + VISIBLE_BIAS * visible.sum(axis=-1) + HIDDEN_BIAS * hidden


def log_normalizer(weights: np.ndarray) -> np.ndarray:
    """Return ``log Z(w)``, a sum over the sixteen states of one machine."""
    states = np.array(list(itertools.product((0, 1), repeat=1 + len(SYMPTOMS))))
    return logsumexp(negative_energy(states[:, 0], states[:, 1:], weights[..., None, :]), axis=-1)


def chain_graph(answers: np.ndarray = ANSWERS) -> Finite:
    """Enumerate all weights and hidden units, with the log-joint as log-weights."""
    n = len(answers)
    grid = np.array(list(itertools.product(WEIGHTS, repeat=len(SYMPTOMS))))
    settings = np.array(list(itertools.product((0, 1), repeat=n)))
    weights, hidden = np.repeat(grid, len(settings), axis=0), np.tile(settings, (len(grid), 1))
    one_weight = -np.abs(WEIGHTS)
    log_prior = -np.abs(weights).sum(axis=1) - len(SYMPTOMS) * logsumexp(one_weight)
    log_machines = negative_energy(hidden, answers, weights[:, None, :]).sum(axis=1) - n * log_normalizer(weights)
    return Finite({"weights": weights, "ill": hidden}, log_weights=log_prior + log_machines)


posterior = chain_graph()
print(f"{posterior}, log-evidence {posterior.log_evidence:.4f}")

# %%
# Three pieces of knowledge
# -------------------------
# A doctor saw the second and the sixth patient: both have the condition, or neither. In this season about two
# patients in three have it. Rash is believed to indicate the condition. A soft constraint allows the model to
# disagree.

same = E(lambda m: m.ill[:, 1] == m.ill[:, 5], name="second and sixth alike") >= 0.9
share = E(lambda m: m.ill.mean(axis=1), name="share ill").within(0.05, of=2 / 3)
rash = (E(lambda m: m.weights[:, 2], name="weight of rash") >= 0.5).soft(2.0)
result = regularize(posterior, [same, share, rash])
print(result)

# %%
# Probabilities of the condition and expected weights, before and after:

print("probability of the condition   " + "  ".join(f"{i + 1:5d}" for i in range(len(ANSWERS))))
for name, q in (("posterior", posterior), ("regularized", result.posterior)):
    print(f"{name:30s} " + "  ".join(f"{p:5.3f}" for p in q.expectation("ill")))
print("expected weight                " + "  ".join(f"{symptom:>5s}" for symptom in SYMPTOMS))
for name, q in (("posterior", posterior), ("regularized", result.posterior)):
    print(f"{name:30s} " + "  ".join(f"{w:5.2f}" for w in q.expectation("weights")))
