"""``regbayes reproduce``: the paper's tables and figures, beside the peers a user would pick instead."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from regbayes.cli import resume_collection
from regbayes.cli.errors import ExitCode, MissingPieceError, UserError
from regbayes.cli.options import Request
from regbayes.cli.output import Output

if TYPE_CHECKING:
    from regbayes_paper.experiments.runner import Outcome

__all__ = ["EPILOG", "ReproduceRequest", "reproduce"]

EPILOG = """**Examples**

`regbayes reproduce table1 --quick`

`REGBAYES_DATA=my/data regbayes reproduce school --output results --jobs 2`

What was measured is kept in the output folder, one line per system, data set and seed, and is not measured again: after
Ctrl-C the same command goes on where it stopped. Records of another protocol, other data or another version are not
used. Without `REGBAYES_DATA` the quick form uses data that scikit-learn carries, and says so."""


What = Literal[
    "table1",
    "table2",
    "school",
    "sensitivity",
    "training-size",
    "features",
    "mmh-k",
    "table2-k",
    "school-k",
    "inputs",
    "temperature",
    "feature-count",
    "landmine",
]


@dataclass(frozen=True, kw_only=True)
class ReproduceRequest(Request):
    """What a reproduction can be asked."""

    what: Annotated[What, typer.Argument(metavar="WHAT", help=f"One of {', '.join(get_args(What))}.")]
    quick: Annotated[bool, typer.Option("--quick", help="The small form, which ends within a minute.")] = False
    output: Annotated[str, typer.Option("--output", "-o", help="The folder to write to.")] = "regbayes-results"
    seeds: Annotated[
        int | None, typer.Option("--seeds", min=1, help="Number of seeds, if not that of the protocol.")
    ] = None
    jobs: Annotated[int, typer.Option("--jobs", "-j", help="Processes; -1 is one for each core.")] = 1
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget what was measured before.")] = False


def reproduce(request: ReproduceRequest) -> None:
    """Rerun one of the paper's tables or figures: its systems, its numbers, and the peers you would use instead."""
    from regbayes_paper.data import DataError, DataNotFoundError
    from regbayes_paper.experiments import run

    resume_collection()
    out = Output(json=request.json, quiet=request.quiet)
    if request.jobs == 0 or request.jobs < -1:
        raise UserError(f"--jobs must be a number of processes, or -1 for one per core; got {request.jobs}")
    folder = Path(request.output)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        outcome = run(
            request.what,
            quick=request.quick,
            output=folder,
            seeds=request.seeds,
            jobs=request.jobs,
            fresh=request.fresh,
            say=out.say,
            show=out.line,
        )
    except (DataNotFoundError, DataError) as error:
        raise MissingPieceError(str(error)) from None
    except OSError as error:
        raise UserError(f"--output {request.output}: {error.strerror or error}") from None
    out.result(_payload(request.what, outcome))
    if outcome.interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)
    if outcome.failed:
        raise typer.Exit(ExitCode.BUG)


def _payload(what: str, outcome: Outcome) -> dict[str, Any]:
    cells = [
        {
            "dataset": r.cell.dataset,
            "row": r.cell.row,
            "setting": r.cell.setting,
            "seed": r.cell.seed,
            "values": r.values,
            "fit_seconds": r.fit_seconds,
            "search_seconds": r.search_seconds,
            "memory_mb": r.memory_mb,
        }
        for r in outcome.records
    ]
    return {
        "command": "reproduce",
        "what": what,
        "interrupted": outcome.interrupted,
        "computed": outcome.computed,
        "failed": {str(cell): message for cell, message in outcome.failed.items()},
        "files": [str(path) for path in outcome.files],
        "cells": cells,
    }
