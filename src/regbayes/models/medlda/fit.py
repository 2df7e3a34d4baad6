"""``fit``: from a corpus and its responses to averages over a chain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from regbayes.engine import FitResult, Progress, run
from regbayes.models.medlda import gibbs, readout
from regbayes.models.medlda.augmentation import expected_quadratics
from regbayes.models.medlda.corpus import Corpus
from regbayes.models.medlda.gibbs import Problem
from regbayes.models.medlda.predict import Documents
from regbayes.models.medlda.state import Chain, Fitted, Margins, Memory, Responses, Settings

Callback = Callable[[Progress[Chain]], bool | None]


@dataclass(frozen=True)
class GibbsFit:
    """A fit: averages for prediction, the memory for later documents, and the chain, to go on with."""

    fitted: Fitted
    memory: Memory
    chain: Chain


def fit(
    corpus: Corpus,
    responses: Responses | None,
    settings: Settings,
    *,
    memory: Memory | None = None,
    chain: Chain | None = None,
    hint: Memory | None = None,
    documents: Documents | None = None,
    callbacks: Sequence[Callback] = (),
) -> FitResult[GibbsFit]:
    """Run the chain.

    Parameters
    ----------
    corpus : Corpus
    responses : Responses or None
        In the order of the rows that the corpus was made of. None is latent Dirichlet allocation.
    settings : Settings
    memory : Memory, default=None
        What earlier documents left behind; they then are the prior.
    chain : Chain, default=None
        Of an earlier fit of the same corpus, to go on with.
    hint : Memory, default=None
        Topics and weights to begin at, which do not count beyond that.
    documents : Documents, default=None
        The same documents once more, in the order of the rows, to solve for the weights that predict; None leaves the
        mean of the chain's.
    callbacks : sequence of callable
        Each sees a `Progress` whose state is a `Chain`; `summarize` makes a model of it.

    Returns
    -------
    FitResult
        The objective in its trace is the negative logarithm of the joint density that is sampled from, up to a
        constant, after each sweep.
    """
    problem = Problem(corpus, _ordered(responses, corpus), settings, _in_corpus_order(memory, corpus))
    begun = gibbs.start(problem, _in_corpus_order(hint, corpus)) if chain is None else chain
    done = begun.sweep
    result = run(
        lambda at: gibbs.step(problem, at),
        begun,
        max_iter=max(settings.n_sweeps - done, 0),
        callbacks=callbacks,
        keep="last",
    )
    end = result.state
    fitted, remembered = summarize(corpus, settings, end), remember(problem, end)
    if responses is not None and documents is not None:
        earlier = None if memory is None else memory.squares
        weights, squares = readout.refit(documents, fitted, responses, settings, earlier)
        fitted, remembered = replace(fitted, weights=weights), replace(remembered, squares=squares)
    return FitResult(
        GibbsFit(fitted, remembered, end),
        result.trace,
        result.status,
        result.n_iter,
        result.kept_iteration,
    )


def summarize(corpus: Corpus, settings: Settings, chain: Chain) -> Fitted:
    """Return the averages of the chain, or its last state if none were taken yet, in the order of X's columns."""
    K = settings.n_components
    if chain.averages is None:
        word_topic, weights = chain.counts.word_topic.astype(np.float32), chain.weights
    else:
        n_kept = chain.averages.n_kept
        word_topic, weights = chain.averages.word_topic / np.float32(n_kept), chain.averages.weights / n_kept
    restored = np.empty((len(word_topic), K), dtype=np.float32)
    restored[corpus.word_order] = word_topic[:, :K]
    total = restored.sum(axis=0, dtype=np.float64)
    return Fitted(restored, total, weights, settings.doc_topic_prior, settings.topic_word_prior)


def remember(problem: Problem, chain: Chain) -> Memory:
    """Return what later documents need to know of these.

    The weights' distribution is normal about their mean over the chain, with the precision of the last sweep at
    augmentation variables that have their expected values; where there are many topics, weights are independent.
    """
    K = problem.settings.n_components
    word_topic = np.empty((len(chain.counts.word_topic), K), dtype=np.int32)
    word_topic[problem.corpus.word_order] = chain.counts.word_topic[:, :K]
    if problem.responses is None:
        return Memory(word_topic, gibbs.prior_precision(0, K, problem.settings.weight_variance), np.zeros((0, K)))
    weights = chain.weights if chain.averages is None else chain.averages.weights / chain.averages.n_kept
    linear, quadratic = expected_quadratics(problem.responses, chain.scores)
    precision = gibbs.posterior_precision(problem, replace(chain, linear=linear, quadratic=quadratic))
    return Memory(word_topic, precision, gibbs.times_precision(precision, weights))


def _ordered(responses: Responses | None, corpus: Corpus) -> Responses | None:
    if responses is None:
        return None
    order = corpus.document_order
    # Empty documents have no proportions to score; a price would only add a constant.
    prices = np.where(corpus.lengths[:, None] > 0, responses.prices[order], 0.0)
    if isinstance(responses, Margins):
        return replace(responses, signs=responses.signs[order], prices=prices)
    return replace(responses, values=responses.values[order], prices=prices)


def _in_corpus_order(memory: Memory | None, corpus: Corpus) -> Memory | None:
    return None if memory is None else replace(memory, word_topic=memory.word_topic[corpus.word_order])
