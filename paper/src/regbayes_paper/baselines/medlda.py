"""MedLDA as in the paper's appendix B: mean field with margins on the posterior of the training documents."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

import numpy as np
from joblib import effective_n_jobs
from numpy.typing import ArrayLike
from sklearn.utils._param_validation import StrOptions

from regbayes._registry import persistable
from regbayes._types import Floats
from regbayes.engine import make_executor
from regbayes.estimators._bases import POSITIVE, generator
from regbayes.estimators._topics import TOPIC_CONSTRAINTS, Counts, TopicModel, as_documents, work_on_cpu
from regbayes.estimators.medlda import MedLDAClassifier, TopicClassifier
from regbayes.estimators.medlda_regressor import MedLDARegressor, TopicRegressor
from regbayes.margins.targets import Numbers, Targets
from regbayes_paper.models.medlda import posterior

FIRST_DOC_TOPIC_PRIOR = 0.1  # where the estimate of the prior begins
FIRST_RESPONSE_VARIANCE = 1.0  # that of the targets: topics explain nothing yet

SHARED_CONSTRAINTS: dict[str, list[Any]] = {
    **{
        name: TOPIC_CONSTRAINTS[name]
        for name in ("n_components", "C", "tol", "warm_start", "random_state", "n_jobs", "verbose")
    },
    "doc_topic_prior": [POSITIVE, StrOptions({"estimate"})],
    "topic_word_prior": TOPIC_CONSTRAINTS["topic_word_prior"][:1],
    "weight_variance": [POSITIVE],
    "max_iter": TOPIC_CONSTRAINTS["max_iter"][:1],
}


class PosteriorTopics(TopicModel):
    """What the classifier and the regressor share: their fit."""

    inference = "variational"  # documents may have any weights, and counts need not be whole

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Learn topics and weights together.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Counts of words on the CPU; they need not be whole.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Classes, or an indicator (0 or 1) for each of several labels; for the regressor numbers.
        sample_weight : array-like of shape (n_samples,), default=None
            How often each document counts, its words and its response; any weight that is not negative.

        Returns
        -------
        self
        """
        work_on_cpu(self, X, "fit")
        return super().fit(X, y, sample_weight)

    def _fit_topics(
        self,
        counts: Counts,
        targets: Targets | None,
        sample_weight: Floats | None,
        data: dict[str, Any],
        streaming: bool = False,
    ) -> Self:
        start = self._earlier_topics(counts.shape[1])
        phases = {posterior.WARM_UP: posterior.n_warm_up_rounds(targets, start), posterior.ROUNDS: int(self.max_iter)}
        with self._fitting(self._attributes, phases, data, self.verbose) as reporter:
            reporter.result = posterior.fit(
                as_documents(counts),
                counts.shape[1],
                targets,
                self._settings(),
                executor=make_executor(effective_n_jobs(self.n_jobs)),
                sample_weight=sample_weight,
                start=start,
                callbacks=[reporter],
            )
        return self

    def _settings(self) -> posterior.Settings:
        estimated, variance = self.doc_topic_prior == "estimate", getattr(self, "response_variance", None)
        return posterior.Settings(
            n_components=int(self.n_components),
            doc_topic_prior=FIRST_DOC_TOPIC_PRIOR if estimated else float(self.doc_topic_prior),
            estimate_doc_prior=estimated,
            topic_word_prior=float(self.topic_word_prior),
            weight_variance=float(self.weight_variance),
            squared=self.loss.startswith("squared"),
            response_variance=FIRST_RESPONSE_VARIANCE if variance == "auto" else variance,
            estimate_response=variance == "auto",
            max_iter=int(self.max_iter),
            tol=float(self.tol),
            seed=int(generator(self.random_state).integers(2**31)),
        )


