"""Real-valued features: off, or on by an amount (spike and slab).

Rows are ``x_n = b + W' (z_n o v_n) + noise``, with amounts ``v >= 0`` of a half-normal prior beside binary features z
(the paper, section 4). What the head sees of a row are its expected amounts. Inference, the way back through it and the
free energy are docs/math.md eq. (120)-(126); loadings, sticks, variances, the descent and its terms are those of binary
features (`model.BinaryFeatures`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from regbayes._registry import persistable
from regbayes._types import Floats, Reals
from regbayes.joint.model import Inferred
from regbayes.kernels.slab import Swept, reverse_slab, sweep_slab
from regbayes.models.ilsvm.model import (
    BinaryFeatures,
    HostRows,
    Params,
    Pulled,
    Rows,
    Settings,
    Stats,
    reconstruct,
    update_offset,
)
from regbayes.models.indian_buffet import cross_entropy_features, kl_sticks


@persistable(name="regbayes.ilsvm.SlabParams")
@dataclass(frozen=True)
class SlabParams(Params):
    """What inference of a row's amounts needs to know."""

    price: float = field(kw_only=True)  # kappa, of a feature that is on
    has_amounts: ClassVar[bool] = True

    @cached_property
    def log_odds(self) -> Floats:
        """Prior log-odds of the features, less their price, ``a``, shape (K,)."""
        return self.mean_field.expected.log_odds - self.price

    @cached_property
    def amount_precisions(self) -> Floats:
        """Precision of each amount given that its feature is on, ``p``, docs/math.md eq. (121), shape (K,)."""
        field = self.mean_field
        return 1.0 + np.diag(field.coupling) + field.precision * self.loadings.shape[1] * self.variances

    def sweep(self, rows: Rows) -> tuple[Swept, Floats]:
        """Return what the sweeps find for rows, and the projections that they begin with."""
        if not isinstance(rows, HostRows):
            return _on_device().sweep(rows, self)
        directions = self.mean_field.precision * self.loadings
        projections = rows.project(directions)
        projections -= directions @ self.offset
        coupling = self.mean_field.coupling
        return sweep_slab(projections, coupling, self.amount_precisions, self.log_odds, self.n_sweeps), projections

    def infer(self, rows: Rows, few: bool = False) -> Floats:
        """Return the expected amounts of rows, shape (n, K)."""
        return self.sweep(rows)[0].amounts

    def infer_probabilities(self, rows: Rows) -> Floats:
        """Return the probabilities that the features of rows are on, shape (n, K)."""
        return self.sweep(rows)[0].psi

    def bound(self, rows: Rows) -> Floats:
        """Return a lower bound on each row's log-density at fixed global parameters, shape (n,)."""
        if not isinstance(rows, HostRows):
            return _on_device().bound(rows, self)
        swept, _ = self.sweep(rows)
        psi, amounts = swept.psi, swept.amounts
        expected = self.mean_field.expected
        squares = np.einsum("kd,kd->k", self.loadings, self.loadings)
        spread = (swept.squares - amounts**2) @ squares + rows.n_inputs * (swept.squares @ self.variances)
        residual = np.square(rows.array() - reconstruct(amounts, self)).sum(axis=1) + spread
        log_prior = psi @ expected.log_use + (1.0 - psi) @ expected.log_rest
        normaliser = 0.5 * rows.n_inputs * np.log(2.0 * np.pi * self.noise_variance)
        return log_prior - swept.divergence - 0.5 * residual / self.noise_variance - normaliser


def _on_device() -> Any:
    """Return the module for rows on a device, which needs this one."""
    from regbayes.models.ilsvm import device_slab

    return device_slab


def convert_params(params: Params, settings: Settings) -> Params:
    """Return the parameters for the kind of features that settings ask for; a start knows of no amounts."""
    values = {f.name: getattr(params, f.name) for f in fields(Params)}
    return SlabParams(**values, price=settings.price) if settings.slab else Params(**values)


