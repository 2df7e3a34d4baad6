"""Harmoniums: latent features of an undirected model, without labels (EFH) and with large margins (MMH)."""

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
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from regbayes._registry import Saveable, persistable
from regbayes.baselines._harmonium import (
    HARMONIUM_CONSTRAINTS,
    check_values,
    classifier_attributes,
    latent_attributes,
    make_visible,
    previous_state,
    read_views,
    scores,
    settings_of,
    valid_rows,
)
from regbayes.estimators._classes import chosen_classes, coded_classes, cost_matrix, weights_by_class
from regbayes.estimators._common import NOT_NEGATIVE, POSITIVE, generator, one_blas_thread
from regbayes.estimators._reporting import FitReporter, warn_of_status
from regbayes.models.harmonium import fit, predict
from regbayes.models.harmonium.state import Data, State
from regbayes.models.harmonium.units import Visible

Floats = NDArray[np.float64]


def _in_mean_field(estimator: Any) -> bool:
    if estimator.learning != "mean_field":
        raise AttributeError('log-densities need a normaliser, which only learning="mean_field" has')
    return True


class _Harmonium(Saveable, CallbackSupportMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """What both estimators do with rows."""

    def _make_visible(self, X: Floats) -> Visible:
        names = getattr(self, "feature_names_in_", None)
        views = read_views(self.visible, X.shape[1], names)
        check_values(views, X, names)
        return make_visible(views, X, self.noise_variance, int(self.n_components))

    def _learn(self, data: Data, visible: Visible, shown: dict[str, Any], C: float) -> None:
        """Fit the model, from the last solution if that is wanted and possible; set the fitted attributes."""
        settings = settings_of(self, C=C)
        previous = previous_state(self, visible)
        start = multipliers = None
        if previous is not None:
            start, multipliers = previous.globals, previous.multipliers
            if multipliers is not None and multipliers.shape != (len(data.X), len(data.cost)):
                multipliers = None
        reporter = FitReporter(self, settings.max_iter, shown, self._attributes_of, self.verbose)
        with one_blas_thread(), reporter:
            rng = generator(self.random_state)
            result = fit.fit(data, settings, visible, rng, start=start, warm_start=multipliers, callbacks=[reporter])
            for name, value in self._attributes_of(result.state).items():
                setattr(self, name, value)
            self.trace_, self.n_iter_ = result.trace, result.n_iter
        warn_of_status(self, result)

    def _attributes_of(self, state: State) -> dict[str, Any]:
        return latent_attributes(state)

    def transform(self, X: ArrayLike) -> Floats:
        """Return the expected hidden units of rows, shape (n_samples, n_components)."""
        return self._expected(X)

    def _expected(self, X: ArrayLike) -> Floats:
        check_is_fitted(self, "components_")
        return predict.features(valid_rows(self, X), self._state)

    def inverse_transform(self, X: ArrayLike) -> Floats:
        """Return the expected rows given hidden units, shape (n_samples, n_features); counts at their mean total."""
        check_is_fitted(self, "components_")
        X = check_array(X, dtype=np.float64)
        if X.shape[1] != len(self.components_):
            raise ValueError(f"X has {X.shape[1]} features, but inverse_transform takes {len(self.components_)}")
        return predict.reconstruct(X, self._state)

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)


