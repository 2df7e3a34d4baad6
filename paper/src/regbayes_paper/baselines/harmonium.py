"""Harmoniums: what those with and without labels do with rows, and the one without (EFH)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.metaestimators import available_if

from regbayes._registry import persistable
from regbayes._types import Floats
from regbayes.estimators._bases import LatentModel, TrainingRows, UnsupervisedFeatures, generator
from regbayes_paper.baselines._harmonium import (
    HARMONIUM_CONSTRAINTS,
    check_values,
    latent_attributes,
    make_settings,
    make_visible,
    read_views,
    views_of,
)
from regbayes_paper.models.harmonium import learning, model
from regbayes_paper.models.harmonium.learning import Data
from regbayes_paper.models.harmonium.model import State


def _in_mean_field(harmonium: ExponentialFamilyHarmonium) -> bool:
    if harmonium.learning != "mean_field":
        raise AttributeError('log-densities need a normaliser, which only learning="mean_field" has')
    return True


class Harmonium(LatentModel):
    """What both estimators do with rows."""

    _parameter_constraints: ClassVar[dict[str, Any]] = HARMONIUM_CONSTRAINTS

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
        random_state: Any = None,
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
        self.random_state = random_state

    def _fit_units(self, data: Data, shown: dict[str, Any]) -> None:
        """Fit the model and set the fitted attributes."""
        settings = make_settings(self.get_params(deep=False))
        names = getattr(self, "feature_names_in_", None)
        views = read_views(self.visible, data.X.shape[1], names)
        check_values(views, data.X, names)
        visible = make_visible(views, data.X, data.weights, self.noise_variance, settings.n_components)
        rng = generator(self.random_state)
        with self._fitting(self._attributes, settings.max_iter, shown) as reporter:
            reporter.result = learning.fit(data, settings, visible, rng, callbacks=[reporter])

    def _attributes(self, state: State) -> dict[str, Any]:
        return latent_attributes(state)

    def _valid_rows(self, X: ArrayLike) -> Floats:
        rows = super()._valid_rows(X)
        check_values(views_of(self._state.visible), rows, getattr(self, "feature_names_in_", None))
        return rows

    def transform(self, X: ArrayLike) -> Floats:
        """Return the expected hidden units of rows, shape (n_samples, n_components)."""
        return self._expected(X)

    def _expected(self, X: ArrayLike) -> Floats:
        return model.infer_features(self._valid_rows(X), self._state)  # whatever form `set_output` gives transform's

    def inverse_transform(self, X: ArrayLike) -> Floats:
        """Return the expected rows given hidden units, shape (n_samples, n_features); counts at their mean total."""
        return model.reconstruct(self._valid_features(X), self._state)


@persistable(skip=("_skl_callbacks",))
class ExponentialFamilyHarmonium(UnsupervisedFeatures, Harmonium):
    """Exponential family harmonium (EFH): real-valued latent features of an undirected model.

    Visible units (the columns of X: real values, zeros and ones, or counts) are joined to Gaussian hidden units, and
    the expected hidden units of a row are its features. In front of a linear classifier this is the two-stage baseline
    of `MaxMarginHarmoniumClassifier`, which learns both together.

    Parameters to turn first: ``n_components``, and ``visible`` for columns that are not real values; then
    ``noise_variance``. ``learning_rate``, ``batch_size``, ``n_gibbs`` and ``random_state`` are for contrastive
    divergence alone.

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
    random_state : int, RandomState instance or None, default=None
        For the draws of contrastive divergence. Mean field draws nothing.

    Attributes
    ----------
    components_ : array of shape (n_components, n_features)
        Weights between hidden units and standardised columns. Hidden units that the data have no use for have none.
    mean_, scale_ : array of shape (n_features,)
        How columns are standardised: by mean and standard deviation where no hidden unit acts; for counts by the
        column's share of a row's total and the root of it.
    embedding_ : array of shape (n_samples, n_components)
        Expected hidden units of the training rows, those of weight 0 left out.
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
    >>> from regbayes_paper.baselines import ExponentialFamilyHarmonium
    >>> X, _ = load_digits(return_X_y=True)
    >>> ExponentialFamilyHarmonium(n_components=12).fit_transform(X).shape
    (1797, 12)
    """

    def _learn(self, rows: TrainingRows) -> None:
        self._fit_units(Data(rows.X, rows.counts), rows.data)

    @available_if(_in_mean_field)
    def score_samples(self, X: ArrayLike) -> Floats:
        """Return the log-density of each row, shape (n_samples,): exact for Gaussian columns, else in mean field."""
        return model.log_densities(self._valid_rows(X), self._state.params, self._state.visible)

    @available_if(_in_mean_field)
    def score(self, X: ArrayLike, y: Any = None) -> float:
        """Return the mean of `score_samples`: how well held-out rows are explained."""
        return float(np.mean(self.score_samples(X)))
