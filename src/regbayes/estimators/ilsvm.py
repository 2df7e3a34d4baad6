"""`ILSVMClassifier`: latent features that predict."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from numpy.typing import ArrayLike
from sklearn.utils._param_validation import StrOptions

from regbayes._registry import persistable
from regbayes._types import Floats
from regbayes.estimators._bases import (
    LATENT_CONSTRAINTS,
    NOT_NEGATIVE,
    POSITIVE,
    LabeledRows,
    warn_if_unscaled,
)
from regbayes.estimators._batches import BatchClassifier
from regbayes.estimators._calibration import NoProbabilities
from regbayes.estimators._latent import (
    centre_rows,
    classifier_attributes,
    make_settings,
    make_supervision,
)
from regbayes.models.ilsvm.model import Data, Rows, Settings, State


@persistable(skip=("_skl_callbacks",))
class ILSVMClassifier(BatchClassifier):
    """Infinite latent support vector machine: latent features under an Indian buffet prior that predict the label.

    Features and a large-margin classifier on them are learned together: the margins act on the features as they are
    inferred for a new row, without its label. ``n_components`` is only where the prior is cut off; ``n_components_``
    says how many features the data use. X is centred inside and never scaled.

    Parameters to turn first: ``slab`` (None to predict, "half-normal" to read), ``C``, ``temperature`` and
    ``include_inputs``; then ``generative_weight`` and ``alpha``. ``n_components`` only has to be large enough.
    ``loss``, ``multi_class``, ``cost``, ``class_weight`` and ``fit_intercept`` are about the classifier; ``unlabeled``
    and ``transductive`` about rows without a label; ``noise_variance``, ``prior_variance``, ``n_sweeps`` and
    ``margins`` about the model; the rest about how it is fitted.

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
        inputs and few labels it does better there. So it is for 10,000 labelled rows or more with over 2,000 weights
        (classes times features), where Crammer and Singer's margin, which is everywhere else, is too slow.
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
        Weight of explaining X beside predicting y; "auto" is 0.03 C for every margin of a row, over the square root of
        the temperature over 0.2 where that is below 1; less where rows have no label: times the share of those that
        have one to the power 0.75.
    margins : {"consistent", "posterior"}, default="consistent"
        Whether margins act on the features that prediction infers, or on the posterior of the training rows, which
        is the paper's algorithm.
    unlabeled : object, default=None
        A value of y that marks rows without a label: they shape the features and have no margin. None: no value does.
    transductive : bool, default=False
        Whether unlabelled rows get margins too, under guessed labels that count more and more (Joachims 1999), up to
        what labelled rows of their class do.
    slab : {"half-normal"} or None, default=None
        None: a feature of a row is on or off, and its value a probability. "half-normal": it is off, or on by an
        amount, which has a half-normal prior (spike and slab). Few features of a row are on then and most are clearly
        on or off, which makes them the ones to read; `transform` returns expected amounts and `feature_probabilities`
        the probabilities of being on. "auto" is then 0.1 for ``C``, 0.02 for ``temperature``, 0.003 C for
        ``generative_weight``, and for ``prior_variance`` the noise variance times ``generative_weight`` over C.
        Only with consistent ``margins``.
    noise_variance, prior_variance : float, "auto" or "estimate", default="auto"
        Variances of the noise and of the loadings, each for itself: a number; "auto", which sets it from the inputs'
        variance; or "estimate", which starts there and re-estimates it.
    n_sweeps : int, default=1
        Sweeps of mean-field inference for a row.
    n_init : int, default=1
        Starts, of which the fit with the lowest objective is kept; one where ``warm_start`` goes on from a fit. A fit
        that does worse on its training rows than a constant answer, or never answers classes that hold much of their
        weight, has one start more in any case, and a `PoorFitWarning` if that does not help.
    max_iter : int, default=200
        Steps at most, after a warm-up of a few dozen to a few hundred, which settles how many features there are.
    tol : float, default=1e-3
        Relative change of the objective at which to stop.
    warm_start : bool, default=False
        Whether ``fit`` goes on from the last solution, without a warm-up: features that were left out do not return.
        A lower temperature than that of the last fit is approached in steps.
    random_state : int, RandomState instance or None, default=None
        For the rows that the warm-up sees of more than 8192. The start itself is taken from the data, and is the same
        for any order of rows; with ``margins="posterior"`` it is random.
    n_jobs : int or None, default=None
        Threads. The result does not depend on it.
    verbose : int, default=0
        Whether to show a progress bar.

    Attributes
    ----------
    classes_ : array of shape (n_classes,)
    multi_class_ : {"crammer_singer", "ovr"}
        What was used, also where "auto" chose it.
    n_components_ : int
        Features in use: on somewhere (probability above .5) and not the same everywhere (range above .1) over the
        training rows.
    components_ : array of shape (n_components, n_features)
        Loadings of the features.
    coef_ : array of shape (n_classes, n_components), or (1, n_components) for two classes
        Weights of the features.
    intercept_ : array of shape (n_classes,) or (1,)
    coef_inputs_ : array of shape (n_classes, n_features) or (1, n_features)
        Weights of the inputs, where they are included.
    embedding_ : array of shape (n_samples, n_components)
        Label-free posterior means of the training rows' features: probabilities or, with ``slab``, amounts.
    probabilities_ : array of shape (n_samples, n_components)
        With ``slab``: probabilities that the training rows have the features.
    stick_weights_ : array of shape (n_components,)
        Share of rows that the prior expects to have each feature.
    mean_ : array of shape (n_features,)
        Of the rows.
    offset_ : array of shape (n_features,)
        What a row has without any feature: ``embedding_ @ components_ + offset_`` is what features say of the rows.
    noise_variance_, prior_variance_ : float
    objective_ : float
        Objective of the fit, by which starts are compared: lower is better. Its prior is normalised, so that fits with
        different numbers of features can be compared, which those in ``trace_`` cannot.
    trace_ : Trace
        Course of the objective and its named terms, from the end of the warm-up on. That of a transductive fit has
        all its rounds, end to end.
    n_iter_ : int
        Iterations in it.
    n_samples_seen_ : int or float
        After ``partial_fit``: what the rows of all batches count together.
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

    predict_proba = NoProbabilities("ILSVMClassifierCV")
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
        "slab": [StrOptions({"half-normal"}), None],
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
        slab: Literal["half-normal"] | None = None,
        noise_variance: float | Literal["auto", "estimate"] = "auto",
        prior_variance: float | Literal["auto", "estimate"] = "auto",
        n_sweeps: int = 1,
        n_init: int = 1,
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
        self.slab = slab
        self.noise_variance = noise_variance
        self.prior_variance = prior_variance
        self.n_sweeps = n_sweeps
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.warm_start = warm_start
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    def _learn(self, rows: LabeledRows) -> None:
        warn_if_unscaled(rows.X)
        data, settings = self._prepare(rows, centre_rows(rows.X, rows.row_weights))
        self._fit_features(data, settings, rows.given, rows.data, self.margins, self.transductive)

    def _prepare(self, rows: LabeledRows, X: Rows, n_labeled: int | None = None) -> tuple[Data, Settings]:
        """Return centred rows with what is known of them, and the settings that the parameters stand for.

        ``n_labeled`` is how many labels there are to come, where these are not all.
        """
        if self.margins == "posterior" and self.generative_weight == 0:
            raise ValueError('generative_weight must be positive with margins="posterior", got 0')
        if self.margins == "posterior" and self.slab is not None:
            raise ValueError('slab is for margins="consistent": the other algorithm knows no amounts')
        if self.cost is not None and self.multi_class == "ovr":
            raise ValueError('cost is for multi_class="crammer_singer": margins against the rest know no wrong answers')
        data = Data(X, rows.codes, rows.label_weights, rows.cost)
        parameters = self.get_params(deep=False)
        n_labeled = len(data.labeled) if n_labeled is None else n_labeled
        supervision = make_supervision(parameters, len(self.classes_), data.labeled_share, n_labeled)
        self.multi_class_ = "ovr" if supervision.one_vs_rest else "crammer_singer"
        return data, make_settings(parameters, data.X, supervision)

    def _attributes(self, state: State) -> dict[str, Any]:
        return super()._attributes(state) | classifier_attributes(state)

    def transform(self, X: ArrayLike) -> Floats:
        """Return the label-free posterior means of the features of rows, shape (n_samples, n_components).

        They are probabilities or, with ``slab``, expected amounts; see `feature_probabilities`.
        """
        return self._infer(X)[1]

    def _class_scores(self, X: ArrayLike) -> Floats:
        rows, psi = self._infer(X)
        return self._state.scores(rows, psi)
