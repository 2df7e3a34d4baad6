"""MedLDA by mean field with margins on the posterior of the training documents, as in the paper's appendix B.

A round updates, in turn: topics of words and proportions of documents, which the multipliers tilt towards the margins;
the topics' words; the prior of the proportions and the variance of responses, if they are estimated; the multipliers
and the weights, by the large-margin solver. At fixed multipliers no update lowers the bound. But the multipliers are
those of the documents as they were, and documents that follow them all the way can overshoot the margins: with a high C
they are thrown from one topic to the other in turn, and the regularized objective rises. Then the round is done over
with damped documents, which go only part of the way where that lowers their own share of the objective, and the fit
ends when that does not help either. docs/math.md 5.5, eq. (59)-(65), (111); with a Gaussian response (`response`)
(105)-(110). Without targets it is latent Dirichlet allocation.

    state                      the problem, the distributions, and what follows from them at once
    fit                        warm-up without responses, then rounds
    documents                  topics of words and proportions, tilted and damped
    topics, priors, weights    the other updates
    objective                  term by term
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from scipy.special import digamma, gammaln, polygamma

from regbayes._registry import persistable
from regbayes._types import Flags, Floats, Integers, Reals, Singles
from regbayes.engine import (
    DiminishingReturns,
    Executor,
    FitResult,
    Progress,
    Serial,
    Status,
    StepResult,
    row_blocks,
    run,
)
from regbayes.kernels.meanfield import (
    Prior,
    WordCounts,
    as_table,
    even_gamma,
    log_likelihoods,
    meanfield_statistics,
    meanfield_sweeps,
    no_tilt,
    proportion_divergences,
)
from regbayes.margins.head import FittedHead, MarginHead, Tolerance
from regbayes.margins.targets import Numbers, Targets
from regbayes.models.medlda.meanfield import TrainingDocuments, first_logits, select_documents
from regbayes.models.medlda.topics import UNTIL_SETTLED, FittedTopics
from regbayes_paper.models.medlda import response as gaussian
from regbayes_paper.models.medlda.response import Moments, QuadraticTilt, Response, WeightPosterior, WordTopics

WARM_UP, ROUNDS = "warm-up", "rounds"  # the phases of a fit
WARM_UP_ROUNDS = 20  # from vague topics, in which documents begin anew: they should not settle on what means nothing
MAX_SWEEPS = 20  # over a document in a round; it goes on from there in the next
TOL = 1e-3  # of a document's length: changes of its topics' tokens, summed
DAMPING = (1.0, 0.5, 0.25, 0.12, 0.03)  # shares of the step to the new tilt that a damped document tries
TOLERANCE = Tolerance(gap=1e-3, max_epochs=300.0)  # of the large-margin step

MAX_NEWTON_STEPS = 20  # for the prior of proportions
SMALLEST, LARGEST = 1e-3, 1e3  # of a Dirichlet parameter: beyond, nothing would change any more


# --- State


@persistable(name="regbayes_paper.medlda.SmoothedTopics")
@dataclass(frozen=True)
class SmoothedTopics(FittedTopics):
    """A fit whose topics have a distribution: the table of words holds exp of the expected log-probabilities."""

    word_topic: Singles  # (V, K): pseudo-counts of words in topics
    response_variance: Floats | None  # (L,): of a Gaussian response

    def components(self) -> Singles:
        """Return the expected tokens of words in topics, those of the prior included, shape (K, V)."""
        return np.ascontiguousarray(self.word_topic.T)


Callback = Callable[[Progress[SmoothedTopics]], bool | None]


@dataclass(frozen=True)
class Problem:
    """What stays the same through a fit."""

    documents: TrainingDocuments
    n_words: int
    head: MarginHead | None  # None: latent Dirichlet allocation
    word_prior: float  # zero: topics by maximum likelihood
    estimate_doc_prior: bool
    response: Response | None = None  # None: margins are all that is known of the numbers
    executor: Executor = field(default_factory=Serial)


@dataclass(frozen=True)
class Head:
    """Weights that meet the margins, or nearly, and the multipliers that say what each cost."""

    weights: Floats  # (L, K): expected
    multipliers: Floats  # (N, L): minus the derivative of the losses by the scores
    gap: float


@dataclass(frozen=True)
class Factors:
    """The distributions: proportions of documents, words of topics, weights."""

    gamma: Singles  # (N, columns)
    tilt: Singles  # (N, columns), or no rows: what the topics of words were tilted with
    topic_counts: Singles  # (V, columns): topics are Dirichlet with these parameters plus the prior's, or the shares of
    # these where they are estimated
    log_topics: Floats  # (V, K): expected logarithms of the words' probabilities, at topic_counts
    word_topic: Singles  # (V, columns): expected tokens
    doc_topic: Singles  # (N, columns): expected tokens
    doc_prior: Floats  # (K,)
    entropy: float  # E[log theta - log q(z)], summed over tokens
    head: Head | None = None
    # With a Gaussian response:
    log_phi: Singles | None = None  # (entries, K): topics of words
    overlap: Floats | None = None  # (K, K): sum over tokens of phi phi^T / length^2
    weights: WeightPosterior | None = None

    @property
    def n_topics(self) -> int:
        """The number of topics, K."""
        return len(self.doc_prior)


@dataclass(frozen=True)
class Round:
    """Where the alternation stands."""

    factors: Factors
    terms: dict[str, float]

    @property
    def objective(self) -> float:
        """The regularized objective."""
        return sum(self.terms.values())


def tilt_of(problem: Problem, factors: Factors) -> Singles:
    """Return what margins and responses add to the log-weights of topics, for each token; no rows without both."""
    documents, K = problem.documents, factors.n_topics
    if factors.head is None and factors.weights is None:
        return no_tilt(factors.gamma)
    reward = np.zeros((len(documents), K))
    if factors.head is not None:  # whose multipliers count as often as the documents
        reward += (factors.head.multipliers @ factors.head.weights) / documents.weights[:, None]
    if problem.response is not None and factors.weights is not None:
        reward += (problem.response.values / factors.weights.variance) @ factors.weights.mean
    return as_table(reward / documents.lengths[:, None])


def shares_of(problem: Problem, factors: Factors) -> Floats:
    """Return the expected shares of topics in documents, shape (N, K)."""
    return factors.doc_topic[:, : factors.n_topics] / problem.documents.lengths[:, None]


def moments_of(problem: Problem, factors: Factors) -> Moments:
    """Return the first two moments of the shares, where a Gaussian response asks for them."""
    assert factors.overlap is not None
    documents = problem.documents
    return gaussian.moments(shares_of(problem, factors), documents.lengths, factors.overlap, documents.weights)


# --- Fit


@dataclass(frozen=True)
class Settings:
    """How to fit."""

    n_components: int  # K
    doc_topic_prior: float  # alpha, of each topic; the first one where it is estimated
    estimate_doc_prior: bool
    topic_word_prior: float  # zero makes topics parameters
    weight_variance: float  # v^2
    squared: bool  # whether losses are squared
    response_variance: float | None  # of Gaussian responses; None: there are none
    estimate_response: bool  # whether that is only where its estimate begins
    max_iter: int
    tol: float  # share of the objective's whole decrease that five rounds may gain in the end
    seed: int


def fit(
    documents: WordCounts,
    n_words: int,
    targets: Targets | None,
    settings: Settings,
    *,
    executor: Executor,
    sample_weight: Floats | None = None,
    start: FittedTopics | None = None,
    callbacks: Sequence[Callback] = (),
) -> FitResult[SmoothedTopics]:
    """Fit topics and weights.

    Parameters
    ----------
    documents, n_words, executor, sample_weight
        As in `meanfield.fit`.
    targets : Targets or None
        Of all documents. None is latent Dirichlet allocation.
    settings : Settings
    start : FittedTopics, default=None
        Topics to begin with, and the prior of the proportions where that is estimated.
    callbacks : sequence of callable
        Each sees the `Progress` of every round: those of the warm-up, in which nobody looks at targets, and the others.

    Returns
    -------
    FitResult
        Of the rounds. With margins the objective never rises in its trace.
    """
    kept, asked = select_documents(documents, targets, sample_weight)
    problem = make_problem(kept, n_words, asked, settings, executor)
    doc_prior = np.full(settings.n_components, settings.doc_topic_prior)
    if start is not None and settings.estimate_doc_prior:
        doc_prior = start.doc_prior
    logits = first_logits(kept, n_words, asked, settings.n_components, settings.seed, start)
    view = partial(finish, problem)
    warm_up = run(
        partial(warm_up_step, problem),
        Round(first_factors(problem, logits, doc_prior), {}),
        max_iter=n_warm_up_rounds(asked, start),
        callbacks=callbacks,
        view=view,
        stage=WARM_UP,
        keep="last",
    )
    goes_on = warm_up.status is Status.ITERATION_LIMIT
    result: FitResult[Any] = run(
        partial(step, problem),
        begin_rounds(problem, warm_up.state.factors),
        max_iter=settings.max_iter if goes_on else 0,
        objective=lambda at: at.terms,
        stop=DiminishingReturns(settings.tol),
        callbacks=callbacks,
        view=view,
        stage=ROUNDS,
    )
    status = result.status if goes_on else warm_up.status
    return replace(result, state=finish(problem, result.state), status=status)


def n_warm_up_rounds(targets: Targets | None, start: FittedTopics | None) -> int:
    """Return the rounds of the warm-up: one where topics are known, or begin at the words of classes."""
    return WARM_UP_ROUNDS if start is None and (targets is None or isinstance(targets, Numbers)) else 1


def make_problem(
    documents: TrainingDocuments, n_words: int, targets: Targets | None, settings: Settings, executor: Executor
) -> Problem:
    """Return the problem: documents, a head without an intercept, and the response if there is one."""
    head, response, variance = None, None, settings.weight_variance
    if targets is not None:
        head = MarginHead(targets, settings.squared, fit_intercept=False, weight_variance=variance, in_blocks=False)
    if settings.response_variance is not None:
        if not isinstance(targets, Numbers):
            raise ValueError("a Gaussian response needs numbers to respond with")
        response = Response(targets.values, variance, settings.response_variance, settings.estimate_response)
    return Problem(documents, n_words, head, settings.topic_word_prior, settings.estimate_doc_prior, response, executor)


def first_factors(problem: Problem, logits: Floats, doc_prior: Floats) -> Factors:
    """Return the first topics, with documents that know nothing yet."""
    topics = np.exp(logits - logits.max(axis=0))
    topics /= topics.sum(axis=0)
    documents = problem.documents
    # As many tokens as the corpus has: the prior then smooths the first topics as it will the later ones.
    counts = as_table(topics * (float(documents.weights @ documents.lengths) / len(doc_prior)))
    log_topics = expected_log_topics(counts[:, : len(doc_prior)], problem.word_prior)
    gamma = even_gamma(documents.lengths, doc_prior)
    return Factors(gamma, no_tilt(gamma), counts, log_topics, counts, np.zeros_like(gamma), doc_prior, 0.0)


def warm_up_step(problem: Problem, at: Round) -> StepResult[Round]:
    """Make one round without responses, in which documents begin anew."""
    gamma = even_gamma(problem.documents.lengths, at.factors.doc_prior)
    factors = update_topics(problem, update_documents(problem, replace(at.factors, gamma=gamma)))
    return StepResult(Round(factors, terms := word_terms(problem, factors)), terms)


def begin_rounds(problem: Problem, factors: Factors) -> Round:
    """Solve for the weights at the topics of the warm-up."""
    if problem.response is not None:
        gamma = factors.gamma[:, : factors.n_topics].astype(np.float64)
        log_phi = gaussian.first_topics(problem.documents.counts, factors.log_topics, gamma)
        factors = replace(factors, log_phi=log_phi, weights=gaussian.zero_weights(problem.response, factors.n_topics))
        factors = update_coupled(problem, replace(factors, tilt=tilt_of(problem, factors)), n_sweeps=0)
    return conclude(problem, factors)


def step(problem: Problem, at: Round) -> StepResult[Round]:
    """Make one round: documents follow the multipliers, or are damped where that would raise the objective."""
    for update in (
        update_documents,
        partial(update_documents_damped, n_passes=1),
        partial(update_documents_damped, n_passes=5),
    ):
        factors = update_topics(problem, update(problem, at.factors))
        if problem.estimate_doc_prior:
            factors = update_prior(problem, factors)
        if problem.response is not None and problem.response.estimate:
            factors = update_response_variance(problem, factors)
        after = conclude(problem, factors)
        if after.objective <= at.objective or problem.head is None:
            return StepResult(after, after.terms, {"gap": _gap(after)})
    return StepResult(at, at.terms, {"gap": _gap(at)}, Status.CONVERGED)


def _gap(at: Round) -> float:
    return 0.0 if at.factors.head is None else at.factors.head.gap


def finish(problem: Problem, at: Round) -> SmoothedTopics:
    """Return the fitted model."""
    factors, K = at.factors, at.factors.n_topics
    tokens = problem.documents.weights @ factors.doc_topic[:, :K].astype(np.float64)
    pseudo = factors.topic_counts[:, :K] + np.float32(problem.word_prior)
    return SmoothedTopics(
        word_given_topic=np.exp(factors.log_topics).astype(np.float32),
        topic_total=pseudo.sum(axis=0, dtype=np.float64),
        doc_prior=factors.doc_prior,
        weights=np.zeros((0, K)) if factors.head is None else factors.head.weights,
        shares=tokens / tokens.sum() if tokens.any() else np.full(K, 1.0 / K),
        n_sweeps=UNTIL_SETTLED,
        collapsed=False,
        word_topic=pseudo,
        response_variance=None if factors.weights is None else factors.weights.variance,
    )


# --- Documents


def update_documents(problem: Problem, factors: Factors) -> Factors:
    """Update topics of words and proportions of documents, at fixed multipliers: docs/math.md eq. (61), (62), (106)."""
    tilt = tilt_of(problem, factors)
    if factors.weights is not None:
        return update_coupled(problem, replace(factors, tilt=tilt), gaussian.N_SWEEPS)
    gamma, prior = factors.gamma.copy(), _prior(factors)
    _sweep(problem.executor, problem.documents.counts, prior, tilt, MAX_SWEEPS, gamma)
    return _sum_topics(problem, replace(factors, gamma=gamma, tilt=tilt), prior)


def update_coupled(problem: Problem, factors: Factors, n_sweeps: int) -> Factors:
    """Sweep over documents whose words a Gaussian response couples, at their tilt: docs/math.md eq. (106)."""
    found = _sweep_coupled(problem, factors, np.arange(len(factors.gamma)), factors.tilt, n_sweeps)
    return replace(
        factors,
        gamma=as_table(found.gamma),
        doc_topic=as_table(found.doc_topic),
        word_topic=as_table(found.word_topic),
        entropy=float(problem.documents.weights @ found.entropy),
        log_phi=found.log_phi,
        overlap=found.overlap,
    )


def update_documents_damped(problem: Problem, factors: Factors, n_passes: int) -> Factors:
    """Update each document as far towards its new tilt as lowers its share of the regularized objective.

    The first pass goes towards the tilt of the multipliers. Later ones go down the gradient of the loss at the scores
    that the documents have by then.
    """
    assert problem.head is not None
    assert factors.head is not None
    wanted = tilt_of(problem, factors)
    start = factors.tilt if len(factors.tilt) else np.zeros_like(wanted)
    everything = np.arange(len(wanted))
    found = _try_update(problem, factors, everything, start, 0)
    for i in range(n_passes):
        if i:
            multipliers = problem.head.multipliers(found.shares @ factors.head.weights.T)
            wanted = tilt_of(problem, replace(factors, head=replace(factors.head, multipliers=multipliers)))
        before, left = found.tilt.copy(), everything
        for share in DAMPING:
            tilt = before[left] + np.float32(share) * (wanted[left] - before[left])
            trial = _try_update(
                problem, factors, left, tilt, MAX_SWEEPS if factors.weights is None else gaussian.N_SWEEPS
            )
            better = trial.values < found.values[left]
            found.take(problem.documents.counts, left, trial, better)
            left = left[~better]
            if not len(left):
                break
    moved = replace(factors, gamma=found.gamma, tilt=found.tilt, log_phi=found.log_phi)
    if factors.weights is not None:
        return update_coupled(problem, moved, n_sweeps=0)
    return _sum_topics(problem, moved, _prior(factors))


@dataclass
class _TrialUpdate:
    """Some documents at some tilt, and each one's share of the regularized objective, for each time that it counts."""

    gamma: Singles  # (rows, columns)
    tilt: Singles  # (rows, columns)
    shares: Floats  # (rows, K)
    values: Floats  # (rows,)
    log_phi: Singles | None  # (entries of the rows, K)

    def take(self, documents: WordCounts, rows: Integers, other: _TrialUpdate, better: Flags) -> None:
        """Replace documents by what was tried for them; this one holds all documents, ``other`` holds ``rows``."""
        kept = rows[better]
        self.gamma[kept], self.tilt[kept] = other.gamma[better], other.tilt[better]
        self.shares[kept], self.values[kept] = other.shares[better], other.values[better]
        if self.log_phi is not None and other.log_phi is not None:
            entries = np.repeat(better, np.diff(documents.starts)[rows])
            self.log_phi[_entries_of(documents, kept)] = other.log_phi[entries]


