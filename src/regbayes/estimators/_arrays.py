"""Arrays of PyTorch and CuPy: which estimators accept them, and predictions on the same device.

The convention is scikit-learn's: under ``sklearn.config_context(array_api_dispatch=True)`` arrays of PyTorch or CuPy
stay on their device, and results have the same kind and device.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn import get_config
from sklearn.utils.validation import _check_y, check_array, check_consistent_length, validate_data

from regbayes.kernels.arrays import is_plain, is_sparse, lies_elsewhere, namespace_of, to_host, without_graph
from regbayes.kernels.device_memory import free_bytes

NO_LABELS = "no_validation"  # scikit-learn's name for "no labels"
ROW_ARRAYS = 7  # number of (samples, features and outputs) arrays that a fit needs in addition to the inputs

NEEDS_HOST: dict[str, tuple[tuple[Any, ...], str]] = {
    "loss": (
        ("hinge", "epsilon_insensitive"),
        'coordinate ascent is sequential. Use loss="squared_hinge", or "squared_epsilon_insensitive" for numbers',
    ),
    "margins": (("posterior",), 'the paper\'s alternation has no kernels there. Use margins="consistent"'),
    "transductive": ((True,), "labels are guessed on the host. Use unlabeled= alone"),
}


def name_place(array: Any) -> str:
    """Return a description of an array's library and device."""
    library = type(array).__module__.partition(".")[0]
    return f"a {library} array on {getattr(array, 'device', 'the host')}"


def is_elsewhere(X: Any) -> bool:
    """Whether an array stays on its device; False for NumPy arrays and array-likes.

    Without array API dispatch, raise an error for an array that NumPy cannot read.
    """
    if is_plain(X):
        return False
    if get_config()["array_api_dispatch"]:
        return True
    if not _is_readable(X):
        raise TypeError(
            f"X is {name_place(X)}, and array_api_dispatch is off: set it with "
            "sklearn.set_config(array_api_dispatch=True) to work there (SCIPY_ARRAY_API=1 in the environment), or copy "
            "X to the host as a NumPy array"
        )
    return False


def _is_readable(array: Any) -> bool:
    """Whether NumPy can read an array of another library."""
    return not lies_elsewhere(array) and "cpu" in str(getattr(array, "device", "cpu")).lower()


def work_here(estimator: Any, X: Any, what: str) -> None:
    """Raise TypeError for arrays on a device; copy fitted attributes to host memory."""
    refuse_elsewhere(X, what)
    come_home(estimator)


def refuse_elsewhere(X: Any, what: str) -> None:
    """Raise TypeError for arrays of other libraries."""
    if is_elsewhere(X):
        raise TypeError(f"{what} works on the host, and X is {name_place(X)}: give it as a NumPy array")


def check_types(X: Any) -> None:
    """Raise TypeError for dates, which NumPy would convert to numbers or reject with an unclear message."""
    kinds = {getattr(dtype, "kind", "") for dtype in np.ravel(getattr(X, "dtypes", getattr(X, "dtype", ())))}
    if kinds & {"m", "M"}:
        raise TypeError("X has dates or durations. Make numbers of them: year, month, days since a date.")


def check_indices(X: Any) -> None:
    """Raise ValueError if a sparse matrix has column numbers or row boundaries outside its shape.

    Compiled code does not check them, and SciPy does not notice arrays that were changed in place.
    """
    if issparse(X) and hasattr(X, "check_format"):
        try:
            X.check_format(full_check=True)
        except ValueError as error:
            raise ValueError(f"X is not a valid sparse matrix: {error}.") from None


def to_dense(X: Any) -> Any:
    """Return a sparse matrix as an array, and anything else unchanged."""
    if not issparse(X):
        return X
    check_indices(X)
    try:
        return X.toarray()
    except MemoryError:
        size = 8e-9 * X.shape[0] * X.shape[1]
        raise MemoryError(
            f"X is sparse, and its {X.shape[0]:,} x {X.shape[1]:,} numbers take {size:.3g} GB when dense, which is "
            "more than there is. Reduce its columns, with sklearn.decomposition.TruncatedSVD for example."
        ) from None


def read_there(estimator: Any, X: Any, y: Any = NO_LABELS, **options: Any) -> Any:
    """Validate samples of another library; copy their labels, if any, to host memory."""
    if not getattr(type(estimator), "_takes_devices", False):
        refuse_elsewhere(X, type(estimator).__name__)
    if is_sparse(X):
        raise TypeError(f"X is {name_place(X)}, sparse, and {type(estimator).__name__} takes dense arrays")
    check_numbers(X)
    xp = namespace_of(X)
    rows = validate_data(estimator, without_graph(X), dtype=[xp.float64, xp.float32], **options)
    if y is NO_LABELS:
        return rows
    if y is None:
        raise ValueError(f"{type(estimator).__name__} requires y to be passed, but the target y is None")
    labels = _check_y(bring_beside(y, X, "y"), estimator=estimator)
    check_consistent_length(np.empty(rows.shape[0]), labels)
    return rows, labels


def check_numbers(X: Any) -> None:
    """Raise an error for number types that do not support sums over samples."""
    xp, kind = namespace_of(X), str(X.dtype)
    if "complex" in kind:
        raise ValueError(f"Complex data not supported: X has type {kind}")
    if "float" in kind and X.dtype not in (xp.float64, xp.float32):
        raise TypeError(f"X has type {kind}: give it as float32 or float64, sums need the digits")


