"""MedLDA of appendix B against enumeration, perturbations and scikit-learn's LDA."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.special import digamma, gammaln
from sklearn.decomposition import LatentDirichletAllocation
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.utils.estimator_checks import parametrize_with_checks

from regbayes_paper.baselines import PosteriorMedLDAClassifier, PosteriorMedLDARegressor
from regbayes_paper.baselines.medlda import Corpus, Problem, State, Weights
from regbayes_paper.svm import Boxes

RNG = np.random.default_rng(0)
TOPICS = RNG.dirichlet(np.full(20, 0.2), 4)
PROPORTIONS = RNG.dirichlet(np.full(4, 0.3), 60)
COUNTS = np.stack([RNG.multinomial(40, share @ TOPICS) for share in PROPORTIONS]).astype(float)
NUMBERS = PROPORTIONS @ [2.0, -1.0, 0.5, -0.5] + 0.1 * RNG.standard_normal(60)
LABELS = PROPORTIONS[:, :3].argmax(axis=1)


@parametrize_with_checks(
    [
        PosteriorMedLDAClassifier(2, C=0.1, max_iter=5, random_state=0),
        PosteriorMedLDARegressor(2, C=0.1, max_iter=5, random_state=0),
    ]
)
def test_scikit_learn_checks_pass(estimator, check):
    check(estimator)


def problem_of(kind: str | None, word_prior: float = 0.1, C: float = 5.0) -> Problem:
    margins = {}
    if kind == "classes":
        margins = {"labels": LABELS, "n_classes": 3, "C": C}
    elif kind is not None:
        margins = {"numbers": Boxes(NUMBERS, np.full(60, C), 0.1), "estimate_response": False}
    return Problem(Corpus.of(csr_array(COUNTS)), word_prior, 0.8, **margins)


def started(problem: Problem, kind: str | None) -> State:
    state = problem.start(4, 0.3, np.random.RandomState(0))
    if kind is None:
        return state
    L, variance = (3 if kind == "classes" else 1), (0.2 if kind == "response" else np.inf)
    blank = Weights(np.zeros((L, 4)), np.eye(4), variance, np.zeros((60, L)))
    return problem.update_weights(replace(state, weights=blank))


KINDS = ["classes", "margins", "response"]


def test_objective_matches_enumeration_of_assignments():
    """Enumerate all topic assignments of short documents with a Gaussian response."""
    rng = np.random.default_rng(1)
    counts = np.array([[2, 0, 1, 1], [0, 1, 0, 3], [1, 1, 1, 0]])
    y, v, K = rng.standard_normal(3), 0.8, 3
    problem = Problem(Corpus.of(counts), 0.2, v, True, numbers=Boxes(y, np.full(3, 3.0), 0.1), estimate_response=True)
    state = problem.start(K, 0.5, np.random.RandomState(0))
    state = replace(state, weights=Weights(np.zeros((1, K)), np.eye(K), 0.4, np.zeros((3, 1))))
    state = problem.update_weights(state)
    for _ in range(3):
        state, objective = problem.step(state)
    phi, gamma, q = np.exp(state.log_phi), state.gamma, state.weights
    log_theta = digamma(gamma) - digamma(gamma.sum(axis=1))[:, None]
    log_topics, mean = problem.log_topics(state), q.mean[0]
    second, total, second_of_shares = q.covariance + np.outer(mean, mean), 0.0, np.zeros((K, K))
    starts = np.flatnonzero(np.diff(problem.corpus.row, prepend=-1))
    for d, first in enumerate(starts):
        words = np.repeat(np.flatnonzero(counts[d]), counts[d][counts[d] > 0])
        entries = first + np.repeat(np.arange(np.sum(counts[d] > 0)), counts[d][counts[d] > 0])
        for topics in product(range(K), repeat=len(words)):
            z = np.array(topics)
            share, weight = np.bincount(z, minlength=K) / len(words), np.prod(phi[entries, z])
            value = np.sum(log_theta[d][z] + log_topics[words, z] - np.log(phi[entries, z]))
            square = y[d] ** 2 - 2 * y[d] * (mean @ share) + share @ second @ share
            total += weight * (value - 0.5 * (np.log(2 * np.pi * q.variance) + square / q.variance))
            second_of_shares += weight * np.outer(share, share)
    np.testing.assert_allclose(problem.second_moment(state), second_of_shares, rtol=1e-8)

    def divergence(a, b):
        difference = gammaln(a.sum()) - gammaln(a).sum() - gammaln(b.sum()) + gammaln(b).sum()
        return difference + (a - b) @ (digamma(a) - digamma(a.sum()))

    total -= sum(divergence(row, state.doc_prior) for row in gamma)
    total -= sum(divergence(column + 0.2, np.full(4, 0.2)) for column in state.topic_counts.T)
    spread = (np.trace(q.covariance) + mean @ mean) / v - np.linalg.slogdet(q.covariance)[1]
    total -= 0.5 * (spread - K + K * np.log(v))
    loss = 3.0 * np.maximum(0, np.abs(y - problem.shares(state) @ mean) - 0.1).sum()
    assert objective == pytest.approx(loss - total, rel=1e-8)


@pytest.mark.parametrize("kind", [*KINDS, None])
@pytest.mark.parametrize("word_prior", [0.1, 0.0])
def test_block_updates_do_not_increase_lagrangian(kind, word_prior):
    problem = problem_of(kind, word_prior)
    state = started(problem, kind)
    free = problem_of(kind, word_prior, C=0.0)  # the objective without margins

    def lagrangian(state):
        if kind is None:
            return problem.objective(state)
        return free.objective(state) - float(np.vdot(multipliers, problem.shares(state) @ state.weights.mean.T))

    for _ in range(4):
        multipliers = None if kind is None else state.weights.multipliers
        state = replace(state, followed=multipliers)
        values = [lagrangian(state)]
        for update in (problem.update_documents, problem.update_topics, problem.update_doc_prior):
            state = update(state)
            values.append(lagrangian(state))
        assert np.all(np.diff(values) <= 1e-7 * np.abs(values[:-1]))
        assert values[-1] < values[0]
        state, _ = problem.step(state)


def test_converged_topic_assignments_beat_perturbations():
    problem, rng = problem_of("response"), np.random.default_rng(2)
    state = started(problem, "response")
    state = problem.update_documents(replace(state, followed=state.weights.multipliers), 400)
    free = problem_of("response", C=0.0)

    def lagrangian(state):
        return free.objective(state) - float(np.vdot(state.followed, problem.shares(state) @ state.weights.mean.T))

    best = lagrangian(state)
    for _ in range(10):
        moved = state.log_phi + 0.1 * rng.standard_normal(state.log_phi.shape)
        moved -= np.log(np.exp(moved).sum(axis=1, keepdims=True))
        assert lagrangian(replace(state, log_phi=moved)) > best
        assert lagrangian(replace(state, gamma=state.gamma * np.exp(0.1 * rng.standard_normal((60, 4))))) > best


@pytest.mark.parametrize("kind", KINDS)
def test_update_weights_minimizes_kl_plus_losses(kind):
    problem, rng = problem_of(kind), np.random.default_rng(3)
    state = started(problem, kind)
    best, tolerance = problem.objective(state), 0.01  # the solver stops at a duality gap
    for size in (0.01, 0.1):
        for _ in range(20):
            mean = state.weights.mean + size * rng.standard_normal(state.weights.mean.shape)
            assert problem.objective(replace(state, weights=replace(state.weights, mean=mean))) > best - tolerance
            if kind == "response":
                root = np.eye(4) + size * rng.standard_normal((4, 4))
                covariance = root @ state.weights.covariance @ root.T
                moved = replace(state.weights, covariance=covariance)
                assert problem.objective(replace(state, weights=moved)) > best
    if kind == "response":
        found = problem.update_response(state)
        for factor in (0.9, 1.1):
            moved = replace(found.weights, variance=factor * found.weights.variance)
            assert problem.objective(replace(found, weights=moved)) > problem.objective(found)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("C", [5.0, 500.0])
def test_steps_do_not_increase_objective(kind, C):
    problem = problem_of(kind, C=C)
    state = started(problem, kind)
    values = [problem.objective(state)]
    for _ in range(6):
        state, value = problem.step(state)
        values.append(value)
    assert np.all(np.diff(values) <= 1e-9)
    assert values[-1] < values[0]


def test_update_doc_prior_recovers_prior_of_proportions():
    truth = np.array([0.5, 1.0, 3.0])
    proportions = np.random.default_rng(0).dirichlet(truth, 2000)
    state = State(np.zeros((0, 3)), 1e20 * proportions, np.zeros((20, 3)), np.ones(3))
    found = problem_of(None).update_doc_prior(state).doc_prior
    np.testing.assert_allclose(found, truth, rtol=0.1)


def test_without_margins_topics_match_scikit_learn():
    ours = PosteriorMedLDAClassifier(4, C=0.0, max_iter=200, tol=1e-6, random_state=0).fit(COUNTS, LABELS)
    theirs = [
        LatentDirichletAllocation(4, doc_topic_prior=0.1, topic_word_prior=0.1, max_iter=60, random_state=s)
        for s in range(3)
    ]
    best = max(model.fit(COUNTS).score(COUNTS) for model in theirs)
    assert -ours.objectives_[-1] == pytest.approx(best, rel=0.01)


def test_classifier_and_regressor_learn_from_short_texts():
    texts = ["ball goal match", "goal team ball", "vote law party", "law vote court"] * 5
    vectorizer = CountVectorizer()
    X = vectorizer.fit_transform(texts)
    model = PosteriorMedLDAClassifier(2, random_state=0).fit(X, ["sport", "sport", "politics", "politics"] * 5)
    new = vectorizer.transform(["a match of two teams and a ball", "the court of law"])
    assert model.predict(new).tolist() == ["sport", "politics"]
    numbers = PosteriorMedLDARegressor(2, response_variance="auto", random_state=0).fit(X, [5.0, 4.0, 1.0, 2.0] * 5)
    high, low = numbers.predict(new)
    assert high > 3 > low
    assert 0 < numbers.response_variance_ < 2.5