def _try_update(problem: Problem, factors: Factors, rows: Integers, tilt: Singles, n_sweeps: int) -> _TrialUpdate:
    """Sweep over some documents at a tilt, and evaluate them, docs/math.md eq. (111)."""
    assert problem.head is not None
    assert factors.head is not None
    K, lengths, weights = factors.n_topics, problem.documents.lengths[rows], problem.documents.weights
    if factors.weights is not None:
        found = _sweep_coupled(problem, factors, rows, tilt, n_sweeps)
        gamma, log_phi, doc_topic = as_table(found.gamma), found.log_phi, found.doc_topic
        costs = proportion_divergences(found.gamma, factors.doc_prior) - found.entropy - found.words
        costs += gaussian.quadratic_costs(found.own, doc_topic, lengths, factors.weights.curvature)
        assert problem.response is not None
        reward = (problem.response.values[rows] / factors.weights.variance) @ factors.weights.mean
        costs -= np.sum(reward * doc_topic, axis=1) / lengths
    else:
        prior, documents = _prior(factors), _rows_of(problem.documents.counts, rows)
        gamma, log_phi, columns = factors.gamma[rows], None, np.empty((len(rows), tilt.shape[1]), np.float32)
        if n_sweeps:
            _sweep(problem.executor, documents, prior, tilt, n_sweeps, gamma)
        logs = np.empty(len(rows))

        def sum_block(block: slice) -> None:
            part = documents.rows(block.start, block.stop), prior, tilt[block], gamma[block]
            logs[block] = meanfield_statistics(*part, np.ones(len(gamma[block])), doc_topic=columns[block])

        problem.executor.map(sum_block, row_blocks(len(rows)))
        doc_topic, dense = columns[:, :K].astype(np.float64), gamma[:, :K].astype(np.float64)
        costs = np.sum(tilt[:, :K] * doc_topic, axis=1)  # the logarithms hold the tilt, which is no part of the bound
        costs += proportion_divergences(dense, factors.doc_prior) - log_likelihoods(logs, dense, lengths)
    shares = doc_topic / lengths[:, None]
    scores = np.zeros((len(problem.documents), len(factors.head.weights)))
    scores[rows] = shares @ factors.head.weights.T
    losses = problem.head.losses(scores)[rows] / weights[rows]
    return _TrialUpdate(gamma, tilt.copy(), shares, costs + losses, log_phi)


