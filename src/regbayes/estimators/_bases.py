"""Bases of the estimators: parameters and their documentation, input validation, and fits that report progress."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from functools import partial
from inspect import cleandoc
from numbers import Integral, Real
from types import TracebackType
from typing import Any, ClassVar, Literal, Self, TypeVar, cast, dataclass_transform

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.callback import CallbackSupportMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import _safe_indexing, check_consistent_length, check_random_state, compute_class_weight
from sklearn.utils._missing import is_scalar_nan
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_array, validate_data
from tqdm import tqdm

from regbayes._registry import Saveable, persistable
from regbayes._types import Flags, Floats, Integers
from regbayes.engine import FitResult, Progress, Status
from regbayes.engine.executor import one_blas_thread as one_blas_thread
from regbayes.engine.loop import Recorder, Snapshot
from regbayes.estimators._arrays import (
    NO_LABELS,
    bring_beside,
    bring_here,
    check_indices,
    check_types,
    describe_room,
    is_elsewhere,
    pick_classes_there,
    read_there,
    to_dense,
    working_on,
)
from regbayes.estimators.checkpoint import Checkpoint
from regbayes.kernels.arrays import find_ranges, is_mapped, is_plain, take_rows, to_host
from regbayes.kernels.device_memory import within_memory
from regbayes.margins.targets import zero_one_cost

T = TypeVar("T")

POSITIVE = Interval(Real, 0, None, closed="neither")
NOT_NEGATIVE = Interval(Real, 0, None, closed="left")
N_JOBS = [Interval(Integral, 1, None, closed="left"), Interval(Integral, None, -1, closed="right"), None]
MAX_COUNT = 2.0**53  # largest number of samples that double precision counts exactly
UNSCALED = 1000.0  # ratio of the ranges of columns above which a fit warns
LEAST_WEIGHT = 0.01  # share of the largest weight of an output below which a feature is not in use
NEGLECTED = 0.2  # share of the weight in never predicted classes at which a fit is degenerate


def generator(random_state: Any) -> np.random.Generator:
    """Return a generator for a scikit-learn ``random_state``."""
    return np.random.default_rng(check_random_state(random_state).randint(np.iinfo(np.int32).max))


@contextmanager
def keep_on_failure(estimator: Any) -> Iterator[None]:
    """Restore the attributes of an estimator if its fit fails."""
    before = dict(vars(estimator))
    try:
        yield
    except Warning:  # a warning that the user turned into an error leaves a complete fit
        raise
    except BaseException:
        vars(estimator).update(before)
        for name in vars(estimator).keys() - before.keys():
            if "callback" not in name:  # scikit-learn needs its callback attributes to tear them down
                delattr(estimator, name)
        raise


def read_rows(estimator: Any, X: Any, y: Any = NO_LABELS, **options: Any) -> Any:
    """Validate samples and labels; return arrays in double precision or on their device.

    Sparse samples become dense. Memory-mapped samples keep their type, and their blocks are converted.
    """
    check_types(X)
    check_indices(X)
    if not isinstance(X, np.ndarray) and is_elsewhere(X):
        return read_there(estimator, X, y, **options)
    types = [np.float64]
    if isinstance(X, np.ndarray) and X.dtype.kind in "biuf" and X.dtype.itemsize <= 8 and X.dtype != np.float64:
        types += [X.dtype] if getattr(type(estimator), "_in_blocks", False) and is_mapped(X) else []
    labels = y if isinstance(y, np.ndarray | str) else bring_here(y, "y")
    found = validate_data(estimator, X, labels, dtype=types, accept_sparse="csr", **options)
    return (to_dense(found[0]), found[1]) if isinstance(found, tuple) else to_dense(found)


def fit_beside(estimator: Any, X: Any) -> AbstractContextManager[None]:
    """Move the fitted attributes to the device of the samples after a fit."""
    return nullcontext() if isinstance(X, np.ndarray) else working_on(estimator, X)


def room_for(estimator: Any, X: Any) -> AbstractContextManager[None]:
    """Report how many samples fit if a device runs out of memory."""
    return nullcontext() if isinstance(X, np.ndarray) else within_memory(X, partial(describe_room, estimator, X))


def row_weights(sample_weight: Any, X: Floats) -> Floats | None:
    """Return validated sample weights; None if all samples count once."""
    if sample_weight is None:
        return None
    given, rows = bring_beside(sample_weight, X, "sample_weight"), X if is_plain(X) else np.empty((X.shape[0], 0))
    weights = _check_sample_weight(given, rows, dtype=np.float64, ensure_non_negative=True)
    check_total_weight(weights)
    return None if np.all(weights == 1.0) else weights


def check_total_weight(weights: Floats) -> None:
    """Raise an error for sample weights too large to count."""
    if weights.sum() > MAX_COUNT:
        raise ValueError(f"sample_weight must have a sum of at most {MAX_COUNT:g}; got {weights.sum():g}")


def drop_weightless(X: Floats, sample_weight: Any, *given: Any) -> tuple[Any, ...]:
    """Return the samples with nonzero weight, their weights (None if all are 1), and other values of these samples."""
    weights = row_weights(sample_weight, X)
    if weights is None or np.all(weights > 0):
        return X, weights, *given
    check_consistent_length(weights, *given)
    kept = np.flatnonzero(weights)
    X, weights = X[kept] if is_plain(X) else take_rows(X, kept), weights[kept]
    others = (None if one is None else _safe_indexing(one, kept) for one in given)
    return X, None if np.all(weights == 1.0) else weights, *others


def check_unlabeled(unlabeled: Any) -> None:
    """Raise an error for several values, which NumPy would compare with ``y`` entry by entry."""
    if np.ndim(unlabeled) > 0:
        raise ValueError(f"unlabeled must be one value, that of y where there is no label; got {unlabeled!r}")


def find_labeled(y: NDArray[Any], unlabeled: Any, required: bool = True) -> Flags:
    """Return which samples have a label: all whose label is not ``unlabeled``."""
    if unlabeled is None:
        return np.ones(len(y), dtype=bool)
    check_unlabeled(unlabeled)
    labeled = np.asarray(y != unlabeled, dtype=bool)
    if required and not labeled.any():
        raise ValueError(f"no row has a label: all of y is {unlabeled!r}, the value of unlabeled")
    return labeled


def in_use(psi: Floats) -> Flags:
    """Return which features vary by more than 0.1 over the samples."""
    lowest, highest = find_ranges(psi)
    return np.asarray(highest - lowest > 0.1)


def has_weight(coef: Floats) -> Flags:
    """Return which features have more than a hundredth of the largest weight of some output, (K,)."""
    sizes = np.abs(np.atleast_2d(to_host(coef)))
    return np.any(sizes > LEAST_WEIGHT * sizes.max(axis=1, keepdims=True, initial=0.0), axis=0)


def check_features_in_use(model: Any, n_components: int) -> None:
    """Raise ValueError if the features in use of a loaded model do not fit its other attributes."""
    used = model._used
    if not isinstance(used, list) or len(used) != len(model.components_):
        raise ValueError("the features in use do not fit components_")
    if not all(type(k) is int and 0 <= k < n_components for k in used):
        raise ValueError(f"features in use must be between 0 and {n_components - 1}; got {used!r:.100}")


def warn_of_no_features() -> None:
    """Warn that no feature varies between samples."""
    warnings.warn(
        "No feature is in use: all are nearly the same for all samples. Change `temperature`, and check that `X` "
        "varies.",
        ConvergenceWarning,
        stacklevel=3,
    )


def warn_if_unscaled(X: Floats) -> None:
    """Warn if the ranges of columns differ so much that the largest dominate the features."""
    lowest, highest = find_ranges(X)
    ranges = np.subtract(highest, lowest, dtype=np.float64)
    ranges = ranges[ranges > 0]
    if len(ranges) > 1 and ranges.max() > UNSCALED * ranges.min():
        warnings.warn(
            f"The columns of `X` have ranges from {ranges.min():.3g} to {ranges.max():.3g}. The largest dominate the "
            "features. Scale the columns, for example with StandardScaler.",
            UnscaledWarning,
            stacklevel=3,
        )


def warn_of_truncation(n_used: int) -> None:
    """Warn that all features are in use."""
    warnings.warn(
        f"All {n_used} features that `n_components` allows are in use, so the number of features may be too small. "
        "Raise `n_components`, or ignore this warning if you chose the number.",
        TruncationWarning,
        stacklevel=3,
    )


class UnscaledWarning(ConvergenceWarning):
    """The columns of X have such different scales that the largest dominate."""


class TruncationWarning(ConvergenceWarning):
    """All features are in use: n_components may be too small for the data."""


def check_labels(y: Any) -> None:
    """Raise ValueError for continuous targets, missing values, and text mixed with numbers."""
    check_label_types(y)
    check_classification_targets(y)


def check_label_types(y: Any) -> None:
    """Raise ValueError for missing values, and for text mixed with numbers, which cannot be sorted."""
    if isinstance(y, list | tuple) and not any(isinstance(label, list | tuple | np.ndarray) for label in y):
        y = np.asarray(y)
    if getattr(getattr(y, "dtype", None), "kind", "") != "O":
        return
    values = np.asarray(y)
    if find_missing(values).any():
        raise ValueError("y has missing values: leave their rows out, or give them a label of their own")
    examples = {isinstance(label, str): label for label in values.ravel().tolist()}
    if len(examples) > 1:
        text, other = (np.asarray(examples[is_text]).tolist() for is_text in (True, False))  # no np.str_('a')
        raise ValueError(
            f"labels in y are of several types ({text!r}, {other!r}): give all of them as text, or as numbers"
        )


def find_missing(values: NDArray[Any]) -> Flags:
    """Return which entries of an array are missing: NaN, None, or pandas' NA."""
    if values.dtype.kind == "f":
        return np.isnan(values)
    if values.dtype.kind != "O":
        return np.zeros(values.shape, dtype=bool)
    flat = [value is None or is_scalar_nan(value) or type(value).__name__ == "NAType" for value in values.ravel()]
    return np.array(flat, dtype=bool).reshape(values.shape)


