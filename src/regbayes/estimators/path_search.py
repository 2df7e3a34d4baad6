"""`PathSearchCV`: cross-validation of any estimator, with warm starts along a parameter."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, MetaEstimatorMixin, _fit_context, clone, is_classifier
from sklearn.model_selection import check_cv
from sklearn.utils import check_random_state, get_tags, indexable
from sklearn.utils._metadata_requests import _routing_enabled
from sklearn.utils._param_validation import HasMethods
from sklearn.utils.metadata_routing import UNUSED, MetadataRouter, MethodMapping, process_routing
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted
from tqdm import tqdm

from regbayes._registry import Saveable, persistable
from regbayes.estimators._bases import N_JOBS, InterruptedWarning
from regbayes.estimators._calibration import HeldOutScores
from regbayes.estimators._search import (
    GridEdgeWarning,
    Plan,
    Records,
    Samples,
    Scorer,
    find_edges,
    iter_records,
    refit,
    reseed,
    resolve_scorers,
    share_metadata,
    summarize,
    usable_records,
)
from regbayes.estimators.search_records import FoldRecord, OutOfFold, SearchInterrupted, setting_key

OnResult = Callable[[FoldRecord], object]


NOT_SAVED = ("cv", "scoring", "scorer_", "records_")  # the first three may be objects of any class


def best_has(method: str) -> Callable[[Any], bool]:
    """Return a check that the best estimator, or before the fit the one to search, has a method."""
    return lambda search: hasattr(search._searched(), method)


def has_probabilities(search: Any) -> bool:
    """Whether a search provides probabilities, by its estimator or by calibration; before the fit it may."""
    if best_has("predict_proba")(search):
        return True
    calibrated = vars(search).get("calibration_") is not None or "cv_results_" not in vars(search)
    return calibrated and best_has("decision_function")(search) and is_classifier(search)


class BaseSearch(Saveable, BaseEstimator):
    """Base of the searches, which predict with the best estimator.

    Subclasses call `_search` with a `Plan`. A search has the fitted attributes of the best estimator, and the chosen
    values: the attribute ``C_`` is the C of ``best_params_``.
    """

    __metadata_request__fit: ClassVar[dict[str, Any]] = {"records": UNUSED, "on_result": UNUSED}

    def _search(
        self,
        plan: Plan,
        samples: Samples,
        records: Iterable[FoldRecord] | None,
        on_result: OnResult | None,
        chooser: str = "score",
        *,
        refitted: bool = True,
    ) -> Self:
        """Run the fits, set the results, and fit the best setting on all samples."""
        for name in ("best_estimator_", "calibration_"):
            self.__dict__.pop(name, None)
        done, interrupted = self._run_fits(plan, samples, usable_records(plan, records or ()), on_result)
        self.records_ = list(done.values())
        self.cv_results_ = results = summarize(plan, done)
        mean = results[f"mean_test_{chooser}"]
        if np.all(np.isnan(mean)):
            if interrupted:
                raise SearchInterrupted(self.records_)
            raise ValueError("No setting has a score: all settings have a score of NaN on some fold.")
        self.n_splits_ = len(plan.folds)
        self.scorer_ = plan.scorers
        self.best_index_ = best = int(np.nanargmax(mean))
        self.best_params_ = dict(plan.settings[best])
        self.best_score_ = float(mean[best])
        key = setting_key(self.best_params_)
        tried = [done[key, fold] for fold in range(len(plan.folds))]
        self.out_of_fold_ = OutOfFold.collect(tried)
        self._interruption = ""
        if interrupted:
            self._interruption = (
                f"{type(self).__name__} was interrupted after {len(done)} of {plan.n_fits} fits; "
                f"the best of {np.sum(~np.isnan(mean))} settings that were tried on every fold is {self.best_params_}."
            )
            warnings.warn(self._interruption, InterruptedWarning, stacklevel=3)
        else:
            for edge in find_edges(results, best, chooser, self.best_params_):
                message = f"the best {edge.name}={edge.value} is the {edge.end} value that was tried"
                advice = f"add {edge.further} to {self._name_list(edge.name)}."
                warnings.warn(f"{type(self).__name__}: {message}: {advice}", GridEdgeWarning, stacklevel=3)
        if refitted:
            began = time.perf_counter()
            self.best_estimator_ = refit(plan, samples, plan.path_to(best), self.n_jobs)
            self.refit_time_ = time.perf_counter() - began
            if is_classifier(self.best_estimator_):
                held_out = HeldOutScores.collect(self.best_estimator_, tried, samples.y)
                self.calibration_ = None if held_out is None else held_out.calibrate(samples.fit.get("sample_weight"))
        return self

    def _run_fits(
        self, plan: Plan, samples: Samples, done: Records, on_result: OnResult | None
    ) -> tuple[Records, bool]:
        """Return all records, earlier ones included, and whether Ctrl-C interrupted the fits."""
        done, found = dict(done), iter_records(plan, samples, self.n_jobs, done)
        options = {"desc": type(self).__name__, "unit": "fit", "disable": not self.verbose}
        with tqdm(initial=len(done), total=plan.n_fits, **options) as bar:
            try:
                for record in found:
                    done[record.key] = record
                    bar.update()
                    if on_result is not None:
                        on_result(record)
            except KeyboardInterrupt:
                return done, True
            finally:
                found.close()  # ends the worker processes
        return done, False

    def __getattr__(self, name: str) -> Any:
        state = vars(self)
        if name.endswith("_") and not name.startswith("_"):
            if name[:-1] in state.get("best_params_", ()):
                return state["best_params_"][name[:-1]]
            if "best_estimator_" in state:
                return getattr(state["best_estimator_"], name)
        why = ""
        if name in ("predict_proba", "predict_log_proba") and "best_estimator_" in state and is_classifier(self):
            why = ": no fold of its search had all classes in its training part and scores of its test part"
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{why}")

    def _best(self) -> Any:
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_

    def _searched(self) -> Any:
        """Return the best estimator, or before the fit the one to search; None if no best one was fitted."""
        raise NotImplementedError

    def _name_list(self, parameter: str) -> str:
        """Return how the user names the list of a parameter's values."""
        return f"param_grid[{parameter!r}]"

    @available_if(best_has("predict"))
    def predict(self, X: Any, *given: Any, **metadata: Any) -> NDArray[Any]:
        """Predict with the best estimator; its method receives all further arguments."""
        return self._best().predict(X, *given, **metadata)

    @available_if(best_has("decision_function"))
    def decision_function(self, X: Any, *given: Any, **metadata: Any) -> Any:
        """Return the scores of the best estimator."""
        return self._best().decision_function(X, *given, **metadata)

    @available_if(has_probabilities)
    def predict_proba(self, X: Any, *given: Any, **metadata: Any) -> Any:
        """Return the probabilities of the best estimator.

        If it only has scores, ``calibration_`` maps them to probabilities. The most probable class is that of
        `predict`; predicted labels have a probability above 1/2.
        """
        best = self._best()
        if hasattr(best, "predict_proba"):
            return best.predict_proba(X, *given, **metadata)
        return self.calibration_.probabilities(best.decision_function(X, *given, **metadata))

    @available_if(has_probabilities)
    def predict_log_proba(self, X: Any, *given: Any, **metadata: Any) -> Any:
        """Return the logarithms of `predict_proba`."""
        found = self.predict_proba(X, *given, **metadata)
        with np.errstate(divide="ignore"):
            return [np.log(shares) for shares in found] if isinstance(found, list) else np.log(found)

    @available_if(best_has("transform"))
    def transform(self, X: Any) -> Any:
        """Return the features of the best estimator."""
        return self._best().transform(X)

    @available_if(best_has("score"))
    def score(self, X: Any, y: Any = None, *given: Any, **metadata: Any) -> float:
        """Return the score of the best estimator's ``score`` method, for any ``scoring``."""
        return float(self._best().score(X, y, *given, **metadata))


