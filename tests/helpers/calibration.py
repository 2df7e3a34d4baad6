"""Simulation-based calibration (Talts et al. 2018) of samplers."""

from __future__ import annotations

import numpy as np
from scipy.stats import chisquare

from medlda_tools import corpus_of, loss, settings
from regbayes import E, Samples, resample
from regbayes.margins.targets import Numbers, Signs
from regbayes.models.medlda import gibbs
from regbayes.ppl import CallableSampler

N_DOCUMENTS, LENGTH, N_WORDS, N_TOPICS = 4, 5, 3, 2
N_DRAWS, THINNING, BURN_IN = 49, 4, 40


def make_responses(kind, rng):
    """Return responses independent of the topics, with C = 1.5, or None."""
    C = np.full((N_DOCUMENTS, 1), 1.5)
    if kind == "margins":
        return Signs(rng.choice([-1.0, 1.0], C.shape), C, 0.6)
    return Numbers(rng.uniform(-2.0, 2.0, C.shape), C, 0.2) if kind == "targets" else None


def simulate_documents(kind, s, rng):
    """Draw documents, topics, weights and responses of MedLDA.

    This is rejection sampling: a draw from the prior is accepted with probability ``exp(-C loss)``.
    """
    while True:
        proportions = rng.dirichlet(np.full(N_TOPICS, s.doc_topic_prior), N_DOCUMENTS)
        topics = np.array([rng.choice(N_TOPICS, LENGTH, p=p) for p in proportions])
        words_of = rng.dirichlet(np.full(N_WORDS, s.topic_word_prior), N_TOPICS)
        words = np.array([[rng.choice(N_WORDS, p=words_of[k]) for k in row] for row in topics])
        shares = np.array([np.bincount(row, minlength=N_TOPICS) for row in topics]) / LENGTH
        weights = np.sqrt(s.weight_variance) * rng.standard_normal(N_TOPICS)
        responses = make_responses(kind, rng)
        if responses is None:
            break
        total = sum(loss(responses, d, 0, shares[d] @ weights) for d in range(N_DOCUMENTS))
        if rng.random() < np.exp(-total):
            break
    counts = np.array([np.bincount(row, minlength=N_WORDS) for row in words])
    return counts, responses, summarize(shares, weights, responses)


def summarize(shares, weights, responses):
    """Return statistics that are invariant to permutations of the topics."""
    scores = shares @ weights
    found = {"sum of squared shares": np.sum(shares**2), "first two documents": shares[0] @ shares[1]}
    if responses is not None:
        targets = (responses.signs if isinstance(responses, Signs) else responses.values)[:, 0]
        found |= {"scores times targets": scores @ targets, "squared scores": scores @ scores}
    return found


def rank_topics(kind, seed):
    """Return normalized ranks of the truth among draws of the Gibbs sampler."""
    rng = np.random.default_rng(seed)
    s = settings(N_TOPICS, seed=seed, n_burn_in=10**9)
    counts, responses, truth = simulate_documents(kind, s, rng)
    corpus = corpus_of(counts)
    order = np.argsort(corpus.document_order)
    taken = None if responses is None else responses.take(corpus.document_order)
    problem = gibbs.Problem(corpus, taken, s)
    chain, draws = gibbs.start(problem), []
    for sweep in range(BURN_IN + THINNING * N_DRAWS):
        chain = gibbs.step(problem, chain).state
        if sweep >= BURN_IN and (sweep - BURN_IN) % THINNING == 0:
            shares = chain.counts.doc_topic[order, :N_TOPICS] / LENGTH
            draws.append(
                summarize(shares, chain.weights[0] if responses is not None else np.zeros(N_TOPICS), responses)
            )
    return {name: _rank(value, np.array([draw[name] for draw in draws]), rng) for name, value in truth.items()}


def _rank(truth, draws, rng):
    n_ties = int(np.sum(np.abs(draws - truth) < 1e-9))
    n_below = int(np.sum(draws < truth - 1e-9)) + rng.integers(0, n_ties + 1)
    return (n_below + rng.random()) / (len(draws) + 1)


def rank_resampled(seed):
    """Return the normalized rank of an exact draw among the draws of `resample`."""
    rng = np.random.default_rng(seed)
    x = rng.normal(rng.normal(), 1.0, size=4)
    variance = 1.0 / (1.0 + len(x))
    mean, deviation = variance * x.sum(), np.sqrt(variance)
    target = mean + rng.uniform(-1.0, 1.0)

    def draw(tilt, n_draws, rng, start):
        slope = float(tilt({"theta": np.ones(1)})[0] - tilt({"theta": np.zeros(1)})[0])
        return {"theta": rng.normal(mean + variance * slope, deviation, n_draws)}

    result = resample(CallableSampler(draw), E("theta") == target, n_draws=200, seed=seed)
    assert isinstance(result.posterior, Samples)
    truth = rng.normal(target, deviation)
    weights = result.posterior.weights
    return {"theta": float(weights @ (result.posterior.draws.variables["theta"].ravel() < truth))}


SAMPLERS = {
    "MedLDA, classes": lambda seed: rank_topics("margins", seed),
    "MedLDA, numbers": lambda seed: rank_topics("targets", seed),
    "MedLDA, C = 0": lambda seed: rank_topics("none", seed),
    "resample": rank_resampled,
}


def uniformity(ranks, n_bins=6):
    """Return the p-value of a chi-squared test for uniform ranks in [0, 1)."""
    return float(
        chisquare(np.bincount((np.array(ranks) * n_bins).astype(int).clip(0, n_bins - 1), minlength=n_bins)).pvalue
    )


def calibrate(sampler, seeds):
    """Return the p-value of each statistic of a sampler."""
    ranks = [sampler(seed) for seed in seeds]
    return {name: uniformity([rank[name] for rank in ranks]) for name in ranks[0]}
