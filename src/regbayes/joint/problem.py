"""J over blocks of samples, in memory, in a file, on a device or on the workers of a cluster, and its gradient.

Work on a block is a pure function, and its results add up. Features of a block stay with it from an evaluation to its
gradient (`RowBlock`). They are a cache: a block that is made again, because its worker was lost, infers the same ones.

An evaluation infers features, then solves for the head. Where blocks are local, the head sees the features of all
samples. Elsewhere it takes Newton steps on sums over blocks, and the curvature comes from a sample in local memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import accumulate, count
from operator import add
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

import numpy as np

from regbayes._types import Floats, Reals
from regbayes.engine import Executor, Serial
from regbayes.engine.source import Blocks, LocalBlocks
from regbayes.joint.model import Fitted, Inferred, JointModel, Params, RowSums, Stats
from regbayes.margins.head import BlockwiseHead, HeadView, LinearHead, MarginHead, Tolerance

if TYPE_CHECKING:
    from regbayes.joint.descent import DescentOptions

Rows = TypeVar("Rows")
ByFeatures = Callable[["RowBlock[Any]", list[Any]], Sequence[Any]]  # gradients of the pieces, from their features

_numbers = count()  # of parameters, in this process


class PartHead(Protocol):
    """The head of the samples of a block, cut into pieces."""

    def parts(self, n_rows: tuple[int, ...], /) -> Sequence[Any]:
        """Return what belongs to pieces of so many rows."""

    def newton_block(self, part: Any, features: Reals, view: Any, /) -> Any:
        """Return a piece as Newton's method sees it."""

    def gradient_of(self, part: Any, features: Reals, view: Any, weights: Floats, common: Floats | None, /) -> Floats:
        """Return the derivative of the value by the features of a piece."""


@dataclass
class RowBlock(Generic[Rows]):
    """A block of samples where it is, as the model takes it, with the features of the last parameters."""

    pieces: Sequence[Rows]  # that fit a cache
    lengths: tuple[int, ...]  # samples of each piece
    head: PartHead | None = None  # of these samples, where no head sees the features of all
    first: int = 0  # place of the first sample, where one head does
    inferred: tuple[int, list[Inferred[Any]]] | None = field(default=None, repr=False, compare=False)

    def infer(self, version: Version) -> list[Inferred[Any]]:
        """Return what inference finds for each piece; the last result is kept."""
        if self.inferred is None or self.inferred[0] != version.number:
            self.inferred = None  # the memory is needed
            self.inferred = version.number, [version.model.infer(rows, version.params) for rows in self.pieces]
        return self.inferred[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "inferred": None}  # a cache does not travel


@dataclass(frozen=True)
class Version:
    """Parameters that are sent once and then named by their number."""

    number: int
    model: JointModel[Any, Any, Any, Any]
    params: Any


def hold_rows(parts: Sequence[Rows], executor: Executor | None = None) -> LocalBlocks:
    """Return blocks in this process, each of one part of the rows, in order."""
    lengths = [int(part.shape[0]) if hasattr(part, "shape") else len(part) for part in parts]  # type: ignore[arg-type]
    firsts = accumulate(lengths, initial=0)
    blocks = [RowBlock([part], (n,), first=first) for part, n, first in zip(parts, lengths, firsts, strict=False)]
    return LocalBlocks(blocks, executor or Serial())


# --- functions of a block


@dataclass(frozen=True)
class InferSums(RowSums):
    """Sums over samples whose features were inferred."""

    stats: Any
    weight: float  # of the samples with targets
    features: Floats  # (K,): their sum over these samples


def infer_rows(block: RowBlock[Any], version: Version) -> InferSums:
    """Infer the features of a block."""
    parts = block.infer(version)
    stats = reduce(add, (part.stats for part in parts))
    if not isinstance(block.head, MarginHead):
        return InferSums(stats, 0.0, np.zeros(parts[0].features.shape[1]))
    return InferSums(stats, *block.head.sum_features([part.features for part in parts]))


def list_features(block: RowBlock[Any], version: Version) -> list[Reals]:
    """Return the features of a block, piece by piece."""
    return [part.features for part in block.infer(version)]


def share_features(block: RowBlock[Any], version: Version, every: Reals) -> None:
    """Let a block of one piece keep its features as a part of the array of all, so that they are not held twice."""
    (part,), (n,) = block.infer(version), block.lengths
    block.inferred = version.number, [replace(part, features=every[block.first : block.first + n])]


def newton_blocks(
    block: RowBlock[Any], version: Version, view: HeadView | None, easing: int | None = None
) -> list[Any]:
    """Return the pieces of a block as Newton's method sees them, or one of its easier problems."""
    assert block.head is not None
    parts = zip(block.head.parts(block.lengths), block.infer(version), strict=True)
    found = [block.head.newton_block(part, seen.features, view) for part, seen in parts]
    return found if easing is None else [piece.ease()[easing] for piece in found]


