"""What topic models share as estimators: counts in, topics of new documents out."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array, issparse
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted, check_non_negative, validate_data

from regbayes._registry import Saveable
from regbayes._types import Floats, Singles
from regbayes.estimators._common import NOT_NEGATIVE, POSITIVE, n_threads
from regbayes.models.medlda import meanfield, predict
from regbayes.models.medlda.meanfield import MeanField
from regbayes.models.medlda.predict import Documents
from regbayes.models.medlda.state import Fitted

Counts = Any  # csr_array or csr_matrix: SciPy is untyped

TOPIC_CONSTRAINTS: dict[str, list[Any]] = {
    "n_components": [Interval(Integral, 1, 32767, closed="both")],
    "inference": [StrOptions({"gibbs", "variational"})],
    "margins": [StrOptions({"consistent", "posterior"})],
    "C": [NOT_NEGATIVE],
    "doc_topic_prior": [POSITIVE, StrOptions({"estimate"}), None],
    "topic_word_prior": [NOT_NEGATIVE, None],
    "weight_variance": [POSITIVE, None],
    "n_sweeps": [Interval(Integral, 1, None, closed="left")],
    "max_iter": [Interval(Integral, 1, None, closed="left"), None],
    "tol": [NOT_NEGATIVE],
    "burn_in": [Interval(Integral, 0, None, closed="left"), Interval(Real, 0, 1, closed="neither")],
    "price_rise": [Interval(Integral, 0, None, closed="left"), Interval(Real, 0, 1, closed="left"), None],
    "n_blocks": [Interval(Integral, 1, 128, closed="both"), StrOptions({"auto"})],
    "refit": ["boolean"],
    "warm_start": ["boolean"],
    "random_state": ["random_state"],
    "n_jobs": [Integral, None],
    "verbose": ["verbose"],
}

LARGEST_COUNT = 1e30  # of single precision not much is left beyond


class TopicModelMixin(Saveable, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Counts in, topics out: everything that does not depend on what the responses are."""

    def transform(self, X: ArrayLike) -> Floats:
        """Return the share of each topic among the words of documents, inferred without responses.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Counts of words; here they need not be whole.

        Returns
        -------
        array of shape (n_samples, n_components)
            Rows sum to one. A document without words has the shares of the training corpus.
        """
        return self._shares(X)

    def perplexity(self, X: ArrayLike) -> float:
        """Return an upper bound on the perplexity of documents: exp of the negative log-probability per word.

        The bound is the mean-field one given the topics, for whole documents.
        """
        documents, fitted = self._documents(X)
        n_words = float(documents.numbers.sum(dtype=np.float64))
        if n_words == 0:
            raise ValueError("perplexity needs at least one word, but X has only empty documents")
        found = _inference_of(fitted).bounds(documents, fitted, n_threads(self.n_jobs))
        return float(np.exp(-found.sum() / n_words))

    def top_words(self, n: Any = 10, *, vocabulary: ArrayLike | None = None) -> list[list[Any]]:
        """Return the most probable words of each topic, the most probable first.

        Parameters
        ----------
        n : int, default=10
            Words for each topic.
        vocabulary : array-like of shape (n_features,), default=None
            Names of the columns, such as ``CountVectorizer.get_feature_names_out()``. By default
            ``feature_names_in_``, where X had names, and column numbers otherwise.

        Returns
        -------
        list of n_components lists
        """
        check_is_fitted(self, "coef_")
        if not isinstance(n, Integral) or n < 1:
            raise ValueError(f"n must be an integer of at least 1, got {n!r}")
        V = self.n_features_in_
        if vocabulary is None:
            vocabulary = getattr(self, "feature_names_in_", np.arange(V))
        names = np.asarray(vocabulary)
        if names.shape != (V,):
            raise ValueError(f"vocabulary must name the {V} columns of X, got an array of shape {names.shape}")
        best = np.argsort(-self.components_, axis=1, kind="stable")[:, : int(n)]
        return [names[row].tolist() for row in best]

    @property
    def components_(self) -> Singles:
        """Expected counts of words in topics plus ``topic_word_prior``, shape (n_components, n_features).

        Rows divided by their sums are the topics' distributions over words.
        """
        fitted: Fitted | MeanField | None = getattr(self, "_fitted", None)
        if fitted is None:
            raise AttributeError(f"{type(self).__name__} has no components_ before fit")
        if isinstance(fitted, MeanField):
            return np.ascontiguousarray(fitted.word_topic.T)
        return np.asarray((fitted.word_topic + np.float32(fitted.topic_word_prior)).T)

    @property
    def _n_features_out(self) -> int:
        return int(self._fitted.word_topic.shape[1])

    def _documents(self, X: ArrayLike) -> tuple[Documents, Fitted | MeanField]:
        check_is_fitted(self, "coef_")
        return as_documents(read_counts(self, X, reset=False)), self._fitted

    def _shares(self, X: ArrayLike) -> Floats:
        """As `transform`, in a plain array whatever ``set_output`` asks for."""
        documents, fitted = self._documents(X)
        shares: Floats = _inference_of(fitted).proportions(documents, fitted, n_threads(self.n_jobs))
        return shares

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = True
        tags.input_tags.categorical = True  # whole numbers: scikit-learn has no tag for counts
        return tags


