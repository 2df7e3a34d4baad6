"""`MedLDARegressor`: topics of documents that predict numbers."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin, _fit_context
from sklearn.callback import with_callbacks
from sklearn.utils._param_validation import StrOptions

from regbayes._registry import persistable
from regbayes._types import Floats
from regbayes.estimators._arrays import put_beside
from regbayes.estimators._bases import NOT_NEGATIVE
from regbayes.estimators._topics import (
    TOPIC_CONSTRAINTS,
    TopicModel,
    read_numbers,
)
from regbayes.kernels.arrays import to_host
from regbayes.margins.targets import Numbers
from regbayes.models.medlda.topics import FittedTopics


@persistable(skip=("_skl_callbacks", "_checkpoint"))
class MedLDARegressor(RegressorMixin, TopicModel):
    """Max-margin supervised topic model for numbers: topics of documents that predict a rating, a price, a year.

    `MedLDAClassifier` says what the topics are. The loss is epsilon-insensitive; targets are centred and scaled inside.

    Parameters to turn first: ``n_components`` and ``C``; then ``inference``, ``epsilon`` and ``max_iter``.

    Parameters
    ----------
    n_components : int, default=40
        Topics.
    inference : {"gibbs", "variational"}, default="variational"
        As in `MedLDAClassifier`.
    C : float, default=3.0
        Penalty on one standard deviation of the targets beyond epsilon, per word of the mean document. 0 leaves plain
        latent Dirichlet allocation, which predicts the mean.
    epsilon : float, default=0.1
        Residuals up to this are free, in standard deviations of the targets.
    loss : {"epsilon_insensitive", "squared_epsilon_insensitive"} or None, default=None
        None is "squared_epsilon_insensitive" with ``inference="variational"``. The sampler has "epsilon_insensitive"
        only.
    doc_topic_prior : float or None, default=None
        As in `MedLDAClassifier`.
    topic_word_prior : float or None, default=None
        Dirichlet parameter of the words in a topic; None is 0.1 for the sampler and 0.5 for mean field.
    weight_variance : float or None, default=None
        Prior variance of the topics' weights, in squared standard deviations of the targets; None is 1 for the sampler
        and 0.01 for mean field.
    n_sweeps, max_iter, tol, burn_in, C_warmup, refit, n_blocks, deterministic, warm_start
        As in `MedLDAClassifier`.
    random_state, n_jobs, verbose
        As in `MedLDAClassifier`.

    Attributes
    ----------
    components_ : array of shape (n_components, n_features)
        Expected counts of words in topics plus ``topic_word_prior``.
    coef_features_ : array of shape (n_components,) or (n_targets, n_components)
        Mean weights of the topics, in the targets' units: ``predict(X)`` is
        ``transform(X) @ coef_features_.T + intercept_``.
    intercept_ : float or array of shape (n_targets,)
        The mean of the targets.
    trace_, n_iter_, n_features_in_, feature_names_in_
        As in `MedLDAClassifier`.

    See Also
    --------
    MedLDAClassifier : The same for classes.

    Examples
    --------
    >>> from sklearn.feature_extraction.text import CountVectorizer
    >>> from regbayes import MedLDARegressor
    >>> texts = ["good film great cast", "great story good", "dull film poor cast", "poor story dull"] * 5
    >>> vectorizer = CountVectorizer()
    >>> X = vectorizer.fit_transform(texts)
    >>> model = MedLDARegressor(2, random_state=0).fit(X, [5, 4, 1, 2] * 5)
    >>> good, poor = model.predict(vectorizer.transform(["a great and good film", "a dull, poor film"]))
    >>> bool(good > 3 > poor)
    True
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **TOPIC_CONSTRAINTS,
        "epsilon": [NOT_NEGATIVE],
        "loss": [StrOptions({"epsilon_insensitive", "squared_epsilon_insensitive"}), None],
    }
    _default_variances: ClassVar[dict[str, float]] = {"gibbs": 1.0, "variational": 0.01}
    _default_word_prior: ClassVar[float] = 0.5  # of mean field

    def __init__(
        self,
        n_components: int = 40,
        *,
        inference: Literal["gibbs", "variational"] = "variational",
        C: float = 3.0,
        epsilon: float = 0.1,
        loss: Literal["epsilon_insensitive", "squared_epsilon_insensitive"] | None = None,
        doc_topic_prior: float | None = None,
        topic_word_prior: float | None = None,
        weight_variance: float | None = None,
        n_sweeps: int = 5,
        max_iter: int | None = None,
        tol: float = 0.02,
        burn_in: float = 0.5,
        C_warmup: float | None = None,
        refit: bool = True,
        n_blocks: int | Literal["auto"] = "auto",
        deterministic: bool = False,
        warm_start: bool = False,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.inference = inference
        self.C = C
        self.epsilon = epsilon
        self.loss = loss
        self.doc_topic_prior = doc_topic_prior
        self.topic_word_prior = topic_word_prior
        self.weight_variance = weight_variance
        self.n_sweeps = n_sweeps
        self.max_iter = max_iter
        self.tol = tol
        self.burn_in = burn_in
        self.C_warmup = C_warmup
        self.refit = refit
        self.n_blocks = n_blocks
        self.deterministic = deterministic
        self.warm_start = warm_start
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    @with_callbacks
    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Learn from further documents, as in `MedLDAClassifier`.

        The first call's targets say what they are centred and scaled by.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Counts of words.
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
        sample_weight : array-like of shape (n_samples,), default=None
            How often each document counts; the sampler takes whole numbers.

        Returns
        -------
        self
        """
        return self._learn_more(X, y, sample_weight)

    def _read_responses(self, y: Any, first: bool) -> Floats:
        y = read_numbers(self, y)
        if first:
            self._single = y.ndim == 1
        return y[:, None] if y.ndim == 1 else y

    def _make_targets(self, values: Floats, sample_weight: Floats | None, first: bool, classes: Any) -> Numbers | None:
        if first:
            self._mean = np.average(values, axis=0, weights=sample_weight)
            with np.errstate(over="ignore", invalid="ignore"):
                scale = np.sqrt(np.average((values - self._mean) ** 2, axis=0, weights=sample_weight))
            if not np.all(np.isfinite(scale)):
                raise ValueError("y has values too large to square: rescale y")
            self._scale = np.where(scale > 0, scale, 1.0)
        elif values.shape[1] != len(self._mean):
            raise ValueError(f"y has {values.shape[1]} targets, but earlier documents had {len(self._mean)}")
        return self._numbers(values)

    def _numbers(self, values: Floats) -> Numbers | None:
        """Return what is asked for, in units of the first targets; nothing where C is zero."""
        if self.C == 0:
            return None
        scaled = (values - self._mean) / self._scale
        return Numbers(scaled, np.full(scaled.shape, float(self.C) * self._mean_length), float(self.epsilon))

    def _attributes(self, fitted: FittedTopics) -> dict[str, Any]:
        """Fitted attributes, in the targets' units; plain latent Dirichlet allocation has weights of zero."""
        zeros = np.zeros((len(self._mean), fitted.n_topics))
        coef = fitted.weights * self._scale[:, None] if len(fitted.weights) else zeros
        found: dict[str, Any] = {"_fitted": fitted, "coef_features_": coef, "intercept_": self._mean}
        if self._single:
            found |= {name: value[0] for name, value in found.items() if name != "_fitted"}
            found["intercept_"] = float(found["intercept_"])
        return found

    def predict(self, X: ArrayLike) -> Floats:
        """Return the predicted numbers, shape (n_samples,) or (n_samples, n_targets)."""
        shares = self._shares(X)
        intercept = (
            self.intercept_ if isinstance(self.intercept_, float) else put_beside(to_host(self.intercept_), shares)
        )
        return shares @ put_beside(to_host(self.coef_features_).T, shares) + intercept

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.regressor_tags.poor_score = True  # of scikit-learn's checks, whose rows are no documents
        return tags
