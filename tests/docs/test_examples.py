"""Test that example scripts run, and that pages quote their code and output.

`make docs` runs the gallery. Python blocks of a page must occur in its script verbatim, except for imports. Text blocks
must be printed lines, and decimal numbers in prose must occur in the output or the script. The comparison ignores
what versions of NumPy or BLAS change: last digits, numbers of iterations and rounding errors.
"""

from __future__ import annotations

import io
import os
import re
import runpy
import subprocess
import sys
import textwrap
import warnings
from contextlib import chdir, redirect_stdout
from pathlib import Path
from unittest import mock

import pytest
from threadpoolctl import threadpool_limits

ROOT = Path(__file__).parents[2]
LONG = {"resample_model.py", "ilsvm_digits.py"}  # scripts of many fits, which take half a minute each
ALONE = {"dask_cluster.py", "dask_tasks.py", "new_model.py"}  # run as processes: imported by workers, or register names
EXAMPLES = [
    pytest.param(path, marks=pytest.mark.slow if path.name in LONG else (), id=path.name)
    for path in sorted((ROOT / "examples").rglob("*.py"))
    if not path.name.startswith("plot_")
]
PAGES = {
    "docs/statements.md": "statements.py",
    "docs/adding_a_regularizer.md": "huber_regularizer.py",
    "docs/adding_a_model.md": "new_model.py",
    "docs/models/ilsvm.md": "ilsvm_digits.py",
    "docs/models/mt_ilsvm.md": "multitask.py",
    "docs/report.md": "report_page.py",
    "docs/own_sampler.md": "own_sampler.py",
}
FIGURES = {
    "ilsvm_digits.py": "ilsvm_digits.png",
}

