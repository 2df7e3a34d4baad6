"""Time the models with PyTorch arrays on a GPU and with NumPy arrays on CPU threads.

    python benchmarks/bench_gpu.py                     # the sizes of docs/scale.md; needs a large GPU
    python benchmarks/bench_gpu.py --part ilsvm        # or regularize, tasks, fit, host
    python benchmarks/bench_gpu.py --dtype float32
    python benchmarks/bench_gpu.py --smoke             # small, with PyTorch on the CPU, or NumPy without PyTorch

Times are medians of synchronized calls after a warm-up. The CPU processes fewer samples, by a factor that is printed,
and its times are multiplied by this factor.
"""

from __future__ import annotations

import argparse
import gc
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np
import sklearn
from threadpoolctl import threadpool_limits

from regbayes import ILSVMClassifier
from regbayes.engine import make_executor
from regbayes.joint import descent
from regbayes.joint.descent import DescentOptions
from regbayes.joint.problem import hold_rows
from regbayes.kernels import arrays
from regbayes.margins.head import Head, Tolerance
from regbayes.margins.targets import Signs
from regbayes.models.ilsvm import starts
from regbayes.models.ilsvm.model import Data, ILSVMProblem, Params, Rows, Settings, centre_rows
from regbayes.models.mt_ilsvm.fit import Point, descend, start_latent
from regbayes.models.mt_ilsvm.fit import Problem as TaskProblem
from regbayes.models.mt_ilsvm.model import MultiTaskModel, resolve_scales, sum_moments
from regbayes.models.mt_ilsvm.model import Settings as TaskSettings
from regbayes.regularization.composite import Stack
from regbayes.regularization.dual import solve_dual
from regbayes.regularization.log_partition import WeightedAtoms
from regbayes.regularization.regularizers import AtMost, Equal, Separable

WARM = Tolerance(gap=1e-3, max_epochs=20.0)


@dataclass(frozen=True)
class Device:
    """Device of the arrays, and its synchronization."""

    library: ModuleType | None  # PyTorch, or None for NumPy
    name: str
    dtype: str

    @classmethod
    def find(cls, smoke: bool, dtype: str) -> Device:
        try:
            import torch
        except ImportError:
            return cls(None, "cpu", dtype)
        if not smoke and not torch.cuda.is_available():
            raise SystemExit("No GPU was found; --smoke runs without one.")
        return cls(torch, "cpu" if smoke or not torch.cuda.is_available() else "cuda", dtype)

    def normal(self, *shape: int, seed: int = 0) -> Any:
        if self.library is None:
            return np.random.default_rng(seed).normal(size=shape).astype(self.dtype)
        maker = self.library.Generator(device=self.name).manual_seed(seed)
        return self.library.randn(shape, generator=maker, device=self.name, dtype=getattr(self.library, self.dtype))

    def wait(self) -> None:
        if self.name == "cuda":
            self.library.cuda.synchronize()

    def time(self, function: Callable[[], Any], repeats: int = 5) -> float:
        """Return the median seconds of calls after a warm-up."""
        function()
        seconds = []
        for _ in range(repeats):
            self.wait()
            start = time.perf_counter()
            function()
            self.wait()
            seconds.append(time.perf_counter() - start)
        return float(np.median(seconds))

    def peak_bytes(self) -> int:
        return int(self.library.cuda.max_memory_allocated()) if self.name == "cuda" else 0

    def free(self) -> None:
        gc.collect()  # problems contain reference cycles
        if self.name == "cuda":
            self.library.cuda.empty_cache()
            self.library.cuda.reset_peak_memory_stats()


def make_settings(K: int, D: int, L: int, one_vs_rest: bool, n_threads: int = 1) -> Settings:
    return Settings(
        n_components=K, alpha=2.0, C=1.0, squared=True, one_vs_rest=one_vs_rest, temperature=0.2 * D,
        generative_weight=0.03 * (L if one_vs_rest else 1), noise_variance=1.0, prior_variance=3.0,
        estimate_noise=False, estimate_prior=False, fit_intercept=True, input_scale=0.0, n_sweeps=1, max_iter=30,
        tol=1e-3, n_threads=n_threads,
    )  # fmt: skip


