"""The version of the citation file is that of the package."""

from __future__ import annotations

import re
from pathlib import Path

import regbayes


def test_citation_has_the_version_of_the_package():
    citation = (Path(__file__).parents[1] / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(r"^version: (\S+)$", citation, re.MULTILINE)[1] == regbayes.__version__
