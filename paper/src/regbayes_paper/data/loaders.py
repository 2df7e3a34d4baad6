"""The data sets of the paper, each by one function.

Every loader looks in the folder it is given or that ``REGBAYES_DATA`` names (npz, then ARFF), then in the cache, and
then, where the set is public and reachable through scikit-learn, on the network. What it finds is checked against the
published shape.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.utils import Bunch

from regbayes_paper.data.catalog import CATALOG, Known
from regbayes_paper.data.fetch import fetch_multilabel, fetch_newsgroups
from regbayes_paper.data.files import (
    Arrays,
    DataError,
    DataNotFoundError,
    cache_folder,
    data_folder,
    find_local,
    read_cached,
    write_cached,
)

__all__ = [
    "load_20newsgroups",
    "load_emotions",
    "load_flickr",
    "load_landmine",
    "load_movie_reviews",
    "load_scene",
    "load_scene15",
    "load_school",
    "load_trecvid2003",
    "load_yeast",
]

Folder = str | os.PathLike[str] | None
Fetch = Callable[[], Arrays]

_COMMON = """

    Parameters
    ----------
    folder : str or path-like, default=None
        Where to look; by default the folder that the environment variable ``REGBAYES_DATA`` names.
    download_if_missing : bool, default=True
        Whether to ask the network where neither the folder nor the cache has it.
    return_X_y : bool, default=False
        Whether to return ``(data, target)`` alone.

    Returns
    -------
    Bunch
        ``data``, ``target``, ``feature_names``, ``target_names``, ``DESCR``, and ``filename``, the file that was read.
        {more}

    Raises
    ------
    DataNotFoundError
        If it is nowhere to be found; the message says what to do.
    DataError
        If a file was found that cannot be used.
    """


def _document(more: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def decorate(loader: Callable[..., Any]) -> Callable[..., Any]:
        loader.__doc__ = (loader.__doc__ or "").rstrip() + _COMMON.replace("{more}", more)
        return loader

    return decorate


_SPLIT = "``train`` and ``test`` are the rows of the published split, where the order of the rows is the published one."
_TASKS = "``task`` is the task of each row."
_USERS_SPLIT = "``train`` and ``test`` where your file has a split."


@_document(_SPLIT)
def load_yeast(*, folder: Folder = None, download_if_missing: bool = True, return_X_y: bool = False) -> Any:
    """Load the Yeast genes: 2417 rows, 103 inputs, 14 labels."""
    return _multilabel("yeast", folder, download_if_missing, return_X_y)


@_document(_SPLIT)
def load_scene(*, folder: Folder = None, download_if_missing: bool = True, return_X_y: bool = False) -> Any:
    """Load the multi-label Scene photographs: 2407 rows, 294 inputs, 6 labels."""
    return _multilabel("scene", folder, download_if_missing, return_X_y)


@_document(_SPLIT)
def load_emotions(*, folder: Folder = None, download_if_missing: bool = True, return_X_y: bool = False) -> Any:
    """Load the Emotions in music: 593 rows, 72 inputs, 6 labels."""
    return _multilabel("emotions", folder, download_if_missing, return_X_y)


@_document(_TASKS)
def load_school(*, folder: Folder = None, download_if_missing: bool = True, return_X_y: bool = False) -> Any:
    """Load the exam scores in London schools: 15362 rows, 27 inputs, a number, 139 tasks."""
    known = CATALOG["school"]
    arrays, path = _find(known, folder, download_if_missing)
    return _bunch(known, arrays, path, "score", np.array(["score"]), return_X_y)


@_document(_TASKS)
def load_landmine(*, folder: Folder = None, download_if_missing: bool = True, return_X_y: bool = False) -> Any:
    """Load the landmines: 14820 rows, 9 inputs, two classes, 29 tasks."""
    known = CATALOG["landmine"]
    arrays, path = _find(known, folder, download_if_missing)
    return _bunch(known, arrays, path, "class", np.array(["clutter", "mine"]), return_X_y)


@_document("``view_offsets`` and ``view_names`` say which inputs belong to which view.")
def load_scene15(*, folder: Folder = None, download_if_missing: bool = True, return_X_y: bool = False) -> Any:
    """Load fifteen kinds of scenes: 4485 rows, 119 inputs in three views, 15 classes."""
    known = CATALOG["scene15"]
    arrays, path = _find(known, folder, download_if_missing)
    return _bunch(known, arrays, path, "class", None, return_X_y)


@_document("``train`` and ``test`` are the rows of the split by date. ``data`` is sparse.")
def load_20newsgroups(*, folder: Folder = None, download_if_missing: bool = True, return_X_y: bool = False) -> Any:
    """Load the counts of words in twenty newsgroups: 18846 posts, 20 classes."""
    known = CATALOG["20newsgroups_bydate"]
    arrays, path = _find(known, folder, download_if_missing, fetch_newsgroups)
    return _bunch(known, arrays, path, "class", None, return_X_y)


@_document("``author`` and ``author_names`` say who wrote each review. ``data`` is sparse.")
def load_movie_reviews(
    *,
    target: Literal["rating", "class3", "class4"] = "rating",
    folder: Folder = None,
    download_if_missing: bool = True,
    return_X_y: bool = False,
) -> Any:
    """Load the counts of words in 5006 movie reviews, with their rating between 0 and 1.

    ``target`` is "rating" or the same in three ("class3") or four ("class4") classes.
    """
    if target not in ("rating", "class3", "class4"):
        raise ValueError(f"target must be 'rating', 'class3' or 'class4', got {target!r}")
    known = CATALOG["movie_review_scale"]
    arrays, path = _find(known, folder, download_if_missing)
    wanted = "y" if target == "rating" else f"y_{target}"
    if wanted not in arrays:
        raise DataError(f"{path} has no array {wanted!r}, which target={target!r} needs")
    kept = {name: value for name, value in arrays.items() if not name.startswith("y")} | {"y": arrays[wanted]}
    return _bunch(known, kept, path, "class" if target != "rating" else "rating", None, return_X_y)


@_document(_USERS_SPLIT)
def load_trecvid2003(*, folder: Folder = None, download_if_missing: bool = True, return_X_y: bool = False) -> Any:
    """Load the TRECVID 2003 video shots from a folder of yours; the set is not public."""
    known = CATALOG["trecvid2003"]
    arrays, path = _find(known, folder, download_if_missing)
    return _bunch(known, arrays, path, "class", None, return_X_y)


@_document(_USERS_SPLIT)
def load_flickr(*, folder: Folder = None, download_if_missing: bool = True, return_X_y: bool = False) -> Any:
    """Load the Flickr animals from a folder of yours; the set is not public."""
    known = CATALOG["flickr"]
    arrays, path = _find(known, folder, download_if_missing)
    return _bunch(known, arrays, path, "class", None, return_X_y)


def _multilabel(name: str, folder: Folder, download_if_missing: bool, return_X_y: bool) -> Any:
    known = CATALOG[name]
    arrays, path = _find(known, folder, download_if_missing, partial(fetch_multilabel, known))
    if arrays["Y"].shape[1:] != (len(known.labels),):
        raise DataError(f"{path}: Y should have {len(known.labels)} columns, got shape {arrays['Y'].shape}")
    return _bunch(known, arrays, path, "label", np.array(known.labels), return_X_y)


def _find(known: Known, folder: Folder, download_if_missing: bool, fetch: Fetch | None = None) -> tuple[Arrays, str]:
    """Look in the folder, in the cache and on the network, in this order."""
    place = data_folder(folder)
    found = (find_local(known, place) if place is not None else None) or read_cached(known.name)
    if found is not None:
        return _check_shapes(known, *found)
    searched = [f"in {place}"] if place is not None else []
    searched.append(f"in {cache_folder()}")
    if fetch is None or not download_if_missing:
        raise DataNotFoundError(_not_found(known, searched))
    try:
        fetched = fetch()
    except (OSError, TimeoutError) as error:  # no network, no such host, refused, cut off
        reason = getattr(error, "reason", None) or error
        raise DataNotFoundError(_not_found(known, [*searched, f"on the network ({reason})"])) from error
    arrays, path = _check_shapes(known, fetched, None)
    kept = write_cached(known.name, fetched)
    return arrays, str(kept) if kept is not None else path


def _not_found(known: Known, searched: list[str]) -> str:
    return (
        f"{known.title} ({known.name}.npz) was not found; looked {', '.join(searched)}. {known.obtain} "
        "Set REGBAYES_DATA to the folder of your data sets, or pass folder=."
    )


def _check_shapes(known: Known, arrays: Arrays, path: Any) -> tuple[Arrays, str]:
    """Check that a set has inputs and targets of matching and, where it is known, of the published shape."""
    where = str(path) if path is not None else "what was fetched"
    arrays = _with_matrix(arrays, where)
    target = next((name for name in ("Y", "y") if name in arrays), None)
    if "X" not in arrays or target is None:
        raise DataError(f"{where} should hold X and {'Y' if known.labels else 'y'}; it holds {', '.join(arrays)}")
    if known.labels and target != "Y":
        raise DataError(f"{where} should hold the labels as a 0/1 matrix Y; it holds y")
    shape = arrays["X"].shape
    # The vocabulary of the newsgroups depends on how a copy of them was cleaned; the number of posts does not.
    wrong = known.shape is not None and (
        shape[0] != known.shape[0] or (shape[1] != known.shape[1] and "vocabulary" not in arrays)
    )
    if wrong:
        raise DataError(f"{where}: X should have shape {known.shape}, got {shape}")
    if len(arrays[target]) != shape[0]:
        raise DataError(f"{where}: X has {shape[0]} rows, but {target} has {len(arrays[target])}")
    return arrays, where


def _with_matrix(arrays: Arrays, where: str) -> Arrays:
    """Put a sparse matrix together."""
    parts = ("X_data", "X_indices", "X_indptr", "X_shape")
    if "X_data" not in arrays:
        return arrays
    try:
        data, indices, indptr, shape = (arrays[part] for part in parts)
        matrix = csr_matrix((data.astype(np.int64), indices, indptr), shape=tuple(int(n) for n in shape))
        matrix.check_format(full_check=True)
    except (KeyError, ValueError) as error:
        raise DataError(f"{where} does not hold a sparse matrix: {error}") from None
    return {name: value for name, value in arrays.items() if name not in parts} | {"X": matrix}


def _bunch(known: Known, arrays: Arrays, path: str, target: str, target_names: Any, return_X_y: bool) -> Any:
    X, y = arrays["X"], arrays["Y"] if "Y" in arrays else arrays["y"]
    if return_X_y:
        return X, y
    names = arrays.get("feature_names", arrays.get("vocabulary"))
    if names is None:
        names = np.array([f"x{i}" for i in range(X.shape[1])])
    if target_names is None:
        target_names = arrays.get("class_names")
    if target_names is None:
        target_names = np.array([target]) if y.dtype.kind == "f" else np.array([str(label) for label in np.unique(y)])
    split = {key: arrays[f"{key}_idx"] for key in ("train", "test") if f"{key}_idx" in arrays}
    extra = ("task", "author", "author_names", "view_offsets", "view_names", "doc_ids")
    return Bunch(
        data=X,
        target=y,
        feature_names=names,
        target_names=target_names,
        DESCR=f"{known.title}\n\n{known.description}",
        filename=path,
        **split,
        **{name: arrays[name] for name in extra if name in arrays},
    )
