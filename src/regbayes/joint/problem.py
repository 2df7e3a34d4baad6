"""J and its gradient over local or remote blocks of samples.

Work on a block is a pure function with additive results. Features are cached with their block from an evaluation to its
gradient (`RowBlock`). A block that is recomputed, because its worker was lost, infers the same features.

An evaluation infers features, then solves for the head. A `Head` uses the features of all samples in local blocks. A
`SampledHead` takes Newton steps on sums over any blocks, with the curvature of a subsample in local memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from itertools import accumulate, count
from operator import add
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import numpy as np

from regbayes._registry import persistable
from regbayes._types import Floats, Reals
from regbayes.engine import Executor, Serial
from regbayes.engine.source import Blocks, LocalBlocks, Samples, Source, Strata, cut_rows
from regbayes.joint.model import Inferred, JointModel, Params, RowSums, Stats
from regbayes.margins.head import FeatureSums, Head, HeadBlock, Slope, SolvedHead, Tolerance, View, WarmStart

if TYPE_CHECKING:
    from regbayes.joint.descent import DescentOptions

Rows = TypeVar("Rows")
ByFeatures = Callable[["RowBlock[Any]", list[Any]], Sequence[Any]]  # maps the features of pieces to gradients

_numbers = count()  # version numbers of parameters in this process


@dataclass
class RowBlock(Generic[Rows]):
    """A block of samples in the form of the model, with its current features."""

    pieces: Sequence[Rows]  # parts small enough for a CPU cache
    lengths: tuple[int, ...]  # number of samples of each piece
    head: Sequence[HeadBlock] | None = None  # head of each piece, for a `SampledHead`
    first: int = 0  # index of the first sample, for a `Head`
    inferred: tuple[int, list[Inferred[Any]]] | None = field(default=None, repr=False, compare=False)

    def infer(self, version: Version) -> list[Inferred[Any]]:
        """Return the inference of each piece and cache it."""
        if self.inferred is None or self.inferred[0] != version.number:
            self.inferred = None  # frees memory first
            self.inferred = version.number, [version.model.infer(rows, version.params) for rows in self.pieces]
        return self.inferred[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "inferred": None}  # the cache is not pickled


@dataclass(frozen=True)
class Version:
    """Parameters with a version number, sent once."""

    number: int
    model: JointModel[Any, Any, Any, Any]
    params: Any


def hold_rows(parts: Sequence[Rows], executor: Executor | None = None) -> LocalBlocks:
    """Return local blocks with one part of the samples each, in order."""
    lengths = [int(part.shape[0]) if hasattr(part, "shape") else len(part) for part in parts]  # type: ignore[arg-type]
    firsts = accumulate(lengths, initial=0)
    blocks = [RowBlock([part], (n,), first=first) for part, n, first in zip(parts, lengths, firsts, strict=False)]
    return LocalBlocks(blocks, executor or Serial())


def hold(block: Samples, head_of: Callable[[Samples], Head] | None) -> RowBlock[Any]:
    """Convert samples for a model that works on arrays, with their part of the head."""
    pieces = [block.X[rows, :] for rows in cut_rows(block.X)]
    lengths = tuple(int(piece.shape[0]) for piece in pieces)
    return RowBlock(pieces, lengths, None if head_of is None else head_of(block).blocks(lengths, block.X))


# --- functions of a block


@dataclass(frozen=True)
class InferSums(RowSums):
    """Sums over samples after inference."""

    stats: Any
    features: FeatureSums  # sums of the samples with targets


def infer_rows(block: RowBlock[Any], version: Version) -> InferSums:
    """Infer the features of a block."""
    parts = block.infer(version)
    stats = reduce(add, (part.stats for part in parts))
    sums = FeatureSums(0.0, np.zeros(parts[0].features.shape[1]))
    if block.head is not None:
        pairs = zip(block.head, parts, strict=True)
        sums = reduce(add, (head.sum_features(part.features) for head, part in pairs))
    return InferSums(stats, sums)


def list_features(block: RowBlock[Any], version: Version) -> list[Reals]:
    """Return the features of a block by piece."""
    return [part.features for part in block.infer(version)]


def evaluate_rows(block: RowBlock[Any], version: Version, what: str, view: View, factor: float, *at: Floats) -> Any:
    """Return the ``sums``, ``curvature`` or ``product`` of a block at given weights, for Newton's method."""
    assert block.head is not None
    pairs = zip(block.head, block.infer(version), strict=True)
    return reduce(add, (getattr(head.see(part.features, view, factor), what)(*at) for head, part in pairs))


