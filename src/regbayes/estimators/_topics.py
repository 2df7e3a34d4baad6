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
from regbayes.estimators._common import NOT_NEGATIVE, POSITIVE, n_threads
from regbayes.models.medlda import predict
from regbayes.models.medlda.predict import Documents
from regbayes.models.medlda.state import Fitted

Floats = NDArray[np.float64]
Counts = Any  # csr_array or csr_matrix: SciPy is untyped

TOPIC_CONSTRAINTS: dict[str, list[Any]] = {
    "n_components": [Interval(Integral, 1, 32767, closed="both")],
    "inference": [StrOptions({"gibbs"})],
    "C": [NOT_NEGATIVE],
    "doc_topic_prior": [POSITIVE, None],
    "topic_word_prior": [POSITIVE, None],
    "weight_variance": [POSITIVE],
    "max_iter": [Interval(Integral, 1, None, closed="left")],
    "burn_in": [Interval(Integral, 0, None, closed="left"), Interval(Real, 0, 1, closed="neither")],
    "n_blocks": [Interval(Integral, 1, 128, closed="both"), StrOptions({"auto"})],
    "refit": ["boolean"],
    "warm_start": ["boolean"],
    "random_state": ["random_state"],
    "n_jobs": [Integral, None],
    "verbose": ["verbose"],
}


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
        return float(np.exp(-predict.bounds(documents, fitted, n_threads(self.n_jobs)).sum() / n_words))

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
    def components_(self) -> NDArray[np.float32]:
        """Mean counts of words in topics plus ``topic_word_prior``, shape (n_components, n_features).

        Rows divided by their sums are the topics' distributions over words.
        """
        fitted: Fitted | None = getattr(self, "_fitted", None)
        if fitted is None:
            raise AttributeError(f"{type(self).__name__} has no components_ before fit")
        return np.asarray((fitted.word_topic + np.float32(fitted.topic_word_prior)).T)

    @property
    def _n_features_out(self) -> int:
        return int(self._fitted.word_topic.shape[1])

    def _documents(self, X: ArrayLike) -> tuple[Documents, Fitted]:
        check_is_fitted(self, "coef_")
        return as_documents(read_counts(self, X, reset=False)), self._fitted

    def _shares(self, X: ArrayLike) -> Floats:
        """As `transform`, in a plain array whatever ``set_output`` asks for."""
        documents, fitted = self._documents(X)
        return predict.proportions(documents, fitted, n_threads(self.n_jobs))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = True
        tags.input_tags.categorical = True  # whole numbers: scikit-learn has no tag for counts
        return tags


def read_counts(estimator: Any, X: ArrayLike, *, reset: bool, whole: bool = False) -> Counts:
    """Validate a matrix of counts and return it in compressed rows, without zeros and duplicates."""
    X = validate_data(estimator, X, accept_sparse="csr", dtype="numeric", reset=reset)
    check_non_negative(X, type(estimator).__name__)
    counts = X if issparse(X) else csr_array(X)
    if not counts.has_canonical_format or np.any(counts.data == 0):
        counts = counts.copy()
        counts.sum_duplicates()
        counts.eliminate_zeros()
    if whole and counts.data.dtype.kind == "f" and np.any(counts.data != np.rint(counts.data)):
        bad = counts.data[counts.data != np.rint(counts.data)][0]
        raise ValueError(
            'inference="gibbs" draws a topic for every single word, so X must hold whole counts (as CountVectorizer '
            f"gives, but not TfidfVectorizer); it has the value {bad!r}"
        )
    return counts


def as_documents(counts: Counts) -> Documents:
    """Return the rows of a matrix of counts as what label-free inference takes."""
    starts, words = counts.indptr.astype(np.int64), counts.indices.astype(np.int32)
    return Documents(words, counts.data.astype(np.float32), starts)


def mean_length(counts: Counts) -> float:
    """Return the mean number of words of the documents that have any."""
    n_documents = np.count_nonzero(np.diff(counts.indptr))
    if n_documents == 0:
        raise ValueError("X has no words: all documents are empty")
    return float(counts.data.sum(dtype=np.float64)) / n_documents
