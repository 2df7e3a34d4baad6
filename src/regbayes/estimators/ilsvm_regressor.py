"""`ILSVMRegressor`: latent features that predict one or several numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import eigh
from sklearn.base import RegressorMixin, _fit_context
from sklearn.callback import with_callbacks
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_is_fitted

from regbayes._registry import persistable
from regbayes._types import Floats, Integers
from regbayes.estimators._arrays import work_here
from regbayes.estimators._bases import (
    LATENT_CONSTRAINTS,
    NOT_NEGATIVE,
    POSITIVE,
    drop_weightless,
    fit_beside,
    fit_data,
    keep_on_failure,
    read_rows,
    room_for,
)
from regbayes.estimators._batches import BatchFeatures, TargetRows
from regbayes.estimators.ilsvm import (
    BinaryFeatures,
    labeled_share,
    make_settings,
    make_supervision,
    read_numbers,
    target_shape,
)
from regbayes.kernels.arrays import namespace_of, to_device, to_host
from regbayes.margins.targets import Numbers
from regbayes.models.ilsvm import starts
from regbayes.models.ilsvm.model import Data, Rows, Settings, State

RESIDUAL_C = 0.15  # C of "auto" times the share of the variance that ridge regression leaves unexplained
MIN_RESIDUAL = 0.02  # lower bound of that share, which bounds C from above
RIDGE_PENALTIES = tuple(10.0**k for k in range(-4, 2))  # penalties per sample that leave-one-out compares
CONSTANT_INPUT = 1e-12  # variance relative to the squared mean below which an input is constant up to rounding

HEAD = {
    "loss": "squared_hinge",  # with `Numbers` targets this is the squared error
    "multi_class": "ovr",  # one loss per output
    "cost": None,
    "include_inputs": False,
    "fit_intercept": True,
    "noise_variance": "auto",
    "prior_variance": "auto",
}


def make_regression_settings(
    parameters: Mapping[str, Any], variances: Floats, residual: float, n_outputs: int, share: float
) -> Settings:
    """Turn the parameters into settings.

    Parameters
    ----------
    parameters : mapping
        Parameters of the estimator.
    variances : (D,)
        Variances of the inputs, which become the ratios of their noise: the model standardizes the inputs.
    residual : float
        Result of `ridge_residual`.
    n_outputs : int
    share : float
        Share of the samples that have a target.
    """
    given = {**parameters, **HEAD}
    supervision = make_supervision(given, n_outputs, share, unit=RESIDUAL_C / max(residual, MIN_RESIDUAL))
    unit = float(np.exp(np.mean(np.log(variances))))
    settings = make_settings(given, unit * len(variances), len(variances), supervision)
    return replace(settings, noise_ratios=variances / unit)


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


@persistable(skip=("_skl_callbacks",))
class ILSVMRegressor(RegressorMixin, BinaryFeatures, BatchFeatures):
    """Regression on latent features under an Indian buffet prior.

    The features are those of `ILSVMClassifier`, learned together with a linear model of one or several numbers on them.
    A feature depends on a linear combination of the inputs through a sigmoid, so the regression is nonlinear.
    ``n_components`` only truncates the prior; ``n_components_`` is the number of features in use. Inputs and targets
    are standardized inside.

    Parameters
    ----------
    n_components : int, default=20
        Maximum number of features.
    alpha : float, default=2.0
        Controls the prior number of features (concentration of the Indian buffet process). Larger values expect more.
    C : float or "auto", default="auto"
        Controls the weight of the squared error of standardized targets. Larger values fit the training targets more
        closely. "auto" follows the variance that ridge regression leaves unexplained (formula in Notes).
    temperature : float or "auto", default="auto"
        Controls how far probabilities stay from 0 and 1, per input, as in `ILSVMClassifier`.
    generative_weight : float or "auto", default="auto"
        Controls the weight of the reconstruction of ``X`` relative to the prediction of ``y``. Larger values give
        features that explain ``X``. "auto" is 0.03 C for each target, as in `ILSVMClassifier`.
    slab : {"half-normal", "normal"} or None, default=None
        Controls the values of features, as in `ILSVMClassifier`: None for binary features, "half-normal" for zero or a
        nonnegative value, "normal" for zero or a real value.
    n_sweeps : int, default=1
        Number of sweeps of mean-field inference for a sample.
    max_iter : int, default=200
        Maximum number of steps after the structure search.
    tol : float, default=1e-3
        Relative change of the objective at which to stop.
    warm_start : bool, default=False
        Whether ``fit`` continues from the last solution.
    random_state : int, RandomState instance or None, default=None
        Controls the samples that the structure search uses if there are more than 8192.
    n_jobs : int or None, default=None
        Number of threads. The result does not depend on it.
    verbose : int, default=0
        Whether to show a progress bar.

    Attributes
    ----------
    n_components_ : int
        Number of features in use: those whose values range over more than 0.1 in the training samples.
    components_ : array of shape ``(n_components_, n_features)``
        Loadings of the features in use.
    coef_features_ : array of shape ``(n_components_,)`` or ``(n_outputs, n_components_)``
        Weights of the features in use, in units of the targets.
    intercept_ : float or array of shape (n_outputs,)
    target_mean_, target_scale_ : array of shape (n_outputs,)
        Mean and standard deviation of the training targets.
    target_range_ : array of shape (2, n_outputs)
        Smallest and largest training target. Predictions are clipped to it.
    embedding_ : array of shape ``(n_samples, n_components_)``
        Features of the training samples, as `transform` returns them.
    probabilities_ : array of shape ``(n_samples, n_components_)``
        With ``slab``: probabilities that the training samples' features are not zero.
    stick_weights_, mean_, offset_, noise_variance_, noise_ratios_, prior_variance_, objective_, trace_, n_iter_
        As in `ILSVMClassifier`.
    n_samples_seen_ : int or float
        After ``partial_fit``: total weight of the samples of all batches.
    n_features_in_, feature_names_in_
        As in scikit-learn.

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

    Arrays of PyTorch and CuPy are supported under ``sklearn.config_context(array_api_dispatch=True)``: docs/scale.md.

    Examples
    --------
    >>> from sklearn.datasets import make_friedman1
    >>> from regbayes import ILSVMRegressor
    >>> X, y = make_friedman1(400, noise=0.5, random_state=0)
    >>> model = ILSVMRegressor(random_state=0).fit(X[:300], y[:300])
    >>> model.score(X[300:], y[300:]) > 0.85
    True
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **{
            name: LATENT_CONSTRAINTS[name]
            for name in LATENT_CONSTRAINTS
            if name not in ("n_init", "noise_variance", "prior_variance")
        },
        "C": [POSITIVE, StrOptions({"auto"})],
        "generative_weight": [NOT_NEGATIVE, StrOptions({"auto"})],
        "slab": [StrOptions({"half-normal", "normal"}), None],
    }

    def __init__(
        self,
        n_components: int = 20,
        *,
        alpha: float = 2.0,
        C: float | Literal["auto"] = "auto",
        temperature: float | Literal["auto"] = "auto",
        generative_weight: float | Literal["auto"] = "auto",
        slab: Literal["half-normal", "normal"] | None = None,
        n_sweeps: int = 1,
        max_iter: int = 200,
        tol: float = 1e-3,
        warm_start: bool = False,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.alpha = alpha
        self.C = C
        self.temperature = temperature
        self.generative_weight = generative_weight
        self.slab = slab
        self.n_sweeps = n_sweeps
        self.max_iter = max_iter
        self.tol = tol
        self.warm_start = warm_start
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    @with_callbacks
    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Learn the features and the weights of the targets.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Numbers, NaN where missing.
        sample_weight : array-like of shape (n_samples,), default=None
            How often each sample counts: 2 counts the sample twice, 0 leaves it out.

        Returns
        -------
        self
        """
        with keep_on_failure(self), room_for(self, X):
            given = read_rows(self, X, ensure_min_samples=2)
            rows = self._read(given, y, sample_weight, first=True)
            with fit_beside(self, given):
                self._learn(rows)
        return self

    @with_callbacks
    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Learn from a batch of samples, which are not kept.

        It works as `ILSVMClassifier.partial_fit`. The first batch determines the features, their number, and the scales
        of inputs and targets.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Numbers, NaN where missing.
        sample_weight : array-like of shape (n_samples,), default=None
            How often each sample counts.

        Returns
        -------
        self
        """
        first = not hasattr(self, "_state")
        work_here(self, X, "partial_fit")
        given = read_rows(self, X, ensure_min_samples=2 if first else 1, reset=first)
        self._learn_batch(self._read(given, y, sample_weight, first))
        return self

    @_fit_context(prefer_skip_nested_validation=True)
    def fit_weights(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Solve for the weights at the fitted features, as `ILSVMClassifier.fit_weights`.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            May be a `numpy.memmap`.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Numbers, NaN where missing.
        sample_weight : array-like of shape (n_samples,), default=None
            How often each sample counts.

        Returns
        -------
        self
        """
        check_is_fitted(self, "_state")
        work_here(self, X, "fit_weights")
        given = read_rows(self, X, reset=False)
        self._solve_target_weights(self._read(given, y, sample_weight, first=False))
        return self

    def _read(self, given: Any, y: ArrayLike, sample_weight: ArrayLike | None, first: bool) -> TargetRows:
        """Return the samples that count; the first ones determine the scale of the targets."""
        values = read_numbers(y, given)
        data = fit_data(given, y, sample_weight=sample_weight)
        rows, values, weights = drop_weightless(given, values, sample_weight)
        if first:
            self._measure_targets(values, weights)
            self._is_single = len(target_shape(y)) == 1
        elif values.shape[1] != len(self.target_mean_):
            raise ValueError(f"`y` has {values.shape[1]} outputs, but earlier samples had {len(self.target_mean_)}.")
        scaled = (values - self.target_mean_) / self.target_scale_
        return TargetRows.of(rows, scaled, weights, given, data, signs=False)

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

    def _prepare(self, rows: TargetRows, X: Rows, n_labeled: int | None = None) -> tuple[Data, Settings]:
        data = Data(X, rows.targets, rows.places)
        return data, self._make_settings(data)

    def _make_settings(self, data: Data, n_labeled: int | None = None) -> Settings:
        assert isinstance(data.targets, Numbers)
        residual = 1.0
        if self.C == "auto":
            first = data.labeled[: self._policy.sample_rows]
            residual = ridge_residual(data.take(None if len(first) == len(data.X) else first))
        return make_regression_settings(
            self.get_params(deep=False), input_variances(data.X), residual, data.targets.n_outputs, labeled_share(data)
        )

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
        check_is_fitted(self, "_state")
        scores = self._scores(X)
        of_targets = *map(to_host, (self.target_scale_, self.target_mean_)), *to_host(self.target_range_)
        scale, mean, lowest, highest = (to_device(values, scores) for values in of_targets)
        xp = namespace_of(scores)
        found: Floats = xp.minimum(xp.maximum(scores * scale + mean, lowest), highest)
        return found[:, 0] if self._is_single else found

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
