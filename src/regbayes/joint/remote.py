"""J over rows that lie elsewhere: on the workers of a cluster, or on disk. Sums are all that travels.

Rows are held in blocks by whoever has them (`HeldRows`), and a trip to them is a pure function of a block whose results
add up. What inference finds stays with the rows until the next parameters come; it is a cache and no more, so a block
that is made again, because its worker was lost, finds the same. An evaluation of J takes one trip for inference, one
for every Newton step of the head, and one for the gradient.

The curvature of the head's Newton steps comes from a sample of the rows that lies here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import count
from operator import add
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from regbayes._types import Floats, Reals
from regbayes.engine import Executor, Serial
from regbayes.joint.descent import DescentOptions, Evaluation
from regbayes.joint.model import Inferred, JointModel, Params, RowSums, Stats
from regbayes.margins.head import BlockwiseHead, HeadView, LinearHead, MarginHead, Tolerance

Rows = TypeVar("Rows")


class HeldHead(Protocol):
    """What is asked of the rows of a block, as trips to them need it: a `MarginHead`, or `TaskRows`."""

    def parts(self, n_rows: tuple[int, ...], /) -> Sequence[Any]:
        """Return what belongs to pieces of so many rows."""

    def newton_block(self, part: Any, features: Reals, view: Any, /) -> Any:
        """Return a piece as Newton's method sees it."""

    def gradient_of(self, part: Any, features: Reals, view: Any, weights: Floats, common: Floats | None, /) -> Floats:
        """Return the derivative of the value by the features of a piece."""


@dataclass
class HeldRows(Generic[Rows]):
    """A block of rows where it lies: cut into pieces that fit a cache, with what is asked of them."""

    pieces: Sequence[Rows]
    lengths: tuple[int, ...]  # rows of each piece
    head: HeldHead | None  # of the rows of this block; None: nothing is asked of them
    inferred: tuple[int, list[Inferred[Any]]] | None = field(default=None, repr=False, compare=False)

    def infer(self, version: Version) -> list[Inferred[Any]]:
        """Return what inference finds for each piece, from the last time if that was the same version."""
        if self.inferred is None or self.inferred[0] != version.number:
            self.inferred = None  # the room is needed
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


