"""MedLDA with margins on the posterior: bounds that never fall, plain topic models as the limit."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import digamma, gammaln, logsumexp
from sklearn.decomposition import LatentDirichletAllocation

from medlda_posterior_tools import after_a_round, bound, first_round, lagrangian
from medlda_tools import documents_of, draw_documents, responses_of
from regbayes.engine import Serial, Status, Threads
from regbayes.kernels.meanfield import proportion_divergences
from regbayes.margins.head import MarginHead
from regbayes.margins.targets import Classes
from regbayes.models.medlda.meanfield import random_logits, select_documents
from regbayes.models.medlda.topics import proportions
from regbayes_paper.models.medlda import posterior
from regbayes_paper.models.medlda.posterior import (
    Problem,
    expected_log_topics,
    maximize_doc_prior,
    tilt_of,
    topic_divergence,
    update_documents,
)

X, PROPORTIONS, TOPICS = draw_documents(120, n_words=40, length=40)
DOCUMENTS, _ = select_documents(documents_of(X), None, None)
SUPERVISION = responses_of(PROPORTIONS)
EACH = pytest.mark.parametrize("kind", list(SUPERVISION))
SHARED = {
    "n_components": 4,
    "doc_topic_prior": 0.3,
    "topic_word_prior": 0.1,
    "weight_variance": 0.1,
    "squared": True,
    "max_iter": 30,
    "tol": 0.0,
    "seed": 0,
}


def fit(X, supervision, executor=None, callbacks=(), **changes):
    plain = {"estimate_doc_prior": False, "response_variance": None, "estimate_response": False}
    settings = posterior.Settings(**SHARED | plain | changes)
    options = {"executor": executor or Serial(), "callbacks": callbacks}
    return posterior.fit(documents_of(X), X.shape[1], supervision, settings, **options)


def problem_of(kind="classes", word_prior=0.1, **changes):
    head = None if kind is None else MarginHead(SUPERVISION[kind], False, False, weight_variance=0.25)
    return Problem(DOCUMENTS, 40, head, word_prior, True, **changes)


def started(problem, seed=0):
    return first_round(problem, random_logits(DOCUMENTS, 40, 4, np.random.default_rng(seed)), np.full(4, 0.3))


@pytest.mark.parametrize("kind", [*SUPERVISION, None])
@pytest.mark.parametrize("word_prior", [0.1, 0.0])
def test_no_update_lowers_the_bound_at_fixed_multipliers(kind, word_prior):
    problem = problem_of(kind, word_prior)
    at = started(problem).factors
    for _ in range(6):
        head = at.head
        values = [lagrangian(problem, at, head)]
        for update in (update_documents, posterior.update_topics, posterior.update_prior):
            at = update(problem, at)
            values.append(lagrangian(problem, at, head))
        assert np.all(np.diff(values) > -1e-6 * np.abs(values[:-1]))
        assert values[-1] > values[0]
        at = after_a_round(problem, at)


def test_the_bound_is_what_its_definition_says():
    problem = problem_of()
    at = started(problem).factors
    gamma, K = at.gamma[:, :4].astype(float), 4
    log_topics = expected_log_topics(at.topic_counts[:, :K], 0.1)
    at = update_documents(problem, at)
    gamma = at.gamma[:, :4].astype(float)
    expected_log = digamma(gamma) - digamma(gamma.sum(axis=1))[:, None]
    tilt = tilt_of(problem, at)[:, :4].astype(float)
    total = 0.0
    for d in range(120):
        for w, n in zip(X.indices[X.indptr[d] : X.indptr[d + 1]], X.data[X.indptr[d] : X.indptr[d + 1]], strict=True):
            exponent = log_topics[w] + expected_log[d] + tilt[d]
            phi = np.exp(exponent - logsumexp(exponent))
            total += n * np.sum(phi * (log_topics[w] + expected_log[d] - np.log(phi)))
    total -= proportion_divergences(gamma, at.doc_prior).sum() + topic_divergence(at.topic_counts[:, :4], 0.1)
    assert bound(problem, at) == pytest.approx(total, rel=1e-6)


def test_perturbed_proportions_and_topics_are_worse():
    problem = problem_of()
    at = started(problem).factors
    for _ in range(40):
        at = update_documents(problem, at)
    best = lagrangian(problem, at, at.head)
    rng = np.random.default_rng(0)
    for size in (0.03, 0.3):
        # Topics of words that belong to moved proportions and tilts: another point of the same family.
        moved = at.gamma.copy()
        moved[:, :4] *= np.exp(size * rng.standard_normal((120, 4)))
        gamma = moved[:, :4].astype(float)
        shifted = replace(at, gamma=moved)
        drop = np.sum((digamma(gamma) - digamma(gamma.sum(axis=1))[:, None]
                       - digamma(at.gamma[:, :4]) + digamma(at.gamma[:, :4].sum(axis=1))[:, None])
                      * at.doc_topic[:, :4])  # fmt: skip
        assert lagrangian(problem, replace(shifted, entropy=at.entropy + drop), at.head) < best
        topics = at.word_topic * np.exp(size * rng.standard_normal(at.word_topic.shape)).astype(np.float32)
        settled = lagrangian(problem, posterior.update_topics(problem, at), at.head)
        assert lagrangian(problem, posterior.set_topics(problem, at, topics), at.head) < settled


def test_estimated_prior_is_where_the_bound_is_highest():
    rng = np.random.default_rng(0)
    truth = np.array([0.2, 1.0, 3.0])
    logs = np.log(rng.dirichlet(truth, 2000)).sum(axis=0)
    found = maximize_doc_prior(np.ones(3), logs, 2000)
    best = minimize(
        lambda a: -(2000 * (gammaln(np.exp(a).sum()) - gammaln(np.exp(a)).sum()) + np.exp(a) @ logs), np.zeros(3)
    )
    np.testing.assert_allclose(found, np.exp(best.x), rtol=1e-3)
    np.testing.assert_allclose(found, truth, rtol=0.1)


def test_without_responses_it_is_scikit_learns_topic_model():
    X, _, _ = draw_documents(100, n_words=30, length=60)
    train = X[:80]
    result = fit(train, None, doc_topic_prior=0.1, max_iter=100, tol=1e-6)
    peers = [
        LatentDirichletAllocation(4, doc_topic_prior=0.1, topic_word_prior=0.1, max_iter=40, random_state=s).fit(train)
        for s in range(3)
    ]
    best = max(peers, key=lambda peer: peer.score(train))
    at_least = best.score(train) / train.sum()
    ours = -result.trace.objective[-1] / train.sum()
    assert ours == pytest.approx(at_least, rel=0.01)


def test_plain_bound_never_falls():
    result = fit(X, None, max_iter=40)
    assert np.all(np.diff(result.trace.objective) < 1e-6 * np.abs(result.trace.objective[:-1]))


@EACH
@pytest.mark.parametrize("squared", [False, True])
def test_rounds_never_raise_the_objective_even_at_a_high_C(kind, squared):
    supervision = replace(SUPERVISION[kind], C=100 * SUPERVISION[kind].C)
    result = fit(X, supervision, squared=squared, weight_variance=1.0, max_iter=10, tol=1e-6)
    assert result.trace.rises.count == 0
    assert result.trace.objective[-1] < result.trace.objective[1]


@EACH
def test_empty_documents_change_nothing(kind):
    supervision, rows = SUPERVISION[kind], np.insert(np.arange(120), [0, 7, 120], 5)
    X_gaps = X[rows].tolil()
    for row in (0, 8, 122):
        X_gaps[row] = 0
    with_gaps = fit(X_gaps.tocsr(), supervision.take(rows), max_iter=5).state
    without = fit(X, supervision, max_iter=5).state
    np.testing.assert_allclose(with_gaps.weights, without.weights, rtol=1e-6)
    np.testing.assert_allclose(proportions(documents_of(X_gaps.tocsr()), with_gaps, Serial())[0], with_gaps.shares)


def test_threads_do_not_change_the_fit():
    X, P, _ = draw_documents(5000, n_words=100, length=40)
    supervision = Classes(np.argmax(P[:, :3], axis=1), 1 - np.eye(3), np.full(5000, 20.0))
    assert len(select_documents(documents_of(X), None, None)[0].cut(100)) > 1
    one, three = (fit(X, supervision, Threads(n), max_iter=3).state for n in (1, 3))
    np.testing.assert_array_equal(one.word_given_topic, three.word_given_topic)
    np.testing.assert_array_equal(one.weights, three.weights)


# --- documents that count more than once


WEIGHTS = np.random.default_rng(5).integers(1, 4, 120).astype(float)
REPEATED = np.repeat(np.arange(120), WEIGHTS.astype(int))


@pytest.mark.parametrize("kind", [*SUPERVISION, "gaussian"])
def test_a_document_that_counts_twice_is_there_twice(kind):
    """Every update of a round, from the same factors, with multipliers that are shared out to the copies."""
    supervision = SUPERVISION["numbers" if kind == "gaussian" else kind]
    variance = 0.5 if kind == "gaussian" else None
    settings = posterior.Settings(**SHARED, estimate_doc_prior=True, response_variance=variance, estimate_response=True)
    problems = []
    for rows, weights in ((np.arange(120), WEIGHTS), (REPEATED, None)):
        kept, asked = select_documents(documents_of(X[rows]), supervision.take(rows), weights)
        problems.append(posterior.make_problem(kept, 40, asked, settings, Serial()))
    ours, theirs = problems
    logits = random_logits(ours.documents, 40, 4, np.random.default_rng(0))
    np.testing.assert_allclose(random_logits(theirs.documents, 40, 4, np.random.default_rng(0)), logits, rtol=1e-12)
    at = started_at(ours, logits)
    copies = repeated_factors(ours, at)
    updates = [update_documents, posterior.update_topics, posterior.update_prior]
    if kind == "gaussian":
        updates.append(posterior.update_response_variance)
    updates.append(partial(posterior.update_documents_damped, n_passes=2))
    for update in updates:
        at, copies = update(ours, at), update(theirs, copies)
        terms, expected = (
            posterior.word_terms(problem, factors) | posterior.weight_terms(problem, factors)
            for problem, factors in ((ours, at), (theirs, copies))
        )
        size = sum(map(abs, expected.values()))
        assert terms == pytest.approx(expected, rel=1e-6, abs=1e-6 * size)
        np.testing.assert_allclose(at.doc_prior, copies.doc_prior, rtol=1e-6)
    one, other = posterior.conclude(ours, at), posterior.conclude(theirs, copies)
    gaps = one.factors.head.gap + other.factors.head.gap  # the head is solved to a gap
    assert one.objective == pytest.approx(other.objective, rel=1e-6, abs=gaps + 1e-6 * size)


def started_at(problem, logits):
    return first_round(problem, logits, np.full(4, 0.3)).factors


def repeated_factors(problem, at):
    """The factors with the documents repeated as often as they count; each copy has its share of the multipliers."""
    changes = {name: getattr(at, name)[REPEATED] for name in ("gamma", "doc_topic")}
    if len(at.tilt):
        changes["tilt"] = at.tilt[REPEATED]
    if at.log_phi is not None:
        changes["log_phi"] = at.log_phi[posterior._entries_of(problem.documents.counts, REPEATED)]
    multipliers = (at.head.multipliers / WEIGHTS[:, None])[REPEATED]
    return replace(at, **changes, head=replace(at.head, multipliers=multipliers))


# --- the course of a fit


def test_an_interrupt_in_the_first_round_leaves_a_model():
    def interrupt(progress):
        raise KeyboardInterrupt

    for supervision in (SUPERVISION["numbers"], SUPERVISION["classes"]):
        result = fit(X, supervision, callbacks=[interrupt])
        assert result.n_iter == 0  # of the rounds: the warm-up is a phase of its own
        assert result.status is Status.INTERRUPTED
        shares = proportions(documents_of(X), result.state, Serial())
        np.testing.assert_allclose(shares.sum(axis=1), 1)
        assert np.all(np.isfinite(result.state.weights))


def test_phases_are_named():
    seen = []

    def hear(progress):
        seen.append((progress.stage, progress.state.word_given_topic.shape))

    fit(X, SUPERVISION["numbers"], callbacks=[hear], max_iter=2)
    stages = [stage for stage, _ in seen]
    assert stages == [posterior.WARM_UP] * posterior.WARM_UP_ROUNDS + [posterior.ROUNDS] * 2
    assert {shape for _, shape in seen} == {(40, 4)}