def pull_back(block: RowBlock[Any], version: Version, by_features: ByFeatures | None) -> Any:
    """Return the model's sums for the head's gradient, and free the features."""
    inferred, block.inferred = block.infer(version), None
    gradients: Sequence[Any] = [None] * len(inferred)
    if by_features is not None:
        gradients = by_features(block, [part.features for part in inferred])
    parts = zip(block.pieces, inferred, gradients, strict=True)
    return reduce(add, (version.model.pull_back(rows, version.params, seen, slope) for rows, seen, slope in parts))


def gradients_of_all(block: RowBlock[Any], features: list[Reals], fitted: SolvedHead) -> list[Floats]:
    """Return the gradient by the features of the only piece, from a head on all samples."""
    return [fitted.gradient(slice(block.first, block.first + block.lengths[0]), *features)]


def gradients_of_parts(block: RowBlock[Any], features: list[Reals], slope: Slope) -> list[Floats]:
    """Return the gradient by the features of each piece, from the weights."""
    assert block.head is not None
    return [head.gradient(seen, slope) for head, seen in zip(block.head, features, strict=True)]


# --- J


@dataclass(frozen=True)
class Inference:
    """Result of inference at some parameters; features stay with the blocks."""

    version: Version
    shared: Any  # handle of the version for functions of blocks
    sums: InferSums


@persistable(name="regbayes.joint.Evaluation")
@dataclass(frozen=True)
class Evaluation(Generic[Params, Stats]):
    """J at some parameters, with intermediate results."""

    params: Params
    stats: Stats
    head: Any  # result of the head's `solve`; None without a head
    terms: Mapping[str, float]
    objective: float  # their sum
    gap: float = 0.0  # duality gap of the head: J is above its minimum over heads by at most this
    warm_start: Any = None  # warm start of the head's next solve

    @classmethod
    def of(cls, params: Params, stats: Stats, terms: Mapping[str, float], head: SolvedHead | None) -> Self:
        """Combine generative terms and an optional solved head."""
        if head is None:
            return cls(params, stats, None, terms, sum(terms.values()))
        terms = {**terms, **head.terms}
        return cls(params, stats, head, terms, sum(terms.values()), head.gap, head.warm_start)


@dataclass(frozen=True)
class SampledHead:
    """A head with Newton steps on sums over blocks and the curvature of a subsample.

    Parameters
    ----------
    problem : Head
        Head of the subsample, whose options apply to all samples.
    sample : RowBlock
        Subsample in local memory, ordered so that every prefix is a sample.
    share : float, or (outputs,)
        Subsampling fraction of the targets, overall or by output; by output, the whole subsample is used.
    """

    problem: Head
    sample: RowBlock[Any]
    share: float | Floats

    def solve(
        self, blocks: Blocks, inference: Inference, warm_start: WarmStart | None, tolerance: Tolerance
    ) -> SolvedHead:
        """Solve for the weights at inferred features."""
        problem, lengths, sums = self.problem, self.sample.lengths, inference.sums.features
        n_here, version, parts = sum(lengths), inference.version, problem.blocks(lengths)
        seen: list[Floats] = []  # features of the leading pieces of the subsample, computed on demand

        def sample(level: int, view: View) -> list[Any] | None:
            n_rows = problem.n_sampled(level, len(sums.features))
            if np.ndim(self.share) or np.all(self.share >= 1.0):
                n_rows = n_here * 2**level
            if n_rows > n_here:
                return None
            while sum(map(len, seen)) < n_rows:
                place = len(seen)
                features = version.model.infer(self.sample.pieces[place], version.params).features
                seen.append(parts[place].design(features, view).array())
            share = self.share * (n_rows / n_here)
            return problem.sample_rows(np.concatenate(seen)[:n_rows], np.arange(n_rows), view, share)

        map_sum = partial(blocks.map_sum, evaluate_rows, inference.shared)
        return problem.solve_sums(map_sum, sums, sample, warm_start, tolerance)