def evaluate_pieces(
    block: RowBlock[Any], version: Version, view: HeadView | None, easing: int | None, what: str, *at: Floats
) -> Any:
    """Return the ``sums``, ``curvature`` or ``product`` of a block at given weights, for Newton's method."""
    return reduce(add, (getattr(piece, what)(*at) for piece in newton_blocks(block, version, view, easing)))


def pull_back(block: RowBlock[Any], version: Version, by_features: ByFeatures | None) -> Any:
    """Return the model's sums for the head's gradient by features. The features are not needed any more."""
    inferred, block.inferred = block.infer(version), None
    gradients: Sequence[Any] = [None] * len(inferred)
    if by_features is not None:
        gradients = by_features(block, [part.features for part in inferred])
    parts = zip(block.pieces, inferred, gradients, strict=True)
    return reduce(add, (version.model.pull_back(rows, version.params, seen, slope) for rows, seen, slope in parts))


@dataclass(frozen=True)
class HeadOfAll:
    """Gradients by the features of blocks of one piece, from a head that saw the features of all."""

    head: Fitted

    def __call__(self, block: RowBlock[Any], features: list[Reals]) -> list[Floats]:
        """Return the gradient of the only piece."""
        rows = slice(block.first, block.first + block.lengths[0])
        return [self.head.gradient(rows, *features)]


@dataclass(frozen=True)
class HeadOfParts:
    """Gradients by the features of a block, from the weights."""

    view: HeadView | None
    weights: Floats
    common: Floats | None  # what centering takes from the gradient of a sample that counts once

    def __call__(self, block: RowBlock[Any], features: list[Reals]) -> list[Floats]:
        """Return the gradient of each piece."""
        head = block.head
        assert head is not None
        parts = zip(head.parts(block.lengths), features, strict=True)
        return [head.gradient_of(part, seen, self.view, self.weights, self.common) for part, seen in parts]


@dataclass(frozen=True)
class RemoteRows:
    """All samples as one block of Newton's method, evaluated by sums over blocks."""

    blocks: Blocks
    shared: Any
    view: HeadView | None
    mixes: bool
    n_easier: int
    easing: int | None = None

    def sums(self, weights: Floats) -> Any:
        """Evaluate the samples at given weights."""
        return self._sum("sums", weights)

    def curvature(self, weights: Floats) -> Any:
        """Return the second derivative of the loss over all samples."""
        return self._sum("curvature", weights)

    def product(self, weights: Floats, direction: Floats) -> Any:
        """Return the second derivative of the loss times a direction."""
        return self._sum("product", weights, direction)

    def ease(self) -> list[RemoteRows]:
        """Return the samples in easier problems."""
        return [replace(self, easing=index) for index in range(self.n_easier)]

    def _sum(self, what: str, *at: Floats) -> Any:
        return self.blocks.map_sum(evaluate_pieces, self.shared, self.view, self.easing, what, *at)


# --- J


@dataclass(frozen=True)
class Inference:
    """What inference found at some parameters; features stay with the blocks."""

    version: Version
    shared: Any  # the version as functions of blocks take it
    sums: InferSums


@dataclass(frozen=True)
class Evaluation(Generic[Params, Stats]):
    """J at some parameters, and what was computed on the way."""

    params: Params
    stats: Stats
    head: Any  # what the head's `solve` returned (`Fitted`); None without a head
    terms: Mapping[str, float]
    objective: float  # their sum
    gap: float = 0.0  # duality gap of the head: J is above its minimum over heads by at most this
    warm_start: Any = None  # what the head's next solve may start from

    @classmethod
    def of(cls, params: Params, stats: Stats, terms: Mapping[str, float], head: Fitted | None) -> Self:
        """Put together generative terms and a solved head, if there is one."""
        if head is None:
            return cls(params, stats, None, terms, sum(terms.values()))
        terms = {**terms, **head.terms}
        return cls(params, stats, head, terms, sum(terms.values()), head.gap, head.warm_start)


class RemoteHead(ABC):
    """A head that sees sums over blocks, and never the features of all samples."""

    @abstractmethod
    def solve(self, blocks: Blocks, inference: Inference, warm_start: Any, tolerance: Tolerance) -> Any:
        """Solve for the weights at inferred features."""

    @abstractmethod
    def by_features(self, fitted: Any) -> ByFeatures:
        """Return the gradients by the features of a block at a solution."""


