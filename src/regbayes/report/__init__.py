"""One self-contained page about a fitted model: `collect` what it shows, `render` it, or `write_report` at once."""

from __future__ import annotations

from regbayes.report.collecting import collect
from regbayes.report.data import ReportData
from regbayes.report.page import render, write_report

__all__ = ["ReportData", "collect", "render", "write_report"]
