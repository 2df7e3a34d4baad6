"""Accuracy and stability of high-temperature, low-temperature and slab features of iLSVM.

    python benchmarks/bench_slab.py --jobs 4

A fit uses at most half of the samples and at most 1,000; a second fit uses 90% of these. Columns:
  accuracy   on held-out samples
  off        share of the probabilities below 0.1, of features in use
  undecided  share between 0.1 and 0.9
  K          features in use
  on         features of a sample with a probability above 0.5
  stability  median absolute correlation of matched features of both fits on held-out samples; unmatched features
             count as 0
Data sets that scikit-learn does not include are read from the folder REGBAYES_DATA. The last line is the paired
difference from high-temperature features, with its standard error over data sets.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from cells import mean_and_error, parse, run_cells
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_matrix
from sklearn.datasets import (
    load_breast_cancer,
    load_diabetes,
    load_digits,
    load_iris,
    load_wine,
    make_classification,
    make_friedman1,
    make_gaussian_quantiles,
)
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from regbayes import ILSVMClassifier

FOLDER, MAX_TRAIN, MAX_NEW, MAX_WORDS = Path(os.environ.get("REGBAYES_DATA", ".")), 1000, 2000, 300
Table = tuple[np.ndarray, np.ndarray]


def read(name: str) -> dict[str, np.ndarray]:
    with np.load(FOLDER / f"{name}.npz") as found:
        return {key: found[key] for key in found.files}


def table(name: str, columns: slice = slice(None)) -> Table:
    data = read(name)
    return data["X"][:, columns].astype(float), data["y" if "y" in data else "Y"]


def words(name: str, target: str, classes: int) -> Table:
    """Return tf-idf weights of the most frequent words, for the first classes."""
    data = read(name)
    shape = tuple(int(n) for n in data["X_shape"])
    X = csr_matrix((data["X_data"], data["X_indices"], data["X_indptr"]), shape=shape)
    kept = np.flatnonzero(data[target] < classes)
    X = X[kept][:, np.argsort(-np.asarray(X[kept].sum(axis=0)).ravel(), kind="stable")[:MAX_WORDS]]
    return TfidfTransformer(sublinear_tf=True).fit_transform(X).toarray(), data[target][kept]


def above_median(X: np.ndarray, y: np.ndarray) -> Table:
    return X, (y > np.median(y)).astype(int)


def simulated(seed: int, **options: Any) -> Table:
    return make_classification(2000, random_state=seed, **options)


SETS: dict[str, Callable[[], Table]] = {
    "iris": lambda: load_iris(return_X_y=True),
    "wine": lambda: load_wine(return_X_y=True),
    "breast cancer": lambda: load_breast_cancer(return_X_y=True),
    "digits": lambda: load_digits(return_X_y=True),
    "diabetes, two halves": lambda: above_median(*load_diabetes(return_X_y=True)),
    "friedman, two halves": lambda: above_median(*make_friedman1(2000, noise=1.0, random_state=0)),
    "quantiles": lambda: make_gaussian_quantiles(n_samples=2000, n_features=6, n_classes=3, random_state=0),
    "20 inputs, 3 classes": lambda: simulated(0, n_features=20, n_informative=8, n_classes=3),
    "60 inputs, 5 classes": lambda: simulated(1, n_features=60, n_informative=20, n_classes=5),
    "clusters": lambda: simulated(2, n_features=15, n_informative=6, n_clusters_per_class=3),
    "scene15": lambda: table("scene15"),
    "office, first view": lambda: table(
        "office_caltech10_multiview", slice(*read("office_caltech10_multiview")["view_offsets"][:2])
    ),
    "nuswide": lambda: table("nuswide12_bow500"),
    "landmine": lambda: table("landmine"),
    "newsgroups": lambda: words("20newsgroups_bydate", "y", 6),
    "reviews": lambda: words("movie_review_scale", "y_class3", 3),
    "emotions": lambda: table("emotions"),
    "scene": lambda: table("scene"),
    "yeast": lambda: table("yeast"),
}
MODES: dict[str, dict[str, Any]] = {"soft": {}, "T = 0.02": {"temperature": 0.02}, "slab": {"slab": "half-normal"}}
COLUMNS = ("accuracy", "off", "undecided", "K", "on", "stability", "seconds")


def in_use(psi: np.ndarray) -> np.ndarray:
    return np.ptp(psi, axis=0) > 0.1


def match(one: np.ndarray, two: np.ndarray) -> float:
    """Return the median correlation of matched features."""
    a, b = (found[:, found.std(axis=0) > 1e-9] for found in (one, two))
    if not a.shape[1] or not b.shape[1]:
        return 0.0
    alike = np.abs(np.corrcoef(a.T, b.T)[: a.shape[1], a.shape[1] :])
    rows, columns = linear_sum_assignment(-alike)
    return float(np.median(np.append(alike[rows, columns], np.zeros(max(alike.shape) - min(alike.shape)))))


def measure(name: str, split: int, mode: str) -> list[float]:
    X, y = SETS[name]()
    train, new = train_test_split(
        np.arange(len(y)), test_size=0.5, random_state=split, stratify=y if y.ndim == 1 else None
    )
    train, new = train[:MAX_TRAIN], new[:MAX_NEW]
    X = StandardScaler().fit(X[train]).transform(X)
    rng, began = np.random.default_rng(split), time.process_time()
    model = ILSVMClassifier(**MODES[mode]).fit(X[train], y[train])
    spent = time.process_time() - began
    part = rng.permutation(train)[: int(0.9 * len(train))]
    other = ILSVMClassifier(**MODES[mode]).fit(X[part], y[part])
    psi = model.feature_probabilities(X[new])
    used, used_again = in_use(model.feature_probabilities(X[train])), in_use(other.feature_probabilities(X[train]))
    stable = match(model.transform(X[new])[:, used], other.transform(X[new])[:, used_again])
    psi = psi[:, used]
    undecided = float(np.mean((psi >= 0.1) & (psi <= 0.9)))
    on = float((psi > 0.5).sum(axis=1).mean())
    return [
        float(np.mean(model.predict(X[new]) == y[new])),
        float(np.mean(psi < 0.1)),
        undecided,
        used.sum(),
        on,
        stable,
        spent,
    ]


if __name__ == "__main__":
    options = parse(__doc__, 3, "bench_slab.jsonl", "wine")
    sets = [name for name in SETS if options.sets is None or name in options.sets]
    found = run_cells(measure, [(n, s, m) for n in sets for s in range(options.splits) for m in MODES], options)
    means = {
        m: np.array([np.mean([found[n, s, m] for s in range(options.splits)], axis=0) for n in sets]) for m in MODES
    }
    print(f"{'':22}{'':10}", *(f"{name:>10}" for name in COLUMNS))
    for i, name in enumerate(sets):
        for mode in MODES:
            print(f"{name:22}{mode:10}", *(f"{value:10.3f}" for value in means[mode][i]))
    for mode in MODES:
        print(f"{'mean':22}{mode:10}", *(f"{value:10.3f}" for value in means[mode].mean(axis=0)))
        print(f"{'accuracy against soft':32}", mean_and_error(means[mode][:, 0] - means["soft"][:, 0]))
