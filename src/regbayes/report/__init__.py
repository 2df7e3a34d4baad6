"""Self-contained HTML reports: `collect`, `render` and `write_report`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from regbayes.report.data import ReportData

if TYPE_CHECKING:
    from regbayes.report.collecting import collect
    from regbayes.report.page import render, write_report

__all__ = ["ReportData", "collect", "render", "write_report"]


def __getattr__(name: str) -> Any:  # loading a model file needs only the data classes
    if name not in __all__:
        raise AttributeError(f"module 'regbayes.report' has no attribute {name!r}")
    home = "collecting" if name == "collect" else "page"
    return getattr(importlib.import_module(f"regbayes.report.{home}"), name)