def _sweep(
    executor: Executor, documents: WordCounts, prior: Prior, tilt: Singles, n_sweeps: int, gamma: Singles
) -> None:
    """Sweep over documents until they settle, from ``gamma``, which is overwritten."""

    def sweep(rows: slice) -> None:
        meanfield_sweeps(documents.rows(rows.start, rows.stop), prior, tilt[rows], n_sweeps, TOL, gamma[rows])

    executor.map(sweep, row_blocks(len(gamma)))


def _sum_topics(problem: Problem, factors: Factors, prior: Prior) -> Factors:
    """Sum the topics of words that belong to proportions and tilt."""
    documents, gamma, tilt, K = problem.documents, factors.gamma, factors.tilt, factors.n_topics
    doc_topic, logs = np.empty_like(gamma), np.empty(len(gamma))

    def sum_block(rows: slice) -> Singles:
        block, table = documents.rows(rows), np.empty_like(prior.word_given_topic)
        logs[rows] = meanfield_statistics(
            block.counts, prior, tilt[rows], gamma[rows], block.weights, table, doc_topic[rows]
        )
        return table

    word_topic = problem.executor.map_reduce(sum_block, documents.cut(problem.n_words))
    # The logarithms hold words and tilt too; they have terms of their own.
    likelihoods = log_likelihoods(logs, gamma[:, :K].astype(np.float64), documents.lengths)
    if len(tilt):
        likelihoods -= np.sum(tilt[:, :K].astype(np.float64) * doc_topic[:, :K], axis=1)
    entropy = float(documents.weights @ likelihoods)
    entropy -= float(np.vdot(word_topic[:, :K].astype(np.float64), factors.log_topics))
    return replace(factors, doc_topic=doc_topic, word_topic=word_topic, entropy=entropy)


