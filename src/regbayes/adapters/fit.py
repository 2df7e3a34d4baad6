"""Fit a user's model with a max-margin head, on full batches or mini-batches."""

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

FINAL = Tolerance(gap=1e-6, max_epochs=2000.0)  # tolerance of the final SVM subproblem


@dataclass(frozen=True)
class FittedModel:
    """Fitted parameters of a user's model and its classifier head.

    Examples
    --------
    >>> import numpy as np
    >>> from regbayes.adapters import fit, from_jax
    >>> encode, loss = lambda p, x: x @ p, lambda p, x, z: ((x - z @ p.T) ** 2).sum(1)
    >>> model = from_jax(encode, loss, np.eye(4)[:, :2])
    >>> fitted = fit(model, np.ones((9, 4)), None, max_iter=3).state
    >>> fitted.params.shape, fitted.head
    ((8,), None)
    """

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
    targets : Classes, Signs or Numbers of all samples; None for the generative model alone
    batch_size : int, default=None
        Number of samples per mini-batch. By default, L-BFGS uses all samples and the objective never increases. With
        mini-batches, parameters are updated by Adam and the head by squared losses (`regbayes.joint.online`). Encoder
        and loss draw new random numbers for each batch. The head is refitted to all samples at the end.
    learning_rate : float, default=1e-3
        Initial learning rate of mini-batches; it decreases to zero along half a cosine.
    max_iter : int, default=200
        Maximum number of L-BFGS steps, or number of epochs with mini-batches.
    tol : float, default=1e-4
        Fits without mini-batches stop when the objective decreases by less than this per sample.
    squared : bool, default=True
        Whether losses are squared. Mini-batches always use squared losses.
    seed : int, default=0
        Seed of the encoder, the loss and the order of samples in mini-batches.
    weights : array of shape (n,), default=None
        Sample weights in the generative loss. The head's weights are part of the targets' C.
    callbacks : sequence of callables
        As in `regbayes.engine.run`.

    Examples
    --------
    >>> import numpy as np
    >>> from regbayes.adapters import fit, from_jax
    >>> encode, loss = lambda p, x: x @ p, lambda p, x, z: ((x - z @ p.T) ** 2).sum(1)
    >>> model = from_jax(encode, loss, np.eye(4)[:, :2])
    >>> from regbayes.margins.targets import Numbers
    >>> X = np.random.default_rng(0).standard_normal((60, 4))
    >>> fit(model, X, Numbers(X[:, :1], C=np.ones((60, 1))), max_iter=3).state.head.weights.shape
    (1, 3)
    """
    blocks = model.blocks(X, seed, weights)
    rows = model.to_rows(X)
    counts = np.ones(len(rows)) if weights is None else weights
    head = None
    if targets is not None:
        if len(targets) != len(rows):
            raise ValueError(f"`targets` must have one entry for each of {len(rows)} samples; got {len(targets)}.")
        if not isinstance(targets, Classes) and np.ndim(targets.C) != 2:
            raise ValueError(
                "`targets` other than Classes must have a column for each output, and C the same shape (n, outputs); "
                f"got C of shape {np.shape(targets.C)}."
            )
        head = Head(targets, squared=squared or batch_size is not None, row_weights=weights)
    passes: Any
    if batch_size is None:
        passes = fit_joint(
            JointProblem(model, hold_rows(blocks), head, DescentOptions()),
            model.start,
            stop=AbsoluteChange(tol * float(counts.sum()), patience=3),
            max_iter=max_iter,
            callbacks=callbacks,
            view=lambda search: FittedModel(search.at.params, search.at.head and search.at.head.head),
        )
        params, warm_start = passes.state.at.params, passes.state.at.warm_start
    else:
        n_batches = max(round(len(rows) / batch_size), 1)

        def make_pass(state: OnlineState[Reals]) -> StepResult[OnlineState[Reals]]:
            """Make an epoch over the samples in random order."""
            number = state.n_batches // n_batches
            rng = np.random.default_rng((seed, number))
            falling = 0.5 * (1.0 + np.cos(np.pi * number / max_iter))
            options = OnlineOptions(step=falling * learning_rate / LEARNING_RATE, full_batch=1.0, step_delay=np.inf)
            for chosen in np.array_split(rng.permutation(len(rows)), n_batches):
                own = None if weights is None else weights[chosen]
                part = None if targets is None else Head(targets.take(chosen), squared=True, row_weights=own)
                block = RowBlock(rows[chosen], int(rng.integers(2**31)), own)
                size = float(counts[chosen].sum())
                state = online.step(model, state, block, part, size, float(counts.sum()), options)
            terms = model.terms(state.params, state.stats.scale(float(counts.sum())))  # means over the last batches
            return StepResult(state, dict(terms))

        passes = run(
            make_pass,
            OnlineState.begin(model, model.start, model.features(rows[:1], model.start).shape[1]),
            max_iter=max_iter,
            keep="last",
            callbacks=callbacks,
            view=lambda state: FittedModel(
                state.params, None if head is None else online.linear_head(state, head.fit_intercept)
            ),
        )
        params, warm_start = passes.state.params, None
    fitted = None
    if head is not None:
        fitted = head.solve([model.features(block.rows, params) for block in blocks], warm_start, FINAL).head
    result: FitResult[FittedModel] = replace(passes, state=FittedModel(params, fitted))
    return result
