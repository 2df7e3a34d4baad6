"""Mini-batch learning for iLSVM.

The first batch is fitted like any other data set. Its features, their scales and the variances initialize online
learning (`begin`). Each further batch updates the loadings by a small step (`learn`) and is then discarded.
`solve_weights` makes one more pass over all samples to solve for the weights at fixed features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from regbayes._registry import persistable
from regbayes._types import Integers
from regbayes.engine import make_executor
from regbayes.engine.source import LocalBlocks, order_sample
from regbayes.joint import online
from regbayes.joint.descent import DescentOptions
from regbayes.joint.online import OnlineOptions, OnlineState
from regbayes.joint.problem import JointProblem, RowBlock, SampledHead
from regbayes.margins.head import Head, LinearHead, WarmStart
from regbayes.models.ilsvm.model import (
    FINAL,
    BinaryFeatures,
    Data,
    Params,
    Rows,
    Settings,
    State,
    build_head,
)
from regbayes.models.ilsvm.slab import SlabFeatures

OPTIONS = OnlineOptions()
SAMPLE_LEVEL = 1  # level of the curvature's subsample: twice as many samples as at level 0


@persistable(name="regbayes.ilsvm.Batches")
@dataclass(frozen=True)
class Batches:
    """State of online learning, and the settings of the first batch."""

    settings: Settings
    state: OnlineState[Params]


def begin(data: Data | None, settings: Settings, fitted: State, n_rows: float) -> Batches:
    """Initialize online learning from a fitted model of ``n_rows`` samples, and their data if available."""
    model, params = make_model(settings), fitted.params
    head = fitted.head
    if data is None:
        return Batches(settings, OnlineState.begin(model, params, len(params.loadings), head, n_rows=n_rows))
    state = OnlineState.begin(model, params, len(params.loadings), head)
    seen = online.observe(model, state, data.X, _ask(data, settings), n_rows, n_rows, OPTIONS)
    return Batches(settings, seen.state)


def learn(data: Data, before: Batches, options: OnlineOptions = OPTIONS) -> tuple[Batches, State]:
    """Learn from a batch; return the new state and the fitted model, whose embedding is that of the batch."""
    settings, state, n_rows = before.settings, before.state, data.X.totals.n_rows
    total = state.n_rows + n_rows
    state = online.step(make_model(settings), state, data.X, _ask(data, settings), n_rows, total, options)
    head = None if state.weights is None else online.linear_head(state, settings.fit_intercept)
    features = state.params.infer(data.X)
    psi = state.params.infer_probabilities(data.X) if settings.slab else None
    scale = 0.0 if head is None else settings.input_scale
    return Batches(settings, state), State(state.params, features, head, None, scale, psi)


def solve_weights(
    read: Callable[[Any], Data],
    parts: Sequence[Any],
    kinds: Integers | None,
    n_targets: int,
    settings: Settings,
    fitted: State,
) -> tuple[LinearHead, float]:
    """Solve for the weights at the features of a fitted model, reading the samples again in each pass.

    ``read`` loads one of the ``parts``, whose samples all have targets. ``kinds`` are the classes of the samples if the
    targets are classes. Returns the head and its relative duality gap.
    """
    order, model = order_sample(kinds, n_targets), make_model(settings)
    params = fitted.params
    K = len(params.loadings)

    def hold(part: Any) -> RowBlock[Rows]:
        data = read(part)
        head = _ask(data, settings)
        return RowBlock([data.X], (len(data.X),), None if head is None else head.blocks((len(data.X),)))

    few = _ask(read(order[:2]), settings)
    assert few is not None
    n_sampled = min(few.n_sampled(SAMPLE_LEVEL, K), n_targets)
    blocks = LocalBlocks(parts, make_executor(settings.n_threads), hold)
    sample = read(order[:n_sampled])
    here = _ask(sample, settings)
    assert here is not None
    head = SampledHead(here, RowBlock([sample.X], (n_sampled,)), n_sampled / n_targets)
    problem: JointProblem[Any, Any, Any] = JointProblem(model, blocks, head, DescentOptions())
    start = None if fitted.head is None else WarmStart(fitted.head.weights)
    solved = problem.evaluate(params, start, FINAL)[0].head
    return solved.head, solved.gap / max(solved.value, np.finfo(np.float64).tiny)


def settle(batches: Batches, head: LinearHead) -> Batches:
    """Return the state of online learning with a new head."""
    return replace(batches, state=batches.state.settle(head, 1.0))


def make_model(settings: Settings) -> BinaryFeatures:
    """Return the model that the settings specify."""
    kind = SlabFeatures if settings.slab else BinaryFeatures
    return kind(settings.alpha, settings.generative_weight, settings.estimate_noise, settings.estimate_prior)


def _ask(data: Data, settings: Settings) -> Head | None:
    """Return the head of the labeled samples of a batch, or None without any."""
    if settings.C == 0 or len(data.labeled) == 0:
        return None
    return build_head(data, settings)