def _sweep_coupled(problem: Problem, factors: Factors, rows: Integers, tilt: Singles, n_sweeps: int) -> WordTopics:
    assert factors.weights is not None
    assert factors.log_phi is not None
    documents, K, everything = problem.documents, factors.n_topics, len(rows) == len(factors.gamma)
    log_phi = factors.log_phi if everything else factors.log_phi[_entries_of(documents.counts, rows)]
    some = TrainingDocuments(_rows_of(documents.counts, rows), documents.lengths[rows], documents.weights[rows])
    return gaussian.infer_words(
        some,
        factors.log_topics,
        factors.doc_prior,
        QuadraticTilt(tilt[:, :K].astype(np.float64), factors.weights.curvature),
        log_phi,
        factors.gamma[rows, :K].astype(np.float64),
        n_sweeps,
        problem.executor,
    )


def _prior(factors: Factors) -> Prior:
    return Prior(as_table(np.exp(factors.log_topics)), factors.doc_prior.astype(np.float32))


def _entries_of(documents: WordCounts, rows: Integers) -> Integers:
    """Return the entries of some documents, in their order."""
    numbers = np.diff(documents.starts)[rows]
    first = np.repeat(documents.starts[rows] - np.concatenate([[0], np.cumsum(numbers)[:-1]]), numbers)
    return first + np.arange(numbers.sum())


