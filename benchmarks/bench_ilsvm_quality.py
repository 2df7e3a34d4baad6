"""How well iLSVM predicts, against the two-stage pipeline it extends and against linear models on the raw inputs.

    python benchmarks/bench_ilsvm_quality.py                    # digits and, with REGBAYES_DATA set, scene15
    python benchmarks/bench_ilsvm_quality.py --parts few        # few, large, inputs, readable, count, planted
    python benchmarks/bench_ilsvm_quality.py --smoke

Protocol: half of the rows train, half test, stratified, seeds 0 to 4; inductive. Every method chooses its own settings
by 3-fold cross-validation inside the training half, from grids of the same size; nothing sees the test half before the
one score that is printed. Joint and two-stage share code, start and preprocessing (X is centred, never scaled); the
two-stage pipeline may learn cold and infer warm, standardises its features and has LinearSVC behind them. Rows are mean
+- standard deviation of the test accuracy over seeds; "ahead" is the mean paired difference joint - two-stage.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from regbayes import IBPFactorAnalysis, ILSVMClassifier
from regbayes.datasets import make_ibp_classification
from regbayes.experiments.registry import named
from regbayes.experiments.systems import MULTIWAY

Maker = Callable[..., Any]
Split = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def load(name: str, smoke: bool) -> tuple[np.ndarray, np.ndarray] | None:
    """Return a data set, or None where it is not to be had."""
    if name == "digits":
        X, y = load_digits(return_X_y=True)
        return (X[:400], y[:400]) if smoke else (X, y)
    folder = os.environ.get("REGBAYES_DATA")
    if not folder or not (Path(folder) / f"{name}.npz").exists():
        return None
    with np.load(Path(folder) / f"{name}.npz") as arrays:
        return arrays["X"].astype(np.float64), arrays["y"]


def halves(X: np.ndarray, y: np.ndarray, seed: int) -> Split:
    """Split in two, stratified."""
    return tuple(train_test_split(X, y, test_size=0.5, random_state=seed, stratify=y))


def joint(K: int, seed: int, scale: bool = False, **settings: Any) -> Any:
    model = ILSVMClassifier(K, random_state=seed, **settings)
    return make_pipeline(StandardScaler(), model) if scale else model


def two_stage(K: int, seed: int, C: float, **settings: Any) -> Any:
    features = IBPFactorAnalysis(K, random_state=seed, **settings)
    return make_pipeline(features, StandardScaler(), LinearSVC(C=C, max_iter=5000))


def linear_svc(_: int, seed: int, C: float, scale: bool) -> Any:
    model = LinearSVC(C=C, max_iter=5000, random_state=seed)
    return make_pipeline(StandardScaler(), model) if scale else model


def logistic(_: int, seed: int, C: float, scale: bool) -> Any:
    model = LogisticRegression(C=C, max_iter=2000, random_state=seed)
    return make_pipeline(StandardScaler(), model) if scale else model


def grid(**lists: list[Any]) -> list[dict[str, Any]]:
    return [dict(zip(lists, values, strict=True)) for values in product(*lists.values())]


def as_in_table1(name: str) -> list[dict[str, Any]]:
    """Return the settings among which a system of the paper's first table chooses."""
    return [dict(settings) for settings in named(MULTIWAY, name).grid]


JOINT = as_in_table1("iLSVM")
JOINT_INPUTS = grid(C=[0.1, 0.3, 1.0, 3.0], temperature=[0.1, 0.2], include_inputs=[True])
STANDARDISED = {"scale": True}
POSTERIOR = as_in_table1("iLSVM, printed updates")
TWO_STAGE = as_in_table1("IBP+SVM")
PARTS = ["few", "large", "inputs", "readable", "count", "planted"]
LINEAR = grid(C=[0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 3.0], scale=[False])


def two_stage_scores(K: int, seed: int, part: Split) -> list[float]:
    """Scores of all settings in `TWO_STAGE`: features that are only inferred or used differently are learned once."""
    rows, new, labels, truth = part
    learned = {
        t: IBPFactorAnalysis(K, random_state=seed, temperature=t).fit(rows)
        for t in {s["temperature"] for s in TWO_STAGE}
    }
    scores = []
    for s in TWO_STAGE:
        features = learned[s["temperature"]].set_params(transform_temperature=s["transform_temperature"])
        classifier = make_pipeline(StandardScaler(), LinearSVC(C=s["C"], max_iter=5000))
        scores.append(classifier.fit(features.transform(rows), labels).score(features.transform(new), truth))
    return scores


