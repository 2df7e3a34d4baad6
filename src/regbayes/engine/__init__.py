"""The one training loop of the package, and who does the work on rows. No model is known here."""

from __future__ import annotations

from regbayes.engine.loop import (
    BLOCK_ROWS,
    AbsoluteChange,
    Callback,
    DiminishingReturns,
    Executor,
    FitResult,
    Progress,
    RelativeChange,
    Rises,
    Serial,
    Status,
    StepResult,
    Threads,
    Trace,
    make_executor,
    row_blocks,
    run,
)

__all__ = [
    "BLOCK_ROWS",
    "AbsoluteChange",
    "Callback",
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
