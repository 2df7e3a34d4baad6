"""Mini-batch learning from samples that are seen once and then discarded.

Each batch updates the parameters by a step scaled by the model's curvature and the size of gradients (Adam: Kingma and
Ba 2015). The weights solve a quadratic problem. Each batch gives a quadratic approximation of its losses near the
current weights, and approximations are averaged with decreasing rates, like natural parameters in stochastic
variational inference (Hoffman et al., JMLR 2013). The weights need no step length, and their noise averages out.

Learning starts at the parameters, and optionally the weights, of an earlier fit. Approximations and statistics are per
sample and are multiplied by the number of samples seen, so the influence of the prior decreases. The weights can
finally be solved for exactly at fixed features.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np

from regbayes._registry import persistable
from regbayes._types import Floats, Reals, check_arrays
from regbayes.joint.model import Inferred, JointModel, Params, Stats
from regbayes.margins.head import Head, LinearHead, Slope, View

Rows = TypeVar("Rows")


@dataclass(frozen=True)
class OnlineOptions:
    """Options of the steps."""

    step: float = 1.0  # step length of the parameters, relative to the first step of a descent
    full_batch: float = 64.0  # samples of a batch for a full step; smaller batches take smaller steps
    step_delay: float = 50.0  # batches after which the step is multiplied by 1/sqrt(2)
    forget_delay: float = 2.0  # initial batches whose loss approximations are forgotten quickly
    forget_power: float = 0.7  # a batch after t equal ones has the rate (1 + t / forget_delay)^-power
    momentum: float = 0.9
    scale_memory: float = 0.99
    blocks_every: int = 10  # batches between closed-form updates
    smoothing: float = 0.1  # smoothing of the squared multi-class hinge


@persistable(name="regbayes.online.Picture")
@dataclass(frozen=True)
class Picture:
    """Quadratic approximation of the losses near the current weights, per sample."""

    curvature: Floats  # (outputs, d, d), or (outputs, d, outputs, d) if outputs are coupled
    linear: Floats  # (outputs, d): minus the gradient at zero weights

    def _check_loaded(self) -> None:
        check_arrays(self, linear="OD", curvature="ODOD" if self.curvature.ndim == 4 else "ODD")

    def blend(self, other: Picture, rate: float) -> Picture:
        """Return the weighted average with another approximation."""
        return Picture(
            (1.0 - rate) * self.curvature + rate * other.curvature, (1.0 - rate) * self.linear + rate * other.linear
        )

    def minimise(self, total: float) -> Floats:
        """Return the optimal weights for ``total`` samples and a standard normal prior."""
        shape, d = self.linear.shape, self.linear.shape[1]
        if self.curvature.ndim == 4:
            n = self.linear.size
            system = self.curvature.reshape(n, n) + np.eye(n) / total
            found = np.linalg.solve(system, self.linear.reshape(n, 1)).reshape(shape)
        else:
            found = np.linalg.solve(self.curvature + np.eye(d) / total, self.linear[:, :, None])[:, :, 0]
        return found.astype(np.float64, copy=False)

    def settle(self, weights: Floats, total: float) -> Picture:
        """Return an approximation with the same curvature whose optimum for ``total`` samples is ``weights``."""
        return Picture(self.curvature, _multiply(self.curvature, weights) + weights / total)


@persistable(name="regbayes.online.State")
@dataclass(frozen=True)
class OnlineState(Generic[Params]):
    """State of mini-batch learning."""

    params: Params
    weights: Floats | None  # (outputs, d) weights of the head, with a standard normal prior; None without a head
    centre: Floats  # (K,): running mean of the features
    stats: Any  # running statistics per sample
    picture: Picture | None
    mean: Reals  # running mean of gradients
    square: Reals  # running mean of squared gradients
    n_batches: int
    n_rows: float  # weighted number of samples seen so far

    def _check_loaded(self) -> None:
        sizes = check_arrays(self, centre="K", **({} if self.weights is None else {"weights": "OD"}))
        if self.weights is not None and sizes["D"] < sizes["K"]:
            raise ValueError(f"there are {sizes['D']} weights for {sizes['K']} features")
        if self.mean.shape != self.square.shape or not (self.n_batches >= 0 and 0 <= self.n_rows < np.inf):
            raise ValueError("the means of the gradients and the numbers of batches and samples do not fit each other")

    @classmethod
    def begin(
        cls,
        model: JointModel[Any, Params, Any, Any],
        params: Params,
        n_features: int,
        head: LinearHead | None = None,
        weight_variance: float = 1.0,
        n_rows: float = 0.0,
    ) -> OnlineState[Params]:
        """Return the state before the first batch, optionally with a head fitted to ``n_rows`` samples."""
        nothing = np.zeros_like(model.position(params))
        weights, centre = None, np.zeros(n_features)
        if head is not None:
            weights, centre = head.weights / np.sqrt(weight_variance), head.centre
        return cls(params, weights, centre, None, None, nothing, nothing, 0, n_rows)

    def settle(self, head: LinearHead, weight_variance: float) -> OnlineState[Params]:
        """Return the state with a head that was solved separately."""
        weights = head.weights / np.sqrt(weight_variance)
        picture = None if self.picture is None else self.picture.settle(weights, self.n_rows)
        return replace(self, weights=weights, centre=head.centre, picture=picture)


@dataclass(frozen=True)
class Observed(Generic[Params]):
    """A batch evaluated at the current parameters."""

    state: OnlineState[Params]  # includes the batch in statistics and weights, but not in the parameters
    inferred: Inferred[Any]
    by_features: Floats | None  # gradient of the head's value with respect to the features


def observe(
    model: JointModel[Rows, Params, Stats, Any],
    state: OnlineState[Params],
    rows: Rows,
    head: Head | None,
    n_rows: float,
    total: float,
    options: OnlineOptions,
) -> Observed[Params]:
    """Update the statistics and the weights with a batch; the arguments are those of `step`."""
    rate = (1.0 + state.n_rows / (n_rows * options.forget_delay)) ** -options.forget_power
    inferred = model.infer(rows, state.params)
    mean_stats = inferred.stats.scale(1.0 / n_rows)
    stats = mean_stats if state.stats is None else state.stats.scale(1.0 - rate) + mean_stats.scale(rate)
    weights, centre, picture, by_features = state.weights, state.centre, state.picture, None
    if head is not None and len(head.targets):
        features = inferred.features
        part = head.blocks((len(features),))[0]
        mean = head.view(part.sum_features(features), options.smoothing).centre
        centre = (1.0 - rate) * centre + (0.0 if mean is None else rate * mean)
        view = View(centre, options.smoothing)
        block = part.see(features, view)
        if weights is None:
            weights = np.zeros((head.targets.n_outputs, head.n_columns(features.shape[1])))
        seen = _draw_picture(block, weights, n_rows)
        # If only the weights of earlier samples are available, assume that these weights were optimal.
        earlier = seen.settle(weights, total) if picture is None else picture
        picture = seen if state.n_rows == 0 else earlier.blend(seen, rate)
        weights = picture.minimise(total)
        by_features = part.gradient(features, Slope(view, weights, None))
    seen_rows = state.n_rows + n_rows
    found = replace(state, weights=weights, centre=centre, stats=stats, picture=picture, n_rows=seen_rows)
    return Observed(found, inferred, by_features)


def step(
    model: JointModel[Rows, Params, Stats, Any],
    state: OnlineState[Params],
    rows: Rows,
    head: Head | None,
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
    head : Head or None
        Head of the samples in this batch.
    n_rows, total : float
        Sum of the sample weights of the batch, and of all samples that it represents.
    options : OnlineOptions
    """
    observed = observe(model, state, rows, head, n_rows, total, options)
    state, inferred, t = observed.state, observed.inferred, observed.state.n_batches
    params, factor = state.params, total / n_rows
    pulled = model.pull_back(rows, params, inferred, observed.by_features).scale(factor)
    slope = model.gradient(params, inferred.stats.scale(factor), pulled)
    slope = slope / slope.dtype.type(total)
    precondition = model.precondition(params, state.stats)
    slope = slope if precondition is None else precondition(slope)
    mean = options.momentum * state.mean + (1.0 - options.momentum) * slope
    square = options.scale_memory * state.square + (1.0 - options.scale_memory) * np.square(slope)
    sure = 1.0 - options.scale_memory ** (t + 1)  # bias correction, not for the mean: first steps are short
    position = model.position(params)
    first = model.first_length(params)
    size = float(np.linalg.norm(position)) if first is None else first
    length = options.step * size / np.sqrt(position.size * (1.0 + t / options.step_delay))
    length *= min(1.0, np.sqrt(n_rows / options.full_batch))
    with np.errstate(divide="ignore", invalid="ignore"):
        move = np.nan_to_num(mean / np.sqrt(square / sure))
    params = model.move(params, position - position.dtype.type(length) * move)
    if (t + 1) % options.blocks_every == 0:
        params = model.update_blocks(params, state.stats.scale(total)) or params
    return replace(state, params=params, mean=mean, square=square, n_batches=t + 1)


def linear_head(state: OnlineState[Any], fit_intercept: bool, weight_variance: float = 1.0) -> LinearHead:
    """Return the current head."""
    assert state.weights is not None
    return LinearHead(float(np.sqrt(weight_variance)) * state.weights, state.centre, fit_intercept)


def _draw_picture(block: Any, weights: Floats, n_rows: float) -> Picture:
    """Return the quadratic approximation of the losses of a batch at given weights, per sample."""
    curvature = block.curvature(weights) / n_rows
    return Picture(curvature, _multiply(curvature, weights) + block.sums(weights).pulled / n_rows)


def _multiply(curvature: Floats, weights: Floats) -> Floats:
    """Multiply second derivatives by weights, (outputs, d)."""
    if curvature.ndim == 4:
        return np.einsum("idje,je->id", curvature, weights)
    return np.einsum("ide,ie->id", curvature, weights)
