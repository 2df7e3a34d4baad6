"""`IBPFactorAnalysis`: factor analysis with binary or nonnegative features, without labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import _fit_context
from sklearn.callback import with_callbacks
from sklearn.utils._param_validation import StrOptions

from regbayes._registry import persistable
from regbayes._types import Floats
from regbayes.estimators._arrays import work_here
from regbayes.estimators._bases import (
    LATENT_CONSTRAINTS,
    POSITIVE,
    TrainingRows,
    UnsupervisedFeatures,
    drop_weightless,
    fit_data,
    read_rows,
    room_for,
)
from regbayes.estimators._batches import BatchFeatures
from regbayes.estimators.ilsvm import NOISE_VARIANCE, BinaryFeatures, Supervision, make_settings
from regbayes.kernels.arrays import take_columns, to_host
from regbayes.models.ilsvm.model import Data, Rows, Settings, centre_rows, reconstruct

TEMPERATURE = 0.01  # temperature per input of binary features; at higher ones, unsupervised features vanish
SLAB_TEMPERATURE = 0.05  # temperature per input with a slab; it recovers the number of simulated features


def make_unsupervised_settings(parameters: Mapping[str, Any], mean_square: float, n_inputs: int) -> Settings:
    """Turn parameters into settings without labels."""
    if parameters["noise_variance"] == "per_input" and parameters["slab"] is not None:
        raise ValueError('`noise_variance="per_input"` needs `slab=None`.')
    temperature = SLAB_TEMPERATURE if parameters["slab"] else TEMPERATURE
    nothing = Supervision(0.0, squared=True, one_vs_rest=False, generative_weight=1.0, temperature=temperature)
    return make_settings(parameters, mean_square, n_inputs, nothing)


@persistable(skip=("_skl_callbacks",))
class IBPFactorAnalysis(BinaryFeatures, UnsupervisedFeatures, BatchFeatures):
    """Factor analysis with binary or nonnegative features and an Indian buffet prior.

    Each sample is a sum of the loadings of its features, plus noise. The number of features is inferred:
    ``n_components`` truncates the prior, and ``n_components_`` is the number in use. Followed by a linear classifier,
    this is the two-stage baseline of `ILSVMClassifier`, which learns both jointly.

    Parameters
    ----------
    n_components : int, default=50
        Maximum number of features.
    alpha : float, default=2.0
        Controls the prior number of features (concentration of the Indian buffet process). Larger values expect more.
    temperature : float or "auto", default="auto"
        Controls how far probabilities stay from 0 and 1, per input. Lower values give more nearly binary features;
        higher values, fewer features. "auto" is 0.01 for binary features and 0.05 with a slab. With
        ``noise_variance="per_input"`` it is the temperature of the whole model, and "auto" is 1.
    transform_temperature : float or None, default=None
        Controls the temperature at which `transform` infers features, per input. None is the temperature of the fit. A
        higher temperature than that of the fit can improve the predictions of a classifier on the features.
    max_iter : int, default=500
        Maximum number of steps after the structure search.
    tol : float, default=1e-4
        Relative change of the objective at which to stop.
    slab : {"half-normal", "normal"} or None, default=None
        Controls the values of features. None: binary, and `transform` returns probabilities. "half-normal": zero or a
        nonnegative value. "normal": zero or a real value (spike and slab). With a slab `transform` returns expected
        values, and `feature_probabilities` the probabilities of not being zero.
    n_sweeps : int, default=2
        Number of sweeps of mean-field inference for a sample.
    noise_variance : float, "auto", "estimate" or "per_input", default="auto"
        As in `ILSVMClassifier`. "per_input" is for data made of binary parts and requires ``slab=None``.
    prior_variance, warm_start, random_state, n_jobs, verbose
        As in `ILSVMClassifier`.

    Attributes
    ----------
    components_ : array of shape ``(n_components_, n_features)``
        Loadings of the features in use.
    n_components_ : int
        Number of features in use: those whose values range over more than 0.1 in the training samples.
    embedding_ : array of shape ``(n_samples, n_components_)``
        Posterior means of the training samples' features at the temperature of the fit: probabilities or, with
        ``slab``, expected values.
    probabilities_ : array of shape ``(n_samples, n_components_)``
        With ``slab``: probabilities that the training samples' features are not zero.
    stick_weights_ : array of shape ``(n_components_,)``
        Prior probability of each feature.
    mean_ : array of shape (n_features,)
        Means of the inputs.
    offset_ : array of shape (n_features,)
        Offset of the reconstruction, which is ``embedding_ @ components_ + offset_``.
    noise_variance_, prior_variance_ : float
    noise_ratios_ : array of shape (n_features,)
        Noise variance of each input over ``noise_variance_``, as in `ILSVMClassifier`.
    objective_ : float
        Objective of the fit, with a normalized prior. It is comparable between fits with different numbers of features.
    trace_ : Trace
        History of the objective and its named terms after the structure search.
    n_iter_ : int
        Number of iterations in ``trace_``.
    n_samples_seen_ : int or float
        After ``partial_fit``: total weight of the samples of all batches.
    n_features_in_, feature_names_in_
        As in scikit-learn.

    See Also
    --------
    ILSVMClassifier : The same features learned together with a classifier.

    Notes
    -----
    Arrays of PyTorch and CuPy are supported under ``sklearn.config_context(array_api_dispatch=True)``: docs/scale.md.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from regbayes import IBPFactorAnalysis
    >>> X, _ = load_digits(return_X_y=True)
    >>> model = IBPFactorAnalysis(n_components=50, max_iter=20, tol=1e-2).fit(X)
    >>> model.transform(X).shape == (1797, model.n_components_)
    True
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **{name: LATENT_CONSTRAINTS[name] for name in LATENT_CONSTRAINTS if name != "n_init"},
        "noise_variance": NOISE_VARIANCE,
        "slab": [StrOptions({"half-normal", "normal"}), None],
        "transform_temperature": [POSITIVE, None],
    }

    def __init__(
        self,
        n_components: int = 50,
        *,
        alpha: float = 2.0,
        temperature: float | Literal["auto"] = "auto",
        transform_temperature: float | None = None,
        slab: Literal["half-normal", "normal"] | None = None,
        noise_variance: float | Literal["auto", "estimate", "per_input"] = "auto",
        prior_variance: float | Literal["auto", "estimate"] = "auto",
        n_sweeps: int = 2,
        max_iter: int = 500,
        tol: float = 1e-4,
        warm_start: bool = False,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.alpha = alpha
        self.temperature = temperature
        self.transform_temperature = transform_temperature
        self.slab = slab
        self.noise_variance = noise_variance
        self.prior_variance = prior_variance
        self.n_sweeps = n_sweeps
        self.max_iter = max_iter
        self.tol = tol
        self.warm_start = warm_start
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    def _prepare(self, rows: TrainingRows, X: Rows, n_labeled: int | None = None) -> tuple[Data, Settings]:
        """Return the samples as data without labels, and the settings."""
        return Data(X), make_unsupervised_settings(self.get_params(deep=False), X.totals.mean_square, X.n_inputs)

    @with_callbacks
    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X: ArrayLike, y: Any = None, sample_weight: ArrayLike | None = None) -> Self:
        """Learn from a batch of samples, which are not kept.

        The first batch is fitted like any other data: it determines the features, their number and the centering. Give
        it at least a thousand samples in random order. Each further batch of at least some dozens updates the features.
        After ``fit``, learning continues from that solution. Parameters are read in the first call; ``embedding_``
        is that of the last batch.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : ignored
        sample_weight : array-like of shape (n_samples,), default=None
            How often each sample counts. A sample of a second pass counts again.

        Returns
        -------
        self
        """
        first = not hasattr(self, "_state")
        work_here(self, X, "partial_fit")
        given = read_rows(self, X, ensure_min_samples=2 if first else 1, reset=first)
        rows, _, weights = drop_weightless(given, None, sample_weight)
        self._learn_batch(TrainingRows(rows, weights, given, fit_data(given, sample_weight=sample_weight)))
        return self

    def transform(self, X: ArrayLike) -> Floats:
        """Return posterior means of the features in use, ``(n_samples, n_components_)``.

        They are probabilities or, with ``slab``, expected values; see `feature_probabilities`.
        """
        with room_for(self, X):
            rows = centre_rows(self._valid_rows(X), self.mean_)
            params = self._state.params
            if self.transform_temperature is not None:
                params = replace(params, temperature=self.transform_temperature * rows.n_inputs)
            return take_columns(self._infer(rows, params.infer), self._used)

    def inverse_transform(self, X: ArrayLike) -> Floats:
        """Return the reconstruction of samples from their features, shape (n_samples, n_features)."""
        features, mean = self._valid_features(X), to_host(self.mean_)
        params = self._state.params
        return reconstruct(features, replace(params, loadings=params.loadings[self._used]), mean)

    def score_samples(self, X: ArrayLike) -> Floats:
        """Return a lower bound on the log-density of each sample at the temperature of the fit, shape (n_samples,)."""
        with room_for(self, X):
            rows = centre_rows(self._valid_rows(X), self.mean_)
            return self._infer(rows, self._state.params.bound)

    def score(self, X: ArrayLike, y: Any = None) -> float:
        """Return the mean of `score_samples`."""
        return float(np.mean(to_host(self.score_samples(X))))
