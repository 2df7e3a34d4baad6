"""The data of the experiments: the paper's sets where they are to be had, embedded ones in their place otherwise.

Nothing is replaced silently: a `Dataset` knows which of the paper's sets it stands for, and the tables say so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_diabetes, load_digits
from sklearn.model_selection import StratifiedShuffleSplit, train_test_split

from regbayes._types import Floats, Integers
from regbayes_paper import data as datasets
from regbayes_paper.data.files import data_folder


@dataclass(frozen=True)
class Sample:
    """Rows with their targets and, where a row belongs to a task, its task."""

    X: Floats
    y: NDArray[Any]
    task: NDArray[Any] | None = None

    def rows(self, index: Integers) -> Sample:
        """Return some of the rows."""
        return Sample(self.X[index], self.y[index], None if self.task is None else self.task[index])

    def __len__(self) -> int:
        return len(self.X)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set with its published split, if it has one."""

    name: str
    sample: Sample
    train: Integers | None = None
    test: Integers | None = None
    stands_for: str = ""
    """The paper's set that it is used in place of; empty if it is the paper's own."""
    why: str = ""
    """Why the paper's own set is not used."""
    image_shape: tuple[int, int] | None = None

    @cached_property
    def digest(self) -> str:
        """A digest of everything in it."""
        digest = hashlib.sha256()
        for array in (self.sample.X, self.sample.y, self.sample.task, self.train, self.test):
            if array is not None:
                digest.update(str((array.dtype.str, array.shape)).encode() + np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:16]

    @property
    def description(self) -> str:
        """Sizes, and what it stands for."""
        n, d = self.sample.X.shape
        if self.sample.y.ndim == 2:
            targets = f"{self.sample.y.shape[1]} labels"
        elif self.sample.task is not None:
            targets = f"{len(np.unique(self.sample.task))} tasks"
        else:
            targets = f"{len(np.unique(self.sample.y))} classes"
        text = f"{self.name}: {n} rows, {d} inputs, {targets}"
        return f"{text}; in place of {self.stands_for} ({self.why})" if self.stands_for else text

    def split(self, seed: int, test_size: float) -> tuple[Sample, Sample]:
        """Return the training and the test part: the published ones, or random ones that divide every class or task.

        Parameters
        ----------
        seed : int
            Of a random split.
        test_size : float
            Share of the rows in the test part of a random split.
        """
        train, test = self.train, self.test
        if train is None or test is None:
            kinds = self.sample.task if self.sample.task is not None else self.sample.y
            strata = kinds if kinds.ndim == 1 else None
            train, test = train_test_split(
                np.arange(len(self.sample)), test_size=test_size, random_state=seed, stratify=strata
            )
        return self.sample.rows(train), self.sample.rows(test)


def split_within_tasks(
    sample: Sample, seed: int, train_size: float, *, by_class: bool = False
) -> tuple[Sample, Sample]:
    """Return a training and a test part with the same share of every task, by ``numpy.random.default_rng(seed)``.

    With ``by_class`` it is the same share of every class of every task.
    """
    assert sample.task is not None
    kinds = sample.task
    if by_class:
        classes, place = np.unique(sample.y, return_inverse=True)
        kinds = np.unique(kinds, return_inverse=True)[1] * len(classes) + place
    rng = np.random.default_rng(seed)
    train = []
    for kind in np.unique(kinds):
        members = rng.permutation(np.flatnonzero(kinds == kind))
        train.append(members[: round(train_size * len(members))])
    chosen = np.zeros(len(sample), dtype=bool)
    chosen[np.concatenate(train)] = True
    # Training rows stay in random order, so that the first share of them is a random one.
    return sample.rows(rng.permutation(np.flatnonzero(chosen))), sample.rows(np.flatnonzero(~chosen))