class Places(Protocol):
    """Where blocks of rows lie, and how to get there."""

    def share(self, version: Version) -> Any:
        """Send what several trips need; return what to name it by."""

    def sum(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return the sum of ``function(block, *arguments)``, a shared version among them, in the order of blocks."""


@dataclass(frozen=True)
class ReadAgain:
    """Blocks that are made for every trip and forgotten after it: of rows that do not fit in memory.

    Parameters
    ----------
    make : callable
        From a part, a slice of the rows say, to the block.
    parts : sequence
    executor : Executor
        Takes the parts; as many blocks are held as it has threads.
    """

    make: Callable[[Any], HeldRows[Any]]
    parts: Sequence[Any]
    executor: Executor = field(default_factory=Serial)

    def share(self, version: Version) -> Version:
        """Return it: there is no way to go."""
        return version

    def sum(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return the sum of ``function(block, *arguments)``, in the order of parts."""
        return self.executor.map_reduce(lambda part: function(self.make(part), *arguments), self.parts)


# --- what is done with a block where it lies


@dataclass(frozen=True)
class InferSums(RowSums):
    """What inference of rows leaves to be known elsewhere."""

    stats: Any
    weight: float  # of the rows with targets
    features: Floats  # (K,): their sum over these rows


def infer_rows(block: HeldRows[Any], version: Version) -> InferSums:
    """Infer the features of a block."""
    parts = block.infer(version)
    stats = reduce(add, (part.stats for part in parts))
    if not isinstance(block.head, MarginHead):
        return InferSums(stats, 0.0, np.zeros(parts[0].features.shape[1]))
    weight, features = block.head.sum_features([part.features for part in parts])
    return InferSums(stats, weight, features)


def newton_blocks(
    block: HeldRows[Any], version: Version, view: HeadView | None, easing: int | None = None
) -> list[Any]:
    """Return the pieces of a block as Newton's method sees them, or one of its easier problems."""
    assert block.head is not None
    parts = zip(block.head.parts(block.lengths), block.infer(version), strict=True)
    found = [block.head.newton_block(part, seen.features, view) for part, seen in parts]
    return found if easing is None else [piece.ease()[easing] for piece in found]


def evaluate_pieces(
    block: HeldRows[Any], version: Version, view: HeadView | None, easing: int | None, what: str, *at: Floats
) -> Any:
    """Return what Newton's method asks of a block: its ``sums``, ``curvature`` or ``product`` at given weights."""
    return reduce(add, (getattr(piece, what)(*at) for piece in newton_blocks(block, version, view, easing)))


def pull_back(
    block: HeldRows[Any], version: Version, view: HeadView | None, weights: Floats | None, common: Floats | None
) -> Any:
    """Return the model's sums of what the head's gradient by features is worth to the parameters.

    ``common`` is what centring takes from the gradient of a row that counts once.
    """
    inferred = block.infer(version)
    gradients: Iterable[Floats | None] = [None] * len(block.pieces)
    if weights is not None:
        assert block.head is not None
        pairs = zip(block.head.parts(block.lengths), inferred, strict=True)
        gradients = (block.head.gradient_of(part, seen.features, view, weights, common) for part, seen in pairs)
    trio = zip(block.pieces, inferred, gradients, strict=True)
    return reduce(add, (version.model.pull_back(rows, version.params, seen, slope) for rows, seen, slope in trio))


# --- what is done here


@dataclass(frozen=True)
class RemoteRows:
    """All rows as one block of Newton's method: every look at them is a trip."""

    places: Places
    shared: Any
    view: HeadView | None
    mixes: bool
    n_easier: int
    easing: int | None = None

    def sums(self, weights: Floats) -> Any:
        """Evaluate the rows at given weights."""
        return self._sum("sums", weights)

    def curvature(self, weights: Floats) -> Any:
        """Return the loss's second derivative over all rows."""
        return self._sum("curvature", weights)

    def product(self, weights: Floats, direction: Floats) -> Any:
        """Return the loss's second derivative times a direction."""
        return self._sum("product", weights, direction)

    def ease(self) -> list[RemoteRows]:
        """Return the rows in easier problems."""
        return [replace(self, easing=index) for index in range(self.n_easier)]

    def _sum(self, what: str, *at: Floats) -> Any:
        return self.places.sum(evaluate_pieces, self.shared, self.view, self.easing, what, *at)


@dataclass(frozen=True)
class RemoteProblem(Generic[Rows, Params, Stats]):
    """J over rows that lie elsewhere, for `regbayes.joint.descent`.

    Parameters
    ----------
    model : JointModel
    places : Places
        Where the rows lie.
    sample : HeldRows
        Rows that lie here, in an order of which every beginning is a sample: the curvature comes from them. Its head
        has the options of all heads.
    share : float
        Of all rows with targets that the sample is.
    options : DescentOptions
    """

    model: JointModel[Rows, Params, Stats, Any]
    places: Places
    sample: HeldRows[Rows]
    share: float
    options: DescentOptions
    _numbers: Any = field(default_factory=count, repr=False)

    def evaluate(self, params: Params, warm_start: Any, tolerance: Tolerance) -> tuple[Evaluation[Params, Stats], Any]:
        """Compute J: inference, statistics, terms, head. Return it with the name of what inference found."""
        version = Version(next(self._numbers), self.model, params)
        shared = self.places.share(version)
        sums: InferSums = self.places.sum(infer_rows, shared)
        terms = self.model.terms(params, sums.stats)
        if self.sample.head is None or not np.isfinite(sum(terms.values())):
            return Evaluation.of(params, sums.stats, terms, None), shared
        head = self._solve(version, shared, sums, warm_start, tolerance)
        return Evaluation.of(params, sums.stats, terms, head), shared

    def gradient(self, at: Evaluation[Params, Stats], inferred: Any) -> Reals:
        """Return the gradient of J with respect to the model's position, at what an evaluation found."""
        head: BlockwiseHead | None = at.head
        seen = (None, None, None) if head is None else (head.view, head.weights, head.common)
        return self.model.gradient(at.params, at.stats, self.places.sum(pull_back, inferred, *seen))

    def _solve(
        self, version: Version, shared: Any, sums: InferSums, warm_start: LinearHead | None, tolerance: Tolerance
    ) -> BlockwiseHead:
        problem = self.sample.head
        assert isinstance(problem, MarginHead)
        view = problem.view(sums.weight, sums.features, tolerance.smoothing)
        n_here = sum(self.sample.lengths)
        parts = problem.parts(self.sample.lengths)
        seen: list[Any] = []  # pieces of the sample, from the first on, as far as they were needed

        def gather(n_rows: int) -> Floats:
            while sum(map(len, (piece.features for piece in seen))) < n_rows:
                place = len(seen)
                inferred = self.model.infer(self.sample.pieces[place], version.params)
                seen.append(problem.newton_block(parts[place], inferred.features, view))
            return np.concatenate([piece.features.array() for piece in seen])[:n_rows]

        def sample(level: int) -> list[Any] | None:
            n_rows = problem.n_sampled(level, len(view.centre))
            if self.share >= 1.0 and level == 0:
                n_rows = n_here  # all there are, and they lie here
            if n_rows > n_here or (self.share >= 1.0 and level > 0):
                return None
            share = self.share * n_rows / n_here
            return problem.sampled_blocks(gather(n_rows), np.arange(n_rows), view, share)

        gather(1)
        rows = RemoteRows(self.places, shared, view, problem.mixes, n_easier=len(seen[0].ease()))
        return problem.solve_newton([rows], sample, view, sums.weight, warm_start, tolerance, Serial())
