"""The architecture page shows the layers that import-linter checks."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_architecture_page_shows_the_layers_of_the_contract():
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / ".importlinter", encoding="utf-8")
    layers = contracts["importlinter:contract:layers"]["layers"].split()
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    block = re.search(r"```text\n(_registry.*?)```", page, re.DOTALL)
    assert block, "docs/architecture.md has no list of layers"
    assert [line.split()[0].removesuffix("/") for line in block[1].splitlines()] == layers[::-1]
