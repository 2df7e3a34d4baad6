"""`render`: write `ReportData` as one self-contained HTML file.

Names and labels may come from untrusted files. They are embedded as JSON without ``<``, and the script inserts them as
text nodes, never as markup. A content security policy allows only the embedded script and style, identified by hash,
and blocks network access.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import html
import json
import math
import os
import re
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from regbayes.report.collecting import collect
from regbayes.report.data import ReportData

SCRIPTS = (
    "dom.js",
    "charts.js",
    "examples.js",
    "effects.js",
    "features.js",
    "topics.js",
    "answers.js",
    "tasks.js",
    "history.js",
    "page.js",
)
STYLES = ("base.css", "explorer.css", "charts.css", "screens.css")
DIGITS = 5  # significant digits of numbers in the report
INERT = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}  # JSON strings cannot close an HTML element


def render(data: ReportData) -> str:
    """Return the report as one HTML file that works offline.

    Parameters
    ----------
    data : ReportData
        Result of `collect`.

    Returns
    -------
    str
        HTML, to be saved as UTF-8.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from regbayes import ILSVMClassifier
    >>> from regbayes.report import collect, render
    >>> X, y = load_iris(return_X_y=True)
    >>> model = ILSVMClassifier(8, tol=1e-2, random_state=0).fit(X, y)
    >>> render(collect(model, X, y)).startswith("<!doctype html>")
    True
    """
    if not isinstance(data, ReportData):
        raise TypeError(f"data must be a ReportData, which regbayes.report.collect returns; got {type(data).__name__}")
    script = "(() => {\n'use strict';\n" + "\n".join(_asset(name) for name in SCRIPTS) + "\n})();\n"
    style = "\n" + "\n".join(_asset(name) for name in STYLES)
    shown = {**_plain(data), "documentation": _documentation()}
    parts = {
        "title": html.escape(str(data.title)),
        "policy": f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'",
        "style": style,
        "data": json.dumps(shown, ensure_ascii=False, allow_nan=False, separators=(",", ":")).translate(INERT),
        "script": script,
    }
    # A single pass does not replace placeholders inside inserted text.
    return re.sub(r"\{\{(\w+)\}\}", lambda mark: parts[mark[1]], _asset("page.html"))


def write_report(
    estimator: Any, X: Any, y: ArrayLike | None = None, path: str | os.PathLike[str] = "report.html", **options: Any
) -> Path:
    """Collect, render and write the HTML report about a fitted model.

    Parameters
    ----------
    estimator, X, y
        As in `collect`.
    path : str or path-like, default="report.html"
        The file to write.
    **options
        Further options of `collect`.

    Returns
    -------
    Path
        Path of the report.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from regbayes import ILSVMClassifier
    >>> from regbayes.report import write_report
    >>> X, y = load_digits(return_X_y=True)
    >>> model = ILSVMClassifier(n_components=16, tol=1e-2, random_state=0).fit(X[::2], y[::2])
    >>> write_report(model, X[1::2], y[1::2], "digits.html", image_shape=(8, 8)).name
    'digits.html'
    """
    place = Path(path)
    place.write_text(render(collect(estimator, X, y, **options)), encoding="utf-8")
    return place


def _documentation() -> str | None:
    """Return the documentation URL from the metadata of the installed package."""
    try:
        urls = metadata.metadata("regbayes").get_all("Project-URL") or []
    except metadata.PackageNotFoundError:
        return None
    named = dict(entry.split(", ", 1) for entry in urls if ", " in entry)
    found = named.get("Documentation")
    return found if found is not None and found.startswith("https://") else None


def _asset(name: str) -> str:
    return (resources.files("regbayes.report") / "assets" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def _plain(value: Any) -> Any:
    """Convert a value for JSON: round numbers, replace NaN by null and encode images as base64."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, np.ndarray):
        if value.dtype in (np.uint8, np.int8):
            packed = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode("ascii")
            return {"shape": list(value.shape), "bytes": packed}
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bool) or value is None or isinstance(value, int):
        return value
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    return str(value).encode("utf-8", "replace").decode("utf-8")  # UTF-8 cannot encode lone surrogates
