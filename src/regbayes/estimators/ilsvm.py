"""`ILSVMClassifier`: max-margin classification on latent features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from numbers import Integral
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin, _fit_context
from sklearn.callback import with_callbacks
from sklearn.utils import check_consistent_length
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import _check_y, column_or_1d

from regbayes._types import Floats, Integers
from regbayes.estimators._arrays import bring_beside, on_host, put_beside
from regbayes.estimators._bases import (
    check_known_classes,
    check_labels,
    check_several,
    cost_matrix,
    encode_classes,
    find_labeled,
    known_codes,
    pick_classes,
    public_estimator,
    weights_by_class,
)
from regbayes.estimators._calibration import NoProbabilities
from regbayes.estimators._features import (
    VARIANCES,
    PredictiveFeatures,
    is_label_matrix,
    labeled_share,
    make_settings,
    make_supervision,
    observe_values,
    read_numbers,
)
from regbayes.estimators.metrics import subset_accuracy
from regbayes.kernels.arrays import to_host
from regbayes.margins.head import HEAD_POLICY
from regbayes.margins.targets import Classes, Numbers, Signs, Targets
from regbayes.models.ilsvm.model import Data, Settings, State


@dataclass(frozen=True)
class OneClass:
    """Targets of `ILSVMClassifier` that are one class per sample."""

    model: Any

    def read(self, y: Any, X: Any) -> NDArray[Any]:
        """Return the validated classes of all samples."""
        if y is None:
            raise ValueError(f"{type(self.model).__name__} requires y to be passed, but the target y is None")
        labels = _check_y(bring_beside(y, X, "y"), estimator=self.model)
        check_consistent_length(np.empty(X.shape[0]), labels)
        return np.asarray(labels)

    def observe(
        self, labels: NDArray[Any], weights: Floats | None, first: bool, classes: ArrayLike | None
    ) -> tuple[Classes, Integers | None]:
        """Return the margins of labeled samples, and their indices."""
        model = self.model
        labeled = find_labeled(labels, model.unlabeled, required=first)
        seen, counts = labels[labeled], None if weights is None else weights[labeled]
        if first and classes is None:
            check_labels(seen)
            model.classes_, codes = encode_classes(model, seen)
        else:
            named = np.unique(column_or_1d(classes)) if first else model.classes_
            if first:
                check_several(model, named)
            else:
                check_known_classes(classes, named)
            codes, model.classes_ = known_codes(seen, named), named
        by_class = weights_by_class(model.class_weight, model.classes_, codes, counts)
        factors = by_class[codes] if counts is None else counts * by_class[codes]
        targets = Classes(codes, cost_matrix(model.cost, len(model.classes_)), factors)
        return targets, None if labeled.all() else np.flatnonzero(labeled)

    def by_output(self, values: Floats) -> Floats:
        """Return weights of two classes as their difference, (1, ...), and others unchanged."""
        return values[1:] - values[:1] if len(values) == 2 else values

    def decide(self, scores: Floats) -> Floats:
        """Return the scores of samples, (n, n_classes), or for two classes their difference, (n,)."""
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict(self, scores: Floats) -> NDArray[Any]:
        """Return the class of each sample."""
        return pick_classes(scores, self.model.classes_)


@dataclass(frozen=True)
class SeveralLabels:
    """Targets of `ILSVMClassifier` that are several labels per sample, 0 or 1."""

    model: Any

    def check(self) -> None:
        """Raise an error for parameters that are only valid for classes."""
        for name in ("cost", "class_weight"):
            if getattr(self.model, name) is not None:
                raise ValueError(f"`{name}` is for classes, but `y` has several labels.")
        if self.model.transductive or self.model.multi_class == "crammer_singer":
            raise ValueError('Several labels require `transductive=False` and `multi_class="auto"` or `"ovr"`.')

    def read(self, y: Any, X: Any) -> Floats:
        """Return the validated labels of all samples, NaN where missing."""
        self.check()
        labels = read_numbers(y, X)
        if self.model.unlabeled is not None:
            labels[labels == self.model.unlabeled] = np.nan
        unknown = labels[~np.isnan(labels) & (labels != 0) & (labels != 1)]
        if len(unknown):
            raise ValueError(
                f"Several columns of `y` must be labels: 0, 1, or NaN where missing; got {unknown[0]:g}. "
                "Use MultiTaskILSVMClassifier for several targets with other classes."
            )
        return labels

    def observe(
        self, labels: Floats, weights: Floats | None, first: bool, classes: ArrayLike | None
    ) -> tuple[Signs | Numbers, Integers | None]:
        """Return the signs of samples with a label, and their indices."""
        n_labels = labels.shape[1] if first else len(self.model.classes_)
        if labels.shape[1] != n_labels:
            raise ValueError(f"`y` has {labels.shape[1]} labels, but earlier samples had {n_labels}.")
        self.model.classes_ = np.arange(n_labels)
        return observe_values(labels, weights, signs=True, required=first)

    def by_output(self, values: Floats) -> Floats:
        """Return weights unchanged."""
        return values

    def decide(self, scores: Floats) -> Floats:
        """Return the scores of samples, (n, n_labels)."""
        return scores

    def predict(self, scores: Floats) -> NDArray[Any]:
        """Return the labels of each sample, (n, n_labels)."""
        labels: NDArray[Any] = put_beside(to_host(scores > 0).astype(np.int64), scores)
        return labels


@public_estimator
class ILSVMClassifier(ClassifierMixin, PredictiveFeatures):
    """Max-margin classifier on latent features with an Indian buffet process prior.

    The infinite latent support vector machine (iLSVM) jointly learns binary latent features and a max-margin classifier
    on them. Prediction infers the features of a sample without its label, and the margins act on these features.
    ``n_components`` truncates the prior; ``n_components_`` is the number of features in use. ``X`` is centered but not
    scaled.

    For several labels, ``y`` is a matrix of 0 and 1 with a column per label and NaN where a label is missing.

    Tune ``slab`` (None to predict, "half-normal" to interpret the features), ``C``, ``temperature`` and
    ``include_inputs`` first, then ``generative_weight`` and ``alpha``. ``n_components`` only has to be large enough.

    Parameters
    ----------
    C : float or "auto", default="auto"
        Controls the penalty on margin violations. Larger values fit the training labels more closely. "auto" is 1 at
        the default temperature and smaller for nearly binary features (formula in Notes). It must be finite, because
        features that do not separate the classes would have an infinite objective. With ``loss="hinge"`` a large value
        gives hard margins if the features separate the classes.
    loss : {"squared_hinge", "hinge"}, default="squared_hinge"
        Loss of a margin violation.
    multi_class : {"auto", "crammer_singer", "ovr"}, default="auto"
        Controls the margins of a sample. "crammer_singer" is one margin, against the best wrong class; "ovr" is one
        margin per class, against the rest. "auto" chooses by ``include_inputs``, ``cost`` and size (rule in Notes).
    cost : array-like of shape (n_classes, n_classes), default=None
        ``cost[true, predicted]`` is the margin required against a wrong class, in the order of ``classes_``. The
        diagonal is zero; other entries are 1 by default. Larger costs make an error rarer with the squared hinge. Not
        valid with one-vs-rest margins.
    class_weight : dict, "balanced" or None, default=None
        Factors on ``C`` by class.
    fit_intercept : bool, default=True
        Whether the classifier has a (penalized) intercept.
    include_inputs : bool, default=False
        Whether the classifier uses the inputs in addition to the latent features.
    temperature : float or "auto", default="auto"
        Controls how far probabilities stay from 0 and 1, per input. 0.2 ("auto") is a predictive setting; 0.02 gives
        nearly binary features. With ``noise_variance="per_input"`` it is the temperature of the whole model, and "auto"
        is 1.
    margins : {"consistent", "posterior"}, default="consistent"
        Whether margins act on the features that prediction infers ("consistent") or on the posterior given the labels
        ("posterior", the algorithm of the paper).
    unlabeled : object, default=None
        Value of ``y`` that marks an unlabeled sample: a number or a string, but not NaN. Unlabeled samples contribute
        to the features and have no margins. None: all samples are labeled.
    transductive : bool, default=False
        Whether unlabeled samples get margins too, with guessed labels (Joachims, 1999). Their weight grows up to that
        of a labeled sample of the class.
    slab : {"half-normal", "normal"} or None, default=None
        Controls the values of features. None: binary, and `transform` returns probabilities. "half-normal": zero or a
        nonnegative value. "normal": zero or a real value (spike and slab). With a slab most features are clearly zero
        or not, so they are easier to interpret. Then `transform` returns expected values, and `feature_probabilities`
        the probabilities of not being zero. ``C`` is relative to the temperature, and the "auto" rules differ (Notes).
        Only valid with ``margins="consistent"``.
    noise_variance : float, "auto", "estimate" or "per_input", default="auto"
        Controls the variance of the noise. "auto" is half of the inputs' variance, and "estimate" re-estimates that
        value during the fit. "per_input" estimates one variance per input by factor analysis, for data made of binary
        parts; it requires ``slab=None`` and ``margins="consistent"``.
    prior_variance : float, "auto" or "estimate", default="auto"
        Controls the prior variance of the loadings. "auto" is proportional to the noise variance (formula in Notes);
        "estimate" re-estimates it during the fit.
    n_init : int, default=1
        Maximum number of restarts of a degenerate fit: one that is worse than a constant prediction on the training
        samples, or never predicts classes with a large share of them. A `PoorFitWarning` reports that restarts failed.
    warm_start : bool, default=False
        Whether ``fit`` continues from the last solution, without a structure search. Features that the last fit pruned
        do not return. A lower temperature is approached in steps.
    random_state : int, RandomState instance or None, default=None
        Controls the samples that the structure search uses if there are more than 8192, and the restarts. With
        ``margins="posterior"`` it controls the initialization, which is deterministic otherwise.

    Attributes
    ----------
    classes_ : array of shape (n_classes,)
        The classes. For several labels, the indices of their columns.
    multi_class_ : {"crammer_singer", "ovr"}
        The margins of the fit.
    coef_features_ : array of shape ``(n_classes, n_components_)``, or ``(1, n_components_)`` for two classes
        Weights of the features in use.
    intercept_ : array of shape (n_classes,) or (1,)
    coef_inputs_ : array of shape (n_classes, n_features) or (1, n_features)
        Weights of the inputs, with ``include_inputs=True``.
    trace_ : Trace
        History of the objective and its named terms after the structure search. A transductive fit has the histories of
        all its stages in sequence.

    See Also
    --------
    IBPFactorAnalysis : The features without labels.
    ILSVMClassifierCV : Chooses the parameters by cross-validation.

    Notes
    -----
    Let ``T`` be the temperature, ``r = min(1, T / 0.2)``, ``m`` the number of margins of a sample, and ``s`` the share
    of labeled samples. The "auto" rules are:

    - Without a slab, ``C`` is ``sqrt(r)``, ``generative_weight`` is ``0.03 * C * m * s**0.75 / sqrt(r)``, and the prior
      variance is the noise variance over 0.3. With ``noise_variance="per_input"``, these formulas use ``T = 0.02``.
    - With a slab, ``T`` is 0.003, and ``C`` (1 for "auto") is multiplied by ``10 / 3 * T``. ``generative_weight`` is
      ``0.003 * C * m * s**0.75``, and the prior variance is the noise variance times ``generative_weight / C``.
    - ``multi_class`` is "ovr" for three or more classes without ``cost`` in two cases: with ``include_inputs``, or with
      the squared hinge, more than 100,000 labeled samples times classes, and more than 2,000 weights.

    The model is in :doc:`/theory/ilsvm`. Arrays of PyTorch and CuPy are supported under
    ``sklearn.config_context(array_api_dispatch=True)`` (:doc:`/scale`).

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from regbayes import ILSVMClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> model = ILSVMClassifier(n_components=16, tol=1e-2, random_state=0).fit(X[::2], y[::2])
    >>> model.score(X[1::2], y[1::2]) > 0.9
    True
    """

    n_components: int = 50
    _: KW_ONLY
    loss: Literal["squared_hinge", "hinge"] = "squared_hinge"
    multi_class: Literal["auto", "crammer_singer", "ovr"] = "auto"
    cost: ArrayLike | None = None
    class_weight: Any = None
    fit_intercept: bool = True
    include_inputs: bool = False
    margins: Literal["consistent", "posterior"] = "consistent"
    unlabeled: Any = None
    transductive: bool = False
    noise_variance: float | Literal["auto", "estimate", "per_input"] = "auto"
    prior_variance: float | Literal["auto", "estimate"] = "auto"
    n_init: int = 1

    predict_proba = NoProbabilities("ILSVMClassifierCV")
    _several = False  # whether the targets are several labels
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **PredictiveFeatures._parameter_constraints,
        "loss": [StrOptions({"squared_hinge", "hinge"})],
        "multi_class": [StrOptions({"auto", "crammer_singer", "ovr"})],
        "cost": ["array-like", None],
        "class_weight": [dict, StrOptions({"balanced"}), None],
        "fit_intercept": ["boolean"],
        "include_inputs": ["boolean"],
        "margins": [StrOptions({"consistent", "posterior"})],
        "unlabeled": "no_validation",
        "transductive": ["boolean"],
        **VARIANCES,
        "n_init": [Interval(Integral, 1, None, closed="left")],
    }

    @property
    def _kind(self) -> OneClass | SeveralLabels:
        return SeveralLabels(self) if self._several else OneClass(self)

    def _check_targets(self, y: Any, X: Any, first: bool) -> Any:
        if first:
            self._several = is_label_matrix(y)
        return self._kind.read(y, X)

    def _observe(
        self, values: Any, weights: Floats | None, first: bool, classes: ArrayLike | None
    ) -> tuple[Targets, Integers | None]:
        return self._kind.observe(values, weights, first, classes)

    def _make_settings(self, data: Data, n_labeled: int | None = None) -> Settings:
        if self.margins == "posterior" and self.generative_weight == 0:
            raise ValueError('`generative_weight` must be positive with `margins="posterior"`; got 0.')
        if self.margins == "posterior" and self.slab is not None:
            raise ValueError(f'`margins="posterior"` requires `slab=None`; got {self.slab!r}.')
        if self.noise_variance == "per_input" and (self.slab is not None or self.margins == "posterior"):
            raise ValueError('`noise_variance="per_input"` requires `slab=None` and `margins="consistent"`.')
        if self.cost is not None and self.multi_class == "ovr":
            raise ValueError('`cost` requires `multi_class="crammer_singer"` or `"auto"`; got `"ovr"`.')
        given: Mapping[str, Any] = self.get_params(deep=False) | ({"multi_class": "ovr"} if self._several else {})
        n_labeled = len(data.labeled) if n_labeled is None else n_labeled
        supervision = make_supervision(given, len(self.classes_), labeled_share(data), n_labeled)
        self.multi_class_ = "ovr" if supervision.one_vs_rest else "crammer_singer"
        return make_settings(given, data.X.totals.mean_square, data.X.n_inputs, supervision)

    @with_callbacks
    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Learn from a batch of samples, which are not kept.

        The first batch is fitted like any other data: it determines the features, their number and the centering. Give
        it at least a thousand samples in random order. Each further batch of at least some dozens updates features and
        weights. After ``fit``, learning continues from that solution.

        Make about two passes over the data, then call `fit_weights`. Parameters are read in the first call;
        ``embedding_`` is that of the last batch, and ``trace_`` that of the first.

        Not valid with ``loss="hinge"``, ``margins="posterior"``, ``transductive=True`` or ``class_weight="balanced"``.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,) or (n_samples, n_labels)
            Classes or labels.
        classes : array-like of shape (n_classes,), default=None
            All classes; required in the first call, except for several labels.
        sample_weight : array-like of shape (n_samples,), default=None
            How often each sample counts. A sample of a second pass counts again.

        Returns
        -------
        self
        """
        self._check_squared("partial_fit")
        if self.margins == "posterior" or self.transductive:
            raise ValueError(
                '`partial_fit` requires `margins="consistent"` and `transductive=False`. Set them, or use `fit`.'
            )
        if isinstance(self.class_weight, str):
            raise ValueError(
                f"`partial_fit` does not support `class_weight={self.class_weight!r}`, because the classes of later "
                "batches are unknown. Pass a dict, for example from sklearn.utils.compute_class_weight."
            )
        if not hasattr(self, "_state") and classes is None and not is_label_matrix(y):
            raise ValueError("The first call of `partial_fit` requires `classes`, all classes that `y` will have.")
        return self._partial_fit(X, y, sample_weight, classes)

    def _check_batch_settings(self, settings: Settings) -> None:
        n_weights = len(self.classes_) * (settings.n_components + 1)
        if not settings.one_vs_rest and n_weights > HEAD_POLICY.max_class_weights:
            raise ValueError(
                f"`multi_class={self.multi_class!r}` has {n_weights} weights for {len(self.classes_)} classes, and "
                f'batches support {HEAD_POLICY.max_class_weights}. Set `multi_class="ovr"`, or use `fit`.'
            )

    def _head_attributes(self, state: State, used: Integers) -> dict[str, Any]:
        head, kind = state.head, self._kind
        assert head is not None
        latent, intercept = self._linear_in_use(state, used)
        found = {"coef_features_": kind.by_output(latent), "intercept_": kind.by_output(intercept)}
        if state.input_scale:
            K, D = state.params.loadings.shape
            found["coef_inputs_"] = kind.by_output(state.input_scale * head.weights[:, K : K + D])
        return found

    def decision_function(self, X: ArrayLike) -> Floats:
        """Return the score of each class or label, shape (n_samples, n_classes), or (n_samples,) for two classes."""
        return self._kind.decide(self._scores(X))

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the class of each sample, shape (n_samples,), or its labels as 0 or 1, (n_samples, n_labels)."""
        return self._kind.predict(self._scores(X))

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return the accuracy of samples that have a label.

        For several labels it is the share of samples whose observed labels are all predicted.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,) or (n_samples, n_labels)
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each sample.
        """
        y, predicted, sample_weight = on_host(y, self.predict(X), sample_weight)
        y = y.toarray() if hasattr(y, "toarray") else y
        return subset_accuracy(y, predicted, unlabeled=self.unlabeled, sample_weight=sample_weight)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags
