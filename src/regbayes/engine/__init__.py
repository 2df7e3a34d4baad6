"""Model-independent training loop, executors, sources of samples and line search."""

from __future__ import annotations

from regbayes.engine.executor import BLOCK_ROWS, Executor, Serial, Threads, make_executor, row_blocks
from regbayes.engine.line_search import backtrack
from regbayes.engine.loop import (
    AbsoluteChange,
    Callback,
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
from regbayes.engine.source import Blocks, LocalBlocks

__all__ = [
    "BLOCK_ROWS",
    "AbsoluteChange",
    "Blocks",
    "Callback",
    "DiminishingReturns",
    "Executor",
    "FitResult",
    "LocalBlocks",
    "Progress",
    "RelativeChange",
    "Rises",
    "Serial",
    "Status",
    "StepResult",
    "Threads",
    "Trace",
    "backtrack",
    "make_executor",
    "row_blocks",
    "run",
]
