"""Mean field of topic models for documents of any array library.

`infer_documents` and `reverse_documents` call the compiled loops for NumPy arrays in single precision, and
`meanfield.cu` on a CUDA device (`cuda`). Array operations are used for other libraries, for NumPy in double precision,
and on a device for more topics than the kernels support. They use single precision only for arrays by document, and
double precision for sums over documents.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln

from regbayes._types import Floats, Indices, Singles
from regbayes.kernels.arrays import ROOM, DeviceArray, namespace_of, to_device, to_host
from regbayes.kernels.meanfield import (
    TINY,
    Prior,
    WordCounts,
    cuda,
    even_gamma,
    lengths_of,
    log_likelihoods,
    meanfield_sweeps,
    proportion_divergences,
    reverse_sweeps,
)

SORTED_ROOM = 1 << 27  # maximum entries times topics of a piece with sorted sums
MOST_TYPICAL = 0.95  # quantile of the entries per document that counts as typical
SHIFT = 10  # argument from which digamma and related functions use series


class SortedEntries(NamedTuple):
    """Positions of entries sorted by word, for documents in pieces."""

    documents: list[slice]  # the pieces
    places: DeviceArray  # (entries,): positions within the piece
    starts: list[DeviceArray]  # (V + 1,) for each piece: first position of each word


@dataclass(frozen=True)
class Documents:
    """Documents in the form that kernels take."""

    counts: WordCounts
    order: SortedEntries | None = None  # None: sums over documents on a device may differ by rounding

    def __len__(self) -> int:
        return len(self.starts) - 1

    @cached_property
    def starts(self) -> Indices:
        """First entry of each document, in host memory, (N + 1,)."""
        return to_host(self.counts.starts)

    @cached_property
    def typical(self) -> int:
        """Maximum number of entries of most documents."""
        return int(np.quantile(np.diff(self.starts), MOST_TYPICAL)) if len(self) else 0

    @cached_property
    def lengths(self) -> Floats:
        """Number of words of each document, in host memory, (N,)."""
        return lengths_of(self.counts)

    @property
    def has_loops(self) -> bool:
        """Whether the compiled loops take the documents."""
        return isinstance(self.counts.numbers, np.ndarray) and self.counts.numbers.dtype == np.float32


def hold_documents(counts: WordCounts, n_words: int, n_topics: int, in_order: bool = False) -> Documents:
    """Prepare documents for inference.

    Parameters
    ----------
    counts : WordCounts
        Words are 32-bit, starts 64-bit, and numbers have the working precision.
    n_words : int
        The size of the vocabulary.
    n_topics : int
    in_order : bool, default=False
        Whether sums over documents are always taken in the same order.
    """
    held = Documents(counts)
    if not (in_order and cuda.takes(counts.numbers, n_topics)):
        return held
    xp, starts = namespace_of(counts.words), held.starts
    pieces, places, word_starts = list(_pieces(starts, SORTED_ROOM // n_topics)), [], []
    edges = xp.arange(n_words + 1, dtype=xp.int32, device=counts.words.device)
    for piece in pieces:
        words = counts.words[int(starts[piece.start]) : int(starts[piece.stop])]
        order = xp.argsort(words, stable=True)
        place = xp.empty_like(words)
        place[order] = xp.arange(words.shape[0], dtype=xp.int32, device=words.device)
        places.append(place)
        word_starts.append(xp.astype(xp.searchsorted(xp.take(words, order), edges), xp.int32))
    first = xp.zeros(int(starts[0]), dtype=xp.int32, device=counts.words.device)  # entries of preceding documents
    return Documents(counts, SortedEntries(pieces, xp.concat([first, *places]), word_starts))


def _pieces(starts: Indices, most: int) -> Iterator[slice]:
    """Cut documents into pieces of at most ``most`` entries, or of a single document."""
    first, n = 0, len(starts) - 1
    while first < n:
        last = int(np.searchsorted(starts, starts[first] + most, side="right")) - 1
        last = min(max(last, first + 1), n)
        yield slice(first, last)
        first = last


class InferredDocuments(NamedTuple):
    """Result of label-free inference."""

    gammas: DeviceArray  # (N, kept, columns): Dirichlet parameters of the proportions after the last sweeps
    likelihoods: DeviceArray  # (N,), double: E[log p(w, z | theta) - log q(z)], docs/math.md eq. (68)
    divergences: DeviceArray  # (N,), double: KL divergence of the proportions from their prior

    @property
    def gamma(self) -> DeviceArray:
        """Dirichlet parameters after the last sweep, (N, columns)."""
        return self.gammas[:, -1, :]


def infer_documents(
    documents: Documents, topics: DeviceArray, doc_prior: Floats, n_sweeps: int, keep_all: bool = False
) -> InferredDocuments:
    """Run a fixed number of label-free sweeps from uniform proportions.

    Parameters
    ----------
    documents : Documents
    topics : (V, columns)
        Positive, on the device of the documents, and padded with zeros for the compiled loops. Its dtype is the working
        precision.
    doc_prior : (K,)
        Positive Dirichlet parameters.
    n_sweeps : int
    keep_all : bool, default=False
        Whether to keep the result of every sweep, which `reverse_documents` needs, instead of the last only. The
        compiled loops repeat the sweeps instead.
    """
    if documents.has_loops:
        return _infer_in_loops(documents, topics, doc_prior, n_sweeps)
    prior, n_kept = to_device(doc_prior, topics), n_sweeps if keep_all else 1
    if cuda.takes(topics, topics.shape[1], n_sweeps):
        gammas, likelihoods, apart = cuda.forward(documents, topics, prior, n_sweeps, n_kept)
    else:
        xp = namespace_of(topics)
        parts = [_infer_piece(piece, topics, prior, n_sweeps, n_kept) for piece in _each_piece(documents, topics)]
        gammas, likelihoods, apart = (xp.concat(part) for part in zip(*parts, strict=True))
    return InferredDocuments(gammas, likelihoods, apart + prior_divergence(doc_prior))


def _infer_in_loops(documents: Documents, topics: Singles, doc_prior: Floats, n_sweeps: int) -> InferredDocuments:
    lengths, logs = documents.lengths, np.empty(len(documents))
    columns, prior = even_gamma(lengths, doc_prior), Prior(topics, doc_prior.astype(np.float32))
    meanfield_sweeps(documents.counts, prior, n_sweeps, -1.0, columns, logs=logs)
    gamma = columns[:, : len(doc_prior)].astype(np.float64)
    divergences = proportion_divergences(gamma, doc_prior)
    return InferredDocuments(columns[:, None, :], log_likelihoods(logs, gamma, lengths), divergences)


def reverse_documents(
    documents: Documents,
    topics: DeviceArray,
    doc_prior: Floats,
    n_sweeps: int,
    gammas: DeviceArray,
    grad: DeviceArray,
    weights: DeviceArray,
) -> DeviceArray:
    """Differentiate through the sweeps of `infer_documents`; see `meanfield.reverse_sweeps`.

    Parameters
    ----------
    documents, topics, doc_prior, n_sweeps
        As in `infer_documents`.
    gammas : (N, kept, columns)
        Result of the sweeps.
    grad : (N, columns)
        Derivatives of an objective by the last gamma.
    weights : (N,)
        Weight of each document's negative bound in the objective.

    Returns
    -------
    (V, columns), double; single from the compiled loops
        Derivatives by the topics.
    """
    if documents.has_loops:
        known = Prior(topics, doc_prior.astype(np.float32))
        return reverse_sweeps(documents.counts, known, n_sweeps, gammas[:, -1, :], grad, weights)
    xp, prior = namespace_of(topics), to_device(doc_prior, topics)
    table = xp.zeros(topics.shape, dtype=xp.float64, device=topics.device)
    if cuda.takes(topics, topics.shape[1], gammas.shape[1]):
        cuda.reverse(documents, topics, prior, (gammas, grad, weights), table)
        return table
    for piece in _each_piece(documents, topics):
        rows = piece.rows
        by_entry = _reverse_piece(piece, prior, gammas[rows, :, :], grad[rows, :], weights[rows])
        table = add_at(table, piece.words, xp.astype(by_entry, xp.float64))
    return table


# --- array operations on the topics of all entries of a piece


class _Piece(NamedTuple):
    rows: slice  # slice of the documents
    n: int  # number of documents
    document: DeviceArray  # (entries,): index of the document within the piece
    words: DeviceArray  # (entries,)
    number: DeviceArray  # (entries,)
    p: DeviceArray  # (entries, K)

    def sum_entries(self, values: DeviceArray) -> DeviceArray:
        """Sum over the entries of each document, (n, ...)."""
        xp = namespace_of(values)
        zeros = xp.zeros((self.n, *values.shape[1:]), dtype=values.dtype, device=values.device)
        return add_at(zeros, self.document, values)

    def multiply(self, vectors: DeviceArray) -> DeviceArray:
        """Return the products of entries' topics with vectors of their documents (n, K), shape (entries,)."""
        xp = namespace_of(vectors)
        return xp.sum(self.p * xp.take(vectors, self.document, axis=0), axis=1)


