"""Sensitivity of fits to floating-point rounding of different processors.

    python benchmarks/bench_processors.py                # 20 seeds
    python benchmarks/bench_processors.py --seeds 5
    python benchmarks/bench_processors.py --smoke

Each fit runs in three processes. One uses all instructions of the processor. In the others NumPy does not use AVX2 and
AVX-512, OpenBLAS uses the kernels of an older core, and Numba compiles for generic x86-64. iLSVM is fitted to 300
digits and scored on 300 others. MT-iLSVM is fitted to noisy copies of two inputs of 200 samples. It has ten inputs in
two correlated groups, or ten exactly uncorrelated inputs, whose principal directions depend only on rounding.

Each row of the table has the number of fits for which the number of features in use differs and the largest difference,
the largest relative difference of the objectives, the mean score in each process (accuracy, explained variance), and
the largest difference of the scores of one fit.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__
from sklearn.datasets import load_digits

from regbayes import ILSVMClassifier, MultiTaskILSVMRegressor

CACHE = Path(__file__).parents[1] / "build" / "numba-plain"
GENERIC = {
    "NPY_DISABLE_CPU_FEATURES": " ".join(name for name in __cpu_dispatch__ if __cpu_features__[name]),
    "NUMBA_CPU_NAME": "generic",
    "NUMBA_CACHE_DIR": str(CACHE),
}
PROCESSORS = {
    "as it is": {},
    "Haswell": GENERIC | {"OPENBLAS_CORETYPE": "Haswell"},
    "Prescott": GENERIC | {"OPENBLAS_CORETYPE": "Prescott"},
}


def digit_fits(seed: int) -> dict[str, tuple[int, float, float]]:
    X, y = (values[:600] for values in load_digits(return_X_y=True))
    found = {}
    for temperature in ("auto", 0.02):
        for C in (0.1, 1.0, 10.0):
            model = ILSVMClassifier(16, C=C, temperature=temperature, random_state=seed).fit(X[::2], y[::2])
            row = model.n_components_, model.score(X[1::2], y[1::2]), model.trace_.objective[-1]
            found[f"digits, temperature {temperature}, C {C:g}"] = tuple(map(float, row))
    return found


def task_fits(seed: int) -> dict[str, tuple[int, float, float]]:
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal((400, 10))
    white = noise - noise[:200].mean(axis=0)
    white = np.sqrt(200) * white @ np.linalg.inv(np.linalg.cholesky(white[:200].T @ white[:200]).T)
    grouped = noise + np.repeat(rng.standard_normal((400, 2)), 5, axis=1)
    found = {}
    for name, X in (("two groups", grouped), ("nothing to find", white)):
        Y = X[:, :2] + 0.5 * rng.standard_normal((400, 2))
        for temperature in ("auto", 0.01, 0.0):
            model = MultiTaskILSVMRegressor(6, temperature=temperature, random_state=seed).fit(X[:200], Y[:200])
            psi = model.components_
            in_use = np.sum((psi.max(axis=1) > 0.5) & (np.ptp(psi, axis=1) > 0.1))
            row = in_use, model.score(X[200:], Y[200:]), model.trace_.objective[-1]
            found[f"tasks, {name}, temperature {temperature}"] = tuple(map(float, row))
    return found


def fits(seeds: int) -> None:
    """Print the results of all fits as JSON."""
    on = [name for name in __cpu_dispatch__ if __cpu_features__[name]]
    if "NPY_DISABLE_CPU_FEATURES" in os.environ and on:
        raise RuntimeError(f"NumPy still uses {on}")
    warnings.simplefilter("ignore")  # fits that reach max_iter or n_components are compared too
    print(json.dumps([digit_fits(seed) | task_fits(seed) for seed in range(seeds)]))


def compare(seeds: int) -> None:
    """Print a row for each kind of fit."""
    results = []
    for name, environment in PROCESSORS.items():
        command = [sys.executable, __file__, "--fits", "--seeds", str(seeds)]
        done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=True)
        results.append(json.loads(done.stdout))
        print(f"{len(results[-1])} seeds, processor {name}", file=sys.stderr)
    print(f"{'':44} other number  by  objective  score: {', '.join(PROCESSORS)}; most")
    for kind in results[0][0]:
        n, score, value = np.array([[run[kind] for run in runs] for runs in results]).transpose(2, 1, 0)
        apart = np.ptp(n, axis=1)
        change = np.max(np.ptp(value, axis=1) / np.abs(value[:, 0]))
        scores = "  ".join(f"{mean:.4f}" for mean in score.mean(axis=0))
        counts = f"{np.sum(apart > 0):3d} of {len(n):3d}  {int(apart.max()):3d}  {change:9.1e}"
        print(f"{kind:44} {counts}  {scores}  {np.ptp(score, axis=1).max():.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--fits", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    seeds = 1 if arguments.smoke else arguments.seeds
    fits(seeds) if arguments.fits else compare(seeds)


if __name__ == "__main__":
    main()
