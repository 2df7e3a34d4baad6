"""The CUDA kernels of rows: their source compiled for a processor (`cuda_on_cpu.h`), held to the NumPy law.

`arrays_features` and `arrays_losses` are called with arrays of PyTorch on the processor, and told that they are on a
device: what they would launch there runs here. On a device `test_arrays.py` and `test_device_features.py` hold the same
functions to the law.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from reference.sweeps import reference_reverse_features, reference_sweep_features

from regbayes.kernels import arrays_features, cuda, cuda_rows
from regbayes.kernels.arrays_losses import ClassRows, HingeRows, TubeRows
from regbayes.margins.head import Columns, MarginHead
from regbayes.margins.newton import SimplexBlock
from regbayes.margins.targets import Classes, zero_one_cost

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
TOLERANCE = {"float64": 1e-12, "float32": 1e-5}


@dataclass
class Kernels:
    """Arrays as the kernels take them, and how often kernels were launched."""

    dtype: str
    launched: int = 0

    def __call__(self, values):
        values = np.ascontiguousarray(values)
        return torch.asarray(values.astype(self.dtype) if values.dtype == np.float64 else values)

    @property
    def tol(self) -> float:
        return TOLERANCE[self.dtype]

    def close(self, found, expected, scale: float = 1.0) -> None:
        found, expected = np.asarray(found, dtype=np.float64), np.asarray(expected, dtype=np.float64)
        assert found.shape == expected.shape
        largest = np.abs(expected).max(initial=0.0)
        assert np.abs(found - expected).max(initial=0.0) <= scale * self.tol * max(1.0, largest)


@pytest.fixture(params=["float64", "float32"])
def kernels(request, tmp_path_factory, monkeypatch):
    """Pretend that arrays of PyTorch on the processor are on a device, and run kernels there."""
    folder = tmp_path_factory.getbasetemp() / "rows"
    folder.mkdir(exist_ok=True)
    found = Kernels(request.param)

    def compile_kernel(file, name, itemsize, sizes, library, device):
        assert file == "rows.cu"
        real, ((_, width),) = {4: "float", 8: "double"}[itemsize], sizes
        run = getattr(compile_for_cpu(folder, real, width), f"run_{name}")

        def launch(n_blocks, n_threads, n_bytes, arguments):
            assert n_bytes <= cuda_rows.ROOM
            found.launched += 1
            run(n_blocks, n_threads, *(as_argument(value) for value in arguments))

        return launch

    monkeypatch.setattr(cuda, "compile_kernel", compile_kernel)
    monkeypatch.setattr(cuda, "is_cuda", lambda array: isinstance(array, torch.Tensor))
    monkeypatch.setattr(cuda, "compiles", lambda _: True)
    return found


@cache
def compile_for_cpu(folder, real, width):
    tests, library = Path(__file__).parent, folder / f"{real}_{width}.so"
    command = ["g++", "-O1", "-std=c++17", "-shared", "-fPIC", "-w", f"-DREAL={real}", f"-DWIDTH={width}"]
    sources = [f"-I{Path(cuda.__file__).parent}", "-x", "c++", str(tests / "cuda_on_cpu.h")]
    subprocess.run([*command, *sources, "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


def as_argument(value):
    if isinstance(value, torch.Tensor):
        return ctypes.c_void_p(value.data_ptr())
    return ctypes.c_double(value) if isinstance(value, float) else value


# --- features


@pytest.mark.parametrize(
    ("K", "n", "n_sweeps", "weighted"),
    [
        (1, 5, 1, True),
        (2, 128, 2, False),
        (31, 200, 1, True),
        (33, 130, 3, True),
        (50, 600, 1, False),
        (61, 40, 2, True),
        (200, 70, 1, True),
    ],
)
def test_sweeps_their_sums_and_their_reverse_follow_the_law(kernels, K, n, n_sweeps, weighted):
    rng = np.random.default_rng(K)
    theta, grad = rng.normal(size=(2, n, K)) * 2
    constant, weight = rng.normal(size=K), 0.7
    coupling, start = rng.normal(size=(K, K)) / np.sqrt(K), rng.random((1, K))
    counts = np.where(rng.random(n) < 0.2, 0.0, rng.random(n)) if weighted else np.ones(n)
    psi, before, by_theta = np.empty_like(theta), np.broadcast_to(start, theta.shape).copy(), np.empty_like(theta)
    reference_sweep_features(theta, coupling, start, n_sweeps, psi)
    if n_sweeps > 1:
        reference_sweep_features(theta, coupling, start, n_sweeps - 1, before)
    whole = grad + weight * counts[:, None] * ((psi - before) @ np.tril(coupling, -1))
    expected = reference_reverse_features(whole, psi, theta, coupling, start, n_sweeps, by_theta)
    left, weights = by_theta - weight * counts[:, None] * psi, kernels(counts) if weighted else None

    products = kernels((theta - constant).T)
    swept = arrays_features.sweep_features(products, constant, coupling, start[0], n_sweeps, weights)
    assert kernels.launched == n_sweeps * -(-K // cuda_rows.WIDEST)
    assert len(swept.history) == n_sweeps
    kernels.close(swept.history[-1], psi.T)
    sums = arrays_features.sum_features(swept, coupling, start[0], weights)
    kernels.close(sums.counts, counts @ psi)
    kernels.close(sums.gram, psi.T @ (counts[:, None] * psi))
    kernels.close(sums.by_theta, np.sum(counts[:, None] * psi * theta), 10)
    entropy = -np.sum(counts[:, None] * (psi * np.log(psi) + (1 - psi) * np.log(1 - psi)))
    kernels.close(sums.entropy, entropy, 10)

    launched, moments = kernels.launched, (sums.counts, sums.gram)
    given = (swept.history, coupling, start[0], weight, weights, moments)
    found, by_coupling, left_sum = arrays_features.reverse_features(kernels(grad.T), *given)
    assert kernels.launched > launched
    kernels.close(found, left.T)
    kernels.close(by_coupling, expected.coupling, 10)
    kernels.close(left_sum.numpy() + weight * sums.counts, expected.theta_sum, 10)
    # Without a gradient the rows' own terms are left; they are linear in it.
    mine, by_coupling, _ = arrays_features.reverse_features(None, *given)
    nothing = np.zeros_like(grad)
    expected = reference_reverse_features(whole - grad, psi, theta, coupling, start, n_sweeps, nothing)
    kernels.close(mine, (nothing - weight * counts[:, None] * psi).T)
    kernels.close(by_coupling, expected.coupling, 10)
    assert np.array_equal(arrays_features.reverse_features(None, *given)[0], mine)  # the same bits


def test_not_a_number_stays_and_extreme_logits_have_no_entropy(kernels):
    none = np.zeros((1, 1))
    swept = arrays_features.sweep_features(kernels(np.array([[-2000.0, 2000.0, 0.0]])), none[0], none, none[0], 1)
    assert swept.history[0].tolist() == [[0.0, 1.0, 0.5]]
    assert arrays_features.sum_features(swept, none, none[0], None).entropy == pytest.approx(
        np.log(2.0), rel=kernels.tol
    )
    swept = arrays_features.sweep_features(kernels(np.array([[np.nan, 1.0]])), none[0], none, none[0], 1)
    assert torch.isnan(swept.history[0][0, 0])
    assert np.isnan(arrays_features.sum_features(swept, none, none[0], None).entropy)


def test_blocks_of_features_are_whole_and_fit_the_registers():
    for K in range(1, 400):
        blocks = cuda_rows.find_blocks(K)
        assert [k for block in blocks for k in range(K)[block]] == list(range(K))
        assert max(block.stop - block.start for block in blocks) <= cuda_rows.WIDEST


# --- losses


def by_operations(rows, scores, direction, constant):
    """Look at rows and bend by array operations alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda, "is_cuda", lambda _: False)
        seen = rows.evaluate(scores.clone(), constant)
        return seen, rows.multiply_curvature(direction.clone(), seen.multipliers, constant)


