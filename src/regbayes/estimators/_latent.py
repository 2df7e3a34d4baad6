"""From an estimator's parameters to the iLSVM model's settings, and back from its state to fitted attributes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from regbayes._types import Floats
from regbayes.engine import make_executor
from regbayes.estimators._common import in_use, n_threads, one_blas_thread
from regbayes.models.ilsvm.model import Params, Rows, Settings, State, infer_features
from regbayes.models.ilsvm.warmup import PRIOR_RATIO, default_noise_variance
from regbayes.priors.indian_buffet import stick_weights

DEFAULT_TEMPERATURE = 0.2  # per input: soft features, the predictive end of the dial
UNSUPERVISED_TEMPERATURE = 0.01  # per input: at a higher one, features that no label holds together fade away
DEFAULT_GENERATIVE_SHARE = 0.03  # of C, for each margin that a row has
LABELED_POWER = 0.75  # of the share of rows with a label: what "auto" lets rows without one add to the generative part
INPUT_ENERGY = 2.0  # mean squared norm of the inputs beside latent features


@dataclass(frozen=True)
class Supervision:
    """What a classifier adds to the settings, in numbers."""

    C: float
    squared: bool
    one_vs_rest: bool
    generative_weight: float
    temperature: float  # per input, where nothing else is said


UNSUPERVISED = Supervision(
    0.0, squared=True, one_vs_rest=False, generative_weight=1.0, temperature=UNSUPERVISED_TEMPERATURE
)


def supervision_of(estimator: Any, n_classes: int, labeled_share: float) -> Supervision:
    """Turn a classifier's parameters, "auto" among them, into numbers."""
    temperature = DEFAULT_TEMPERATURE if estimator.temperature == "auto" else float(estimator.temperature)
    # On/off features vary more than soft ones, and so do the scores: the same margins cost less weight.
    C = min(1.0, float(np.sqrt(temperature / DEFAULT_TEMPERATURE))) if estimator.C == "auto" else float(estimator.C)
    one_vs_rest = estimator.multi_class == "ovr"
    if estimator.multi_class == "auto":
        one_vs_rest = bool(estimator.include_inputs) and estimator.cost is None and n_classes > 2
    weight = estimator.generative_weight
    if weight == "auto":
        n_margins = n_classes if one_vs_rest else 1
        weight = DEFAULT_GENERATIVE_SHARE * C * n_margins * labeled_share**LABELED_POWER
    return Supervision(C, estimator.loss == "squared_hinge", one_vs_rest, float(weight), temperature)


def settings_of(estimator: Any, X: Rows, supervision: Supervision = UNSUPERVISED) -> Settings:
    """Turn the parameters that all latent-feature models have, "auto" among them, into numbers."""
    D = X.n_inputs
    mean_square = X.mean_square
    temperature = supervision.temperature if estimator.temperature == "auto" else float(estimator.temperature)
    noise, prior = estimator.noise_variance, estimator.prior_variance
    noise_variance = default_noise_variance(X) if isinstance(noise, str) else float(noise)
    prior_variance = PRIOR_RATIO * noise_variance if isinstance(prior, str) else float(prior)
    input_scale = np.sqrt(INPUT_ENERGY / mean_square) if mean_square > 0 else 1.0
    return Settings(
        n_components=int(estimator.n_components),
        alpha=float(estimator.alpha),
        C=supervision.C,
        squared=supervision.squared,
        one_vs_rest=supervision.one_vs_rest,
        temperature=temperature * D,
        generative_weight=supervision.generative_weight,
        noise_variance=noise_variance,
        prior_variance=prior_variance,
        estimate_noise=noise == "estimate",
        estimate_prior=prior == "estimate",
        fit_intercept=bool(getattr(estimator, "fit_intercept", False)),
        input_scale=float(input_scale) if getattr(estimator, "include_inputs", False) else 0.0,
        n_sweeps=int(estimator.n_sweeps),
        max_iter=int(estimator.max_iter),
        tol=float(estimator.tol),
        n_threads=n_threads(estimator.n_jobs),
    )


def centre_rows(X: Floats, weights: Floats | None = None) -> Rows:
    """Return rows less their mean; rows whose squares leave the floating-point numbers are refused."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        rows = Rows.centre(X, weights=weights)
        mean_square = rows.mean_square
    if not np.isfinite(mean_square) or (mean_square < np.finfo(np.float64).tiny and np.any(rows.mean != X)):
        raise ValueError(f"X is too {'small' if mean_square < 1 else 'large'} to square it: give it in other units")
    return rows


def drop_weightless(X: Floats, y: Any, weights: Floats | None) -> tuple[Floats, Any, Floats | None]:
    """Return the rows that count, their labels if there are any, and how often they count."""
    if weights is None or np.all(weights > 0):
        return X, y, weights
    kept = weights > 0
    return X[kept], None if y is None else y[kept], weights[kept]


def earlier_fit(estimator: Any, settings: Settings, n_inputs: int) -> State | None:
    """Return the fit that a warm start goes on from: the last one, if it is wanted and of the same size."""
    previous: State | None = getattr(estimator, "_state", None) if estimator.warm_start else None
    if previous is None or previous.params.loadings.shape != (settings.n_components, n_inputs):
        return None
    return previous


def infer_by_blocks(function: Callable[..., Floats], X: Rows, params: Params, n_jobs: int | None) -> Floats:
    """Return ``function(rows, params=params)`` of all rows, as prediction sees them without labels, block by block."""
    with one_blas_thread():
        return np.concatenate(make_executor(n_threads(n_jobs)).map(partial(function, params=params), X.blocks()))


def infer_label_free(X: Rows, params: Params, n_jobs: int | None) -> Floats:
    """Return the features of rows as prediction infers them, shape (n, K)."""
    return infer_by_blocks(infer_features, X, params, n_jobs)


def latent_attributes(state: State) -> dict[str, Any]:
    """Fitted attributes that describe the features."""
    return {
        "components_": state.params.loadings,
        "embedding_": state.embedding,
        "stick_weights_": stick_weights(state.params.sticks),
        "n_components_": int(in_use(state.embedding).sum()),
        "noise_variance_": state.params.noise_variance,
        "prior_variance_": state.params.prior_variance,
        "_state": state,
    }


def classifier_attributes(state: State) -> dict[str, Any]:
    """Fitted attributes that describe the classifier; a binary one is the difference of its two scores."""
    head = state.head
    assert head is not None
    K, weights, latent = len(head.centre), head.weights, head.feature_weights
    intercept = (weights[:, -1] if head.fit_intercept else 0.0) - latent @ head.centre
    attributes = {"coef_": latent, "intercept_": intercept}
    if state.input_scale:
        D = state.params.loadings.shape[1]
        attributes["coef_inputs_"] = state.input_scale * weights[:, K : K + D]
    if len(weights) == 2:
        attributes = {name: values[1:] - values[:1] for name, values in attributes.items()}
    return attributes
