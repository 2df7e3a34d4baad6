"""The Gaussian response of MedLDA's regression: moments by enumeration, updates that never lower the bound."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.sparse import csr_array
from scipy.special import digamma, gammaln
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.linear_model import LinearRegression

from medlda_posterior_tools import after_a_round, first_round, lagrangian, update_weights
from medlda_tools import documents_of, draw_documents
from reference_tools import is_nearer_to
from regbayes import load
from regbayes.engine import Serial
from regbayes.kernels.meanfield import WordCounts
from regbayes.margins.head import MarginHead, Tolerance
from regbayes.margins.targets import Numbers
from regbayes.models.medlda.meanfield import TrainingDocuments, random_logits, select_documents
from regbayes.models.medlda.topics import as_table
from regbayes_paper.baselines import PosteriorMedLDARegressor
from regbayes_paper.models.medlda import posterior, response
from regbayes_paper.models.medlda.posterior import (
    Problem,
    expected_log_topics,
    moments_of,
    update_coupled,
    update_documents,
)

X, PROPORTIONS, TOPICS = draw_documents(100, n_words=40, length=30)
NUMBERS = PROPORTIONS @ np.array([[2.0, 0.0], [-1.0, 1.0], [0.5, -1.0], [0.0, 0.0]])
NUMBERS = NUMBERS + 0.1 * np.random.default_rng(1).standard_normal(NUMBERS.shape)
NUMBERS = (NUMBERS - NUMBERS.mean(axis=0)) / NUMBERS.std(axis=0)
EXACT = Tolerance(gap=1e-10, max_epochs=3000.0)
K = 4


def head_of(values, C, squared=False, variance=0.8):
    return MarginHead(Numbers(values, np.full(values.shape, C), 0.1), squared, False, weight_variance=variance)


def problem_of(X=X, C=20.0, word_prior=0.1, variance=0.5, estimate=True):
    documents, _ = select_documents(documents_of(X), None, None)
    observed = response.Response(NUMBERS, 0.8, variance, estimate)
    return Problem(documents, X.shape[1], head_of(NUMBERS, C), word_prior, True, observed)


def started(problem):
    logits = random_logits(problem.documents, 40, K, np.random.default_rng(0))
    return first_round(problem, logits, np.full(K, 0.3))


def one_document(numbers):
    n = len(numbers)
    words = WordCounts(np.arange(n, dtype=np.int32), np.asarray(numbers, np.float32), np.array([0, n]))
    return TrainingDocuments(words, np.array([float(np.sum(numbers))]), np.ones(1))


def topics_of(phi, numbers):
    """Topics of one document's words: log phi, its one row of gamma, and what `infer_words` sums."""
    n, words = len(numbers), one_document(numbers)
    nothing = response.QuadraticTilt(np.zeros((1, phi.shape[1])), np.zeros((phi.shape[1],) * 2))
    log_topics, gamma = np.zeros((n, phi.shape[1])), np.ones((1, phi.shape[1]))
    start = np.log(phi).astype(np.float32)
    return response.infer_words(words, log_topics, np.ones(phi.shape[1]), nothing, start, gamma, 0, Serial())


# --- moments


def test_second_moment_is_that_of_all_assignments_enumerated():
    rng = np.random.default_rng(0)
    numbers, phi = [1, 3, 2], rng.dirichlet(np.ones(3), 3)
    tokens = np.repeat(phi, numbers, axis=0)
    expected = np.zeros((3, 3))
    for z in product(range(3), repeat=6):
        share = np.bincount(z, minlength=3) / 6
        expected += np.prod(tokens[np.arange(6), z]) * np.outer(share, share)
    found = topics_of(phi, numbers)
    second = response.moments(found.doc_topic / 6, np.array([6.0]), found.overlap, np.ones(1)).second
    np.testing.assert_allclose(second, expected, rtol=1e-5)
    # The weights' side of the same: E[(eta zbar)^2] by drawing nothing.
    curvature = rng.standard_normal((3, 5)) @ rng.standard_normal((5, 3))
    curvature = curvature @ curvature.T
    tilt, words = response.QuadraticTilt(np.zeros((1, 3)), curvature), one_document(numbers)
    log_phi = np.log(phi).astype(np.float32)
    at = response.infer_words(words, np.zeros((3, 3)), np.ones(3), tilt, log_phi, np.ones((1, 3)), 0, Serial())
    cost = response.quadratic_costs(at.own, at.doc_topic, np.array([6.0]), curvature)
    assert cost[0] == pytest.approx(0.5 * np.trace(curvature @ expected), rel=1e-5)


