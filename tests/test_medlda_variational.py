"""Variational MedLDA: bounds that never fall, exact gradients, plain topic models as the limit"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import digamma, gammaln, logsumexp
from sklearn.decomposition import LatentDirichletAllocation

from medlda_tools import after_a_round, bound, draw_documents, lagrangian
from regbayes.framework.margin_accuracy import Accuracy
from regbayes.kernels.meanfield import WordCounts
from regbayes.models.medlda import consistent, posterior, variational
from regbayes.models.medlda.init import class_logits, random_logits
from regbayes.models.medlda.margins import Classes, build_dual, solve_readout
from regbayes.models.medlda.meanfield import as_word_counts, bounds, lengths_of, proportions
from regbayes.models.medlda.objective import expected_log_topics, proportion_divergence, topic_divergence
from regbayes.models.medlda.posterior_documents import update_documents
from regbayes.models.medlda.posterior_state import Problem, tilt_of
from regbayes.models.medlda.predict import Documents
from regbayes.models.medlda.state import Margins, Targets
from regbayes.models.medlda.updates import update_doc_prior

X, PROPORTIONS, TOPICS = draw_documents(120, n_words=40, length=40)
EXACT = Accuracy(gap=1e-10, max_epochs=3000.0)


def documents_of(X):
    X = X.tocsr()
    return Documents(X.indices.astype(np.int32), X.data.astype(np.float32), X.indptr.astype(np.int64))


DOCUMENTS = as_word_counts(documents_of(X))
LENGTHS = lengths_of(DOCUMENTS)
LABELS = np.argmax(PROPORTIONS[:, :3], axis=1)
SIGNS = np.where(PROPORTIONS[:, :2] > 0.3, 1.0, -1.0)
NUMBERS = (PROPORTIONS @ [[2.0], [-1.0], [0.5], [0.0]] - 0.4) / 0.6
SUPERVISION = {
    "classes": Classes(LABELS, 1 - np.eye(3), np.full(120, 30.0)),
    "labels": Margins(SIGNS, np.full(SIGNS.shape, 30.0), 1.0),
    "numbers": Targets(NUMBERS, np.full(NUMBERS.shape, 30.0), 0.1),
}
EACH = pytest.mark.parametrize("kind", list(SUPERVISION))


def settings(**changes):
    values = {
        "n_components": 4,
        "doc_topic_prior": 0.3,
        "estimate_doc_prior": False,
        "topic_word_prior": 0.1,
        "weight_variance": 0.1,
        "squared": True,
        "response_variance": None,
        "estimate_response": False,
        "margins": "consistent",
        "n_sweeps": 3,
        "max_iter": 30,
        "tol": 0.0,
        "seed": 0,
        "n_threads": 1,
    }
    return variational.Settings(**values | changes)


# --- the large-margin step


@EACH
@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("intercept", [False, True])
def test_weights_minimise_the_regularized_loss(kind, squared, intercept):
    supervision, shares = SUPERVISION[kind], PROPORTIONS
    dual = build_dual(supervision, 0.1, squared, intercept)
    found = solve_readout(shares, dual, None, EXACT)
    L = 3 if kind == "classes" else supervision.prices.shape[1]

    def value(weights, intercepts):
        scores = (shares - found.centre) @ weights.T + intercepts
        if kind == "classes":
            loss = np.max(supervision.cost[LABELS] + scores - scores[np.arange(120), LABELS][:, None], axis=1)[:, None]
            prices = supervision.prices[:, None]
        else:
            prices = supervision.prices
            if kind == "labels":
                loss = np.maximum(0, 1 - SIGNS * scores)
            else:
                loss = np.maximum(0, np.abs(NUMBERS - scores) - 0.1)
        prior = (np.sum(weights**2) + np.sum(np.square(intercepts))) / (2 * 0.1)
        return prior + np.sum(prices * (loss**2 if squared else loss))

    assert np.any(found.intercepts) == intercept
    best = value(found.weights, found.intercepts)
    assert best == pytest.approx(found.solution.primal, rel=1e-6)
    rng = np.random.default_rng(0)
    for size in (1e-3, 1e-1):
        for _ in range(20):
            moved = found.intercepts + intercept * size * rng.standard_normal(L)
            assert value(found.weights + size * rng.standard_normal((L, 4)), moved) > best - 1e-6 * abs(best)
    sums = PROPORTIONS / PROPORTIONS.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(sums @ found.folded.T, (sums - found.centre) @ found.weights.T + found.intercepts)


@EACH
def test_slopes_are_the_derivative_of_the_value(kind):
    dual = build_dual(SUPERVISION[kind], 0.1, True, True)
    way = np.random.default_rng(0).standard_normal(PROPORTIONS.shape)
    step = 1e-5
    above, below = (solve_readout(PROPORTIONS + s * step * way, dual, None, EXACT).solution.primal for s in (1, -1))
    slopes = solve_readout(PROPORTIONS, dual, None, EXACT).slopes()
    assert (above - below) / (2 * step) == pytest.approx(np.sum(slopes * way), rel=1e-4)


# --- margins on the posterior


def posterior_problem(kind="classes", word_prior=0.1, **changes):
    dual = None if kind is None else build_dual(SUPERVISION[kind], 0.25, False, False)
    return Problem(DOCUMENTS, LENGTHS, dual, word_prior, True, 1, **changes)


def first_round(problem, seed=0):
    logits = random_logits(DOCUMENTS, 40, 4, np.random.default_rng(seed))
    return posterior.start(problem, logits, np.full(4, 0.3))


@pytest.mark.parametrize("kind", [*SUPERVISION, None])
@pytest.mark.parametrize("word_prior", [0.1, 0.0])
def test_no_update_lowers_the_bound_at_fixed_multipliers(kind, word_prior):
    problem = posterior_problem(kind, word_prior)
    at = first_round(problem).factors
    for _ in range(6):
        readout = at.readout
        values = [lagrangian(problem, at, readout)]
        updates = [partial(update_documents, problem), posterior.update_topics, posterior.update_prior]
        for update in updates:
            at = update(at)
            values.append(lagrangian(problem, at, readout))
        assert np.all(np.diff(values) > -1e-6 * np.abs(values[:-1]))
        assert values[-1] > values[0]
        at = after_a_round(problem, at)


def test_the_bound_is_what_its_definition_says():
    problem = posterior_problem()
    at = first_round(problem).factors
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
    total -= proportion_divergence(gamma, at.doc_prior) + topic_divergence(at.topic_counts[:, :4], 0.1)
    assert bound(problem, at) == pytest.approx(total, rel=1e-6)


def test_perturbed_proportions_and_topics_are_worse():
    problem = posterior_problem()
    at = first_round(problem).factors
    for _ in range(40):
        at = update_documents(problem, at)
    best = lagrangian(problem, at, at.readout)
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
        assert lagrangian(problem, replace(shifted, entropy=at.entropy + drop), at.readout) < best
        topics = at.word_topic * np.exp(size * rng.standard_normal(at.word_topic.shape)).astype(np.float32)
        settled = lagrangian(problem, posterior.update_topics(at), at.readout)
        assert lagrangian(problem, replace(at, topic_counts=topics), at.readout) < settled


def test_estimated_prior_is_where_the_bound_is_highest():
    rng = np.random.default_rng(0)
    truth = np.array([0.2, 1.0, 3.0])
    logs = np.log(rng.dirichlet(truth, 2000)).sum(axis=0)
    found = update_doc_prior(np.ones(3), logs, 2000)
    best = minimize(
        lambda a: -(2000 * (gammaln(np.exp(a).sum()) - gammaln(np.exp(a)).sum()) + np.exp(a) @ logs), np.zeros(3)
    )
    np.testing.assert_allclose(found, np.exp(best.x), rtol=1e-3)
    np.testing.assert_allclose(found, truth, rtol=0.1)


def test_without_responses_it_is_scikit_learns_topic_model():
    X, _, _ = draw_documents(100, n_words=30, length=60)
    train, test = X[:80], X[80:].astype(np.float64)
    plain = settings(doc_topic_prior=0.1, max_iter=100, tol=1e-6)
    result = variational.fit(documents_of(train), 30, None, plain)
    peers = [
        LatentDirichletAllocation(4, doc_topic_prior=0.1, topic_word_prior=0.1, max_iter=40, random_state=s).fit(train)
        for s in range(3)
    ]
    best = max(peers, key=lambda peer: peer.score(train))
    at_least = best.score(train) / train.sum()
    ours = -result.trace.objective[-1] / train.sum()
    assert ours == pytest.approx(at_least, rel=0.01)
    # And at the same topics, new documents have the same bound.
    at_theirs = replace(result.state, word_given_topic=best.exp_dirichlet_component_.T.astype(np.float32), n_sweeps=200)
    gamma = best._unnormalized_transform(test)
    constant = best._approx_bound(test[:0], gamma[:0], sub_sampling=False)
    theirs = best._approx_bound(test, gamma, sub_sampling=False) - constant
    assert bounds(documents_of(test), at_theirs, 1).sum() == pytest.approx(theirs, rel=1e-3)


def test_plain_bound_never_falls():
    result = variational.fit(documents_of(X), 40, None, settings(max_iter=40))
    assert np.all(np.diff(result.trace.objective) < 1e-6 * np.abs(result.trace.objective[:-1]))


@EACH
@pytest.mark.parametrize("squared", [False, True])
def test_rounds_never_raise_the_objective_even_at_a_high_price(kind, squared):
    supervision = replace(SUPERVISION[kind], prices=100 * SUPERVISION[kind].prices)
    chosen = settings(margins="posterior", squared=squared, weight_variance=1.0, max_iter=10, tol=1e-6)
    result = variational.fit(documents_of(X), 40, supervision, chosen)
    assert result.trace.rises.count == 0
    assert result.trace.objective[-1] < result.trace.objective[1]


@EACH
@pytest.mark.parametrize("squared", [False, True])
def test_losses_are_those_that_the_solver_minimises(kind, squared):
    dual = build_dual(SUPERVISION[kind], 0.1, squared, False)
    found = solve_readout(PROPORTIONS, dual, None, EXACT)
    squares = np.sum(found.weights**2) / (2 * 0.1)
    scores = PROPORTIONS @ found.weights.T
    assert squares + dual.losses(scores).sum() == pytest.approx(found.solution.primal, rel=1e-6)
    rng = np.random.default_rng(0)
    away, step = scores + 0.5 * rng.standard_normal(scores.shape), 1e-6 * rng.standard_normal(scores.shape)  # off kinks
    numerical = dual.losses(away + step) - dual.losses(away - step)
    np.testing.assert_allclose(numerical, -2 * np.sum(dual.pulls(away) * step, axis=1), rtol=1e-3, atol=1e-8)


# --- margins on what prediction sees


def consistent_problem(kind, n_sweeps=3, **changes):
    dual = build_dual(SUPERVISION[kind], 0.1, True, True)
    return consistent.Problem(DOCUMENTS, LENGTHS, dual, np.full(4, 0.7), 0.2, n_sweeps, 1, **changes)


@EACH
@pytest.mark.parametrize("n_sweeps", [1, 4])
def test_gradient_is_the_derivative_of_the_objective(kind, n_sweeps):
    problem = consistent_problem(kind, n_sweeps)
    rng = np.random.default_rng(0)
    logits = class_logits(DOCUMENTS, 40, 4, np.eye(3)[LABELS], rng).astype(np.float32)
    at = consistent.evaluate(problem, logits, None, EXACT)
    slope = consistent.gradient(problem, at)
    for _ in range(2):
        way = rng.standard_normal(logits.shape).astype(np.float32)
        step = np.float32(1e-2)
        up, down = (consistent.evaluate(problem, logits + s * step * way, None, EXACT) for s in (1, -1))
        numerical = (up.objective - down.objective) / (2 * float(step))
        assert numerical == pytest.approx(float(np.sum(slope.astype(float) * way)), rel=5e-3)


@EACH
def test_objective_never_rises_and_predictions_follow(kind):
    result = variational.fit(documents_of(X), 40, SUPERVISION[kind], settings())
    assert result.trace.rises.count == 0
    assert result.trace.objective[-1] < result.trace.objective[0]
    scores = proportions(documents_of(X), result.state, 1) @ result.state.weights.T
    if kind == "classes":
        assert np.mean(np.argmax(scores, axis=1) == LABELS) > 0.9
    elif kind == "labels":
        assert np.mean(np.sign(scores) == SIGNS) > 0.9
    else:
        assert 1 - np.mean((scores - NUMBERS) ** 2) / NUMBERS.var() > 0.9


@EACH
@pytest.mark.parametrize("margins", ["consistent", "posterior"])
def test_empty_documents_change_nothing(kind, margins):
    supervision, rows = SUPERVISION[kind], np.insert(np.arange(120), [0, 7, 120], 5)
    X_gaps = X[rows].tolil()
    for row in (0, 8, 122):
        X_gaps[row] = 0
    padded = variational._take(supervision, rows)
    chosen = settings(margins=margins, max_iter=5)
    with_gaps = variational.fit(documents_of(X_gaps.tocsr()), 40, padded, chosen).state
    without = variational.fit(documents_of(X), 40, supervision, chosen).state
    np.testing.assert_allclose(with_gaps.weights, without.weights, rtol=1e-6)
    np.testing.assert_allclose(proportions(documents_of(X_gaps.tocsr()), with_gaps, 1)[0], with_gaps.shares)


@pytest.mark.parametrize("margins", ["consistent", "posterior"])
def test_threads_do_not_change_the_fit(margins):
    X, P, _ = draw_documents(5000, n_words=100, length=20)
    supervision = Classes(np.argmax(P[:, :3], axis=1), 1 - np.eye(3), np.full(5000, 20.0))
    chosen = settings(margins=margins, max_iter=3)
    one, three = (
        variational.fit(documents_of(X), 100, supervision, replace(chosen, n_threads=n)).state for n in (1, 3)
    )
    np.testing.assert_array_equal(one.word_given_topic, three.word_given_topic)
    np.testing.assert_array_equal(one.weights, three.weights)


def test_classes_more_than_topics_share_them():
    membership = np.eye(5)[np.arange(120) % 5]
    logits = class_logits(DOCUMENTS, 40, 2, membership, np.random.default_rng(0))
    assert logits.shape == (40, 2)
    assert np.all(np.isfinite(logits))


def test_a_fit_goes_on_from_an_earlier_one():
    first = variational.fit(documents_of(X), 40, SUPERVISION["classes"], settings(max_iter=8))
    again = variational.fit(documents_of(X), 40, SUPERVISION["classes"], settings(max_iter=1), start=first.state)
    assert again.trace.objective[0] == pytest.approx(first.trace.objective[-1], rel=1e-3)


def test_kernels_see_documents_as_they_are():
    assert isinstance(DOCUMENTS, WordCounts)
    np.testing.assert_allclose(LENGTHS, X.sum(axis=1))
