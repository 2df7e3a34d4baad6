"""Optional packages: a missing one is named with the extra that brings it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from regbayes._extras import import_extra


def test_a_package_that_is_there():
    assert import_extra("math", "counting", "cli") is math


def test_a_missing_package_is_named_with_its_extra():
    with pytest.raises(ModuleNotFoundError, match=r"Seeing needs no_eyes; pip install 'regbayes\[plot\]'") as caught:
        import_extra("no_eyes", "Seeing", "plot")
    assert caught.value.name == "no_eyes"


def test_what_a_package_lacks_itself_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "lacks_something.py").write_text("import no_such_thing_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_thing_at_all"):
        import_extra("lacks_something", "Seeing", "plot")
