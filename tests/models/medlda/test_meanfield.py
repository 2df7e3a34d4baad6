"""Variational MedLDA: bounds that never fall, exact gradients, plain topic models as the limit"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import digamma, gammaln, logsumexp
from sklearn.decomposition import LatentDirichletAllocation

from medlda_tools import after_a_round, bound, documents_of, draw_documents, first_round, lagrangian
from regbayes.engine import Serial, Status, Threads
from regbayes.margins.head import MarginHead, Tolerance
from regbayes.margins.targets import Classes, Numbers, Signs
from regbayes.models.medlda import meanfield, posterior
from regbayes.models.medlda.meanfield import class_logits, fold_intercept, random_logits, select_documents
from regbayes.models.medlda.posterior import (
    Problem,
    expected_log_topics,
    maximize_doc_prior,
    tilt_of,
    topic_divergence,
    update_documents,
)
from regbayes.models.medlda.topics import bounds, lengths_of, proportion_divergences, proportions

X, PROPORTIONS, TOPICS = draw_documents(120, n_words=40, length=40)
EXACT = Tolerance(gap=1e-10, max_epochs=3000.0)
DOCUMENTS, _ = select_documents(documents_of(X), None, None)
LABELS = np.argmax(PROPORTIONS[:, :3], axis=1)
SIGNS = np.where(PROPORTIONS[:, :2] > 0.3, 1.0, -1.0)
NUMBERS = (PROPORTIONS @ [[2.0], [-1.0], [0.5], [0.0]] - 0.4) / 0.6
SUPERVISION = {
    "classes": Classes(LABELS, 1 - np.eye(3), np.full(120, 30.0)),
    "labels": Signs(SIGNS, np.full(SIGNS.shape, 30.0), 1.0),
    "numbers": Numbers(NUMBERS, np.full(NUMBERS.shape, 30.0), 0.1),
}
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


def fit(X, supervision, margins="consistent", executor=None, sample_weight=None, start=None, **changes):
    """Fit by either scheme; without supervision it is that of the posterior."""
    options = {"executor": executor or Serial(), "sample_weight": sample_weight, "start": start}
    if margins == "consistent" and supervision is not None:
        settings = meanfield.Settings(**SHARED | {"n_sweeps": 3} | changes)
        return meanfield.fit(documents_of(X), X.shape[1], supervision, settings, **options)
    plain = {"estimate_doc_prior": False, "response_variance": None, "estimate_response": False}
    settings = posterior.Settings(**SHARED | plain | changes)
    return posterior.fit(documents_of(X), X.shape[1], supervision, settings, **options)


# --- the large-margin step


@EACH
@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("intercept", [False, True])
def test_weights_minimise_the_regularized_loss(kind, squared, intercept):
    supervision, shares = SUPERVISION[kind], PROPORTIONS
    solved = MarginHead(supervision, squared, intercept, weight_variance=0.1).solve(shares, None, EXACT)
    head, L = solved.head, supervision.n_outputs
    found, intercepts = head.feature_weights, head.weights[:, -1] if intercept else np.zeros(L)

    def value(weights, intercepts):
        scores = (shares - head.centre) @ weights.T + intercepts
        if kind == "classes":
            loss = np.max(supervision.cost[LABELS] + scores - scores[np.arange(120), LABELS][:, None], axis=1)[:, None]
            C = supervision.C[:, None]
        else:
            C = supervision.C
            if kind == "labels":
                loss = np.maximum(0, 1 - SIGNS * scores)
            else:
                loss = np.maximum(0, np.abs(NUMBERS - scores) - 0.1)
        prior = (np.sum(weights**2) + np.sum(np.square(intercepts))) / (2 * 0.1)
        return prior + np.sum(C * (loss**2 if squared else loss))

    assert np.any(intercepts) == intercept
    best = value(found, intercepts)
    assert best == pytest.approx(solved.value, rel=1e-6)
    rng = np.random.default_rng(0)
    for size in (1e-3, 1e-1):
        for _ in range(20):
            moved = intercepts + intercept * size * rng.standard_normal(L)
            assert value(found + size * rng.standard_normal((L, 4)), moved) > best - 1e-6 * abs(best)
    sums = PROPORTIONS / PROPORTIONS.sum(axis=1, keepdims=True)
    if intercept:
        np.testing.assert_allclose(sums @ fold_intercept(head).T, (sums - head.centre) @ found.T + intercepts)


@EACH
def test_gradient_of_the_head_is_the_derivative_of_the_value(kind):
    head = MarginHead(SUPERVISION[kind], True, weight_variance=0.1)
    way = np.random.default_rng(0).standard_normal(PROPORTIONS.shape)
    step = 1e-5
    above, below = (head.solve(PROPORTIONS + s * step * way, None, EXACT).value for s in (1, -1))
    gradient = head.solve(PROPORTIONS, None, EXACT).gradient(slice(120))
    assert (above - below) / (2 * step) == pytest.approx(np.sum(gradient * way), rel=1e-4)


# --- margins on the posterior


def posterior_problem(kind="classes", word_prior=0.1, **changes):
    head = None if kind is None else MarginHead(SUPERVISION[kind], False, False, weight_variance=0.25)
    return Problem(DOCUMENTS, 40, head, word_prior, True, **changes)


def started(problem, seed=0):
    return first_round(problem, random_logits(DOCUMENTS, 40, 4, np.random.default_rng(seed)), np.full(4, 0.3))


@pytest.mark.parametrize("kind", [*SUPERVISION, None])
@pytest.mark.parametrize("word_prior", [0.1, 0.0])
def test_no_update_lowers_the_bound_at_fixed_multipliers(kind, word_prior):
    problem = posterior_problem(kind, word_prior)
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
    problem = posterior_problem()
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
    problem = posterior_problem()
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
    train, test = X[:80], X[80:].astype(np.float64)
    result = fit(train, None, doc_topic_prior=0.1, max_iter=100, tol=1e-6)
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
    assert bounds(documents_of(test), at_theirs, Serial()).sum() == pytest.approx(theirs, rel=1e-3)


def test_plain_bound_never_falls():
    result = fit(X, None, max_iter=40)
    assert np.all(np.diff(result.trace.objective) < 1e-6 * np.abs(result.trace.objective[:-1]))


@EACH
@pytest.mark.parametrize("squared", [False, True])
def test_rounds_never_raise_the_objective_even_at_a_high_C(kind, squared):
    supervision = replace(SUPERVISION[kind], C=100 * SUPERVISION[kind].C)
    result = fit(X, supervision, "posterior", squared=squared, weight_variance=1.0, max_iter=10, tol=1e-6)
    assert result.trace.rises.count == 0
    assert result.trace.objective[-1] < result.trace.objective[1]


@EACH
@pytest.mark.parametrize("squared", [False, True])
def test_losses_are_those_that_the_solver_minimises(kind, squared):
    head = MarginHead(SUPERVISION[kind], squared, False, weight_variance=0.1)
    found = head.solve(PROPORTIONS, None, EXACT)
    scores = PROPORTIONS @ found.head.weights.T
    squares = np.sum(found.head.weights**2) / (2 * 0.1)
    assert squares + head.losses(scores).sum() == pytest.approx(found.value, rel=1e-6)
    rng = np.random.default_rng(0)
    away, step = scores + 0.5 * rng.standard_normal(scores.shape), 1e-6 * rng.standard_normal(scores.shape)  # off kinks
    numerical = head.losses(away + step) - head.losses(away - step)
    np.testing.assert_allclose(numerical, -2 * np.sum(head.multipliers(away) * step, axis=1), rtol=1e-3, atol=1e-8)


# --- margins on what prediction sees


def label_free_problem(documents, supervision, n_sweeps=3):
    chosen = SHARED | {"doc_topic_prior": 0.7, "topic_word_prior": 0.2, "n_sweeps": n_sweeps}
    return meanfield.label_free_problem(documents, 40, supervision, meanfield.Settings(**chosen), Serial())


@EACH
@pytest.mark.parametrize("n_sweeps", [1, 4])
def test_gradient_is_the_derivative_of_the_objective(kind, n_sweeps):
    problem = label_free_problem(DOCUMENTS, SUPERVISION[kind], n_sweeps)
    rng = np.random.default_rng(0)
    logits = class_logits(DOCUMENTS, 40, 4, np.eye(3)[LABELS], rng).astype(np.float32)

    def evaluate(logits):
        return problem.evaluate(meanfield.make_topics(logits), None, EXACT)

    slope = problem.gradient(*evaluate(logits))
    for _ in range(2):
        way = rng.standard_normal(logits.shape).astype(np.float32)
        step = np.float32(1e-2)
        up, down = (evaluate(logits + s * step * way)[0] for s in (1, -1))
        numerical = (up.objective - down.objective) / (2 * float(step))
        assert numerical == pytest.approx(float(np.sum(slope.astype(float) * way)), rel=5e-3)


@EACH
def test_objective_never_rises_and_predictions_follow(kind):
    result = fit(X, SUPERVISION[kind])
    assert result.trace.rises.count == 0
    assert result.trace.objective[-1] < result.trace.objective[0]
    scores = proportions(documents_of(X), result.state, Serial()) @ result.state.weights.T
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
    with_gaps = fit(X_gaps.tocsr(), supervision.take(rows), margins, max_iter=5).state
    without = fit(X, supervision, margins, max_iter=5).state
    np.testing.assert_allclose(with_gaps.weights, without.weights, rtol=1e-6)
    np.testing.assert_allclose(proportions(documents_of(X_gaps.tocsr()), with_gaps, Serial())[0], with_gaps.shares)


@pytest.mark.parametrize("margins", ["consistent", "posterior"])
@pytest.mark.parametrize("many", [False, True])
def test_threads_do_not_change_the_fit(margins, many, monkeypatch):
    if many:
        monkeypatch.setattr(meanfield, "BLOCK_RULES", ((20, 1, 1),))
    X, P, _ = draw_documents(5000, n_words=100, length=40)
    supervision = Classes(np.argmax(P[:, :3], axis=1), 1 - np.eye(3), np.full(5000, 20.0))
    n_blocks = len(select_documents(documents_of(X), None, None)[0].cut(100))
    assert n_blocks == 20 if many else n_blocks > 1
    one, three = (fit(X, supervision, margins, Threads(n), max_iter=3).state for n in (1, 3))
    np.testing.assert_array_equal(one.word_given_topic, three.word_given_topic)
    np.testing.assert_array_equal(one.weights, three.weights)


def test_classes_more_than_topics_share_them():
    membership = np.eye(5)[np.arange(120) % 5]
    logits = class_logits(DOCUMENTS, 40, 2, membership, np.random.default_rng(0))
    assert logits.shape == (40, 2)
    assert np.all(np.isfinite(logits))


def test_a_fit_goes_on_from_an_earlier_one():
    first = fit(X, SUPERVISION["classes"], max_iter=8)
    again = fit(X, SUPERVISION["classes"], max_iter=1, start=first.state)
    assert again.trace.objective[0] == pytest.approx(first.trace.objective[-1], rel=1e-3)


def test_lengths_are_numbers_of_words():
    np.testing.assert_allclose(DOCUMENTS.lengths, X.sum(axis=1))
    np.testing.assert_allclose(lengths_of(DOCUMENTS.counts.rows(7, 30)), X[7:30].sum(axis=1))


# --- documents that count more than once


WEIGHTS = np.random.default_rng(5).integers(1, 4, 120).astype(float)
REPEATED = np.repeat(np.arange(120), WEIGHTS.astype(int))


@EACH
def test_a_document_that_counts_twice_is_there_twice_label_free(kind):
    """J at the same topics, and to single precision its gradient."""
    logits = class_logits(DOCUMENTS, 40, 4, np.eye(3)[LABELS], np.random.default_rng(0)).astype(np.float32)
    found = []
    for rows, weights in ((np.arange(120), WEIGHTS), (REPEATED, None)):
        kept, asked = select_documents(documents_of(X[rows]), SUPERVISION[kind].take(rows), weights)
        problem = label_free_problem(kept, asked)
        at, inferred = problem.evaluate(meanfield.make_topics(logits), None, EXACT)
        found.append((at, problem.gradient(at, inferred)))
    (weighted, slope), (repeated, expected) = found
    for name in ("likelihood", "kl_proportions", "kl_topics"):
        assert weighted.terms[name] == pytest.approx(repeated.terms[name], rel=1e-12)
    assert weighted.objective == pytest.approx(repeated.objective, rel=1e-9)  # the head is solved to a gap
    np.testing.assert_allclose(weighted.stats.tokens, repeated.stats.tokens, rtol=1e-12)
    np.testing.assert_allclose(slope, expected, rtol=1e-4, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize("kind", [*SUPERVISION, "gaussian"])
def test_a_document_that_counts_twice_is_there_twice_on_the_posterior(kind):
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


@pytest.mark.parametrize("margins", ["consistent", "posterior"])
def test_an_interrupt_in_the_first_round_leaves_a_model(margins):
    def interrupt(progress):
        raise KeyboardInterrupt

    for supervision in (SUPERVISION["numbers"], SUPERVISION["classes"]):
        options = {"executor": Serial(), "callbacks": [interrupt]}
        if margins == "consistent":
            settings = meanfield.Settings(**SHARED, n_sweeps=3)
            result = meanfield.fit(documents_of(X), 40, supervision, settings, **options)
        else:
            plain = {"estimate_doc_prior": False, "response_variance": None, "estimate_response": False}
            result = posterior.fit(documents_of(X), 40, supervision, posterior.Settings(**SHARED | plain), **options)
            assert result.n_iter == 0  # of the rounds: the warm-up is a phase of its own
        assert result.status is Status.INTERRUPTED
        shares = proportions(documents_of(X), result.state, Serial())
        np.testing.assert_allclose(shares.sum(axis=1), 1)
        assert np.all(np.isfinite(result.state.weights))


def test_phases_are_named():
    seen = []
    plain = {"estimate_doc_prior": False, "response_variance": None, "estimate_response": False}
    settings = posterior.Settings(**SHARED | plain | {"max_iter": 2})
    posterior.fit(
        documents_of(X),
        40,
        SUPERVISION["numbers"],
        settings,
        executor=Serial(),
        callbacks=[lambda progress: seen.append((progress.stage, progress.state.word_given_topic.shape))],
    )
    stages = [stage for stage, _ in seen]
    assert stages == [posterior.WARM_UP] * posterior.WARM_UP_ROUNDS + [posterior.ROUNDS] * 2
    assert {shape for _, shape in seen} == {(40, 4)}
