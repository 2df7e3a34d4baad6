"""`IBPFactorAnalysis`: factor analysis with binary or nonnegative features, without labels."""

from __future__ import annotations

from dataclasses import KW_ONLY, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import _fit_context
from sklearn.callback import with_callbacks
from sklearn.utils.validation import check_is_fitted

from regbayes._types import Floats
from regbayes.estimators._arrays import read_features
from regbayes.estimators._bases import POSITIVE, public_estimator, room_for
from regbayes.estimators._features import BINARY, SLAB, VARIANCES, LatentFeatures, Supervision, make_settings
from regbayes.kernels.arrays import take_columns, to_host
from regbayes.models.ilsvm.model import Data, Settings, reconstruct


@public_estimator
class IBPFactorAnalysis(LatentFeatures):
    """Factor analysis with binary or nonnegative features and an Indian buffet prior.

    Each sample is a sum of the loadings of its features, plus noise. The number of features is inferred:
    ``n_components`` truncates the prior, and ``n_components_`` is the number in use. Followed by a linear classifier,
    this is the two-stage baseline of `ILSVMClassifier`, which learns both jointly.

    Parameters
    ----------
    temperature : float or "auto", default="auto"
        Controls how far probabilities stay from 0 and 1, per input. Lower values give more nearly binary features;
        higher values, fewer features. "auto" is 0.01 for binary features and 0.05 with a slab. With
        ``noise_variance="per_input"`` it is the temperature of the whole model, and "auto" is 1.
    transform_temperature : float or None, default=None
        Controls the temperature at which `transform` infers features, per input. None is the temperature of the fit. A
        higher temperature than that of the fit can improve the predictions of a classifier on the features.
    noise_variance : float, "auto", "estimate" or "per_input", default="auto"
        As in `ILSVMClassifier`. "per_input" is for data made of binary parts and requires ``slab=None``.
    prior_variance : float, "auto" or "estimate", default="auto"
        As in `ILSVMClassifier`.

    Attributes
    ----------
    noise_ratios_ : array of shape (n_features,)
        Noise variance of each input over ``noise_variance_``, as in `ILSVMClassifier`.

    See Also
    --------
    ILSVMClassifier : The same features learned together with a classifier.

    Notes
    -----
    Arrays of PyTorch and CuPy are supported under ``sklearn.config_context(array_api_dispatch=True)`` (:doc:`/scale`).

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from regbayes import IBPFactorAnalysis
    >>> X, _ = load_digits(return_X_y=True)
    >>> model = IBPFactorAnalysis(n_components=50, max_iter=20, tol=1e-2).fit(X)
    >>> model.transform(X).shape == (1797, model.n_components_)
    True
    """

    n_components: int = 50
    _: KW_ONLY
    transform_temperature: float | None = None
    noise_variance: float | Literal["auto", "estimate", "per_input"] = "auto"
    prior_variance: float | Literal["auto", "estimate"] = "auto"
    n_sweeps: int = 2
    max_iter: int = 500
    tol: float = 1e-4

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **LatentFeatures._parameter_constraints,
        **VARIANCES,
        "transform_temperature": [POSITIVE, None],
    }

    def _make_settings(self, data: Data, n_labeled: int | None = None) -> Settings:
        if self.noise_variance == "per_input" and self.slab is not None:
            raise ValueError('`noise_variance="per_input"` requires `slab=None`.')
        temperature = (SLAB if self.slab else BINARY).unsupervised_temperature
        nothing = Supervision(0.0, squared=True, one_vs_rest=False, generative_weight=1.0, temperature=temperature)
        return make_settings(self.get_params(deep=False), data.X.totals.mean_square, data.X.n_inputs, nothing)

    @with_callbacks
    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: ArrayLike, y: Any = None, sample_weight: ArrayLike | None = None) -> Self:
        """Learn the features.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Sparse samples become dense.
        y : ignored
        sample_weight : array-like of shape (n_samples,), default=None
            How often each sample counts: 2 counts it twice, 0 leaves it out. The sum is the data's size relative to the
            prior. Divide survey weights by their mean to keep the balance of an unweighted fit.

        Returns
        -------
        self
        """
        return self._fit_rows(X, None, sample_weight)

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
        return self._partial_fit(X, None, sample_weight)

    def transform(self, X: ArrayLike) -> Floats:
        """Return posterior means of the features in use, ``(n_samples, n_components_)``.

        They are probabilities or, with ``slab``, expected values; see `feature_probabilities`.
        """
        with room_for(self, X):
            rows, params = self._centred(X), self._state.params
            if self.transform_temperature is not None:
                params = replace(params, temperature=self.transform_temperature * rows.n_inputs)
            return take_columns(self._infer(rows, params.infer), self._used)

    def inverse_transform(self, X: ArrayLike) -> Floats:
        """Return the reconstruction of samples from their features, shape (n_samples, n_features)."""
        check_is_fitted(self, "_state")
        features, params = read_features(X), self._state.params
        if features.shape[1] != self._n_features_out:
            raise ValueError(
                f"`X` has {features.shape[1]} features, but `inverse_transform` requires {self._n_features_out}."
            )
        return reconstruct(features, replace(params, loadings=params.loadings[self._used]), to_host(self.mean_))

    def score_samples(self, X: ArrayLike) -> Floats:
        """Return a lower bound on the log-density of each sample at the temperature of the fit, shape (n_samples,)."""
        with room_for(self, X):
            return self._infer(self._centred(X), self._state.params.bound)

    def score(self, X: ArrayLike, y: Any = None) -> float:
        """Return the mean of `score_samples`."""
        return float(np.mean(to_host(self.score_samples(X))))
