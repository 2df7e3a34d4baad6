"""The max-margin harmonium (MMH): latent features of an undirected model, learned together with a classifier."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from numpy.typing import ArrayLike
from sklearn.utils._param_validation import StrOptions

from regbayes._registry import persistable
from regbayes._types import Floats
from regbayes.estimators._bases import NOT_NEGATIVE, POSITIVE, LabeledRows, LatentClassifier
from regbayes_paper.baselines._harmonium import HARMONIUM_CONSTRAINTS, classifier_attributes
from regbayes_paper.baselines.harmonium import Harmonium
from regbayes_paper.models.harmonium.learning import Data
from regbayes_paper.models.harmonium.model import State


@persistable(skip=("_skl_callbacks",))
class MaxMarginHarmoniumClassifier(LatentClassifier, Harmonium):
    """Max-margin harmonium (MMH): latent features of an undirected model that predict the label.

    An exponential family harmonium and a large-margin classifier on its expected hidden units are learned together. The
    number of hidden units is fixed: it is for cross-validation to find, where `regbayes.ILSVMClassifier` finds its own.

    Parameters to turn first: ``n_components``, ``C`` and ``generative_weight``, and ``visible`` for columns that are
    not real values. ``learning_rate``, ``batch_size`` and ``n_gibbs`` are for contrastive divergence alone.

    Parameters
    ----------
    n_components : int, default=50
        Number of hidden units.
    C : float, default=0.01
        Penalty on a violated margin, summed over rows. At 0 the features are those of `ExponentialFamilyHarmonium`, and
        every row gets the first class.
    loss : {"squared_hinge", "hinge"}, default="squared_hinge"
        Multi-class loss.
    cost : array-like of shape (n_classes, n_classes), default=None
        ``cost[true, answer]`` of a wrong answer, in the order of ``classes_``, with a zero diagonal; 1 by default.
    class_weight : dict, "balanced" or None, default=None
        Factors on C by class.
    fit_intercept : bool, default=True
        Whether the classifier has a (penalised) intercept.
    generative_weight : float or "auto", default="auto"
        Weight of explaining X beside predicting y; "auto" is 0.01 C. The original objective has 1, with the hinge.
        The best one differs from data to data, in steps of ten: worth a search.
    visible, learning, learning_rate, batch_size, n_gibbs
        As in `ExponentialFamilyHarmonium`.
    noise_variance : float, "half" or "residual", default="half"
        As in `ExponentialFamilyHarmonium`. The less is put down to noise, the harder it is for margins to turn hidden
        units away from where the rows vary most.
    max_iter : int, default=200
        Steps (mean field) or sweeps over the rows (contrastive divergence) at most.
    tol : float, default=1e-4
        Change of the objective at which to stop: that of a row, in units of its loss or in nats, whichever count more.
    random_state : int, RandomState instance or None, default=None
        For hidden units beyond the rank of the rows, and the draws of contrastive divergence.

    Attributes
    ----------
    classes_ : array of shape (n_classes,)
    coef_features_ : array of shape (n_classes, n_components), or (1, n_components) for two classes
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
    >>> from regbayes_paper.baselines import MaxMarginHarmoniumClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> model = MaxMarginHarmoniumClassifier(n_components=10, tol=1e-2).fit(X[::2], y[::2])
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
        C: float = 0.01,
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
        random_state: Any = None,
    ) -> None:
        super().__init__(
            n_components,
            visible=visible,
            noise_variance=noise_variance,
            learning=learning,
            learning_rate=learning_rate,
            batch_size=batch_size,
            n_gibbs=n_gibbs,
            max_iter=max_iter,
            tol=tol,
            random_state=random_state,
        )
        self.C = C
        self.loss = loss
        self.cost = cost
        self.class_weight = class_weight
        self.fit_intercept = fit_intercept
        self.generative_weight = generative_weight

    def _learn(self, rows: LabeledRows) -> None:
        self._fit_units(Data(rows.X, rows.counts, rows.targets(float(self.C))), rows.data)

    def _attributes(self, state: State) -> dict[str, Any]:
        return super()._attributes(state) | classifier_attributes(state)

    def _class_scores(self, X: ArrayLike) -> Floats:
        hidden = self._expected(X)
        return self._state.head.scores(hidden)
