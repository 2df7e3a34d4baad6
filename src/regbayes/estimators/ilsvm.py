"""`ILSVMClassifier`: latent features that predict."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    _fit_context,
)
from sklearn.callback import CallbackSupportMixin, with_callbacks
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from regbayes._registry import Saveable, persistable
from regbayes._types import Floats
from regbayes.estimators._classes import chosen_classes, coded_classes, cost_matrix, weights_by_class
from regbayes.estimators._common import (
    LATENT_CONSTRAINTS,
    NOT_NEGATIVE,
    POSITIVE,
    generator,
    labeled_rows,
    one_blas_thread,
    row_weights,
    set_fitted,
    warn_if_truncated,
    warn_if_unused,
)
from regbayes.estimators._latent import (
    centre_rows,
    classifier_attributes,
    drop_weightless,
    earlier_fit,
    infer_label_free,
    latent_attributes,
    settings_of,
    supervision_of,
)
from regbayes.estimators._reporting import FitReporter, warn_of_status
from regbayes.models.ilsvm import fit, warmup
from regbayes.models.ilsvm.model import UNLABELED, Data, Params, Rows, Settings, State


@persistable(skip=("_skl_callbacks",))
class ILSVMClassifier(
    Saveable,
    CallbackSupportMixin,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    ClassifierMixin,
    BaseEstimator,
):
    """Infinite latent support vector machine: binary features under an Indian buffet prior that predict the label.

    Features and a large-margin classifier on them are learned together: the margins act on the features as they are
    inferred for a new row, without its label. ``n_components`` is only where the prior is cut off; ``n_components_``
    says how many features the data use. X is centred inside and never scaled.

    Parameters
    ----------
    n_components : int, default=50
        Truncation: the most features there can be.
    alpha : float, default=2.0
        Concentration of the Indian buffet process: larger values expect more features.
    C : float or "auto", default="auto"
        Price of a margin violation. "auto" is 1, and less for on/off features: the square root of the temperature over
        0.2, where that is below 1.
    loss : {"squared_hinge", "hinge"}, default="squared_hinge"
        Loss of a margin.
    multi_class : {"auto", "crammer_singer", "ovr"}, default="auto"
        Whether a row has one margin, against the best wrong answer, or one for each answer, against the rest. "auto" is
        one-vs-rest for three classes or more where the classifier sees the inputs and there is no ``cost``: with many
        inputs and few labels it does better there, and Crammer and Singer's margin everywhere else.
    cost : array-like of shape (n_classes, n_classes), default=None
        ``cost[true, answer]`` of a wrong answer, in the order of ``classes_``, with a zero diagonal; 1 by default. It
        is the margin asked for; to make an error rare, use it with the squared hinge, whose price grows with it.
        Not for one-vs-rest margins.
    class_weight : dict, "balanced" or None, default=None
        Factors on C by class.
    fit_intercept : bool, default=True
        Whether the classifier has a (penalised) intercept.
    include_inputs : bool, default=False
        Whether the classifier sees the inputs beside the latent features.
    temperature : float or "auto", default="auto"
        Heat of the features per input. 0.2 ("auto") gives graded features, for predicting; 0.02 gives nearly on/off
        ones, for reading.
    generative_weight : float or "auto", default="auto"
        Weight of explaining X beside predicting y; "auto" is 0.03 C for every margin of a row, less where rows have no
        label: times the share of those that have one to the power 0.75.
    margins : {"consistent", "posterior"}, default="consistent"
        Whether margins act on the features that prediction infers, or on the posterior of the training rows, which
        is the paper's algorithm.
    unlabeled : object, default=None
        A value of y that marks rows without a label: they shape the features and have no margin. None: no value does.
    transductive : bool, default=False
        Whether unlabelled rows get margins too, under guessed labels that count more and more (Joachims 1999), up to
        what labelled rows of their class do.
    noise_variance, prior_variance : float, "auto" or "estimate", default="auto"
        Variances of the noise and of the loadings, each for itself: a number; "auto", which sets it from the inputs'
        variance; or "estimate", which starts there and re-estimates it.
    n_sweeps : int, default=1
        Sweeps of mean-field inference for a row.
    max_iter : int, default=200
        Steps at most, after a warm-up of a few dozen; of a few hundred where ``temperature`` is far below the default.
    tol : float, default=1e-3
        Relative change of the objective at which to stop.
    warm_start : bool, default=False
        Whether ``fit`` goes on from the last solution, without a warm-up: features that were left out do not return.
        A lower temperature than that of the last fit is approached in steps.
    random_state : int, RandomState instance or None, default=None
        For the start.
    n_jobs : int or None, default=None
        Threads. The result does not depend on it.
    verbose : int, default=0
        Whether to show a progress bar.

    Attributes
    ----------
    classes_ : array of shape (n_classes,)
    n_components_ : int
        Features in use: on somewhere (above .5) and not the same everywhere (range above .1) over the training rows.
    components_ : array of shape (n_components, n_features)
        Loadings of the features.
    coef_ : array of shape (n_classes, n_components), or (1, n_components) for two classes
        Weights of the features.
    intercept_ : array of shape (n_classes,) or (1,)
    coef_inputs_ : array of shape (n_classes, n_features) or (1, n_features)
        Weights of the inputs, where they are included.
    embedding_ : array of shape (n_samples, n_components)
        Label-free posterior means of the training rows' features.
    stick_weights_ : array of shape (n_components,)
        Share of rows that the prior expects to have each feature.
    mean_ : array of shape (n_features,)
    noise_variance_, prior_variance_ : float
    trace_ : Trace
        Course of the objective and its named terms, from the end of the warm-up on. That of a transductive fit has
        all its rounds, end to end.
    n_iter_ : int
        Iterations in it.
    n_features_in_, feature_names_in_
        As in scikit-learn.

    See Also
    --------
    IBPFactorAnalysis : The features without labels.
    ILSVMClassifierCV : Chooses the parameters by cross-validation.

    Notes
    -----
    docs/math.md, sections 2 and 3.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from regbayes import ILSVMClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> model = ILSVMClassifier(n_components=16, tol=1e-2, random_state=0).fit(X[::2], y[::2])
    >>> model.score(X[1::2], y[1::2]) > 0.9
    True
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **LATENT_CONSTRAINTS,
        "C": [POSITIVE, StrOptions({"auto"})],
        "loss": [StrOptions({"squared_hinge", "hinge"})],
        "multi_class": [StrOptions({"auto", "crammer_singer", "ovr"})],
        "cost": ["array-like", None],
        "class_weight": [dict, StrOptions({"balanced"}), None],
        "fit_intercept": ["boolean"],
        "include_inputs": ["boolean"],
        "generative_weight": [NOT_NEGATIVE, StrOptions({"auto"})],
        "margins": [StrOptions({"consistent", "posterior"})],
        "unlabeled": "no_validation",
        "transductive": ["boolean"],
    }

    def __init__(
        self,
        n_components: int = 50,
        *,
        alpha: float = 2.0,
        C: float | Literal["auto"] = "auto",
        loss: Literal["squared_hinge", "hinge"] = "squared_hinge",
        multi_class: Literal["auto", "crammer_singer", "ovr"] = "auto",
        cost: ArrayLike | None = None,
        class_weight: Any = None,
        fit_intercept: bool = True,
        include_inputs: bool = False,
        temperature: float | Literal["auto"] = "auto",
        generative_weight: float | Literal["auto"] = "auto",
        margins: Literal["consistent", "posterior"] = "consistent",
        unlabeled: Any = None,
        transductive: bool = False,
        noise_variance: float | Literal["auto", "estimate"] = "auto",
        prior_variance: float | Literal["auto", "estimate"] = "auto",
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
        self.loss = loss
        self.multi_class = multi_class
        self.cost = cost
        self.class_weight = class_weight
        self.fit_intercept = fit_intercept
        self.include_inputs = include_inputs
        self.temperature = temperature
        self.generative_weight = generative_weight
        self.margins = margins
        self.unlabeled = unlabeled
        self.transductive = transductive
        self.noise_variance = noise_variance
        self.prior_variance = prior_variance
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
        """Learn features and classifier together.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
            Labels; rows whose label is ``unlabeled`` have none.
        sample_weight : array-like of shape (n_samples,), default=None
            How often each row counts, in the features as in the margins: 2 is the row twice, 0 is the row left out.

        Returns
        -------
        self
        """
        X, y = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        weights = row_weights(sample_weight, X)
        data = self._prepare(*drop_weightless(X, y, weights))
        share = data.labeled_share
        settings = settings_of(self, data.X, supervision_of(self, len(self.classes_), share))
        reporter = FitReporter(self, self._stages(data), {"X": X, "y": y}, _attributes, self.verbose)
        with one_blas_thread(), reporter:
            start: State | Params | None = earlier_fit(self, settings, data.X.n_inputs)
            early_rows, seed = None, 0
            if start is None:
                rng = generator(self.random_state)
                start = self._start(data.X, settings, rng)
                early_rows = warmup.draw_early_rows(data.labels, rng)
                seed = warmup.draw_seed(rng)
            run = fit.fit_transductive if self.transductive else fit.fit
            result = run(
                data, settings, start, margins=self.margins, early_rows=early_rows, seed=seed, callbacks=[reporter]
            )
            set_fitted(self, _attributes(result.state))
            if len(data.X) < len(X):
                self.embedding_ = infer_label_free(Rows.centre(X, self.mean_), result.state.params, self.n_jobs)
            self.trace_, self.n_iter_ = result.trace, result.n_iter
        warn_of_status(self, result)
        if result.status not in fit.CUT_SHORT:  # the number of features is not to be judged by half a fit
            if not self.include_inputs:
                warn_if_unused(self.n_components_)
            warn_if_truncated(self, self.n_components_)
        return self

    def _start(self, X: Rows, settings: Settings, rng: np.random.Generator) -> Params:
        """Return where a new fit starts."""
        return warmup.initial_params(X, settings, rng)

    def _stages(self, data: Data) -> dict[str, int | None]:
        """Return the stages that the fit can have, and the most iterations of each."""
        guesses = self.transductive and bool(np.any(data.labels == UNLABELED))
        return fit.list_stages(self.margins, guesses, int(self.max_iter))

    def _prepare(self, X: Floats, y: NDArray[Any], row_weights: Floats | None) -> Data:
        """Validate labels, weights and costs; remember classes and mean."""
        check_classification_targets(y)
        if self.margins == "posterior" and self.generative_weight == 0:
            raise ValueError('generative_weight must be positive with margins="posterior", got 0')
        if self.cost is not None and self.multi_class == "ovr":
            raise ValueError('cost is for multi_class="crammer_singer": margins against the rest know no wrong answers')
        labeled = labeled_rows(y, self.unlabeled)
        self.classes_, codes = coded_classes(self, y[labeled])
        labels = np.full(len(y), UNLABELED, dtype=np.int64)
        labels[labeled] = codes
        weights = np.ones(len(y)) if row_weights is None else row_weights.copy()
        counted = None if row_weights is None else row_weights[labeled]
        weights[labeled] *= weights_by_class(self.class_weight, self.classes_, codes, counted)[codes]
        rows = centre_rows(X, row_weights)
        self.mean_ = rows.mean
        return Data(rows, labels, weights, cost_matrix(self.cost, len(self.classes_)))

    def transform(self, X: ArrayLike) -> Floats:
        """Return the label-free posterior means of the features of rows, shape (n_samples, n_components)."""
        return self._infer(X)[1]

    def decision_function(self, X: ArrayLike) -> Floats:
        """Return the score of each class, shape (n_samples, n_classes), or (n_samples,) for two classes."""
        rows, psi = self._infer(X)
        scores = self._state.scores(rows, psi)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the class of each row, shape (n_samples,)."""
        return chosen_classes(self.decision_function(X), self.classes_)

    def _infer(self, X: ArrayLike) -> tuple[Rows, Floats]:
        check_is_fitted(self, "components_")
        X = validate_data(self, X, dtype=np.float64, reset=False)
        rows = Rows.centre(X, self.mean_)
        return rows, infer_label_free(rows, self._state.params, self.n_jobs)

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)


def _attributes(state: State) -> dict[str, Any]:
    return latent_attributes(state) | classifier_attributes(state)
