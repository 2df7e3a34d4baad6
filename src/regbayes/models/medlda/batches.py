"""Mini-batch learning of topics by mean field with margins on label-free features.

The first batch is fitted like any other corpus. Each further batch updates the topics by a small step (`learn`) and is
then discarded. `solve_weights` makes one more pass over documents at fixed topics. Mini-batches of the sampler, whose
posterior is the prior of the next batch, are in `gibbs`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from regbayes._registry import persistable
from regbayes._types import Floats
from regbayes.engine import Executor
from regbayes.joint import online
from regbayes.joint.online import OnlineOptions, OnlineState
from regbayes.joint.problem import Evaluation
from regbayes.kernels.meanfield import WordCounts
from regbayes.margins.head import Head, LinearHead
from regbayes.margins.targets import Targets
from regbayes.models.medlda.meanfield import (
    FINAL,
    FLOOR,
    Settings,
    TopicLogits,
    TrainingDocuments,
    fitted_topics,
    make_head,
    make_model,
    make_topics,
    select_documents,
)
from regbayes.models.medlda.topics import FittedTopics, proportions

OPTIONS = OnlineOptions(step=4.0, step_delay=10.0)  # chosen on training documents of 20 Newsgroups: docs/decisions.md


@persistable(name="regbayes.medlda.Batches")
@dataclass(frozen=True)
class Batches:
    """State of mini-batch learning, and the settings of the first batch."""

    settings: Settings
    state: OnlineState[TopicLogits]


def begin(
    settings: Settings,
    fitted: FittedTopics,
    n_documents: float,
    documents: WordCounts | None = None,
    targets: Targets | None = None,
    sample_weight: Floats | None = None,
) -> Batches:
    """Initialize mini-batch learning from a fit of ``n_documents`` documents, and the documents if available."""
    model = make_model(settings)
    params = make_topics(np.log(np.maximum(fitted.word_given_topic, FLOOR)).astype(np.float32))
    head = unfold_intercept(fitted.weights, fitted.shares) if len(fitted.weights) else None
    variance, K = settings.weight_variance, settings.n_components
    if documents is None:
        return Batches(settings, OnlineState.begin(model, params, K, head, variance, n_documents))
    kept, asked = select_documents(documents, targets, sample_weight)
    state = OnlineState.begin(model, params, K, head, variance)
    total = float(kept.weights.sum())
    seen = online.observe(model, state, kept, ask(kept, asked, settings), total, total, OPTIONS)
    return Batches(settings, seen.state)


def learn(
    documents: WordCounts,
    targets: Targets | None,
    sample_weight: Floats | None,
    before: Batches,
    options: OnlineOptions = OPTIONS,
) -> tuple[Batches, FittedTopics | None]:
    """Learn from a batch; return the new state and its fitted topics, or None if the batch has no words."""
    kept, asked = select_documents(documents, targets, sample_weight)
    if len(kept) == 0:
        return before, None
    settings, state, n_rows = before.settings, before.state, float(kept.weights.sum())
    model, total = make_model(settings), before.state.n_rows + n_rows
    state = online.step(model, state, kept, ask(kept, asked, settings), n_rows, total, options)
    head = None
    if state.weights is not None:
        head = online.linear_head(state, fit_intercept=True, weight_variance=settings.weight_variance)
    at = Evaluation.of(state.params, state.stats.scale(state.n_rows), {}, None)
    return Batches(settings, state), fitted_topics(at, model, head)


def solve_weights(
    documents: WordCounts,
    targets: Targets,
    sample_weight: Floats | None,
    settings: Settings,
    fitted: FittedTopics,
    executor: Executor,
) -> LinearHead:
    """Solve for the weights on the topic shares from label-free inference, at fixed topics."""
    kept, asked = select_documents(documents, targets, sample_weight)
    assert asked is not None
    shares = proportions(kept.counts, fitted, executor)
    return make_head(kept, asked, settings).solve(shares, None, FINAL, executor).head


def settle(batches: Batches, head: LinearHead) -> Batches:
    """Return the state of mini-batch learning with a new head."""
    return replace(batches, state=batches.state.settle(head, batches.settings.weight_variance))


def ask(documents: TrainingDocuments, targets: Targets | None, settings: Settings) -> Head | None:
    """Return the head of the documents of a batch, or None without any."""
    return None if targets is None else make_head(documents, targets, settings)


def unfold_intercept(weights: Floats, centre: Floats) -> LinearHead:
    """Return the head on centered shares with the given scores, the inverse of `meanfield.fold_intercept`.

    Shares sum to one, so adding a constant to all weights changes nothing; the result has minimum norm.
    """
    intercept = weights @ centre
    return LinearHead(np.column_stack([weights - weights.mean(axis=1, keepdims=True), intercept]), centre, True)
