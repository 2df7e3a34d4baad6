"""Common code of the Dask estimators."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, ClassVar, Self

import dask
import dask.array as da
import numpy as np
from numpy.typing import NDArray
from sklearn import config_context
from sklearn.base import BaseEstimator, _fit_context
from sklearn.callback import with_callbacks
from sklearn.utils.validation import check_is_fitted, validate_data

from regbayes.dask.blocks import find_client, shelter_workers
from regbayes.dask.source import (
    DaskSource,
    Reader,
    align,
    check_columns,
    chunks_of,
    is_collection,
    read_plain,
    sizes_of,
)
from regbayes.engine.source import Strata
from regbayes.estimators._bases import fit_data
from regbayes.estimators._sources import Labels, code_labels, spread_of_targets
from regbayes.kernels.arrays import is_plain, to_host
from regbayes.margins.head import HEAD_POLICY

START_ROWS = 10_000  # maximum number of samples in the structure search
SAMPLE_BYTES = 1 << 28  # maximum bytes of samples copied to the client

LAZY = ("predict", "decision_function", "transform", "feature_probabilities", "score_samples")
IN_MEMORY = ("partial_fit", "fit_weights")


class OnCluster(BaseEstimator):
    """Mixin for estimators of samples on the workers of a Dask cluster.

    The last base of a subclass is the plain estimator, which defines parameters and fitted attributes. Predictions for
    collections are lazy.
    """

    classes_: Any
    _plain: ClassVar[type[Any]]
    _local_only: ClassVar[dict[str, Any]] = {}  # parameters and values that need all samples in local memory

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if issubclass(cls.__bases__[-1], OnCluster):  # a base class, not an estimator
            return
        cls._plain = cls.__bases__[-1]
        for names, change in ((LAZY, _lazily), (IN_MEMORY, _in_memory)):
            for name in names:
                if hasattr(cls._plain, name) and name not in vars(cls):
                    setattr(cls, name, change(getattr(cls._plain, name)))

    @with_callbacks
    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, client: Any = None) -> Self:
        """Fit to samples on the workers of a Dask cluster.

        Parameters
        ----------
        X : dask array or DataFrame of shape (n_samples, n_features)
            Chunks of PyTorch or CuPy stay on their devices. Chunks of word counts may be sparse.
        y : dask array, Series or DataFrame of shape (n_samples,) or (n_samples, n_outputs), default=None
            Targets as for the plain estimator. They are rechunked to the chunks of `X`.
        sample_weight : dask array or Series of shape (n_samples,), default=None
            Sample weights.
        client : distributed.Client, default=None
            Dask client; by default the current one.

        Returns
        -------
        self
        """
        return self._fit(X, y, sample_weight, None, client)

    def _fit(self, X: Any, y: Any, sample_weight: Any, task: Any, client: Any) -> Self:
        if not self.__sklearn_tags__().target_tags.required:
            y = None
        elif y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        for name, values in self._local_only.items():
            if getattr(self, name) in values:
                raise ValueError(
                    f"{name}={getattr(self, name)!r} keeps a result for every sample, which needs all samples in local "
                    f"memory. Choose another value of {name}, or fit regbayes.{type(self).__name__} to a part of the "
                    "samples."
                )
        found = find_client(client)
        with shelter_workers(found):
            X = check_columns(X)
            columns, self.n_features_in_ = getattr(X, "columns", ()), int(X.shape[1])
            if len(columns) and all(isinstance(name, str) for name in columns):
                self.feature_names_in_ = np.asarray(columns, dtype=object)
            elif hasattr(self, "feature_names_in_"):
                del self.feature_names_in_
            source = DaskSource(found, X, self._make_reader(self.n_features_in_, y), y, sample_weight, task)
            if len(source) < 2:
                raise ValueError(f"X has {len(source)} row(s) that count, and a minimum of 2 is required")
            self._fit_source(source, fit_data(X, y, sample_weight=sample_weight, task=task))
        return self

    def _make_reader(self, n_columns: int, y: Any) -> Reader:
        """Return the reader of samples on workers."""
        return Reader(n_columns)

    def _fit_source(self, source: DaskSource, data: dict[str, Any]) -> None:
        """Fit to validated samples; ``data`` has the user's arguments for callbacks."""
        raise NotImplementedError

    def _read_classes(self, source: DaskSource, unlabeled: Any = None) -> tuple[Labels, Strata]:
        """Set ``classes_``; return the classes, and the strata of samples of each class and of unlabeled ones."""
        labels: Labels = source.summarize(Labels.of, unlabeled)
        labels.check(self, unlabeled)
        self.classes_: Any = labels.classes
        kinds = partial(code_labels, classes=labels.classes, unlabeled=unlabeled, rest=len(labels.classes))
        return labels, Strata(np.append(labels.counts, labels.n_rest), kinds)

    def _count_labels(self, source: DaskSource, unlabeled: Any = None) -> int:
        """Set ``classes_`` to the columns of a matrix of labels; return their number."""
        ranges = source.summarize(spread_of_targets, unlabeled).ranges.array()
        if not np.all(np.isin(ranges[np.isfinite(ranges)], (0, 1))):
            raise ValueError("Several columns of `y` must be labels: 0, 1, or NaN where missing.")
        self.classes_ = np.arange(ranges.shape[1])
        return int(ranges.shape[1])

    def to_local(self) -> Any:
        """Return the fitted model as the plain estimator, for arrays in memory and for files.

        It has no ``embedding_``, because the training samples are distributed.
        """
        check_is_fitted(self)
        parameters = self.get_params(deep=False)
        left_out = {*parameters, "_skl_callbacks"}  # callbacks may contain a client, which cannot be pickled
        local = self._plain(**parameters)
        vars(local).update({name: value for name, value in vars(self).items() if name not in left_out})
        return local

    def save(self, path: Any) -> None:
        """Save the plain estimator to a file for `regbayes.load`."""
        self.to_local().save(path)

    def _answer(self, method: Callable[..., Any], X: Any, task: Any = None) -> Any:
        """Call a method of the plain estimator with samples and their tasks, lazily for collections.

        Samples on a GPU are processed there, and results are copied to the CPU.
        """
        local = self.to_local()
        if not is_collection(X):
            return method(local, X, *(() if task is None else (task,)))
        local.n_jobs = 1  # avoids nested parallelism on workers
        if X.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X has {X.shape[1]} features, but {type(self).__name__} is expecting {self.n_features_in_} features "
                "as input"
            )
        X = check_columns(X)
        if hasattr(X, "columns"):
            validate_data(local, X._meta, reset=False, skip_check_array=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the dummy row below has no column names
            known = () if task is None else (local.tasks_[:1],)
            like = np.asarray(method(local, np.zeros((1, self.n_features_in_)), *known))
        sizes, model = sizes_of(X), dask.delayed(local, pure=False)
        columns = [chunks_of(X)] + ([] if task is None else [chunks_of(align(task, sizes, "task"))])
        answer = dask.delayed(partial(_answer_chunk, method=method, empty=like[:0]), pure=False)
        lazy = [
            da.from_delayed(answer(model, *chunk), shape=(size, *like.shape[1:]), meta=like[:0])
            for size, *chunk in zip(sizes, *columns, strict=True)
        ]
        return da.concatenate(lazy, allow_unknown_chunksizes=True)


def _answer_chunk(model: Any, x: Any, *task: Any, method: Callable[..., Any], empty: NDArray[Any]) -> NDArray[Any]:
    if not x.shape[0]:
        return empty
    tasks = [np.ravel(read_plain(part)) for part in task]
    if is_plain(x):
        return np.asarray(method(model, x, *tasks))
    os.environ.setdefault("SCIPY_ARRAY_API", "1")  # scikit-learn needs it to dispatch to other array libraries
    with config_context(array_api_dispatch=True):
        found = method(model, x, *(part.tolist() for part in tasks))
    return to_host(found).astype(empty.dtype, copy=False)


def _lazily(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method of the plain estimator to accept collections and return lazy results for them."""

    @wraps(method)
    def answer(self: OnCluster, X: Any, task: Any = None) -> Any:
        return self._answer(method, X, task)

    return answer


def _in_memory(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method of the plain estimator to raise an error for collections."""

    @wraps(method)
    def learn(self: OnCluster, X: Any, *others: Any, **given: Any) -> Any:
        if is_collection(X):
            raise TypeError(
                f"{method.__name__} takes samples in memory, not a collection of Dask. fit(X, y) learns from all of "
                "it. For batches pass X.blocks[i].compute() (X.partitions[i] of a data frame) and the same of y."
            )
        return method(self, X, *others, **given)

    return learn


def with_defaults(init: Callable[..., None], **defaults: Any) -> Callable[..., None]:
    """Return a constructor with other defaults in its signature, which scikit-learn reads."""

    @wraps(init)
    def construct(*args: Any, **given: Any) -> None:
        init(*args, **defaults | given)

    signature = inspect.signature(init)
    changed = [given.replace(default=defaults.get(name, given.default)) for name, given in signature.parameters.items()]
    construct.__signature__ = signature.replace(parameters=changed)  # type: ignore[attr-defined]
    return construct


def sample_size(n_columns: int, n_outputs: int, mixes: bool, row_bytes: float) -> int:
    """Return the number of samples copied to the client."""
    per_weight = HEAD_POLICY.sample_per_weight * (n_outputs if mixes else 1)
    return int(min(max(START_ROWS, 2 * per_weight * n_columns), SAMPLE_BYTES / max(row_bytes, 1.0)))
