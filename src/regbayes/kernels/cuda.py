"""Compile and launch the kernels of `meanfield.cu` for PyTorch and CuPy.

The library of the arrays compiles the kernels with its copy of NVIDIA's run-time compiler and launches them on its
current stream, so no additional installation is needed. A kernel is compiled for each precision and number of topics
per lane, at most eighteen variants, and not for every number of topics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regbayes.kernels.arrays import DeviceArray
    from regbayes.kernels.arrays_topics import Documents

MOST_TOPICS = 1024
WIDE = (12, 16, 24, 32)  # topics per lane for more than 256 topics
WARP = 32
FORWARD_WARPS = {8: 1, 32: 2}  # warps per block by number of lanes, the fastest in benchmarks
REVERSE_WARPS = {8: 2, 32: 4}
OVERHEAD = 2560  # maximum bytes of shared memory per block in addition to the requested bytes
SUM_THREADS = 256  # threads per block that sums the entries of a word

Launch = Callable[[int, int, int, Sequence[Any]], None]


@dataclass(frozen=True)
class Shape:
    """Distribution of the topics of an entry over threads."""

    lanes: int
    per_lane: int

    @classmethod
    def of(cls, n_topics: int) -> Shape:
        """Return the shape for a number of topics, with fewer lanes for few topics so that warps share entries."""
        lanes = 8 if n_topics <= 64 else WARP
        per_lane = -(-n_topics // lanes)
        return cls(lanes, per_lane if per_lane <= 8 else next(width for width in WIDE if width >= per_lane))


def takes(array: DeviceArray, n_topics: int, n_sweeps: int = 1) -> bool:
    """Return whether the kernels support an array's device; a reverse stores two vectors for every sweep."""
    if not is_cuda(array) or not compiles(array) or n_topics > MOST_TOPICS:
        return False
    return _count_noted(n_sweeps, n_topics, array.dtype.itemsize, 1, _room(*find_place(array))) > 0


