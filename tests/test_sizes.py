"""Totals of the source stay below the limits in docs/architecture.md; no module defines a constant twice."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

import sizes

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("| total | limit |")[2].partition("\n\n")[0]
LIMITS = {name: int(limit.replace(",", "")) for name, limit in re.findall(r"^\| ([a-z ]+) \| ([\d,]+) \|", TABLE, re.M)}


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="only files that git tracks count")
def test_every_total_has_a_limit_that_it_keeps():
    totals = sizes.measure()
    assert LIMITS.keys() == totals.keys()
    above = {name: (value, LIMITS[name]) for name, value in totals.items() if value > LIMITS[name]}
    assert not above, f"totals above the limits in docs/architecture.md (total, limit): {above}"


@pytest.mark.parametrize("folder", ["src", "paper"])
def test_no_module_defines_a_constant_twice(folder):
    twice = {}
    for path in (ROOT / folder).rglob("*.py"):
        names = Counter(sizes.module_constants(ast.parse(path.read_text(encoding="utf-8"))))
        twice |= {f"{path.relative_to(ROOT)}: {name}": count for name, count in names.items() if count > 1}
    assert not twice
