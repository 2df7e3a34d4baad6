"""The one training loop of the package, and where work on rows is done.

The loop knows no model: a fit is a pure step from state to state, an objective made of named terms, and a rule that
says when to stop. How the fit ended is data (:class:`Status`); whoever called decides what to say about it.
"""

from __future__ import annotations

from regbayes.engine.executor import Executor, Serial, Threads, make_executor, row_blocks
from regbayes.engine.loop import (
    AbsoluteChange,
    DiminishingReturns,
    FitResult,
    Progress,
    RelativeChange,
    Rises,
    Status,
    StepResult,
    Trace,
    run,
)

__all__ = [
    "AbsoluteChange",
    "DiminishingReturns",
    "Executor",
    "FitResult",
    "Progress",
    "RelativeChange",
    "Rises",
    "Serial",
    "Status",
    "StepResult",
    "Threads",
    "Trace",
    "make_executor",
    "row_blocks",
    "run",
]