def encode_classes(estimator: Any, y: NDArray[Any]) -> tuple[NDArray[Any], Integers]:
    """Return the classes and the code of each label; raise ValueError for a single class."""
    classes, codes = np.unique(y, return_inverse=True)
    check_several(estimator, classes)
    return classes, codes.astype(np.int64)


def known_codes(y: NDArray[Any], classes: NDArray[Any]) -> Integers:
    """Return the code of each label among known classes."""
    check_label_types(y)
    unknown = np.setdiff1d(y, classes)
    if len(unknown):
        raise ValueError(
            f"y has {unknown.tolist()!r}, but the classes are {classes.tolist()!r}; name all of them with classes= in "
            "the first call of partial_fit"
        )
    return np.searchsorted(classes, y).astype(np.int64)


def check_known_classes(given: ArrayLike | None, classes: NDArray[Any]) -> None:
    """Raise an error if ``classes`` differs from the classes of earlier batches."""
    if given is not None and not np.array_equal(np.unique(given), classes):
        raise ValueError(f"classes={given!r} is not what it was in the first call: {classes.tolist()!r}")


def check_several(estimator: Any, classes: NDArray[Any]) -> None:
    """Raise an error for a single class."""
    if len(classes) < 2:
        raise ValueError(f"{type(estimator).__name__} needs labels of at least 2 classes, got {len(classes)} class(es)")


