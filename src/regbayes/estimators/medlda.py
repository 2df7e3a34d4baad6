"""`MedLDAClassifier` and `MedLDARegressor`: topics of documents that predict their classes or numbers."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin, RegressorMixin, _fit_context
from sklearn.callback import with_callbacks
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import check_array, column_or_1d

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
from regbayes.estimators._topics import TOPIC_CONSTRAINTS, TopicModel, read_numbers
from regbayes.kernels.arrays import to_host
from regbayes.margins.targets import Classes, Numbers, Signs
from regbayes.models.medlda.topics import FittedTopics


@persistable(skip=("_skl_callbacks", "_checkpoint"))
class MedLDAClassifier(ClassifierMixin, TopicModel):
    """Max-margin supervised topic model: topics of documents that tell their classes apart.

    Latent Dirichlet allocation explains the words of a document by topics; a linear classifier on the shares of the
    topics asks for margins, and topics and classifier are drawn from their joint posterior. Topics then differ where
    classes do, and stay distributions over words that can be read. X holds counts of words, as from
    ``CountVectorizer``.

    Parameters to turn first: ``n_components`` and ``C``; then ``inference``, ``doc_topic_prior`` and ``max_iter``.
    ``burn_in``, ``C_warmup``, ``refit`` and ``n_blocks`` are the sampler's alone, ``n_sweeps`` and ``tol`` those of
    mean field; ``loss``, ``cost`` and ``class_weight`` are about the classifier.

    Parameters
    ----------
    n_components : int, default=40
        Topics.
    inference : {"gibbs", "variational"}, default="variational"
        How topics are inferred. "variational" is mean field, with margins between classes on the expected scores of
        the topics that prediction infers, without the response. Weights of words need not be whole numbers. "gibbs" is
        a collapsed Gibbs sampler of the model with the expected hinge loss (Zhu, Chen, Perkins and Zhang, JMLR 2014),
        with one margin for each class against the rest. It often takes less time.
    C : float, default=1.0
        Penalty on a margin violation, per word of the mean document: the classes weigh as much as C nats per word. 0
        leaves plain latent Dirichlet allocation, whose weights are zero.
    loss : {"hinge", "squared_hinge"} or None, default=None
        None is "squared_hinge" with ``inference="variational"``. The sampler has "hinge" only.
    cost : array-like of shape (n_classes, n_classes), default=None
        ``cost[true, predicted]``: factor on C for a high score of ``predicted``, in the order of ``classes_``; the
        one for a low score of the true class is their mean. With ``inference="variational"`` and more than two
        classes, factor on the margin between them. Zero on the diagonal; the others are 1 by default.
    class_weight : dict, "balanced" or None, default=None
        Factors on C by class.
    doc_topic_prior : float or None, default=None
        Dirichlet parameter of the topics in a document; None is 0.1 for the sampler and 1 for mean field.
    topic_word_prior : float or None, default=None
        Dirichlet parameter of the words in a topic; None is 0.1. Mean field takes 0: topics are then estimated by
        maximum likelihood.
    weight_variance : float or None, default=None
        Prior variance of the classifier's weights; None is 0.25 for the sampler and 0.003 for mean field.
    n_sweeps : int, default=5
        Sweeps over a document by which mean field infers its topics, in training and prediction.
    max_iter : int or None, default=None
        Sweeps over all words, 40 by default; steps of mean field, 100 by default.
    tol : float, default=0.02
        Mean field ends when five steps together lower the objective by less than this share of all it fell so far; 0
        makes ``max_iter`` steps. The sampler does not look at it.
    burn_in : int or float, default=0.5
        Of the sampler, as are ``C_warmup``, ``refit`` and ``n_blocks``. Sweeps before averages are taken: their
        number, or their share of ``max_iter`` if it is a float below 1.
    C_warmup : int, float or None, default=None
        Sweeps over which C grows from nearly zero to its value: their number, or their share of ``max_iter``,
        ``burn_in`` at most. From a random start strong labels split the subjects of the corpus as chance has it; a
        C that grows lets topics form first. None is 0, but ``burn_in`` where there are many topics, which gain
        most: ``n_components`` times classes (or labels; two classes count as one) beyond 4000.
    refit : bool, default=True
        Whether to solve for the weights that predict once more in the end, at the topics' shares that prediction will
        see: those that are inferred for the training documents without their responses (``partial_fit`` by least
        squares). Otherwise they are the mean of the chain's weights, which is also what callbacks see on the way.
    n_blocks : int or "auto", default="auto"
        Documents and words are each cut into so many groups, and as many threads find work. More than one makes
        topics' totals a little old while a group is sampled; "auto" is 1, an exact sampler, below half a million words
        and 16 at most, less where documents are short.
    deterministic : bool, default=False
        Of documents on a GPU: whether a fit has the same bits every time. Sums over documents are then taken in an
        order, which takes longer. On the CPU it has, always.
    warm_start : bool, default=False
        Whether ``fit`` goes on with the chain of the last one, for ``max_iter`` more sweeps. With other documents, and
        with mean field, it begins at the last topics and weights.
    random_state : int, RandomState instance or None, default=None
        For the chain.
    n_jobs : int or None, default=None
        Threads on the CPU. The result does not depend on it.
    verbose : int, default=0
        Whether to show a progress bar.

    Attributes
    ----------
    classes_ : array of shape (n_classes,)
        For indicators of several labels, the numbers of their columns.
    components_ : array of shape (n_components, n_features)
        Expected counts of words in topics plus ``topic_word_prior``.
    coef_features_ : array of shape (n_classes, n_components), or (1, n_components) for two classes
        Mean weights of the topics: ``decision_function(X)`` is ``transform(X) @ coef_features_.T``.
    trace_ : Trace
        Of the negative logarithm of the joint density, term by term, after each sweep: it fluctuates once the chain has
        converged. ``trace_.diagnostics["changed"]`` is the share of words whose topic changed. Of mean field's
        regularized objective otherwise, which never rises.
    n_iter_ : int
        Sweeps of the last fit.
    n_samples_seen_ : int or float
        After ``partial_fit`` by mean field: what the documents of all batches count together.
    n_features_in_, feature_names_in_
        As in scikit-learn.

    See Also
    --------
    MedLDARegressor : The same for numbers.

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
    _default_word_prior: ClassVar[float] = 0.1  # of mean field

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
        """Learn from further documents.

        With ``inference="gibbs"`` the posterior after the earlier ones is the prior of these. Earlier documents stay in
        the counts of words in topics, as the last sweep left them, and in a normal distribution of the weights (Shi and
        Zhu, ICML 2014, "Online Bayesian passive-aggressive learning"). Each call makes ``max_iter`` sweeps over its
        documents.

        With ``inference="variational"`` the first batch has a fit as any other, so it should have a thousand documents
        or more, in no particular order; every further one, of some hundreds, moves the topics a little and the weights
        with them. `fit_weights` has the last word on the weights. Not with ``loss="hinge"``.

        Earlier documents need not be given again: a document given twice counts twice. Documents are not kept.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Counts of words.
        y : array-like of shape (n_samples,) or (n_samples, n_labels)
        classes : array-like of shape (n_classes,), default=None
            All classes there will be; needed in the first call of all, unless y has indicators of labels.
        sample_weight : array-like of shape (n_samples,), default=None
            How often each document counts; the sampler takes whole numbers.

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
        return _indicators(y) if self._several else column_or_1d(y, warn=True)

    def _make_targets(
        self, labels: NDArray[Any], sample_weight: Floats | None, first: bool, classes: Any
    ) -> Signs | Classes | None:
        codes = self._code_classes(labels, classes) if first else self._code_known(labels, classes)
        one_against_all = self.inference == "gibbs" or self._several or len(self.classes_) == 2
        return (self._signs if one_against_all else self._classes)(codes, sample_weight)

    def _code_classes(self, labels: NDArray[Any], classes: ArrayLike | None) -> Integers:
        """Learn what the classes are; return the class of each row, or the indicators of its labels."""
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
        """Return one margin per label or class, but only one for two classes; none where C is zero."""
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
        """Return the margins between classes that mean field asks for; none where C is zero."""
        cost = cost_matrix(self.cost, len(self.classes_))
        by_class = weights_by_class(self.class_weight, self.classes_, codes, sample_weight)
        C = float(self.C) * self._mean_length * by_class[codes]
        return None if self.C == 0 else Classes(codes, cost, C)

    def _attributes(self, fitted: FittedTopics) -> dict[str, Any]:
        """Fitted attributes; plain latent Dirichlet allocation has weights of zero."""
        n = 1 if len(self.classes_) == 2 and not self._several else len(self.classes_)
        coef = fitted.weights if len(fitted.weights) else np.zeros((n, fitted.n_topics))
        return {"_fitted": fitted, "coef_features_": coef}

    def decision_function(self, X: ArrayLike) -> Floats:
        """Return the score of each class or label, shape (n_samples, n_classes), or (n_samples,) for two classes."""
        shares = self._shares(X)
        scores = shares @ put_beside(to_host(self.coef_features_).T, shares)
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
        tags.classifier_tags.poor_score = True  # of scikit-learn's checks, whose samples are not documents
        tags.target_tags.multi_output = True
        return tags


@persistable(skip=("_skl_callbacks", "_checkpoint"))
class MedLDARegressor(RegressorMixin, TopicModel):
    """Max-margin supervised topic model for numbers: topics of documents that predict a rating or a year.

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
        tags.regressor_tags.poor_score = True  # of scikit-learn's checks, whose samples are not documents
        return tags


def _indicators(y: Any) -> Integers:
    y = check_array(y, accept_sparse="csr", input_name="y", ensure_2d=True)
    y = y.toarray() if hasattr(y, "toarray") else y
    if not np.all((y == 0) | (y == 1)):
        raise ValueError("indicators of labels in y must be 0 or 1")
    return y.astype(np.int64)
