"""`MedLDAClassifierCV` and `MedLDARegressorCV`: MedLDA with its parameters chosen by cross-validation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import _fit_context
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import _check_y, check_consistent_length, column_or_1d

from regbayes._registry import persistable
from regbayes.estimators._bases import check_labels, row_weights
from regbayes.estimators._folds import DEFAULT_FOLDS, split_scored
from regbayes.estimators._list_search import ClassifierSearch, ListSearch, counted_rows, keep_frame, list_constraints
from regbayes.estimators._topics import read_counts
from regbayes.estimators.medlda import MedLDAClassifier
from regbayes.estimators.medlda_regressor import MedLDARegressor
from regbayes.estimators.path_search import OnResult
from regbayes.estimators.search_records import FoldRecord

LISTS = {"n_components": "n_components", "C": "Cs"}  # parameter of the estimators -> the list of its values


class TopicSearch(ListSearch):
    """What the searches for classes and for numbers share."""

    _lists = LISTS
    _along = None  # a chain that goes on from another C remembers it for long; topics of another number do not fit

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        records: Iterable[FoldRecord] | None = None,
        on_result: OnResult | None = None,
    ) -> Self:
        """Try every combination on every fold, and refit the best.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Counts of words.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Classes, indicators of several labels, or numbers.
        sample_weight : array-like of shape (n_samples,), default=None
            How often each document counts, in the fits and in their scores; whole numbers for the sampler.
        records, on_result
            As in `PathSearchCV.fit`: fits that need not be made again, and a function that hears of each.

        Returns
        -------
        self
        """
        counts = read_counts(self, X, reset=True, whole=self.inference == "gibbs")
        targets = self._read_targets(y)
        check_consistent_length(counts, targets)
        weights = row_weights(sample_weight, counts)
        random = check_random_state(self.random_state)
        model = self._make_model(random)
        folds = split_scored(self._splitter(targets, random), targets, counted_rows(weights, len(targets)))
        metadata = {"sample_weight": weights}
        return self._search_lists(
            model, keep_frame(X, counts), targets, folds, metadata, records=records, on_result=on_result
        )

    def _read_targets(self, y: Any) -> NDArray[Any]:
        raise NotImplementedError

    def _splitter(self, y: NDArray[Any], random: np.random.RandomState) -> Any:
        """Return what makes the folds: random ones, even over the classes, unless the user has others."""
        if self.cv is not None and not isinstance(self.cv, Integral):
            return self.cv
        kind = StratifiedKFold if self._model is MedLDAClassifier and y.ndim == 1 else KFold
        return kind(self.cv or DEFAULT_FOLDS, shuffle=True, random_state=random.randint(np.iinfo(np.int32).max))

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return classes, indicators of labels, or numbers, as y has them."""
        return self._best().predict(X)

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return the accuracy, or R², whatever ``scoring`` is."""
        return self._best().score(X, y, sample_weight)


@persistable(skip=("cv", "scoring", "scorer_", "records_"))  # the first three may be objects of any class
class MedLDAClassifierCV(ClassifierSearch, TopicSearch):
    """MedLDA for classes whose number of topics and C are chosen by cross-validation.

    Every combination of the listed values is tried on every fold, each fit from its own start, and the best is
    refitted on all documents.

    Parameters
    ----------
    n_components : sequence of int, or int, default=(10, 20, 40)
        Numbers of topics, or the one there is to be; not fewer than classes, because each has something of its own.
    Cs : sequence of float, default=(0.3, 1.0)
        Values of C.
    cv : int, splitter or iterable, default=None
        Folds. None and a number (5 by default) make random folds, even over the classes. ``cv`` and ``scoring`` may be
        objects of any class and are not saved.
    scoring : str, callable or None, default=None
        As in scikit-learn; accuracy by default, which is what `score` returns in any case.
    inference, margin, loss, cost, class_weight, doc_topic_prior, topic_word_prior, weight_variance, n_sweeps, \
