"""Mean field of topic models for documents of any array library.

`infer_documents` and `reverse_documents` call `meanfield.cu` on a CUDA device (`cuda`). Other arrays, and more topics
than its kernels support, are copied to host memory for the compiled loops, which have single precision. Results have
the library, device and precision of the topics.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln

from regbayes._types import Floats, Indices, Singles
from regbayes.kernels import cuda
from regbayes.kernels.arrays import DeviceArray, namespace_of, to_device, to_host
from regbayes.kernels.meanfield import (
    Prior,
    WordCounts,
    as_table,
    even_gamma,
    lengths_of,
    log_likelihoods,
    meanfield_sweeps,
    padded,
    proportion_divergences,
    reverse_sweeps,
)

SORTED_ROOM = 1 << 27  # maximum entries times topics of a piece with sorted sums
MOST_TYPICAL = 0.95  # quantile of the entries per document that counts as typical


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

    @cached_property
    def here(self) -> WordCounts:
        """The documents in host memory and single precision, for the compiled loops."""
        words, numbers, starts = map(to_host, self.counts)
        return WordCounts(words, numbers.astype(np.float32, copy=False), starts)


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
        Positive, on the device of the documents, perhaps padded with zeros (`as_table`). Its dtype is the working
        precision on a CUDA device.
    doc_prior : (K,)
        Positive Dirichlet parameters.
    n_sweeps : int
    keep_all : bool, default=False
        Whether to keep the result of every sweep, which `reverse_documents` needs, instead of the last only. The
        compiled loops repeat the sweeps instead.
    """
    prior = to_device(doc_prior, topics)
    if cuda.takes(topics, topics.shape[1], n_sweeps):
        gammas, likelihoods, apart = cuda.forward(documents, topics, prior, n_sweeps, n_sweeps if keep_all else 1)
        return InferredDocuments(gammas, likelihoods, apart + prior_divergence(doc_prior))
    lengths, logs, K = documents.lengths, np.empty(len(documents)), len(doc_prior)
    gammas, known = even_gamma(lengths, doc_prior), Prior(_pad(topics), doc_prior.astype(np.float32))
    meanfield_sweeps(documents.here, known, n_sweeps, -1.0, gammas, logs=logs)
    gamma, xp = gammas[:, :K].astype(np.float64), namespace_of(topics)
    found = log_likelihoods(logs, gamma, lengths), proportion_divergences(gamma, doc_prior)
    likelihoods, divergences = (to_device(part, topics, xp.float64) for part in found)
    return InferredDocuments(to_device(gammas[:, None, : topics.shape[1]], topics), likelihoods, divergences)


def _pad(table: DeviceArray) -> Singles:
    """Return a table of topics in the form of the compiled loops, without a copy if it has it already."""
    columns = padded(table.shape[1])
    if isinstance(table, np.ndarray) and table.dtype == np.float32 and table.shape[1] == columns:
        return table
    return as_table(to_host(table))


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
    (V, columns), double from CUDA kernels
        Derivatives by the topics.
    """
    if cuda.takes(topics, topics.shape[1], gammas.shape[1]):
        xp, prior = namespace_of(topics), to_device(doc_prior, topics)
        table = xp.zeros(topics.shape, dtype=xp.float64, device=topics.device)
        cuda.reverse(documents, topics, prior, (gammas, grad, weights), table)
        return table
    known = Prior(_pad(topics), doc_prior.astype(np.float32))
    found = reverse_sweeps(documents.here, known, n_sweeps, _pad(gammas[:, -1, :]), _pad(grad), to_host(weights))
    return to_device(found[:, : topics.shape[1]], topics)


def prior_divergence(doc_prior: Floats) -> float:
    """Return the constant term of the divergence of a document's proportions from the prior."""
    return float(np.sum(gammaln(doc_prior)) - gammaln(doc_prior.sum()))
