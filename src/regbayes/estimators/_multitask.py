"""From a multi-task estimator's parameters to the MT-iLSVM model's settings, and back to fitted attributes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._param_validation import StrOptions

from regbayes._types import Floats, Integers
from regbayes.engine.executor import Threads, row_blocks
from regbayes.estimators._common import (
    LATENT_CONSTRAINTS,
    NOT_NEGATIVE,
    POSITIVE,
    generator,
    in_use,
    n_threads,
    one_blas_thread,
    set_fitted,
    warn_if_truncated,
)
from regbayes.estimators._reporting import FitReporter, warn_of_status
from regbayes.estimators._tasks import Layout, Targets, check_no_empty_task
from regbayes.margins.targets import Observations, Outputs
from regbayes.models.mt_ilsvm.fit import CUT_SHORT, fit, stages_of
from regbayes.models.mt_ilsvm.model import Settings, State, input_factor
from regbayes.priors.indian_buffet import stick_weights

RAGGED_SHARING = 1.0
"""Default of rho for ragged tasks, one question asked of many groups: half of a weight's prior variance is common."""

MULTITASK_CONSTRAINTS: dict[str, list[Any]] = {
    **{name: LATENT_CONSTRAINTS[name] for name in LATENT_CONSTRAINTS if name != "n_sweeps"},
    "C": [POSITIVE],
    "fit_intercept": ["boolean"],
    "include_inputs": ["boolean"],
    "task_sharing": [NOT_NEGATIVE, StrOptions({"auto"})],
    "unseen_tasks": [StrOptions({"error", "shared"})],
    "temperature": [NOT_NEGATIVE, StrOptions({"auto"})],
    "generative_weight": [POSITIVE, StrOptions({"auto"})],  # a natural gradient is divided by it
    "margins": [StrOptions({"consistent", "posterior", "decoupled"})],
    "scale_inputs": ["boolean"],
}


def standardized(
    X: Floats, scaled: bool, order: Integers | None = None, sample_weight: Floats | None = None
) -> tuple[Floats, Floats, Floats]:
    """Return X with centred and, if asked, scaled columns, and the means and scales; large values do not overflow.

    A constant column has scale 1. One that is constant up to rounding has its size as scale, so that it stays small.
    With ``order`` the rows come back in that order. No other copy of X is made.
    """
    highest, lowest = X.max(axis=0), X.min(axis=0)
    peak = np.maximum(highest, -lowest)
    unit = np.where(peak > 0, peak, 1.0)
    fixed = highest / unit == lowest / unit
    small_mean = _mean_of_rows(lambda rows: rows / unit, X, sample_weight)
    spread = np.sqrt(_mean_of_rows(lambda rows: (rows / unit - small_mean) ** 2, X, sample_weight))
    mean = np.where(fixed, X[0], small_mean * unit)
    scale = np.where(spread > 10 * np.finfo(np.float64).eps, spread, 1.0) * unit
    scale = np.where(fixed, 1.0, scale) if scaled else np.ones_like(mean)
    centred = np.empty(X.shape)
    if order is None:
        np.subtract(X, mean, out=centred)
    else:
        np.take(X, order, axis=0, out=centred, mode="clip")  # the default mode would make a copy
        centred -= mean
    centred /= scale
    with np.errstate(over="ignore"):
        if not np.isfinite(np.vdot(centred, centred)):
            raise ValueError("X has values too large to square; set scale_inputs=True, or rescale X")
    return centred, mean, scale


def _mean_of_rows(function: Callable[[Floats], Floats], X: Floats, sample_weight: Floats | None) -> Floats:
    """Return the mean over rows of a function of them, block by block."""
    if sample_weight is None:
        return np.sum([function(X[rows]).sum(axis=0) for rows in row_blocks(len(X))], axis=0) / len(X)
    sums = [sample_weight[rows] @ function(X[rows]) for rows in row_blocks(len(X))]
    return np.sum(sums, axis=0) / sample_weight.sum()


def choose_sharing(task_sharing: Any, layout: Layout) -> float:
    """Return rho."""
    if task_sharing == "auto":
        return RAGGED_SHARING if layout == "ragged" else 0.0
    return float(task_sharing)


def check_tasks(targets: Targets, sharing: float, unseen_tasks: str) -> None:
    """Check that there is something that serves every task."""
    if unseen_tasks == "error":
        check_no_empty_task(targets)
    elif sharing == 0:
        raise ValueError(
            "unseen_tasks='shared' needs weights that tasks share: set task_sharing to a number above 0, 1 for instance"
        )


