"""Names that were given up are given up everywhere: in code and messages, documentation, examples and completions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PUBLIC = (
    "price_rise",
    "shared_price",
    "start-up",
    "framework.large_margin",
    "graded",
)  # CHANGELOG says what they are called now
INTERNAL = ("margin_accuracy", "labelled_cells", "map_chunks", "get_backend")


def texts():
    yield ROOT / "README.md"
    yield ROOT / "CONTRIBUTING.md"
    for folder, pattern in (("src", "*.py"), ("src", "*.js"), ("docs", "*.md"), ("examples", "*.py")):
        yield from (ROOT / folder).rglob(pattern)


def word_of(name):
    return re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])")


@pytest.mark.parametrize("name", PUBLIC + INTERNAL)
def test_an_old_name_is_left_nowhere(name):
    word = word_of(name)
    left = [path for path in texts() if word.search(path.read_text(encoding="utf-8"))]
    assert not left


@pytest.mark.parametrize("name", PUBLIC)
def test_the_changelog_says_what_a_public_name_has_become(name):
    assert word_of(name).search((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
