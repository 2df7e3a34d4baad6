"""`ILSVMRegressor`: latent features that predict one or several numbers."""

from __future__ import annotations

from dataclasses import KW_ONLY, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import eigh
from sklearn.base import RegressorMixin

from regbayes._types import Floats, Integers
from regbayes.estimators._bases import public_estimator
from regbayes.estimators._features import (
    PredictiveFeatures,
    labeled_share,
    make_settings,
    make_supervision,
    observe_values,
    read_numbers,
    target_shape,
)
from regbayes.kernels.arrays import namespace_of, to_device, to_host
from regbayes.models.ilsvm import starts
from regbayes.models.ilsvm.model import Data, Rows, Settings, State

RESIDUAL_C = 0.15  # C of "auto" times the share of the variance that ridge regression leaves unexplained
MIN_RESIDUAL = 0.02  # lower bound of that share, which bounds C from above
RIDGE_PENALTIES = tuple(10.0**k for k in range(-4, 2))  # penalties per sample that leave-one-out compares
CONSTANT_INPUT = 1e-12  # variance relative to the squared mean below which an input is constant up to rounding


def input_variances(X: Rows) -> Floats:
    """Return the variances of the inputs, (D,), with their geometric mean for constant inputs."""
    variances = X.totals.squares / X.totals.n_rows
    varies = variances > CONSTANT_INPUT * X.mean**2
    if not varies.any():
        return np.ones(X.n_inputs)
    return np.where(varies, variances, np.exp(np.mean(np.log(variances[varies]))))


def ridge_residual(data: Data) -> float:
    """Return the share of the targets' variance that ridge regression leaves unexplained, by leave-one-out.

    It is the lowest over `RIDGE_PENALTIES`, averaged over the outputs. A sample of weight w counts as w copies.
    """
    columns, X = starts.contrast_targets(data), data.X.take(data.labeled)
    if columns.shape[1] == 0:
        return 1.0
    counts = np.ones(len(X)) if X.weights is None else X.weights
    total, roots = counts.sum(), np.sqrt(counts)[:, None]
    x = X.array() / np.sqrt(input_variances(data.X))
    x = roots * (x - counts @ x / total)
    y = columns[data.labeled] / roots  # columns have unit length
    wide = x.shape[1] > len(x)
    values, vectors = eigh(x @ x.T if wide else x.T @ x)
    kept = values > np.finfo(np.float64).eps * len(values) * max(values[-1], np.finfo(np.float64).tiny)
    values, U = values[kept], vectors[:, kept] if wide else x @ vectors[:, kept] / np.sqrt(values[kept])
    found = []
    for penalty in RIDGE_PENALTIES:
        shrink = values / (values + penalty * total)
        leverages = np.square(U) @ shrink / counts + 1.0 / total
        left = (y - U @ (shrink[:, None] * (U.T @ y))) / np.maximum(1.0 - leverages, 1e-6)[:, None]
        found.append(float(np.square(left).sum(axis=0).mean()))
    return min(found)