def test_weights_of_words_that_are_not_whole_have_a_proper_covariance():
    rng = np.random.default_rng(0)
    numbers, phi = np.array([0.3, 1.7, 2.4]), rng.dirichlet(np.ones(3), 3)
    found, n = topics_of(phi, numbers), numbers.sum()
    at = response.moments(found.doc_topic / n, np.array([n]), found.overlap, np.ones(1))
    covariance = at.second - np.outer(at.shares[0], at.shares[0])
    assert np.linalg.eigvalsh(covariance).min() > -1e-7
    np.testing.assert_allclose(covariance.sum(axis=0), 0, atol=1e-6)  # shares sum to one


# --- weights


def test_without_margins_weights_are_a_bayesian_linear_regression():
    problem = problem_of(C=0.0)
    at = started(problem).factors
    seen = moments_of(problem, at)
    for i in range(2):
        precision = np.eye(K) / 0.8 + seen.second / 0.5
        np.testing.assert_allclose(np.linalg.inv(at.weights.covariance[i]), precision, rtol=1e-6)
        mean = np.linalg.solve(precision, seen.shares.T @ NUMBERS[:, i] / 0.5)
        np.testing.assert_allclose(at.weights.mean[i], mean, rtol=1e-6)
    assert not np.any(at.head.multipliers)


def test_certain_shares_are_ordinary_bayesian_regression():
    """Documents of one endlessly repeated word of a known topic: scikit-learn's ridge is the mean."""
    from sklearn.linear_model import Ridge

    shares = np.eye(K)[np.arange(100) % K]
    seen = response.Moments(shares, shares.T @ shares, np.ones(100))
    observed = response.Response(NUMBERS, 0.8, 0.5, False)
    found, _ = response.solve_weights(seen, observed, head_of(NUMBERS, 0.0), np.full(2, 0.5), None, EXACT)
    np.testing.assert_allclose(found.mean, Ridge(alpha=0.5 / 0.8, fit_intercept=False).fit(shares, NUMBERS).coef_)


@pytest.mark.parametrize("squared", [False, True])
def test_weights_with_margins_minimise_divergence_and_loss(squared):
    problem = problem_of()
    at = started(problem).factors
    seen = moments_of(problem, at)
    head, variance = head_of(NUMBERS, 20.0, squared), np.array([0.5, 0.2])
    found, margins = response.solve_weights(seen, problem.response, head, variance, None, EXACT)

    def value(mean, covariance):
        q = replace(found, mean=mean, covariance=covariance)
        loss = np.maximum(0, np.abs(NUMBERS - seen.shares @ mean.T) - 0.1)
        return sum(response.terms(seen, problem.response, q).values()) + 20 * np.sum(loss**2 if squared else loss)

    best = value(found.mean, found.covariance)
    assert np.any(margins.multipliers)
    rng = np.random.default_rng(0)
    for size in (1e-4, 1e-2, 0.1):
        for _ in range(20):
            assert value(found.mean + size * rng.standard_normal((2, K)), found.covariance) > best - 1e-6
            root = np.eye(K) + size * rng.standard_normal((2, K, K))
            moved = root @ found.covariance @ root.swapaxes(1, 2)
            assert value(found.mean, moved) > best - 1e-6
    # The multipliers give the same weights by their closed form.
    solved = posterior.Head(found.mean, margins.multipliers, margins.gap)
    again = update_weights(problem, replace(at, weights=found, head=solved)).weights
    np.testing.assert_allclose(again.mean, found.mean, rtol=1e-6)
    np.testing.assert_allclose(again.covariance, found.covariance, rtol=1e-6)


def test_estimated_variance_fits_best():
    problem = problem_of()
    at = started(problem).factors
    seen, found = moments_of(problem, at), posterior.update_response_variance(problem, at).weights.variance
    for i in range(2):

        def cost(log_variance, i=i):
            variance = at.weights.variance.copy()
            variance[i] = np.exp(log_variance)
            return response.terms(seen, problem.response, replace(at.weights, variance=variance))["response"]

        best = minimize_scalar(cost, bounds=(-8, 3), method="bounded", options={"xatol": 1e-8})
        assert found[i] == pytest.approx(np.exp(best.x), rel=1e-4)


# --- topics of words


