"""The page on how the package is built names files, folders and objects that exist, and links lead somewhere."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "regbayes"
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
FOLDERS = {"Framework": "framework", "A model's files": "models", "Experiments": "experiments"}
"""Where the bare file names of a section lie."""


def quoted(text: str) -> list[str]:
    """Return what stands in backticks, blocks of code left out."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


def sections() -> list[tuple[str, str]]:
    """Return headings of the page, with what stands below each."""
    parts = re.split(r"^## (.*)$", ARCHITECTURE, flags=re.MULTILINE)
    return list(zip(parts[1::2], parts[2::2], strict=True))


PATHS = [
    (heading, name) for heading, text in sections() for name in quoted(text) if re.fullmatch(r"[\w./]*(/|\.py)", name)
]
NAMES = sorted({name for name in quoted(ARCHITECTURE) if re.fullmatch(r"(regbayes|joint|engine)(\.\w+)+", name)})


def test_the_page_names_files_and_objects():
    assert len(PATHS) > 40
    assert "regbayes.engine.run" in NAMES


@pytest.mark.parametrize(("heading", "name"), PATHS, ids=lambda value: value)
def test_every_path_exists(heading, name):
    if "/" in name.rstrip("/"):
        assert (ROOT / name).exists() or (PACKAGE / name).exists()
        return
    folder = PACKAGE / FOLDERS.get(heading, ".")
    found = [*folder.rglob(name.rstrip("/")), *ROOT.glob(name.rstrip("/")), *(ROOT / "tests").glob(name.rstrip("/"))]
    assert any(path.is_dir() == name.endswith("/") for path in found)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_exists(name):
    module, _, attribute = (name if name.startswith("regbayes.") else f"regbayes.{name}").rpartition(".")
    if not hasattr(importlib.import_module(module), attribute):
        importlib.import_module(f"{module}.{attribute}")


def test_every_layer_that_the_page_lists_is_there():
    (listed,) = re.findall(r"```layers\n(.*?)```", ARCHITECTURE, flags=re.DOTALL)
    for line in listed.splitlines():
        name = line.split()[0]
        assert (PACKAGE / name).is_dir() if name.endswith("/") else (PACKAGE / f"{name}.py").is_file(), name


@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: str(page.relative_to(ROOT / "docs"))
)
def test_links_lead_to_files(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if not re.match(r"[a-z]+:", target):
            assert (page.parent / target).exists(), target
