"""What `regularize` returns for a model that it sampled: draws of the answer, and the rounds that led there."""

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
from regbayes.regularization.composite import Stack
from regbayes.regularization.draws import Draws
from regbayes.regularization.features import Features
from regbayes.regularization.monte_carlo import Influences, find_errors, find_influences
from regbayes.regularization.posteriors import Samples
from regbayes.regularization.regularizers import Regularizer
from regbayes.regularization.result import RegularizedPosterior, Reliability
from regbayes.resampling.pool import Pool
from regbayes.resampling.tempering import Climb, Ending, Problem, Stage


@persistable
@dataclass(frozen=True, eq=False)
class Round:
    """One run of the sampler."""

    multipliers: Floats  # (m,): the tilt it drew from
    expectation: Floats  # (m,): of the constrained features
    mcse: Floats  # (m,): their Monte Carlo standard errors
    predicted: Floats | None  # (m,): what the rounds before expected of it
    surprise: float  # squared distance from that over what chance does once in a thousand runs; above 2 a contradiction
    to_go: float  # nats to what was asked, by a quadratic estimate from here
    log_partition: float  # A(multipliers), by all rounds together
    r_hat: float  # the largest of the features and of all scalars in the variables
    n_chains: int
    n_draws: int  # of each chain
    effective_size: float  # for the feature that mixed worst
    divergences: int
    n_gradients: int
    final: bool
    left_out: bool = False  # of the pool, and of nothing else: its draws may have run away


