"""What the estimators over a cluster share: blocks in, lazy answers out, the way back to the plain estimator."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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

from regbayes._types import Floats, Integers
from regbayes.dask.blocks import find_client, shelter_workers
from regbayes.dask.rows import (
    DaskSource,
    Given,
    Reader,
    delay_blocks,
    is_collection,
    join_columns,
    line_up,
    place_blocks,
    read_collections,
)
from regbayes.engine.source import Samples
from regbayes.estimators._bases import (
    check_labels,
    check_several,
)
from regbayes.kernels.arrays import is_plain, sum_squares, to_host
from regbayes.margins.head import CLASS_SAMPLE_PER_WEIGHT, SAMPLE_PER_WEIGHT
from regbayes.models.ilsvm.model import Rows

START_ROWS = 10_000  # that the start is fitted on
SAMPLE_BYTES = 1 << 28  # of the rows that come to the client, at most


class OnCluster(BaseEstimator):
    """An estimator whose rows are on the workers of a Dask cluster. Answers about collections are lazy.

    Beside it in the bases of a class stands the plain estimator, whose constructor, parameters and fitted attributes it
    has.
    """

    _plain: ClassVar[type[Any]]
    _local_only: ClassVar[dict[str, Any]] = {}  # parameters, and values that need all samples in local memory

    def to_local(self) -> Any:
        """Return the fitted model as the plain estimator, for arrays in memory and for files.

        It has no ``embedding_`` of the training rows, which never were in one place.
        """
        check_is_fitted(self)
        parameters = self.get_params(deep=False)
        local = self._plain(**parameters)
        vars(local).update({name: value for name, value in vars(self).items() if name not in parameters})
        return local

    def save(self, path: Any) -> None:
        """Save the plain estimator, `to_local`, which `regbayes.load` gives back."""
        self.to_local().save(path)

    def _check_options(self) -> None:
        for name, values in self._local_only.items():
            value = getattr(self, name)
            if value == values or (isinstance(values, tuple) and value in values):
                raise ValueError(
                    f"{name}={value!r} keeps a result for every sample, which needs all samples in local memory. "
                    f"Choose another value of {name}, or fit regbayes.{type(self).__name__} to a part of the samples."
                )

    def _note_columns(self, given: Given) -> None:
        self.n_features_in_ = given.n_columns
        if given.columns is not None and all(isinstance(name, str) for name in given.columns):
            self.feature_names_in_ = given.columns
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    @contextmanager
    def _workers_of(self, client: Any) -> Iterator[Any]:
        """Yield the client of a fit, having seen that this can be fitted there."""
        self._check_options()
        found = find_client(client)
        with shelter_workers(found):
            yield found

    def _place(
        self, client: Any, read: Reader, X: Any, y: Any = None, sample_weight: Any = None, task: Any = None
    ) -> DaskSource:
        """Have workers read the rows."""
        given = read_collections(X, y, sample_weight, task)
        self._note_columns(given)
        return DaskSource(place_blocks(client, given, read))

    def _answer(self, method: str | Callable[..., Any], X: Any, task: Any = None) -> Any:
        """Return what the plain estimator says about rows, and their tasks: block by block, when it is computed.

        Rows of a collection that lie on devices are looked at there; what is said of them comes to the host.

        Parameters
        ----------
        method : str or callable
            A method of the plain estimator, or a function of it.
        X : array or collection of shape (n_samples, n_features)
        task : array or collection of shape (n_samples,), default=None
        """
        given = (X,) if task is None else (X, task)
        if not is_collection(X):
            return _ask(self.to_local(), method, *given)
        check_is_fitted(self)
        if X.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X has {X.shape[1]} features, but {type(self).__name__} is expecting {self.n_features_in_} features "
                "as input"
            )
        local = self.to_local()
        local.n_jobs = 1  # the cluster has its own threads
        if not isinstance(X, da.Array):  # names of columns are known before anything is computed
            validate_data(local, X._meta, reset=False, skip_check_array=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # names of columns, which a row of zeros has not
            row_task = () if task is None else (local.tasks_[:1],)
            like = np.asarray(_ask(local, method, np.zeros((1, self.n_features_in_)), *row_task))
        empty, model = like[:0], dask.delayed(local, pure=False)
        answer = partial(_answer_block, method=method, empty=empty)
        if isinstance(X, da.Array):
            X = join_columns(X)
            beside = () if task is None else (_cut_like(X, task), "n")
            return da.blockwise(
                answer,
                "nk"[: like.ndim],
                X,
                "nd",
                *beside,
                new_axes={"k": like.shape[1]} if like.ndim == 2 else None,
                align_arrays=False,
                concatenate=False,  # of the columns, which are in one chunk: Dask could not if they are no NumPy array
                dtype=like.dtype,
                meta=empty,
                model=model,
            )
        blocks = delay_blocks(X)
        tasks = line_up(task, [np.nan] * len(blocks), "task")
        answers = [
            da.from_delayed(
                dask.delayed(answer)(*part, model=model),
                shape=(np.nan, *like.shape[1:]),
                meta=empty,
            )
            for part in (zip(blocks) if task is None else zip(blocks, tasks, strict=True))
        ]
        return da.concatenate(answers, allow_unknown_chunksizes=True)


def lazily(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of the plain estimator that takes collections too, whose answers are lazy."""

    @wraps(method)
    def answer(self: OnCluster, X: Any, task: Any = None) -> Any:
        return self._answer(method.__name__, X, task)

    return answer


