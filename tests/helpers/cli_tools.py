"""Helpers of the command-line tests: run commands and write small files."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SPORT = ["ball", "goal", "match", "team", "player", "coach"]
LAW = ["court", "judge", "vote", "party", "senate", "law"]
PRAISE, BLAME = ["superb", "moving", "charming", "witty"], ["dull", "boring", "awful", "tedious"]


@dataclass(frozen=True)
class Run:
    """Exit status and output of a command."""

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


def run_process(
    *arguments: object, stdin: str | None = None, folder: Path | None = None, stdout=subprocess.PIPE
) -> Run:
    """Run a command in a new process."""
    command = [sys.executable, "-m", "regbayes", *map(str, arguments)]
    pipes = {"stdout": stdout, "stderr": subprocess.PIPE}
    done = subprocess.run(command, input=stdin, cwd=folder, text=True, check=False, timeout=300, **pipes)
    return Run(done.returncode, done.stdout or "", done.stderr)


def flowers(n: int = 90, seed: int = 0) -> str:
    """Return a CSV table of three classes; a text column has missing values."""
    rng = np.random.default_rng(seed)
    kind = rng.integers(3, size=n)
    size = rng.standard_normal(n) * 0.3 + kind
    width = rng.standard_normal(n) * 0.3 + (kind == 1)
    lines = ["size,width,place,kind"]
    for i in range(n):
        place = "" if i % 17 == 5 else ("field", "wood", "shore")[rng.integers(3)]
        lines.append(f"{size[i]:.4f},{width[i]:.4f},{place},{('rose', 'lily', 'aster')[kind[i]]}")
    return "\n".join(lines) + "\n"


def document(words: list[str], rng: np.random.Generator, length: int = 12) -> str:
    """Return a document of stop words and random draws of the given words."""
    return " ".join(["the", "of", "and", "is", *rng.choice(words, length)])


def reviews(n: int = 40, seed: int = 0) -> str:
    """Return a CSV table of reviews; stars rise with the share of praise."""
    rng = np.random.default_rng(seed)
    lines = ["id,review,subject,stars"]
    for i in range(n):
        share = rng.uniform()
        tone = np.where(rng.uniform(size=14) < share, rng.choice(PRAISE, 14), rng.choice(BLAME, 14))
        subject = ("sport", "law")[i % 2]
        text = document(SPORT if i % 2 == 0 else LAW, rng) + " " + " ".join(tone)
        lines.append(f"r{i},{text},{subject},{1 + 4 * share:.2f}")
    return "\n".join(lines) + "\n"


def write_mails(place: Path) -> Path:
    """Write eight documents for each of two subjects; return their folder."""
    for subject, words in (("sport", SPORT), ("law", LAW)):
        (place / "mails" / subject).mkdir(parents=True)
        for i in range(8):
            (place / "mails" / subject / f"{i}.txt").write_text(document(words, np.random.default_rng(i)))
    return place / "mails"
