"""Names that were given up are given up everywhere: in code and messages, documentation, examples and completions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OLD = ("price_rise", "shared_price", "start-up", "framework.large_margin", "margin_accuracy", "labelled_cells")


def texts():
    yield ROOT / "README.md"
    yield ROOT / "CONTRIBUTING.md"
    for folder, pattern in (("src", "*.py"), ("src", "*.js"), ("docs", "*.md"), ("examples", "*.py")):
        yield from (ROOT / folder).rglob(pattern)


@pytest.mark.parametrize("name", OLD)
def test_an_old_name_is_left_nowhere_but_in_the_changelog(name):
    word = re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])")
    history = ROOT / "docs" / "development"  # notebooks say what was called how when it was measured
    left = [path for path in texts() if history not in path.parents and word.search(path.read_text(encoding="utf-8"))]
    assert not left
    assert word.search((ROOT / "CHANGELOG.md").read_text(encoding="utf-8")) or name in OLD[4:]
