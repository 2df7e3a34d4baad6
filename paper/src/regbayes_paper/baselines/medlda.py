"""MedLDA of the paper's appendix B: mean field with margins on the training posterior.

An iteration updates topic assignments and proportions of documents, topics, the prior of the proportions and the
response variance (if they are estimated), and weights and multipliers. A full step to the new multipliers can overshoot
the margins of a document, so a line search keeps its terms of the objective from increasing (docs/math.md, 5.5 and
5.7).

A Gaussian response, ``y_d ~ N(eta' zbar_d, delta^2)``, couples the words of a document. The base measure of the margins
is then the posterior of the weights.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import cho_solve, solve_triangular
from scipy.optimize import minimize
from scipy.sparse import csr_array
from scipy.special import digamma, gammaln, logsumexp
from sklearn.base import BaseEstimator, RegressorMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, check_non_negative, validate_data

from regbayes_paper._types import Floats, Integers
from regbayes_paper.classes import ClassScores
from regbayes_paper.descent import alternate
from regbayes_paper.svm import Boxes, class_losses, solve_boxes, solve_classes

WARM_UP_ROUNDS = 20  # first iterations, which ignore the responses
SWEEPS = 5  # sweeps over a document in an iteration
NEW_SWEEPS = 100  # maximum number of sweeps over a new document
SHARES = (1.0, 0.5, 0.25, 0.1, 0.03)  # step lengths toward the new multipliers, tried in turn
INNER_TOL = 1e-4  # relative duality gap of the SVM subproblem
SMALLEST_VARIANCE = 1e-6  # lower bound on the response variance
SMALLEST_COUNT = 1e-30  # lower bound on the count of a word in a topic


@dataclass(frozen=True)
class Corpus:
    """Sparse documents: an entry is a word of a document with its count."""

    words: Integers  # (E,)
    row: Integers  # (E,): index of the document
    numbers: Floats  # (E,)
    lengths: Floats  # (N,)
    by_document: csr_array  # (N, E): sums over entries of a document, weighted by counts
    by_word: csr_array  # (V, E)

    @classmethod
    def of(cls, X: Any) -> Corpus:
        """Return the entries of a matrix of counts."""
        counts = csr_array(X, dtype=np.float64)
        counts.eliminate_zeros()
        (n, v), e = counts.shape, counts.nnz
        row = np.repeat(np.arange(n), np.diff(counts.indptr))
        by_document = csr_array((counts.data, np.arange(e), counts.indptr), shape=(n, e))
        by_word = csr_array((counts.data, (counts.indices, np.arange(e))), shape=(v, e))
        lengths = np.maximum(by_document @ np.ones(e), 1.0)  # avoids division by zero for documents without words
        return cls(counts.indices.astype(np.int64), row, counts.data, lengths, by_document, by_word)


@dataclass(frozen=True)
class Weights:
    """Posterior q(eta), normal for each output, and the multipliers of the margins."""

    mean: Floats  # (L, K)
    covariance: Floats  # (K, K): used only with a Gaussian response (one output)
    variance: float  # delta^2 of a Gaussian response, otherwise infinite
    multipliers: Floats  # (N, L): negative derivatives of the losses with respect to scores


@dataclass(frozen=True)
class State:
    """All variational factors."""

    log_phi: Floats  # (E, K): log topic probabilities of words
    gamma: Floats  # (N, K): Dirichlet parameters of the proportions
    topic_counts: Floats  # (V, K): expected token counts, without the prior
    doc_prior: Floats  # (K,)
    weights: Weights | None = None  # None for latent Dirichlet allocation
    followed: Floats | None = None  # (N, L): multipliers used in the document updates


@dataclass(frozen=True)
class Problem:
    """Data and settings of a fit; without classes and numbers the model is latent Dirichlet allocation."""

    corpus: Corpus
    word_prior: float  # zero for maximum-likelihood topics
    weight_variance: float
    estimate_doc_prior: bool = False
    labels: Integers | None = None
    n_classes: int = 0
    numbers: Boxes | None = None
    C: float = 1.0
    estimate_response: bool = False

    # --- Expectations under the factors

    def log_topics(self, state: State) -> Floats:
        """Return ``E[log beta]``, (V, K)."""
        if self.word_prior > 0:
            pseudo = state.topic_counts + self.word_prior
            return digamma(pseudo) - digamma(pseudo.sum(axis=0))
        share = state.topic_counts / np.maximum(state.topic_counts.sum(axis=0), SMALLEST_COUNT)
        return np.log(np.maximum(share, SMALLEST_COUNT))

    def shares(self, state: State) -> Floats:
        """Return ``E[zbar]``, (N, K)."""
        return (self.corpus.by_document @ np.exp(state.log_phi)) / self.corpus.lengths[:, None]

    def second_moment(self, state: State) -> Floats:
        """Return ``sum_d E[zbar zbar']``, (K, K); words of a document are independent under q."""
        phi, corpus = np.exp(state.log_phi), self.corpus
        shares = self.shares(state)
        weighted = phi * np.sqrt(corpus.numbers / corpus.lengths[corpus.row] ** 2)[:, None]
        own = np.sum(shares / corpus.lengths[:, None], axis=0)
        return shares.T @ shares + np.diag(own) - weighted.T @ weighted

    # --- Updates

    def update_documents(self, state: State, n_sweeps: int = SWEEPS) -> State:
        """Update topic assignments and proportions at fixed multipliers; no sweep increases the objective.

        A KL divergence from the current assignments makes the linearized quadratic term of a Gaussian response an upper
        bound. Its weight is a quarter of the largest squared distance between topics, over the document length.
        """
        corpus, K = self.corpus, state.gamma.shape[1]
        lengths, curvature = corpus.lengths[:, None], np.zeros((K, K))
        reward = np.zeros_like(state.gamma)
        if state.weights is not None and state.followed is not None:
            reward = state.followed @ state.weights.mean
            if np.isfinite(state.weights.variance) and self.numbers is not None:
                mean, delta = state.weights.mean[0], state.weights.variance
                reward = reward + np.outer(self.numbers.targets, mean) / delta
                curvature = (state.weights.covariance + np.outer(mean, mean)) / delta
        diagonal = np.diag(curvature)
        exponent = self.log_topics(state)[corpus.words]
        exponent += (reward / lengths - 0.5 * diagonal / lengths**2)[corpus.row]
        widest = float(np.max(diagonal[:, None] + diagonal - 2.0 * curvature))
        damping = (0.25 * widest / corpus.lengths)[corpus.row, None]
        log_phi, gamma = state.log_phi, state.gamma
        for _ in range(n_sweeps):
            phi = np.exp(log_phi)
            together = (corpus.by_document @ phi) @ curvature / lengths**2
            own = phi @ curvature / lengths[corpus.row] ** 2  # exclude products of a token with itself
            found = exponent + own + (digamma(gamma) - together)[corpus.row] + damping * log_phi
            found /= 1.0 + damping
            log_phi = found - logsumexp(found, axis=1, keepdims=True)
            gamma = state.doc_prior + corpus.by_document @ np.exp(log_phi)
        return replace(state, log_phi=log_phi, gamma=gamma)

    def update_topics(self, state: State) -> State:
        """Update the word distributions of topics."""
        return replace(state, topic_counts=self.corpus.by_word @ np.exp(state.log_phi))

    def update_doc_prior(self, state: State) -> State:
        """Update the Dirichlet parameters of the proportions by empirical Bayes."""
        expected = np.sum(digamma(state.gamma) - digamma(state.gamma.sum(axis=1))[:, None], axis=0)
        n = len(state.gamma)

        def cost(log_alpha: Floats) -> tuple[float, Floats]:
            alpha = np.exp(log_alpha)
            value = n * (gammaln(alpha).sum() - gammaln(alpha.sum())) - alpha @ expected
            return value, alpha * (n * (digamma(alpha) - digamma(alpha.sum())) - expected)

        bounds = [(-7.0, 7.0)] * len(state.doc_prior)
        found = minimize(cost, np.log(state.doc_prior), jac=True, method="L-BFGS-B", bounds=bounds)
        return replace(state, doc_prior=np.exp(found.x))

    def update_response(self, state: State) -> State:
        """Update the variance of a Gaussian response by empirical Bayes."""
        assert state.weights is not None
        variance = max(float(self.squared_residuals(state).mean()), SMALLEST_VARIANCE)
        return replace(state, weights=replace(state.weights, variance=variance))

    def squared_residuals(self, state: State) -> Floats:
        """Return the expected squared residual of each document's Gaussian response, (N,)."""
        assert state.weights is not None
        assert self.numbers is not None
        y, mean, phi = self.numbers.targets, state.weights.mean[0], np.exp(state.log_phi)
        second, shares = state.weights.covariance + np.outer(mean, mean), self.shares(state)
        own = shares @ np.diag(second) / self.corpus.lengths
        own -= self.corpus.by_document @ np.einsum("ek,ek->e", phi @ second, phi) / self.corpus.lengths**2
        return y**2 - 2.0 * y * (shares @ mean) + np.einsum("nk,nk->n", shares @ second, shares) + own

    def update_weights(self, state: State) -> State:
        """Update weights and multipliers by solving the SVM subproblem."""
        shares, before = self.shares(state), state.weights
        start = None if before is None else before.multipliers
        root = np.sqrt(self.weight_variance)
        variance = np.inf if before is None else before.variance
        if self.labels is not None:
            C = np.full(len(shares), self.C)
            found = solve_classes(root * shares, self.labels, self.n_classes, C, start=start, tol=INNER_TOL)
            mean = root * found.weights
            return replace(state, weights=Weights(mean, np.zeros((0, 0)), variance, found.multipliers))
        assert self.numbers is not None
        precision = np.eye(shares.shape[1]) / self.weight_variance
        base: Any = np.zeros(shares.shape[1])
        if np.isfinite(variance):  # the base measure is the posterior of Bayesian linear regression
            precision = precision + self.second_moment(state) / variance
            base = np.linalg.solve(precision, shares.T @ self.numbers.targets / variance)
        factor = np.linalg.cholesky(precision)
        boxes = replace(self.numbers, targets=self.numbers.targets - shares @ base)
        features = solve_triangular(factor, shares.T, lower=True).T
        found = solve_boxes(features, boxes, start=None if start is None else start[:, 0], tol=INNER_TOL)
        mean = base + solve_triangular(factor.T, found.weights[0])
        covariance = cho_solve((factor, True), np.eye(len(base)))
        return replace(state, weights=Weights(mean[None], covariance, variance, found.multipliers))

    # --- The objective

    def document_costs(self, state: State) -> Floats:
        """Return the terms of each document in the objective: words, proportions, response and margins, (N,)."""
        corpus, gamma, alpha, weights = self.corpus, state.gamma, state.doc_prior, state.weights
        expected = digamma(gamma) - digamma(gamma.sum(axis=1))[:, None]
        surprise = state.log_phi - self.log_topics(state)[corpus.words] - expected[corpus.row]
        costs = corpus.by_document @ np.einsum("ek,ek->e", np.exp(state.log_phi), surprise)
        costs += gammaln(gamma.sum(axis=1)) - gammaln(gamma).sum(axis=1) + np.sum((gamma - alpha) * expected, axis=1)
        costs += gammaln(alpha).sum() - gammaln(alpha.sum())
        if weights is None:
            return costs
        if np.isfinite(weights.variance):
            constant = np.log(2.0 * np.pi * weights.variance)
            costs += 0.5 * (constant + self.squared_residuals(state) / weights.variance)
        scores = self.shares(state) @ weights.mean.T
        if self.numbers is not None:
            return costs + self.numbers.losses(scores[:, 0])
        assert self.labels is not None
        return costs + class_losses(scores, self.labels, np.full(len(scores), self.C), squared=False)

    def objective(self, state: State) -> float:
        """Return the objective: document terms plus KL divergences of topics and weights."""
        cost = float(self.document_costs(state).sum())
        if self.word_prior > 0:
            (V, K), pseudo = state.topic_counts.shape, state.topic_counts + self.word_prior
            cost += float(np.sum(gammaln(pseudo.sum(axis=0))) - np.sum(gammaln(pseudo)))
            cost += float(np.vdot(state.topic_counts, self.log_topics(state)))
            cost -= K * (gammaln(V * self.word_prior) - V * gammaln(self.word_prior))
        if state.weights is not None:
            weights, v = state.weights, self.weight_variance
            cost += 0.5 * float(np.vdot(weights.mean, weights.mean)) / v
            if np.isfinite(weights.variance):
                spread = np.trace(weights.covariance) / v - np.linalg.slogdet(weights.covariance)[1]
                cost += 0.5 * float(spread + len(weights.covariance) * (np.log(v) - 1.0))
        return cost

    # --- The fit

    def start(self, n_components: int, doc_prior: float, rng: Any) -> State:
        """Initialize topics at random, or each from the words of one class."""
        n, K = len(self.corpus.lengths), n_components
        members = rng.dirichlet(np.ones(K), n)
        if self.labels is not None:
            members += 2.0 * (np.arange(K) % self.n_classes == self.labels[:, None])
        topic_counts = self.corpus.by_word @ members[self.corpus.row] / members.sum(axis=1).mean()
        log_phi = np.full((len(self.corpus.words), K), -np.log(K))
        even = np.full((n, K), doc_prior) + self.corpus.lengths[:, None] / K
        state = State(log_phi, even, topic_counts, np.full(K, doc_prior))
        for _ in range(WARM_UP_ROUNDS if self.labels is None else 1):
            state = self.update_topics(self.update_documents(replace(state, gamma=even)))
        return state

    def follow(self, state: State) -> State:
        """Update documents, with a line search on the multipliers of each document."""
        if state.weights is None:
            return self.update_documents(state)
        target = state.weights.multipliers
        start = np.zeros_like(target) if state.followed is None else state.followed
        found, costs = replace(state, followed=start), self.document_costs(state)
        waiting = np.ones(len(costs), dtype=bool)
        for share in SHARES:
            tried = self.update_documents(replace(state, followed=start + share * (target - start)))
            new = self.document_costs(tried)
            better = waiting & (new < costs)
            rows, entries = better[:, None], better[self.corpus.row][:, None]
            found = replace(
                found,
                log_phi=np.where(entries, tried.log_phi, found.log_phi),
                gamma=np.where(rows, tried.gamma, found.gamma),
                followed=np.where(rows, tried.followed, found.followed),
            )
            waiting &= ~better
            if not waiting.any():
                break
        return found

    def step(self, state: State) -> tuple[State, float]:
        """Update all factors once without increasing the objective."""
        state = self.update_topics(self.follow(state))
        if self.estimate_doc_prior:
            state = self.update_doc_prior(state)
        if self.estimate_response:
            state = self.update_response(state)
        objective = self.objective(state)
        if state.weights is None:
            return state, objective
        moved = self.update_weights(state)
        after = self.objective(moved)
        if after <= objective:
            return moved, after
        # The solver is inexact, so the previous weights can be better; documents use the new multipliers in any case.
        kept = replace(state.weights, multipliers=moved.weights.multipliers)
        return replace(state, weights=kept), objective


class _PosteriorTopics(TransformerMixin, BaseEstimator):
    """Base class of the classifier and the regressor."""

    def _fit_topics(self, problem: Problem, response_variance: float = np.inf) -> None:
        estimated = self.doc_topic_prior == "estimate"
        problem = replace(problem, estimate_doc_prior=estimated)
        doc_prior = 0.1 if estimated else float(self.doc_topic_prior)
        state = problem.start(int(self.n_components), doc_prior, check_random_state(self.random_state))
        if self.C > 0 or np.isfinite(response_variance):
            L = 1 if problem.labels is None else problem.n_classes
            K, n = int(self.n_components), len(problem.corpus.lengths)
            blank = Weights(np.zeros((L, K)), np.eye(K), response_variance, np.zeros((n, L)))
            state = problem.update_weights(replace(state, weights=blank))
        state, self.objectives_ = alternate(problem.step, state, int(self.max_iter), float(self.tol))
        self.n_iter_ = len(self.objectives_)
        self.components_ = (state.topic_counts + problem.word_prior).T
        self.doc_topic_prior_ = state.doc_prior
        self._log_topics = problem.log_topics(state)
        self._weights = state.weights
        if state.weights is not None:
            self.coef_features_ = state.weights.mean

    def transform(self, X: ArrayLike) -> Floats:
        """Return the expected topic proportions of documents, inferred without margins."""
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False, ensure_non_negative=True)
        corpus, K = Corpus.of(X), len(self.doc_topic_prior_)
        gamma, log_phi = np.full((len(corpus.lengths), K), 1.0 / K) * corpus.lengths[:, None], None
        for _ in range(NEW_SWEEPS):
            found = self._log_topics[corpus.words] + digamma(gamma)[corpus.row]
            log_phi = found - logsumexp(found, axis=1, keepdims=True)
            gamma = self.doc_topic_prior_ + corpus.by_document @ np.exp(log_phi)
        return (gamma - self.doc_topic_prior_) / corpus.lengths[:, None]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = True
        return tags


