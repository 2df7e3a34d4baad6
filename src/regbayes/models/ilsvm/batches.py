"""iLSVM from batches: features that go on from a fit of the first one, and weights solved over rows that are on disk.

The first batch has a fit as any other; its features, their number, scales and variances are where learning begins
(`begin`). Every further batch moves the loadings a little (`learn`), and nothing of its rows is kept. One more look at
all rows solves for the weights, at features that stand (`solve_weights`).
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
SAMPLE_LEVEL = 1  # of the rows that the curvature of a solve comes from: twice as many as it begins with


@persistable(name="regbayes.ilsvm.Batches")
@dataclass(frozen=True)
class Batches:
    """Where learning from batches stands, and what the first one settled."""

    settings: Settings
    state: OnlineState[Params]


def begin(data: Data | None, settings: Settings, fitted: State, n_rows: float) -> Batches:
    """Return where learning begins: at a fitted model, of so many rows, which are given if they are at hand."""
    model, params = make_model(settings), fitted.params
    head = fitted.head
    if data is None:
        return Batches(settings, OnlineState.begin(model, params, len(params.loadings), head, n_rows=n_rows))
    state = OnlineState.begin(model, params, len(params.loadings), head)
    seen = online.observe(model, state, data.X, _ask(data, settings), n_rows, n_rows, OPTIONS)
    return Batches(settings, seen.state)


def learn(data: Data, before: Batches, options: OnlineOptions = OPTIONS) -> tuple[Batches, State]:
    """Learn from a batch; return where learning stands, and the fitted model that it would end with.

    The model's embedding is that of the batch.
    """
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
    """Solve for the weights at the features of a fitted model, over samples that are read again for each look at them.

    ``read`` takes one of the parts, or places of samples, each of which has a target. ``kinds`` are their classes, if
    targets are classes. Returns the head and its duality gap relative to its value.
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
    """Return where learning stands once the weights of a fitted model were solved for."""
    return replace(batches, state=batches.state.settle(head, 1.0))


def make_model(settings: Settings) -> BinaryFeatures:
    """Return the model that settings ask for."""
    kind = SlabFeatures if settings.slab else BinaryFeatures
    return kind(settings.alpha, settings.generative_weight, settings.estimate_noise, settings.estimate_prior)


def _ask(data: Data, settings: Settings) -> Head | None:
    """Return what the labelled rows of a batch ask for."""
    if settings.C == 0 or len(data.labeled) == 0:
        return None
    return build_head(data, settings)