def read_features(X: Any) -> Any:
    """Validate features of samples on any device."""
    if not is_elsewhere(X):
        return check_array(X, dtype=np.float64, ensure_min_features=0)
    xp = namespace_of(X)
    return check_array(X, dtype=[xp.float64, xp.float32], ensure_min_features=0)


def bring_beside(values: Any, X: Any, name: str) -> Any:
    """Return values of samples in host memory; raise an error if they are not on the samples' device.

    Text and lists are always accepted.
    """
    if is_plain(X):
        return bring_here(values, name)
    if isinstance(values, list | tuple) or (is_plain(values) and np.asarray(values).dtype.kind not in "biuf"):
        return np.asarray(values)
    if type(values) is not type(X) or getattr(values, "device", None) != getattr(X, "device", None):
        raise TypeError(
            f"X is {name_place(X)} and {name} is {name_place(values)}: give both as arrays of one kind on one device"
        )
    return to_host(values)


def bring_here(values: Any, name: str) -> Any:
    """Return values of samples in host memory; raise an error if they are on a device.

    Without array API dispatch, arrays of other libraries that NumPy can read are accepted.
    """
    if is_plain(values):
        return values
    if get_config()["array_api_dispatch"] or not _is_readable(values):
        raise TypeError(
            f"X is on the host and {name} is {name_place(values)}: give both as arrays of one kind on one device"
        )
    return to_host(values)


def bring_targets(X: Any, **given: Any) -> list[Any]:
    """Return values of samples in host memory; None for missing arguments."""
    return [None if values is None else bring_beside(values, X, name) for name, values in given.items()]


def on_host(*given: Any) -> list[Any]:
    """Return arrays of other libraries as NumPy arrays, and everything else unchanged."""
    return [values if is_plain(values) else to_host(values) for values in given]


def check_options(estimator: Any) -> None:
    """Raise an error for parameters that a fit on a device does not support."""
    for name, (refused, reason) in NEEDS_HOST.items():
        value = getattr(estimator, name, None)
        if any(value is one or (isinstance(one, str) and value == one) for one in refused):
            raise ValueError(f"{name}={value!r} needs rows on the host as a NumPy array: {reason}")


@contextmanager
def working_on(estimator: Any, X: Any) -> Iterator[None]:
    """Move the fitted attributes to the device of X after a fit."""
    check_options(estimator)
    yield
    follow(estimator, X)


def follow(estimator: Any, X: Any) -> None:
    """Move numeric fitted attributes to the device of the samples, in their precision."""
    for name, value in list(vars(estimator).items()):
        if name.endswith("_") and not name.startswith("_") and isinstance(value, np.ndarray):
            setattr(estimator, name, put_beside(value, X))


def come_home(estimator: Any) -> None:
    """Copy fitted attributes to host memory: the reverse of `follow`."""
    for name, value in list(vars(estimator).items()):
        if name.endswith("_") and not name.startswith("_") and not is_plain(value):
            setattr(estimator, name, to_host(value))


def at_home(estimator: Any) -> Any:
    """Return the estimator, or a shallow copy with its fitted attributes in host memory."""
    if all(map(is_plain, vars(estimator).values())):
        return estimator
    found = copy.copy(estimator)
    come_home(found)
    return found


def answer_beside(values: Any, X: Any) -> Any:
    """Return predictions, or a list of them, on the device of X."""
    if is_plain(X):
        return values
    return [put_beside(one, X) for one in values] if isinstance(values, list) else put_beside(values, X)


def put_beside(values: NDArray[Any], X: Any) -> Any:
    """Return numbers on the device of X in its precision, and text unchanged."""
    if values.dtype.kind not in "biuf" or is_plain(X):
        return values
    dtype = X.dtype if values.dtype.kind == "f" else None
    return namespace_of(X).asarray(np.ascontiguousarray(values), dtype=dtype, device=X.device)


def pick_classes_there(scores: Any, classes: Any) -> Any:
    """Return predicted classes on the device of the scores: (n,) for two classes, (n, n_classes) for more."""
    xp, known = namespace_of(scores), to_host(classes)
    best = xp.astype(scores > 0, xp.int64) if scores.ndim == 1 else xp.argmax(scores, axis=1)
    if known.dtype.kind not in "biuf":
        return known[to_host(best)]
    there = xp.asarray(np.ascontiguousarray(known), device=scores.device)
    return xp.take(there, best, axis=0)


def describe_room(estimator: Any, X: Any) -> str:
    """Return a message about how many samples fit into a device's memory, an upper bound for a fit."""
    size, (n_rows, n_inputs) = 4 if "32" in str(X.dtype) else 8, X.shape
    n_outputs = len(getattr(estimator, "_outputs", getattr(estimator, "classes_", ())))
    copies = 2 if getattr(type(estimator), "_standardizes", False) else 1
    of_row = size * (copies * n_inputs + ROW_ARRAYS * (int(estimator.n_components) + n_outputs))
    free, fits = free_bytes(X), ""
    if free is not None:
        fits = f" About {max(0, (free + size * n_rows * n_inputs) // of_row):,} of these rows fit."
    return (
        f"the memory of the device does not hold {n_rows:,} rows and what is made of them, up to {of_row:,} bytes a "
        f"row.{fits} Give fewer, or float32; or rows in blocks: regbayes.dask, or partial_fit on the host"
    )
