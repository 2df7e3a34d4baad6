"""One self-contained page about a fitted model: `collect` what it shows, `render` it, or `write_report` at once."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from regbayes.report.data import ReportData

if TYPE_CHECKING:
    from regbayes.report.collecting import collect
    from regbayes.report.page import render, write_report

__all__ = ["ReportData", "collect", "render", "write_report"]


def __getattr__(name: str) -> Any:  # a model file holds what its page shows: loading it needs no more than that
    if name not in __all__:
        raise AttributeError(f"module 'regbayes.report' has no attribute {name!r}")
    home = "collecting" if name == "collect" else "page"
    return getattr(importlib.import_module(f"regbayes.report.{home}"), name)
