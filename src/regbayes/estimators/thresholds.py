"""`MultiLabelThresholdCV`: thresholds for the labels of any multi-label classifier, chosen by cross-validation."""

from __future__ import annotations

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
from regbayes._types import Flags, Floats, Integers
from regbayes.estimators._folds import multitask_folds
from regbayes.estimators._labels import read_labels
from regbayes.estimators._search import Samples, fit_quietly
from regbayes.estimators._task_bases import read_targets
from regbayes.estimators.metrics import subset_accuracy


def find_threshold(scores: Floats, positive: Flags, rows: Integers, resamples: Floats, default: float = 0.0) -> float:
    """Return the threshold with the highest F1, averaged over resamples.

    The best threshold of a sample is sensitive to single examples. Therefore the number of scores above it is averaged
    over the resamples, which depends only on the order of the scores. Ties are broken by the distance to ``default``,
    which is also the result without scores.

    Parameters
    ----------
    scores, positive, rows : (n,)
        Scores, true labels, and the indices of their samples.
    resamples : (n_resamples, n_samples)
        How often each sample counts.
    """
    if not len(scores):
        return default
    order = np.argsort(scores)[::-1]
    levels = np.unique(scores)
    margin = 0.5 * (levels[-1] - levels[0]) or 1.0
    cuts = np.concatenate([[levels[0] - margin], 0.5 * (levels[:-1] + levels[1:]), [levels[-1] + margin], [default]])
    above = len(scores) - np.searchsorted(scores[order[::-1]], cuts, side="right")
    distance = np.abs(cuts - default)

    def best(values: Floats) -> int:
        return int(np.argmin(np.where(values >= values.max() - 1e-12, distance, np.inf)))

    numbers = []
    for counts in resamples:
        weights = counts[rows[order]]
        predicted, true = (np.append(0.0, np.cumsum(w))[above] for w in (weights, weights * positive[order]))
        total = weights @ positive[order]
        numbers.append(above[best(2 * true / np.maximum(predicted + total, np.finfo(float).tiny))])
    return float(cuts[best(-np.abs(above - np.mean(numbers)))])


