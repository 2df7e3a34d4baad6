"""Sensitivity of iLSVM and MT-iLSVM to 30% changes of the numbers in their policies.

    python benchmarks/bench_policies.py --jobs 4

Each field of `StructurePolicy` and `HeadPolicy` is multiplied by 0.7 and by 1.3, on simulated tables (ten seeds) that
were not used to choose the fields. A field passes if the number of features in use changes by at most 1, the objective
by at most 1%, and the accuracy (R² for numbers) by at most two standard errors of the paired differences. The tables
cover classes with high-temperature, low-temperature and slab features, binary parts with a noise variance for each
input, numbers, several tasks, and 10,000 samples, a subset of which is used by the search. The last line counts
verdicts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
from cells import parse, run_cells
from sklearn.datasets import make_classification, make_friedman1, make_multilabel_classification
from sklearn.preprocessing import StandardScaler

from regbayes import IBPFactorAnalysis, ILSVMClassifier, ILSVMRegressor, MultiTaskILSVMClassifier
from regbayes.margins import head
from regbayes.models.ilsvm.starts import POLICY

FACTORS = (0.7, 1.3)
MAX_FEATURES, MAX_OBJECTIVE, MAX_ERRORS = 1.0, 0.01, 2.0  # largest changes that pass
Table = tuple[np.ndarray, np.ndarray | None]
HEAD_FIELDS = [field.name for field in fields(head.HEAD_POLICY)]
FIELDS = [field.name for field in fields(POLICY)] + HEAD_FIELDS


def classes(seed: int, n: int = 1200) -> Table:
    X, y = make_classification(
        n, 30, n_informative=10, n_redundant=10, n_classes=4, class_sep=1.5, random_state=1000 + seed
    )
    return StandardScaler().fit_transform(X), y


def numbers(seed: int) -> Table:
    return make_friedman1(1200, 12, noise=0.7, random_state=1000 + seed)


def parts(seed: int) -> Table:
    """Draw sums of six binary parts, with a noise variance for each input."""
    rng = np.random.default_rng(1000 + seed)
    Z = rng.random((1200, 6)) < np.linspace(0.1, 0.5, 6)
    signal = Z @ rng.standard_normal((6, 30))
    return signal + rng.uniform(0.3, 1.0, 30) * signal.std(axis=0) * rng.standard_normal(signal.shape), None


def tasks(seed: int) -> Table:
    X, Y = make_multilabel_classification(1200, 30, n_classes=6, n_labels=3, random_state=1000 + seed)
    return X, Y.astype(float)


CASES: dict[str, tuple[Callable[[int], Table], Callable[[], Any]]] = {
    "soft": (classes, lambda: ILSVMClassifier(random_state=0)),
    "T = 0.02": (classes, lambda: ILSVMClassifier(temperature=0.02, random_state=0)),
    "slab": (classes, lambda: ILSVMClassifier(slab="half-normal", random_state=0)),
    "parts": (parts, lambda: IBPFactorAnalysis(20, noise_variance="per_input", random_state=0)),
    "numbers": (numbers, lambda: ILSVMRegressor(random_state=0)),
    "tasks": (tasks, lambda: MultiTaskILSVMClassifier(random_state=0)),
    "large": (lambda seed: classes(seed, 10_000), lambda: ILSVMClassifier(random_state=0)),
}


HEAD_POLICY = head.HEAD_POLICY


def changed(policy: Any, field: str, factor: float) -> Any:
    value = getattr(policy, field, None)
    if value is None:
        return policy
    found = factor * value
    return replace(policy, **{field: max(1, round(found)) if isinstance(value, int) else found})


def measure(case: str, field: str, factor: float, seed: int) -> list[float]:
    draw, make = CASES[case]
    (X, y), model = draw(seed), make()
    model._policy, head.HEAD_POLICY = changed(POLICY, field, factor), changed(HEAD_POLICY, field, factor)
    half = len(X) // 2 if case != "large" else 9_000
    model.fit(X[:half], None if y is None else y[:half])
    score = model.score(X[half:]) if y is None else model.score(X[half:], y[half:])
    return [float(model.n_components_), float(model.objective_), float(score)]


def judge(plain: np.ndarray, other: np.ndarray) -> tuple[float, float, float, bool]:
    """Return mean changes of features, objective (relative) and scores (standard errors), and whether all pass."""
    features, J, score = (other - plain).T
    by_J = float(np.mean(J) / np.mean(np.abs(plain[:, 1])))
    error = max(float(score.std(ddof=1) / np.sqrt(len(score))), 1e-12)
    by_score = float(score.mean() / error) if np.any(score) else 0.0
    passes = abs(features.mean()) <= MAX_FEATURES and abs(by_J) <= MAX_OBJECTIVE and abs(by_score) <= MAX_ERRORS
    return float(features.mean()), by_J, by_score, passes


if __name__ == "__main__":
    options = parse(__doc__, 10, "bench_policies.jsonl", "numbers")
    cases = [name for name in CASES if options.sets is None or name in options.sets]
    seeds = range(options.splits)
    changes = [
        (case, field, factor)
        for case in cases
        for field in FIELDS
        for factor in FACTORS
        if (field == "sample_rows") == (case == "large") and not (case == "parts" and field in HEAD_FIELDS)
    ]
    plain = [(case, "", 1.0) for case in cases]
    found = run_cells(measure, [(*change, seed) for change in plain + changes for seed in seeds], options)
    failed: dict[str, list[str]] = {field: [] for field in FIELDS}
    print(f"{'field':18}{'factor':>7} {'case':10}{'features':>10}{'J':>9}{'score/se':>10}")
    for case, field, factor in sorted(changes, key=lambda change: FIELDS.index(change[1])):
        before, after = (
            np.array([found[*change, seed] for seed in seeds]) for change in ((case, "", 1.0), (case, field, factor))
        )
        by_features, relative, by_score, passes = judge(before, after)
        if not passes:
            failed[field].append(case)
        if np.any(after != before):
            print(
                f"{field:18}{factor:7.1f} {case:10}{by_features:+10.2f}{relative:+9.2%}{by_score:+10.1f}"
                f"{'' if passes else '   fails'}"
            )
    for field, where in failed.items():
        print(f"{field:18} {'fails: ' + ', '.join(dict.fromkeys(where)) if where else 'passes'}")
    print(f"{sum(not where for where in failed.values())} of {len(failed)} fields pass")
