"""``resample``: sample a model under constraints for which reweighting is unreliable."""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
from tqdm import tqdm

from regbayes.engine import Callback, Progress, Status
from regbayes.regularization.composite import Stack
from regbayes.regularization.constraints import inside
from regbayes.regularization.draws import is_labelled
from regbayes.regularization.posteriors import Samples
from regbayes.regularization.regularize import (
    InfeasibleError,
    NotConvergedWarning,
    UnreliableWeightsWarning,
    as_constraints,
    gather,
    regularize,
)
from regbayes.regularization.regularizers import Regularizer
from regbayes.regularization.result import RegularizedPosterior
from regbayes.resampling.policy import TemperingPolicy
from regbayes.resampling.result import build_result
from regbayes.resampling.sampler import Run, Sampler
from regbayes.resampling.tempering import Problem, SamplingError, Tempering, describe_bad_start, temper


def resample(  # noqa: C901, PLR0913 - options, all by name, and how each end is reported
    model: Sampler,
    constraints: Any,
    regularizer: Regularizer | None = None,
    *,
    draws: Any = None,
    n_draws: int = 750,
    max_iter: int = 40,
    accuracy: float | None = None,
    seed: int = 0,
    progress: bool | Callback = False,
) -> RegularizedPosterior:
    """Sample the closest posterior of a model that satisfies constraints in expectation.

    Solves the same problem as `regularize`, but for a model instead of draws. The model is sampled repeatedly with an
    additional factor ``exp<multipliers, psi>``, whose multipliers are updated until the draws satisfy the
    constraints.

    Parameters
    ----------
    model : NumPyroModel, PyMCModel, BlackJAXModel, CallableSampler or another `Sampler`
        The model, from `regbayes.ppl`.
    constraints : constraint, list of constraints, or constraint functions psi
        As for `regularize`.
    regularizer : Regularizer, default=None
        Function g of the expectations, if ``constraints`` are constraint functions.
    draws : Samples, or ArviZ or xarray object, default=None
        Draws of the model's posterior that replace the first run.
    n_draws : int, default=750
        Number of draws per chain in the final run.
    max_iter : int, default=40
        Maximum number of runs.
    accuracy : float, default=None
        Maximum Monte Carlo error of the KL divergence in nats. The final run is repeated with more draws until the
        error is below it. By default ``n_draws`` determines the error, about ``m / (2 effective draws)`` for m
        expectations.
    seed : int, default=0
    progress : bool or callable, default=False
        Whether to print a line for each run. A callable is called with `engine.Progress` after each run, and may
        return True to stop.

    Returns
    -------
    ResampledPosterior
        Its ``status`` is ``optimal``, ``not_attained``, ``unreliable``, ``iteration_limit``, ``stopped`` or
        ``interrupted``; ``diagnostics`` has the reasons. If a feature has no gradient, the model's own draws are
        reweighted and the result is a `RegularizedPosterior`.

    Raises
    ------
    InfeasibleError
        If the runs show that the constraints cannot be met.
    SamplingError
        If the model's chains do not converge without constraints, the normalizing constant of the regularized posterior
        does not exist, features have no gradient, or the sampler failed.

    Warns
    -----
    NotConvergedWarning
        If the runs ended before the constraints were met.
    UnreliableWeightsWarning
        If diagnostics of the final run failed.

    See Also
    --------
    regularize : For draws, Gaussians and enumerated posteriors.

    Examples
    --------
    >>> from regbayes import E, resample
    >>> from regbayes.ppl import CallableSampler
    >>> def draw(tilt, n_draws, rng, start):  # N(0, 1) with the factor exp(multiplier * x)
    ...     return {"x": rng.normal(sum(tilt.multipliers), size=n_draws)}
    >>> resample(CallableSampler(draw), E("x") == 2, n_draws=200).after.round(3)
    array([2.])
    """
    integers: Any = (("n_draws", n_draws, 20), ("max_iter", max_iter, 1), ("seed", seed, 0))
    for name, value, least in integers:
        if not isinstance(value, int | np.integer) or value < least:
            raise ValueError(f"`{name}` must be an integer of at least {least}; got {value!r}.")
    if accuracy is not None and not accuracy > 0:
        raise ValueError(f"`accuracy` must be a positive number of nats; got {accuracy!r}.")
    if not isinstance(model, Sampler):
        raise TypeError(
            "`model` must be a NumPyroModel, PyMCModel, BlackJAXModel, CallableSampler or another Sampler of "
            f"regbayes.ppl; got {type(model).__name__}. For draws call regularize(draws, constraints)."
        )
    given = None if draws is None else _as_run(model, draws)
    if regularizer is None:
        functions = tuple(c.features for c in as_constraints(constraints))
    else:
        functions = (inside(constraints),)
    if any(isinstance(function, np.ndarray) for function in functions):
        raise TypeError("Constraints on a model must be functions of its variables or their names; got an array.")
    try:
        evaluated, g, labels = gather(Samples(dict(model.example()), chains=False), constraints, regularizer)
    except Exception as error:
        for name in model.observed:
            if f"'{name}" in str(error):
                error.add_note(f"{name} is observed: constraints do not affect data.")
        raise
    problem = Problem(model, functions, Stack.of(g, len(labels)), labels, n_draws, accuracy, seed)
    callbacks = [progress] if callable(progress) else [_print_run] if progress else []
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        smooth = model.find_smooth(problem.tilt(np.zeros(len(labels))))
        if smooth is not None and not np.all(smooth):
            rough = ", ".join(label for label, is_smooth in zip(labels, smooth, strict=True) if not is_smooth)
            return _reweight(problem, given, constraints, regularizer, rough)
        state = temper(problem, max_iter, TemperingPolicy(), given, callbacks)
        result = build_result(problem, state, g, evaluated.names)
    message = " ".join(result.reasons)
    if result.status is Status.INFEASIBLE:
        raise InfeasibleError(message, result)
    if result.status is Status.IMPROPER or (result.status is Status.UNRELIABLE and state.plan.is_first):
        raise SamplingError(message, result.runs, result)
    if result.status is Status.UNRELIABLE:
        warnings.warn(message, UnreliableWeightsWarning, stacklevel=2)
    elif result.status is not Status.OPTIMAL:
        warnings.warn(message, NotConvergedWarning, stacklevel=2)
    return result