def _rows_of(documents: WordCounts, rows: Integers) -> WordCounts:
    if len(rows) == len(documents.starts) - 1:
        return documents
    entries = _entries_of(documents, rows)
    starts = np.concatenate([[0], np.cumsum(np.diff(documents.starts)[rows])]).astype(np.int64)
    return WordCounts(documents.words[entries], documents.numbers[entries], starts)


# --- Topics, priors, weights


def update_topics(problem: Problem, factors: Factors) -> Factors:
    """Update the topics' words, docs/math.md eq. (63)."""
    return set_topics(problem, factors, factors.word_topic)


def set_topics(problem: Problem, factors: Factors, counts: Singles) -> Factors:
    """Return the factors with other topics."""
    log_topics = expected_log_topics(counts[:, : factors.n_topics], problem.word_prior)
    return replace(factors, topic_counts=counts, log_topics=log_topics)


def update_prior(problem: Problem, factors: Factors) -> Factors:
    """Update the Dirichlet parameters of the proportions by empirical Bayes."""
    gamma, weights = factors.gamma[:, : factors.n_topics].astype(np.float64), problem.documents.weights
    expected = digamma(gamma) - digamma(gamma.sum(axis=1))[:, None]
    return replace(factors, doc_prior=maximize_doc_prior(factors.doc_prior, weights @ expected, float(weights.sum())))


