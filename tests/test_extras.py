"""Optional packages: an error says how to install a missing one."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from regbayes._extras import import_extra


def test_a_package_that_is_there():
    assert import_extra("math", "counting") is math


def test_missing_package_error_says_how_to_install_it():
    with pytest.raises(ModuleNotFoundError, match="Seeing needs no_eyes: pip install no_eyes") as caught:
        import_extra("no_eyes", "Seeing")
    assert caught.value.name == "no_eyes"


def test_what_a_package_lacks_itself_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "lacks_something.py").write_text("import no_such_thing_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_thing_at_all"):
        import_extra("lacks_something", "Seeing")
