"""Mean-field MedLDA: monotone objectives, exact gradients, and plain topic models as the limit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.decomposition import LatentDirichletAllocation

from medlda_tools import documents_of, draw_documents, responses_of
from regbayes.engine import Serial, Status, Threads
from regbayes.kernels.meanfield import lengths_of
from regbayes.margins.head import Head, Tolerance
from regbayes.margins.targets import Classes
from regbayes.models.medlda import meanfield
from regbayes.models.medlda.meanfield import count_groups, draw_logits, fold_intercept, select_documents
from regbayes.models.medlda.topics import bounds, proportions

X, PROPORTIONS, TOPICS = draw_documents(120, n_words=40, length=40)
EXACT = Tolerance(gap=1e-10, max_epochs=3000.0)
DOCUMENTS, _ = select_documents(documents_of(X), None, None)
SUPERVISION = responses_of(PROPORTIONS)
LABELS, SIGNS, NUMBERS = SUPERVISION["classes"].labels, SUPERVISION["labels"].signs, SUPERVISION["numbers"].values
EACH = pytest.mark.parametrize("kind", list(SUPERVISION))
EACH_OR_NONE = pytest.mark.parametrize("kind", [*SUPERVISION, None])


SHARED = {
    "n_components": 4,
    "doc_topic_prior": 0.3,
    "topic_word_prior": 0.1,
    "weight_variance": 0.1,
    "squared": True,
    "n_sweeps": 3,
    "max_iter": 30,
    "tol": 0.0,
    "seed": 0,
}


def fit(X, supervision, executor=None, start=None, callbacks=(), **changes):
    settings = meanfield.Settings(**SHARED | changes)
    options = {"executor": executor or Serial(), "start": start, "callbacks": callbacks}
    return meanfield.fit(documents_of(X), X.shape[1], supervision, settings, **options)


# --- the large-margin step


@EACH
@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("intercept", [False, True])
def test_weights_minimize_the_regularized_loss(kind, squared, intercept):
    supervision, shares = SUPERVISION[kind], PROPORTIONS
    solved = Head(supervision, squared, intercept, weight_variance=0.1).solve(shares, None, EXACT)
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
    head = Head(SUPERVISION[kind], True, weight_variance=0.1)
    way = np.random.default_rng(0).standard_normal(PROPORTIONS.shape)
    step = 1e-5
    above, below = (head.solve(PROPORTIONS + s * step * way, None, EXACT).value for s in (1, -1))
    gradient = head.solve(PROPORTIONS, None, EXACT).gradient(slice(0, 120), PROPORTIONS)
    assert (above - below) / (2 * step) == pytest.approx(np.sum(gradient * way), rel=1e-4)


# --- the descent


def label_free_problem(documents, supervision, n_sweeps=3):
    chosen = SHARED | {"doc_topic_prior": 0.7, "topic_word_prior": 0.2, "n_sweeps": n_sweeps}
    return meanfield.label_free_problem(documents, 40, supervision, meanfield.Settings(**chosen), Serial())


@EACH_OR_NONE
@pytest.mark.parametrize("n_sweeps", [1, 4])
def test_gradient_is_the_derivative_of_the_objective(kind, n_sweeps):
    problem = label_free_problem(DOCUMENTS, SUPERVISION.get(kind), n_sweeps)
    rng = np.random.default_rng(0)
    logits = draw_logits(count_groups(DOCUMENTS, 40, np.eye(3)[LABELS], 4), 4, rng).astype(np.float32)

    def evaluate(logits):
        return problem.evaluate(meanfield.make_topics(logits.astype(np.float32)), None, EXACT)

    slope = problem.gradient(*evaluate(logits))
    for _ in range(2):
        way = rng.standard_normal(logits.shape).astype(np.float32)
        step = np.float32(1e-2)
        up, down = (evaluate(logits + s * step * way)[0] for s in (1, -1))
        numerical = (up.objective - down.objective) / (2 * float(step))
        assert numerical == pytest.approx(float(np.sum(slope.astype(float) * way)), rel=5e-3)


@EACH
def test_objective_never_increases_and_predictions_improve(kind):
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
def test_empty_documents_change_nothing(kind):
    supervision, rows = SUPERVISION[kind], np.insert(np.arange(120), [0, 7, 120], 5)
    X_gaps = X[rows].tolil()
    for row in (0, 8, 122):
        X_gaps[row] = 0
    with_gaps = fit(X_gaps.tocsr(), supervision.take(rows), max_iter=5).state
    without = fit(X, supervision, max_iter=5).state
    np.testing.assert_allclose(with_gaps.weights, without.weights, rtol=1e-6)
    np.testing.assert_allclose(proportions(documents_of(X_gaps.tocsr()), with_gaps, Serial())[0], with_gaps.shares)


@pytest.mark.parametrize("many", [False, True])
def test_threads_do_not_change_the_fit(many, monkeypatch):
    if many:
        monkeypatch.setattr(meanfield, "BLOCK_RULES", ((20, 1, 1),))
    X, P, _ = draw_documents(5000, n_words=100, length=40)
    supervision = Classes(np.argmax(P[:, :3], axis=1), 1 - np.eye(3), np.full(5000, 20.0))
    n_blocks = len(select_documents(documents_of(X), None, None)[0].cut(100))
    assert n_blocks == 20 if many else n_blocks > 1
    one, three = (fit(X, supervision, Threads(n), max_iter=3).state for n in (1, 3))
    np.testing.assert_array_equal(one.word_given_topic, three.word_given_topic)
    np.testing.assert_array_equal(one.weights, three.weights)


def test_classes_share_topics_if_there_are_more_classes():
    membership = np.eye(5)[np.arange(120) % 5]
    logits = draw_logits(count_groups(DOCUMENTS, 40, membership, 2), 2, np.random.default_rng(0))
    assert logits.shape == (40, 2)
    assert np.all(np.isfinite(logits))


def test_fit_resumes_an_earlier_one():
    first = fit(X, SUPERVISION["classes"], max_iter=8)
    again = fit(X, SUPERVISION["classes"], max_iter=1, start=first.state)
    assert again.trace.objective[0] == pytest.approx(first.trace.objective[-1], rel=1e-3)


def test_lengths_are_numbers_of_words():
    np.testing.assert_allclose(DOCUMENTS.lengths, X.sum(axis=1))
    np.testing.assert_allclose(lengths_of(DOCUMENTS.counts.rows(7, 30)), X[7:30].sum(axis=1))


# --- without responses


def test_fit_without_targets_is_the_limit_of_zero_penalty():
    free = replace(
        SUPERVISION["numbers"], C=np.zeros_like(SUPERVISION["numbers"].C)
    )  # numbers do not affect the initialization
    with_targets, without = fit(X, free), fit(X, None)
    assert without.trace.objective == pytest.approx(with_targets.trace.objective, rel=1e-12)
    np.testing.assert_array_equal(without.state.word_given_topic, with_targets.state.word_given_topic)
    assert not np.any(with_targets.state.weights)
    assert without.state.weights.shape == (0, 4)
    assert without.trace.rises.count == 0


def test_bounds_of_new_documents_match_scikit_learn():
    X, _, _ = draw_documents(100, n_words=30, length=60)
    train, test = X[:80], X[80:].astype(np.float64)
    priors = {"doc_topic_prior": 0.3, "topic_word_prior": 0.1}
    peer = LatentDirichletAllocation(4, **priors, max_iter=10, random_state=0).fit(train)
    topics = peer.exp_dirichlet_component_.T.astype(np.float32)
    at_theirs = replace(fit(train, None, max_iter=1).state, word_given_topic=topics, n_sweeps=200)
    gamma = peer._unnormalized_transform(test)
    constant = peer._approx_bound(test[:0], gamma[:0], sub_sampling=False)
    theirs = peer._approx_bound(test, gamma, sub_sampling=False) - constant
    assert bounds(documents_of(test), at_theirs, Serial()).sum() == pytest.approx(theirs, rel=1e-3)


# --- weighted documents


WEIGHTS = np.random.default_rng(5).integers(1, 4, 120).astype(float)
REPEATED = np.repeat(np.arange(120), WEIGHTS.astype(int))


@EACH
def test_document_of_weight_two_counts_twice(kind):
    """Compares J at the same topics, and its gradient to single precision."""
    counts = count_groups(DOCUMENTS, 40, np.eye(3)[LABELS], 4)
    logits = draw_logits(counts, 4, np.random.default_rng(0)).astype(np.float32)
    found = []
    for rows, weights in ((np.arange(120), WEIGHTS), (REPEATED, None)):
        kept, asked = select_documents(documents_of(X[rows]), SUPERVISION[kind].take(rows), weights)
        problem = label_free_problem(kept, asked)
        at, inferred = problem.evaluate(meanfield.make_topics(logits.astype(np.float32)), None, EXACT)
        found.append((at, problem.gradient(at, inferred)))
    (weighted, slope), (repeated, expected) = found
    for name in ("likelihood", "kl_proportions", "kl_topics"):
        assert weighted.terms[name] == pytest.approx(repeated.terms[name], rel=1e-12)
    assert weighted.objective == pytest.approx(repeated.objective, rel=1e-9)  # limited by the head's duality gap
    np.testing.assert_allclose(weighted.stats.tokens, repeated.stats.tokens, rtol=1e-12)
    np.testing.assert_allclose(slope, expected, rtol=1e-4, atol=2e-5 * np.abs(expected).max())


def test_interrupt_in_the_first_step_returns_a_model():
    def interrupt(progress):
        raise KeyboardInterrupt

    for supervision in (SUPERVISION["numbers"], SUPERVISION["classes"], None):
        result = fit(X, supervision, callbacks=[interrupt])
        assert result.status is Status.INTERRUPTED
        shares = proportions(documents_of(X), result.state, Serial())
        np.testing.assert_allclose(shares.sum(axis=1), 1)
        assert np.all(np.isfinite(result.state.weights))
