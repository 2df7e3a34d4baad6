"""Results on disk, one line of JSON per cell, so that an interrupted experiment goes on where it stopped.

A cell is one system on one data set with one seed. Its record is appended in a single write as soon as it is known, and
carries a fingerprint of everything that determines the numbers: settings, data and versions. A record whose fingerprint
is not the one wanted is never used, so a changed protocol cannot mix with old numbers.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, order=True)
class Cell:
    """One number to be measured: which system, on which data, under which varied setting, with which seed."""

    dataset: str
    row: str
    setting: str
    seed: int

    def __str__(self) -> str:
        parts = (self.dataset, self.row, self.setting, f"seed {self.seed}")
        return " · ".join(part for part in parts if part)


@dataclass(frozen=True)
class Record:
    """What was measured in a cell."""

    cell: Cell
    fingerprint: str
    values: dict[str, float]
    """Metrics by key."""
    fit_seconds: float
    search_seconds: float
    memory_mb: float | None
    """Peak resident memory above that at the start of the cell; None where the system does not say."""
    chosen: dict[str, Any] = field(default_factory=dict)
    """The settings that cross-validation chose."""
    detail: dict[str, Any] = field(default_factory=dict)
    """Arrays that a figure needs, as lists."""


def fingerprint(facts: Mapping[str, Any]) -> str:
    """Return a short digest of plain values, the same in every process and for every order of keys."""
    text = json.dumps(facts, sort_keys=True, default=str, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class ResultStore:
    """Records in a file, a line each.

    Parameters
    ----------
    path : Path
        The file; it and its folder are made when the first record is appended.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[Record]:
        """Return the records in the order in which they were written; lines cut short by a crash are left out."""
        if not self.path.exists():
            return []
        found = (_parse_line(line) for line in self.path.read_text(encoding="utf-8").splitlines())
        return [record for record in found if record is not None]

    def find(self, wanted: Mapping[Cell, str]) -> dict[Cell, Record]:
        """Return the records of cells whose fingerprints are the ones wanted; of several the last.

        Parameters
        ----------
        wanted : mapping of Cell to str
            Fingerprints by cell.
        """
        return {r.cell: r for r in self.read() if wanted.get(r.cell) == r.fingerprint}

    def append(self, record: Record) -> None:
        """Add a record: one write of a whole line to the end of the file, on disk when this returns."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps(asdict(record), ensure_ascii=False) + "\n"
        with open(self.path, "ab+", buffering=0) as file:  # unbuffered: one call of the system for the whole line
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":  # a crash in the middle of the last line
                    line = "\n" + line
            file.write(line.encode())
            os.fsync(file.fileno())

    def clear(self) -> None:
        """Forget everything."""
        self.path.unlink(missing_ok=True)


def _parse_line(line: str) -> Record | None:
    try:
        fields = json.loads(line)
        return Record(**(fields | {"cell": Cell(**fields["cell"])}))
    except (ValueError, TypeError, KeyError):
        return None