def weights_by_class(
    class_weight: Any, classes: NDArray[Any], codes: Integers, sample_weight: Floats | None = None
) -> Floats:
    """Return the factor of each class for scikit-learn's ``class_weight``."""
    found = compute_class_weight(class_weight, classes=classes, y=classes[codes], sample_weight=sample_weight)
    weights = np.asarray(found, dtype=np.float64)
    if not np.all((weights >= 0) & np.isfinite(weights)):
        raise ValueError(f"class_weight must be finite and not negative, got {class_weight!r}")
    return weights


def cost_matrix(cost: ArrayLike | None, n_classes: int) -> Floats:
    """Return the costs of wrong predictions, a row for each true class; 1 by default."""
    if cost is None:
        return zero_one_cost(n_classes)
    matrix: Floats = check_array(cost, dtype=np.float64, ensure_2d=False, input_name="cost", copy=True)
    if matrix.shape != (n_classes, n_classes):
        raise ValueError(f"cost must have shape ({n_classes}, {n_classes}), a row per true class; got {matrix.shape}")
    if np.any(np.diag(matrix) != 0) or np.any(matrix < 0):
        raise ValueError(f"cost must be non-negative with a zero diagonal, got {matrix.tolist()}")
    return matrix


def pick_classes(scores: Any, classes: Any) -> NDArray[Any]:
    """Return the predicted class of each sample from scores, (n,) for two classes or (n, n_classes)."""
    if not isinstance(scores, np.ndarray):
        return pick_classes_there(scores, classes)
    best = (scores > 0).astype(int) if scores.ndim == 1 else np.argmax(scores, axis=1)
    return np.asarray((classes if isinstance(classes, np.ndarray) else to_host(classes))[best])