@dataclass(frozen=True)
class JointProblem(Generic[Rows, Params, Stats]):
    """J over blocks of samples, for `regbayes.joint.descent`.

    Parameters
    ----------
    model : JointModel
    blocks : Blocks
        Blocks of `RowBlock`; `hold_rows` makes those in memory.
    head : Head, SampledHead or None
        Use a `Head` of all samples with `hold_rows`, a `SampledHead` with any blocks, None for the generative model.
    options : DescentOptions
    """

    model: JointModel[Rows, Params, Stats, Any]
    blocks: Blocks
    head: Any
    options: DescentOptions

    @classmethod
    def of(
        cls,
        model: JointModel[Rows, Params, Stats, Any],
        source: Source,
        head_of: Callable[[Samples], Head] | None,
        options: DescentOptions,
        n_sampled: int = 10_000,
    ) -> Self:
        """Return J over the samples of a source in memory, in a file, on a device or on a cluster.

        ``head_of`` makes the head of a block of samples, with squared losses. The curvature comes from a subsample.
        """
        head = None
        if head_of is not None:
            sample = source.sample(n_sampled, Strata.alone(len(source)))
            head = SampledHead(head_of(sample), hold(sample, head_of), min(1.0, len(sample) / len(source)))
        return cls(model, source.persist(hold, head_of), head, options)

    @property
    def executor(self) -> Executor:
        """Executor of local blocks."""
        return self.blocks.executor if isinstance(self.blocks, LocalBlocks) else Serial()

    def infer(self, params: Params) -> Inference:
        """Infer the features of all samples, which stay with their blocks."""
        version = Version(next(_numbers), *self.model.for_blocks(params))
        shared = self.blocks.broadcast(version)
        return Inference(version, shared, self.blocks.map_sum(infer_rows, shared))

    def features(self, inference: Inference) -> list[Reals]:
        """Return the features of all samples by block, if blocks are local."""
        return [part for block in self.blocks.gather(list_features, inference.shared) for part in block]

    def solve(self, inference: Inference, warm_start: Any, tolerance: Tolerance) -> Any:
        """Solve for the head at inferred features."""
        if isinstance(self.head, SampledHead):
            return self.head.solve(self.blocks, inference, warm_start, tolerance)
        return self.head.solve(self.features(inference), warm_start, tolerance, self.executor)

    def evaluate(
        self, params: Params, warm_start: Any, tolerance: Tolerance
    ) -> tuple[Evaluation[Params, Stats], Inference]:
        """Compute J by inference, statistics, terms and head; return it with the inference."""
        inference = self.infer(params)
        stats = inference.sums.stats
        terms = self.model.terms(params, stats)
        if self.head is None or not np.isfinite(sum(terms.values())):
            return Evaluation.of(params, stats, terms, None), inference
        return Evaluation.of(params, stats, terms, self.solve(inference, warm_start, tolerance)), inference

    def pull_back(self, at: Evaluation[Params, Stats], inference: Inference) -> Any:
        """Return the model's sums for the head's gradient by features."""
        head, by_features = at.head, None
        if head is not None and isinstance(self.head, SampledHead):
            by_features = partial(gradients_of_parts, slope=head.slope)
        elif head is not None:
            by_features = partial(gradients_of_all, fitted=head)
        return self.blocks.map_sum(pull_back, inference.shared, by_features)

    def gradient(self, at: Evaluation[Params, Stats], inference: Inference) -> Reals:
        """Return the gradient of J with respect to the model's position, at the result of an evaluation."""
        return self.model.gradient(at.params, at.stats, self.pull_back(at, inference))