def _each_piece(documents: Documents, topics: DeviceArray) -> Iterator[_Piece]:
    xp, (words, numbers, _), starts = namespace_of(topics), documents.counts, documents.starts
    for rows in _pieces(starts, max(ROOM // topics.shape[1], 1)):
        entries = slice(int(starts[rows.start]), int(starts[rows.stop]))
        sizes = np.diff(starts[rows.start : rows.stop + 1])
        document = to_device(np.repeat(np.arange(len(sizes)), sizes), words, xp.int64)
        own = xp.astype(words[entries], xp.int64)
        yield _Piece(rows, len(sizes), document, own, numbers[entries], xp.take(topics, own, axis=0))


def _sweep(piece: _Piece, prior: DeviceArray, gamma: DeviceArray) -> DeviceArray:
    t = _exp_digamma(gamma)
    share = piece.number / (piece.multiply(t) + TINY)
    return prior + t * piece.sum_entries(share[:, None] * piece.p)


def _even(piece: _Piece, prior: DeviceArray) -> DeviceArray:
    return prior + (piece.sum_entries(piece.number) / prior.shape[0])[:, None]


def _infer_piece(
    piece: _Piece, topics: DeviceArray, prior: DeviceArray, n_sweeps: int, n_kept: int
) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
    xp = namespace_of(topics)
    gamma, kept = _even(piece, prior), []
    for sweep in range(n_sweeps):
        gamma = _sweep(piece, prior, gamma)
        if sweep >= n_sweeps - n_kept:
            kept.append(gamma)
    r = piece.multiply(_exp_digamma(gamma)) + TINY
    logs = piece.sum_entries(xp.astype(piece.number, xp.float64) * xp.log(xp.astype(r, xp.float64)))
    length = piece.sum_entries(xp.astype(piece.number, xp.float64))
    double, alpha = xp.astype(gamma, xp.float64), xp.astype(prior, xp.float64)
    total, tokens = xp.sum(double, axis=1), double - alpha
    apart = log_gamma(total) - xp.sum(log_gamma(double), axis=1)
    apart = apart + xp.sum(tokens * digamma(double), axis=1) - xp.sum(tokens, axis=1) * digamma(total)
    return xp.stack(kept, axis=1), logs - length * digamma(total), apart


def _reverse_piece(
    piece: _Piece, prior: DeviceArray, gammas: DeviceArray, grad: DeviceArray, weights: DeviceArray
) -> DeviceArray:
    """Return the derivatives by the topics of each entry, (entries, K)."""
    xp = namespace_of(prior)
    *history, last = _even(piece, prior), *(gammas[:, sweep, :] for sweep in range(gammas.shape[1]))
    t = _exp_digamma(last)
    share = -xp.take(weights, piece.document) * piece.number / (piece.multiply(t) + TINY)
    found = share[:, None] * xp.take(t, piece.document, axis=0)
    by_t = piece.sum_entries(share[:, None] * piece.p)
    g = grad + (weights[:, None] * (last - prior) + by_t * t) * _trigamma(last)
    for gamma in reversed(history):
        t = _exp_digamma(gamma)
        r = piece.multiply(t) + TINY
        by_sum, share = g * t, piece.number / r
        by_r = -piece.multiply(by_sum) * share / r
        found += share[:, None] * xp.take(by_sum, piece.document, axis=0)
        found += by_r[:, None] * xp.take(t, piece.document, axis=0)
        sums = piece.sum_entries(share[:, None] * piece.p)
        g = (g * sums + piece.sum_entries(by_r[:, None] * piece.p)) * t * _trigamma(gamma)
    return found


def add_at(table: DeviceArray, index: DeviceArray, values: DeviceArray) -> DeviceArray:
    """Add values to rows of a table in place, with repeated indices; missing in the array API standard."""
    if isinstance(table, np.ndarray):
        np.add.at(table, index, values)
    elif hasattr(table, "index_add_"):
        table.index_add_(0, index, values)
    else:
        import cupy

        cupy.add.at(table, index, values)
    return table


# --- special functions, which are missing in the standard


def digamma(x: DeviceArray) -> DeviceArray:
    """Return the derivative of log_gamma at positive numbers, in double precision."""
    xp = namespace_of(x)
    way = sum(1.0 / (x + float(i)) for i in range(SHIFT))
    y = x + float(SHIFT)
    s = 1.0 / (y * y)
    series = s * (1 / 12 - s * (1 / 120 - s * (1 / 252 - s * (1 / 240 - s * (1 / 132 - s * (691 / 32760))))))
    return xp.log(y) - 0.5 / y - series - way


def log_gamma(x: DeviceArray) -> DeviceArray:
    """Return the logarithm of the gamma function at positive numbers, in double precision."""
    xp = namespace_of(x)
    way = sum(xp.log(x + float(i)) for i in range(SHIFT))
    y = x + float(SHIFT)
    s = 1.0 / (y * y)
    series = (1 / 12 - s * (1 / 360 - s * (1 / 1260 - s * (1 / 1680 - s * (1 / 1188 - s * (691 / 360360)))))) / y
    return (y - 0.5) * xp.log(y) - y + 0.5 * float(np.log(2 * np.pi)) + series - way


def _exp_digamma(x: DeviceArray) -> DeviceArray:
    xp = namespace_of(x)
    lowest = -50.0 if x.dtype == xp.float32 else -600.0  # smaller factors would underflow
    return xp.astype(xp.exp(xp.clip(digamma(xp.astype(x, xp.float64)), lowest, None)), x.dtype)


def _trigamma(x: DeviceArray) -> DeviceArray:
    xp = namespace_of(x)
    double = xp.astype(x, xp.float64)
    way = sum(1.0 / (double + float(i)) ** 2 for i in range(SHIFT))
    y = double + float(SHIFT)
    s = 1.0 / (y * y)
    series = 1 / 6 - s * (1 / 30 - s * (1 / 42 - s * (1 / 30 - s * (5 / 66 - s * (691 / 2730 - s * (7 / 6))))))
    return xp.astype(way + 1.0 / y + 0.5 * s + s * series / y, x.dtype)


def prior_divergence(doc_prior: Floats) -> float:
    """Return the constant term of the divergence of a document's proportions from the prior."""
    return float(np.sum(gammaln(doc_prior)) - gammaln(doc_prior.sum()))
