"""The infinite SVM: rows fall into classes of their own, unknown in number, and each has its own linear classifier."""

from __future__ import annotations

from numbers import Integral
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils._param_validation import Interval, StrOptions

from regbayes._registry import persistable
from regbayes._types import Floats
from regbayes.estimators._bases import NOT_NEGATIVE, POSITIVE, LabeledRows, LatentClassifier, generator, one_blas_thread
from regbayes_paper.models import infinite_svm
from regbayes_paper.models.infinite_svm import Data, Settings, State
from regbayes_paper.priors.dirichlet_process import expected_weights
from regbayes_paper.priors.normal_gamma import NormalGammaPrior


@persistable(skip=("_skl_callbacks",))
class InfiniteSVMClassifier(LatentClassifier):
    """Infinite support vector machine (iSVM): a Dirichlet-process mixture of large-margin classifiers.

    Every row belongs to one of a number of components that the data decide on. A component says where its rows lie,
    as a Gaussian with independent columns, and how they are classified, by linear weights of its own. Both are learned
    together, so that rows that want different classifiers part. The score of a class is that of all components,
    weighed by how likely the row is theirs; for a new row that is found without its label.

    Parameters to turn first: ``C`` and ``generative_weight``; then ``alpha`` and ``init``. ``n_components`` only has to
    be large enough, and the three priors seldom matter.

    Parameters
    ----------
    n_components : int, default=10
        Truncation: the most components there can be.
    alpha : float, default=1.0
        Concentration of the Dirichlet process: larger values expect more components.
    C : float, default=1.0
        Penalty on a margin violation. At 0 labels do nothing and every row gets the first class.
    loss : {"squared_hinge", "hinge"}, default="squared_hinge"
        Multi-class loss. The hinge is the original's; its kinks can hold the descent up before its end.
    cost : array-like of shape (n_classes, n_classes), default=None
        ``cost[true, answer]`` of a wrong answer, in the order of ``classes_``, with a zero diagonal; 1 by default.
    class_weight : dict, "balanced" or None, default=None
        Factors on C by class.
    fit_intercept : bool, default=True
        Whether the classifiers have a (penalised) intercept, on centred inputs. Without it they see X as it is.
    generative_weight : float, default=1.0
        Weight of explaining X beside predicting y; the original has 1.
    refit_classifiers : bool, default=True
        Whether the classifiers that predict are fitted to the responsibilities that prediction sees. The original's
        are those of the posterior of the training rows, which knows their labels.
    init : {"merged", "kmeans"}, default="merged"
        Start: k-means with ``n_components`` centres, of which those are merged that explain X better as one; or all of
        them, where labels need finer components than X shows.
    mean_precision_prior : float, default=0.1
        How many rows the belief is worth that components lie around the mean of X.
    degrees_of_freedom_prior : float, default=2.0
        How many rows the belief in ``variance_prior`` is worth.
    variance_prior : float, array-like of shape (n_features,) or "auto", default="auto"
        Believed variance of a column within a component; "auto" is the column's variance.
    max_iter : int, default=200
        Rounds at most.
    tol : float, default=1e-4
        Change of the objective, in nats per row, at which to stop.
    random_state : int, RandomState instance or None, default=None
        For the start.

    Attributes
    ----------
    classes_ : array of shape (n_classes,)
    n_components_ : int
        Components in use: the likeliest one of some training row.
    weights_ : array of shape (n_components,)
        Expected shares of the components, the largest first.
    means_, variances_ : array of shape (n_components, n_features)
        Where the components lie, and how wide they are.
    coef_ : array of shape (n_components, n_classes, n_features), or (n_components, 1, n_features) for two classes
        Weights of the inputs in each component.
    intercept_ : array of shape (n_components, n_classes) or (n_components, 1)
    responsibilities_ : array of shape (n_samples, n_components)
        Posterior of the training rows' components, which knows their labels, those of weight 0 left out; `transform`
        does not.
    trace_ : Trace
        Course of the objective and its named terms.
    n_iter_ : int
    n_features_in_, feature_names_in_
        As in scikit-learn.

    See Also
    --------
    regbayes.ILSVMClassifier : Rows have any number of latent features, instead of one component.

    Notes
    -----
    docs/math.md, section 7.

    References
    ----------
    J. Zhu, N. Chen and E. P. Xing (2011). Infinite SVM: a Dirichlet process mixture of large-margin kernel machines.
    ICML.

    Examples
    --------
    >>> import numpy as np
    >>> from regbayes_paper.baselines import InfiniteSVMClassifier
    >>> X = np.random.default_rng(0).normal(size=(200, 2))
    >>> y = X[:, 1] > 0
    >>> X[::2, 0] += 8
    >>> y[::2] = ~y[::2]  # up on the left is down on the right
    >>> model = InfiniteSVMClassifier(random_state=0).fit(X, y)
    >>> model.n_components_, model.score(X, y) > 0.95
    (2, True)
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "alpha": [POSITIVE],
        "C": [NOT_NEGATIVE],
        "loss": [StrOptions({"squared_hinge", "hinge"})],
        "cost": ["array-like", None],
        "class_weight": [dict, StrOptions({"balanced"}), None],
        "fit_intercept": ["boolean"],
        "generative_weight": [POSITIVE],
        "refit_classifiers": ["boolean"],
        "init": [StrOptions({"merged", "kmeans"})],
        "mean_precision_prior": [POSITIVE],
        "degrees_of_freedom_prior": [POSITIVE],
        "variance_prior": [POSITIVE, StrOptions({"auto"}), "array-like"],
        "max_iter": [Interval(Integral, 0, None, closed="left")],
        "tol": [NOT_NEGATIVE],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        n_components: int = 10,
        *,
        alpha: float = 1.0,
        C: float = 1.0,
        loss: Literal["squared_hinge", "hinge"] = "squared_hinge",
        cost: ArrayLike | None = None,
        class_weight: Any = None,
        fit_intercept: bool = True,
        generative_weight: float = 1.0,
        refit_classifiers: bool = True,
        init: Literal["merged", "kmeans"] = "merged",
        mean_precision_prior: float = 0.1,
        degrees_of_freedom_prior: float = 2.0,
        variance_prior: float | ArrayLike | Literal["auto"] = "auto",
        max_iter: int = 200,
        tol: float = 1e-4,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.alpha = alpha
        self.C = C
        self.loss = loss
        self.cost = cost
        self.class_weight = class_weight
        self.fit_intercept = fit_intercept
        self.generative_weight = generative_weight
        self.refit_classifiers = refit_classifiers
        self.init = init
        self.mean_precision_prior = mean_precision_prior
        self.degrees_of_freedom_prior = degrees_of_freedom_prior
        self.variance_prior = variance_prior
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    def _learn(self, rows: LabeledRows) -> None:
        data = Data(rows.X, rows.counts, rows.targets(float(self.C)))
        settings = self._settings(data)
        with one_blas_thread():
            start = infinite_svm.start_responsibilities(data, settings, generator(self.random_state))
        with self._fitting(_attributes, settings.max_iter, rows.data) as reporter:
            reporter.result = infinite_svm.fit(data, settings, start, callbacks=[reporter])

    def _settings(self, data: Data) -> Settings:
        shape = 0.5 * float(self.degrees_of_freedom_prior)
        mean = data.weights @ data.X / data.weights.sum()
        rate = shape * _resolve_variance(self.variance_prior, data, mean)
        return Settings(
            n_components=int(self.n_components),
            alpha=float(self.alpha),
            prior=NormalGammaPrior(mean, float(self.mean_precision_prior), shape, rate),
            squared=self.loss == "squared_hinge",
            generative_weight=float(self.generative_weight),
            fit_intercept=bool(self.fit_intercept),
            merge=self.init == "merged",
            refit=bool(self.refit_classifiers),
            max_iter=int(self.max_iter),
            tol=float(self.tol),
        )

    def transform(self, X: ArrayLike) -> Floats:
        """Return how likely each component is for rows whose labels are not known, shape (n_samples, n_components)."""
        return infinite_svm.infer_responsibilities(self._valid_rows(X), self._state.params)

    def _class_scores(self, X: ArrayLike) -> Floats:
        return infinite_svm.score(self._valid_rows(X), self._state)

    @property
    def _n_features_out(self) -> int:
        return len(self.coef_)


def _resolve_variance(variance_prior: Any, data: Data, mean: Floats) -> Floats:
    """Turn the parameter into a variance for each column; columns that do not vary get 1, which says nothing."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        variance = data.weights @ np.square(data.X - mean) / data.weights.sum()
    constant = np.ptp(data.X, axis=0) == 0
    lost = (variance < np.finfo(np.float64).tiny) & ~constant
    if not np.all(np.isfinite(variance)) or np.any(lost):
        raise ValueError(f"X is too {'small' if np.any(lost) else 'large'} to square it: give it in other units")
    if isinstance(variance_prior, str):
        return np.where(constant, 1.0, variance)
    given = np.asarray(variance_prior, dtype=np.float64)
    if given.shape not in ((), variance.shape):
        raise ValueError(f"variance_prior must be a number or have shape {variance.shape}, got shape {given.shape}")
    bad = given[~((given > 0) & np.isfinite(given))]
    if bad.size:
        raise ValueError(f"variance_prior must be positive and finite, got {bad[0]}")
    return np.broadcast_to(given, variance.shape).copy()


def _attributes(state: State) -> dict[str, Any]:
    """Fitted attributes; a binary classifier is the difference of its two classes."""
    classifier, components = state.classifiers, state.params.components
    D = components.centre.shape[1]
    coef = classifier.weights[:, :, :D]
    intercept = -coef @ classifier.centre
    if classifier.fit_intercept:
        intercept = intercept + classifier.weights[:, :, D]
    if coef.shape[1] == 2:
        coef, intercept = coef[:, 1:] - coef[:, :1], intercept[:, 1:] - intercept[:, :1]
    return {
        "coef_": coef,
        "intercept_": intercept,
        "weights_": expected_weights(state.params.sticks),
        "means_": components.centre,
        "variances_": 1.0 / components.precision,
        "responsibilities_": state.responsibilities,
        "n_components_": len(np.unique(np.argmax(state.responsibilities, axis=1))),
        "_state": state,
    }
