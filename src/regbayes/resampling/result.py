"""Result of `resample`: draws of the regularized posterior and the tempered runs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import logsumexp

from regbayes._extras import import_extra
from regbayes._registry import persistable
from regbayes._types import Array, Floats
from regbayes.engine import Status
from regbayes.regularization.draws import Draws
from regbayes.regularization.features import Features
from regbayes.regularization.monte_carlo import Influences, find_errors, find_influences
from regbayes.regularization.posteriors import Samples
from regbayes.regularization.regularizers import Regularizer
from regbayes.regularization.result import RegularizedPosterior, Reliability
from regbayes.resampling.pool import TemperedRun
from regbayes.resampling.tempering import Problem, Tempering


@persistable(skip=("sampler", "functions"))
@dataclass(frozen=True, eq=False)
class ResampledPosterior(RegularizedPosterior):
    """Regularized posterior of a model: draws of the final run and all tempered runs.

    ``posterior`` contains the draws of the final run, reweighted slightly to satisfy the constraints. ``base`` contains
    the draws of the first run, the posterior without constraints. ``kl`` is estimated from all runs.

    Examples
    --------
    >>> from regbayes import E, resample
    >>> from regbayes.ppl import CallableSampler
    >>> def draw(tilt, n_draws, rng, start):  # N(0, 1) with the factor exp(multiplier * x)
    ...     return {"x": rng.normal(sum(tilt.multipliers), size=n_draws)}
    >>> result = resample(CallableSampler(draw), E("x") == 2, n_draws=200)
    >>> bool(result.r_hat < 1.05), bool(abs(result.kl - 2) < 5 * result.kl_mcse)
    (True, True)
    """

    runs: tuple[TemperedRun, ...]
    statistics: dict[str, Array] = field(repr=False)  # name -> (n_chains, n_draws): of the returned run
    reasons: tuple[str, ...]  # reasons for the status
    kl_error: float = field(repr=False)  # Monte Carlo standard error of ``kl``
    returned: int  # index of the returned run
    functions: tuple[Any, ...] = field(default=(), repr=False)  # constraint functions as given by the user; not saved
    sampler: Any = field(default=None, repr=False)  # not saved

    @cached_property
    def before_mcse(self) -> Floats:
        """Monte Carlo standard errors of ``before``, shape (m,)."""
        return next(run for run in self.runs if not run.is_discarded).mcse

    @cached_property
    def kl_mcse(self) -> float:
        """Monte Carlo standard error of ``kl``."""
        return self.kl_error

    @cached_property
    def after_mcse(self) -> Floats:
        """Monte Carlo standard errors of ``after``, shape (m,)."""
        return super().after_mcse if math.isfinite(self.gap) else self._run.mcse

    @cached_property
    def multipliers_mcse(self) -> Floats:
        """Monte Carlo standard errors of ``multipliers``, (m,); 0 without a solution."""
        if not math.isfinite(self.gap):
            return np.zeros(len(self.labels))
        assert self._influences is not None
        return find_errors(self._influences.of_multipliers())

    @cached_property
    def _influences(self) -> Influences | None:
        samples = self._samples("mcse")
        return find_influences(samples, samples, self.features.values, self.regularizer, self.warm_start)

    @property
    def _run(self) -> TemperedRun:
        return self.runs[self.returned]

    @property
    def r_hat(self) -> float:
        """Largest R-hat of the returned run over constrained functions and variables."""
        return self._run.r_hat

    @property
    def divergences(self) -> int:
        """Number of divergent transitions in the returned run."""
        return self._run.divergences

    @property
    def n_gradients(self) -> int:
        """Number of gradient (or density) evaluations in all runs."""
        return sum(run.n_gradients for run in self.runs)

    @property
    def kl_mc_error(self) -> float:
        """KL divergence to the exact solution in nats, about ``m / (2 effective draws)``."""
        return len(self.labels) / (2 * self.effective_sample_size)

    @property
    def _verdict(self) -> tuple[Reliability, tuple[str, ...]]:
        if self.status is Status.UNRELIABLE:
            return "unreliable", self.reasons
        return "doubtful" if self.reasons else "reliable", self.reasons

    def to_model(self) -> Any:
        """Return the user's model with ``<multipliers, functions>`` added to its log-density."""
        if self.sampler is None:
            raise AttributeError("A loaded result has no model. Call to_model before saving.")
        return self.sampler.add_factor(self.functions, self.multipliers)

    def to_arviz(self, rng: np.random.Generator | int | None = None) -> Any:
        """Return an ArviZ object with the chains and sampler statistics of the returned run.

        Draws are not resampled; ``importance_weights`` has their log-weights. ``rng`` is not used.
        """
        xarray = import_extra("xarray", "to_arviz")
        arviz = import_extra("arviz", "to_arviz")
        samples, dims = self._samples("to_arviz"), ("chain", "draw")
        draws = samples.draws
        coords: dict[str, Any] = {"chain": np.arange(draws.n_chains), "draw": np.arange(draws.n_draws)}
        posterior = {
            name: ((*dims, *draws.dims[name]), samples.by_chain(values)) for name, values in draws.variables.items()
        }
        statistics = {name: (dims, values) for name, values in self.statistics.items()}
        weights = {"log_weight": (dims, samples.by_chain(samples.log_weights))}
        about = {"status": str(self.status), "kl": self.kl}
        groups = {
            "posterior": xarray.Dataset(posterior, dict(draws.coords) | coords, attrs=about),
            "sample_stats": xarray.Dataset(statistics, coords),
            "importance_weights": xarray.Dataset(weights, coords),
        }
        if int(arviz.__version__.split(".")[0]) < 1:
            return arviz.InferenceData(**groups)
        return xarray.DataTree.from_dict(groups)

    def _headline(self) -> str:
        n, k_hat = len(self.runs), self.pareto_k
        return (
            f"draws {self.reliability}, solver {self.status}: {n} run{'s' if n > 1 else ''}, KL {self.kl:.4g} ± "
            f"{self.kl_mcse:.1g} nats, effective draws {self.effective_sample_size:.0f} of "
            f"{self._samples('summary').n_atoms}, R-hat {self.r_hat:.2f}, {self.divergences} divergences"
            + (f", k-hat {k_hat:.2f}" if math.isfinite(k_hat) else "")
        )

    def runs_table(self) -> str:
        """Return a table with multipliers, expectations and diagnostics of each run."""
        heads = ["run", "draws", "effective", "R-hat", "divergences", "discrepancy", "remaining KL"]
        heads += [f"{what}[{i}]" for i in range(len(self.labels)) for what in ("phi", "E")]
        rows = [heads]
        for i, run in enumerate(self.runs):
            cells = [f"{i}{'*' if run.is_final else 'x' if run.is_discarded else ''}", f"{run.n_chains}x{run.n_draws}"]
            cells += [f"{run.effective_size:.0f}", f"{run.r_hat:.3f}", str(run.divergences)]
            cells += [f"{run.discrepancy:.2f}", f"{run.remaining_kl:.3g}"]
            cells += [f"{x:.4g}" for pair in zip(run.multipliers, run.expectation, strict=True) for x in pair]
            rows.append(cells)
        lines = [
            " ".join(f"{cell:>{max(10, len(head))}}" for cell, head in zip(row, heads, strict=True)) for row in rows
        ]
        return "\n".join([*lines, "* final run   x discarded run"])