@persistable(skip=("cv",))  # may be an object of any class
class MultiLabelThresholdCV(Saveable, ClassifierMixin, MetaEstimatorMixin, BaseEstimator):
    """Choose the thresholds of a multi-label classifier by cross-validation.

    Accuracy favors classifiers that rarely predict rare labels; F1 favors lower thresholds. This estimator chooses one
    threshold per label, or one for all, from held-out scores, and fits the classifier on all samples. Thresholds change
    predictions but not probabilities; for these use ``estimator_``. For one binary label, or other metrics, use
    scikit-learn's ``TunedThresholdClassifierCV``.

    Parameters
    ----------
    estimator : classifier
        It must have ``decision_function`` or ``predict_proba``, such as `MultiTaskILSVMClassifier`.
    thresholds : {"per_label", "shared"}, default="per_label"
        Controls the target: a threshold per label maximizes macro F1, a shared one micro F1.
    n_resamples : int, default=50
        Controls the variance of the thresholds: F1 is maximized on this many bootstrap resamples, and the threshold
        gives the mean number of positive predictions. 0 maximizes F1 of the samples themselves.
    cv : int, splitter or iterable, default=None
        Folds. None (5 folds) and a number give random folds. Samples that are needed for both classes of a label in
        training are not scored. Repeated folds reduce the variance of the thresholds. Not saved.
    random_state : int, RandomState instance or None, default=None
        Controls the folds and resamples.
    n_jobs : int or None, default=None
        Number of processes over folds.

    Attributes
    ----------
    estimator_ : classifier
        Fitted on all samples.
    thresholds_ : array of shape (n_labels,)
        Labels with a score above their threshold are predicted.
    classes_ : array of shape (2,)
        The negative and the positive class.
    n_features_in_, feature_names_in_
        As in scikit-learn.

    See Also
    --------
    sklearn.model_selection.TunedThresholdClassifierCV : Threshold of one binary label, for any metric.

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
        n_resamples: int = 50,
        cv: Any = None,
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        self.estimator = estimator
        self.thresholds = thresholds
        self.n_resamples = n_resamples
        self.cv = cv
        self.random_state = random_state
        self.n_jobs = n_jobs

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Score held-out samples, choose the thresholds, and fit on all samples.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples, n_labels) or (n_samples,)
            Two classes, NaN where missing (if the estimator accepts it).
        sample_weight : array-like of shape (n_samples,), default=None
            How often each sample counts, in F1 and in the estimator's fits, which must accept it. Samples of weight 0
            are left out. Folds and resamples are drawn without weights.

        Returns
        -------
        self
        """
        X, y = indexable(X, y)
        validate_data(self, X, skip_check_array=True)
        samples = Samples(X, y)
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
            samples = Samples(X, y, {"sample_weight": weights}).take(np.flatnonzero(weights))
        n = _num_samples(samples.X)
        targets = read_targets(samples.y, None, samples.X, numeric=False)
        labels = read_labels(targets)
        if np.any(labels.widths > 2):
            raise ValueError(
                "Only binary classification is supported. The type of the target is multiclass: thresholds are for "
                "labels with two classes."
            )
        if not labels.alike:
            raise ValueError("All labels must have the same two classes, 0 and 1 for instance.")
        random = check_random_state(self.random_state)
        folds = list(multitask_folds(self.cv, n, targets, labels.places(targets.tasks), random))

        def score_fold(train: Integers, test: Integers) -> Floats:
            fitted = fit_quietly(clone(self.estimator), samples.take(train))
            return _responses(fitted, _safe_indexing(samples.X, test), one_label)

        one_label = np.shape(samples.y)[1:] in ((), (1,))
        found = Parallel(n_jobs=self.n_jobs)(delayed(score_fold)(*fold) for fold in folds)
        self.estimator_ = clone(self.estimator).fit(samples.X, samples.y, **samples.fit)
        self.classes_, self._one_label = labels.classes[0], targets.layout == "single"

        codes = np.full((n, len(targets.ids)), -1, dtype=np.int8)
        codes[targets.rows, targets.tasks] = labels.codes
        rows = np.concatenate([test for _, test in folds])
        scores, codes = np.concatenate(found), codes[rows]
        drawn = [np.bincount(random.randint(n, size=n), minlength=n) for _ in range(self.n_resamples)]
        resamples = samples.fit.get("sample_weight", 1.0) * np.array(drawn or [np.ones(n)])
        default = 0.0 if hasattr(self.estimator_, "decision_function") else 0.5
        together = [slice(None)] if self.thresholds == "shared" else [[j] for j in range(codes.shape[1])]
        self.thresholds_ = np.empty(codes.shape[1])
        for columns in together:
            seen = codes[:, columns] >= 0
            positive = codes[:, columns][seen] == 1
            self.thresholds_[columns] = find_threshold(
                scores[:, columns][seen], positive, rows[np.nonzero(seen)[0]], resamples, default
            )
        return self

    def decision_function(self, X: ArrayLike) -> Floats:
        """Return scores minus thresholds, shape (n_samples, n_labels), or (n_samples,) after a vector y."""
        check_is_fitted(self, "thresholds_")
        scores = _responses(self.estimator_, X, len(self.thresholds_) == 1) - self.thresholds_
        return scores[:, 0] if self._one_label else scores

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the classes at the thresholds, shape (n_samples, n_labels), or (n_samples,) after a vector y."""
        above = self.decision_function(X) > 0
        return np.asarray(self.classes_[above.astype(int)])

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return the share of samples whose observed labels are all predicted."""
        return subset_accuracy(y, self.predict(X), sample_weight=sample_weight)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = get_tags(self.estimator)
        tags.input_tags = inner.input_tags
        tags.target_tags.multi_output = inner.target_tags.multi_output
        tags.classifier_tags.multi_label = bool(inner.classifier_tags and inner.classifier_tags.multi_label)
        tags.classifier_tags.multi_class = False
        return tags


def _responses(fitted: Any, X: Any, one_label: bool) -> Floats:
    """Return the scores of the second class of each label, (n, n_labels)."""
    if hasattr(fitted, "decision_function"):
        scores = np.asarray(fitted.decision_function(X), dtype=np.float64)
        return scores[:, None] if scores.ndim == 1 else scores
    found = fitted.predict_proba(X)
    if isinstance(found, list):  # a list of arrays with two columns, one per label
        return np.stack([part[:, 1] for part in found], axis=1)
    return np.asarray(found[:, 1:] if one_label and found.shape[1] == 2 else found, dtype=np.float64)