def check_look(kernels, rows, scores, direction, constant):
    expected, wanted = by_operations(rows, scores, direction, constant)
    launched, small = kernels.launched, getattr(rows, "smoothing", 1.0) if kernels.dtype == "float32" else 1.0
    found = rows.evaluate(scores.clone(), constant)
    for one, other in zip(found[:3], expected[:3], strict=True):  # excess and bias are differences of losses
        kernels.close(one, other, 10 / small * max(1.0, float(expected.loss)))
    for one, other in zip(found[3:], expected[3:], strict=True):
        kernels.close(one, other, 10 / small)
    bent = rows.multiply_curvature(direction.clone(), expected.multipliers, constant)
    for one, other in zip(bent, wanted, strict=True):
        kernels.close(one, other, 10)
    assert kernels.launched == launched + 2
    assert found.totals.dtype == torch.float64
    return found


@pytest.mark.parametrize(
    ("shape", "n_outputs", "n"), [("rows", 20, 33), ("one", 1, 5), ("outputs", 3, 4097), ("all", 5, 256)]
)
@pytest.mark.parametrize("kind", ["labels", "signs", "bytes", "tube", "numbers"])
def test_boxes_are_those_of_array_operations(kernels, kind, shape, n_outputs, n):
    rng = np.random.default_rng(n)
    sizes = {"rows": (n,), "one": (1, 1), "outputs": (n_outputs, 1), "all": (n_outputs, n)}[shape]
    prices = rng.random(sizes) * (rng.random(sizes) < 0.8)
    values, scores, direction = kernels(rng.normal(size=(3, n_outputs, n)))
    signs, labels = rng.integers(-1, 2, size=(n_outputs, n)), kernels(rng.integers(n_outputs, size=n))
    C = kernels(prices)
    if kind == "signs" and shape == "all":  # what is missing has no price
        C = kernels(prices * np.abs(signs))
    rows = {
        "labels": HingeRows(C, labels=labels),
        "signs": HingeRows(C, signs=kernels(signs.astype(np.float64)), margin=0.9),
        "bytes": HingeRows(C, signs=kernels(signs.astype(np.int8))),
        "tube": TubeRows(C, values, 0.3),
        "numbers": TubeRows(C, values, 0.0),
    }[kind]
    check_look(kernels, rows, scores, direction, kernels(rng.normal(size=n_outputs)) if n % 2 else None)