@persistable(skip=NOT_SAVED)
class PathSearchCV(MetaEstimatorMixin, BaseSearch):
    """Choose the parameters of an estimator by warm-started cross-validation.

    Every combination of the listed values is fitted on every fold, and the best one on all samples. With ``along``,
    fits that differ only in that parameter form a path: each is warm-started from the previous one on its fold. The
    final fit follows the path too. Results arrive one by one and can be stored, so that an interrupted search can be
    resumed.

    Parameters
    ----------
    estimator : estimator
        The estimator to fit; it is cloned.
    param_grid : dict
        Lists of values by parameter name.
    along : str or None, default=None
        The parameter of the paths, whose values are numbers. The estimator (or for ``along="step__C"`` that step of a
        pipeline) must have ``warm_start``. None: all fits are cold starts.
    descending : bool, default=False
        Whether paths go from the largest value to the smallest.
    cv : int, splitter or iterable, default=None
        Folds, as in scikit-learn; 5 by default, stratified for classifiers.
    scoring : str, callable, list, dict or None, default=None
        As in scikit-learn: a name, a function of (estimator, X, y), or several by name. None is the estimator's
        ``score``.
    refit : bool or str, default=True
        Whether to fit the best setting on all samples. With several scores, the name of the one that chooses.
    random_state : int, RandomState instance or None, default=None
        Seed of the estimator in all fits; None keeps the estimator's own.
    n_jobs : int or None, default=None
        Number of processes over paths and folds. It also sets ``n_jobs`` of the final fit if the estimator's is None.
    verbose : int, default=0
        Whether to show a progress bar with the time left.

    Attributes
    ----------
    best_estimator_ : estimator
        Fitted on all samples; its fitted attributes are also attributes of the search.
    best_params_ : dict
        The chosen values; each is also an attribute such as ``C_``.
    best_score_ : float
        Mean score of the best setting over the folds.
    best_index_ : int
        Index of the best setting in ``cv_results_``.
    cv_results_ : dict of arrays
        An entry per setting, as in scikit-learn: ``params``, ``param_...``, ``split0_test_score`` ...,
        ``mean_test_score``, ``std_test_score``, ``rank_test_score``, times, and ``mean_n_features``, the mean number of
        latent features in use. Several scores have their names in place of ``score``.
    out_of_fold_ : OutOfFold
        Held-out predictions of the best setting: ``rows``, ``predictions`` and ``decisions``.
    calibration_ : Calibration or None
        Map from scores to probabilities, fitted to ``out_of_fold_``, for classifiers with ``decision_function`` and
        without ``predict_proba``. ``temperatures`` has an entry per output.
    records_ : list of FoldRecord
        A record for each setting and fold; not saved with the search.
    refit_time_ : float
        Duration of the final fit in seconds.
    n_splits_ : int
        Number of folds.
    scorer_ : dict
        Scorers by name; None is the estimator's ``score``.

    See Also
    --------
    ILSVMClassifierCV, MultiTaskILSVMClassifierCV, MultiTaskILSVMRegressorCV : Searches with default lists of values.
    regbayes.search : Reads and writes records.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from regbayes import ILSVMClassifier, PathSearchCV
    >>> X, y = load_iris(return_X_y=True)
    >>> grid = {"C": [0.01, 0.1, 1.0, 10.0]}
    >>> search = PathSearchCV(ILSVMClassifier(tol=1e-2), grid, along="C", descending=True, cv=3, random_state=0)
    >>> heard = []
    >>> search = search.fit(X[::2], y[::2], on_result=lambda record: heard.append(record.fold))
    >>> len(heard), sorted(search.best_params_)
    (12, ['C'])
    >>> bool(search.score(X[1::2], y[1::2]) > 0.9)
    True
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "estimator": [HasMethods(["fit", "get_params", "set_params"])],
        "param_grid": [dict],
        "along": [str, None],
        "descending": ["boolean"],
        "cv": ["cv_object"],
        "scoring": [str, callable, list, tuple, dict, None],
        "refit": ["boolean", str],
        "random_state": ["random_state"],
        "n_jobs": N_JOBS,
        "verbose": ["verbose"],
    }

    def __init__(
        self,
        estimator: Any,
        param_grid: Mapping[str, Sequence[Any]],
        *,
        along: str | None = None,
        descending: bool = False,
        cv: Any = None,
        scoring: Any = None,
        refit: bool | str = True,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.estimator = estimator
        self.param_grid = param_grid
        self.along = along
        self.descending = descending
        self.cv = cv
        self.scoring = scoring
        self.refit = refit
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        records: Iterable[FoldRecord] | None = None,
        on_result: OnResult | None = None,
        **metadata: Any,
    ) -> Self:
        """Fit every setting on every fold, and the best one on all samples.

        Ctrl-C ends the search. If some settings have scores on every fold, the best of them is fitted, with a warning.
        Otherwise the records are in the exception `regbayes.search.SearchInterrupted`, a KeyboardInterrupt.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
        y : array-like of shape (n_samples,) or (n_samples, n_outputs), default=None
        records : iterable of FoldRecord, default=None
            Records of an earlier search on the same samples and folds. Their fits are only repeated to warm-start a
            missing one.
        on_result : callable, default=None
            Called with the record of each fit as it arrives.
        **metadata : array-like of shape (n_samples,)
            Passed to ``fit`` by fold, and to ``score``, ``predict`` and scorers that accept it by name, such as
            ``sample_weight`` and ``task``. ``groups`` are for ``cv``. With scikit-learn's metadata routing enabled, the
            requests decide.

        Returns
        -------
        self
        """
        X, y = indexable(X, y)
        estimator = clone(self.estimator)
        if self.random_state is not None:
            estimator = reseed(estimator, check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        scorers = resolve_scorers(estimator, self.scoring)
        chooser = self.refit if isinstance(self.refit, str) else next(iter(scorers))
        if chooser not in scorers or (len(scorers) > 1 and not isinstance(self.refit, str)):
            raise ValueError(
                f"`refit` must name the score that chooses, one of {', '.join(scorers)}; got {self.refit!r}."
            )
        metadata = {name: value for name, value in metadata.items() if value is not None}
        samples, of_split = self._route(X, y, estimator, scorers, metadata)
        folds = check_cv(self.cv, y, classifier=is_classifier(estimator)).split(X, y, **of_split)
        plan = Plan.make(estimator, self.param_grid, folds, scorers, along=self.along, descending=self.descending)
        return self._search(plan, samples, records, on_result, chooser, refitted=self.refit is not False)

    def _route(
        self, X: Any, y: Any, estimator: Any, scorers: Mapping[str, Scorer], metadata: Mapping[str, Any]
    ) -> tuple[Samples, dict[str, Any]]:
        """Return the metadata for each method, and the metadata for the splitter."""
        if _routing_enabled():
            routed = process_routing(self, "fit", **metadata)
            of_score = {
                name: routed.estimator.score if scorer is None else routed.get(f"scorer_{name}", {}).get("score", {})
                for name, scorer in scorers.items()
            }
            return Samples(X, y, routed.estimator.fit, routed.estimator.predict, of_score), routed.splitter.split
        of_split = {name: value for name, value in metadata.items() if name == "groups"}
        others = {name: value for name, value in metadata.items() if name != "groups"}
        return share_metadata(X, y, estimator, scorers, others), of_split

    def get_metadata_routing(self) -> MetadataRouter:
        """Return the routing of metadata to the estimator, the scorers and the splitter."""
        calls = MethodMapping().add(caller="fit", callee="fit").add(caller="fit", callee="predict")
        scorers = resolve_scorers(self.estimator, self.scoring)
        if None in scorers.values():
            calls.add(caller="fit", callee="score")
        for method in ("predict", "decision_function", "score", "transform"):
            calls.add(caller=method, callee=method)
        for method in ("predict_proba", "predict_log_proba"):
            own = method if hasattr(self.estimator, method) else "decision_function"
            calls.add(caller=method, callee=own)
        router = MetadataRouter(owner=self).add(estimator=self.estimator, method_mapping=calls)
        for name, scorer in scorers.items():
            if hasattr(scorer, "get_metadata_routing"):
                scoring = MethodMapping().add(caller="fit", callee="score")
                router.add(**{f"scorer_{name}": scorer}, method_mapping=scoring)
        splitting = MethodMapping().add(caller="fit", callee="split")
        return router.add(splitter=check_cv(self.cv), method_mapping=splitting)

    def _searched(self) -> Any:
        return None if self.refit is False else vars(self).get("best_estimator_", self.estimator)

    @available_if(best_has("transform"))
    def fit_transform(self, X: Any, y: Any = None, **given: Any) -> Any:
        """Search, and return the features of the samples."""
        return self.fit(X, y, **given).transform(X)

    def __sklearn_tags__(self) -> Any:
        return replace(get_tags(self.estimator), array_api_support=False)
