"""Kernels of `rows.cu` on a CUDA device; `arrays_features.py` and `arrays_losses.py` say the same in operations."""

from __future__ import annotations

from typing import Any

import numpy as np

from regbayes._types import Floats
from regbayes.kernels import cuda

WIDEST, STEP = 60, 10  # features that a thread keeps in registers, at most; by how many the kernels differ
ROW_THREADS, BOX_THREADS, BOX_TURNS = 128, 256, 16
ROOM = 47 << 10  # bytes of shared memory that a block has without being asked
LABELS, SIGNS, BYTES, TUBE, BENT, ALL_BENT = range(6)  # targets of boxes


def takes(first: Any, *others: Any, whole: Any = None, n_classes: int = 0) -> bool:
    """Whether the kernels take such arrays, None for those that are not there: the one place where that is decided.

    Reals of one precision, or whole numbers, on a CUDA device, next to each other in memory along the last axis; the
    first array is not empty and has no gaps between rows either. Classes of a few rows must fit into shared memory.
    """
    if not cuda.is_cuda(first) or not cuda.compiles(first) or not cuda.is_contiguous(first) or 0 in first.shape:
        return False
    is_real = str(first.dtype).rpartition(".")[2] in ("float32", "float64")
    is_like = all(other is None or other.dtype == first.dtype for other in others)
    is_near = all(other is None or cuda.find_strides(other)[-1] <= 1 for other in (*others, whole))
    return is_real and is_like and is_near and n_classes * 33 * first.dtype.itemsize <= ROOM


def find_blocks(n_features: int) -> list[slice]:
    """Return the features in blocks that the kernels take, as many in each."""
    size = -(-n_features // -(-n_features // WIDEST))
    return [slice(first, min(first + size, n_features)) for first in range(0, n_features, size)]


def lay_out(coupling: Floats, constant: Floats) -> Floats:
    """Return what features tell those after them, and a constant (K,) for each, as the kernels read it."""
    K, width = len(constant), _width(len(constant))
    table, sent = np.zeros((width + 1, width)), np.zeros((K, K + width))
    sent[:, :K], table[-1, :K] = -coupling.T, constant
    behind_diagonal = (K, width), (sent.strides[0] + 8, 8)  # of row k
    table[:K] = np.lib.stride_tricks.as_strided(sent[:, 1:], *behind_diagonal)
    return table


def sweep(products: Any, table: Any, weights: Any, psi: Any) -> Any:
    """Write the features of a block, (K, n); return the sums of their products with logits and of entropies, (2,)."""
    (K, n), n_blocks = products.shape, -(-products.shape[1] // ROW_THREADS)
    sums = cuda.make_double((2, n_blocks), products)
    numbers = [n, K, n_blocks, int(weights is not None)]
    _launch("sweep", _width(K), n_blocks, ROW_THREADS, 0, [products, table, weights, psi, sums, *numbers])
    return sums.sum(-1)


def reverse(gradient: Any, psi: Any, table: Any, weights: Any, weight: float, left: Any) -> None:
    """Write the gradient by theta of a block, less the features times their weight, (K, n)."""
    (K, n), n_blocks = psi.shape, -(-psi.shape[1] // ROW_THREADS)
    numbers = [float(weight), n, K, int(gradient is not None), int(weights is not None)]
    _launch("reverse", _width(K), n_blocks, ROW_THREADS, 0, [left, gradient, psi, table, weights, *numbers])


def evaluate_boxes(scores: Any, constant: Any, C: Any, targets: Any, margin: float, kind: int) -> Any:
    """Write multipliers, or their changes, over scores; return losses and sums of what is written, (2, outputs)."""
    n_outputs, n = scores.shape
    n_parts = -(-n // (BOX_THREADS * BOX_TURNS))
    sums, steps = cuda.make_double((2, n_outputs, n_parts), scores), (0, *cuda.find_strides(C))[-2:]
    distance = n if targets is None else cuda.find_strides(targets)[0]
    numbers = [float(margin), n, n_outputs, n_parts, *steps, distance, kind, int(constant is not None)]
    _launch("boxes", STEP, n_outputs * n_parts, BOX_THREADS, 0, [scores, constant, C, targets, sums, *numbers])
    return sums.sum(-1)


def evaluate_classes(scores: Any, constant: Any, C: Any, labels: Any, beside: Any, smoothing: float, bent: bool) -> Any:
    """Write multipliers, or their changes, over scores; return loss, excess, bias and sums, (3 + classes,)."""
    (n_classes, n), itemsize = scores.shape, scores.dtype.itemsize
    n_threads = next(size for size in (128, 64, 32) if n_classes * (size + 1) * itemsize <= ROOM)
    n_blocks, n_bytes = -(-n // n_threads), n_classes * (n_threads + 1) * itemsize
    sums, flags = cuda.make_double((3 + n_classes, n_blocks), scores), [constant is not None, beside is not None, bent]
    distance = n if beside is None else cuda.find_strides(beside)[0]
    numbers = [float(smoothing), n, n_classes, n_blocks, distance, *map(int, flags)]
    _launch("classes", STEP, n_blocks, n_threads, n_bytes, [scores, constant, C, labels, beside, sums, *numbers])
    return sums.sum(-1)


def _width(n_features: int) -> int:
    return -(-n_features // STEP) * STEP


def _launch(name: str, width: int, n_blocks: int, n_threads: int, n_bytes: int, arguments: list[Any]) -> None:
    """Launch a kernel on arrays, the first of which is there for those that are not: they are not read."""
    like = arguments[0]
    launch = cuda.compile_kernel("rows.cu", name, like.dtype.itemsize, (("WIDTH", width),), *cuda.find_place(like))
    launch(n_blocks, n_threads, n_bytes, [like if value is None else value for value in arguments])