@pytest.mark.parametrize("word_prior", [0.1, 0.0])
@pytest.mark.parametrize("weights", ["whole", "tf-idf"])
@pytest.mark.parametrize("variance", [0.5, 0.01])
def test_no_update_lowers_the_bound_at_fixed_multipliers(word_prior, weights, variance):
    counts = X if weights == "whole" else csr_array(TfidfTransformer().fit_transform(X) * 3)
    problem = problem_of(counts, word_prior=word_prior, variance=variance)
    at = started(problem).factors
    for _ in range(2):
        multipliers = at.head
        values = [lagrangian(problem, at, multipliers)]
        updates = [
            partial(update_documents, problem),
            partial(posterior.update_topics, problem),
            partial(posterior.update_prior, problem),
            partial(posterior.update_response_variance, problem),
            partial(update_weights, problem),
        ]
        for update in updates:
            at = update(at)
            values.append(lagrangian(problem, at, multipliers))
        assert np.all(np.diff(values) > -2e-6 * np.abs(values[:-1]))
        assert values[-1] > values[0]
        at = after_a_round(problem, at)


def test_perturbed_topics_of_words_are_worse():
    problem = problem_of(variance=0.05)
    at = started(problem).factors
    for _ in range(200):
        at = update_documents(problem, at)
    best = lagrangian(problem, at, at.head)
    rng = np.random.default_rng(0)
    for size in (0.05, 0.5):
        moved = at.log_phi + size * rng.standard_normal(at.log_phi.shape).astype(np.float32)
        moved -= np.log(np.exp(moved).sum(axis=1, keepdims=True))
        shifted = update_coupled(problem, replace(at, log_phi=moved), n_sweeps=0)
        assert lagrangian(problem, shifted, at.head) < best
        gamma = at.gamma[:, :K] * np.exp(size * rng.standard_normal((100, K)))
        shifted = update_coupled(problem, replace(at, gamma=as_table(gamma)), n_sweeps=0)
        assert lagrangian(problem, shifted, at.head) < best


def test_settled_topics_of_words_are_supervised_ldas_fixed_point():
    """Blei and McAuliffe (NIPS 2007), eq. 7, token by token, with the weights' second moments."""
    problem = problem_of(C=0.0, variance=0.2)
    at = started(problem).factors
    for _ in range(200):
        at = update_documents(problem, at)
    log_topics = expected_log_topics(at.topic_counts[:, :K], 0.1)
    phi, starts, numbers, words = np.exp(at.log_phi), X.indptr, X.data, X.indices
    second = response.second_moments(at.weights)
    for d in range(10):
        each = slice(starts[d], starts[d + 1])
        n, total = numbers[each].sum(), numbers[each] @ phi[each]
        for f, w in zip(phi[each], words[each], strict=True):
            exponent = digamma(at.gamma[d, :K].astype(float)) + log_topics[w]
            for i in range(2):
                others = second[i] @ (total - f)
                exponent += NUMBERS[d, i] * at.weights.mean[i] / (n * 0.2)
                exponent -= (2 * others + np.diag(second[i])) / (2 * n**2 * 0.2)
            expected = np.exp(exponent - exponent.max())
            np.testing.assert_allclose(f, expected / expected.sum(), atol=2e-4)


@pytest.mark.filterwarnings("ignore:.*stopped at max_iter")
def test_an_endless_variance_leaves_plain_latent_dirichlet_allocation():
    model = {"max_iter": 60, "C": 0.0, "random_state": 0}
    plain = PosteriorMedLDARegressor(K, **model).fit(X, NUMBERS[:, 0])
    vague = PosteriorMedLDARegressor(K, **model, response_variance=1e8).fit(X, NUMBERS[:, 0])
    assert vague.perplexity(X) == pytest.approx(plain.perplexity(X), rel=2e-3)
    assert np.abs(vague.coef_features_).max() < 1e-3


# --- the estimator


@pytest.mark.filterwarnings("ignore:.*stopped at max_iter")
def test_numbers_are_learned_and_their_variance_is_estimated(tmp_path):
    X, proportions, _ = draw_documents(500, length=80)
    noise = 0.5 * np.random.default_rng(0).standard_normal(500)
    y = 3 + 4 * proportions @ np.array([2.0, -1.0, 0.5, 0.0]) + noise
    train, test = slice(0, 300), slice(300, 500)
    options = {"random_state": 0, "max_iter": 40}
    fitted = PosteriorMedLDARegressor(4, C=0, response_variance="auto", **options).fit(X[train], y[train])
    knowing = LinearRegression().fit(proportions[train], y[train]).score(proportions[test], y[test])
    assert is_nearer_to(knowing, 0.0, fitted.score(X[test], y[test]))
    assert 0.1 < fitted.response_variance_ < 1.5
    fitted.save(tmp_path / "model")
    assert load(tmp_path / "model").response_variance_ == fitted.response_variance_
    two = PosteriorMedLDARegressor(4, C=0.1, response_variance=0.3, **options).fit(X[train], np.c_[y, -y][train])
    np.testing.assert_allclose(two.response_variance_, 0.3 * y[train].var())
    assert two.coef_features_.shape == (2, 4)
    threads = PosteriorMedLDARegressor(4, C=0, response_variance="auto", n_jobs=2, **options).fit(X[train], y[train])
    np.testing.assert_array_equal(threads.coef_features_, fitted.coef_features_)