@persistable(skip=("_skl_callbacks",))
class ExponentialFamilyHarmonium(_Harmonium):
    """Exponential family harmonium (EFH): real-valued latent features of an undirected model.

    Visible units (the columns of X: real values, zeros and ones, or counts) are joined to Gaussian hidden units, and
    the expected hidden units of a row are its features. In front of a linear classifier this is the two-stage baseline
    of `MaxMarginHarmoniumClassifier`, which learns both together.

    Parameters
    ----------
    n_components : int, default=50
        Number of hidden units.
    visible : {"gaussian", "bernoulli", "poisson"} or sequence of (kind, columns), default="gaussian"
        What the columns of X are: real values, zeros and ones, or counts. A sequence gives each view its kind and its
        columns, as a slice, indices, names or a mask; every column belongs to one view.
    noise_variance : float, "residual" or "half", default="residual"
        Variance of Gaussian columns given the hidden units. "residual" is what as many principal components leave over,
        which is likeliest, and at least a hundredth of a view's variance; "half" is half of it, and directions that
        vary less than that have no hidden unit.
    learning : {"mean_field", "contrastive_divergence"}, default="mean_field"
        Whether the normaliser is taken in mean field, where learning is deterministic and the likelihood of Gaussian
        columns is exact, or its gradient is estimated from Gibbs steps that start at the rows.
    learning_rate : float, default=0.1
        Length of the steps of contrastive divergence; above 1 they may overshoot.
    batch_size : int, default=100
        Rows in each of those steps.
    n_gibbs : int, default=1
        Gibbs steps before each of them.
    max_iter : int, default=200
        Steps (mean field) or sweeps over the rows (contrastive divergence) at most.
    tol : float, default=1e-4
        Change of the objective, in nats per row, at which to stop.
    warm_start : bool, default=False
        Whether ``fit`` goes on from the last solution.
    random_state : int, RandomState instance or None, default=None
        For the draws of contrastive divergence. Mean field draws nothing.
    verbose : int, default=0
        Whether to show a progress bar.

    Attributes
    ----------
    components_ : array of shape (n_components, n_features)
        Weights between hidden units and standardised columns. Hidden units that the data have no use for have none.
    mean_, scale_ : array of shape (n_features,)
        How columns are standardised: by mean and standard deviation where no hidden unit acts; for counts by the
        column's share of a row's total and the root of it.
    embedding_ : array of shape (n_samples, n_components)
        Expected hidden units of the training rows.
    trace_ : Trace
        Course of the objective and its named terms.
    n_iter_ : int
    n_features_in_, feature_names_in_
        As in scikit-learn.

    See Also
    --------
    MaxMarginHarmoniumClassifier : The same features learned together with a classifier.

    Notes
    -----
    docs/math.md, section 6. With Gaussian columns alone and mean field the model is probabilistic principal component
    analysis. Weights start from a singular value decomposition.

    References
    ----------
    M. Welling, M. Rosen-Zvi and G. Hinton (2004). Exponential family harmoniums with an application to information
    retrieval. NIPS.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from regbayes.baselines import ExponentialFamilyHarmonium
    >>> X, _ = load_digits(return_X_y=True)
    >>> ExponentialFamilyHarmonium(n_components=12).fit_transform(X).shape
    (1797, 12)
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {**HARMONIUM_CONSTRAINTS}

    def __init__(
        self,
        n_components: int = 50,
        *,
        visible: Any = "gaussian",
        noise_variance: float | Literal["residual", "half"] = "residual",
        learning: Literal["mean_field", "contrastive_divergence"] = "mean_field",
        learning_rate: float = 0.1,
        batch_size: int = 100,
        n_gibbs: int = 1,
        max_iter: int = 200,
        tol: float = 1e-4,
        warm_start: bool = False,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.visible = visible
        self.noise_variance = noise_variance
        self.learning = learning
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.n_gibbs = n_gibbs
        self.max_iter = max_iter
        self.tol = tol
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose

    @with_callbacks
    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: ArrayLike, y: Any = None) -> Self:
        """Learn the features of rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : ignored

        Returns
        -------
        self
        """
        X = validate_data(self, X, dtype=np.float64, ensure_min_samples=2)
        visible = self._make_visible(X)
        n = len(X)
        data = Data(X, visible.statistic(X), np.zeros(n, dtype=np.int64), np.ones(n), np.zeros((1, 1)))
        self._learn(data, visible, {"X": X}, C=0.0)
        return self

    @available_if(_in_mean_field)
    def score_samples(self, X: ArrayLike) -> Floats:
        """Return the log-density of each row, shape (n_samples,): exact for Gaussian columns, else in mean field."""
        check_is_fitted(self, "components_")
        return predict.log_densities(valid_rows(self, X), self._state)

    @available_if(_in_mean_field)
    def score(self, X: ArrayLike, y: Any = None) -> float:
        """Return the mean of `score_samples`: how well held-out rows are explained."""
        return float(np.mean(self.score_samples(X)))


@persistable(skip=("_skl_callbacks",))
class MaxMarginHarmoniumClassifier(ClassifierMixin, _Harmonium):
    """Max-margin harmonium (MMH): latent features of an undirected model that predict the label.

    An exponential family harmonium and a large-margin classifier on its expected hidden units are learned together. The
    number of hidden units is fixed: it is for cross-validation to find, where `regbayes.ILSVMClassifier` finds its own.

    Parameters
    ----------
    n_components : int, default=50
        Number of hidden units.
    C : float, default=1.0
        Price of a margin violation. At 0 the features are those of `ExponentialFamilyHarmonium`, and every row gets the
        first class.
    loss : {"squared_hinge", "hinge"}, default="squared_hinge"
        Multi-class loss.
    cost : array-like of shape (n_classes, n_classes), default=None
        ``cost[true, answer]`` of a wrong answer, in the order of ``classes_``, with a zero diagonal; 1 by default.
    class_weight : dict, "balanced" or None, default=None
        Factors on C by class.
    fit_intercept : bool, default=True
        Whether the classifier has a (penalised) intercept.
    generative_weight : float or "auto", default="auto"
        Weight of explaining X beside predicting y; "auto" is 0.01 C. The paper's objective has 1.
    visible, learning, learning_rate, batch_size, n_gibbs
        As in `ExponentialFamilyHarmonium`.
    noise_variance : float, "half" or "residual", default="half"
        As in `ExponentialFamilyHarmonium`. The less is put down to noise, the harder it is for margins to turn hidden
        units away from where the rows vary most.
    max_iter : int, default=200
        Steps (mean field) or sweeps over the rows (contrastive divergence) at most.
    tol : float, default=1e-4
        Change of the objective at which to stop: that of a row, in units of its loss or in nats, whichever count more.
    warm_start : bool, default=False
        Whether ``fit`` goes on from the last solution.
    random_state : int, RandomState instance or None, default=None
        For hidden units beyond the rank of the rows, and the draws of contrastive divergence.
    verbose : int, default=0
        Whether to show a progress bar.

    Attributes
    ----------
    classes_ : array of shape (n_classes,)
    coef_ : array of shape (n_classes, n_components), or (1, n_components) for two classes
        Weights of the features.
    intercept_ : array of shape (n_classes,) or (1,)
    components_, mean_, scale_, embedding_, trace_, n_iter_, n_features_in_, feature_names_in_
        As in `ExponentialFamilyHarmonium`.

    See Also
    --------
    ExponentialFamilyHarmonium : The features without labels.

    Notes
    -----
    docs/math.md, section 6.

    References
    ----------
    N. Chen, J. Zhu and E. P. Xing (2010). Predictive subspace learning for multi-view data: a large margin approach.
    NIPS.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from regbayes.baselines import MaxMarginHarmoniumClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> model = MaxMarginHarmoniumClassifier(n_components=10, C=0.1, tol=1e-2).fit(X[::2], y[::2])
    >>> model.score(X[1::2], y[1::2]) > 0.9
    True
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **HARMONIUM_CONSTRAINTS,
        "C": [NOT_NEGATIVE],
        "loss": [StrOptions({"squared_hinge", "hinge"})],
        "cost": ["array-like", None],
        "class_weight": [dict, StrOptions({"balanced"}), None],
        "fit_intercept": ["boolean"],
        "generative_weight": [POSITIVE, StrOptions({"auto"})],
    }

    def __init__(
        self,
        n_components: int = 50,
        *,
        C: float = 1.0,
        loss: Literal["squared_hinge", "hinge"] = "squared_hinge",
        cost: ArrayLike | None = None,
        class_weight: Any = None,
        fit_intercept: bool = True,
        generative_weight: float | Literal["auto"] = "auto",
        visible: Any = "gaussian",
        noise_variance: float | Literal["residual", "half"] = "half",
        learning: Literal["mean_field", "contrastive_divergence"] = "mean_field",
        learning_rate: float = 0.1,
        batch_size: int = 100,
        n_gibbs: int = 1,
        max_iter: int = 200,
        tol: float = 1e-4,
        warm_start: bool = False,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.C = C
        self.loss = loss
        self.cost = cost
        self.class_weight = class_weight
        self.fit_intercept = fit_intercept
        self.generative_weight = generative_weight
        self.visible = visible
        self.noise_variance = noise_variance
        self.learning = learning
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.n_gibbs = n_gibbs
        self.max_iter = max_iter
        self.tol = tol
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose

    @with_callbacks
    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learn features and classifier together.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)

        Returns
        -------
        self
        """
        X, y = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        visible = self._make_visible(X)
        self._learn(self._prepare(X, y, visible), visible, {"X": X, "y": y}, C=float(self.C))
        return self

    def _prepare(self, X: Floats, y: NDArray[Any], visible: Visible) -> Data:
        """Validate labels, weights and costs; remember the classes."""
        check_classification_targets(y)
        self.classes_, codes = coded_classes(self, y)
        by_class = weights_by_class(self.class_weight, self.classes_, codes)
        cost = cost_matrix(self.cost, len(self.classes_))
        return Data(X, visible.statistic(X), codes, by_class[codes], cost)

    def _attributes_of(self, state: State) -> dict[str, Any]:
        return latent_attributes(state) | classifier_attributes(state)

    def decision_function(self, X: ArrayLike) -> Floats:
        """Return the score of each class, shape (n_samples, n_classes), or (n_samples,) for two classes."""
        return scores(self._expected(X), self._state)

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the class of each row, shape (n_samples,)."""
        return chosen_classes(self.decision_function(X), self.classes_)
