"""Print line and branch coverage of each package from a report of ``coverage json``.

    python tools/coverage_table.py build/coverage/report.json

Functions compiled by Numba are excluded (``exclude_also`` in ``pyproject.toml``), because coverage cannot trace them.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from pathlib import Path

FIGURES = ("covered_lines", "num_statements", "covered_branches", "num_branches")


def sum_packages(report: Path) -> dict[str, Counter[str]]:
    """Sum the counts of each package; ``(front)`` is the modules outside packages."""
    sums: dict[str, Counter[str]] = defaultdict(Counter)
    for path, file in json.loads(report.read_text())["files"].items():
        below = path.split("src/regbayes/", 1)[1].split("/")
        for package in (below[0] if len(below) > 1 else "(front)", "total"):
            sums[package].update({name: file["summary"][name] for name in FIGURES})
    return sums


def main() -> None:
    """Print a row for each package and the total."""
    print(f"{'package':18}{'statements':>12}{'lines':>8}{'branches':>10}")
    for package, figures in sorted(
        sum_packages(Path(sys.argv[1])).items(), key=lambda row: (row[0] == "total", row[0])
    ):
        covered_lines, statements, covered_branches, branches = (figures[name] for name in FIGURES)
        taken = f"{covered_branches / branches:.1%}" if branches else "none"
        print(f"{package:18}{statements:12}{covered_lines / max(statements, 1):8.1%}{taken:>10}")


if __name__ == "__main__":
    main()
