"""`MultiLabelThresholdCV`: thresholds for the labels of any multi-label classifier, chosen by cross-validation."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from typing import Any, ClassVar, Literal, Self

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, _fit_context, clone
from sklearn.utils import _safe_indexing, check_random_state, get_tags, indexable
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions
from sklearn.utils.validation import _check_sample_weight, _num_samples, check_is_fitted, validate_data

from regbayes._registry import Saveable, persistable
from regbayes._types import Floats, Integers
from regbayes.estimators._cutoffs import DEFAULT_RESAMPLES, Cells, choose_thresholds, draw_resamples
from regbayes.estimators._folds import multitask_folds
from regbayes.estimators._labels import Labels, read_labels
from regbayes.estimators._search import Fold, Samples, fit_quietly
from regbayes.estimators._task_bases import Targets, read_targets
from regbayes.estimators.metrics import task_accuracy


@persistable(skip=("cv", "scoring"))  # either may be an object of any class
class MultiLabelThresholdCV(Saveable, ClassifierMixin, MetaEstimatorMixin, BaseEstimator):
    """Chooses where to cut the scores of a multi-label classifier into yes and no, by cross-validation.

    A classifier that is right most often says no to a rare label nearly always. For F1, cut lower: this finds one
    threshold for each label, or one for all, that is best for the scores of rows the classifier was not fitted to.
    The best threshold of a sample jumps with a few examples of a rare label, so it is an average over resamples.
    scikit-learn's ``TunedThresholdClassifierCV`` does so for a single binary label. Thresholds move what is answered,
    not how likely it is: for probabilities ask ``estimator_``, where it has any.

    Parameters to turn first: ``scoring``, and ``thresholds`` where labels have few examples.

    Parameters
    ----------
    estimator : classifier
        With ``decision_function`` or ``predict_proba``; a `MultiTaskILSVMClassifier`, a ``OneVsRestClassifier``, ...
    thresholds : {"per_label", "shared"}, default="per_label"
        Whether each label has its own.
    scoring : {"f1_macro", "f1_micro", "accuracy"}, callable or None, default=None
        What is maximised. None is F1-macro for thresholds per label and F1-micro for a shared one; accuracy is 1 less
        the Hamming loss. A callable gets the true and the predicted labels, 0 and 1, as two vectors: those of one
        label, or of all for a shared threshold; it is maximised on the rows as they are, without resamples.
    n_resamples : int, default=50
        The metric is maximised on so many resamples of the rows, drawn with replacement, and the threshold has the mean
        number of yeses of what is found there. 0 takes the threshold that is best on the rows as they are.
    cv : int, splitter or iterable, default=None
        Folds. None and a number (5 by default) make random folds. Whatever the folds, rows without which a label would
        have only one class in training are not scored. Repeated folds steady the thresholds further. ``cv`` and
        ``scoring`` may be objects of any class and are not saved.
    random_state : int, RandomState instance or None, default=None
        For the folds and resamples.
    n_jobs : int or None, default=None
        Processes over folds.

    Attributes
    ----------
    estimator_ : classifier
        Fitted to all rows.
    thresholds_ : array of shape (n_labels,)
        A score above it is a yes.
    classes_ : array of shape (2,)
        No and yes.
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Examples
    --------
    >>> from sklearn.datasets import make_multilabel_classification
    >>> from sklearn.metrics import f1_score
    >>> from regbayes import MultiLabelThresholdCV, MultiTaskILSVMClassifier
    >>> X, Y = make_multilabel_classification(400, n_classes=5, n_labels=1, random_state=0)
    >>> plain = MultiTaskILSVMClassifier(random_state=0).fit(X[::2], Y[::2])
    >>> tuned = MultiLabelThresholdCV(plain, random_state=0).fit(X[::2], Y[::2])
    >>> bool(f1_score(Y[1::2], tuned.predict(X[1::2]), average="macro", zero_division=0)
    ...      > f1_score(Y[1::2], plain.predict(X[1::2]), average="macro", zero_division=0))
    True
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "estimator": [HasMethods(["fit", "decision_function"]), HasMethods(["fit", "predict_proba"])],
        "thresholds": [StrOptions({"per_label", "shared"})],
        "scoring": [StrOptions({"f1_macro", "f1_micro", "accuracy"}), callable, None],
        "n_resamples": [Interval(Integral, 0, None, closed="left")],
        "cv": ["cv_object"],
        "random_state": ["random_state"],
        "n_jobs": [int, None],
    }

    def __init__(
        self,
        estimator: Any,
        *,
        thresholds: Literal["per_label", "shared"] = "per_label",
        scoring: str | Callable[[NDArray[Any], NDArray[Any]], float] | None = None,
        n_resamples: int = DEFAULT_RESAMPLES,
        cv: Any = None,
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        self.estimator = estimator
        self.thresholds = thresholds
        self.scoring = scoring
        self.n_resamples = n_resamples
        self.cv = cv
        self.random_state = random_state
        self.n_jobs = n_jobs

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Score every row by an estimator fitted to others, choose the thresholds, and refit to all rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples, n_labels) or (n_samples,)
            Two classes, NaN where missing (if the estimator takes it).
        sample_weight : array-like of shape (n_samples,), default=None
            How often each row counts, in the estimator's fits and in the metric; the estimator must take it, and a
            callable ``scoring`` too. A row of weight 0 is left out. One of weight 2 is not quite the row twice: folds
            and resamples are drawn by rows.

        Returns
        -------
        self
        """
        X, y = indexable(X, y)
        validate_data(self, X, skip_check_array=True)
        weights: Floats | None = None
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
            kept = np.flatnonzero(weights)
            X, y, weights = _safe_indexing(X, kept), _safe_indexing(y, kept), weights[kept]
        targets = read_targets(y, None, X, numeric=False)
        labels = self._two_classes(read_labels(targets))
        kinds = 2 * targets.tasks + labels.codes
        rows = np.zeros((_num_samples(X), 0))
        random = check_random_state(self.random_state)
        folds = list(multitask_folds(self.cv, rows, targets, kinds, random))
        values = np.asarray(y)
        found = Parallel(n_jobs=self.n_jobs)(
            delayed(_score_fold)(self.estimator, X, values, weights, fold, len(targets.ids)) for fold in folds
        )
        self.estimator_ = clone(self.estimator).fit(X, y, **_weigh(weights))
        self.classes_, self._one_label = labels.classes[0], targets.layout == "single"
        self.thresholds_ = choose_thresholds(
            _cells([test for _, test in folds], found, targets, labels, len(rows)),
            self.thresholds,
            self.scoring or ("f1_macro" if self.thresholds == "per_label" else "f1_micro"),
            0.0 if hasattr(self.estimator_, "decision_function") else 0.5,
            draw_resamples(len(rows), self.n_resamples, random),
            weights,
        )
        return self

    def _two_classes(self, labels: Labels) -> Labels:
        if np.any(labels.widths > 2):
            raise ValueError(
                "Only binary classification is supported. The type of the target is multiclass: thresholds are for "
                "labels with two classes"
            )
        if not labels.alike:
            raise ValueError("all labels must have the same two classes, 0 and 1 for instance")
        return labels

    def decision_function(self, X: ArrayLike) -> Floats:
        """Return scores less thresholds, shape (n_samples, n_labels), or (n_samples,) after a vector y."""
        check_is_fitted(self, "thresholds_")
        scores = _responses(self.estimator_, X, len(self.thresholds_)) - self.thresholds_
        return scores[:, 0] if self._one_label else scores

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the classes at the thresholds, shape (n_samples, n_labels), or (n_samples,) after a vector y."""
        above = self.decision_function(X) > 0
        return np.asarray(self.classes_[above.astype(int)])

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return the accuracy over all observed labels, whatever ``scoring`` is; weights are of rows."""
        return task_accuracy(y, self.predict(X), sample_weight=sample_weight)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = get_tags(self.estimator)
        tags.input_tags = inner.input_tags
        tags.target_tags.multi_output = inner.target_tags.multi_output
        tags.classifier_tags.multi_label = bool(inner.classifier_tags and inner.classifier_tags.multi_label)
        tags.classifier_tags.multi_class = False
        return tags


def _weigh(weights: Floats | None, rows: Any = slice(None)) -> dict[str, Floats]:
    """Return what fits are given beside rows and labels."""
    return {} if weights is None else {"sample_weight": weights[rows]}


def _score_fold(estimator: Any, X: Any, y: NDArray[Any], weights: Floats | None, fold: Fold, n_labels: int) -> Floats:
    """Fit to one part and score the other."""
    train, test = fold
    fitted = fit_quietly(clone(estimator), Samples(_safe_indexing(X, train), y[train], _weigh(weights, train)))
    return _responses(fitted, _safe_indexing(X, test), n_labels)


def _responses(fitted: Any, X: Any, n_labels: int) -> Floats:
    """Return the scores of the second class of each label, (n, n_labels)."""
    if hasattr(fitted, "decision_function"):
        scores = np.asarray(fitted.decision_function(X), dtype=np.float64)
        return scores[:, None] if scores.ndim == 1 else scores
    found = fitted.predict_proba(X)
    if isinstance(found, list):  # one array of two columns per label
        return np.stack([part[:, 1] for part in found], axis=1)
    return np.asarray(found[:, 1:] if n_labels == 1 and found.shape[1] == 2 else found, dtype=np.float64)


def _cells(tests: list[Integers], scores: list[Floats], targets: Targets, labels: Labels, n_rows: int) -> list[Cells]:
    """Return the scored labels, label by label; a row that was left out several times has as many scores."""
    codes = np.full((n_rows, len(targets.ids)), -1, dtype=np.int8)
    codes[targets.rows, targets.tasks] = labels.codes
    rows = np.concatenate(tests)
    return [
        Cells(found[code >= 0], code[code >= 0] == 1, rows[code >= 0])
        for found, code in zip(np.concatenate(scores).T, codes[rows].T, strict=True)
    ]
