"""The one training loop of the package, and what it gives back.

The loop knows no model: a fit is a pure step from state to state, an objective made of named terms, and a rule that
says when to stop. How the fit ended is data (:class:`Status`); whoever called decides what to say about it. Work on
rows goes through an :class:`Executor`, which is passed down.
"""

from __future__ import annotations

from regbayes.engine.executor import Executor, Serial, Threads, row_blocks
from regbayes.engine.loop import run
from regbayes.engine.result import FitResult, Progress, Status, StepResult
from regbayes.engine.stopping import AbsoluteChange, DiminishingReturns, RelativeChange
from regbayes.engine.trace import Rises, Trace

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
    "row_blocks",
    "run",
]