@dataclass(frozen=True)
class SlabFeatures(BinaryFeatures):
    """The model, with what stays the same through a descent. The position is that of the loadings.

    The offset has its closed form and does not descend: labels would use it to undo the price of features.
    """

    def infer(self, rows: Rows, params: Params) -> Inferred[Stats]:
        """Infer the amounts of rows without their labels, and sum what the rest of the model needs."""
        assert isinstance(params, SlabParams)
        if not isinstance(rows, HostRows):
            return _on_device().infer(rows, params)
        swept, projections = params.sweep(rows)
        weighed = rows.weigh(swept.amounts)
        amounts, totals = weighed.sum(axis=0), rows.totals
        # What is explained of rows less the offset.
        above = float(np.vdot(weighed, projections)) / params.mean_field.precision
        second = weighed.T @ swept.amounts
        np.fill_diagonal(second, rows.weigh(swept.squares).sum(axis=0))
        stats = Stats(
            n_rows=totals.n_rows,
            squared_norm=float(totals.squares.sum()),
            total=totals.rows,
            counts=rows.weigh(swept.psi).sum(axis=0),
            first_moment=amounts,
            second_moment=second,
            explained=above + float(amounts @ (params.loadings @ params.offset)),
            entropy=-float(rows.weigh(swept.divergence[:, None]).sum()),
        )
        return Inferred(swept.amounts, stats, projections)

    def pull_back(self, rows: Rows, params: Params, inferred: Inferred[Stats], gradient: Floats | None) -> Pulled:
        """Differentiate through the sweeps; the generative part's own gradient by the amounts is added, eq. (126)."""
        assert isinstance(params, SlabParams)
        if not isinstance(rows, HostRows):
            return _on_device().pull_back(rows, params, self.weight, inferred, gradient)
        amounts, projections = np.asarray(inferred.features, dtype=np.float64), inferred.cache
        coupling, precisions, n_sweeps = params.mean_field.coupling, params.amount_precisions, params.n_sweeps
        gradient = np.zeros(amounts.shape) if gradient is None else gradient
        moved = amounts
        if n_sweeps > 1:
            moved = amounts - sweep_slab(projections, coupling, precisions, params.log_odds, n_sweeps - 1).amounts
        # What drove a feature saw those after it as they were one sweep earlier; the free energy is flat in all else.
        gradient += self.weight * rows.weigh(moved @ np.tril(coupling, -1))
        sums = reverse_slab(gradient, projections, coupling, precisions, params.log_odds, n_sweeps, gradient)
        driving = gradient.sum(axis=0)
        gradient -= self.weight * rows.weigh(amounts)
        # `gradient` takes half the squared length of a feature's loadings for a part of theta; here it is none.
        by_coupling = sums.coupling + np.diag(sums.precision + 0.5 * driving)
        return Pulled(by_coupling, driving, rows.combine(gradient))

    def terms(self, params: Params, stats: Stats) -> dict[str, float]:
        """``r F_T / T`` term by term, docs/math.md eq. (120): the features and sticks are not tempered."""
        assert isinstance(params, SlabParams)
        r, priced = self.weight, params.price * float(stats.counts.sum())
        features = cross_entropy_features(params.mean_field.expected, stats.counts, stats.n_rows)
        return super().terms(params, stats) | {
            "kl_features": r * (features + priced - stats.entropy),
            "kl_sticks": r * kl_sticks(params.sticks, self.alpha),
        }

    def normalise(self, objective: float, params: Params, n_rows: float) -> float:
        """Return the objective less what empty features say: it can be compared between numbers of features."""
        assert isinstance(params, SlabParams)
        spread = np.log1p(params.mean_field.precision * params.loadings.shape[1] * params.variances)
        empty = params.mean_field.expected.log_rest + np.logaddexp(0.0, params.log_odds - 0.5 * spread)
        return objective + self.weight * n_rows * float(empty.sum())

    def gradient(self, params: Params, stats: Stats, pulled: Pulled) -> Floats:
        """Gradient of J with respect to the loadings, shape (K, D)."""
        return super().gradient(params, stats, pulled)[:-1]

    def position(self, params: Params) -> Floats:
        """Return the loadings."""
        return params.loadings

    def move(self, params: Params, position: Reals) -> Params:
        """Return the parameters with other loadings."""
        return replace(params, loadings=position.astype(np.float64, copy=False))

    def precondition(self, params: Params, stats: Stats) -> Callable[[Reals], Reals]:
        """Take the amounts' second moment plus a ridge: the curvature of the generative part at fixed features."""
        factor = cho_factor(stats.second_moment / stats.n_rows + np.eye(len(stats.counts)))
        return partial(cho_solve, factor)

    def update_blocks(self, params: Params, stats: Stats) -> Params:
        """Offset, sticks and variances in closed form at the current features."""
        return super().update_blocks(update_offset(params, stats), stats)