def build_result(
    problem: Problem, state: Tempering, regularizer: Regularizer, names: tuple[str, ...]
) -> ResampledPosterior:
    """Build the result from the solution or from the run nearest to it."""
    pool, status = state.pool, state.status
    assert status is not None
    tempered, stack, found = state.runs[state.returned], problem.stack, state.solution
    phi, stacked, gap, violation = tempered.multipliers, np.zeros(len(stack)), math.inf, 0.0
    if found is not None and found.status is Status.CONVERGED:
        phi, stacked, gap, violation = found.multipliers, found.stacked, found.gap, found.violation
    else:
        first = np.array([int(np.flatnonzero(stack.index == feature)[0]) for feature in np.unique(stack.index)])
        stacked[first] = -phi[stack.index[first]]  # assigns each multiplier to the first part of its function
        low, high = stack.domain
        x, spread = tempered.expectation[stack.index], tempered.flat.std(axis=0)[stack.index]
        outside = np.maximum(np.maximum(low - x, x - high), 0.0)
        violation = float(np.max(outside / np.where(spread > 0, spread, 1.0), initial=0.0))
    logs = tempered.flat @ (phi - tempered.multipliers)
    posterior = Samples(_name_draws(problem, tempered)).reweight(logs - logsumexp(logs))
    assert isinstance(posterior, Samples)
    after = posterior.weights @ tempered.flat
    log_partition = pool.reweight(phi).log_partition if np.any(phi) else 0.0
    mcse = tempered.mcse
    if math.isfinite(gap):
        mcse = find_errors(find_influences(posterior, posterior, tempered.flat, regularizer, stacked).of_expectations())
    dual = -log_partition - stack.conjugate(stacked)
    return ResampledPosterior(
        posterior=posterior,
        base=Samples(_name_draws(problem, pool.runs[0])),
        regularizer=regularizer,
        labels=problem.labels,
        multipliers=phi,
        before=pool.runs[0].expectation,
        after=after,
        slack=regularizer.slack(after),
        primal=dual + gap,
        dual=dual,
        gap=gap,
        violation=violation,
        kl=max(float(phi @ after) - log_partition, 0.0),
        status=status,
        n_iter=len(state.runs),
        warm_start=stacked,
        features=Features(tempered.flat, names),
        runs=state.runs,
        statistics={name: np.asarray(array) for name, array in tempered.run.statistics.items()},
        reasons=state.reasons,
        kl_error=math.hypot(pool.error_of_log_partition(phi), float(np.abs(phi) @ np.nan_to_num(mcse))),
        returned=state.returned,
        functions=problem.functions,
        sampler=problem.sampler,
    )


def _name_draws(problem: Problem, tempered: TemperedRun) -> Draws:
    """Return a run's draws with the axis names of the sampler."""
    draws = Samples(tempered.run.variables, chains=True).draws
    dims, coords = problem.sampler.labels
    named = {name: tuple(dims.get(name, own)) for name, own in draws.dims.items()}
    used = {dim for axes in named.values() for dim in axes}
    kept: Any = {dim: ((dim,), np.asarray(labels)) for dim, labels in coords.items() if dim in used}
    return Draws(draws.variables, draws.n_chains, draws.n_draws, named, kept, "dict")
