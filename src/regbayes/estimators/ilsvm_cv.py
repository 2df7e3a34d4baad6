"""`ILSVMClassifierCV`: iLSVM with its parameters chosen by cross-validation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import _fit_context
from sklearn.utils import check_random_state
from sklearn.utils.validation import validate_data

from regbayes._registry import persistable
from regbayes._types import Floats
from regbayes.estimators._arrays import bring_here, refuse_elsewhere
from regbayes.estimators._bases import check_labels, find_labeled, row_weights
from regbayes.estimators._folds import split_scored
from regbayes.estimators._list_search import ClassifierSearch, counted_rows, keep_frame, list_constraints
from regbayes.estimators.ilsvm import ILSVMClassifier
from regbayes.estimators.path_search import OnResult
from regbayes.estimators.search_records import FoldRecord

LISTS = {  # parameter of ILSVMClassifier -> the list of its values; C goes down along a path
    "alpha": "alphas",
    "temperature": "temperatures",
    "generative_weight": "generative_weights",
    "include_inputs": "include_inputs",
    "C": "Cs",
}


@persistable(skip=("cv", "scoring", "scorer_", "records_"))  # the first three may be objects of any class
class ILSVMClassifierCV(ClassifierSearch):
    """iLSVM whose parameters are chosen by cross-validation, with warm starts along the path of C.

    Every combination of the listed values is tried on every fold. For each combination of the others, C goes from its
    largest value down, each fit starting where the last one ended: a smaller C keeps fewer features, and those that a
    fit has left out do not return. The best combination is refitted on all rows along the same path.

    Parameters
    ----------
    n_components : int, default=50
        Truncation: the most features there can be.
    Cs : sequence of float, default=(0.1, 0.3, 1.0, 3.0)
        Values of C.
    alphas : sequence of float, default=(2.0,)
        Values of alpha.
    temperatures : sequence of float or "auto", default=("auto",)
        Values of temperature.
    generative_weights : sequence of float or "auto", default=("auto",)
        Values of generative_weight.
    include_inputs : sequence of bool, default=(False,)
        ``(False, True)`` lets cross-validation decide whether the classifier sees the inputs.
    cv : int, splitter or iterable, default=None
        As in scikit-learn; 5 stratified folds by default. A splitter divides the rows that have a label and a weight;
        the others are in every training part, and never scored.
    scoring : str, callable or None, default=None
        As in scikit-learn; accuracy by default, which is what `score` returns in any case. ``cv`` and ``scoring``
        may be objects of any class and are not saved.
    loss, multi_class, cost, class_weight, fit_intercept, margins, unlabeled, transductive
        As in `ILSVMClassifier`, and so are the next six.
    slab, noise_variance, prior_variance, n_sweeps, n_init, max_iter, tol
    random_state : int, RandomState instance or None, default=None
        For the starts.
    n_jobs : int or None, default=None
        Processes over folds and paths.
    verbose : int, default=0
        Whether to show a progress bar with the time left.

    Attributes
    ----------
    best_estimator_ : ILSVMClassifier
        Fitted to all rows, along the path that was scored; its fitted attributes are here too.
    C_, alpha_, temperature_, generative_weight_, include_inputs_
        The values chosen.
    best_params_, best_score_, best_index_, cv_results_, out_of_fold_, records_, refit_time_, n_splits_
        As in `PathSearchCV`.
    calibration_ : Calibration or None
        How scores become probabilities, from those of the rows that each fold left out. None where no fold had seen all
        classes; then there is no `predict_proba`.

    See Also
    --------
    ILSVMClassifier : One setting.
    PathSearchCV : Other lists, and any estimator.
    """

    _model = ILSVMClassifier
    _lists = LISTS
    _descending = True
    _refit_path = True
    _parameter_constraints: ClassVar[dict[str, Any]] = list_constraints(ILSVMClassifier, LISTS)

    def __init__(
        self,
        n_components: int = 50,
        *,
        Cs: Sequence[float] = (0.1, 0.3, 1.0, 3.0),
        alphas: Sequence[float] = (2.0,),
        temperatures: Sequence[Any] = ("auto",),
        generative_weights: Sequence[Any] = ("auto",),
        include_inputs: Sequence[bool] = (False,),
        cv: Any = None,
        scoring: Any = None,
        loss: Literal["squared_hinge", "hinge"] = "squared_hinge",
        multi_class: Literal["auto", "crammer_singer", "ovr"] = "auto",
        cost: ArrayLike | None = None,
        class_weight: Any = None,
        fit_intercept: bool = True,
        margins: Literal["consistent", "posterior"] = "consistent",
        unlabeled: Any = None,
        transductive: bool = False,
        slab: Literal["half-normal"] | None = None,
        noise_variance: float | Literal["auto", "estimate"] = "auto",
        prior_variance: float | Literal["auto", "estimate"] = "auto",
        n_sweeps: int = 1,
        n_init: int = 1,
        max_iter: int = 200,
        tol: float = 1e-3,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.Cs = Cs
        self.alphas = alphas
        self.temperatures = temperatures
        self.generative_weights = generative_weights
        self.include_inputs = include_inputs
        self.cv = cv
        self.scoring = scoring
        self.loss = loss
        self.multi_class = multi_class
        self.cost = cost
        self.class_weight = class_weight
        self.fit_intercept = fit_intercept
        self.margins = margins
        self.unlabeled = unlabeled
        self.transductive = transductive
        self.slab = slab
        self.noise_variance = noise_variance
        self.prior_variance = prior_variance
        self.n_sweeps = n_sweeps
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

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
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
        sample_weight : array-like of shape (n_samples,), default=None
            How often each row counts, in the fits and in their scores.
        records, on_result
            As in `PathSearchCV.fit`: fits that need not be made again, and a function that hears of each.

        Returns
        -------
        self
        """
        refuse_elsewhere(X, type(self).__name__)
        rows, labels = validate_data(self, X, bring_here(y, "y"), dtype=np.float64, ensure_min_samples=2)
        labeled = find_labeled(labels, self.unlabeled)
        check_labels(labels[labeled])
        weights = row_weights(sample_weight, rows)
        scored = labeled & counted_rows(weights, len(labels))
        folds = split_scored(self.cv, labels, scored, classifier=True)
        model = self._make_model(check_random_state(self.random_state))
        metadata = {"sample_weight": weights}
        return self._search_lists(
            model, keep_frame(X, rows), labels, folds, metadata, records=records, on_result=on_result
        )

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the class of each row, shape (n_samples,)."""
        return self._best().predict(X)

    def feature_probabilities(self, X: ArrayLike) -> Floats:
        """Return the probabilities that rows have the features, shape (n_samples, n_components)."""
        return self._best().feature_probabilities(X)

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return the accuracy, whatever ``scoring`` is."""
        return self._best().score(X, y, sample_weight)