def chosen_score(make: Maker, settings: list[dict[str, Any]], K: int, seed: int, split: Split) -> tuple[float, float]:
    """Choose by cross-validation on the training half; return the test accuracy and the seconds of the final fit."""
    train, test, y_train, y_test = split
    folds = StratifiedKFold(3, shuffle=True, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if make is two_stage:
            parts = [(train[a], train[b], y_train[a], y_train[b]) for a, b in folds.split(train, y_train)]
            scores = list(np.mean([two_stage_scores(K, seed, part) for part in parts], axis=0))
        else:
            scores = [np.mean(cross_val_score(make(K, seed, **s), train, y_train, cv=folds)) for s in settings]
        start = time.perf_counter()
        model = make(K, seed, **settings[int(np.argmax(scores))]).fit(train, y_train)
        seconds = time.perf_counter() - start
    return float(model.score(test, y_test)), seconds


def table(
    name: str, rows: dict[str, tuple[Maker, list[dict[str, Any]], int]], splits: list[Split], jobs: int
) -> dict[str, np.ndarray]:
    """Run every row on every split, print it, and return the accuracies."""
    tasks = [(label, seed) for label in rows for seed in range(len(splits))]
    found = Parallel(n_jobs=jobs)(
        delayed(chosen_score)(rows[label][0], rows[label][1], rows[label][2], seed, splits[seed])
        for label, seed in tasks
    )
    accuracies = {label: np.array([f[0] for f, t in zip(found, tasks, strict=True) if t[0] == label]) for label in rows}
    for label, values in accuracies.items():
        seconds = np.mean([f[1] for f, t in zip(found, tasks, strict=True) if t[0] == label])
        print(f"{name:8} {label:40} {values.mean():.4f} +- {values.std():.4f}   fit {seconds:6.2f} s", flush=True)
    return accuracies


def part_few(name: str, splits: list[Split], jobs: int, sizes: tuple[int, ...]) -> None:
    """Latent features only: joint against two-stage at the same number of features."""
    standardised = [s | STANDARDISED for s in LINEAR]
    linear = {
        "LinearSVC, raw inputs": (linear_svc, LINEAR, 0),
        "LinearSVC, standardised inputs": (linear_svc, standardised, 0),
    }
    table(name, linear, splits, jobs)
    for K in sizes:
        rows = {
            f"two-stage, K = {K}": (two_stage, TWO_STAGE, K),
            f"joint, K = {K}": (joint, JOINT, K),
        }
        if K == 20:  # the slowest row, and much the same at every K
            rows[f"posterior (the paper), K = {K}"] = (joint, POSTERIOR, K)
        found = table(name, rows, splits, jobs)
        ahead = found[f"joint, K = {K}"] - found[f"two-stage, K = {K}"]
        print(
            f"{name:8} ahead of two-stage, K = {K}: {100 * ahead.mean():+.1f} points (worst {100 * ahead.min():+.1f})"
        )


def part_inputs(name: str, splits: list[Split], jobs: int) -> None:
    """Inputs beside 20 latent features, with all training rows and with 200 of them."""
    few = []
    for seed, (train, test, y_train, y_test) in enumerate(splits):
        if len(train) > 250:
            rows, _ = train_test_split(np.arange(len(train)), train_size=200, random_state=seed, stratify=y_train)
            few.append((train[rows], test, y_train[rows], y_test))
    for label, chosen in (("all rows", splits), ("200 rows", few)):
        for scaling in ({}, STANDARDISED):
            what = f"{label}, {'standardised' if scaling else 'raw'}"
            rows = {
                f"joint with inputs, {what}": (joint, [s | scaling for s in JOINT_INPUTS], 20),
                f"LinearSVC, {what}": (linear_svc, [s | scaling for s in LINEAR], 0),
                f"LogisticRegression, {what}": (logistic, [s | scaling for s in LINEAR], 0),
            }
            if chosen:
                table(name, rows, chosen, jobs)


def part_readable(name: str, splits: list[Split], jobs: int) -> None:
    """The dial: accuracy against how graded the features are, 20 features, other settings at their defaults."""

    def both(temperature: float, seed: int, split: Split) -> list[float]:
        train, test, y_train, y_test = split
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = joint(20, seed, temperature=temperature).fit(train, y_train)
            pipeline = two_stage(20, seed, C=1.0, temperature=temperature).fit(train, y_train)
        out = []
        for fitted, features in ((model, model), (pipeline, pipeline[0])):
            psi = features.transform(test)
            out += [fitted.score(test, y_test), float(np.mean(psi * (1 - psi)))]
        return out

    for temperature in (0.2, 0.1, 0.05, 0.02, 0.01, 0.005):
        found = np.mean(
            Parallel(n_jobs=jobs)(delayed(both)(temperature, seed, split) for seed, split in enumerate(splits)), axis=0
        )
        print(
            f"{name:8} temperature {temperature:5.3f}: joint {found[0]:.4f} at psi(1 - psi) = {found[1]:.3f}; "
            f"two-stage {found[2]:.4f} at {found[3]:.3f}",
            flush=True,
        )


def part_count(name: str, splits: list[Split], sizes: tuple[int, ...]) -> None:
    """Features in use against the number of rows and the truncation, settings at their defaults."""
    train, _, y_train, _ = splits[0]
    for share in (0.125, 0.25, 0.5, 1.0):
        n = max(int(share * len(train)), 60)
        used = []
        for K in sizes:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                used.append(joint(K, 0).fit(train[:n], y_train[:n]).n_components_)
        shown = ", ".join(f"{u} of {K}" for u, K in zip(used, sizes, strict=True))
        print(f"{name:8} {n:5d} rows: in use {shown}", flush=True)


def part_planted(sizes: tuple[int, ...], rows: tuple[int, ...]) -> None:
    """Features found in rows drawn from the Indian buffet process, against those that the rows have."""
    drawn = make_ibp_classification(max(rows), 40, n_components=60, alpha=4.0, noise=0.3, random_state=0)
    for n in rows:
        counts = drawn.features[:n].sum(axis=0)
        found = []
        for K in sizes:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model = IBPFactorAnalysis(K, temperature=1 / 40, noise_variance="estimate", random_state=0)
                found.append(f"{model.fit(drawn.data[:n]).n_components_} of {K}")
        there = f"{np.sum(counts > 0)} in some row, {np.sum(counts >= 0.02 * n)} in 2% of them"
        print(f"planted  {n:5d} rows: {there}; found {', '.join(found)}", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="a minute, small data")
    parser.add_argument("--parts", nargs="*", default=PARTS)
    parser.add_argument("--data", nargs="*", default=["digits", "scene15"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    seeds = 1 if arguments.smoke else arguments.seeds
    print(__doc__.split("Protocol: ")[1])
    if "planted" in arguments.parts:
        part_planted((10, 20), (50, 100)) if arguments.smoke else part_planted((40, 80), (50, 100, 200, 400, 800, 1600))
    for name in ["digits"] if arguments.smoke else arguments.data:
        loaded = load(name, arguments.smoke)
        if loaded is None:
            print(f"{name}: not found; set REGBAYES_DATA to a folder that holds {name}.npz")
            continue
        splits = [halves(*loaded, seed) for seed in range(seeds)]
        print(f"{name}: {len(loaded[0])} rows, {loaded[0].shape[1]} inputs, {len(np.unique(loaded[1]))} classes")
        if "few" in arguments.parts:
            part_few(name, splits, arguments.jobs, (10,) if arguments.smoke else (10, 20, 40))
        if "large" in arguments.parts and not arguments.smoke:
            part_few(name, splits, arguments.jobs, (100, 200))
        if "inputs" in arguments.parts and not arguments.smoke:
            part_inputs(name, splits, arguments.jobs)
        if "readable" in arguments.parts:
            part_readable(name, splits[:1] if arguments.smoke else splits, arguments.jobs)
        if "count" in arguments.parts:
            part_count(name, splits, (10, 20) if arguments.smoke else (10, 25, 50, 100, 200))


if __name__ == "__main__":
    main()
