"""Fit a user's model under a margin head: all rows at every step, or mini-batches of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from regbayes._types import Floats, Reals
from regbayes.adapters.model import LEARNING_RATE, OwnModel, RowBlock
from regbayes.engine import AbsoluteChange, FitResult, StepResult, run
from regbayes.joint import online
from regbayes.joint.descent import DescentOptions, fit_joint
from regbayes.joint.online import OnlineOptions, OnlineState
from regbayes.joint.problem import JointProblem, hold_rows
from regbayes.margins.head import LinearHead, MarginHead, Tolerance
from regbayes.margins.targets import Classes, Targets

FINAL = Tolerance(gap=1e-6, max_epochs=2000.0)  # of the head that is kept


@dataclass(frozen=True)
class FittedModel:
    """Parameters of a user's model, and the head on its features."""

    params: Reals  # (P,)
    head: LinearHead | None  # None without targets


def fit(  # noqa: PLR0913 - options, all by name
    model: OwnModel,
    X: Any,
    targets: Targets | None,
    *,
    max_iter: int = 200,
    tol: float = 1e-4,
    squared: bool = True,
    seed: int = 0,
    weights: Floats | None = None,
    callbacks: Sequence[Callable[[Any], bool | None]] = (),
) -> FitResult[FittedModel]:
    """Learn parameters and head together, by L-BFGS on all rows; J never rises.

    Parameters
    ----------
    model : OwnModel
        From `from_torch` or `from_jax`.
    X : array of shape (n, ...)
    targets : Classes, Signs or Numbers, of all rows; None for the generative model alone
    max_iter : int, default=200
        Steps at most.
    tol : float, default=1e-4
        The fit ends when J falls by less than this per row.
    squared : bool, default=True
        Whether losses are squared.
    seed : int, default=0
        Of what is drawn. It is drawn once, so J is one function.
    weights : array of shape (n,), default=None
        What each row counts in the generative loss; in the head, a row counts as its price says.
    callbacks : sequence of callables
        As in `regbayes.engine.run`.
    """
    blocks = model.blocks(X, seed, weights)
    n_rows = sum(map(len, blocks))
    _check_targets(targets, n_rows)
    head = None if targets is None else MarginHead(targets, squared=squared, row_weights=weights)
    result: FitResult[Any] = fit_joint(
        JointProblem(model, hold_rows(blocks), head, DescentOptions()),
        model.start,
        stop=AbsoluteChange(tol * (n_rows if weights is None else float(weights.sum())), patience=3),
        max_iter=max_iter,
        callbacks=callbacks,
        view=lambda search: FittedModel(search.at.params, search.at.head and search.at.head.head),
    )
    at = result.state.at
    return replace(result, state=_finish(model, blocks, at.params, head, at.warm_start))


def fit_batches(  # noqa: PLR0913 - options, all by name
    model: OwnModel,
    X: Any,
    targets: Targets | None,
    *,
    max_iter: int = 50,
    batch_size: int = 128,
    learning_rate: float = 1e-3,
    seed: int = 0,
    weights: Floats | None = None,
    callbacks: Sequence[Callable[[Any], bool | None]] = (),
) -> FitResult[FittedModel]:
    """Learn parameters and head together from mini-batches of rows; the head is solved on all rows at the end.

    A batch moves the parameters as Adam does and updates what is known of the head's losses (`regbayes.joint.online`),
    which are squared. What encoder and loss draw is drawn anew for every batch.

    Parameters
    ----------
    model, X, targets, weights, callbacks
        As in `fit`.
    max_iter : int, default=50
        Passes over all rows.
    batch_size : int, default=128
    learning_rate : float, default=1e-3
        Size of the steps in the first pass; it falls to nothing along half a cosine.
    seed : int, default=0
        Of the order of the rows, and of what is drawn.
    """
    blocks = model.blocks(X, seed, weights)
    rows = model.to_rows(X)
    _check_targets(targets, len(rows))
    n, n_features = len(rows), model.features(rows[:1], model.start).shape[1]
    counts = np.ones(n) if weights is None else weights
    total = float(counts.sum())
    head = None if targets is None else MarginHead(targets, squared=True, row_weights=weights)

    def step(search: _Pass) -> StepResult[_Pass]:
        state, rng = search.state, np.random.default_rng((seed, search.number))
        falling = 0.5 * (1.0 + np.cos(np.pi * search.number / max_iter))
        options = OnlineOptions(step=falling * learning_rate / LEARNING_RATE, full_batch=1.0, step_delay=np.inf)
        for chosen in np.array_split(rng.permutation(n), max(round(n / batch_size), 1)):
            of_rows = None if weights is None else weights[chosen]
            asked = None if targets is None else MarginHead(targets.take(chosen), squared=True, row_weights=of_rows)
            block = RowBlock(rows[chosen], int(rng.integers(2**31)), of_rows)
            state = online.step(model, state, block, asked, float(counts[chosen].sum()), total, options)
        terms = dict(model.terms(state.params, state.stats.scale(total)))  # running means over the last batches
        return StepResult(_Pass(state, search.number + 1), terms)

    begun = OnlineState.begin(model, model.start, n_features)
    result: FitResult[Any] = run(
        step,
        _Pass(begun, 0),
        max_iter=max_iter,
        keep="last",
        callbacks=callbacks,
        view=lambda search: FittedModel(
            search.state.params, None if head is None else online.linear_head(search.state, head.fit_intercept)
        ),
    )
    return replace(result, state=_finish(model, blocks, result.state.state.params, head, None))


def _check_targets(targets: Targets | None, n: int) -> None:
    if targets is None:
        return
    if len(targets) != n:
        raise ValueError(f"there are {len(targets)} targets for {n} rows")
    if not isinstance(targets, Classes) and np.ndim(targets.C) != 2:
        raise ValueError(
            f"targets other than Classes have a column for each output, shape (n, outputs), and C of the same shape; "
            f"got C of shape {np.shape(targets.C)}"
        )


@dataclass(frozen=True)
class _Pass:
    """Where learning stands after some passes over the rows."""

    state: OnlineState[Reals]
    number: int


def _finish(
    model: OwnModel, blocks: Sequence[RowBlock], params: Reals, head: MarginHead | None, warm_start: Any
) -> FittedModel:
    """Solve for the head that is kept, at the features of all rows."""
    if head is None:
        return FittedModel(params, None)
    features = [model.features(block.rows, params) for block in blocks]
    return FittedModel(params, head.solve(features, warm_start, FINAL).head)