@pytest.mark.parametrize(("n_classes", "n"), [(1, 7), (2, 128), (5, 200), (20, 129), (40, 64), (100, 40)])
@pytest.mark.parametrize("smoothing", [1.0, 0.1, 0.001])
def test_smoothed_classes_are_those_of_sorting(kernels, n_classes, n, smoothing):
    rng = np.random.default_rng(n_classes)
    labels, prices = rng.integers(n_classes, size=n), rng.random(n) * (rng.random(n) < 0.8)
    scores, direction = rng.normal(size=(2, n_classes, n))
    scores[:, -1] = -9.0
    scores[labels[-1], -1] = 9.0  # a row that is right
    for cost in (None, rng.integers(1, 4, size=(n_classes, n)).astype(np.float64)):
        given = (kernels(prices), kernels(labels), None if cost is None else kernels(cost), smoothing)
        rows, constant = ClassRows(*given), None if cost is None else kernels(rng.normal(size=n_classes))
        found = check_look(kernels, rows, kernels(scores), kernels(direction), constant)
        assert found.multipliers.sum(dim=0).abs().max() <= 100 * kernels.tol / smoothing
        if cost is None and n_classes > 1:
            head = MarginHead(Classes(labels, zero_one_cost(n_classes), prices), squared=True)
            columns = Columns(scores.T.copy(), np.zeros(n_classes), None, False, 1.0)
            law = SimplexBlock(columns, head.form, labels, smoothing).sums(np.eye(n_classes))
            kernels.close(found.multipliers @ kernels(scores.T), law.pulled, 10 / smoothing)
            for name in ("loss", "excess", "bias"):
                kernels.close(getattr(found, name), getattr(law, name), 10 / smoothing)


def test_parts_of_targets_are_looked_at_in_place(kernels):
    rng = np.random.default_rng(0)
    signs, C = kernels(rng.integers(-1, 2, size=(4, 90)).astype(np.int8)), kernels(rng.random((4, 90)))
    cost, labels = kernels(rng.random((4, 90)) + 0.5), kernels(rng.integers(4, size=90))
    scores, direction = kernels(rng.normal(size=(2, 4, 50)))
    some = slice(17, 67)
    check_look(kernels, HingeRows(C[:, some], signs=signs[:, some]), scores, direction, None)
    check_look(kernels, TubeRows(C[:, some], cost[:, some], 0.1), scores, direction, None)
    check_look(kernels, ClassRows(C[0, some], labels[some], cost[:, some], 0.1), scores, direction, None)


def test_losses_of_what_is_not_a_number_are_none(kernels):
    scores, labels = kernels(np.array([[0.0, np.nan], [1.0, 2.0], [0.5, 0.1]])), kernels(np.array([1, 1]))
    for rows in (HingeRows(kernels(np.ones(2)), labels=labels), ClassRows(kernels(np.ones(2)), labels, None, 0.1)):
        assert torch.isnan(rows.evaluate(scores.clone()).loss)


def test_arrays_that_the_kernels_do_not_take_are_left_to_operations(kernels):
    whole = kernels(np.zeros((4, 10)))
    assert cuda_rows.takes(whole, None, whole[:, 2:5])
    assert not cuda_rows.takes(whole[:, 2:5])
    assert not cuda_rows.takes(whole[:, :0])
    assert not cuda_rows.takes(whole, whole[:, ::2])
    assert not cuda_rows.takes(whole, whole.to(torch.int8))
    assert not cuda_rows.takes(whole.to(torch.int8))
    assert not cuda_rows.takes(whole, n_classes=2000)
    check = ClassRows(kernels(np.ones(3)), kernels(np.array([0, 1, 1999])), None, 0.1)
    check.evaluate(kernels(np.zeros((2000, 3))))
    HingeRows(kernels(np.ones(3)), labels=kernels(np.arange(3))).evaluate(whole[:, 2:5])
    signs = kernels(np.tile([[1], [-1], [0]], (1, 4)).astype(np.int8)).T
    rows = HingeRows(kernels(np.ones(3)), signs=signs)  # next to each other along the first axis
    expected, _ = by_operations(rows, whole[:, :3], whole[:, :3], None)
    kernels.close(rows.evaluate(kernels(np.zeros((4, 3)))).loss, expected.loss)
    assert kernels.launched == 0
