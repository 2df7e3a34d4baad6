"""``fit`` by mean field: from documents and their responses to topics and weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from regbayes._types import Floats, Integers
from regbayes.engine import DiminishingReturns, FitResult, Progress, run
from regbayes.kernels.meanfield import WordCounts
from regbayes.models.medlda import consistent, posterior
from regbayes.models.medlda.init import class_logits, random_logits
from regbayes.models.medlda.margins import Classes, Supervision, build_dual
from regbayes.models.medlda.meanfield import MeanField, as_word_counts, lengths_of
from regbayes.models.medlda.posterior_state import Problem as PosteriorProblem
from regbayes.models.medlda.predict import Documents
from regbayes.models.medlda.response import Response
from regbayes.models.medlda.state import Margins, Targets

MarginKind = Literal["consistent", "posterior"]
Callback = Callable[[Progress[Callable[[], MeanField]]], bool | None]

FLOOR = 1e-8  # probability that a word of earlier topics begins with, at least


@dataclass(frozen=True)
class Settings:
    """How to fit."""

    n_components: int  # K
    doc_topic_prior: float  # alpha, of each topic; the first one where it is estimated
    estimate_doc_prior: bool  # with margins on the posterior
    topic_word_prior: float  # with margins on the posterior zero makes topics parameters
    weight_variance: float  # v^2
    squared: bool  # whether losses are squared
    response_variance: float | None  # of Gaussian responses, with margins on the posterior; None: there are none
    estimate_response: bool  # whether that is only where its estimate begins
    margins: MarginKind
    n_sweeps: int  # of label-free inference, where margins are consistent
    max_iter: int
    tol: float  # share of the objective's whole decrease that five steps may gain in the end
    seed: int
    n_threads: int


def fit(
    documents: Documents,
    n_words: int,
    supervision: Supervision | None,
    settings: Settings,
    *,
    start: MeanField | None = None,
    callbacks: Sequence[Callback] = (),
) -> FitResult[MeanField]:
    """Fit topics and weights.

    Parameters
    ----------
    documents : Documents
        Empty ones are left out.
    n_words : int
        The size of the vocabulary.
    supervision : Supervision or None
        None is latent Dirichlet allocation, by the posterior scheme.
    settings : Settings
    start : MeanField, default=None
        Topics to begin with, and the prior of the proportions where that is estimated.
    callbacks : sequence of callable
        Each sees the `Progress` of every iteration; its state is a function that returns the `MeanField` of a fit that
        ends there.

    Returns
    -------
    FitResult
        With margins the objective never rises in its trace.
    """
    documents_kept, rows = _without_empty(as_word_counts(documents))
    kept = None if supervision is None else _take(supervision, rows)
    lengths, K = lengths_of(documents_kept), settings.n_components
    doc_prior = np.full(K, settings.doc_topic_prior)
    if start is not None and settings.estimate_doc_prior:
        doc_prior = start.doc_prior
    if start is None:
        logits = _first_logits(documents_kept, n_words, kept, settings)
    else:
        logits = np.log(np.maximum(start.word_given_topic, FLOOR)).astype(np.float64)
    by_sweeps = settings.margins == "consistent" and kept is not None
    dual = None if kept is None else build_dual(kept, settings.weight_variance, settings.squared, intercept=by_sweeps)
    scheme: Any
    problem: Any
    if by_sweeps:
        assert dual is not None
        scheme = consistent
        problem = consistent.Problem(
            documents_kept, lengths, dual, doc_prior, settings.topic_word_prior, settings.n_sweeps, settings.n_threads
        )
        state: Any = consistent.start(problem, logits)
    else:
        scheme = posterior
        problem = PosteriorProblem(
            documents_kept,
            lengths,
            dual,
            settings.topic_word_prior,
            settings.estimate_doc_prior,
            settings.n_threads,
            _response(kept, settings),
        )
        vague = start is None and (kept is None or isinstance(kept, Targets))
        n_rounds = posterior.START_ROUNDS if vague else 1
        state = posterior.start(problem, logits, doc_prior, n_rounds)
    result: FitResult[Any] = run(
        partial(scheme.step, problem),
        state,
        max_iter=settings.max_iter,
        objective=scheme.terms_of,
        stop=DiminishingReturns(settings.tol),
        callbacks=[partial(_watch, callback, partial(scheme.finished, problem)) for callback in callbacks],
    )
    return replace(result, state=scheme.finished(problem, result.state))


def _watch(callback: Callback, finished: Callable[[Any], MeanField], progress: Progress[Any]) -> bool | None:
    return callback(replace(progress, view=lambda: partial(finished, progress.state)))


def _first_logits(documents: WordCounts, n_words: int, supervision: Supervision | None, settings: Settings) -> Floats:
    """Return where topics begin: at the words of the classes, where there are any."""
    rng, K = np.random.default_rng(settings.seed), settings.n_components
    if isinstance(supervision, Classes):
        return class_logits(documents, n_words, K, np.eye(len(supervision.cost))[supervision.labels], rng)
    if isinstance(supervision, Margins):
        positive = (supervision.signs > 0).astype(np.float64)
        # With a single response the documents that do not have it are a class as well.
        membership = np.hstack([positive, 1.0 - positive]) if positive.shape[1] == 1 else positive
        return class_logits(documents, n_words, K, membership, rng)
    return random_logits(documents, n_words, K, rng)


def _response(supervision: Supervision | None, settings: Settings) -> Response | None:
    if settings.response_variance is None:
        return None
    if not isinstance(supervision, Targets):
        raise ValueError("a Gaussian response needs numbers to respond with")
    return Response(
        supervision.values, settings.weight_variance, settings.response_variance, settings.estimate_response
    )


def _without_empty(documents: WordCounts) -> tuple[WordCounts, Integers]:
    """Return the documents that have words, and which they are."""
    rows = np.flatnonzero(np.diff(documents.starts) > 0)
    starts = np.append(documents.starts[rows], documents.starts[-1])
    return documents._replace(starts=starts), rows


def _take(supervision: Supervision, rows: Integers) -> Supervision:
    if isinstance(supervision, Classes):
        return replace(supervision, labels=supervision.labels[rows], prices=supervision.prices[rows])
    prices = supervision.prices[rows]
    if isinstance(supervision, Margins):
        return replace(supervision, signs=supervision.signs[rows], prices=prices)
    return replace(supervision, values=supervision.values[rows], prices=prices)