def update_response_variance(problem: Problem, factors: Factors) -> Factors:
    """Update the variance of the responses by empirical Bayes, docs/math.md eq. (109)."""
    assert problem.response is not None
    assert factors.weights is not None
    seen = moments_of(problem, factors)
    return replace(factors, weights=gaussian.update_variance(seen, problem.response, factors.weights))


def conclude(problem: Problem, factors: Factors) -> Round:
    """Solve for multipliers and weights, and evaluate the regularized objective."""
    words = word_terms(problem, factors)
    if problem.head is None:
        return Round(factors, words)
    solved = _solve_weights(problem, factors)
    terms = weight_terms(problem, solved)
    if factors.head is not None:
        # The solver stops at a gap; the weights before can be better still.
        kept = _set_weights(solved, factors.head.weights)
        before = weight_terms(problem, kept)
        if sum(before.values()) < sum(terms.values()):
            solved, terms = kept, before
    return Round(solved, words | terms)


def _solve_weights(problem: Problem, factors: Factors) -> Factors:
    assert problem.head is not None
    before = None if factors.head is None else factors.head.multipliers
    if problem.response is None or factors.weights is None:
        found = problem.head.solve(shares_of(problem, factors), before, TOLERANCE)
        assert isinstance(found, FittedHead)
        return replace(factors, head=Head(found.head.weights, found.multipliers, found.gap))
    weights, margins = gaussian.solve_weights(
        moments_of(problem, factors), problem.response, problem.head, factors.weights.variance, before, TOLERANCE
    )
    return replace(factors, weights=weights, head=Head(weights.mean, margins.multipliers, margins.gap))