@pytest.mark.parametrize("value", [0.0, "estimate"])
def test_bad_response_variances_are_named(value):
    with pytest.raises(ValueError, match="response_variance"):
        PosteriorMedLDARegressor(3, response_variance=value).fit(X, NUMBERS)


@pytest.mark.filterwarnings("ignore:.*stopped at max_iter")
def test_no_response_leaves_no_variance_of_an_earlier_fit():
    model = PosteriorMedLDARegressor(3, response_variance=0.5, max_iter=1).fit(X, NUMBERS[:, 0])
    assert model.response_variance_ == pytest.approx(0.5 * NUMBERS[:, 0].var())
    assert model.set_params(response_variance=None).fit(X, NUMBERS[:, 0]).response_variance_ is None


@pytest.mark.parametrize("C", [20.0, 2000.0])
def test_rounds_lower_the_objective(C):
    problem = problem_of(C=C)
    first = at = started(problem)
    for _ in range(6):
        at = posterior.step(problem, at).state
    # Rounds that cannot lower it leave everything as it is, so progress is what can fail.
    assert at.objective < first.objective - 0.05 * abs(first.objective)


def test_the_objective_is_that_of_all_assignments_enumerated():
    rng = np.random.default_rng(0)
    counts = csr_array(np.array([[2, 0, 1, 1], [0, 1, 0, 3], [1, 1, 1, 0]]))
    (documents, _), y = select_documents(documents_of(counts), None, None), rng.standard_normal((3, 2))
    v, n_topics = 0.8, 3
    problem = Problem(documents, 4, head_of(y, 3.0), 0.2, True, response.Response(y, v, 0.4, True))
    at = first_round(problem, random_logits(documents, 4, n_topics, rng), np.full(n_topics, 0.5))
    for _ in range(4):
        at = posterior.step(problem, at).state
    factors, q = at.factors, at.factors.weights
    gamma, phi = factors.gamma[:, :n_topics].astype(float), np.exp(factors.log_phi.astype(float))
    log_theta = digamma(gamma) - digamma(gamma.sum(axis=1))[:, None]
    log_topics, second = expected_log_topics(factors.topic_counts[:, :n_topics], 0.2), response.second_moments(q)
    found = 0.0
    for d in range(3):
        each = slice(counts.indptr[d], counts.indptr[d + 1])
        words = np.repeat(counts.indices[each], counts.data[each])
        tokens, i = np.repeat(phi[each], counts.data[each], axis=0), np.arange(len(words))
        for topics in product(range(n_topics), repeat=len(words)):
            z = np.array(topics)
            share = np.bincount(z, minlength=n_topics) / len(words)
            squares = y[d] ** 2 - 2 * y[d] * (q.mean @ share) + np.einsum("j,ljk,k->l", share, second, share)
            value = np.sum(log_theta[d][z] + log_topics[words, z] - np.log(tokens[i, z]))
            value -= 0.5 * np.sum(np.log(2 * np.pi * q.variance) + squares / q.variance)
            found += np.prod(tokens[i, z]) * value

    def divergence(a, b):
        difference = gammaln(a.sum()) - gammaln(a).sum() - gammaln(b.sum()) + gammaln(b).sum()
        return difference + (a - b) @ (digamma(a) - digamma(a.sum()))

    found -= sum(divergence(row, factors.doc_prior) for row in gamma)
    found -= sum(divergence(c + 0.2, np.full(4, 0.2)) for c in factors.topic_counts[:, :n_topics].T.astype(float))
    for mean, covariance in zip(q.mean, q.covariance, strict=True):
        spread = (np.trace(covariance) + mean @ mean) / v - np.linalg.slogdet(covariance)[1]
        found -= 0.5 * (spread - n_topics + n_topics * np.log(v))
    shares = factors.doc_topic[:, :n_topics] / documents.lengths[:, None]
    loss = 3.0 * np.maximum(0, np.abs(y - shares @ q.mean.T) - 0.1).sum()
    assert at.objective == pytest.approx(loss - found, rel=1e-5)
