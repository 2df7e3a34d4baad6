"""`MedLDAClassifier` and `MedLDARegressor`: supervised topic models."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin, RegressorMixin, _fit_context
from sklearn.callback import with_callbacks
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import column_or_1d

from regbayes._registry import persistable
from regbayes._types import Floats, Integers
from regbayes.estimators._arrays import put_beside
from regbayes.estimators._bases import (
    NOT_NEGATIVE,
    check_known_classes,
    check_labels,
    check_several,
    cost_matrix,
    known_codes,
    pick_classes,
    weights_by_class,
)
from regbayes.estimators._calibration import NoProbabilities
from regbayes.estimators._topics import TOPIC_CONSTRAINTS, TopicModel, read_indicators, read_numbers
from regbayes.kernels.arrays import to_host
from regbayes.margins.targets import Classes, Numbers, Signs
from regbayes.models.medlda.topics import FittedTopics


@persistable(skip=("_skl_callbacks", "_checkpoint"))
class MedLDAClassifier(ClassifierMixin, TopicModel):
    """Max-margin supervised topic model for classification.

    MedLDA jointly learns latent Dirichlet allocation and a linear classifier on the topic proportions. The topics
    differ between classes and remain distributions over words. ``X`` holds word counts, as from ``CountVectorizer``.

    Tune ``n_components`` and ``C`` first, then ``inference``, ``doc_topic_prior`` and ``max_iter``. ``burn_in``,
    ``C_warmup``, ``refit`` and ``n_blocks`` are only used with ``inference="gibbs"``; ``n_sweeps`` and ``tol``, only
    with "variational".

    Parameters
    ----------
    n_components : int, default=40
        Number of topics.
    inference : {"gibbs", "variational"}, default="variational"
        Controls how topics are inferred. "variational" is mean field with margins between classes, on the expected
        scores of the topics that prediction infers; counts may be real numbers. "gibbs" is a collapsed Gibbs sampler
        for the expected hinge loss with one-vs-rest margins (Zhu, Chen, Perkins and Zhang, JMLR 2014).
    C : float, default=1.0
        Controls the penalty on margin violations, per word of a document of mean length. Larger values fit the training
        labels more closely. 0 is unsupervised latent Dirichlet allocation, with weights of zero.
    loss : {"hinge", "squared_hinge"} or None, default=None
        Loss of a margin violation. None is "squared_hinge" for "variational" and "hinge" for "gibbs", which supports
        no other.
    cost : array-like of shape (n_classes, n_classes), default=None
        ``cost[true, predicted]`` of a wrong class, in the order of ``classes_``, with a zero diagonal. It is a factor
        on ``C`` for too high a score of the wrong class; the mean over the wrong classes is the factor for too low a
        score of the true class. For "variational" with more than two classes it is the margin required between two
        classes. 1 by default.
    class_weight : dict, "balanced" or None, default=None
        Factors on ``C`` by class.
    doc_topic_prior : float or None, default=None
        Controls how many topics a document has (Dirichlet parameter). Smaller values give fewer. None is 0.1 for
        "gibbs" and 1 for "variational".
    topic_word_prior : float or None, default=None
        Controls how many words a topic has (Dirichlet parameter). Smaller values give fewer. None is 0.1. With
        "variational" it may be 0, which estimates the topics by maximum likelihood.
    weight_variance : float or None, default=None
        Controls the prior variance of the classifier's weights. Smaller values shrink them more. None is 0.25 for
        "gibbs" and 0.003 for "variational".
    include_inputs : bool, default=False
        Whether words have weights of their own, on their tf-idf, in addition to topics. It requires "variational" and
        works on the CPU. Try smaller ``C`` with it.
    n_sweeps : int, default=5
        Number of mean-field sweeps over a document that infer its topics, in training and prediction.
    max_iter : int or None, default=None
        Maximum number of steps, or the number of sweeps over all words with "gibbs". None is 100 steps or 40 sweeps.
    tol : float, default=0.02
        Share of the objective's total decrease below which the decrease in five steps stops the fit. 0 makes
        ``max_iter`` steps.
    burn_in : int or float, default=0.5
        Number of sweeps before averages are taken; a float below 1 is a share of ``max_iter``.
    C_warmup : int, float or None, default=None
        Number of sweeps, or share of ``max_iter``, over which ``C`` grows to its value, at most ``burn_in``. A warm-up
        lets topics form before the labels act, which matters with many topics. None is ``burn_in`` if ``n_components``
        times classes (or labels; 1 for two classes) exceeds 4000, and 0 otherwise.
    refit : bool, default=True
        Whether to solve for the final weights at the topic proportions that prediction infers (by least squares with
        ``partial_fit``). Otherwise the weights are the chain's mean, which callbacks see in either case.
    n_blocks : int or "auto", default="auto"
        Controls the number of groups into which documents and words are divided, and thereby parallelism. 1 is the
        exact sampler; with more, the topic totals of a group lag behind. "auto" is 1 below half a million words and at
        most 16, fewer for short documents.
    deterministic : bool, default=False
        Whether repeated fits on a GPU are bitwise identical, which takes longer. Fits on the CPU always are.
    warm_start : bool, default=False
        Whether ``fit`` continues the last chain, for ``max_iter`` more sweeps. With other documents, and with
        "variational", it starts at the last topics and weights.
    random_state : int, RandomState instance or None, default=None
        Controls the initialization and the chain.
    n_jobs : int or None, default=None
        Number of threads on the CPU. The result does not depend on it.
    verbose : int, default=0
        Whether to show a progress bar.

    Attributes
    ----------
    classes_ : array of shape (n_classes,)
        The classes. For several labels, the indices of their columns.
    components_ : array of shape (n_components, n_features)
        Expected counts of words in topics plus ``topic_word_prior``.
    coef_features_ : array of shape (n_classes, n_components), or (1, n_components) for two classes
        Mean weights of the topics: ``decision_function(X)`` is ``transform(X) @ coef_features_.T``, plus the tf-idf
        of the words (``TfidfTransformer``) times ``coef_inputs_.T`` with ``include_inputs=True``.
    coef_inputs_ : array of shape (n_classes, n_features) or (1, n_features)
        Weights of the tf-idf of words, with ``include_inputs=True``.
    idf_ : array of shape (n_features,)
        Inverse document frequencies, with ``include_inputs=True``.
    trace_ : Trace
        History of the objective and its terms. With "gibbs" it is the negative log joint density, which fluctuates
        after convergence, and ``trace_.diagnostics["changed"]`` is the share of words whose topic changed.
    n_iter_ : int
        Number of steps or sweeps of the last fit.
    n_samples_seen_ : int or float
        After ``partial_fit`` with "variational": total weight of the documents of all batches.
    n_features_in_, feature_names_in_
        As in scikit-learn.

    See Also
    --------
    MedLDARegressor : The same model for numbers.

    Examples
    --------
    >>> from sklearn.feature_extraction.text import CountVectorizer
    >>> from regbayes import MedLDAClassifier
    >>> texts = ["ball goal match", "goal team ball", "vote law party", "law vote court"] * 5
    >>> vectorizer = CountVectorizer()
    >>> X = vectorizer.fit_transform(texts)
    >>> model = MedLDAClassifier(2, random_state=0).fit(X, ["sport", "sport", "politics", "politics"] * 5)
    >>> model.predict(vectorizer.transform(["a match of two teams and a ball", "the court of law"])).tolist()
    ['sport', 'politics']
    >>> [sorted(words) for words in model.top_words(2, vocabulary=vectorizer.get_feature_names_out())]
    [['ball', 'goal'], ['law', 'vote']]
    """

    predict_proba = NoProbabilities("MedLDAClassifierCV")
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **TOPIC_CONSTRAINTS,
        "loss": [StrOptions({"hinge", "squared_hinge"}), None],
        "cost": ["array-like", None],
        "class_weight": [dict, StrOptions({"balanced"}), None],
    }
    _default_variances: ClassVar[dict[str, float]] = {"gibbs": 0.25, "variational": 0.003}
    _default_word_prior: ClassVar[float] = 0.1  # for mean field

    def __init__(
        self,
        n_components: int = 40,
        *,
        inference: Literal["gibbs", "variational"] = "variational",
        C: float = 1.0,
        loss: Literal["hinge", "squared_hinge"] | None = None,
        cost: ArrayLike | None = None,
        class_weight: Any = None,
        doc_topic_prior: float | None = None,
        topic_word_prior: float | None = None,
        weight_variance: float | None = None,
        include_inputs: bool = False,
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
        self.loss = loss
        self.cost = cost
        self.class_weight = class_weight
        self.doc_topic_prior = doc_topic_prior
        self.topic_word_prior = topic_word_prior
        self.weight_variance = weight_variance
        self.include_inputs = include_inputs
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
    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Learn from further documents, which are not kept.

        With ``inference="gibbs"`` the posterior of earlier documents is the prior of these. It consists of the counts
        of words in topics after the last sweep, and a normal distribution of the weights (Shi and Zhu, ICML 2014,
        "Online Bayesian passive-aggressive learning"). Each call makes ``max_iter`` sweeps over its documents.

        With ``inference="variational"`` the first batch is fitted like any other data. Give it at least a thousand
        documents in random order. Each further batch of some hundreds updates topics and weights; call `fit_weights`
        after the last. ``loss="hinge"`` is not supported.

        Do not pass earlier documents again: a document passed twice counts twice.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Word counts.
        y : array-like of shape (n_samples,) or (n_samples, n_labels)
        classes : array-like of shape (n_classes,), default=None
            All classes; required in the first call, unless ``y`` has indicators of labels.
        sample_weight : array-like of shape (n_samples,), default=None
            How often each document counts; integers with "gibbs".

        Returns
        -------
        self
        """
        return self._learn_more(X, y, sample_weight, classes)

    def _check_batches(self, y: Any, first: bool, classes: Any) -> None:
        super()._check_batches(y, first, classes)
        if first and classes is None and type_of_target(y) != "multilabel-indicator":
            raise ValueError("the first call of partial_fit needs classes=, all the classes that y will have")
        if isinstance(self.class_weight, str):
            raise ValueError(
                f"partial_fit does not know how often classes will occur: give class_weight={self.class_weight!r} as a "
                "dict, from sklearn.utils.compute_class_weight"
            )

    def _read_responses(self, y: Any, first: bool) -> NDArray[Any]:
        """Return the class of each document, or the indicators of its labels."""
        if first:
            check_labels(y)
            self._several = type_of_target(y) == "multilabel-indicator"
        return read_indicators(y) if self._several else column_or_1d(y, warn=True)

    def _make_targets(
        self, labels: NDArray[Any], sample_weight: Floats | None, first: bool, classes: Any
    ) -> Signs | Classes | None:
        codes = self._code_classes(labels, classes) if first else self._code_known(labels, classes)
        one_against_all = self.inference == "gibbs" or self._several or len(self.classes_) == 2
        return (self._signs if one_against_all else self._classes)(codes, sample_weight)

    def _code_classes(self, labels: NDArray[Any], classes: ArrayLike | None) -> Integers:
        """Set ``classes_``; return the class code of each document, or the indicators of its labels."""
        if self._several:
            self.classes_ = np.arange(labels.shape[1])
            if self.cost is not None or self.class_weight is not None:
                raise ValueError("cost and class_weight are for classes, but y has indicators of several labels")
            return labels
        found, codes = np.unique(labels, return_inverse=True)
        self.classes_ = found if classes is None else np.unique(column_or_1d(classes))
        check_several(self, self.classes_)
        return codes if classes is None else known_codes(labels, self.classes_)

    def _code_known(self, labels: NDArray[Any], classes: ArrayLike | None) -> Integers:
        if self._several:
            if labels.shape[1] != len(self.classes_):
                raise ValueError(f"y has {labels.shape[1]} labels, but earlier documents had {len(self.classes_)}")
            return labels
        known = to_host(self.classes_)
        check_known_classes(classes, known)
        return known_codes(labels, known)

    def _signs(self, codes: Integers, sample_weight: Floats | None) -> Signs | None:
        """Return one margin per label or class, only one for two classes, or None if C is 0."""
        if self._several:
            signs, factors = 2.0 * codes - 1.0, np.ones(codes.shape)
        else:
            n = len(self.classes_)
            by_class = weights_by_class(self.class_weight, self.classes_, codes, sample_weight)
            cost = cost_matrix(self.cost, n)
            cost += np.diag(cost.sum(axis=1) / (n - 1))
            signs = np.where(codes[:, None] == np.arange(n), 1.0, -1.0)
            factors = cost[codes] * by_class[codes, None]
            if n == 2:
                signs, factors = signs[:, 1:], factors[:, 1:]
        if self.C == 0:
            return None
        return Signs(signs, float(self.C) * self._mean_length * factors)

    def _classes(self, codes: Integers, sample_weight: Floats | None) -> Classes | None:
        """Return the margins between classes, or None if C is 0."""
        cost = cost_matrix(self.cost, len(self.classes_))
        by_class = weights_by_class(self.class_weight, self.classes_, codes, sample_weight)
        C = float(self.C) * self._mean_length * by_class[codes]
        return None if self.C == 0 else Classes(codes, cost, C)

    def _attributes(self, fitted: FittedTopics) -> dict[str, Any]:
        """Return the fitted attributes; the weights are zero if C is 0."""
        n = 1 if len(self.classes_) == 2 and not self._several else len(self.classes_)
        coef = fitted.weights if len(fitted.weights) else np.zeros((n, fitted.n_topics))
        found = {"_fitted": fitted, "coef_features_": coef}
        if self.include_inputs:
            found["coef_inputs_"] = (
                np.zeros((n, self.n_features_in_)) if fitted.word_weights is None else fitted.word_weights
            )
        return found

    def decision_function(self, X: ArrayLike) -> Floats:
        """Return the score of each class or label, shape (n_samples, n_classes), or (n_samples,) for two classes."""
        scores = self._linear_scores(X)
        return scores[:, 0] if len(self.coef_features_) == 1 and not self._several else scores

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the class of each document, shape (n_samples,), or indicators of its labels, (n_samples, n_labels)."""
        scores = self.decision_function(X)
        if self._several:
            return put_beside(to_host(scores > 0).astype(np.int64), scores)
        return pick_classes(scores, self.classes_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        tags.classifier_tags.poor_score = True  # scikit-learn's checks use samples that are not documents
        tags.target_tags.multi_output = True
        return tags


@persistable(skip=("_skl_callbacks", "_checkpoint"))
class MedLDARegressor(RegressorMixin, TopicModel):
    """Max-margin supervised topic model for regression.

    The topics are those of `MedLDAClassifier`. The loss is epsilon-insensitive, and targets are standardized inside.

    Tune ``n_components`` and ``C`` first, then ``inference``, ``epsilon`` and ``max_iter``.

    Parameters
    ----------
    n_components : int, default=40
        Number of topics.
    inference : {"gibbs", "variational"}, default="variational"
        As in `MedLDAClassifier`.
    C : float, default=3.0
        Controls the penalty on residuals beyond ``epsilon``, in standard deviations of the targets and per word of a
        document of mean length. Larger values fit the training targets more closely. 0 is unsupervised latent Dirichlet
        allocation, which predicts the mean.
    epsilon : float, default=0.1
        Controls the size up to which residuals have no loss, in standard deviations of the targets.
    loss : {"epsilon_insensitive", "squared_epsilon_insensitive"} or None, default=None
        Loss of a residual. None is "squared_epsilon_insensitive" for "variational" and "epsilon_insensitive" for
        "gibbs", which supports no other.
    doc_topic_prior : float or None, default=None
        As in `MedLDAClassifier`.
    topic_word_prior : float or None, default=None
        As in `MedLDAClassifier`, but None is 0.1 for "gibbs" and 0.5 for "variational".
    weight_variance : float or None, default=None
        Controls the prior variance of the weights, in squared standard deviations of the targets. Smaller values shrink
        them more. None is 1 for "gibbs" and 0.01 for "variational".
    include_inputs, n_sweeps, max_iter, tol, burn_in, C_warmup, refit, n_blocks, deterministic, warm_start
        As in `MedLDAClassifier`.
    random_state, n_jobs, verbose
        As in `MedLDAClassifier`.

    Attributes
    ----------
    components_ : array of shape (n_components, n_features)
        Expected counts of words in topics plus ``topic_word_prior``.
    coef_features_ : array of shape (n_components,) or (n_targets, n_components)
        Mean weights of the topics, in units of the targets: ``predict(X)`` is
        ``transform(X) @ coef_features_.T + intercept_``, plus the part of the words with ``include_inputs=True``.
    coef_inputs_, idf_ : array of shape (n_features,) or (n_targets, n_features); array of shape (n_features,)
        As in `MedLDAClassifier`.
    intercept_ : float or array of shape (n_targets,)
        Mean of the targets.
    trace_, n_iter_, n_features_in_, feature_names_in_
        As in `MedLDAClassifier`.

    See Also
    --------
    MedLDAClassifier : The same model for classes.

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
    _default_word_prior: ClassVar[float] = 0.5  # for mean field

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
        include_inputs: bool = False,
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
        self.include_inputs = include_inputs
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

        The targets of the first call determine their mean and scale.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Word counts.
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
        sample_weight : array-like of shape (n_samples,), default=None
            How often each document counts; integers with "gibbs".

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
        """Return the targets in units of the first call, or None if C is 0."""
        if self.C == 0:
            return None
        scaled = (values - self._mean) / self._scale
        return Numbers(scaled, np.full(scaled.shape, float(self.C) * self._mean_length), float(self.epsilon))

    def _attributes(self, fitted: FittedTopics) -> dict[str, Any]:
        """Return the fitted attributes, in units of the targets; the weights are zero if C is 0."""
        zeros = np.zeros((len(self._mean), fitted.n_topics))
        coef = fitted.weights * self._scale[:, None] if len(fitted.weights) else zeros
        found: dict[str, Any] = {"_fitted": fitted, "coef_features_": coef, "intercept_": self._mean}
        if self.include_inputs:
            words = np.zeros((len(coef), self.n_features_in_)) if fitted.word_weights is None else fitted.word_weights
            found["coef_inputs_"] = words * self._scale[:, None]
        if self._single:
            found |= {name: value[0] for name, value in found.items() if name != "_fitted"}
            found["intercept_"] = float(found["intercept_"])
        return found

    def predict(self, X: ArrayLike) -> Floats:
        """Return the predicted numbers, shape (n_samples,) or (n_samples, n_targets)."""
        scores = self._linear_scores(X)
        mean = self.intercept_
        return scores + (mean if isinstance(mean, float) else put_beside(to_host(mean), scores))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.regressor_tags.poor_score = True  # scikit-learn's checks use samples that are not documents
        return tags