def in_memory(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of the plain estimator that learns from a batch, which a collection is not."""

    @wraps(method)
    def learn(self: OnCluster, X: Any, *others: Any, **given: Any) -> Any:
        if is_collection(X):
            raise TypeError(
                f"{method.__name__} takes rows in memory, got a collection of Dask. fit(X, y) learns from all of it; "
                "for batches give X.blocks[i].compute() (X.partitions[i] of a data frame) and the same of y, by turns"
            )
        return method(self, X, *others, **given)

    return learn


class OnClusterLearner(OnCluster):
    """One that learns from targets."""

    def _fit_rows(self, X: Any, y: Any, sample_weight: Any, client: Any) -> Self:
        raise NotImplementedError

    @with_callbacks
    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: Any = None, client: Any = None) -> Self:
        """Learn what is latent in rows and the answers together.

        Parameters
        ----------
        X : dask array or DataFrame of shape (n_samples, n_features)
            Blocks of counts may be sparse. Blocks of PyTorch or CuPy stay on their devices.
        y : dask array, Series or DataFrame of shape (n_samples,) or (n_samples, n_outputs)
            Targets as the plain estimator takes them. If blocks are not those of X they are cut again.
        sample_weight : dask array or Series of shape (n_samples,), default=None
            How often each row counts.
        client : distributed.Client, default=None
            The default client, if none is given.

        Returns
        -------
        self
        """
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        with self._workers_of(client) as found:
            return self._fit_rows(X, y, sample_weight, found)


def _ask(model: Any, method: str | Callable[..., Any], *given: Any) -> Any:
    return getattr(model, method)(*given) if isinstance(method, str) else method(model, *given)


def _answer_block(
    block: Any, *tasks: Any, model: Any, method: str | Callable[..., Any], empty: NDArray[Any]
) -> NDArray[Any]:
    """Return what the model says of a block, on the host; one on a device is looked at there."""
    block = block[0] if isinstance(block, list) else block  # of an array, a list of chunks of columns
    if not block.shape[0]:
        return empty
    tasks = tuple(np.ravel(to_host(task)) for task in tasks)
    if is_plain(block):
        return np.asarray(_ask(model, method, block, *tasks))
    os.environ.setdefault("SCIPY_ARRAY_API", "1")  # scikit-learn does not dispatch without; SciPy has read it long ago
    with config_context(array_api_dispatch=True):
        found = _ask(model, method, block, *(task.tolist() for task in tasks))  # which lie nowhere
    return to_host(found).astype(empty.dtype, copy=False)


def _cut_like(X: da.Array, task: Any) -> da.Array:
    """Return the tasks of rows, cut as the rows are."""
    given = task.to_dask_array() if hasattr(task, "to_dask_array") else task
    if not isinstance(given, da.Array):
        return da.from_array(np.asarray(given), chunks=(X.chunks[0],))
    same = np.any(np.isnan([*X.chunks[0], *given.chunks[0]])) or given.chunks[0] == X.chunks[0]
    return given if same else given.rechunk((X.chunks[0],))


def with_defaults(init: Callable[..., None], **defaults: Any) -> Callable[..., None]:
    """Return a constructor with other defaults, which scikit-learn sees in its signature."""
    signature = inspect.signature(init)
    changed = [
        given.replace(default=defaults[name]) if name in defaults else given
        for name, given in signature.parameters.items()
    ]
    signature = signature.replace(parameters=changed)

    @wraps(init)
    def construct(*args: Any, **given: Any) -> None:
        bound = signature.bind(*args, **given)
        bound.apply_defaults()
        init(*bound.args, **bound.kwargs)

    construct.__signature__ = signature  # type: ignore[attr-defined]
    return construct


def sample_size(n_columns: int, n_outputs: int, mixes: bool, row_bytes: float) -> int:
    """Return how many rows shall come to the client: for the start, and for the curvature of the weights."""
    per_weight = CLASS_SAMPLE_PER_WEIGHT * n_outputs if mixes else SAMPLE_PER_WEIGHT
    return int(min(max(START_ROWS, 2 * per_weight * n_columns), SAMPLE_BYTES / max(row_bytes, 1.0)))


# --- what is known of rows before anything is learned


@dataclass(frozen=True)
class Moments:
    """Weight, mean and spread of rows; those of two blocks are joined without cancellation (Chan et al. 1983)."""

    weight: Any  # of all rows; (D,) where not every row has every column
    mean: Floats  # (D,)
    squares: Floats  # (D,): weighted sum of squared differences from the mean

    def __add__(self, other: Moments) -> Moments:
        total, apart = self.weight + other.weight, other.mean - self.mean
        share = other.weight / np.where(total > 0, total, 1.0)
        return Moments(
            total,
            self.mean + share * apart,
            self.squares + other.squares + self.weight * share * np.square(apart),
        )

    @classmethod
    def of_block(cls, block: Samples) -> Moments:
        """Return those of the rows of a block."""
        return cls.of(block.X, block.weights)

    @classmethod
    def of(cls, values: Floats, weights: Floats | None) -> Moments:
        """Return those of values (n, D)."""
        n = values.shape[0]
        if n == 0:
            return cls(0.0, np.zeros(values.shape[1]), np.zeros(values.shape[1]))
        total = float(n if weights is None else weights.sum())
        if not is_plain(values):
            mean = Rows.centre(values, weights=weights).mean
            return cls(total, mean, sum_squares(values, mean, weights))
        with np.errstate(over="ignore", invalid="ignore"):
            mean = values.mean(axis=0) if weights is None else weights @ values / total
            squares = np.zeros(values.shape[1])
            for first in range(0, n, 4096):  # a copy of some rows and not of all
                part = np.square(values[first : first + 4096] - mean)
                squares += part.sum(axis=0) if weights is None else weights[first : first + 4096] @ part
        return cls(total, mean, squares)


@dataclass(frozen=True)
class Labels:
    """The classes of rows: how many rows each has, and what they count."""

    classes: NDArray[Any]
    counts: Integers  # (classes,)
    weights: Floats  # (classes,)
    n_rest: int = 0  # rows without a label
    rest_weight: float = 0.0

    def __add__(self, other: Labels) -> Labels:
        if not len(self.classes) or not len(other.classes):
            known = self if len(self.classes) else other
            classes, counts, weights = known.classes, known.counts, known.weights
        else:
            classes = join_classes(self.classes, other.classes)
            counts, weights = np.zeros(len(classes), np.int64), np.zeros(len(classes))
            for part in (self, other):
                places = np.searchsorted(classes, part.classes)
                counts[places] += part.counts
                weights[places] += part.weights
        return Labels(classes, counts, weights, self.n_rest + other.n_rest, self.rest_weight + other.rest_weight)

    @classmethod
    def of(cls, block: Samples, unlabeled: Any = None) -> Labels:
        """Return those of a block."""
        y, weights = block.y, np.ones(len(block)) if block.weights is None else block.weights
        assert y is not None
        if y.ndim != 1:
            raise ValueError(f"y must be one column of labels, got shape {y.shape} in a block")
        labeled = np.ones(len(y), dtype=bool) if unlabeled is None else np.asarray(y != unlabeled, dtype=bool)
        if not labeled.any():
            return cls(y[:0], np.zeros(0, np.int64), np.zeros(0), len(y), float(weights.sum()))
        check_labels(y[labeled])
        classes, codes = np.unique(y[labeled], return_inverse=True)
        return cls(
            classes,
            np.bincount(codes),
            np.bincount(codes, weights[labeled]),
            int(np.sum(~labeled)),
            float(weights[~labeled].sum()),
        )

    def check(self, estimator: Any, unlabeled: Any = None) -> None:
        """Refuse labels that leave nothing to tell apart."""
        if self.n_rest and not len(self.classes):
            raise ValueError(f"no row has a label: all of y is {unlabeled!r}, the value of unlabeled")
        check_several(estimator, self.classes)

    def weights_by_class(self, class_weight: Any) -> Floats:
        """Return the factor of each class that scikit-learn's ``class_weight`` stands for."""
        if class_weight is None:
            return np.ones(len(self.classes))
        if isinstance(class_weight, str):
            return self.weights.sum() / (len(self.classes) * self.weights)
        unknown = [label for label in class_weight if label not in self.classes.tolist()]
        if unknown:
            raise ValueError(f"class_weight has {unknown[0]!r}, which is no class of y: {self.classes.tolist()}")
        found = np.array([float(class_weight.get(label, 1.0)) for label in self.classes.tolist()])
        if not np.all((found >= 0) & np.isfinite(found)):
            raise ValueError(f"class_weight must be finite and not negative, got {class_weight!r}")
        return found


def join_classes(one: NDArray[Any], other: NDArray[Any]) -> NDArray[Any]:
    """Return the classes of two blocks as one array."""
    if not len(one) or not len(other):
        return one if len(one) else other
    if isinstance(one.tolist()[0], str) != isinstance(other.tolist()[0], str):
        raise ValueError(
            f"labels in y are text in some blocks and numbers in others ({one.tolist()[0]!r}, {other.tolist()[0]!r}): "
            "give all blocks one dtype"
        )
    return np.union1d(one, other)


def code_labels(block: Samples, classes: NDArray[Any], unlabeled: Any, rest: int) -> Integers:
    """Return the class of each row as a number, ``rest`` for rows without a label."""
    assert block.y is not None
    codes = np.full(len(block), rest, dtype=np.int64)
    labeled = np.ones(len(block), dtype=bool) if unlabeled is None else np.asarray(block.y != unlabeled, dtype=bool)
    codes[labeled] = np.searchsorted(classes, block.y[labeled])
    return codes
