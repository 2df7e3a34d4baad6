"""Spike-and-slab features: zero, or a value with a half-normal or normal prior.

Samples are ``x_n = b + W' (z_n o v_n) + noise``, with values v in addition to binary features z (the paper, section 4).
The head uses the expected feature values. Inference, its gradient and the free energy are docs/math.md eq. (120)-(126).
Loadings, sticks, variances, the descent and its terms are those of binary features (`model.BinaryFeatures`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import Any, cast

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from regbayes._registry import persistable
from regbayes._types import Floats, Reals
from regbayes.joint.model import Inferred
from regbayes.kernels.arrays import gather, multiply_rows, namespace_of, sum_of, sum_products
from regbayes.kernels.slab import Swept, reverse_slab, sweep_slab
from regbayes.models.ilsvm.model import BinaryFeatures, Params, Pulled, Rows, Settings, Stats, update_offset
from regbayes.models.indian_buffet import cross_entropy_features, kl_sticks


@persistable(name="regbayes.ilsvm.SlabParams")
@dataclass(frozen=True)
class SlabParams(Params):
    """Parameters for inferring the feature values of a sample."""

    price: float = field(kw_only=True)  # kappa, the penalty on an active feature
    signed: bool = field(kw_only=True, default=False)  # whether values have a normal instead of a half-normal prior

    @property
    def slab(self) -> str:
        """Prior of the values."""
        return "normal" if self.signed else "half-normal"

    @cached_property
    def log_odds(self) -> Floats:
        """Prior log-odds of the features minus their penalty, ``a``, shape (K,)."""
        return self.mean_field.expected.log_odds - self.price

    @cached_property
    def amount_precisions(self) -> Floats:
        """Precision of each feature value given that its feature is on, ``p``, docs/math.md eq. (121), shape (K,)."""
        field = self.mean_field
        return 1.0 + np.diag(field.coupling) + field.precision * self.loadings.shape[1] * self.variances

    def sweep(self, rows: Rows) -> tuple[Swept, Any]:
        """Return the result of the sweeps, and the projections of the samples that they start from."""
        directions = self.mean_field.directions
        projections = rows.project(directions, -directions @ self.offset)
        given = self.mean_field.coupling, self.amount_precisions, self.log_odds, self.n_sweeps
        return sweep_slab(projections, *given, self.signed), projections

    def infer(self, rows: Rows) -> Floats:
        """Return the expected feature values of samples, shape (n, K)."""
        return self.sweep(rows)[0].amounts

    def infer_probabilities(self, rows: Rows) -> Floats:
        """Return the probabilities that the features of samples are on, shape (n, K)."""
        return self.sweep(rows)[0].psi

    def bound(self, rows: Rows) -> Floats:
        """Return a lower bound on the log-density of each sample at fixed global parameters, shape (n,)."""
        swept, _ = self.sweep(rows)
        psi, amounts, place = swept.psi, swept.amounts, rows.place
        xp, expected, residuals = namespace_of(psi), self.mean_field.expected, rows.residuals(amounts, self)
        lengths = np.diag(self.mean_field.coupling) / self.mean_field.precision
        residual = xp.sum(residuals * residuals, axis=1) + (swept.squares - amounts * amounts) @ place(lengths)
        residual += rows.n_inputs * (swept.squares @ place(self.variances))
        prior = psi @ place(expected.log_use) + (1.0 - psi) @ place(expected.log_rest)
        divergence = xp.astype(swept.divergence, psi.dtype, copy=False)
        return prior - divergence - (0.5 / self.noise_variance) * residual - self.log_normalizer


def convert_params(params: Params, settings: Settings) -> Params:
    """Convert parameters to the feature type in the settings."""
    values = {f.name: getattr(params, f.name) for f in fields(Params)}
    if settings.slab is None:
        return Params(**values)
    return SlabParams(**values, price=settings.price, signed=settings.slab == "normal")


@dataclass(frozen=True)
class SlabFeatures(BinaryFeatures):
    """Spike-and-slab model; the position consists of the loadings.

    The offset is updated in closed form. Descent would let labels use it to undo the penalty on features.
    """

    def infer(self, rows: Rows, params: Params) -> Inferred[Stats]:
        """Infer the feature values of samples without their labels, and compute the sufficient statistics."""
        assert isinstance(params, SlabParams)
        swept, projections = params.sweep(rows)
        weighed, totals = rows.weigh(swept.amounts), rows.totals
        columns = rows.weigh(swept.psi), weighed, rows.weigh(swept.squares), rows.weigh(swept.divergence[:, None])
        on, amounts, squares, divergence, above, second = gather(
            *(sum_of(each, axis=0) for each in columns),
            sum_products(weighed.T, projections.T),
            multiply_rows(weighed.T, swept.amounts.T),
        )
        np.fill_diagonal(second, squares)
        explained = float(above) / params.mean_field.precision  # for samples minus the offset
        stats = Stats(
            n_rows=totals.n_rows,
            squared_norm=float(np.sum(totals.squares / params.mean_field.ratios)),
            total=totals.rows,
            counts=on,
            first_moment=amounts,
            second_moment=second,
            explained=explained + float(amounts @ (params.loadings @ (params.offset / params.mean_field.ratios))),
            entropy=-float(divergence[0]),
        )
        return Inferred(swept.amounts, stats, projections)

    def pull_back(self, rows: Rows, params: Params, inferred: Inferred[Stats], gradient: Floats | None) -> Pulled:
        """Differentiate through the sweeps and add the gradient of the generative part, eq. (126)."""
        assert isinstance(params, SlabParams)
        amounts, r, coupling = cast("Any", inferred.features), self.weight, params.mean_field.coupling
        given = params.amount_precisions, params.log_odds
        moved = amounts
        if params.n_sweeps > 1:
            earlier = sweep_slab(inferred.cache, coupling, *given, params.n_sweeps - 1, params.signed)
            moved = amounts - earlier.amounts
        # A feature's update used later features from the previous sweep; the free energy is stationary otherwise.
        own = rows.couple(rows.weigh(moved), r * np.tril(coupling, -1))
        own = own if gradient is None else own + gradient
        out = own if rows.is_host else None
        found = reverse_slab(own, inferred.cache, coupling, *given, params.n_sweeps, params.signed, out)
        (driving,) = gather(sum_of(found.projections, axis=0))
        # The shared gradient treats half the squared norm of a feature's loadings as part of theta; undo that here.
        by_coupling = found.coupling + np.diag(found.precision + 0.5 * driving)
        return Pulled(by_coupling, driving, rows.combine(found.projections - r * rows.weigh(amounts)))

    def terms(self, params: Params, stats: Stats) -> dict[str, float]:
        """Return the terms of ``r F_T / T``, docs/math.md eq. (120); features and sticks are not tempered."""
        assert isinstance(params, SlabParams)
        r, priced = self.weight, params.price * float(stats.counts.sum())
        features = cross_entropy_features(params.mean_field.expected, stats.counts, stats.n_rows)
        return super().terms(params, stats) | {
            "kl_features": r * (features + priced - stats.entropy),
            "kl_sticks": r * kl_sticks(params.sticks, self.alpha),
        }

    def normalise(self, objective: float, params: Params, n_rows: float) -> float:
        """Return the objective without the contribution of unused features, comparable across numbers of features."""
        assert isinstance(params, SlabParams)
        spread = np.log1p(params.mean_field.precision * params.loadings.shape[1] * params.variances)
        empty = params.mean_field.expected.log_rest + np.logaddexp(0.0, params.log_odds - 0.5 * spread)
        return objective + self.weight * n_rows * float(empty.sum())

    def gradient(self, params: Params, stats: Stats, pulled: Pulled) -> Floats:
        """Gradient of J with respect to the loadings, shape (K, D)."""
        return super().gradient(params, stats, pulled)[:-1]

    def position(self, params: Params) -> Floats:
        """Return the loadings, in units of the inputs' noise if noise ratios are given."""
        return params.loadings / np.sqrt(params.mean_field.ratios)

    def move(self, params: Params, position: Reals) -> Params:
        """Return the parameters with other loadings."""
        return replace(params, loadings=position.astype(np.float64, copy=False) * np.sqrt(params.mean_field.ratios))

    def precondition(self, params: Params, stats: Stats) -> Callable[[Reals], Reals]:
        """Return a solver for the values' second moment plus a ridge, the curvature of the generative part."""
        factor = cho_factor(stats.second_moment / stats.n_rows + np.eye(len(stats.counts)))
        return partial(cho_solve, factor)

    def update_blocks(self, params: Params, stats: Stats) -> Params:
        """Update offset, sticks and variances in closed form at the current features."""
        return super().update_blocks(update_offset(params, stats), stats)