def find_fault(codes: Integers, predicted: Integers, cost: Floats, weights: Floats, classes: NDArray[Any]) -> str:
    """Return why predictions for training samples are degenerate, or an empty string.

    Predictions are degenerate if they cost more than the best constant prediction, or if classes with a large share of
    the weight are never predicted. Costs and weights are those of the fit.
    """
    by_class = np.bincount(codes, weights, minlength=len(classes))
    constant = float(np.min(by_class @ cost))
    found = float(weights @ cost[codes, predicted])
    if found > constant * (1.0 + 1e-9):
        return (
            f"does worse on its training samples than one class for all: wrong predictions cost {found:.4g}, those "
            f"of {classes.tolist()[np.argmin(by_class @ cost)]!r} for every row {constant:.4g}"
        )
    silent = np.bincount(predicted, minlength=len(classes)) == 0
    share = by_class[silent].sum() / by_class.sum()
    if share >= max(NEGLECTED, 1.0 / len(classes)) - 1e-9:
        named = ", ".join(repr(one) for one in classes[silent][:3].tolist()) + ", ..." * bool(np.sum(silent) > 3)
        return f"never predicts {named} on its training samples, though {share:.0%} of their weight is there"
    return ""


def judge_signs(wrong: float, negative: Floats, positive: Floats) -> str:
    """Return why predicted signs are degenerate, given the weights of wrong signs and of each output's signs."""
    constant = float(np.minimum(negative, positive).sum())
    if wrong <= constant * (1.0 + 1e-9):
        return ""
    return (
        "does worse on its training samples than one class for each label: "
        f"wrong predictions weigh {wrong:.4g}, those of the most frequent ones {constant:.4g}"
    )


class InterruptedWarning(ConvergenceWarning):
    """The user interrupted a fit, which returned its state at that point."""


class PoorFitWarning(ConvergenceWarning):
    """Predictions for the training samples are degenerate after all restarts."""


class FirstBatchWarning(ConvergenceWarning):
    """The first batch is too small to determine the features or topics."""


