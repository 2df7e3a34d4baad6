"""From an estimator's parameters to a chain, and back to fitted attributes."""

from __future__ import annotations

import zlib
from dataclasses import replace
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np

from regbayes.engine import Status
from regbayes.estimators._common import generator, n_threads, one_blas_thread
from regbayes.estimators._reporting import FitReporter, warn_of_status
from regbayes.estimators._topics import Counts, as_documents, iteration_limit, weight_variance
from regbayes.models.medlda import fit, gibbs
from regbayes.models.medlda.corpus import Corpus, build_corpus, default_groups
from regbayes.models.medlda.state import Chain, Memory, Responses, Settings

DEFAULT_DOC_TOPIC_PRIOR = 0.1
DEFAULT_TOPIC_WORD_PRIOR = 0.1


class Previous(NamedTuple):
    """A chain to go on with, and a fingerprint of the corpus it belongs to."""

    chain: Chain
    fingerprint: tuple[int, ...]


def run_gibbs(
    estimator: Any, counts: Counts, responses: Responses | None, data: dict[str, Any], *, streaming: bool = False
) -> None:
    """Run the chain and set the fitted attributes.

    Parameters
    ----------
    estimator : estimator
        Its method ``_attributes`` turns `Fitted` into fitted attributes.
    counts : sparse matrix
    responses : Responses or None
        In the order of the rows; None leaves plain latent Dirichlet allocation.
    data : dict
        What callbacks may ask for.
    streaming : bool
        Whether earlier documents are the prior of these, as in ``partial_fit``.
    """
    corpus = _corpus(counts, estimator.n_blocks)
    fingerprint = _fingerprint(corpus, estimator, responses)
    memory = _memory_for(estimator, fingerprint[-1]) if streaming else None
    chain, hint = (None, None) if streaming else _earlier(estimator, fingerprint, corpus)
    settings = _settings(estimator, fingerprint[-1], 0 if chain is None else chain.sweep)
    if not (memory is None and hint is None and chain is None):
        settings = replace(settings, n_rising=0)  # topics that are known need no time to form
    documents = as_documents(counts) if estimator.refit else None

    def attributes(at: Chain) -> dict[str, Any]:
        return estimator._attributes(fit.summarize(corpus, settings, at))

    reporter = FitReporter(estimator, iteration_limit(estimator), data, attributes, estimator.verbose)
    with one_blas_thread(), reporter:
        result = fit.fit(
            corpus,
            responses,
            settings,
            memory=memory,
            chain=chain,
            hint=hint,
            documents=documents,
            callbacks=[reporter],
        )
        for name, value in estimator._attributes(result.state.fitted).items():
            setattr(estimator, name, value)
        estimator._memory = result.state.memory
        estimator.trace_, estimator.n_iter_ = result.trace, result.n_iter
        keep = estimator.warm_start and not streaming  # earlier documents are not in a chain of later ones
        estimator._previous = Previous(result.state.chain, fingerprint) if keep else None
    if result.status is not Status.ITERATION_LIMIT:  # which is how a chain should end
        warn_of_status(estimator, result)


def _corpus(counts: Counts, n_blocks: Any) -> Corpus:
    numbers = counts.data.astype(np.int32, copy=False)
    n_tokens = int(numbers.sum(dtype=np.int64))
    n_groups = default_groups(n_tokens, counts.shape[0]) if n_blocks == "auto" else int(n_blocks)
    indptr, words = counts.indptr.astype(np.int64, copy=False), counts.indices.astype(np.int32, copy=False)
    return build_corpus(indptr, words, numbers, counts.shape[1], n_groups)


