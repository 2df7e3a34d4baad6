"""Learning from batches of rows that are seen once: nothing is kept of a row.

The parameters take a step for every batch, scaled by what the model knows of its curvature and by how large gradients
have been (Adam: Kingma and Ba 2015). The head is the solution of a quadratic problem: every batch says what its losses
look like near the weights of the moment, and these pictures are averaged with weights that fall from batch to batch, as
natural parameters are in stochastic variational inference (Hoffman et al., JMLR 2013). So there is no step length to
choose for the weights, and noise in them averages out.

The last word on the weights takes one look at all rows again, at features that no longer move: a large-margin problem
as any other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np

from regbayes._types import Floats, Reals
from regbayes.joint.model import JointModel, Params, Stats
from regbayes.margins.head import HeadView, LinearHead, MarginHead

Rows = TypeVar("Rows")


@dataclass(frozen=True)
class OnlineOptions:
    """How to step. Everything is a number."""

    step: float = 0.05  # of the parameters, relative to their size
    step_delay: float = 50.0  # batches after which it is 1/sqrt(2) of that
    forget_delay: float = 2.0  # batches whose pictures of the losses are soon forgotten
    forget_power: float = 0.7  # the weight of batch t, from 0, is (1 + t / delay)^-power
    momentum: float = 0.9
    scale_memory: float = 0.99
    blocks_every: int = 10  # batches between updates in closed form
    smoothing: float = 0.1  # of the squared multi-class hinge


@dataclass(frozen=True)
class Picture:
    """The losses of all rows near the weights of the moment: a quadratic function of the weights."""

    curvature: Floats  # (outputs, d, d), or (outputs, d, outputs, d) where outputs mix
    linear: Floats  # (outputs, d): minus the gradient at no weights

    def blend(self, other: Picture, rate: float) -> Picture:
        """Return the average with another one."""
        return Picture(
            (1.0 - rate) * self.curvature + rate * other.curvature, (1.0 - rate) * self.linear + rate * other.linear
        )

    def minimise(self) -> Floats:
        """Return the best weights that are standard normal a priori."""
        shape, d = self.linear.shape, self.linear.shape[1]
        if self.curvature.ndim == 4:
            n = self.linear.size
            whole = np.linalg.solve(self.curvature.reshape(n, n) + np.eye(n), self.linear.reshape(n, 1))
            return whole.reshape(shape).astype(np.float64, copy=False)
        found = np.linalg.solve(self.curvature + np.eye(d), self.linear[:, :, None])
        return found[:, :, 0].astype(np.float64, copy=False)


@dataclass(frozen=True)
class OnlineState(Generic[Params]):
    """Where learning from batches stands."""

    params: Params
    weights: Floats | None  # (outputs, d) of the head, standard normal a priori; None without a head
    centre: Floats  # (K,): running mean of the features
    stats: Any  # running statistics, as of one row
    picture: Picture | None
    mean: Reals  # of gradients
    square: Reals  # of their squares
    n_batches: int
    n_rows: float  # seen so far

    @classmethod
    def begin(cls, model: JointModel[Any, Params, Any, Any], params: Params, n_features: int) -> OnlineState[Params]:
        """Return the state before the first batch."""
        nothing = np.zeros_like(model.position(params))
        return cls(params, None, np.zeros(n_features), None, None, nothing, nothing, 0, 0.0)


def step(
    model: JointModel[Rows, Params, Stats, Any],
    state: OnlineState[Params],
    rows: Rows,
    head: MarginHead | None,
    n_rows: float,
    total: float,
    options: OnlineOptions,
) -> OnlineState[Params]:
    """Learn from a batch.

    Parameters
    ----------
    model : JointModel
    state : OnlineState
    rows : Rows
    head : MarginHead or None
        What the rows of this batch ask for.
    n_rows, total : float
        What the rows of the batch count together, and what all rows do, for which they stand.
    options : OnlineOptions
    """
    t, params = state.n_batches, state.params
    rate = (1.0 + t / options.forget_delay) ** -options.forget_power
    inferred = model.infer(rows, params)
    factor = total / n_rows
    mean_stats = inferred.stats.scale(1.0 / n_rows)
    stats = mean_stats if state.stats is None else state.stats.scale(1.0 - rate) + mean_stats.scale(rate)
    weights, centre, picture, by_features = state.weights, state.centre, state.picture, None
    if head is not None and len(head.targets):
        features = inferred.features
        part = head.parts((len(features),))[0]
        weight, sums = head.sum_features([features])
        centre = (1.0 - rate) * centre + rate * head.view(weight, sums, options.smoothing).centre
        view = HeadView(centre, options.smoothing)
        block = head.newton_block(part, features, view)
        if weights is None:
            weights = np.zeros((head.targets.n_outputs, head.n_columns(features.shape[1])))
        seen = _look(block, weights, factor)
        picture = seen if picture is None else picture.blend(seen, rate)
        weights = picture.minimise()
        by_features = head.gradient_of(part, features, view, weights, None)
    pulled = model.pull_back(rows, params, inferred, by_features).scale(factor)
    slope = model.gradient(params, inferred.stats.scale(factor), pulled)
    precondition = model.precondition(params, stats)
    slope = slope if precondition is None else precondition(slope)
    mean = options.momentum * state.mean + (1.0 - options.momentum) * slope
    square = options.scale_memory * state.square + (1.0 - options.scale_memory) * np.square(slope)
    sure = 1.0 - options.momentum ** (t + 1), 1.0 - options.scale_memory ** (t + 1)
    position = model.position(params)
    length = options.step * float(np.sqrt(np.mean(np.square(position)))) / np.sqrt(1.0 + t / options.step_delay)
    with np.errstate(divide="ignore", invalid="ignore"):
        move = np.nan_to_num((mean / sure[0]) / np.sqrt(square / sure[1]))
    params = model.move(params, position - position.dtype.type(length) * move)
    if (t + 1) % options.blocks_every == 0:
        params = model.update_blocks(params, stats.scale(total)) or params
    return replace(
        state,
        params=params,
        weights=weights,
        centre=centre,
        stats=stats,
        picture=picture,
        mean=mean,
        square=square,
        n_batches=t + 1,
        n_rows=state.n_rows + n_rows,
    )


def linear_head(state: OnlineState[Any], head: MarginHead) -> LinearHead:
    """Return the head as it stands."""
    assert state.weights is not None
    return LinearHead(float(np.sqrt(head.weight_variance)) * state.weights, state.centre, head.fit_intercept)


def _look(block: Any, weights: Floats, factor: float) -> Picture:
    """Return the losses of a batch near given weights, as those of all rows."""
    curvature = factor * block.curvature(weights)
    if curvature.ndim == 4:
        bent = np.einsum("idje,je->id", curvature, weights)
    else:
        bent = np.einsum("ide,ie->id", curvature, weights)
    return Picture(curvature, bent + factor * block.sums(weights).pulled)
