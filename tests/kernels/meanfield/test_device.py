"""Mean field of documents on a device: CUDA kernels, or compiled loops for other arrays, match the reference.

The CUDA source is also compiled for a CPU (`cuda_on_cpu.h`) to test it without a device.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from scipy.special import digamma, gammaln

from reference.meanfield import reference_meanfield_sweeps, reference_reverse_sweeps
from regbayes.kernels import arrays_topics, cuda
from regbayes.kernels.arrays_topics import hold_documents, infer_documents, prior_divergence, reverse_documents
from regbayes.kernels.meanfield import Prior, WordCounts
from topic_array_tools import LIBRARIES, as_documents, to_numpy
from topic_array_tools import place as put

TOLERANCE = {"float64": 1e-12, "float32": 1e-5}


class Case:
    """Documents, some of them empty or long, with the results of the reference."""

    def __init__(self, n_topics=5, n_documents=30, n_words=40, n_sweeps=4, dtype="float64", seed=0):
        rng = np.random.default_rng(seed)
        sizes = rng.integers(1, 25, n_documents)
        sizes[3], sizes[-1] = 0, n_words
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        words = np.concatenate([rng.permutation(n_words)[:size] for size in sizes]).astype(np.int32)
        numbers = rng.uniform(0.5, 4.0, len(words)).astype(dtype)
        self.counts = WordCounts(words, numbers, starts)
        self.n_words, self.n_sweeps, self.dtype = n_words, n_sweeps, dtype
        topics = rng.dirichlet(np.full(n_words, 0.5), n_topics).T + 1e-6
        self.topics = np.ascontiguousarray(topics.astype(dtype))
        self.doc_prior = rng.uniform(0.1, 1.5, n_topics).astype(dtype).astype(np.float64)
        self.grad = rng.standard_normal((n_documents, n_topics)).astype(dtype)
        self.weights = rng.uniform(0.2, 2.0, n_documents).astype(dtype)
        # The reference uses double precision for any storage dtype.
        doubles = WordCounts(words, numbers.astype(float), starts)
        prior = Prior(self.topics.astype(float), self.doc_prior)
        lengths = np.array([doubles.numbers[a:b].sum() for a, b in pairwise(starts)])
        gamma, logs = self.doc_prior + lengths[:, None] / n_topics, np.empty(n_documents)
        reference_meanfield_sweeps(doubles, prior, n_sweeps, -1.0, gamma, logs=logs)
        total, tokens = gamma.sum(axis=1), gamma - self.doc_prior
        self.gamma, self.likelihoods = gamma, logs - lengths * digamma(total)
        self.divergences = gammaln(total) - gammaln(gamma).sum(axis=1) + (tokens * digamma(gamma)).sum(axis=1)
        self.divergences -= tokens.sum(axis=1) * digamma(total)
        self.divergences += gammaln(self.doc_prior).sum() - gammaln(self.doc_prior.sum())
        self.table = reference_reverse_sweeps(
            doubles, prior, n_sweeps, gamma, self.grad.astype(float), self.weights.astype(float)
        )

    def check(self, gamma, likelihoods, divergences, table, rtol=None):
        rtol = TOLERANCE[self.dtype] if rtol is None else rtol
        np.testing.assert_allclose(gamma, self.gamma, rtol=rtol)
        np.testing.assert_allclose(likelihoods, self.likelihoods, rtol=rtol, atol=rtol)
        np.testing.assert_allclose(divergences, self.divergences, rtol=rtol, atol=100 * rtol)
        np.testing.assert_allclose(table, self.table, rtol=rtol, atol=rtol * np.abs(self.table).max())


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("n_topics", "n_sweeps"), [(1, 2), (5, 4), (40, 5), (70, 1), (200, 3), (300, 2)])
@pytest.mark.parametrize("in_order", [False, True])
def test_device_documents_match_the_reference(library, dtype, n_topics, n_sweeps, in_order):
    case = Case(n_topics, n_sweeps=n_sweeps, dtype=dtype)
    documents = hold_documents(as_documents(case.counts, library), case.n_words, n_topics, in_order)
    topics = put(case.topics, library)
    found = infer_documents(documents, topics, case.doc_prior, n_sweeps, keep_all=True)
    rest = (put(case.grad, library), put(case.weights, library))
    table = reverse_documents(documents, topics, case.doc_prior, n_sweeps, found.gammas, *rest)
    assert type(table) is type(topics)
    assert str(found.gamma.dtype).endswith(dtype)
    on_cuda = cuda.takes(topics, n_topics, n_sweeps)  # others have the single precision of the compiled loops
    case.check(*map(to_numpy, (found.gamma, *found[1:], table)), TOLERANCE[dtype] if on_cuda else 1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("library", ["torch:cuda", "cupy"])
def test_pieces_of_a_corpus_match_the_whole(library, monkeypatch):
    case = Case(6)
    monkeypatch.setattr(arrays_topics, "SORTED_ROOM", 6 * 70)
    documents = hold_documents(as_documents(case.counts, library), case.n_words, 6, in_order=True)
    topics, rest = put(case.topics, library), (put(case.grad, library), put(case.weights, library))
    found = infer_documents(documents, topics, case.doc_prior, 4, keep_all=True)
    table = reverse_documents(documents, topics, case.doc_prior, 4, found.gammas, *rest)
    case.check(*map(to_numpy, (found.gamma, *found[1:], table)))


# --- the CUDA source, compiled for a CPU


def compile_for_cpu(folder, real, shape):
    tests, kernels = Path(__file__).parent, Path(cuda.__file__).parent
    library = folder / f"{real}_{shape.lanes}_{shape.per_lane}.so"
    defines = [f"-DREAL={real}", f"-DLANES={shape.lanes}", f"-DPER_LANE={shape.per_lane}"]
    command = ["g++", "-O1", "-std=c++17", "-shared", "-fPIC", "-w", *defines, f"-I{kernels}", "-x", "c++"]
    subprocess.run([*command, str(tests / "cuda_on_cpu.h"), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


def call(function, *arguments):
    function(*(a.ctypes.data_as(ctypes.c_void_p) if isinstance(a, np.ndarray) else a for a in arguments))


def sort_entries(counts, n_words):
    order = np.argsort(counts.words, kind="stable")
    places = np.empty_like(counts.words)
    places[order] = np.arange(len(order))
    return places, np.searchsorted(counts.words[order], np.arange(n_words + 1)).astype(np.int32)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize(
    ("dtype", "n_topics", "n_sweeps"), [("float64", 40, 5), ("float32", 13, 3), ("float64", 70, 1), ("float64", 300, 2)]
)
def test_cuda_source_on_cpu_matches_the_reference(tmp_path, dtype, n_topics, n_sweeps):
    case, shape = Case(n_topics, n_documents=8, n_sweeps=n_sweeps, dtype=dtype), cuda.Shape.of(n_topics)
    library = compile_for_cpu(tmp_path, {"float64": "double", "float32": "float"}[dtype], shape)
    n, K, prior = len(case.gamma), n_topics, case.doc_prior.astype(dtype)
    places, word_starts = sort_entries(case.counts, case.n_words)
    for noted, n_warps in ((40, 1), (9, 2), (0, 4)):  # caches all, some or no entries
        gammas, likelihoods, divergences = np.empty((n, n_sweeps, K), dtype), np.empty(n), np.empty(n)
        gamma = np.empty((n, K), dtype)
        fixed = (n, 32 * n_warps, *case.counts, case.topics, prior)
        call(library.run_forward, *fixed, gamma, likelihoods, divergences, K, n_sweeps, 1)
        call(library.run_forward, *fixed, gammas, likelihoods, divergences, K, n_sweeps, n_sweeps)
        np.testing.assert_array_equal(gamma, gammas[:, -1])
        table, in_order = np.zeros((case.n_words, K)), np.zeros((case.n_words, K))
        nothing, by_entry = np.empty(0, np.int32), np.full((len(places), K), np.nan, dtype)
        given = (*fixed, gammas, case.grad, case.weights)
        call(library.run_reverse, *given, table, nothing, by_entry, 0, K, n_sweeps, noted)
        call(library.run_reverse, *given, table, places, by_entry, 1, K, n_sweeps, noted)
        call(library.run_add_rows, case.n_words, 64, by_entry, word_starts, in_order, K)
        case.check(gamma, likelihoods, divergences + prior_divergence(case.doc_prior), table)
        case.check(gamma, likelihoods, divergences + prior_divergence(case.doc_prior), in_order)


def test_shapes_cover_the_topics_with_few_variants():
    shapes = [cuda.Shape.of(K) for K in range(1, cuda.MOST_TOPICS + 1)]
    for K, shape in enumerate(shapes, 1):
        assert shape.lanes * shape.per_lane >= K
        if shape.per_lane <= 8:  # required by the kernels
            assert shape.lanes * (shape.per_lane - 1) < K
    assert len(set(shapes)) == 18


def test_cached_entries_fit_into_shared_memory():
    room = 232448
    assert cuda._count_noted(5, 40, 8, 164, room) == 164
    assert cuda._count_noted(5, 200, 8, 10_000, room) > 1000
    for n_sweeps, K in ((1, 1), (5, 200), (20, 200), (5, 1024)):
        noted = cuda._count_noted(n_sweeps, K, 8, 10**6, room)
        assert noted > 0
        assert cuda._vector_bytes(n_sweeps, K, 8) + (2 * n_sweeps + 1) * 8 * noted <= room - cuda.OVERHEAD
    assert cuda._count_noted(50, 1024, 8, 100, room) == 0
