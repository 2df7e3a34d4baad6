"""Test that paths, names and links on the pages exist, and that their code runs."""

from __future__ import annotations

import ast
import builtins
import importlib
import os
import re
import symtable
import textwrap
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "regbayes"
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def quoted(text: str) -> list[str]:
    """Return the inline code of a page."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


PATHS = sorted({name for name in quoted(ARCHITECTURE) if re.fullmatch(r"[\w./]*(/|\.py)", name)})
NAMES = sorted({name for name in quoted(ARCHITECTURE) if re.fullmatch(r"(regbayes|joint|engine)(\.\w+)+", name)})


def test_architecture_page_has_paths_and_names():
    assert len(PATHS) > 40
    assert "regbayes.engine.run" in NAMES


@pytest.mark.parametrize("name", PATHS)
def test_path_on_architecture_page_exists(name):
    if "/" in name.rstrip("/"):
        assert (ROOT / name).exists() or (PACKAGE / name).exists()
        return
    folders = (ROOT, ROOT / "benchmarks", ROOT / "tests")
    found = [*PACKAGE.rglob(name.rstrip("/")), *(path for folder in folders for path in folder.glob(name.rstrip("/")))]
    assert any(path.is_dir() == name.endswith("/") for path in found)


@pytest.mark.parametrize("name", NAMES)
def test_name_on_architecture_page_exists(name):
    module, _, attribute = (name if name.startswith("regbayes.") else f"regbayes.{name}").rpartition(".")
    if not hasattr(importlib.import_module(module), attribute):
        importlib.import_module(f"{module}.{attribute}")


PAGES = ["README.md", "paper/README.md"] + [
    path.relative_to(ROOT).as_posix() for docs in ("docs", "paper/docs") for path in sorted((ROOT / docs).rglob("*.md"))
]


@pytest.mark.parametrize("page", PAGES)
def test_links_of_page_exist(page):
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if not re.match(r"[a-z]+:", target):
            path = os.path.normpath((ROOT / page).parent / target)
            path = re.sub(r"docs/auto_examples/(.*)\.rst$", r"examples/\1.py", path)  # sources of the gallery
            assert Path(path).exists(), target


# --- code can be copied

EXCERPTS = {
    "docs/adding_a_model.md": "examples/extending/new_model.py",
    "docs/own_model.md": "examples/extending/vae_margins.py",
}
"""Pages that go through one script, which the tests run."""
CODE = re.compile(
    r"(?:<!-- (?P<note>not run|needs \w+)[^\n]*-->\n)?^(?P<indent>[ ]*)```python\n(?P<code>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)
"""A block of code. A comment before it says that it is not run and why, or which package it needs."""


def code_blocks(page: str) -> list[tuple[str, str]]:
    """Return the required package (or "") and the code of each runnable block."""
    found = CODE.finditer((ROOT / page).read_text(encoding="utf-8"))
    blocks = [((match["note"] or "").removeprefix("needs "), textwrap.dedent(match["code"])) for match in found]
    return [(needs, code) for needs, code in blocks if needs != "not run"]


def names_without_origin(code: str) -> set[str]:
    """Return names that the code uses but neither defines nor imports."""
    whole = symtable.symtable(code, "page", "exec")
    defined = {symbol.get_name() for symbol in whole.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    used, scopes = set(), [whole]
    while scopes:
        scope = scopes.pop()
        used |= {s.get_name() for s in scope.get_symbols() if s.is_referenced() and (scope is whole or s.is_global())}
        scopes += scope.get_children()
    return used - defined - set(dir(builtins))


PAGES_WITH_CODE = [page for page in PAGES if page not in EXCERPTS and code_blocks(page)]


@pytest.mark.parametrize(("page", "script"), EXCERPTS.items())
def test_code_of_page_is_in_its_script(page, script):
    """The comparison ignores spaces, because the indentation differs."""
    source = "".join((ROOT / script).read_text(encoding="utf-8").split())
    for _, code in code_blocks(page):
        assert "".join(code.split()) in source


@pytest.mark.parametrize("page", PAGES_WITH_CODE)
def test_code_of_page_defines_its_names(page):
    """Every name is defined in the same block or an earlier one."""
    blocks = [code for _, code in code_blocks(page)]
    for n_copied in range(1, len(blocks) + 1):
        assert not names_without_origin("\n".join(blocks[:n_copied]))


@pytest.mark.parametrize("page", PAGES_WITH_CODE)
def test_imports_on_page_exist(page):
    for statement in ast.walk(ast.parse("\n".join(code for _, code in code_blocks(page)))):
        if isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith("regbayes"):
            module = importlib.import_module(statement.module)
            assert all(hasattr(module, alias.name) for alias in statement.names)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES_WITH_CODE)
def test_code_of_page_runs(page, tmp_path, monkeypatch):
    """Warnings are errors."""
    pytest.importorskip("arviz", reason="pages load draws with ArviZ")
    pytest.importorskip("matplotlib", reason="pages plot").use("Agg")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for needs, block in code_blocks(page):
            if needs:
                pytest.importorskip(needs)
            exec(block, names)