@dataclass(eq=False)
class FitReporter(Recorder):
    """Report the engine's progress to scikit-learn's callbacks and progress bars.

    It is the context of a fit and a callback of the engine. The fitted attributes are set before the context exits, so
    that the last hook gets a fitted estimator.

    Iterations are tasks of the fit, or of its stages if it has any. Each stage has a progress bar, and restarts repeat
    the stages. A callback that requests a stop ends the whole fit.
    """

    estimator: Any
    max_iter: int | Mapping[str, int | None]
    data: dict[str, Any]
    attributes: Callable[[Any], dict[str, Any]]
    verbose: int = 0
    is_fit: bool = True  # False for `partial_fit`, which checkpoints do not save

    result: FitResult[Any] = field(init=False)  # set before the context exits
    fault: str = field(default="", init=False)  # message for a warning about degenerate predictions
    stage: str = field(default="", init=False)  # stage of the last iteration
    bar: tqdm[Any] | None = field(default=None, init=False)
    reconstruct: Callable[[], dict[str, Any]] = field(default=dict, init=False)  # attributes after the last iteration

    def __enter__(self) -> Self:
        most = self.max_iter if isinstance(self.max_iter, int) else len(self.max_iter)
        self.context = self.estimator._init_callback_context(max_subtasks=most)
        self.context.call_on_fit_task_begin(estimator=self.estimator, **self.data)
        self.level = self.context  # the task whose subtasks are iterations
        callbacks = getattr(self.estimator, "_skl_callbacks", [])
        self.has_callbacks = bool(callbacks)
        self.checkpoint = next((one for one in callbacks if self.is_fit and isinstance(one, Checkpoint)), None)
        if self.checkpoint is not None:
            self.checkpoint.open(self.estimator, self.data)
        if self.verbose and isinstance(self.max_iter, int):
            self._open_bar(self.max_iter)
        return self

    def __call__(self, progress: Progress[Any]) -> bool:
        """Report one iteration; return whether a callback requests a stop."""
        stop = False
        if progress.stage != self.stage:
            assert not isinstance(self.max_iter, int)
            stop, self.stage, most = self._end_stage(), progress.stage, self.max_iter[progress.stage]
            if self.verbose:
                self._open_bar(most)
            if self.has_callbacks:
                self.level = self.context.subcontext(task_name=self.stage, max_subtasks=most)
                self.level.call_on_fit_task_begin(estimator=self.estimator, **self.data)
        if self.bar is not None:
            self.bar.update()
            self.bar.set_postfix_str(f"objective {progress.objective:.6g}", refresh=False)
        if self.has_callbacks:
            task = self.level.subcontext(task_name="iteration")
            task.call_on_fit_task_begin(estimator=self.estimator, **self.data)
            self.reconstruct = lambda: self.attributes(progress.state)
            stop |= self._end(task)
        return stop

    def begin(self, state: Any) -> Snapshot[Any] | None:
        """Return where the checkpoint continues the next run of the engine."""
        return None if self.checkpoint is None else self.checkpoint.begin(state)

    def record(self, take_snapshot: Callable[[], Snapshot[Any]], status: Status | None = None) -> None:
        """Let the checkpoint save a run of the engine."""
        if self.checkpoint is not None:
            self.checkpoint.record(take_snapshot, status)

    def begin_again(self) -> bool:
        """Add the stages of a restart; return whether a callback requests a stop instead."""
        stop, self.stage = self._end_stage(), ""
        if not isinstance(self.max_iter, int):
            self.context.max_subtasks += len(self.max_iter)
        return stop

    def _end_stage(self) -> bool:
        """Close the tasks of a stage; return whether a callback requests a stop."""
        if self.bar is not None:
            self.bar.close()
        if self.level is self.context:
            return False
        ended, self.level = self.level, self.context
        return self._end(ended)

    def _end(self, task: Any) -> bool:
        """Report the end of a task; return whether a callback requests a stop."""
        return bool(
            task.call_on_fit_task_end(estimator=self.estimator, reconstruction_attributes=self.reconstruct, **self.data)
        )

    def _open_bar(self, total: int | None) -> None:
        name = f"{type(self.estimator).__name__} {self.stage}".rstrip()
        self.bar = tqdm(total=total, desc=name, unit="it", leave=True)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.reconstruct = dict  # the estimator is fitted now
            self._end_stage()
            if self.checkpoint is not None:
                self.checkpoint.close()
            self.context.call_on_fit_task_end(estimator=self.estimator, reconstruction_attributes=dict, **self.data)
        elif self.bar is not None:
            self.bar.close()


def describe_interruption(estimator: Any, fit: FitResult[Any]) -> str:
    """Describe what an interrupted fit returned, for the warning and the report."""
    when = f"after {fit.n_iter} iterations" if fit.n_iter else "during its warm-up"
    return f"{type(estimator).__name__} was interrupted {when}; the best state so far is kept."