def make_settings(parameters: Mapping[str, Any], sharing: float, epsilon: float = 0.0) -> Settings:
    """Turn an estimator's parameters into the model's settings."""
    given = dict(parameters)
    noise, prior, max_iter = given["noise_variance"], given["prior_variance"], int(given["max_iter"])
    # A decoupled fit is the factor analysis that starts a joint one; there max_iter is about it.
    steps = {"start_iter": max_iter} if given["margins"] == "decoupled" else {}
    return Settings(
        n_components=int(given["n_components"]),
        alpha=float(given["alpha"]),
        loss=given["loss"],
        C=float(given["C"]),
        epsilon=epsilon,
        task_sharing=sharing,
        temperature=given["temperature"],
        generative_weight=given["generative_weight"],
        margins=given["margins"],
        fit_intercept=bool(given["fit_intercept"]),
        include_inputs=bool(given["include_inputs"]),
        noise_variance=None if isinstance(noise, str) else float(noise),
        weight_variance=None if isinstance(prior, str) else float(prior),
        variances="always" if "estimate" in (noise, prior) else "start",
        max_iter=max_iter,
        tol=float(given["tol"]),
        **steps,
    )


def resume(previous: State | None, settings: Settings, n_columns: int) -> State | None:
    """Return the state of an earlier fit to go on from, None if it does not fit.

    A decoupled fit always starts anew: its q(Z) is found without the targets, so there is nothing to go on from.
    """
    if previous is None or settings.margins == "decoupled":
        return None
    latent = previous.latent
    if latent.logits.shape != (n_columns, settings.n_components):
        return None
    if settings.noise_variance is not None:
        latent = replace(latent, noise_variance=settings.noise_variance)
    if settings.weight_variance is not None:
        latent = replace(latent, weight_variance=settings.weight_variance)
    return replace(previous, latent=latent)


def fit_data(X: Any, y: Any, task: Any, sample_weight: Any) -> dict[str, Any]:
    """Return what callbacks may ask for."""
    metadata = {"task": task, "sample_weight": sample_weight}
    metadata = {name: value for name, value in metadata.items() if value is not None}
    return {"X": X, "y": y, "metadata": metadata} if metadata else {"X": X, "y": y}


def run_fit(
    estimator: Any,
    X: Floats,
    targets: tuple[Observations, Outputs],
    settings: Settings,
    *,
    sample_weight: Floats | None,
    data: Mapping[str, Any],
    attributes: Callable[[State], dict[str, Any]],
) -> None:
    """Fit the model to standardised rows and give the estimator its fitted attributes.

    The estimator is what callbacks, progress bars and warnings are about; all that the model is told is in the rest.
    """
    if not X.any():
        raise ValueError("every column of X is constant, so there is nothing that features could be about")
    previous = getattr(estimator, "_state", None) if estimator.warm_start else None
    start: State | Floats | None = resume(previous, settings, X.shape[1])
    if start is None:
        start = generator(estimator.random_state).standard_normal((X.shape[1], settings.n_components))
    executor = Threads(n_threads(estimator.n_jobs))
    with FitReporter(estimator, stages_of(settings), data, attributes, estimator.verbose) as reporter:
        with one_blas_thread():
            result = fit(
                X, *targets, settings, start, sample_weight=sample_weight, executor=executor, callbacks=[reporter]
            )
        set_fitted(estimator, attributes(result.state))
        estimator.trace_, estimator.n_iter_ = result.trace, result.n_iter
    warn_of_status(estimator, result)
    if result.status in CUT_SHORT:  # the number of features is not to be judged by half a fit
        return
    if estimator.temperature_ == 0.0:  # tempered features are never switched off, whatever their number
        warn_if_truncated(estimator, estimator.n_components_)
    if estimator.n_components_ == 0 and X.shape[1] > 1 and not settings.include_inputs:
        warnings.warn(
            "no feature tells the inputs apart: every one has all of them or none. Lower temperature, and look whether "
            "X varies at all.",
            ConvergenceWarning,
            stacklevel=3,
        )


def latent_attributes(state: State) -> dict[str, Any]:
    """Fitted attributes that describe the features and the tasks' weights for them, in the model's units."""
    latent, weights = state.latent, state.tasks.weights
    n_columns, n_features = latent.logits.shape
    attributes = {
        "components_": latent.psi.T,
        "n_components_": int(in_use(latent.psi).sum()),
        "stick_weights_": stick_weights(latent.sticks),
        "noise_variance_": latent.noise_variance,
        "prior_variance_": latent.weight_variance,
        "temperature_": state.scales.tau,
        "generative_weight_": state.scales.generative_weight,
        "coef_": weights[:, :n_features],
        "intercept_": weights[:, -1] if state.fit_intercept else np.zeros(len(weights)),
        "_state": state,
    }
    if state.include_inputs:
        inputs = slice(n_features, n_features + n_columns)
        attributes["coef_inputs_"] = weights[:, inputs] * input_factor(n_columns, state.input_scale)
    return attributes


def check_task_given(name: str, layout: Layout, task: Any) -> None:
    """Check that tasks are named when predicting if they were when fitting, and only then."""
    if layout == "ragged" and task is None:
        raise ValueError(f"{name} was fitted with task=, the task of each row; prediction needs task= too")
    if layout != "ragged" and task is not None:
        raise ValueError(f"{name} was fitted without task=, so it predicts every task of every row; leave task out")