def _inference_of(fitted: Fitted | MeanField) -> Any:
    """Return the module that infers new documents as the fit did."""
    return meanfield if isinstance(fitted, MeanField) else predict


def has_partial_fit(estimator: Any) -> bool:
    """Whether documents can come in portions: the sampler has a posterior to take along, mean field has not."""
    if estimator.inference == "gibbs":
        return True
    raise AttributeError(f'partial_fit needs inference="gibbs", got inference={estimator.inference!r}')


def weight_variance(estimator: Any) -> float:
    """Return the prior variance of the weights; by default what did well for the way of inference."""
    if estimator.weight_variance is not None:
        return float(estimator.weight_variance)
    consistent = estimator.inference == "variational" and estimator.margins == "consistent"
    return float(estimator._default_variances["consistent" if consistent else "posterior"])


def iteration_limit(estimator: Any) -> int:
    """Return the most iterations; by default 40 sweeps of the sampler, or 100 of mean field."""
    if estimator.max_iter is not None:
        return int(estimator.max_iter)
    return 40 if estimator.inference == "gibbs" else 100


def read_counts(estimator: Any, X: ArrayLike, *, reset: bool, whole: bool = False) -> Counts:
    """Validate a matrix of counts and return it in compressed rows, without zeros and duplicates."""
    _check_no_texts(X)
    X = validate_data(estimator, X, accept_sparse="csr", dtype="numeric", reset=reset)
    check_non_negative(X, type(estimator).__name__)
    counts = X if issparse(X) else csr_array(X)
    if not counts.has_canonical_format or np.any(counts.data == 0):
        counts = counts.copy()
        counts.sum_duplicates()
        counts.eliminate_zeros()
    if whole:
        _check_whole(counts.data)
    largest = float(counts.data.max(initial=0))
    if largest > LARGEST_COUNT:
        raise ValueError(f"counts in X must be at most {LARGEST_COUNT:g}; the largest is {largest:g}")
    return counts


def _check_no_texts(X: Any) -> None:
    one_dimensional = isinstance(X, list | tuple) or getattr(X, "ndim", None) == 1
    if one_dimensional and isinstance(next(iter(X), None), str):
        raise ValueError("X must hold counts of words, one row for each text; make them with CountVectorizer")


def _check_whole(numbers: NDArray[Any]) -> None:
    """Refuse counts that the sampler cannot take apart into words."""
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


def as_documents(counts: Counts) -> Documents:
    """Return the rows of a matrix of counts as what label-free inference takes."""
    starts, words = counts.indptr.astype(np.int64, copy=False), counts.indices.astype(np.int32, copy=False)
    return Documents(words, counts.data.astype(np.float32, copy=False), starts)


def mean_length(counts: Counts) -> float:
    """Return the mean number of words of the documents that have any."""
    n_documents = np.count_nonzero(np.diff(counts.indptr))
    if n_documents == 0:
        raise ValueError("X has no words: all documents are empty")
    return float(counts.data.sum(dtype=np.float64)) / n_documents