def make_rows(device: Device, n: int, D: int, L: int, seed: int = 0) -> tuple[Any, np.ndarray]:
    """Draw samples with binary features, and labels that depend on these with 20% errors."""
    K = 8 if D < 100 else 50
    loadings = device.normal(K, D, seed=1)
    on = device.normal(n, K, seed=seed) > 0.3
    on = on.to(loadings.dtype) if device.library is not None else on.astype(device.dtype)
    X = on @ loadings + device.normal(n, D, seed=seed + 2)
    scores = on @ device.normal(K, L, seed=3)
    labels = arrays.to_host(scores.argmax(-1)).astype(np.int64)
    rng = np.random.default_rng(seed)
    wrong = rng.random(n) < 0.2
    labels[wrong] = rng.integers(L, size=int(wrong.sum()))
    return X, labels


def make_start(data: Data, settings: Settings) -> Params:
    """Return initial parameters: directions of samples that exceed the noise."""
    start = starts.start(data.take(np.arange(min(len(data.X), 4096))), settings)
    print(f"  start with {len(start.loadings)} features")
    return replace(start, temperature=settings.temperature)


def show(name: str, seconds: float, note: str = "") -> None:
    print(f"  {name:46} {1e3 * seconds:10.2f} ms  {note}", flush=True)


def time_ilsvm(device: Device, n: int, D: int, K: int, L: int, n_steps: int) -> None:
    print(f"iLSVM, {n} rows x {D}, K = {K}, {L} classes, {device.dtype} on {device.name}")
    X, labels = make_rows(device, n, D, L)
    size = 4 if device.dtype == "float32" else 8
    data = Data.of_classes(Rows.centre(X), labels, np.ones(n), 1.0 - np.eye(L))
    if n <= 1 << 20:
        square = device.normal(4096 if n > 10_000 else 64, 4096 if n > 10_000 else 64)
        gemm = 2 * square.shape[0] ** 3 / device.time(lambda: square @ square)
        phi = device.normal(K, D)
        product = device.time(lambda: phi @ X.T)
        back = device.normal(K, n)
        cross = device.time(lambda: X.T @ back.T)
        work = 2.0 * n * D * K
        show("product with X", product, f"{work / product / gemm:.0%} of {gemm / 1e12:.1f} TF")
        show("product back", cross, f"{work / cross / gemm:.0%}")
        del square, phi, back
    for one_vs_rest in (True, False):
        settings = make_settings(K, D, L, one_vs_rest)
        params, joint = make_start(data, settings), ILSVMProblem(data, settings).joint
        if one_vs_rest:
            time_rows(device, joint, params)
        device.free()
        time_descent(device, joint, params, "one-vs-rest" if one_vs_rest else "multi-class", n_steps)
        if device.name == "cuda":
            beyond = device.peak_bytes() - size * n * D
            print(f"  memory: X + {beyond / (size * n * K):.1f} arrays of rows x features", flush=True)
        del joint
        device.free()


def time_rows(device: Device, joint: Any, params: Any) -> None:
    """Time the passes over samples, without margins."""
    model, rows = joint.model, joint.blocks.blocks[0].pieces[0]
    show("product with X and sweep", device.time(lambda: params.infer(rows)))
    inferred = model.infer(rows, params)
    show("inference and statistics", device.time(lambda: model.infer(rows, params)))
    show("reverse and product back", device.time(lambda: model.pull_back(rows, params, inferred, None)))
    show(
        "row work without margins",
        device.time(lambda: model.pull_back(rows, params, model.infer(rows, params), None)),
    )


def time_descent(device: Device, joint: Any, params: Any, name: str, n_steps: int) -> None:
    """Time an evaluation with its gradient, from nearly optimal weights, and several steps."""
    search = descent.start(joint, params)
    warm = search.at.warm_start

    def evaluate() -> Any:
        at, seen = joint.evaluate(params, warm, WARM)
        joint.gradient(at, seen)
        return at

    note = f"{evaluate().head.n_passes} passes over the margins"
    show(f"evaluation and gradient, {name}", device.time(evaluate), note)
    device.wait()
    start, objectives, n_passes = time.perf_counter(), [search.at.objective], 0
    for _ in range(n_steps):
        search = descent.step(joint, search).state
        objectives.append(search.at.objective)
        n_passes += search.at.head.n_passes
    device.wait()
    falls = bool(np.all(np.diff(objectives) <= 0))
    note = f"J never rose: {falls}; {n_passes} passes; relative gap {search.at.gap / search.at.head.value:.1e}"
    show(f"{n_steps} steps, {name}", time.perf_counter() - start, note)