def warn_of_status(estimator: Any, fit: FitResult[Any]) -> None:
    """Warn about the status of a fit if the user can act on it."""
    name = type(estimator).__name__
    if fit.status is Status.ITERATION_LIMIT:
        limit = fit.n_iter if estimator.max_iter is None else estimator.max_iter  # None is the default of the model
        message = (
            f"{name} stopped at max_iter={limit} before the objective converged to tol={estimator.tol}. "
            "Raise max_iter, or tol if this accuracy is enough."
        )
    elif fit.status is Status.DIVERGED:
        message = f"{name}: the objective became NaN or infinite; the best state before that is kept. Check X's scale."
    elif fit.status is Status.INTERRUPTED:
        warnings.warn(describe_interruption(estimator, fit), InterruptedWarning, stacklevel=4)
        return
    else:
        return
    warnings.warn(message, ConvergenceWarning, stacklevel=4)


OPTIONAL_ATTRIBUTES = (  # attributes that not every fit sets
    "_batches",
    "coef_inputs_",
    "n_samples_seen_",
    "probabilities_",
)
CUT_SHORT = (Status.STOPPED, Status.INTERRUPTED)


class IterativeEstimator(Saveable, CallbackSupportMixin, BaseEstimator):
    """Base of the estimators that are fitted by an iteration of the engine."""

    def __dask_tokenize__(self) -> Any:
        """Return what identifies a model for Dask, which would omit the fitted attributes of a dataclass."""
        from dask.base import normalize_token  # only Dask calls this method

        return normalize_token((type(self), vars(self)))

    @contextmanager
    def _fitting(
        self,
        attributes: Callable[[Any], dict[str, Any]],
        max_iter: int | Mapping[str, int | None],
        data: Mapping[str, Any],
        verbose: int = 0,
        is_fit: bool = True,
    ) -> Iterator[FitReporter]:
        """Report a fit; then set the fitted attributes and issue its warnings.

        The fit receives the reporter as a callback and sets its ``result``. The parameters are those of `FitReporter`.
        """
        with one_blas_thread(), FitReporter(self, max_iter, data, attributes, verbose, is_fit) as reporter:
            yield reporter
            self._set_fitted(attributes(reporter.result.state), reporter.result)
        warn_of_status(self, reporter.result)
        if reporter.fault:
            advice = "Raise n_init for more starts; look at C, n_components and the scale of the inputs."
            message = f"{type(self).__name__} {reporter.fault}, from another start too. {advice}"
            warnings.warn(message, PoorFitWarning, stacklevel=3)

    def _try_starts(
        self,
        reporter: FitReporter,
        starts: Iterator[Any],
        n_init: int,
        find_fault: Callable[[Any], str] = lambda _: "",
        only_faults: bool = False,
    ) -> Iterator[Any]:
        """Yield initializations; at the end the reporter has the result with the lowest objective.

        The caller sets the result of each fit. A degenerate result leads to another start, and results that are not
        degenerate have precedence. A stop or an interrupt ends the attempts.
        """
        best: FitResult[Any] | None = None
        fault = ""
        for tried, start in enumerate(starts, 1):
            yield start
            result = reporter.result
            cut = result.status in CUT_SHORT
            found = "" if cut or self.max_iter == 0 else find_fault(result.state)
            if best is None or (not cut and (bool(found), result.objective) < (bool(fault), best.objective)):
                best, fault = result, found
            elif cut:
                best, fault = replace(best, status=result.status), ""
            if cut or tried > n_init or (not fault and (only_faults or tried == n_init)):
                break
            if reporter.begin_again():
                best, fault = replace(best, status=Status.STOPPED), ""
                break
        assert best is not None
        reporter.result, reporter.fault, self.objective_ = best, fault, best.objective

    def _set_fitted(self, attributes: Mapping[str, Any], result: FitResult[Any]) -> None:
        """Set the fitted attributes and the history, and remove optional attributes of an earlier fit."""
        for name in OPTIONAL_ATTRIBUTES:
            if name not in attributes and hasattr(self, name):
                delattr(self, name)
        for name, value in attributes.items():
            setattr(self, name, value)
        self.trace_, self.n_iter_ = result.trace, result.n_iter
        interrupted = result.status is Status.INTERRUPTED
        self._interruption = describe_interruption(self, result) if interrupted else ""


