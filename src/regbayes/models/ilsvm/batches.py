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
from regbayes.models.ilsvm.fit import pad_state
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
from regbayes.models.ilsvm.starts import drop_empty

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
    model, params = make_model(settings), drop_empty(fitted.params)
    head = None if fitted.head is None else _drop_columns(fitted.head, fitted.params)
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
    return Batches(settings, state), pad_state(State(state.params, features, head, None, scale, psi), settings)


def solve_weights(
    read: Callable[[Any], Data],
    parts: Sequence[Any],
    kinds: Integers | None,
    n_targets: int,
    settings: Settings,
    fitted: State,
) -> tuple[LinearHead, float]:
    """Solve for the weights at the features of a fitted model, over rows that are read anew for every look at them.

    Parameters
    ----------
    read : callable
        From a part, or an array of row numbers, to these rows.
    parts : sequence
        What all rows are read in.
    kinds : array of shape (N,) or None
        Classes of all rows, if targets are classes.
    n_targets : int
        How many rows there are, N; each has a target.
    settings : Settings
    fitted : State

    Returns
    -------
    LinearHead
    float
        Its duality gap, relative to its value.
    """
    order, model = order_sample(kinds, n_targets), make_model(settings)
    params = drop_empty(fitted.params)
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
    start = None if fitted.head is None else WarmStart(_drop_columns(fitted.head, fitted.params).weights)
    solved = problem.evaluate(params, start, FINAL)[0].head
    nothing = np.empty((0, K))
    full = pad_state(State(params, nothing, solved.head, None, 0.0, nothing if settings.slab else None), settings)
    assert full.head is not None
    return full.head, solved.gap / max(solved.value, np.finfo(np.float64).tiny)


def settle(batches: Batches, head: LinearHead, fitted: State) -> Batches:
    """Return where learning stands once the weights of a fitted model were solved for."""
    return replace(batches, state=batches.state.settle(_drop_columns(head, fitted.params), 1.0))


def make_model(settings: Settings) -> BinaryFeatures:
    """Return the model that settings ask for."""
    kind = SlabFeatures if settings.slab else BinaryFeatures
    return kind(settings.alpha, settings.generative_weight, settings.estimate_noise, settings.estimate_prior)


def _ask(data: Data, settings: Settings) -> Head | None:
    """Return what the labelled rows of a batch ask for."""
    if settings.C == 0 or len(data.labeled) == 0:
        return None
    return build_head(data, settings)


def _drop_columns(head: LinearHead, params: Params) -> LinearHead:
    """Return a head without the features that `drop_empty` leaves out."""
    kept = np.any(params.loadings != 0.0, axis=1)
    if not kept.any():
        return head
    columns = np.ones(head.weights.shape[1], dtype=bool)
    columns[: len(kept)] = kept
    return LinearHead(head.weights[:, columns], head.centre[kept], head.fit_intercept)
