"""Data of the experiments: the paper's data sets if available, otherwise stand-ins."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from sklearn.datasets import load_diabetes, load_digits
from sklearn.model_selection import train_test_split

from regbayes_paper import data
from regbayes_paper._types import Floats, Integers

NOT_PUBLIC = "which is not public"
NOT_FOUND = "which was not found: set REGBAYES_DATA"
TRAIN_SHARE = 0.75  # training share in random splits of tasks
N_AGE_GROUPS = 8


@dataclass(frozen=True)
class Sample:
    """Samples with their targets and, optionally, their tasks."""

    X: Floats
    y: Any
    task: Any = None

    def rows(self, index: Integers) -> Sample:
        """Return the samples at the given indices."""
        return Sample(self.X[index], self.y[index], None if self.task is None else self.task[index])

    def __len__(self) -> int:
        return len(self.X)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set with its published splits, if any."""

    name: str
    sample: Sample
    splits: tuple[tuple[Integers, Integers], ...] = ()
    stands_for: str = ""  # the paper's data set that this one replaces
    why: str = ""

    @property
    def heading(self) -> str:
        """Name, size, and the data set that it replaces."""
        n, d = self.sample.X.shape
        y, task = self.sample.y, self.sample.task
        count = y.shape[1] if y.ndim == 2 else len(np.unique(y if task is None else task))
        kind = "labels" if y.ndim == 2 else "classes" if task is None else "tasks"
        text = f"{self.name}: {n} samples, {d} inputs, {count} {kind}"
        return f"{text}; stands in for {self.stands_for}, {self.why}" if self.stands_for else text

    def split(self, seed: int) -> tuple[Sample, Sample]:
        """Return training and test part of a published split, or of a random one stratified by class or task."""
        if self.splits:
            train, test = self.splits[seed % len(self.splits)]
        elif self.sample.task is not None:
            rng, task = np.random.default_rng(seed), self.sample.task  # three quarters of each task, and the rest
            members = [rng.permutation(np.flatnonzero(task == one)) for one in np.unique(task)]
            train = np.concatenate([rows[: round(TRAIN_SHARE * len(rows))] for rows in members])
            train, test = rng.permutation(train), np.setdiff1d(np.arange(len(task)), train)
        else:
            strata = self.sample.y if self.sample.y.ndim == 1 else None
            rows = np.arange(len(self.sample))
            train, test = train_test_split(rows, test_size=0.5, random_state=seed, stratify=strata)
        return self.sample.rows(train), self.sample.rows(test)

    def smaller(self, n_rows: int) -> Dataset:
        """Return a smaller data set: parts of the splits, whole tasks, or a stratified subsample."""
        n, task = len(self.sample), self.sample.task
        if n <= n_rows:
            return self
        if task is not None:
            sizes = np.cumsum(np.bincount(np.unique(task, return_inverse=True)[1]))
            kept = np.unique(task)[: max(4, int(np.searchsorted(sizes, n_rows)))]
            return replace(self, sample=self.sample.rows(np.flatnonzero(np.isin(task, kept))), splits=())
        if self.splits:
            rng = np.random.default_rng(0)  # samples may be sorted by label
            parts = [rng.permutation(part)[: n_rows * len(part) // n] for part in self.splits[0]]
            rows, first = np.concatenate(parts), len(parts[0])
            split = (np.arange(first), np.arange(first, len(rows)))
            return replace(self, sample=self.sample.rows(rows), splits=(split,))
        rows, _ = train_test_split(np.arange(n), train_size=n_rows, random_state=0, stratify=self.sample.y)
        return replace(self, sample=self.sample.rows(np.sort(rows)))


@cache
def read(name: str, title: str, *, stands_for: str = "", why: str = "", download: bool = False) -> Dataset | None:
    """Load a data set; None if it is not found."""
    data.data_folder()  # raises if REGBAYES_DATA does not exist, instead of using stand-ins
    try:
        found = data.load(name, download_if_missing=download)
    except data.DataNotFoundError:
        return None
    sample = Sample(np.asarray(found.data, dtype=np.float64), np.asarray(found.target), found.get("task"))
    splits = found.get("splits") or ([(found.train, found.test)] if "train" in found else [])
    return Dataset(title, sample, tuple(splits), stands_for, why)


def digits(quick: bool) -> Dataset:
    """Return scikit-learn's digits."""
    found = Dataset("digits", Sample(*load_digits(return_X_y=True)), (), "TRECVID2003", NOT_PUBLIC)
    return found.smaller(400) if quick else found


def multiway(quick: bool) -> list[Dataset]:
    """Return TRECVID2003 and Flickr if their files exist, otherwise stand-ins."""
    flickr = read("flickr", "Flickr")
    stand_ins = {
        "office_caltech10_multiview": "Office-Caltech (descriptors of the same kinds)",
        "nuswide12_bow500": "NUS-WIDE-12 (500 SIFT words of images of the same source)",
        "scene15": "scene15",
    }
    others = [read(name, title, stands_for="Flickr", why=NOT_PUBLIC) for name, title in stand_ins.items()]
    found = [read("trecvid2003", "TRECVID2003") or digits(quick), *([flickr] if flickr else [o for o in others if o])]
    return [found[i].smaller(400) for i in sorted({0, len(found) - 1})] if quick else found


def multilabel(quick: bool) -> list[Dataset]:
    """Return Yeast and Scene, or six binary labels of digits as a stand-in."""
    sets = [read(name.lower(), name, download=not quick) for name in ("Yeast", "Scene")]
    found = [one for one in sets if one is not None] or [digit_questions()]
    return [dataset.smaller(400) for dataset in found] if quick else found


def ragged(quick: bool) -> list[Dataset]:
    """Return School with its ten published splits, or patients grouped by age as a stand-in."""
    found = read("school", "School") or age_groups()
    return [found.smaller(1000) if quick else found]


def digit_questions() -> Dataset:
    """Return digits with six labels: even, prime, above four, with a loop, square, multiple of three."""
    X, y = load_digits(return_X_y=True)
    members = ((0, 2, 4, 6, 8), (2, 3, 5, 7), (5, 6, 7, 8, 9), (0, 6, 8, 9), (0, 1, 4, 9), (0, 3, 6, 9))
    labels = np.stack([np.isin(y, some) for some in members], axis=1).astype(np.int64)
    rows = np.arange(len(X))
    return Dataset("digit questions", Sample(X, labels), ((rows[::2], rows[1::2]),), "Yeast", NOT_FOUND)


def age_groups() -> Dataset:
    """Return scikit-learn's diabetes patients in age groups of equal size."""
    X, y = load_diabetes(return_X_y=True)
    task = np.empty(len(X), dtype=np.int64)
    task[np.argsort(X[:, 0], kind="stable")] = np.arange(len(X)) * N_AGE_GROUPS // len(X)
    return Dataset("diabetes by age", Sample(X, y, task), (), "School", NOT_FOUND)