def _as_run(model: Sampler, draws: Any) -> Run:
    """Convert draws of the posterior to the first run of the model."""
    samples = Samples(draws) if not isinstance(draws, Samples) and is_labelled(draws) else draws
    if not isinstance(samples, Samples):
        raise TypeError(f"draws must be Samples(...) or an ArviZ or xarray object, got {type(draws).__name__}")
    if np.ptp(samples.log_weights) > 0:
        raise ValueError("draws must be draws of the posterior itself, and these have unequal weights")
    by_chain = {name: samples.by_chain(values) for name, values in samples.draws.variables.items()}
    flat = model.find_positions(samples.draws.variables)
    return Run(by_chain, None if flat is None else samples.by_chain(flat))


def _reweight(
    problem: Problem, given: Run | None, constraints: Any, regularizer: Regularizer | None, rough: str
) -> RegularizedPosterior:
    """Reweight draws of the posterior for functions without a gradient."""
    policy, plain = TemperingPolicy(), np.zeros(problem.stack.n_features)
    found = given or problem.sampler.draw(
        problem.tilt(plain), problem.n_draws, seed=problem.seed, start=None, final=False
    )
    first = problem.measure(plain, found)
    if first.r_hat > policy.max_start_r_hat:
        raise SamplingError(describe_bad_start(first), (first,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = regularize(Samples(found.variables, chains=True), constraints, regularizer, raise_infeasible=False)
        except ValueError as error:
            raise SamplingError(f"{error} No draw of the posterior is in it.", (first,)) from error
    is_solved = result.status in (Status.OPTIMAL, Status.BOUNDARY)
    if is_solved and not result.diagnostics and result.effective_sample_size >= policy.min_ess:
        return result
    message = (
        f"The function in {rough} has no gradient that a sampler can follow, and reweighting the posterior's own "
        "draws is not reliable. Constrain a smooth approximation, such as sigmoid((f - c) / width) for the indicator "
        f"f > c. {' '.join(result.diagnostics)}"
    )
    status = Status.UNRELIABLE if is_solved else Status.NOT_ATTAINED
    raise SamplingError(message.rstrip(), (first,), replace(result, status=status))


def _print_run(progress: Progress[Tempering]) -> None:
    last = progress.state.runs[-1]
    kind = "final run" if last.is_final else "run"
    left = "" if np.isnan(last.remaining_kl) else f", remaining KL {last.remaining_kl:.3g} nats"
    tqdm.write(f"{kind} {progress.iteration}: {last.n_chains} x {last.n_draws} draws{left}", file=sys.stderr)