def fit_data(X: Any, y: Any = None, **metadata: Any) -> dict[str, Any]:
    """Return the data of a fit for callbacks."""
    given = {"X": X} if y is None else {"X": X, "y": y}
    for name, value in metadata.items():
        if value is not None:
            given.setdefault("metadata", {})[name] = value
    return given


@dataclass(eq=False, repr=False)
class LatentModel(ClassNamePrefixFeaturesOutMixin, TransformerMixin, IterativeEstimator):
    """Base of the estimators with latent features under an Indian buffet prior; ``_state`` is the fitted model.

    Parameters
    ----------
    alpha : float
        Controls the prior number of features (concentration of the Indian buffet process). Larger values expect more.
    warm_start : bool
        Whether ``fit`` continues from the last solution.
    n_jobs : int or None
        Number of threads. The result does not depend on it.
    verbose : int
        Whether to show a progress bar.

    Attributes
    ----------
    n_features_in_, feature_names_in_
        As in scikit-learn.
    """

    n_components: int = 50
    _: KW_ONLY
    alpha: float = 2.0
    temperature: float | Literal["auto"] = "auto"
    max_iter: int = 200
    tol: float = 1e-3
    warm_start: bool = False
    random_state: Any = None
    n_jobs: int | None = None
    verbose: int = 0

    _takes_devices: ClassVar[bool] = True  # accepts arrays of PyTorch and CuPy on their device
    _in_blocks: ClassVar[bool] = True  # reads memory-mapped samples by blocks, in their type
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "alpha": [POSITIVE],
        "temperature": [POSITIVE, StrOptions({"auto"})],
        "max_iter": [Interval(Integral, 0, None, closed="left")],
        "tol": [NOT_NEGATIVE],
        "warm_start": ["boolean"],
        "random_state": ["random_state"],
        "n_jobs": N_JOBS,
        "verbose": ["verbose"],
    }

    @property
    def _n_features_out(self) -> int:
        return int(self.components_.shape[0])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


@dataclass_transform(eq_default=False)
def public_estimator(cls: type[T]) -> type[T]:
    """Turn the annotations of a class into parameters, complete its documentation, and allow it in saved files.

    The documentation gets the entries for parameters and attributes that only base classes document, and defaults.
    """
    cls = dataclass(eq=False, repr=False)(cls)
    defaults = {one.name: one.default for one in fields(cast(Any, cls))}
    first = next(iter(defaults))  # the only positional parameter
    doc = cleandoc(cls.__doc__ or "")
    for title in ("Parameters", "Attributes"):
        entries = list_entries(doc, title)
        own = "\n".join(entries)
        for base in cls.__mro__[1:]:
            known = {name for entry in entries for name in entry_names(entry)}
            entries += [entry for entry in list_entries(base.__doc__, title) if not known & {*entry_names(entry)}]
        for i, entry in enumerate(entries):
            heading, (name, *_) = entry.partition("\n")[0], entry_names(entry)
            if title == "Parameters" and "default=" not in heading and " : " in heading:
                value = f'"{defaults[name]}"' if isinstance(defaults[name], str) else repr(defaults[name])
                entries[i] = entry.replace(heading, f"{heading}, default={value}", 1)
        doc = doc.replace(own, "\n".join(sorted(entries, key=lambda entry: entry_names(entry)[0] != first)))
    cls.__doc__ = doc
    saved: type[T] = persistable(skip=("_skl_callbacks",))(cls)
    return saved


def list_entries(doc: str | None, title: str) -> list[str]:
    """Return the entries of a section of a numpydoc docstring."""
    section = cleandoc(doc or "").partition(f"{title}\n{'-' * len(title)}\n")[2].partition("\n\n")[0]
    return [entry for entry in re.split(r"\n(?=\S)", section) if entry]


def entry_names(entry: str) -> list[str]:
    """Return the names that an entry describes."""
    return entry.partition("\n")[0].partition(" : ")[0].split(", ")