@dataclass(frozen=True)
class SampledHead(RemoteHead):
    """A head whose Newton steps take the curvature from a sample.

    Parameters
    ----------
    sample : RowBlock
        In local memory, in an order of which every beginning is a sample. Its head has the options of all heads.
    share : float
        Of all samples with targets that the sample is.
    """

    sample: RowBlock[Any]
    share: float

    def solve(
        self, blocks: Blocks, inference: Inference, warm_start: LinearHead | None, tolerance: Tolerance
    ) -> BlockwiseHead:
        """Solve for the weights at inferred features."""
        problem, lengths, sums = self.sample.head, self.sample.lengths, inference.sums
        assert isinstance(problem, MarginHead)
        view = problem.view(sums.weight, sums.features, tolerance.smoothing)
        n_here, version, parts = sum(lengths), inference.version, problem.parts(lengths)
        seen: list[Any] = []  # pieces of the sample, from the first on, as far as they were needed

        def gather(n_rows: int) -> Floats:
            while sum(map(len, (piece.features for piece in seen))) < n_rows:
                rows, part = self.sample.pieces[len(seen)], parts[len(seen)]
                seen.append(problem.newton_block(part, version.model.infer(rows, version.params).features, view))
            return np.concatenate([piece.features.array() for piece in seen])[:n_rows]

        def sample(level: int) -> list[Any] | None:
            n_rows = problem.n_sampled(level, len(view.centre))
            if self.share >= 1.0 and level == 0:
                n_rows = n_here  # all there are
            if n_rows > n_here or (self.share >= 1.0 and level > 0):
                return None
            share = self.share * n_rows / n_here
            return problem.sampled_blocks(gather(n_rows), np.arange(n_rows), view, share)

        gather(1)
        rows = RemoteRows(blocks, inference.shared, view, problem.mixes, n_easier=len(seen[0].ease()))
        return problem.solve_newton([rows], sample, view, sums.weight, warm_start, tolerance, Serial())

    def by_features(self, fitted: BlockwiseHead) -> HeadOfParts:
        """Return the gradients by the features of a block at a solution."""
        return HeadOfParts(fitted.view, fitted.weights, fitted.common)


@dataclass(frozen=True)
class JointProblem(Generic[Rows, Params, Stats]):
    """J over blocks of samples, for `regbayes.joint.descent`.

    Parameters
    ----------
    model : JointModel
    blocks : Blocks
        Of `RowBlock`: `hold_rows` makes those in memory.
    head : Head, RemoteHead or None
        A `Head` of all samples is for `hold_rows`, a `RemoteHead` for any blocks. None: the generative model alone.
    options : DescentOptions
    """

    model: JointModel[Rows, Params, Stats, Any]
    blocks: Blocks
    head: Any
    options: DescentOptions

    @property
    def executor(self) -> Executor:
        """Who takes the blocks, where they are in this process."""
        return self.blocks.executor if isinstance(self.blocks, LocalBlocks) else Serial()

    def infer(self, params: Params) -> Inference:
        """Infer the features of all samples, which stay where these are."""
        version = Version(next(_numbers), *self.model.for_blocks(params))
        shared = self.blocks.broadcast(version)
        return Inference(version, shared, self.blocks.map_sum(infer_rows, shared))

    def features(self, inference: Inference) -> list[Reals]:
        """Return the features of all samples, block by block, where blocks are local."""
        return [part for block in self.blocks.gather(list_features, inference.shared) for part in block]

    def solve(self, inference: Inference, warm_start: Any, tolerance: Tolerance) -> Any:
        """Solve for the head at inferred features."""
        if isinstance(self.head, RemoteHead):
            return self.head.solve(self.blocks, inference, warm_start, tolerance)
        features: Any = self.features(inference)
        if len(features) > 1 and self.head.gathers(features[0].shape[1]):
            features = [np.concatenate(features)]
            self.blocks.gather(share_features, inference.shared, features[0])
        return self.head.solve(features, warm_start, tolerance, self.executor)

    def evaluate(
        self, params: Params, warm_start: Any, tolerance: Tolerance
    ) -> tuple[Evaluation[Params, Stats], Inference]:
        """Compute J: inference, statistics, terms, head. Return it with what inference found."""
        inference = self.infer(params)
        stats = inference.sums.stats
        terms = self.model.terms(params, stats)
        if self.head is None or not np.isfinite(sum(terms.values())):
            return Evaluation.of(params, stats, terms, None), inference
        return Evaluation.of(params, stats, terms, self.solve(inference, warm_start, tolerance)), inference

    def pull_back(self, at: Evaluation[Params, Stats], inference: Inference) -> Any:
        """Return the model's sums for the head's gradient by features."""
        head, by_features = at.head, None
        if head is not None:
            by_features = self.head.by_features(head) if isinstance(self.head, RemoteHead) else HeadOfAll(head)
        return self.blocks.map_sum(pull_back, inference.shared, by_features)

    def gradient(self, at: Evaluation[Params, Stats], inference: Inference) -> Reals:
        """Return the gradient of J with respect to the model's position, at the result of an evaluation."""
        return self.model.gradient(at.params, at.stats, self.pull_back(at, inference))
