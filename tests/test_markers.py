"""A test that cannot run here is skipped and says what it would need; one that can is run."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

MARKED = """
import pytest

@pytest.mark.data
def test_data(data_folder):
    assert data_folder.is_dir()

@pytest.mark.slow
def test_slow(): ...

@pytest.mark.numpyro
def test_numpyro(): ...

@pytest.mark.pymc
def test_pymc(): ...

@pytest.mark.blackjax
def test_blackjax(): ...

@pytest.mark.browser
def test_browser(): ...
"""


@pytest.fixture
def marked(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.delenv("REGBAYES_DATA", raising=False)
    pytester.makeconftest((Path(__file__).parent / "conftest.py").read_text(encoding="utf-8"))
    pytester.makepyfile(MARKED)
    pytester.makeini("[pytest]\nmarkers =\n    data\n    slow\n    numpyro\n    pymc\n    blackjax\n    browser\n")
    return pytester


def test_what_is_missing_is_named(marked):
    result = marked.runpytest_subprocess("-rs")
    result.stdout.fnmatch_lines_random(["*set REGBAYES_DATA to their folder", "*slow: run with --slow"])
    for module, reason in [("numpyro", "*pip install 'regbayes?numpyro?'"), ("playwright", "*needs Playwright*")]:
        if importlib.util.find_spec(module) is None:
            result.stdout.fnmatch_lines([reason])
        else:
            result.stdout.no_fnmatch_line(reason)


def test_what_is_present_is_run(marked, monkeypatch, tmp_path):
    monkeypatch.setenv("REGBAYES_DATA", str(tmp_path))
    result = marked.runpytest_subprocess("--slow", "-m", "data or slow")
    result.assert_outcomes(passed=2, deselected=4)


def test_a_folder_of_data_that_is_not_there_is_an_error(marked, monkeypatch, tmp_path):
    monkeypatch.setenv("REGBAYES_DATA", str(tmp_path / "nowhere"))
    result = marked.runpytest_subprocess("-m", "data")
    result.assert_outcomes(errors=1, deselected=5)
    result.stdout.fnmatch_lines(["*nowhere is not a folder*"])