def time_host(n: int, D: int, K: int, L: int, n_threads: int, factor: int) -> None:
    print(f"iLSVM on the host, {n} rows x {D}, {n_threads} threads; times are multiplied by {factor}")
    host = Device(None, "cpu", "float64")
    X, labels = make_rows(host, n, D, L)
    data = Data.of_classes(centre_rows(X), labels, np.ones(n), 1.0 - np.eye(L))
    for one_vs_rest in (True, False):
        time_host_case(host, data, make_settings(K, D, L, one_vs_rest, n_threads), factor)


def time_host_case(host: Device, data: Data, settings: Settings, factor: int) -> None:
    params = make_start(data, settings)
    joint, executor = ILSVMProblem(data, settings).joint, make_executor(settings.n_threads)
    model, name = joint.model, "one-vs-rest" if settings.one_vs_rest else "multi-class"

    def of_block(rows: Rows) -> Any:
        return model.pull_back(rows, params, model.infer(rows, params), None)

    if settings.one_vs_rest:
        rows = [block.pieces[0] for block in joint.blocks.blocks]
        show("row work without margins", factor * host.time(lambda: executor.map_reduce(of_block, rows), 3))
    warm = joint.evaluate(params, None, WARM)[0].warm_start
    show(
        f"evaluation and gradient, {name}",
        factor * host.time(lambda: joint.gradient(*joint.evaluate(params, warm, WARM)), 3),
    )


def time_regularize(device: Device, n: int, m: int) -> None:
    print(f"regularize, {n} draws x {m} constraints, {device.dtype} on {device.name}")
    draws = device.normal(n, m) @ (device.normal(m, m, seed=1) * (0.5 / m**0.5)) + device.normal(n, m, seed=2)
    logs = np.full(n, -np.log(n))
    device.wait()
    start = time.perf_counter()
    atoms = WeightedAtoms(draws, logs)
    device.wait()
    show("set-up", time.perf_counter() - start)
    half = m // 2
    aims = atoms.mean + 0.1 * atoms.unit
    g = Separable([Equal(aims[:half]), AtMost(atoms.mean[half:] - 0.05 * atoms.unit[half:])], [half, m - half])
    stack = Stack.of(g, m)
    phi = [np.full(m, 1e-3), np.full(m, 2e-3)]

    def evaluate() -> None:
        phi.reverse()
        atoms.evaluate(phi[0])

    def covariance() -> None:
        phi.reverse()
        atoms.covariance(phi[0])

    show("evaluate", device.time(evaluate))
    show("covariance", device.time(covariance), "with an evaluation")
    solution = solve_dual(atoms, stack, tol=1e-9, max_iter=200)
    note = f"{solution.n_iter} iterations, gap {solution.gap:.1e}, {solution.status}"
    show("solve", device.time(lambda: solve_dual(atoms, stack, tol=1e-9, max_iter=200), 3), note)
    if n <= 1_000_000:
        return
    few = n // 10
    host = arrays.to_host(draws[:few, :]).astype(np.float64)
    plain = WeightedAtoms(host, np.full(few, -np.log(few)))
    seconds = Device(None, "cpu", "float64").time(lambda: solve_dual(plain, stack, tol=1e-9, max_iter=200), 2)
    show("solve on the host, times 10", 10 * seconds)


def time_tasks(device: Device, n: int, D: int, K: int, M: int) -> None:
    print(f"MT-iLSVM, {n} rows x {D}, {M} tasks all observed, K = {K}, {device.dtype} on {device.name}")
    X, _ = make_rows(device, n, D, 2)
    X = X - arrays.to_device(centre_rows(X).mean, X) if device.library is not None else X - X.mean(axis=0)
    scores = device.normal(M, D, seed=5) @ X.T
    signs = 2 * (scores > 0) - 1
    signs = signs.to(device.library.int8) if device.library is not None else signs.astype(np.int8)
    del scores
    settings = TaskSettings(n_components=K, C=0.01, task_sharing=0.0, temperature=0.03)
    device.wait()
    start = time.perf_counter()
    moments = sum_moments(X)
    show("moments, once", time.perf_counter() - start)
    scale = float(np.sqrt(moments.mean_square))
    targets = Signs(arrays.to_host(signs).T, np.full((n, M), settings.C))
    groups = np.zeros(M, dtype=np.int64)
    head = Head(targets, squared=True, centred=False, groups=groups)
    scales = resolve_scales(settings, 0.03, float(n), float(n) * M)
    model = MultiTaskModel(moments.count(scales.multiplicity), scales, scale, 2.0, False, False)
    problem = TaskProblem(model, hold_rows([X]), head, DescentOptions(), settings, moments, float(n) * M)
    latent = start_latent(moments, settings, np.random.default_rng(0).normal(size=(D, K)))
    start = time.perf_counter()
    at, inferred = problem.evaluate(model.at(latent), None, problem.tolerance)
    point = Point(at, problem.pull_back(at, inferred))
    show("first evaluation", time.perf_counter() - start, f"{at.head.n_passes} passes")
    del at, inferred
    device.free()
    time_task_steps(device, problem, point)
    del point
    device.free()