MEASURED = re.compile(r"<!-- measured by (\S+) -->.*?(?=\n## |\Z)", re.DOTALL)
FENCE = re.compile(r"^([ ]*)```(\w+)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
NUMBER = re.compile(r"[-+−]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
RELATIVE, ROUNDING = 5e-3, 1e-6
GENERAL = {"0.7"}  # numbers that no script prints: the threshold of k-hat


def run(*command: object) -> str:
    environment = os.environ | {"MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=ROOT,
        env=environment,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_here(script: Path, *arguments: object) -> str:
    """Run a script in this process, which saves the time of its imports."""
    output, command, status = io.StringIO(), [str(script), *map(str, arguments)], None
    with warnings.catch_warnings(record=True), redirect_stdout(output), chdir(ROOT), threadpool_limits(1):
        warnings.resetwarnings()
        with mock.patch.object(sys, "argv", command):
            try:
                runpy.run_path(str(script), run_name="__main__")
            except SystemExit as end:  # scripts exit if an optional dependency is missing
                status = end.code
    assert not status
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")
    return output.getvalue()


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return [textwrap.dedent(body) for _, kind, body in FENCE.findall(text) if kind == language]


def without_imports(code: str) -> str:
    """Return a block without its leading imports."""
    lines = code.splitlines(keepends=True)
    body = [line.startswith(("import ", "from ")) or not line.strip() for line in lines].index(False)
    return "".join(lines[body:])


def prose(page: str) -> str:
    """Return the text of a page without code and benchmark results."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for benchmark in MEASURED.findall(text):
        assert (ROOT / benchmark).exists(), f"{page} names {benchmark}, which does not exist"
    return FENCE.sub("", MEASURED.sub("", text))


def numbers(text: str) -> list[str]:
    return [match.replace("−", "-") for match in NUMBER.findall(text)]


def close(quoted: str, printed: str) -> bool:
    decimals = len(quoted.partition("e")[0].partition(".")[2])
    last_digit = 0.0 if "." not in quoted or "e" in quoted else 10.0**-decimals
    return abs(float(quoted) - float(printed)) <= ROUNDING + max(1.01 * last_digit, RELATIVE * abs(float(printed)))


def same_line(quoted: str, printed: str) -> bool:
    """Return whether two lines are equal up to spaces and rounding of their numbers."""
    quoted, printed = (re.sub(r"in \d+ iterations", "in some iterations", line) for line in (quoted, printed))
    if NUMBER.sub("#", quoted).split() != NUMBER.sub("#", printed).split():
        return False
    return all(close(a, b) for a, b in zip(numbers(quoted), numbers(printed), strict=True))


def missing_lines(quoted: str, output: str) -> list[str]:
    printed = output.splitlines()
    wanted = [line for line in quoted.splitlines() if line.strip()]
    return [line for line in wanted if not any(same_line(line, candidate) for candidate in printed)]


@pytest.mark.parametrize("script", EXAMPLES)
def test_example_runs_and_pages_quote_it(script, tmp_path):
    name = script.name
    figure = ["--figure", tmp_path / "figure.png"] if name in FIGURES else []
    output = (run if name in ALONE | LONG else run_here)(script, *figure)
    source = script.read_text(encoding="utf-8")
    if figure:
        assert figure[1].read_bytes().startswith(b"\x89PNG")
        assert (ROOT / "docs" / "figures" / FIGURES[name]).stat().st_size < 200_000
    for page in (page for page, its_script in PAGES.items() if its_script == name):
        for code in map(without_imports, blocks(page, "python")):
            assert code in source or textwrap.indent(code, "    ") in source, f"{page}: not in {name}:\n{code}"
        for quoted in blocks(page, "text"):
            assert not missing_lines(quoted, output), f"{page} quotes lines that {name} does not print"
        known = numbers(output) + numbers(source)
        invented = [n for n in numbers(prose(page)) if "." in n and not any(close(n, k) for k in known)]
        assert set(invented) <= GENERAL, f"{page}: numbers that {name} neither has nor prints"


def test_pages_show_their_figures():
    for page, script in PAGES.items():
        if script in FIGURES:
            assert f"figures/{FIGURES[script]}" in (ROOT / page).read_text(encoding="utf-8")


def test_readme_shows_output_of_its_code(tmp_path):
    (code,), (quoted,) = blocks("README.md", "python"), blocks("README.md", "text")
    (tmp_path / "readme.py").write_text(code, encoding="utf-8")
    output = run(tmp_path / "readme.py")
    assert not missing_lines(quoted, output)
    assert len(output.splitlines()) == len(quoted.splitlines())
    assert all(any(close(n, k) for k in numbers(output)) for n in numbers(prose("README.md")) if "0." in n)


DOCUMENTS = [
    path.relative_to(ROOT).as_posix()
    for folder in (ROOT, ROOT / "paper")
    for path in (folder / "README.md", *sorted((folder / "docs").rglob("*.md")))
]


@pytest.mark.parametrize("page", DOCUMENTS)
def test_anchors_of_page_exist(page):
    for target, anchor in re.findall(r"\]\(([^)#]*)#([^)]*)\)", prose(page)):
        text = ((ROOT / page).parent / target if target else ROOT / page).read_text(encoding="utf-8")
        headings = [
            re.sub(r"[^\w\- ]", "", line.lstrip("# ").lower()).replace(" ", "-")
            for line in text.splitlines()
            if line.startswith("#")
        ]
        assert anchor in headings, f"{page} links to #{anchor}"


def test_missing_lines_detects_changed_numbers():
    printed = "school  4.91  in 3 iterations, gap 1.2e-11\n"
    assert not missing_lines("school 4.91 in 7 iterations, gap 3.0e-12", printed)
    assert missing_lines("school 4.99 in 3 iterations, gap 1.2e-11", printed)
    assert missing_lines("schools 4.91 in 3 iterations, gap 1.2e-11", printed)
    assert missing_lines("school 4.91 in 3 iterations, gap 1.2e-3", printed)


def test_equation_numbers_are_unique_and_citations_exist():
    pages = (ROOT / "docs" / "theory").glob("*.md")
    tags = [tag for page in pages for tag in re.findall(r"\\tag\{(\d+)\}", page.read_text(encoding="utf-8"))]
    assert len(tags) == len(set(tags))
    cited = set()
    for path in (ROOT / "src").rglob("*.py"):
        for first, last in re.findall(r"docs/math\.md eq\. \((\d+)\)(?:-\((\d+)\))?", path.read_text(encoding="utf-8")):
            cited |= {str(n) for n in range(int(first), int(last or first) + 1)}
    assert cited
    assert cited <= set(tags)