@public_estimator
class ILSVMRegressor(RegressorMixin, PredictiveFeatures):
    """Regression on latent features under an Indian buffet prior.

    The features are those of `ILSVMClassifier`, learned together with a linear model of one or several numbers on them.
    A feature depends on a linear combination of the inputs through a sigmoid, so the regression is nonlinear.
    ``n_components`` only truncates the prior; ``n_components_`` is the number of features in use. Inputs and targets
    are standardized inside.

    Parameters
    ----------
    C : float or "auto", default="auto"
        Controls the weight of the squared error of standardized targets. Larger values fit the training targets more
        closely. "auto" follows the variance that ridge regression leaves unexplained (formula in Notes).
    temperature : float or "auto", default="auto"
        Controls how far probabilities stay from 0 and 1, per input, as in `ILSVMClassifier`.

    Attributes
    ----------
    coef_features_ : array of shape ``(n_components_,)`` or ``(n_outputs, n_components_)``
        Weights of the features in use, in units of the targets.
    intercept_ : float or array of shape (n_outputs,)
    target_mean_, target_scale_ : array of shape (n_outputs,)
        Mean and standard deviation of the training targets.
    target_range_ : array of shape (2, n_outputs)
        Smallest and largest training target. Predictions are clipped to it.

    See Also
    --------
    ILSVMClassifier : The same features for classes and labels.
    ILSVMRegressorCV : Chooses the parameters by cross-validation.
    MultiTaskILSVMRegressor : Many related tasks with features of the inputs.

    Notes
    -----
    With ``v`` the leave-one-out error of ridge regression as a share of the variance of the targets, ``C`` is
    ``0.15 / max(v, 0.02)``.

    NaN in ``y`` marks a missing target. Samples without any target contribute to the features.

    Arrays of PyTorch and CuPy are supported under ``sklearn.config_context(array_api_dispatch=True)`` (:doc:`/scale`).

    Examples
    --------
    >>> from sklearn.datasets import make_friedman1
    >>> from regbayes import ILSVMRegressor
    >>> X, y = make_friedman1(400, noise=0.5, random_state=0)
    >>> model = ILSVMRegressor(random_state=0).fit(X[:300], y[:300])
    >>> model.score(X[300:], y[300:]) > 0.85
    True
    """

    n_components: int = 20
    _: KW_ONLY

    def _check_targets(self, y: Any, X: Any, first: bool) -> Floats:
        if first:
            self._is_single = len(target_shape(y)) == 1
        return read_numbers(y, X)

    def _observe(
        self, values: Floats, weights: Floats | None, first: bool, classes: ArrayLike | None
    ) -> tuple[Any, Integers | None]:
        if first:
            self._measure_targets(values, weights)
        elif values.shape[1] != len(self.target_mean_):
            raise ValueError(f"`y` has {values.shape[1]} outputs, but earlier samples had {len(self.target_mean_)}.")
        return observe_values((values - self.target_mean_) / self.target_scale_, weights, signs=False)

    def _measure_targets(self, values: Floats, weights: Floats | None) -> None:
        """Find mean, scale and range of the targets."""
        if np.isnan(values).all(axis=0).any():
            raise ValueError("`y` has an output without any observed target.")
        counts = ~np.isnan(values) * (1.0 if weights is None else weights[:, None])
        total, known = counts.sum(axis=0), np.where(np.isnan(values), 0.0, values)
        with np.errstate(over="ignore"):
            self.target_mean_ = (counts * known).sum(axis=0) / total
            scale = np.sqrt((counts * (known - self.target_mean_) ** 2).sum(axis=0) / total)
        if not np.all(np.isfinite(scale)):
            raise ValueError("`y` is too large to square it; give it in other units.")
        self.target_scale_ = np.where(scale > 10 * np.finfo(np.float64).eps * np.abs(self.target_mean_), scale, 1.0)
        self.target_range_ = np.array([np.nanmin(values, axis=0), np.nanmax(values, axis=0)])

    def _make_settings(self, data: Data, n_labeled: int | None = None) -> Settings:
        residual = 1.0
        if self.C == "auto":
            first = data.labeled[: self._policy.sample_rows]
            residual = ridge_residual(data.take(None if len(first) == len(data.X) else first))
        # With `Numbers` targets the squared hinge is the squared error, and there is one loss per output.
        given = {**self.get_params(deep=False), **dict.fromkeys(("noise_variance", "prior_variance"), "auto")}
        given |= {"loss": "squared_hinge", "multi_class": "ovr", "fit_intercept": True}
        unit, n_outputs = RESIDUAL_C / max(residual, MIN_RESIDUAL), len(self.target_mean_)
        supervision = make_supervision(given, n_outputs, labeled_share(data), unit=unit)
        variances = input_variances(data.X)  # the model standardizes the inputs
        mean = float(np.exp(np.mean(np.log(variances))))
        settings = make_settings(given, mean * len(variances), len(variances), supervision)
        return replace(settings, noise_ratios=variances / mean)

    def _head_attributes(self, state: State, used: Integers) -> dict[str, Any]:
        """Return the weights in units of the targets."""
        latent, intercept = self._linear_in_use(state, used)
        coef, intercept = self.target_scale_[:, None] * latent, self.target_mean_ + self.target_scale_ * intercept
        if self._is_single:
            return {"coef_features_": coef[0], "intercept_": float(intercept[0])}
        return {"coef_features_": coef, "intercept_": intercept}

    def predict(self, X: ArrayLike) -> Floats:
        """Return the predicted numbers, shape (n_samples,) or (n_samples, n_outputs).

        They are clipped to the range of the training targets.
        """
        scores = self._scores(X)
        of_targets = *map(to_host, (self.target_scale_, self.target_mean_)), *to_host(self.target_range_)
        scale, mean, lowest, highest = (to_device(values, scores) for values in of_targets)
        xp = namespace_of(scores)
        found: Floats = xp.minimum(xp.maximum(scores * scale + mean, lowest), highest)
        return found[:, 0] if self._is_single else found
