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
from regbayes.margins.head import Head, LinearHead, Tolerance
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
    batch_size: int | None = None,
    learning_rate: float = 1e-3,
    max_iter: int = 200,
    tol: float = 1e-4,
    squared: bool = True,
    seed: int = 0,
    weights: Floats | None = None,
    callbacks: Sequence[Callable[[Any], bool | None]] = (),
) -> FitResult[FittedModel]:
    """Learn the parameters of a model and a linear classifier head together.

    Parameters
    ----------
    model : OwnModel
        From `from_torch` or `from_jax`.
    X : array of shape (n, ...)
    targets : Classes, Signs or Numbers, of all samples; None for the generative model alone
    batch_size : int, default=None
        Samples of a mini-batch. By default every step is one of L-BFGS on all samples, and the objective never rises.
        A mini-batch moves the parameters as Adam does and updates the head's squared losses (`regbayes.joint.online`);
        random numbers of encoder and loss are drawn anew for every batch. The head is solved on all samples at the end.
    learning_rate : float, default=1e-3
        Size of the steps of mini-batches in the first pass; it decreases to zero along half a cosine.
    max_iter : int, default=200
        Maximum number of steps, or number of passes over all samples in mini-batches.
    tol : float, default=1e-4
        A fit without mini-batches ends when the objective falls by less than this per sample.
    squared : bool, default=True
        Whether losses are squared; those of mini-batches always are.
    seed : int, default=0
        Seed of the random numbers of encoder and loss, and of the order of samples in mini-batches.
    weights : array of shape (n,), default=None
        Weights of the samples in the generative loss; in the head, weights are part of the targets' C.
    callbacks : sequence of callables
        As in `regbayes.engine.run`.
    """
    blocks = model.blocks(X, seed, weights)
    n = sum(map(len, blocks))
    _check_targets(targets, n)
    squared = squared or batch_size is not None
    head = None if targets is None else Head(targets, squared=squared, row_weights=weights)
    if batch_size is not None:
        rate = learning_rate / LEARNING_RATE
        batches = _MiniBatches(model, model.to_rows(X), targets, weights, batch_size, rate, max_iter, seed)
        n_features = model.features(batches.rows[:1], model.start).shape[1]
        passes: FitResult[Any] = run(
            batches.step,
            _Pass(OnlineState.begin(model, model.start, n_features), 0),
            max_iter=max_iter,
            keep="last",
            callbacks=callbacks,
            view=lambda search: FittedModel(
                search.state.params, None if head is None else online.linear_head(search.state, head.fit_intercept)
            ),
        )
        return replace(passes, state=_finish(model, blocks, passes.state.state.params, head, None))
    result: FitResult[Any] = fit_joint(
        JointProblem(model, hold_rows(blocks), head, DescentOptions()),
        model.start,
        stop=AbsoluteChange(tol * (n if weights is None else float(weights.sum())), patience=3),
        max_iter=max_iter,
        callbacks=callbacks,
        view=lambda search: FittedModel(search.at.params, search.at.head and search.at.head.head),
    )
    at = result.state.at
    return replace(result, state=_finish(model, blocks, at.params, head, at.warm_start))


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


@dataclass(frozen=True)
class _MiniBatches:
    """What every pass over the samples needs."""

    model: OwnModel
    rows: Any  # (n, ...)
    targets: Targets | None
    weights: Floats | None  # (n,)
    batch_size: int
    rate: float  # of the first pass, relative to a single step's length
    n_passes: int
    seed: int

    def step(self, search: _Pass) -> StepResult[_Pass]:
        """Make a pass over the samples, in an order of its own."""
        n, weights = len(self.rows), self.weights
        counts = np.ones(n) if weights is None else weights
        total = float(counts.sum())
        state, rng = search.state, np.random.default_rng((self.seed, search.number))
        falling = 0.5 * (1.0 + np.cos(np.pi * search.number / self.n_passes))
        options = OnlineOptions(step=falling * self.rate, full_batch=1.0, step_delay=np.inf)
        for chosen in np.array_split(rng.permutation(n), max(round(n / self.batch_size), 1)):
            own = None if weights is None else weights[chosen]
            head = None
            if self.targets is not None:
                head = Head(self.targets.take(chosen), squared=True, row_weights=own)
            block = RowBlock(self.rows[chosen], int(rng.integers(2**31)), own)
            state = online.step(self.model, state, block, head, float(counts[chosen].sum()), total, options)
        terms = dict(self.model.terms(state.params, state.stats.scale(total)))  # running means over the last batches
        return StepResult(_Pass(state, search.number + 1), terms)


def _finish(
    model: OwnModel, blocks: Sequence[RowBlock], params: Reals, head: Head | None, warm_start: Any
) -> FittedModel:
    """Solve for the head that is kept, at the features of all rows."""
    if head is None:
        return FittedModel(params, None)
    features = [model.features(block.rows, params) for block in blocks]
    return FittedModel(params, head.solve(features, warm_start, FINAL).head)