def _settings(estimator: Any, n_responses: int, done: int) -> Settings:
    """Turn parameters into numbers; ``done`` sweeps were made before."""
    alpha, beta = estimator.doc_topic_prior, estimator.topic_word_prior
    if alpha == "estimate" or beta == 0:
        name, value = ("doc_topic_prior", alpha) if alpha == "estimate" else ("topic_word_prior", beta)
        raise ValueError(f'{name}={value!r} needs inference="variational"; the sampler takes a positive number')
    if estimator.loss is not None and estimator.loss.startswith("squared"):
        raise ValueError(f'loss={estimator.loss!r} needs inference="variational"')
    propose = gibbs.prefers_proposals(int(estimator.n_components), n_responses)
    return Settings(
        n_components=int(estimator.n_components),
        doc_topic_prior=DEFAULT_DOC_TOPIC_PRIOR if alpha is None else float(alpha),
        topic_word_prior=DEFAULT_TOPIC_WORD_PRIOR if beta is None else float(beta),
        weight_variance=weight_variance(estimator),
        n_sweeps=done + iteration_limit(estimator),
        n_burn_in=_burn_in(estimator),
        n_rising=_rising(estimator, propose),
        propose=propose,
        seed=int(generator(estimator.random_state).integers(2**31)),
        n_threads=n_threads(estimator.n_jobs),
    )


def _burn_in(estimator: Any) -> int:
    """Return how many sweeps are made before averages are taken: a number, or a share of all."""
    wanted, most = estimator.burn_in, iteration_limit(estimator)
    if not isinstance(wanted, Integral):
        return int(wanted * most)
    if wanted >= most:
        raise ValueError(
            "burn_in must be less than max_iter, so that sweeps are left to average over; "
            f"got burn_in={wanted!r} and max_iter={most!r}"
        )
    return int(wanted)


def _rising(estimator: Any, many_topics: bool) -> int:
    """Return over how many sweeps the price grows: a number, or a share of all."""
    wanted, burn_in = estimator.price_rise, _burn_in(estimator)
    if wanted is None:
        return burn_in if many_topics else 0
    n_rising = int(wanted) if isinstance(wanted, Integral) else int(wanted * iteration_limit(estimator))
    if n_rising > burn_in:
        raise ValueError(
            "price_rise must not be more than burn_in, so that averages are taken at the full price; "
            f"got price_rise={wanted!r} and burn_in={estimator.burn_in!r}: {n_rising} and {burn_in} sweeps"
        )
    return n_rising


def _fingerprint(corpus: Corpus, estimator: Any, responses: Responses | None) -> tuple[int, ...]:
    """Return what must be the same for a chain to go on: the documents, and the numbers of topics and responses."""
    n_responses = 0 if responses is None else responses.prices.shape[1]
    checksums = [zlib.crc32(np.ascontiguousarray(array)) for array in corpus.tokens] if estimator.warm_start else []
    shape = (len(corpus.lengths), len(corpus.word_order), corpus.n_groups)
    return (*checksums, *shape, int(estimator.n_components), n_responses)


def _memory_for(estimator: Any, n_responses: int) -> Memory | None:
    """Return the memory of earlier documents; responses that had no price then have only their prior."""
    memory: Memory | None = getattr(estimator, "_memory", None)
    if memory is None:
        return None
    K = memory.word_topic.shape[1]
    if estimator.n_components != K:
        raise ValueError(f"n_components is {estimator.n_components}, but earlier documents were fitted with {K}")
    if len(memory.linear) == n_responses:
        return memory
    prior = gibbs.prior_precision(n_responses, K, weight_variance(estimator))
    return Memory(memory.word_topic, prior, np.zeros((n_responses, K)))


def _earlier(estimator: Any, fingerprint: tuple[int, ...], corpus: Corpus) -> tuple[Chain | None, Memory | None]:
    """Return the chain of an earlier fit, if it was of these documents; its topics and weights, if of others."""
    memory: Memory | None = getattr(estimator, "_memory", None)
    if not estimator.warm_start or memory is None:
        return None, None
    previous: Previous | None = getattr(estimator, "_previous", None)
    if previous is not None and previous.fingerprint == fingerprint:
        return previous.chain, None
    n_responses = fingerprint[-1]
    fits = memory.word_topic.shape == (len(corpus.word_order), int(estimator.n_components))
    return None, memory if fits and len(memory.linear) == n_responses else None