def _set_weights(factors: Factors, mean: Floats) -> Factors:
    """Return the factors with other expected weights."""
    assert factors.head is not None
    weights = None if factors.weights is None else replace(factors.weights, mean=mean)
    return replace(factors, weights=weights, head=replace(factors.head, weights=mean))


def maximize_doc_prior(doc_prior: Floats, expected_logs: Floats, n_documents: float) -> Floats:
    """Return Dirichlet parameters of the proportions that raise the bound: Newton's method in their logarithms.

    The Hessian is diagonal plus a constant, so that a step costs no more than the gradient (Blei, Ng and Jordan,
    JMLR 2003, appendix A.4.2); steps that would lower the bound are halved.

    Parameters
    ----------
    doc_prior : (K,)
        The start.
    expected_logs : (K,)
        E[log theta_dk], summed over the documents.
    n_documents : float
    """

    def bound(alpha: Floats) -> float:
        return float(n_documents * (gammaln(alpha.sum()) - gammaln(alpha).sum()) + np.vdot(alpha, expected_logs))

    alpha, value = doc_prior, bound(doc_prior)
    for _ in range(MAX_NEWTON_STEPS):
        total = alpha.sum()
        slope = n_documents * (digamma(total) - digamma(alpha)) + expected_logs
        # By log alpha: the chain rule adds the gradient itself to the diagonal.
        by_log = alpha * slope
        diagonal = n_documents * alpha**2 * polygamma(1, alpha) - by_log
        diagonal = np.maximum(diagonal, 1e-3 * n_documents * alpha**2 * polygamma(1, alpha))
        coupling = n_documents * polygamma(1, total)
        room = 1.0 / coupling - np.sum(alpha**2 / diagonal)  # not positive: the Hessian is not negative definite here
        shared = np.sum(alpha * by_log / diagonal) / room if room > 0 else 0.0
        step = (by_log + alpha * shared) / diagonal
        length, moved = 1.0, alpha
        while length > 1e-4:
            moved = np.clip(alpha * np.exp(np.clip(length * step, -2.0, 2.0)), SMALLEST, LARGEST)
            if bound(moved) > value:
                break
            length *= 0.5
        else:
            return alpha
        gained, alpha, value = bound(moved) - value, moved, bound(moved)
        if gained <= 1e-10 * abs(value):
            break
    return alpha


