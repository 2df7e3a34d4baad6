"""The trace of a fit: every term of the objective at every iteration, with times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from regbayes._registry import persistable
from regbayes._types import Floats, Integers

Number = TypeVar("Number", np.float64, np.int64)


@dataclass(frozen=True)
class Record:
    """The numbers of one iteration."""

    iteration: int
    objective: float
    terms: Mapping[str, float]
    diagnostics: Mapping[str, float]
    elapsed: float


@dataclass(frozen=True, eq=False)
class Rises:
    """The iterations at which the objective went up, and by how much.

    An exact method has none, apart from rounding. A method that alternates approximations may have some; how many and
    how large says how far to trust it.
    """

    iterations: Integers  # (rises,)
    sizes: Floats  # (rises,), all positive

    @property
    def count(self) -> int:
        """How many rises there were."""
        return int(self.sizes.size)

    @property
    def largest(self) -> float:
        """The largest rise; 0 if there was none."""
        return float(self.sizes.max(initial=0.0))

    @property
    def total(self) -> float:
        """The sum of all rises."""
        return float(self.sizes.sum())


@persistable(name="regbayes.engine.Trace")
@dataclass(frozen=True, eq=False)
class Trace:
    """The course of a fit. The arrays are read-only and have one entry per recorded iteration.

    The start is recorded as iteration 0 when its objective was known; the first entry is iteration 1 otherwise. Where
    the objective itself changed between two runs, the iteration in between has two entries: one for each objective.
    """

    iterations: Integers  # (records,)
    objective: Floats  # (records,): the sum of the terms
    terms: Mapping[str, Floats]  # name -> (records,)
    diagnostics: Mapping[str, Floats]  # name -> (records,); NaN where a step did not report it
    elapsed: Floats  # (records,): seconds since the loop began

    def __len__(self) -> int:
        return int(self.iterations.size)

    @property
    def rises(self) -> Rises:
        """The rises between consecutive finite objectives, however small.

        Two entries of one iteration are the same state seen by two objectives, and no rise.
        """
        with np.errstate(invalid="ignore"):  # inf - inf at an infeasible start
            change = np.diff(self.objective)
        up = np.flatnonzero(np.isfinite(change) & (change > 0) & (np.diff(self.iterations) > 0))
        return Rises(iterations=self.iterations[up + 1], sizes=change[up])

    @classmethod
    def from_records(cls, records: Sequence[Record]) -> Trace:
        """Lay the records of a fit out as arrays, one per name."""
        term_names = list(records[0].terms) if records else []
        # Not every step reports every diagnostic; a dict keeps the order in which they first appeared.
        diagnostic_names = list(dict.fromkeys(name for record in records for name in record.diagnostics))
        return cls(
            iterations=_frozen(np.array([record.iteration for record in records], dtype=np.int64)),
            objective=_frozen(np.array([record.objective for record in records], dtype=np.float64)),
            terms={name: _column([record.terms for record in records], name) for name in term_names},
            diagnostics={name: _column([record.diagnostics for record in records], name) for name in diagnostic_names},
            elapsed=_frozen(np.array([record.elapsed for record in records], dtype=np.float64)),
        )

    @classmethod
    def joined(cls, traces: Sequence[Trace]) -> Trace:
        """Lay traces of runs that followed each other end to end: iterations and seconds count on."""
        iterations, elapsed, before, began = [], [], 0, 0.0
        for trace in traces:
            iterations.append(before + trace.iterations)
            elapsed.append(began + trace.elapsed)
            if len(trace):
                before, began = int(iterations[-1][-1]), float(elapsed[-1][-1])
        names = dict.fromkeys(name for trace in traces for name in trace.diagnostics)
        return cls(
            iterations=_frozen(np.concatenate(iterations)),
            objective=_frozen(np.concatenate([trace.objective for trace in traces])),
            terms={name: _frozen(np.concatenate([t.terms[name] for t in traces])) for name in traces[0].terms},
            diagnostics={
                name: _frozen(np.concatenate([t.diagnostics.get(name, np.full(len(t), np.nan)) for t in traces]))
                for name in names
            },
            elapsed=_frozen(np.concatenate(elapsed)),
        )


def _column(rows: Sequence[Mapping[str, float]], name: str) -> Floats:
    return _frozen(np.array([row.get(name, np.nan) for row in rows], dtype=np.float64))


def _frozen(array: NDArray[Number]) -> NDArray[Number]:
    array.setflags(write=False)
    return array