@persistable(skip=("sampler", "asked", "runs"))
@dataclass(frozen=True, eq=False)
class ResampledPosterior(RegularizedPosterior):
    """The regularized posterior of a model: its own draws, from the last run, and the rounds that led there.

    ``posterior`` has the draws of the last run under weights that are nearly equal: the run was made at multipliers a
    little beside those that its own draws ask for, and the last step is a reweighting. ``base`` has the draws of the
    first run, the plain posterior. ``kl`` comes from all rounds together.
    """

    rounds: tuple[Round, ...]
    statistics: dict[str, Array] = field(repr=False)  # name -> (n_chains, n_draws): the sampler's own, of the last run
    reasons: tuple[str, ...]  # what the status has to say
    kl_error: float
    answer: int  # which round the draws are from
    refused: bool = field(repr=False)  # whether there is no answer at all
    asked: tuple[Any, ...] = field(default=(), repr=False)  # the features as they were written; not saved
    sampler: Any = field(default=None, repr=False)  # not saved
    runs: tuple[Stage, ...] = field(default=(), repr=False)  # the runs with all their draws; not saved

    @cached_property
    def before_mcse(self) -> Floats:
        """Monte Carlo standard errors of ``before``, shape (m,)."""
        return self.rounds[0].mcse

    @cached_property
    def kl_mcse(self) -> float:
        """Monte Carlo standard error of ``kl``."""
        return self.kl_error

    @cached_property
    def after_mcse(self) -> Floats:
        """Monte Carlo standard errors of ``after``, shape (m,)."""
        return super().after_mcse if self._is_solved else self.rounds[self.answer].mcse

    @property
    def _is_solved(self) -> bool:
        """Whether the draws meet what was asked; otherwise they are those of a round on the way, as it is."""
        return math.isfinite(self.gap)

    @cached_property
    def multipliers_mcse(self) -> Floats:
        """Monte Carlo standard errors of ``multipliers``, shape (m,); 0 for those of a round that is no answer."""
        if not self._is_solved:
            return np.zeros(len(self.labels))
        assert self._influences is not None
        return find_errors(self._influences.of_multipliers())

    @cached_property
    def _influences(self) -> Influences | None:
        samples = self._samples("mcse")
        return find_influences(samples, samples, self.features.values, self.regularizer, self.warm_start)

    @property
    def r_hat(self) -> float:
        """The largest R-hat of the last run, over the features and all scalars in the variables."""
        return self.rounds[self.answer].r_hat

    @property
    def divergences(self) -> int:
        """Draws of the last run at which the integrator failed."""
        return self.rounds[self.answer].divergences

    @property
    def n_gradients(self) -> int:
        """Gradients (or densities) that all rounds took."""
        return sum(r.n_gradients for r in self.rounds)

    @property
    def kl_mc_error(self) -> float:
        """Nats that the answer is off by Monte Carlo error alone, about ``m / (2 ess)``."""
        return len(self.labels) / (2 * self.rounds[self.answer].effective_size)

    @property
    def _verdict(self) -> tuple[Reliability, tuple[str, ...]]:
        if self.status is Status.UNRELIABLE:
            return "unreliable", self.reasons
        return "doubtful" if self.reasons else "reliable", self.reasons

    def to_model(self) -> Any:
        """Return your own model with the factor ``<multipliers, features>`` in it, to sample as you like."""
        if self.sampler is None:
            raise AttributeError("a result from a file has no model; call to_model before saving")
        return self.sampler.add_factor(self.asked, self.multipliers)

    def to_arviz(self, rng: np.random.Generator | int | None = None) -> Any:
        """Return the last run as an ArviZ object: its chains as they were drawn, and the sampler's statistics.

        Nothing is resampled, so chains are chains; ``importance_weights`` has the log-weights of the last step, which
        are nearly equal. ``rng`` is not used.
        """
        xarray = import_extra("xarray", "to_arviz", "ppl")
        draws = self._samples("to_arviz").draws
        grid = (draws.n_chains, draws.n_draws)
        coords: dict[str, Any] = {"chain": np.arange(grid[0]), "draw": np.arange(grid[1])}
        posterior = {
            name: (("chain", "draw", *draws.dims[name]), values.reshape(*grid, *values.shape[1:]))
            for name, values in draws.variables.items()
        }
        own = {name: value for name, value in draws.coords.items() if name not in coords}
        statistics = {name: (("chain", "draw"), values) for name, values in self.statistics.items()}
        weights = self._samples("to_arviz").log_weights.reshape(grid)
        groups = {
            "posterior": xarray.Dataset(posterior, coords | own, attrs={"status": str(self.status), "kl": self.kl}),
            "sample_stats": xarray.Dataset(statistics, coords),
            "importance_weights": xarray.Dataset({"log_weight": (("chain", "draw"), weights)}, coords),
        }
        arviz = import_extra("arviz", "to_arviz", "ppl")
        if int(arviz.__version__.split(".")[0]) < 1:
            return arviz.InferenceData(**groups)
        return xarray.DataTree.from_dict(groups)

    def _headline(self) -> str:
        n = len(self.rounds)
        head = f"{self.status}: {n} round{'s' if n > 1 else ''}, KL {self.kl:.4g} ± {self.kl_error:.1g} nats"
        head += f", effective draws {self.effective_sample_size:.0f} of {self._samples('summary').n_atoms}"
        head += f", R-hat {self.r_hat:.2f}, {self.divergences} divergences"
        k_hat = self.pareto_k
        return head + (f", k-hat {k_hat:.2f}" if math.isfinite(k_hat) else "")

    def rounds_table(self) -> str:
        """Return the rounds as a table: multipliers, expectations and what the chains say, one line for each run."""
        heads = ["round", "draws", "effective", "R-hat", "diverging", "prediction z-score", "remaining KL", "A(phi)"]
        heads += [f"{what}[{i}]" for i in range(len(self.labels)) for what in ("phi", "E")]
        widths = [max(10, len(head)) for head in heads]
        rows = [heads]
        for i, r in enumerate(self.rounds):
            mark = "*" if r.final else "x" if r.left_out else ""
            cells = [f"{i}{mark}", f"{r.n_chains}x{r.n_draws}", f"{r.effective_size:.0f}"]
            cells += [f"{r.r_hat:.3f}", str(r.divergences), f"{r.surprise:.2f}", f"{r.to_go:.3g}"]
            cells += [f"{r.log_partition:.4g}"]
            pairs = zip(r.multipliers, r.expectation, strict=True)
            cells += [f"{number:.4g}" for pair in pairs for number in pair]
            rows.append(cells)
        lines = [" ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows]
        lines.append("* a final run")
        if any(r.left_out for r in self.rounds):
            lines.append("x left out: too far beyond what the rounds before knew")
        return "\n".join(lines)


def build_result(
    problem: Problem, climb: Climb, regularizer: Regularizer, labels: tuple[str, ...], names: tuple[str, ...]
) -> ResampledPosterior:
    """Put the outcome of a climb together."""
    ending, pool = climb.ending, climb.pool
    assert ending is not None
    assert pool is not None
    stage = climb.stages[ending.stage]
    values = stage.rung.flat
    phi, stacked, gap, violation = _collect_solution(problem, stage, ending)
    logs = values @ (phi - stage.rung.phi)
    posterior = Samples(_name_draws(problem, stage)).reweight(logs - logsumexp(logs))
    after = posterior.weights @ values
    log_partition = pool.tilt(phi).log_partition
    kl = max(float(phi @ after) - log_partition, 0.0)
    assert isinstance(posterior, Samples)
    influences = find_influences(posterior, posterior, values, regularizer, stacked)
    soft = find_errors(influences.of_expectations()) if math.isfinite(gap) else np.sqrt(np.diag(stage.rung.error))
    soft = np.where(np.isfinite(soft), soft, 0.0)
    dual = -log_partition - problem.stack.conjugate(stacked)
    return ResampledPosterior(
        posterior=posterior,
        base=Samples(_name_draws(problem, climb.stages[0])),
        regularizer=regularizer,
        labels=labels,
        multipliers=phi,
        before=climb.stages[0].rung.mean,
        after=after,
        slack=regularizer.slack(after),
        primal=dual + gap,
        dual=dual,
        gap=gap,
        violation=violation,
        kl=kl,
        status=ending.status,
        n_iter=len(climb.stages),
        warm_start=stacked,
        features=Features(values, names),
        rounds=_rounds(climb, pool),
        statistics={name: np.asarray(array) for name, array in stage.run.statistics.items()},
        reasons=ending.sentences,
        kl_error=math.hypot(pool.error_of_log_partition(phi), float(np.abs(phi) @ soft)),
        answer=ending.stage % len(climb.stages),
        refused=ending.refused,
        asked=problem.features,
        sampler=problem.sampler,
        runs=climb.stages,
    )


def _collect_solution(problem: Problem, stage: Stage, ending: Ending) -> tuple[Floats, Floats, float, float]:
    """Multipliers, their stacked form, gap and violation: of the solution on the draws, or of the run as it is."""
    found, stack = ending.solution, problem.stack
    if found is not None and found.status is Status.CONVERGED:
        return found.multipliers, found.stacked, found.gap, found.violation
    stacked = _stack_near(stack, stage.rung.phi)
    off = np.minimum(0.0, 0.0 - _outside(stack, stage.rung.mean))
    spread = stage.rung.flat.std(axis=0)
    violation = float(np.max(-off / np.where(spread > 0, spread, 1.0), initial=0.0))
    return stage.rung.phi, stacked, math.inf, violation


def _stack_near(stack: Stack, phi: Floats) -> Floats:
    """A stacked dual point whose sum is minus phi: the first part that sees a feature takes it."""
    stacked = np.zeros(len(stack))
    for feature in np.unique(stack.index):
        stacked[int(np.flatnonzero(stack.index == feature)[0])] = -phi[feature]
    return stacked


def _outside(stack: Stack, mean: Floats) -> Floats:
    """How far each expectation is outside of its own bounds, shape (m,)."""
    low, high = stack.domain
    x = mean[stack.index]
    out: Floats = np.zeros(len(mean))
    np.maximum.at(out, stack.index, np.maximum(np.maximum(low - x, x - high), 0.0))
    return out


def _name_draws(problem: Problem, stage: Stage) -> Draws:
    """A run's draws with the names of axes that the sampler knows."""
    draws = Samples(stage.run.variables, chains=True).draws
    dims, coords = problem.sampler.labels
    named = {name: tuple(dims.get(name, own)) for name, own in draws.dims.items()}
    used = {dim for axes in named.values() for dim in axes}
    kept: dict[str, tuple[tuple[str, ...], Array]] = {
        dim: ((dim,), np.asarray(labels)) for dim, labels in coords.items() if dim in used
    }
    return Draws(draws.variables, draws.n_chains, draws.n_draws, named, kept, "dict")


def _rounds(climb: Climb, pool: Pool) -> tuple[Round, ...]:
    known = iter(pool.log_partitions)
    return tuple(_round(stage, math.nan if stage.left_out else next(known)) for stage in climb.stages)


def _round(stage: Stage, log_partition: float) -> Round:
    return Round(
        multipliers=stage.rung.phi,
        expectation=stage.rung.mean,
        mcse=np.sqrt(np.maximum(np.diag(stage.rung.error), 0.0)),
        predicted=stage.predicted,
        surprise=stage.surprise,
        to_go=stage.to_go,
        log_partition=float(log_partition),
        r_hat=stage.r_hat,
        n_chains=stage.run.n_chains,
        n_draws=stage.run.n_draws,
        effective_size=stage.rung.effective_size,
        divergences=stage.divergences,
        n_gradients=stage.run.n_gradients,
        final=stage.final,
        left_out=stage.left_out,
    )
