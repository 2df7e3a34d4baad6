"""What MT-iLSVM's classifier and regressor share: from parameters to the model's settings, back to attributes."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._param_validation import StrOptions

from regbayes._types import Floats, Integers
from regbayes.engine import make_executor
from regbayes.estimators._common import (
    LATENT_CONSTRAINTS,
    NOT_NEGATIVE,
    POSITIVE,
    OverFeatures,
    generator,
    in_use,
    n_threads,
    warn_if_truncated,
)
from regbayes.estimators._task_bases import TaskModel, TaskProblem
from regbayes.estimators._tasks import SHARE_EMPTY, SHARE_NEW, Layout, Targets, check_no_empty_task
from regbayes.models.mt_ilsvm.fit import CUT_SHORT, fit, stages_of
from regbayes.models.mt_ilsvm.model import Settings, State, decision, features, input_factor
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


class LatentTasks(ClassNamePrefixFeaturesOutMixin, TransformerMixin, TaskModel):
    """What classifiers and regressors have in common: features of rows that all tasks see, learned with their weights.

    At home in MT-iLSVM's estimators, whose parameters it reads.
    """

    coef_ = OverFeatures()
    _sorts_rows = True
    _remedy = SHARE_NEW

    @property
    def _serves_new_tasks(self) -> bool:
        return bool(self.unseen_tasks == "shared")

    def _sharing(self, layout: Layout) -> float:
        """Return rho."""
        if self.task_sharing == "auto":
            return RAGGED_SHARING if layout == "ragged" else 0.0
        return float(self.task_sharing)

    def _check_tasks(self, targets: Targets) -> None:
        if not self._serves_new_tasks:
            check_no_empty_task(targets, SHARE_EMPTY)
        elif self._sharing(targets.layout) == 0:
            raise ValueError(
                "unseen_tasks='shared' needs weights that tasks share: set task_sharing to a number above 0, 1 for "
                "instance"
            )

    def _learn(self, problem: TaskProblem) -> None:
        X = problem.X
        if not X.any():
            raise ValueError("every column of X is constant, so there is nothing that features could be about")
        settings = make_settings(self.get_params(deep=False), self._sharing(self._layout))
        previous = getattr(self, "_state", None) if self.warm_start else None
        start: State | Floats | None = resume(previous, settings, X.shape[1])
        if start is None:
            start = generator(self.random_state).standard_normal((X.shape[1], settings.n_components))
        model = partial(
            fit,
            X,
            problem.observations,
            problem.outputs,
            settings,
            start,
            sample_weight=problem.row_weights,
            executor=make_executor(n_threads(self.n_jobs)),
        )
        result = self._run(
            model,
            self._attributes,
            stages_of(settings),
            problem.data,
            self.verbose,
        )
        if result.status in CUT_SHORT:  # the number of features is not to be judged by half a fit
            return
        if self.temperature_ == 0.0:  # tempered features are never switched off, whatever their number
            warn_if_truncated(self.n_components_, self.n_components)
        if self.n_components_ == 0 and X.shape[1] > 1 and not settings.include_inputs:
            warnings.warn(
                "no feature tells the inputs apart: every one has all of them or none. Lower temperature, and look "
                "whether X varies at all.",
                ConvergenceWarning,
                stacklevel=3,
            )

    def _attributes(self, state: State) -> dict[str, Any]:
        """Return the fitted attributes, in the model's units."""
        return latent_attributes(state)

    def _scores(self, X: Floats) -> Floats:
        return decision(X, self._state)

    def _own_scores(self, X: Floats, outputs: Integers) -> Floats:
        return decision(X, self._state, outputs)

    def transform(self, X: ArrayLike) -> Floats:
        """Return the latent features of rows, shape (n_samples, n_components).

        A feature is the sum of the standardised inputs that have it, weighted by their probabilities, in a unit that
        does not depend on their number.
        """
        return features(self._standard_rows(X), self._state)

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)


def make_settings(parameters: Mapping[str, Any], sharing: float) -> Settings:
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
        epsilon=float(given.get("epsilon", 0.0)),
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