max_iter, tol, burn_in, C_warmup, refit, n_blocks
        As in `MedLDAClassifier`.
    random_state : int, RandomState instance or None, default=None
        For the chains and the folds.
    n_jobs : int or None, default=None
        Processes over settings and folds, and threads of the last fit.
    verbose : int, default=0
        Whether to show a progress bar with the time left.

    Attributes
    ----------
    best_estimator_ : MedLDAClassifier
        Fitted to all documents; its fitted attributes are here too.
    n_components_, C_
        The values chosen.
    best_params_, best_score_, best_index_, cv_results_, out_of_fold_, records_, refit_time_, n_splits_
        As in `PathSearchCV`.
    calibration_ : Calibration or None
        How scores become probabilities, from those of the rows that each fold left out. None where no fold had seen all
        classes; then there is no `predict_proba`.

    See Also
    --------
    MedLDAClassifier : One setting.
    PathSearchCV : Other lists, and any estimator.

    Examples
    --------
    >>> from sklearn.feature_extraction.text import CountVectorizer
    >>> from regbayes import MedLDAClassifierCV
    >>> texts = ["ball goal match", "goal team ball", "vote law party", "law vote court"] * 5
    >>> vectorizer = CountVectorizer()
    >>> X, y = vectorizer.fit_transform(texts), ["sport", "sport", "politics", "politics"] * 5
    >>> search = MedLDAClassifierCV((2, 3), Cs=(1.0,), cv=2, random_state=0).fit(X, y)
    >>> search.predict(vectorizer.transform(["a match of two teams and a ball", "the court of law"])).tolist()
    ['sport', 'politics']
    """

    _model = MedLDAClassifier
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **list_constraints(MedLDAClassifier, LISTS),
        "n_components": ["array-like", *MedLDAClassifier._parameter_constraints["n_components"]],
    }

    def __init__(
        self,
        n_components: Sequence[int] | int = (10, 20, 40),
        *,
        Cs: Sequence[float] = (0.3, 1.0),
        cv: Any = None,
        scoring: Any = None,
        inference: Literal["gibbs", "variational"] = "gibbs",
        margin: float = 1.0,
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
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.Cs = Cs
        self.cv = cv
        self.scoring = scoring
        self.inference = inference
        self.margin = margin
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
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    def _read_targets(self, y: Any) -> NDArray[Any]:
        check_labels(y)
        if type_of_target(y) == "multilabel-indicator":
            return y.toarray() if hasattr(y, "toarray") else np.asarray(y)
        return column_or_1d(y, warn=True)


@persistable(skip=("cv", "scoring", "scorer_", "records_"))  # the first three may be objects of any class
class MedLDARegressorCV(TopicSearch):
    """MedLDA for numbers whose number of topics and C are chosen by cross-validation.

    Every combination of the listed values is tried on every fold, each fit from its own start, and the best is
    refitted on all documents.

    Parameters
    ----------
    n_components : sequence of int, or int, default=(10, 20, 40)
        Numbers of topics, or the one there is to be.
    Cs : sequence of float, default=(1.0, 3.0)
        Values of C.
    cv : int, splitter or iterable, default=None
        Folds. None and a number (5 by default) make random folds. ``cv`` and ``scoring`` may be objects of any class
        and are not saved.
    scoring : str, callable or None, default=None
        As in scikit-learn; R² by default, which is what `score` returns in any case.
    inference, epsilon, loss, doc_topic_prior, topic_word_prior, weight_variance, n_sweeps, max_iter, tol, burn_in, \
C_warmup, refit, n_blocks
        As in `MedLDARegressor`.
    random_state, n_jobs, verbose
        As in `MedLDAClassifierCV`.

    Attributes
    ----------
    best_estimator_ : MedLDARegressor
        Fitted to all documents; its fitted attributes are here too.
    n_components_, C_, best_params_, best_score_, best_index_, cv_results_, out_of_fold_, records_, refit_time_, \
n_splits_
        As in `MedLDAClassifierCV`.

    See Also
    --------
    MedLDARegressor : One setting.
    """

    _model = MedLDARegressor
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **list_constraints(MedLDARegressor, LISTS),
        "n_components": ["array-like", *MedLDARegressor._parameter_constraints["n_components"]],
    }

    def __init__(
        self,
        n_components: Sequence[int] | int = (10, 20, 40),
        *,
        Cs: Sequence[float] = (1.0, 3.0),
        cv: Any = None,
        scoring: Any = None,
        inference: Literal["gibbs", "variational"] = "gibbs",
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
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.Cs = Cs
        self.cv = cv
        self.scoring = scoring
        self.inference = inference
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
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    def _read_targets(self, y: Any) -> NDArray[Any]:
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        return _check_y(y, multi_output=True, y_numeric=True, estimator=self)
