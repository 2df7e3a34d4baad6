"""Loaders of the paper's data sets, and of stand-ins for those that are not public.

A data set is a file NAME.npz without pickle, in a given folder or that of REGBAYES_DATA. scikit-learn can also fetch
Yeast and Scene from OpenML, and 20 Newsgroups.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, vstack
from sklearn.datasets import fetch_20newsgroups, fetch_openml
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.utils import Bunch

Arrays = dict[str, Any]
Folder = str | os.PathLike[str] | None


class DataError(ValueError):
    """Error for a data file that is invalid."""


class DataNotFoundError(FileNotFoundError):
    """Error for a data set that is not found; the message explains how to obtain it."""


@dataclass(frozen=True)
class Known:
    """Description of a data set that `load` supports."""

    name: str  # file name without its suffix
    shape: tuple[int, int] | None  # samples and inputs; None if users' versions differ
    description: str
    obtain: str
    labels: tuple[str, ...] = ()  # label names of a multi-label set
    n_train: int | None = None  # size of the published training part, the first samples in the published order
    labels_sha256: str = ""  # hash of the labels in the published order, as bytes in row-major order
    openml_id: int | None = None


_SCENES = ("Beach", "Sunset", "FallFoliage", "Field", "Mountain", "Urban")
_OPENML = "With a network scikit-learn fetches it from OpenML."
_LAYOUT = "paper/docs/data.md describes the layout of the file."

CATALOG = {
    known.name: known
    for known in (
        Known(
            "yeast",
            (2417, 103),
            "Yeast genes with 14 functional groups. Elisseeff and Weston (2001), NIPS 14.",
            _OPENML,
            tuple(f"Class{i}" for i in range(1, 15)),
            1500,
            "50373e1f232d66205fbd6383b01562e5c09b4bf1fe7a61179fd3d6e7edafbd37",
            40597,
        ),
        Known(
            "scene",
            (2407, 294),
            "Photographs with 6 labels. Boutell, Luo, Shen and Brown (2004), Pattern Recognition 37.",
            _OPENML,
            _SCENES,
            1211,
            "d68b5b15241527b83ab7ab0ae15e2791b3655305fec990139c614f337c8f0eaf",
            40595,
        ),
        Known(
            "school",
            (15362, 27),
            "Exam scores of pupils in 139 London schools, the tasks. Bakker and Heskes (2003), JMLR 4.",
            "The MALSAR package has it as data/school.mat, and PyMTL the ten published splits. " + _LAYOUT,
        ),
        Known(
            "scene15",
            (4485, 119),
            "Photographs of 15 kinds of scenes in three views. Lazebnik, Schmid and Ponce (2006), CVPR.",
            "Code for multi-view learning has it as Scene-15.mat. " + _LAYOUT,
        ),
        Known(
            "nuswide12_bow500",
            (3996, 500),
            "Counts of 500 SIFT words in NUS-WIDE images of 12 classes.",
            "It is made from nus-wide.mat of MoetaYuko/ExpCut_TAI. " + _LAYOUT,
        ),
        Known(
            "office_caltech10_multiview",
            (2533, 1434),
            "Images of 10 classes: five color and texture descriptors, computed again, and 800 published SURF counts.",
            "It is made from LeoGautheron/OfficeCaltechDomainAdaptation. " + _LAYOUT,
        ),
        Known(
            "20newsgroups_bydate",
            (18846, 30815),
            "Counts of words in posts of 20 newsgroups, split by date.",
            "With a network scikit-learn fetches it.",
            n_train=11314,
        ),
        Known(
            "movie_review_scale",
            (5006, 14856),
            "Counts of words in movie reviews with ratings. Pang and Lee (2005), ACL.",
            "It is made from the scale data v1.0 of Pang and Lee. " + _LAYOUT,
        ),
        Known(
            "trecvid2003",
            None,
            "1078 video shots in 5 classes. Xing, Yan and Hauptmann (2005), UAI.",
            "No public copy is known to us. If you have it, save it as trecvid2003.npz with X, y, train_idx, test_idx.",
        ),
        Known(
            "flickr",
            None,
            "3411 pictures of 13 animals. Chen, Zhu and Xing (2010), NIPS 23.",
            "No public copy is known to us. If you have it, save it as flickr.npz with X, y, train_idx and test_idx. "
            "Its 634 features and 500 SIFT words are those of NUS-WIDE, from which it may be possible to rebuild it.",
        ),
    )
}


def load(name: str, *, folder: Folder = None, download_if_missing: bool = True, return_X_y: bool = False) -> Any:
    """Load a data set.

    Parameters
    ----------
    name : str
        One of `CATALOG`.
    folder : str or path-like, default=None
        Folder of the data files. None is the environment variable REGBAYES_DATA.
    download_if_missing : bool, default=True
        Whether to download a data set that is not in the folder, if possible.
    return_X_y : bool, default=False
        Whether to return only ``(data, target)``.

    Returns
    -------
    Bunch
        ``data``, ``target``, ``DESCR``; ``train`` and ``test`` if there is a published split and the samples are in
        its order; ``task``, ``splits`` (pairs of training and test indices of School) and other arrays of the file.
    """
    known = CATALOG[name]
    place = data_folder(folder)
    path = None if place is None else place / f"{name}.npz"
    arrays = _read_npz(path) if path is not None and path.is_file() else None
    if arrays is None and download_if_missing:
        arrays = _fetch(known)
    if arrays is None:
        looked = f"not found in {place}" if place is not None else "not found, and REGBAYES_DATA is not set"
        raise DataNotFoundError(f"{name} was {looked}. {known.obtain}")
    arrays = _checked(known, arrays)
    X, y = arrays["X"], arrays["Y"] if known.labels else arrays["y"]
    if return_X_y:
        return X, y
    extra = {key: value for key, value in arrays.items() if key not in ("X", "Y", "y", "train_idx", "test_idx")}
    for part in ("train", "test"):
        if f"{part}_idx" in arrays:
            extra[part] = np.asarray(arrays[f"{part}_idx"], dtype=np.int64)
    if name == "school":
        extra["splits"] = _school_splits(place)
    return Bunch(data=X, target=y, DESCR=known.description, **extra)


def _loader(name: str) -> Callable[..., Any]:
    def loader(**options: Any) -> Any:
        return load(name, **options)

    loader.__doc__ = f"{CATALOG[name].description} Options are those of `load`."
    return loader


load_yeast, load_scene, load_school = _loader("yeast"), _loader("scene"), _loader("school")
load_scene15, load_20newsgroups = _loader("scene15"), _loader("20newsgroups_bydate")


def load_movie_reviews(*, target: str = "rating", **options: Any) -> Any:
    """Load movie reviews with target "rating", "class3" or "class4"; options are those of `load`."""
    found = load("movie_review_scale", **{**options, "return_X_y": False})
    if target != "rating":
        found["target"] = found[f"y_{target}"]
    return (found["data"], found["target"]) if options.get("return_X_y") else found


def data_folder(folder: Folder = None) -> Path | None:
    """Return the given folder, that of REGBAYES_DATA, or None."""
    named = os.fspath(folder) if folder is not None else os.environ.get("REGBAYES_DATA")
    if not named:
        return None
    if not Path(named).expanduser().is_dir():
        raise DataNotFoundError(f"the folder of data sets, {named!r}, does not exist")
    return Path(named).expanduser()


def _read_npz(path: Path) -> Arrays:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (ValueError, OSError, zipfile.BadZipFile, EOFError) as error:
        raise DataError(f"{path} cannot be read as npz: {error}") from None


def _fetch(known: Known) -> Arrays | None:
    """Fetch a data set through scikit-learn, which caches it; None if that fails."""
    try:
        if known.openml_id is not None:
            found = fetch_openml(data_id=known.openml_id, as_frame=False, parser="liac-arff", n_retries=1)
            order = [list(found.target_names).index(label) for label in known.labels]
            labels = np.isin(np.char.lower(found.target[:, order].astype(str)), ("1", "true")).astype(np.int8)
            return {"X": np.asarray(found.data, dtype=np.float64), "Y": labels}
        if known.name == "20newsgroups_bydate":
            options: dict[str, Any] = {"shuffle": False, "remove": ("headers",), "n_retries": 1}
            parts = [fetch_20newsgroups(subset=part, **options) for part in ("train", "test")]
            counter = CountVectorizer(stop_words="english", token_pattern=r"[a-z][a-z]+", min_df=3)
            X = vstack([counter.fit_transform(parts[0].data), counter.transform(parts[1].data)]).tocsr()
            names = np.array(parts[0].target_names)
            words = counter.get_feature_names_out().astype(str)
            y = np.concatenate([part.target for part in parts])
            return {"X": X, "y": y, "vocabulary": words, "class_names": names}
    except OSError:  # no network connection
        return None
    return None


def _checked(known: Known, arrays: Arrays) -> Arrays:
    """Assemble a sparse matrix, check shapes, and add the published split if the order is the published one."""
    if "X_data" in arrays:
        parts = [arrays.pop(f"X_{part}") for part in ("data", "indices", "indptr", "shape")]
        arrays["X"] = csr_matrix((parts[0].astype(np.int64), parts[1], parts[2]), shape=tuple(parts[3].tolist()))
    target = "Y" if known.labels else "y"
    if "X" not in arrays or target not in arrays:
        raise DataError(f"the file of {known.name} must hold X and {target}; it holds {', '.join(arrays)}")
    shape = arrays["X"].shape
    if len(arrays[target]) != shape[0]:
        raise DataError(f"{known.name}: X has {shape[0]} rows, but {target} has {len(arrays[target])}")
    known_sizes = slice(1 if "vocabulary" in arrays else 2)  # the vocabulary size depends on how posts were cleaned
    if known.shape is not None and shape[known_sizes] != known.shape[known_sizes]:
        raise DataError(f"{known.name}: X must have shape {known.shape}; got {shape}")
    if known.n_train is not None and "train_idx" not in arrays:
        digest = hashlib.sha256(np.ascontiguousarray(arrays[target], dtype=np.int8).tobytes()).hexdigest()
        if not known.labels_sha256 or digest == known.labels_sha256:
            rows = np.arange(shape[0])
            arrays["train_idx"], arrays["test_idx"] = rows[: known.n_train], rows[known.n_train :]
    return arrays


def _school_splits(folder: Path | None) -> list[tuple[Any, Any]] | None:
    """Return the ten published splits of School, or None if their file is missing."""
    path = None if folder is None else folder / "school_splits.npz"
    if path is None or not path.is_file():
        return None
    found = _read_npz(path)
    pairs = [(found[f"train_idx_{i}"], found[f"test_idx_{i}"]) for i in range(10)]
    return [(train.astype(np.int64), test.astype(np.int64)) for train, test in pairs]