def _count_noted(n_sweeps: int, n_topics: int, itemsize: int, typical: int, room: int) -> int:
    """Return the number of entries per block with cached values."""
    left = room - OVERHEAD - _vector_bytes(n_sweeps, n_topics, itemsize)
    return max(min(typical, left // ((2 * n_sweeps + 1) * itemsize)), 0)


def _vector_bytes(n_sweeps: int, n_topics: int, itemsize: int) -> int:
    n_warps = REVERSE_WARPS[Shape.of(n_topics).lanes]
    return (2 * n_sweeps + 4 + n_warps) * n_topics * itemsize


def is_cuda(array: Any) -> bool:
    """Return whether an array is on a CUDA device."""
    return bool(getattr(array, "is_cuda", False)) or type(array).__module__.partition(".")[0] == "cupy"


def forward(
    documents: Documents, topics: DeviceArray, doc_prior: DeviceArray, n_sweeps: int, n_kept: int
) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
    """Return gammas, likelihoods and divergences for `regbayes.kernels.arrays_topics.infer_documents`."""
    n, K, itemsize = len(documents), topics.shape[1], topics.dtype.itemsize
    gammas = make_array((n, n_kept, K), topics)
    sums = make_double((2, n), topics)
    place, shape = find_place(topics), Shape.of(K)
    n_warps = FORWARD_WARPS[shape.lanes]
    launch = _compile("forward", shape, itemsize, place)
    arguments = [*documents.counts, topics, doc_prior, gammas, sums[0, :], sums[1, :], K, n_sweeps, n_kept]
    if n:
        launch(n, WARP * n_warps, (2 + n_warps) * K * itemsize, arguments)
    return gammas, sums[0, :], sums[1, :]


def reverse(
    documents: Documents,
    topics: DeviceArray,
    doc_prior: DeviceArray,
    by_document: tuple[DeviceArray, DeviceArray, DeviceArray],
    table: DeviceArray,
) -> None:
    """Add derivatives by the topics to a table, for `regbayes.kernels.arrays_topics.reverse_documents`.

    ``by_document`` is gammas, grad and weights. If the documents have an order, entries are written sorted by word and
    then summed, so that the result is deterministic.
    """
    if len(documents) == 0:
        return
    K, itemsize = topics.shape[1], topics.dtype.itemsize
    n_sweeps = by_document[0].shape[1]
    place, shape, order = find_place(topics), Shape.of(K), documents.order
    noted = _count_noted(n_sweeps, K, itemsize, documents.typical, _room(*place))
    n_threads = WARP * REVERSE_WARPS[shape.lanes]
    n_bytes = _vector_bytes(n_sweeps, K, itemsize) + (2 * n_sweeps + 1) * noted * itemsize
    launch = _compile("reverse", shape, itemsize, place)
    words, numbers, starts = documents.counts
    fixed = [*by_document, table]
    if order is None:
        rest = [words, topics, 0, K, n_sweeps, noted]  # words and topics are placeholders here
        arguments = [words, numbers, starts, topics, doc_prior, *fixed, *rest]
        launch(len(documents), n_threads, n_bytes, arguments)
        return
    add = _compile("add_rows", shape, itemsize, place)
    sizes = [int(documents.starts[piece.stop] - documents.starts[piece.start]) for piece in order.documents]
    by_entry = make_array((max(sizes, default=0), K), topics)
    for piece, word_starts in zip(order.documents, order.starts, strict=True):
        own = [array[piece.start : piece.stop] for array in by_document]
        begins = starts[piece.start : piece.stop + 1]
        rest = [order.places, by_entry, 1, K, n_sweeps, noted]
        arguments = [words, numbers, begins, topics, doc_prior, *own, table, *rest]
        launch(piece.stop - piece.start, n_threads, n_bytes, arguments)
        add(topics.shape[0], SUM_THREADS, 0, [by_entry, word_starts, table, K])


# --- arrays, compilation and launch by the library of the arrays


def find_place(array: DeviceArray) -> tuple[str, int]:
    """Return an array's library and device number."""
    if hasattr(array, "is_cuda"):
        return "torch", int(array.device.index or 0)
    return "cupy", int(array.device.id)


def make_array(shape: tuple[int, ...], like: DeviceArray) -> DeviceArray:
    """Return an uninitialized array with the dtype and device of another."""
    if hasattr(like, "is_cuda"):
        return like.new_empty(shape)
    import cupy

    with like.device:
        return cupy.empty(shape, dtype=like.dtype)


def make_double(shape: tuple[int, ...], like: DeviceArray) -> DeviceArray:
    """Return an uninitialized array in double precision."""
    if hasattr(like, "is_cuda"):
        import torch

        return like.new_empty(shape, dtype=torch.float64)
    import cupy

    with like.device:
        return cupy.empty(shape, dtype="float64")


def compiles(array: DeviceArray) -> bool:
    """Return whether an array's library has NVIDIA's compiler: PyTorch 2.8 or later, and CuPy for CUDA."""
    return _compiles(find_place(array)[0])


@cache
def _compiles(library: str) -> bool:
    if library == "torch":
        import torch

        return torch.version.hip is None and hasattr(torch.cuda, "_compile_kernel")
    import cupy

    return not cupy.cuda.runtime.is_hip


@cache
def _room(library: str, device: int) -> int:
    """Return the maximum shared memory of a block in bytes."""
    if library == "torch":
        import torch

        return int(torch.cuda.get_device_properties(device).shared_memory_per_block_optin)
    import cupy

    return int(cupy.cuda.Device(device).attributes["MaxSharedMemoryPerBlockOptin"])


@cache
def _compile(name: str, shape: Shape, itemsize: int, place: tuple[str, int]) -> Launch:
    """Compile a kernel for a precision and a device; the launcher takes blocks, threads, bytes and arguments."""
    library, device = place
    real = {4: "float", 8: "double"}[itemsize]
    defines = f"#define REAL {real}\n#define LANES {shape.lanes}\n#define PER_LANE {shape.per_lane}\n"
    source = defines + (Path(__file__).parent / "meanfield.cu").read_text(encoding="utf-8")
    return (_compile_for_torch if library == "torch" else _compile_for_cupy)(source, name, device)


def _compile_for_torch(source: str, name: str, device: int) -> Launch:
    import torch

    with torch.cuda.device(device):
        kernel = torch.cuda._compile_kernel(source, name)

    def launch(n_blocks: int, n_threads: int, n_bytes: int, arguments: Sequence[Any]) -> None:
        with torch.cuda.device(device):
            kernel.set_shared_memory_config(n_bytes)
            kernel((n_blocks, 1, 1), (n_threads, 1, 1), list(arguments), n_bytes)

    return launch


def _compile_for_cupy(source: str, name: str, device: int) -> Launch:
    import cupy
    import numpy as np

    with cupy.cuda.Device(device):
        kernel = cupy.RawKernel(source, name, options=("--std=c++17",))

    def launch(n_blocks: int, n_threads: int, n_bytes: int, arguments: Sequence[Any]) -> None:
        with cupy.cuda.Device(device):
            kernel.max_dynamic_shared_size_bytes = n_bytes
            narrow = tuple(np.int32(value) if type(value) is int else value for value in arguments)
            kernel((n_blocks,), (n_threads,), narrow, shared_mem=n_bytes)

    return launch