@persistable(skip=("_skl_callbacks",))
class PosteriorMedLDAClassifier(PosteriorTopics, TopicClassifier):
    """MedLDA for classes as in the paper: the margins act on the posterior of the training documents.

    New documents have no labels, so their topics are inferred without the margins that shaped those of the training
    documents. `regbayes.MedLDAClassifier` has margins on label-free features instead.

    Parameters
    ----------
    n_components : int, default=40
        Number of topics.
    C : float, default=1.0
        Penalty on a margin violation, per word of the mean document. 0 leaves latent Dirichlet allocation.
    margin : float, default=1.0
        Required margin.
    loss : {"hinge", "squared_hinge"}, default="hinge"
        Loss of the expected scores; for more than two classes that of Crammer and Singer.
    cost, class_weight
        As in `regbayes.MedLDAClassifier`.
    doc_topic_prior : float or "estimate", default=0.1
        Dirichlet parameter of the topics in a document. "estimate" estimates one for each topic (empirical Bayes).
    topic_word_prior : float, default=0.1
        Dirichlet parameter of the words in a topic. 0 estimates topics by maximum likelihood.
    weight_variance : float, default=0.25
        Prior variance of the classifier's weights.
    max_iter : int, default=100
        Maximum number of rounds after the warm-up, which ignores the classes.
    tol : float, default=0.02
        The fit ends when five rounds together lower the objective by less than this share of all it fell so far.
    warm_start : bool, default=False
        Whether ``fit`` begins at the topics of the last one.
    random_state : int, RandomState instance or None, default=None
        For the first topics.
    n_jobs : int or None, default=None
        Number of threads. The result does not depend on it.
    verbose : int, default=0
        Whether to show a progress bar.

    Attributes
    ----------
    classes_, components_, coef_features_, trace_, n_iter_, n_features_in_, feature_names_in_
        As in `regbayes.MedLDAClassifier`; ``trace_`` and ``n_iter_`` are those of the rounds after the warm-up.

    See Also
    --------
    regbayes.MedLDAClassifier : Margins on label-free features, or a Gibbs sampler.

    Notes
    -----
    docs/math.md, section 5.5.

    References
    ----------
    J. Zhu, N. Chen and E. P. Xing (2014). Bayesian inference with posterior regularization and applications to infinite
    latent SVMs. JMLR 15, appendix B.

    Examples
    --------
    >>> from sklearn.feature_extraction.text import CountVectorizer
    >>> from regbayes_paper.baselines import PosteriorMedLDAClassifier
    >>> texts = ["ball goal match", "goal team ball", "vote law party", "law vote court"] * 5
    >>> vectorizer = CountVectorizer()
    >>> X = vectorizer.fit_transform(texts)
    >>> model = PosteriorMedLDAClassifier(2, random_state=0).fit(X, ["sport", "sport", "politics", "politics"] * 5)
    >>> model.predict(vectorizer.transform(["a match of two teams and a ball", "the court of law"])).tolist()
    ['sport', 'politics']
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **SHARED_CONSTRAINTS,
        **{name: MedLDAClassifier._parameter_constraints[name] for name in ("margin", "cost", "class_weight")},
        "loss": [StrOptions({"hinge", "squared_hinge"})],
    }

    def __init__(
        self,
        n_components: int = 40,
        *,
        C: float = 1.0,
        margin: float = 1.0,
        loss: Literal["hinge", "squared_hinge"] = "hinge",
        cost: ArrayLike | None = None,
        class_weight: Any = None,
        doc_topic_prior: float | Literal["estimate"] = 0.1,
        topic_word_prior: float = 0.1,
        weight_variance: float = 0.25,
        max_iter: int = 100,
        tol: float = 0.02,
        warm_start: bool = False,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.C = C
        self.margin = margin
        self.loss = loss
        self.cost = cost
        self.class_weight = class_weight
        self.doc_topic_prior = doc_topic_prior
        self.topic_word_prior = topic_word_prior
        self.weight_variance = weight_variance
        self.max_iter = max_iter
        self.tol = tol
        self.warm_start = warm_start
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose


@persistable(skip=("_skl_callbacks",))
class PosteriorMedLDARegressor(PosteriorTopics, TopicRegressor):
    """MedLDA for numbers as in the paper: margins on the posterior of the training documents, and a Gaussian response.

    Targets are centered and scaled by `fit`.

    Parameters
    ----------
    n_components : int, default=40
        Number of topics.
    C : float, default=3.0
        Penalty on one standard deviation of the targets beyond epsilon, per word of the mean document.
    epsilon : float, default=0.1
        Residuals up to this are free, in standard deviations of the targets.
    loss : {"epsilon_insensitive", "squared_epsilon_insensitive"}, default="epsilon_insensitive"
        Loss of the expected predictions.
    doc_topic_prior : float or "estimate", default=0.1
        As in `PosteriorMedLDAClassifier`.
    topic_word_prior : float, default=0.5
        Dirichlet parameter of the words in a topic. 0 estimates topics by maximum likelihood.
    weight_variance : float, default=1.0
        Prior variance of the topics' weights, in squared standard deviations of the targets.
    response_variance : float, "auto" or None, default=None
        Variance of a Gaussian response in the likelihood, as in the paper's regression model, in squared standard
        deviations of the targets. "auto" estimates one for each target (empirical Bayes). None: margins only. With
        ``C=0`` the response alone remains: supervised latent Dirichlet allocation with normal weights.
    max_iter, tol, warm_start, random_state, n_jobs, verbose
        As in `PosteriorMedLDAClassifier`.

    Attributes
    ----------
    components_, coef_features_, intercept_, trace_, n_iter_, n_features_in_, feature_names_in_
        As in `regbayes.MedLDARegressor`.
    response_variance_ : float or array of shape (n_targets,), or None
        Variance of the Gaussian response, in squared units of the targets. None if there is no such response.

    See Also
    --------
    PosteriorMedLDAClassifier : The same for classes.
    regbayes.MedLDARegressor : Margins on label-free features, or a Gibbs sampler.

    Notes
    -----
    docs/math.md, sections 5.5 and 5.7.

    References
    ----------
    J. Zhu, N. Chen and E. P. Xing (2014). Bayesian inference with posterior regularization and applications to infinite
    latent SVMs. JMLR 15, appendix B.

    Examples
    --------
    >>> from sklearn.feature_extraction.text import CountVectorizer
    >>> from regbayes_paper.baselines import PosteriorMedLDARegressor
    >>> texts = ["good great story", "great warm good", "dull poor plot", "poor slow dull"] * 5
    >>> vectorizer = CountVectorizer()
    >>> X = vectorizer.fit_transform(texts)
    >>> model = PosteriorMedLDARegressor(4, random_state=0).fit(X, [5, 4, 1, 2] * 5)
    >>> good, poor = model.predict(vectorizer.transform(["a great and good film", "a dull, poor film"]))
    >>> bool(good > 3 > poor)
    True
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **SHARED_CONSTRAINTS,
        "epsilon": MedLDARegressor._parameter_constraints["epsilon"],
        "response_variance": [POSITIVE, StrOptions({"auto"}), None],
        "loss": [StrOptions({"epsilon_insensitive", "squared_epsilon_insensitive"})],
    }

    def __init__(
        self,
        n_components: int = 40,
        *,
        C: float = 3.0,
        epsilon: float = 0.1,
        loss: Literal["epsilon_insensitive", "squared_epsilon_insensitive"] = "epsilon_insensitive",
        doc_topic_prior: float | Literal["estimate"] = 0.1,
        topic_word_prior: float = 0.5,
        weight_variance: float = 1.0,
        response_variance: float | Literal["auto"] | None = None,
        max_iter: int = 100,
        tol: float = 0.02,
        warm_start: bool = False,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.C = C
        self.epsilon = epsilon
        self.loss = loss
        self.doc_topic_prior = doc_topic_prior
        self.topic_word_prior = topic_word_prior
        self.weight_variance = weight_variance
        self.response_variance = response_variance
        self.max_iter = max_iter
        self.tol = tol
        self.warm_start = warm_start
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    def _numbers(self, values: Floats) -> Numbers | None:
        """Return what is asked for; where C is zero, what a Gaussian response sees."""
        if self.C == 0 and self.response_variance is None:
            return None
        scaled = (values - self._mean) / self._scale
        return Numbers(scaled, np.full(scaled.shape, float(self.C) * self._mean_length), float(self.epsilon))

    def _attributes(self, fitted: Any) -> dict[str, Any]:
        variance = fitted.response_variance
        if variance is not None:
            variance = variance * self._scale**2
            variance = variance[0] if self._single else variance
        return {**super()._attributes(fitted), "response_variance_": variance}