@dataclass(eq=False, repr=False)
class PosteriorMedLDAClassifier(ClassScores, _PosteriorTopics):
    """MedLDA classifier of the paper, with margins on the training posterior.

    The margins affect the topics of training documents, whereas those of new documents are inferred without labels.
    `regbayes.MedLDAClassifier` has margins on label-free features instead.

    Parameters
    ----------
    n_components : int, default=40
        Number of topics.
    C : float, default=1.0
        Penalty on a margin violation, per word of a document of average length. 0 is latent Dirichlet allocation.
    doc_topic_prior : float or "estimate", default=0.1
        Dirichlet parameter of the topic proportions. "estimate" estimates one for each topic.
    topic_word_prior : float, default=0.1
        Dirichlet parameter of the word distributions. 0 estimates topics by maximum likelihood.
    weight_variance : float, default=0.25
        Prior variance of the classifier's weights.
    max_iter : int, default=100
    tol : float, default=1e-4
        Relative change of the objective at which to stop.
    random_state : int, RandomState instance or None, default=None
        Seeds the initial topics.

    References
    ----------
    J. Zhu, N. Chen and E. P. Xing (2014). Bayesian inference with posterior regularization and applications to infinite
    latent SVMs. JMLR 15, appendix B.
    """

    n_components: int = 40
    _: KW_ONLY
    C: float = 1.0
    doc_topic_prior: float | Literal["estimate"] = 0.1
    topic_word_prior: float = 0.1
    weight_variance: float = 0.25
    max_iter: int = 100
    tol: float = 1e-4
    random_state: Any = None

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learn topics and weights from word counts and classes."""
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64)
        check_non_negative(X, "PosteriorMedLDAClassifier")
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        corpus = Corpus.of(X)
        problem = Problem(
            corpus,
            float(self.topic_word_prior),
            float(self.weight_variance),
            labels=labels,
            n_classes=len(self.classes_),
            C=float(self.C) * float(corpus.lengths.mean()),
        )
        self._fit_topics(problem)
        if self._weights is None:
            self.coef_features_ = np.zeros((len(self.classes_), int(self.n_components)))
        return self

    def _class_scores(self, X: ArrayLike) -> Floats:
        return self.transform(X) @ self.coef_features_.T

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True  # on samples that are not word counts
        return tags


@dataclass(eq=False, repr=False)
class PosteriorMedLDARegressor(RegressorMixin, _PosteriorTopics):
    """MedLDA regressor of the paper, with margins on the posterior and an optional Gaussian response.

    Parameters
    ----------
    n_components : int, default=40
        Number of topics.
    C : float, default=3.0
        Penalty on standardized residuals beyond epsilon, per word of a document of average length.
    epsilon : float, default=0.1
        Residuals up to this size have zero loss, in standard deviations of the targets.
    response_variance : float, "auto" or None, default=None
        Variance of a Gaussian response in the likelihood, in units of the target variance. "auto" estimates it; None
        has margins only. With a Gaussian response and ``C=0`` the model is supervised latent Dirichlet allocation.
    doc_topic_prior, topic_word_prior, weight_variance, max_iter, tol, random_state
        As in `PosteriorMedLDAClassifier`.
    """

    n_components: int = 40
    _: KW_ONLY
    C: float = 3.0
    epsilon: float = 0.1
    response_variance: float | Literal["auto"] | None = None
    doc_topic_prior: float | Literal["estimate"] = 0.1
    topic_word_prior: float = 0.5
    weight_variance: float = 1.0
    max_iter: int = 100
    tol: float = 1e-4
    random_state: Any = None

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learn topics and weights from word counts and numbers."""
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64, y_numeric=True)
        check_non_negative(X, "PosteriorMedLDARegressor")
        self._mean, self._scale = float(np.mean(y)), float(np.std(y)) or 1.0
        corpus, targets = Corpus.of(X), (y - self._mean) / self._scale
        C = np.full(len(targets), float(self.C) * float(corpus.lengths.mean()))
        problem = Problem(
            corpus,
            float(self.topic_word_prior),
            float(self.weight_variance),
            numbers=Boxes(targets, C, float(self.epsilon)),
            estimate_response=self.response_variance == "auto",
        )
        given = {"auto": 1.0, None: np.inf}.get(self.response_variance, self.response_variance)
        self._fit_topics(problem, float(given))
        if self._weights is None:
            self.coef_features_ = np.zeros((1, int(self.n_components)))
        variance = np.inf if self._weights is None else self._weights.variance
        self.response_variance_ = variance * self._scale**2 if np.isfinite(variance) else None
        return self

    def predict(self, X: ArrayLike) -> Floats:
        """Predict numbers."""
        return self.transform(X) @ self.coef_features_[0] * self._scale + self._mean

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # on samples that are not word counts
        return tags