# --- Objective


def word_terms(problem: Problem, factors: Factors) -> dict[str, float]:
    """Return the terms of the negative bound on the log-probability of the words, docs/math.md eq. (60)."""
    K = factors.n_topics
    counts, gamma = factors.word_topic[:, :K].astype(np.float64), factors.gamma[:, :K].astype(np.float64)
    return {
        "likelihood": -float(np.vdot(counts, factors.log_topics)) - factors.entropy,
        "kl_proportions": float(problem.documents.weights @ proportion_divergences(gamma, factors.doc_prior)),
        "kl_topics": topic_divergence(factors.topic_counts[:, :K], problem.word_prior),
    }


def response_terms(problem: Problem, factors: Factors) -> dict[str, float]:
    """Return the terms that a Gaussian response adds, docs/math.md eq. (110); none without one."""
    if problem.response is None or factors.weights is None:
        return {}
    return gaussian.terms(moments_of(problem, factors), problem.response, factors.weights)


def weight_terms(problem: Problem, factors: Factors) -> dict[str, float]:
    """Return the terms of the regularized objective that depend on the weights."""
    assert problem.head is not None
    assert factors.head is not None
    weights = factors.head.weights
    terms = {"kl_weights": 0.5 * float(np.vdot(weights, weights)) / problem.head.weight_variance}
    terms |= response_terms(problem, factors)
    return terms | {"margin": float(np.sum(problem.head.losses(shares_of(problem, factors) @ weights.T)))}


def expected_log_topics(word_topic: Reals, word_prior: float) -> Floats:
    """Return the expected logarithms of the words' probabilities in topics, shape (V, K).

    Parameters
    ----------
    word_topic : (V, K)
        Expected tokens.
    word_prior : float
        Dirichlet parameter of a word in a topic. Zero: topics are parameters, estimated by maximum likelihood; words
        that a topic never has get a probability that is next to nothing.
    """
    counts = word_topic.astype(np.float64)
    if word_prior > 0:
        pseudo = counts + word_prior
        return digamma(pseudo) - digamma(pseudo.sum(axis=0))
    tiny = np.finfo(np.float32).tiny
    share = counts / np.maximum(counts.sum(axis=0), tiny)
    return np.log(np.maximum(share, tiny))


def topic_divergence(word_topic: Reals, word_prior: float) -> float:
    """Return the divergence of the topics' Dirichlet distributions from their prior; zero for parameters."""
    if word_prior == 0:
        return 0.0
    V, K = word_topic.shape
    pseudo = word_topic.astype(np.float64) + word_prior
    total = pseudo.sum(axis=0)
    prior = K * (gammaln(V * word_prior) - V * gammaln(word_prior))
    expected = digamma(pseudo) - digamma(total)
    found = np.sum(gammaln(total)) - np.sum(gammaln(pseudo)) - prior
    return float(found + np.vdot(pseudo - word_prior, expected))