def time_task_steps(device: Device, problem: TaskProblem, point: Point) -> None:
    """Time the first twelve steps after one warm-up step."""
    descend(problem, point)
    seconds, passes, objectives = [], [], [point.at.objective]
    for _ in range(12):
        device.wait()
        start = time.perf_counter()
        point = descend(problem, point).state
        device.wait()
        seconds.append(time.perf_counter() - start)
        passes.append(point.at.head.n_passes)
        objectives.append(point.at.objective)
    falls = bool(np.all(np.diff(objectives) <= 0))
    show("step", float(np.median(seconds)), f"passes {passes}; J never rose: {falls}")
    print(f"  all steps, ms: {[round(1e3 * each, 1) for each in seconds]}")
    print(f"  J from {objectives[0]:.6g} to {objectives[-1]:.6g}")
    if device.name == "cuda":
        print(f"  memory: {device.peak_bytes() / 1e9:.1f} GB", flush=True)


def time_fit(device: Device, n: int, D: int, K: int, L: int) -> None:
    print(f"ILSVMClassifier, {n} rows x {D}, K = {K}, {L} classes, {device.dtype} on {device.name}")
    X, labels = make_rows(device, n, D, L)
    y = labels if device.library is None else device.library.asarray(labels, device=device.name)
    os.environ["SCIPY_ARRAY_API"] = "1"
    with warnings.catch_warnings(), sklearn.config_context(array_api_dispatch=device.library is not None):
        warnings.simplefilter("ignore")  # warnings about max_iter
        model = ILSVMClassifier(K, multi_class="ovr", max_iter=30, random_state=0, n_jobs=-1)
        start = time.perf_counter()
        model.fit(X, y)
        device.wait()
        whole, steps = time.perf_counter() - start, float(model.trace_.elapsed[-1] - model.trace_.elapsed[0])
        show("fit", whole, f"{model.n_iter_} iterations, {model.n_components_} features")
        show("  descent over all samples", steps)
        right = float((model.predict(X) == y).sum()) / n
        show("predict", device.time(lambda: model.predict(X), 3), f"{right:.3f} right of the training rows")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--part", choices=["ilsvm", "host", "regularize", "tasks", "fit"], default=None)
    parser.add_argument("--dtype", choices=["float64", "float32"], default="float64")
    parser.add_argument("--threads", type=int, default=16)
    arguments = parser.parse_args()
    device = Device.find(arguments.smoke, arguments.dtype)
    # Enough samples, in the small form too, to estimate the curvature from a subsample.
    n, D, K, L = (20_000, 20, 8, 3) if arguments.smoke else (1_000_000, 1000, 50, 20)
    parts = [arguments.part] if arguments.part else ["ilsvm", "regularize", "tasks", "fit", "host"]
    threadpool_limits(1)  # BLAS on the CPU: blocks of samples have their own threads
    if "ilsvm" in parts:
        time_ilsvm(device, n, D, K, L, 3 if arguments.smoke else 30)
    if "regularize" in parts:
        time_regularize(device, 2000 if arguments.smoke else 10_000_000, 6 if arguments.smoke else 50)
    device.free()
    if "tasks" in parts:
        time_tasks(device, n, D, K, 4 if arguments.smoke else 100)
    if "fit" in parts:
        time_fit(device, n, D, K, L)
    if "host" in parts:
        time_host(n if arguments.smoke else n // 10, D, K, L, 2 if arguments.smoke else arguments.threads, 10)


if __name__ == "__main__":
    main()
