"""What the tests of the command line share: running it here or as a process, and small files."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Run:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict:
        return json.loads(self.out)


def run_here(*arguments: object) -> Run:
    """Run a command in this process."""
    from regbayes.cli.app import main

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = stop.code
    return Run(code, out.getvalue(), err.getvalue())


def run_process(*arguments: object, stdin: str | None = None, folder: Path | None = None) -> Run:
    """Run a command as a user does."""
    command = [sys.executable, "-m", "regbayes", *map(str, arguments)]
    done = subprocess.run(command, input=stdin, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    return Run(done.returncode, done.stdout, done.stderr)


def flowers(n: int = 90, seed: int = 0) -> str:
    """A CSV table of three kinds that two numbers tell apart, with a text column and a hole in it."""
    rng = np.random.default_rng(seed)
    kind = rng.integers(3, size=n)
    size = rng.standard_normal(n) * 0.3 + kind
    width = rng.standard_normal(n) * 0.3 + (kind == 1)
    lines = ["size,width,place,kind"]
    for i in range(n):
        place = "" if i % 17 == 5 else ("field", "wood", "shore")[rng.integers(3)]
        lines.append(f"{size[i]:.4f},{width[i]:.4f},{place},{('rose', 'lily', 'aster')[kind[i]]}")
    return "\n".join(lines) + "\n"
