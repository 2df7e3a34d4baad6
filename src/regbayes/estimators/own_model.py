"""`MarginClassifier`: scikit-learn's interface to a user's own model."""

from __future__ import annotations

import warnings
from dataclasses import KW_ONLY, dataclass
from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin, _fit_context
from sklearn.callback import with_callbacks
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data

from regbayes._registry import persistable
from regbayes._types import Floats, Reals
from regbayes.adapters import FittedModel, OwnModel, fit
from regbayes.estimators._bases import (
    POSITIVE,
    FitReporter,
    IterativeEstimator,
    LatentModel,
    check_labels,
    drop_weightless,
    encode_classes,
    fit_data,
    generator,
    pick_classes,
    warn_of_status,
)
from regbayes.kernels.arrays import is_plain, to_host
from regbayes.margins.targets import Classes, Signs, zero_one_cost


@persistable(name="regbayes.MarginClassifier", skip=("model", "_skl_callbacks"))
@dataclass(eq=False, repr=False)
class MarginClassifier(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClassifierMixin, IterativeEstimator):
    """Max-margin classifier learned jointly with the features of your own model.

    Parameters
    ----------
    model : OwnModel
        The result of `regbayes.adapters.from_torch` or `regbayes.adapters.from_jax`. A fit does not change it. It
        contains code and is not saved: pass it to a loaded estimator with ``classifier.set_params(model=model)``.
    C : float, default=1.0
        Controls the penalty on squared margin violations. Larger values fit the training labels more closely.
    multi_class : {"crammer_singer", "ovr"}, default="crammer_singer"
        Controls the margins of a sample: against the best wrong class, or one-vs-rest for each class. Two classes have
        one margin in either case.
    batch_size : int, default=None
        Number of samples of a mini-batch. None uses all samples in each step of L-BFGS, which decreases the objective.
        Encoders with dropout need mini-batches, because full-batch steps draw their random numbers only once.
    learning_rate : float, default=1e-3
        Controls the size of Adam's first steps, with mini-batches.
    max_iter : int, default=200
        Maximum number of steps, or of passes over the samples with mini-batches.
    tol : float, default=1e-4
        Decrease of the objective per sample below which three steps in a row stop a full-batch fit.
    random_state : int, Generator, RandomState or None, default=None
        Controls the random numbers of encoder and generative loss, and the order of the samples. The parameters start
        at their values in the model.
    verbose : int, default=0

    Attributes
    ----------
    arrays_ : dict of str to array
        Fitted parameters of the model, by name.
    params_ : array of shape (P,)
        The same parameters in one array, for ``model.load``.
    head_ : LinearHead
    classes_ : array
    row_shape_ : tuple of int
        Shape of a sample.
    trace_ : Trace
        History of the terms of the objective.
    n_iter_ : int

    Examples
    --------
    >>> import numpy as np
    >>> from regbayes import MarginClassifier
    >>> from regbayes.adapters import from_jax
    >>> encode, loss = lambda p, x: x @ p, lambda p, x, z: ((x - z @ p.T) ** 2).sum(1)
    >>> model = from_jax(encode, loss, np.eye(4)[:, :2])
    >>> X = np.random.default_rng(0).standard_normal((60, 4))
    >>> MarginClassifier(model, tol=1e-2).fit(X, X[:, 0] > 0).score(X, X[:, 0] > 0) > 0.9
    True
    """

    model: OwnModel | None = None
    _: KW_ONLY
    C: float = 1.0
    multi_class: str = "crammer_singer"
    batch_size: int | None = None
    learning_rate: float = 1e-3
    max_iter: int = 200
    tol: float = 1e-4
    random_state: Any = None
    verbose: int = 0

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **{name: LatentModel._parameter_constraints[name] for name in ("max_iter", "tol", "random_state", "verbose")},
        "model": [OwnModel],
        "C": [POSITIVE],
        "multi_class": [StrOptions({"crammer_singer", "ovr"})],
        "batch_size": [None, Interval(Integral, 0, None, closed="left")],
        "learning_rate": [POSITIVE],
    }

    @with_callbacks
    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Learn the model's parameters and the classifier together.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...)
            Samples of any shape that the encoder accepts; they are moved to the device of the model's parameters.
        y : array-like of shape (n_samples,)
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each sample in the generative loss and the margins: 2 counts the sample twice.
        """
        X, y = validate_data(self, _bring_home(X), _bring_home(y), dtype=np.float64, allow_nd=True)
        check_labels(y)
        self.row_shape_ = X.shape[1:]
        given = fit_data(X, y, sample_weight=sample_weight)
        X, weights, y = drop_weightless(X, sample_weight, y)
        self.classes_, codes = encode_classes(self, y)
        C = np.full(len(X), float(self.C)) if weights is None else self.C * weights
        targets: Classes | Signs = Classes(codes, zero_one_cost(len(self.classes_)), C)
        if self.multi_class == "ovr" and len(self.classes_) > 2:
            targets = targets.one_vs_rest()
        names = ("batch_size", "learning_rate", "max_iter", "tol")
        options: dict[str, Any] = {name: getattr(self, name) for name in names} | {"weights": weights}
        options["seed"] = int(generator(self.random_state).integers(2**31))
        with FitReporter(self, self.max_iter, given, self._attributes, self.verbose) as reporter:
            result = fit(self.model, X, targets, **options, callbacks=[reporter])
            fitted = self._attributes(result.state) | {"trace_": result.trace, "n_iter_": result.n_iter}
            for name, value in fitted.items():
                setattr(self, name, value)
        if self.batch_size is None:  # mini-batches stop after max_iter passes
            warn_of_status(self, result)
            if self.model.has_noise(X):
                warnings.warn(
                    "the encoder draws at random while parameters are learned (dropout?). With all rows at every step "
                    "that is drawn once, and what was left out of a row stays out: features fit it. Set batch_size, so "
                    "that every batch has its own draw, or put the modules into evaluation mode",
                    UserWarning,
                    stacklevel=2,
                )
        return self

    def _attributes(self, state: FittedModel) -> dict[str, Any]:
        return {"arrays_": self.model.state_dict(state.params), "head_": state.head}

    @property
    def params_(self) -> Reals:
        """The fitted parameters in one array."""
        check_is_fitted(self)
        if self.model is None:
            raise ValueError(
                "the model is code and was not saved with the classifier: give it again, "
                "classifier.set_params(model=from_torch(...))"
            )
        return self.model.from_state_dict(self.arrays_)

    @property
    def _n_features_out(self) -> int:
        return len(self.head_.centre)

    def transform(self, X: ArrayLike) -> Floats:
        """Return the features of samples, shape (n_samples, n_components)."""
        params, X = self.params_, _bring_home(X)
        if len(np.shape(X)) != 1 + len(self.row_shape_):  # n_features_in_ does not describe samples with several axes
            raise ValueError(
                f"X must have rows of shape {tuple(self.row_shape_)}, as in fit, got X of shape {np.shape(X)}"
            )
        X = validate_data(self, X, dtype=np.float64, allow_nd=True, reset=False)
        return self.model.encode(X, params).astype(np.float64)

    def decision_function(self, X: ArrayLike) -> Floats:
        """Return the score of each class, or for two classes their difference."""
        features = self.transform(X)
        scores = self.head_.scores(features)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the class of each sample."""
        return pick_classes(self.decision_function(X), self.classes_)


def _bring_home(array: Any) -> Any:
    """Return an array of another library as a NumPy array."""
    return array if is_plain(array) else to_host(array)