def smaller(dataset: Dataset, n_rows: int) -> Dataset:
    """Return a data set with fewer rows, the published parts in proportion."""
    n = len(dataset.sample)
    if n <= n_rows:
        return dataset
    if dataset.train is not None and dataset.test is not None:
        rng = np.random.default_rng(0)  # rows may be sorted by label
        kept = [rng.permutation(part)[: max(2, n_rows * len(part) // n)] for part in (dataset.train, dataset.test)]
        sizes = np.cumsum([len(part) for part in kept])
        sample = dataset.sample.rows(np.concatenate(kept))
        return replace(dataset, sample=sample, train=np.arange(sizes[0]), test=np.arange(sizes[0], sizes[1]))
    if dataset.sample.task is not None:  # whole tasks: a part of each would be too small to learn from
        sizes = np.cumsum(np.unique(dataset.sample.task, return_counts=True)[1])
        kept_tasks = np.unique(dataset.sample.task)[: max(4, int(np.searchsorted(sizes, n_rows)))]
        return replace(dataset, sample=dataset.sample.rows(np.flatnonzero(np.isin(dataset.sample.task, kept_tasks))))
    splitter = StratifiedShuffleSplit(1, train_size=n_rows, random_state=0)
    index, _ = next(splitter.split(dataset.sample.X, dataset.sample.y))
    return replace(dataset, sample=dataset.sample.rows(np.sort(index)))


NOT_PUBLIC = "not public; put {0}.npz into the folder that REGBAYES_DATA names if you have it"
NOT_FOUND = "not found; set REGBAYES_DATA to the folder of your data sets"


def multiway(quick: bool) -> list[Dataset]:
    """TRECVID2003 and Flickr where the user has them; digits and scene15 in their places."""
    found = [
        _load_set(datasets.load_trecvid2003, "TRECVID2003", quick)
        or digits("TRECVID2003", NOT_PUBLIC.format("trecvid2003")),
        _load_set(datasets.load_flickr, "Flickr", quick),
    ]
    if found[1] is None:
        scene15 = _load_set(datasets.load_scene15, "scene15", quick)
        why = NOT_PUBLIC.format("flickr")
        found[1] = scene15 and replace(scene15, stands_for="Flickr", why=why)
    return [dataset for dataset in found if dataset is not None]


def multilabel(quick: bool) -> list[Dataset]:
    """Yeast and Scene, and in the long form emotions, which the paper has not; questions about digits without them."""
    named = [("Yeast", datasets.load_yeast), ("Scene", datasets.load_scene)]
    if not quick:
        named.append(("emotions", datasets.load_emotions))
    found = [_load_set(load, name, quick) for name, load in named]
    if not any(found[:2]):
        return [digit_questions("Yeast", NOT_FOUND)]
    return [dataset for dataset in found if dataset is not None]


def ragged(quick: bool) -> Dataset:
    """School; patients grouped by age where it is not to be had."""
    return _load_set(datasets.load_school, "School", quick) or age_groups("School", NOT_FOUND)


def fields(quick: bool) -> Dataset:
    """Landmine; whether patients grouped by age are above the median where it is not to be had."""
    found = _load_set(datasets.load_landmine, "Landmine", quick)
    if found is not None:
        return found
    numbers = age_groups()
    above = (numbers.sample.y > np.median(numbers.sample.y)).astype(np.int64)
    sample = replace(numbers.sample, y=above)
    return Dataset("diabetes above the median, by age", sample, stands_for="Landmine", why=NOT_FOUND)


def _load_set(load: Callable[..., Any], name: str, quick: bool) -> Dataset | None:
    """Load a set of the paper, None if it is nowhere to be found. The quick form never asks the network."""
    data_folder()  # that a folder was named and is not there is no reason to use other data
    try:
        return _read(load, name, not quick)
    except datasets.DataNotFoundError:
        return None


@cache
def _read(load: Callable[..., Any], name: str, download: bool) -> Dataset:
    found = load(download_if_missing=download)
    X = found.data.toarray() if hasattr(found.data, "toarray") else found.data
    sample = Sample(np.asarray(X, dtype=np.float64), np.asarray(found.target), found.get("task"))
    return Dataset(name, sample, found.get("train"), found.get("test"))


@cache
def digits(stands_for: str = "", why: str = "") -> Dataset:
    """The handwritten digits of scikit-learn."""
    X, y = load_digits(return_X_y=True)
    return Dataset("digits", Sample(X, y), stands_for=stands_for, why=why, image_shape=(8, 8))


QUESTIONS = {
    "even": (0, 2, 4, 6, 8),
    "prime": (2, 3, 5, 7),
    "above four": (5, 6, 7, 8, 9),
    "has a loop": (0, 6, 8, 9),
    "square": (0, 1, 4, 9),
    "divisible by three": (0, 3, 6, 9),
}


@cache
def digit_questions(stands_for: str = "", why: str = "") -> Dataset:
    """Six yes/no questions about each digit, `QUESTIONS`; every second row is in the training part."""
    X, y = load_digits(return_X_y=True)
    labels = np.stack([np.isin(y, members) for members in QUESTIONS.values()], axis=1).astype(np.int64)
    rows = np.arange(len(X))
    return Dataset("digit questions", Sample(X, labels), rows[::2], rows[1::2], stands_for, why)


AGE_GROUPS = 8


@cache
def age_groups(stands_for: str = "", why: str = "") -> Dataset:
    """The diabetes patients of scikit-learn, in eight groups of equal size by age."""
    X, y = load_diabetes(return_X_y=True)
    order = np.argsort(X[:, 0], kind="stable")
    task = np.empty(len(X), dtype=np.int64)
    task[order] = np.arange(len(X)) * AGE_GROUPS // len(X)
    return Dataset("diabetes by age", Sample(X, y, task), stands_for=stands_for, why=why)
