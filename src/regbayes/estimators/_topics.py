"""Base of the topic models: validation of counts, fits by either inference, and topics of new documents."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
from joblib import effective_n_jobs
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array, diags_array, issparse
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin, _fit_context
from sklearn.callback import with_callbacks
from sklearn.preprocessing import normalize
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.extmath import randomized_svd
from sklearn.utils.validation import (
    _check_feature_names,
    _check_n_features,
    _check_sample_weight,
    _check_y,
    check_array,
    check_consistent_length,
    check_is_fitted,
    check_non_negative,
    validate_data,
)

from regbayes._types import Floats, Integers, Singles
from regbayes.engine import FitResult, Status, make_executor
from regbayes.estimators._arrays import (
    bring_beside,
    bring_here,
    check_indices,
    check_numbers,
    check_types,
    come_home,
    follow,
    is_elsewhere,
    name_place,
    put_beside,
)
from regbayes.estimators._bases import (
    N_JOBS,
    NOT_NEGATIVE,
    POSITIVE,
    FirstBatchWarning,
    FitReporter,
    IterativeEstimator,
    check_total_weight,
    fit_data,
    generator,
    keep_on_failure,
    one_blas_thread,
    warn_of_status,
)
from regbayes.kernels.arrays import is_sparse, namespace_of, to_host, without_graph
from regbayes.kernels.device_memory import within_memory
from regbayes.kernels.meanfield import WordCounts, lengths_of, padded
from regbayes.margins.targets import Targets
from regbayes.models.medlda import batches, gibbs, meanfield, topics
from regbayes.models.medlda.topics import DeviceCorpus, FittedTopics

Counts = Any  # csr_array, csr_matrix (SciPy is untyped), or the DeviceCorpus of documents on a device

TOPIC_CONSTRAINTS: dict[str, list[Any]] = {
    "n_components": [Interval(Integral, 1, 32767, closed="both")],
    "inference": [StrOptions({"gibbs", "variational"})],
    "C": [NOT_NEGATIVE],
    "include_inputs": ["boolean"],
    "doc_topic_prior": [POSITIVE, None],
    "topic_word_prior": [NOT_NEGATIVE, None],
    "weight_variance": [POSITIVE, None],
    "n_sweeps": [Interval(Integral, 1, None, closed="left")],
    "max_iter": [Interval(Integral, 1, 100_000, closed="both"), None],
    "tol": [NOT_NEGATIVE],
    "burn_in": [Interval(Integral, 0, None, closed="left"), Interval(Real, 0, 1, closed="neither")],
    "C_warmup": [Interval(Integral, 0, None, closed="left"), Interval(Real, 0, 1, closed="left"), None],
    "n_blocks": [Interval(Integral, 1, 128, closed="both"), StrOptions({"auto"})],
    "refit": ["boolean"],
    "deterministic": ["boolean"],
    "warm_start": ["boolean"],
    "random_state": ["random_state"],
    "n_jobs": N_JOBS,
    "verbose": ["verbose"],
}

MIN_FIRST_BATCH_DOCUMENTS = 500  # documents of the first batch below which the topics depend on chance
COUNT_RANGE = (1e-6, 1e15)  # positive counts whose sums single precision can represent
COUNT_TYPES = [np.float64, np.float32, np.int64, np.int32]  # others become the first

# Default priors, chosen on training parts of 20 Newsgroups (classes) and of the movie reviews (numbers); see
# docs/decisions.md.
DOC_TOPIC_PRIOR = {"gibbs": 0.1, "variational": 1.0}
SAMPLER_WORD_PRIOR = 0.1
# Words in addition to topics, chosen on halves of the movie reviews: docs/decisions.md.
WORD_DIRECTIONS = 600  # largest number of directions of the tf-idf that have weights
WORD_GAIN = 5.0  # factor on the tf-idf, relative to topic shares
MANY_TOPICS = 4000  # topics times responses above which C grows during the burn-in by default


class TopicModel(ClassNamePrefixFeaturesOutMixin, TransformerMixin, IterativeEstimator):
    """Base of the topic models: the part that does not depend on the response's type.

    A subclass reads responses, makes `Targets` of them, and returns the fitted attributes in their units.
    """

    _default_variances: ClassVar[dict[str, float]]  # prior variances of the weights, by inference
    _default_word_prior: ClassVar[float]  # for mean field

    @with_callbacks
    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Learn topics and weights.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Word counts. Arrays of PyTorch or CuPy, dense or CSR, are supported under
            ``sklearn.config_context(array_api_dispatch=True)`` with ``inference="variational"``.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Numbers; classes; or an indicator (0 or 1) for each of several labels.
        sample_weight : array-like of shape (n_samples,), default=None
            How often each document counts; 0 leaves it out. The sum of the weights is the size of the corpus relative
            to the priors. With ``inference="gibbs"`` weights are integers, and documents are repeated.

        Returns
        -------
        self
        """
        with keep_on_failure(self), working_on_documents(self, X):
            read = self._read(X, y, sample_weight, first=True)
            return self._fit_topics(*read, fit_data(X, y, sample_weight=sample_weight))

    @_fit_context(prefer_skip_nested_validation=True)
    def fit_weights(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Solve for the weights at the fitted topics, after ``partial_fit``.

        The topic proportions are those that prediction infers, without responses. The topics do not change. The
        parameters are those of `fit`.
        """
        check_is_fitted(self, "coef_features_")
        work_on_cpu(self, X, "fit_weights")
        return self._solve_weights(*self._read(X, y, sample_weight, first=False))

    def _learn_more(self, X: Any, y: Any, sample_weight: Any, classes: Any = None) -> Self:
        """Implement ``partial_fit`` of both estimators."""
        work_on_cpu(self, X, "partial_fit")
        data = fit_data(X, y, sample_weight=sample_weight)
        if self.inference == "gibbs":
            read = self._read(X, y, sample_weight, first=not hasattr(self, "_posterior"), classes=classes)
            return self._fit_topics(*read, data, streaming=True)
        first = not hasattr(self, "_fitted")
        self._check_batches(y, first, classes)
        return self._learn_batch(*self._read(X, y, sample_weight, first=first, classes=classes), data)

    def _read(
        self, X: Any, y: Any, sample_weight: Any, *, first: bool, classes: Any = None
    ) -> tuple[Counts, Targets | None, Floats | None]:
        """Return counts, targets and weights; the first documents determine the mean length and the responses' type."""
        counts = read_counts(self, X, reset=first, whole=self.inference == "gibbs")
        responses = bring_targets(y, counts, "y")
        if responses is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        responses = self._read_responses(responses, first)
        check_consistent_length(counts, responses)
        if sample_weight is not None:
            sample_weight = bring_targets(sample_weight, counts, "sample_weight")
            rows, sample_weight = choose_rows(self.inference, sample_weight, counts)
            counts, responses = counts[rows], responses[rows]
        if first:
            self._mean_length = mean_length(counts, sample_weight)
        return counts, self._make_targets(responses, sample_weight, first, classes), sample_weight

    @abstractmethod
    def _read_responses(self, y: Any, first: bool) -> NDArray[Any]:
        """Return validated responses."""

    @abstractmethod
    def _make_targets(self, responses: Any, sample_weight: Floats | None, first: bool, classes: Any) -> Targets | None:
        """Return the targets, or None if C is 0; the first documents determine classes or units."""

    @abstractmethod
    def _attributes(self, fitted: FittedTopics) -> dict[str, Any]:
        """Return the fitted attributes."""

    def _check_loaded(self) -> None:
        """Raise ValueError if the attributes of a loaded model do not fit each other."""
        self._validate_params()  # scikit-learn does not validate them in `partial_fit` of a fitted model
        if not hasattr(self, "_fitted"):
            return
        shape = self._fitted.word_given_topic.shape
        if shape[0] != self.n_features_in_:
            raise ValueError(f"n_features_in_ is {self.n_features_in_!r}, and the topics have {shape[0]} words")
        posterior, learned = getattr(self, "_posterior", None), getattr(self, "_batches", None)
        if posterior is not None and posterior.word_topic.shape != shape:
            raise ValueError("the counts of earlier documents do not fit the topics")
        if learned is not None:
            params = learned.state.params
            if params.logits.shape != shape or params.table.shape != (shape[0], padded(shape[1])):
                raise ValueError("the topics of earlier batches do not fit those of the model")

    def transform(self, X: ArrayLike) -> Floats:
        """Return the topic proportions of documents, inferred without responses.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Word counts, which may be real numbers.

        Returns
        -------
        array of shape (n_samples, n_components)
            Rows sum to one. A document without words has the proportions of the training corpus.
        """
        return self._shares(X)

    def perplexity(self, X: ArrayLike) -> float:
        """Return an upper bound on the perplexity of documents.

        The perplexity is exp of the negative log-probability per word. The bound is mean-field, given the topics.
        """
        documents, fitted = self._documents(X)
        n_words = float(lengths_of(documents).sum())
        if n_words == 0:
            raise ValueError("perplexity needs at least one word, but X has only empty documents")
        found = topics.bounds(documents, fitted, make_executor(effective_n_jobs(self.n_jobs)))
        return float(np.exp(-found.sum() / n_words))

    def top_words(self, n: Any = 10, *, vocabulary: ArrayLike | None = None) -> list[list[Any]]:
        """Return the most probable words of each topic, the most probable first.

        Parameters
        ----------
        n : int, default=10
            Number of words per topic.
        vocabulary : array-like of shape (n_features,), default=None
            Names of the columns, such as ``CountVectorizer.get_feature_names_out()``. None is ``feature_names_in_`` if
            ``X`` had names, and column numbers otherwise.

        Returns
        -------
        list of n_components lists
        """
        check_is_fitted(self, "coef_features_")
        if not isinstance(n, Integral) or n < 1:
            raise ValueError(f"n must be an integer of at least 1, got {n!r}")
        V = self.n_features_in_
        if vocabulary is None:
            vocabulary = getattr(self, "feature_names_in_", np.arange(V))
        names = np.asarray(vocabulary)
        if names.shape != (V,):
            raise ValueError(f"vocabulary must name the {V} columns of X, got an array of shape {names.shape}")
        best = np.argsort(-self._fitted.components(), axis=1, kind="stable")[:, : int(n)]
        return [names[row].tolist() for row in best]

    @property
    def components_(self) -> Singles:
        """Expected counts of words in topics plus ``topic_word_prior``.

        The shape is (n_components, n_features). Divide rows by their sums to get the topics' distributions over words.
        """
        fitted: FittedTopics | None = getattr(self, "_fitted", None)
        if fitted is None:
            raise AttributeError(f"{type(self).__name__} has no components_ before fit")
        return put_beside(fitted.components(), getattr(self, "coef_features_", None))

    @property
    def _n_features_out(self) -> int:
        return int(self._fitted.n_topics)

    def _documents(self, X: ArrayLike) -> tuple[WordCounts, FittedTopics]:
        check_is_fitted(self, "coef_features_")
        numbers = numbers_of(X)
        if is_elsewhere(numbers) and not topics.takes_devices(self._fitted):
            raise ValueError(
                "`X` must be a NumPy or SciPy array: this model infers documents on the CPU; "
                f"got {name_place(numbers)}."
            )
        counts = read_counts(self, X, reset=False)
        return as_documents(counts), self._fitted

    def _shares(self, X: ArrayLike) -> Floats:
        """Return the result of `transform` as a plain array for any ``set_output``."""
        with room_for_documents(self, X):
            documents, fitted = self._documents(X)
            return topics.proportions(documents, fitted, make_executor(effective_n_jobs(self.n_jobs)))

    def _fit_topics(
        self,
        counts: Counts,
        targets: Targets | None,
        sample_weight: Floats | None,
        data: dict[str, Any],
        streaming: bool = False,
    ) -> Self:
        """Fit by the chosen inference, set the fitted attributes, and return the estimator."""
        sampled = self.inference == "gibbs"
        if sampled:
            self._check_sampler()
        if self.include_inputs and isinstance(counts, DeviceCorpus):
            raise ValueError("include_inputs=True works on the CPU: give X as a NumPy or SciPy array")
        if isinstance(counts, DeviceCorpus) and not self._has_squared_loss:
            raise ValueError(
                f"loss={self.loss!r} needs X on the CPU, as a NumPy or SciPy array, and it is "
                f"{name_place(counts.counts.numbers)}: its multipliers are found one by one. Use loss=None"
            )
        most = self._iteration_limit
        reporter = FitReporter(self, most, data, self._attributes, self.verbose, is_fit=not streaming)
        with one_blas_thread(), reporter:
            if sampled:
                result, attributes = self._run_sampler(counts, targets, streaming, reporter)
            else:
                result = self._run_mean_field(counts, targets, sample_weight, reporter)
                attributes = self._attributes(result.state)
            self._set_fitted(attributes, result)
        if not (sampled and result.status is Status.ITERATION_LIMIT):  # the normal end of a chain
            warn_of_status(self, result)
        return self

    def _check_sampler(self) -> None:
        """Raise an error for parameters that the sampler does not support."""
        refused = {
            "topic_word_prior": (self.topic_word_prior == 0, "the sampler takes a positive number"),
            "include_inputs": (self.include_inputs, "the sampler's scores are those of topics"),
            "loss": (str(self.loss).startswith("squared"), "the sampler draws from the loss as it is"),
        }
        for name, (is_refused, why) in refused.items():
            if is_refused:
                raise ValueError(f'{name}={getattr(self, name)!r} needs inference="variational": {why}')

    def _learn_batch(
        self, counts: Counts, targets: Targets | None, sample_weight: Floats | None, data: dict[str, Any]
    ) -> Self:
        """Learn from a batch of documents by mean field: fit the first, and update the fit with the others.

        The attributes change last, so an invalid batch leaves the model unchanged.
        """
        documents = as_documents(counts)
        if not hasattr(self, "_fitted"):
            if counts.shape[0] < MIN_FIRST_BATCH_DOCUMENTS:
                warnings.warn(
                    f"the first batch has {counts.shape[0]} documents, and topics are learned from it: begin with "
                    f"{MIN_FIRST_BATCH_DOCUMENTS} or more, in no particular order",
                    FirstBatchWarning,
                    stacklevel=4,
                )
            self._fit_topics(counts, targets, sample_weight, data)
            settings = self._label_free_settings()
            with one_blas_thread():
                learned = batches.begin(settings, self._fitted, 0.0, documents, targets, sample_weight)
        else:
            known = self._earlier_batches()
            if known.settings.n_components != self.n_components:
                earlier = known.settings.n_components
                raise ValueError(
                    f"n_components is {self.n_components}, but earlier documents were fitted with {earlier}"
                )
            with one_blas_thread():
                learned, fitted = batches.learn(documents, targets, sample_weight, known)
            if fitted is not None:
                for name, value in self._attributes(fitted).items():
                    setattr(self, name, value)
        n_rows = learned.state.n_rows
        self._batches, self.n_samples_seen_ = learned, int(n_rows) if n_rows.is_integer() else n_rows
        return self

    def _earlier_batches(self) -> batches.Batches:
        """Return the state after earlier documents; after ``fit`` they are weighted by their words."""
        if hasattr(self, "_batches"):
            return self._batches
        n_documents = float(self._fitted.topic_total.sum()) / self._mean_length
        return batches.begin(self._label_free_settings(), self._fitted, n_documents)

    def _solve_weights(self, counts: Counts, targets: Targets | None, sample_weight: Floats | None) -> Self:
        """Solve for the weights at the fitted topics."""
        documents, executor = as_documents(counts), make_executor(effective_n_jobs(self.n_jobs))
        if self.include_inputs or hasattr(self, "coef_inputs_"):
            raise ValueError("fit_weights does not take include_inputs=True; use fit, which solves for all weights")
        if targets is None:
            raise ValueError("fit_weights needs a positive C, got 0, which has no margins and no weights")
        with one_blas_thread():
            if self.inference == "gibbs":
                variance = self._shared_settings()["weight_variance"]
                weights, _ = gibbs.refit_weights(documents, self._fitted, targets, variance, None, executor)
            else:
                settings = self._label_free_settings()
                head = batches.solve_weights(documents, targets, sample_weight, settings, self._fitted, executor)
                weights = meanfield.fold_intercept(head)
                if hasattr(self, "_batches"):
                    self._batches = batches.settle(self._batches, head)
        for name, value in self._attributes(replace(self._fitted, weights=weights)).items():
            setattr(self, name, value)
        return self

    def _check_batches(self, y: Any, first: bool, classes: Any) -> None:
        """Raise an error for parameters that require all documents at once."""
        if self.include_inputs or hasattr(self, "coef_inputs_"):
            raise ValueError("partial_fit does not take include_inputs=True, which needs all documents at once")
        if not self._has_squared_loss:
            raise ValueError(f'partial_fit needs a squared loss, got loss={self.loss!r}; or inference="gibbs"')

    def _run_sampler(
        self, counts: Counts, targets: Any, streaming: bool, reporter: FitReporter
    ) -> tuple[FitResult[Any], dict[str, Any]]:
        """Run the sampler; return the result and the fitted attributes."""
        earlier: gibbs.StreamingPosterior | None = getattr(self, "_posterior", None)
        if streaming and earlier is not None and earlier.word_topic.shape[1] != self.n_components:
            K = earlier.word_topic.shape[1]
            raise ValueError(f"n_components is {self.n_components}, but earlier documents were fitted with {K}")
        goes_on = self.warm_start and not streaming  # the chain of a batch does not include earlier documents
        fits = earlier is not None and len(earlier.word_topic) == counts.shape[1]
        result = gibbs.fit(
            as_documents(counts, np.int32),
            counts.shape[1],
            targets,
            self._sampler_settings(0 if targets is None else targets.n_outputs),
            executor=make_executor(effective_n_jobs(self.n_jobs)),
            earlier=earlier if streaming else None,
            resume=getattr(self, "_checkpoint", None) if goes_on else None,
            init_from=earlier if goes_on and fits else None,
            callbacks=[reporter],
        )
        found = result.state
        checkpoint = found.checkpoint if goes_on else None
        return result, {**self._attributes(found.fitted), "_posterior": found.posterior, "_checkpoint": checkpoint}

    def _run_mean_field(
        self, counts: Counts, targets: Targets | None, sample_weight: Floats | None, reporter: FitReporter
    ) -> FitResult[FittedTopics]:
        return meanfield.fit(
            as_documents(counts),
            counts.shape[1],
            targets,
            self._label_free_settings(),
            executor=make_executor(effective_n_jobs(self.n_jobs)),
            sample_weight=sample_weight,
            start=self._earlier_topics(counts.shape[1]),
            callbacks=[reporter],
            in_order=bool(self.deterministic),
            words=self._make_words(counts, sample_weight) if self.include_inputs else None,
        )

    def _make_words(self, counts: Counts, sample_weight: Floats | None) -> meanfield.WordInputs:
        """Set ``idf_``; return the words of documents along the leading directions of their tf-idf."""
        weights = np.ones(counts.shape[0]) if sample_weight is None else sample_weight
        occurs = weights @ (counts != 0)
        self.idf_ = np.log((1.0 + weights.sum()) / (1.0 + occurs)) + 1.0
        weighed = self._weigh_words(counts)
        rank = min(WORD_DIRECTIONS, *counts.shape)
        directions = WORD_GAIN * randomized_svd(diags_array(np.sqrt(weights)) @ weighed, rank, random_state=0)[2]
        return meanfield.WordInputs(weighed @ directions.T, directions)

    def _weigh_words(self, counts: Counts) -> Any:
        """Return the tf-idf of documents, in rows of length one."""
        return normalize(counts.astype(np.float64) @ diags_array(self.idf_))

    def _linear_scores(self, X: ArrayLike) -> Floats:
        """Return the sum of the scores of topics and words, (n_samples, n_outputs), or (n_samples,) for one number."""
        shares = self._shares(X)
        scores: Floats = shares @ put_beside(to_host(self.coef_features_).T, shares)
        if not hasattr(self, "coef_inputs_"):
            return scores
        if is_elsewhere(numbers_of(X)):
            raise ValueError("include_inputs=True works on the CPU: give X as a NumPy or SciPy array")
        words = self._weigh_words(read_counts(self, X, reset=False))
        return scores + np.asarray(words @ self.coef_inputs_.T)

    def _earlier_topics(self, n_words: int) -> FittedTopics | None:
        """Return the last fit if a warm start can use its topics; None otherwise."""
        fitted: FittedTopics | None = getattr(self, "_fitted", None)
        if not self.warm_start or fitted is None or fitted.collapsed:
            return None
        return fitted if fitted.word_given_topic.shape == (n_words, int(self.n_components)) else None

    # Parameters as numbers.

    @property
    def _iteration_limit(self) -> int:
        """Maximum number of iterations, by default 40 sweeps of the sampler or 100 steps of mean field."""
        if self.max_iter is not None:
            return int(self.max_iter)
        return 40 if self.inference == "gibbs" else 100

    def _shared_settings(self) -> dict[str, Any]:
        alpha, beta, variance = self.doc_topic_prior, self.topic_word_prior, self.weight_variance
        word_prior = SAMPLER_WORD_PRIOR if self.inference == "gibbs" else self._default_word_prior
        return {
            "n_components": int(self.n_components),
            "doc_topic_prior": DOC_TOPIC_PRIOR[self.inference] if alpha is None else float(alpha),
            "topic_word_prior": word_prior if beta is None else float(beta),
            "weight_variance": self._default_variances[self.inference] if variance is None else float(variance),
            "seed": int(generator(self.random_state).integers(2**31)),
        }

    @property
    def _has_squared_loss(self) -> bool:
        """Whether mean field has a squared loss, which is the default."""
        return self.loss is None or bool(self.loss.startswith("squared"))

    def _label_free_settings(self) -> meanfield.Settings:
        return meanfield.Settings(
            **self._shared_settings(),
            squared=self._has_squared_loss,
            n_sweeps=int(self.n_sweeps),
            max_iter=self._iteration_limit,
            tol=float(self.tol),
        )

    def _sampler_settings(self, n_responses: int) -> gibbs.Settings:
        burn_in, many_topics = self._burn_in(), int(self.n_components) * n_responses > MANY_TOPICS
        return gibbs.Settings(
            **self._shared_settings(),
            n_sweeps=self._iteration_limit,
            n_burn_in=burn_in,
            n_warm_up=self._warm_up(burn_in, many_topics),
            n_groups=None if self.n_blocks == "auto" else int(self.n_blocks),
            refit=bool(self.refit),
        )

    def _burn_in(self) -> int:
        """Return the number of sweeps before averages are taken."""
        wanted, most = self.burn_in, self._iteration_limit
        if not isinstance(wanted, Integral):
            return int(wanted * most)
        if wanted >= most:
            raise ValueError(
                "burn_in must be less than max_iter, so that sweeps are left to average over; "
                f"got burn_in={wanted!r} and max_iter={most!r}"
            )
        return int(wanted)

    def _warm_up(self, burn_in: int, many_topics: bool) -> int:
        """Return the number of sweeps over which C grows."""
        wanted = self.C_warmup
        if wanted is None:
            return burn_in if many_topics else 0
        n_sweeps = int(wanted) if isinstance(wanted, Integral) else int(wanted * self._iteration_limit)
        if n_sweeps > burn_in:
            raise ValueError(
                "C_warmup must not be more than burn_in, so that averages are taken at the full C; "
                f"got C_warmup={wanted!r} and burn_in={self.burn_in!r}: {n_sweeps} and {burn_in} sweeps"
            )
        return n_sweeps

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = True
        tags.input_tags.categorical = True  # integers: scikit-learn has no tag for counts
        return tags


def choose_rows(inference: str, sample_weight: ArrayLike, counts: Counts) -> tuple[Integers, Floats | None]:
    """Return the rows to fit and their weights; rows of weight zero are left out.

    The sampler draws a topic for each word, so a document of weight 2 is repeated. Mean field weights it.
    """
    rows = np.empty((counts.shape[0], 0))
    weights = _check_sample_weight(sample_weight, rows, dtype=np.float64, ensure_non_negative=True)
    check_total_weight(weights)
    if inference == "gibbs":
        if np.any(weights != np.rint(weights)):
            bad = float(weights[weights != np.rint(weights)][0])
            raise ValueError(
                'inference="gibbs" takes a document as often as sample_weight says, so it must hold whole numbers; it '
                f'has the value {bad!r}. inference="variational" takes any weights.'
            )
        return np.repeat(np.arange(len(weights)), weights.astype(np.int64)), None
    rows = np.flatnonzero(weights)
    return rows, weights[rows]


def read_counts(estimator: BaseEstimator, X: ArrayLike, *, reset: bool, whole: bool = False) -> Counts:
    """Validate a matrix of counts; return it in CSR format without zeros and duplicates, or on its device."""
    _check_no_texts(X)
    check_types(X)
    check_indices(X)
    if not isinstance(X, np.ndarray):
        X = without_graph(X)
    numbers = numbers_of(X)
    if not isinstance(numbers, np.ndarray) and is_elsewhere(numbers):
        if whole:
            raise ValueError(
                f'inference="gibbs" runs on the CPU, and X is {name_place(numbers)}: give it as a NumPy or SciPy '
                'array, or use inference="variational"'
            )
        there = read_device_counts(X, numbers)
        _check_feature_names(estimator, X, reset=reset)
        _check_n_features(estimator, X, reset=reset)
        return there
    if numbers is not X:
        raise TypeError(
            f"X is {name_place(numbers)}, sparse, and array_api_dispatch is off: set it with "
            "sklearn.set_config(array_api_dispatch=True) (SCIPY_ARRAY_API=1 in the environment), or give X as a SciPy "
            "array"
        )
    X = validate_data(estimator, X, accept_sparse="csr", dtype=COUNT_TYPES, reset=reset)
    check_non_negative(X, type(estimator).__name__)
    counts = X if issparse(X) else csr_array(X)
    if not counts.has_canonical_format or np.any(counts.data == 0):
        counts = counts.copy()
        counts.sum_duplicates()
        counts.eliminate_zeros()
    if whole:
        _check_whole(counts.data)
    check_range(float(counts.data.min(initial=1)), float(counts.data.max(initial=0)))
    return counts


def read_numbers(estimator: BaseEstimator, y: Any) -> Floats:
    """Validate targets that are numbers, (n,) or (n, outputs)."""
    if y is None:
        raise ValueError(f"{type(estimator).__name__} requires y to be passed, but the target y is None")
    if issparse(y):
        raise TypeError("y is sparse; it must be dense. Use y.toarray().")
    return np.asarray(_check_y(y, multi_output=True, y_numeric=True, estimator=estimator), dtype=np.float64)


def read_indicators(y: Any) -> Integers:
    """Validate indicators of labels, (n, labels)."""
    y = check_array(y, accept_sparse="csr", input_name="y", ensure_2d=True)
    y = y.toarray() if hasattr(y, "toarray") else y
    if not np.all((y == 0) | (y == 1)):
        raise ValueError("Indicators of labels in `y` must be 0 or 1.")
    return y.astype(np.int64)


def check_range(smallest: float, largest: float) -> None:
    """Raise an error for positive counts that are outside the range of single precision."""
    if smallest < COUNT_RANGE[0] or largest > COUNT_RANGE[1]:
        raise ValueError(
            f"counts in X must be 0 or between {COUNT_RANGE[0]:g} and {COUNT_RANGE[1]:g}; the smallest is {smallest:g} "
            f"and the largest {largest:g}"
        )


def numbers_of(X: Any) -> Any:
    """Return the values of a sparse matrix of PyTorch or CuPy, and any other matrix unchanged."""
    library = type(X).__module__.partition(".")[0]
    if library == "cupyx":
        return X.data
    if library == "torch" and str(getattr(X, "layout", "")) == "torch.sparse_csr":
        return X.values()
    return X


def read_device_counts(X: Any, numbers: Any, *, allow_empty: bool = False) -> DeviceCorpus:
    """Validate counts on a device, CSR or dense; return them as documents on the device."""
    check_numbers(numbers)
    if len(X.shape) != 2 or (numbers is X and is_sparse(X)):
        raise ValueError(
            f"X must be a dense or CSR matrix of counts, got {type(X).__name__} of shape {tuple(X.shape)}"
            + (f" and layout {X.layout}" if hasattr(X, "layout") else "")
        )
    if X.shape[0] == 0 and not allow_empty:
        raise ValueError("X has 0 rows, and a minimum of 1 is required")
    counts = _entries_of(X, numbers)
    starts = _check_entries(counts, X.shape)
    return DeviceCorpus(counts, int(X.shape[1]), starts)


def _entries_of(X: Any, numbers: Any) -> WordCounts:
    """Return the entries of a matrix on a device by rows, in single precision if it has that, or double."""
    xp = namespace_of(numbers)
    if numbers is X:
        present = X != 0
        sizes = xp.sum(xp.astype(present, xp.int64), axis=1)
        zero = xp.zeros(1, dtype=xp.int64, device=X.device)
        starts, words, numbers = xp.concat([zero, xp.cumulative_sum(sizes)]), xp.nonzero(present)[1], X[present]
    elif hasattr(X, "crow_indices"):
        starts, words = X.crow_indices(), X.col_indices()
    else:
        X = X.tocsr()
        starts, words, numbers = X.indptr, X.indices, X.data
    if numbers.dtype != xp.float32:
        numbers = xp.astype(numbers, xp.float64)
    return WordCounts(xp.astype(words, xp.int32), numbers, xp.astype(starts, xp.int64))


def _check_entries(counts: WordCounts, shape: Any) -> Any:
    """Raise an error for entries that kernels do not support; return the row boundaries in host memory."""
    words, numbers, there = counts
    xp, starts = namespace_of(numbers), to_host(there)
    ascend = len(starts) == shape[0] + 1 and starts[0] == 0 and not np.any(np.diff(starts) < 0)
    if not ascend or starts[-1] != numbers.shape[0]:
        raise ValueError("X has indices of rows that do not ascend from 0 to the number of its entries")
    if words.shape[0] == 0:
        return starts
    if not bool(xp.all(xp.isfinite(numbers))):
        raise ValueError("Input X contains NaN or infinity")
    if float(xp.min(numbers)) < 0:
        raise ValueError("Negative values in X, which must hold counts of words")
    check_range(float(xp.min(xp.where(numbers > 0, numbers, xp.ones_like(numbers)))), float(xp.max(numbers)))
    if int(xp.min(words)) < 0 or int(xp.max(words)) >= shape[1]:
        raise ValueError(f"X has indices of columns outside 0 .. {shape[1] - 1}")
    return starts


def bring_targets(values: Any, counts: Counts, name: str) -> Any:
    """Return values of documents in host memory; raise an error if they were on another device than the counts."""
    if values is None:
        return None
    if isinstance(counts, DeviceCorpus):
        return bring_beside(values, counts.counts.numbers, name)
    return values if isinstance(values, np.ndarray) else bring_here(values, name)


def work_on_cpu(model: Any, X: Any, method: str) -> None:
    """Raise an error for documents on a device, and copy the fitted attributes to host memory."""
    numbers = numbers_of(X)
    if is_elsewhere(numbers):
        raise TypeError(f"{method} works on the CPU, and X is {name_place(numbers)}: give it as a NumPy or SciPy array")
    come_home(model)


@contextmanager
def working_on_documents(model: Any, X: Any) -> Iterator[None]:
    """Move the fitted attributes to the device of the documents after a fit."""
    numbers = numbers_of(X)
    if isinstance(numbers, np.ndarray) or not is_elsewhere(numbers):
        yield
        return
    with room_for_documents(model, X):
        yield
    xp = namespace_of(numbers)
    dtype = xp.float32 if numbers.dtype == xp.float32 else xp.float64
    follow(model, xp.empty(0, dtype=dtype, device=numbers.device))


def room_for_documents(model: Any, X: Any) -> AbstractContextManager[None]:
    """Raise an informative error if a device runs out of memory."""
    return within_memory(
        numbers_of(X),
        lambda: (
            f"the memory of the device does not hold {X.shape[0]:,} documents and tables of {X.shape[1]:,} words by "
            f"{model.n_components} topics. Give fewer documents, or float32; or documents in blocks: regbayes.dask "
            "over several machines, or partial_fit on the CPU"
        ),
    )


def _check_no_texts(X: Any) -> None:
    one_dimensional = isinstance(X, list | tuple) or getattr(X, "ndim", None) == 1
    if one_dimensional and isinstance(next(iter(X), None), str):
        raise ValueError("X must hold counts of words, one row for each text; make them with CountVectorizer")


def _check_whole(numbers: NDArray[Any]) -> None:
    """Raise an error for counts that are not integers, which the sampler requires."""
    if numbers.dtype.kind == "f" and np.any(numbers != np.rint(numbers)):
        bad = float(numbers[numbers != np.rint(numbers)][0])
        raise ValueError(
            'inference="gibbs" draws a topic for every single word, so X must hold whole counts (as CountVectorizer '
            f"gives, but not TfidfVectorizer); it has the value {bad!r}"
        )
    largest = numbers.max(initial=0)
    if largest > np.iinfo(np.int32).max:
        raise ValueError(
            'inference="gibbs" draws a topic for every single word, so counts in X must be less than 2**31; '
            f"the largest is {float(largest):g}"
        )


def as_documents(counts: Counts, dtype: Any = np.float32) -> WordCounts:
    """Return the rows of a matrix of counts as `WordCounts`: single precision, or integers for the sampler.

    Documents on a device keep their precision.
    """
    if isinstance(counts, DeviceCorpus):
        return counts.counts
    starts, words = counts.indptr.astype(np.int64, copy=False), counts.indices.astype(np.int32, copy=False)
    return WordCounts(words, counts.data.astype(dtype, copy=False), starts)


def mean_length(counts: Counts, sample_weight: Floats | None) -> float:
    """Return the mean number of words of the documents that are not empty."""
    lengths, weights = lengths_of(as_documents(counts)), np.ones(counts.shape[0])
    if sample_weight is not None:
        weights = sample_weight
    if not lengths.any():
        raise ValueError("X has no words: all documents are empty")
    return float(lengths @ weights / weights[lengths > 0].sum())
