"""`render`: from `ReportData` to one HTML file that needs nothing else, and runs nothing but its own script.

Names and labels come from data, and data come from untrusted files. They reach the page as JSON without any ``<``,
and the script makes text nodes of them, never markup. A content security policy in the file names its one script and
its one style by their hashes, and forbids everything else, the network included.
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
DIGITS = 5  # significant ones, of every number on the page


def render(data: ReportData) -> str:
    """Return the page about a fitted model: one HTML file, which works without a network.

    Parameters
    ----------
    data : ReportData
        What `collect` returned.

    Returns
    -------
    str
        HTML, to be written as UTF-8.
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
        "data": _inert(json.dumps(shown, ensure_ascii=False, allow_nan=False, separators=(",", ":"))),
        "script": script,
    }
    # One pass over the template: what is filled in is not looked at again.
    return re.sub(r"\{\{(\w+)\}\}", lambda mark: parts[mark[1]], _asset("page.html"))


def write_report(
    estimator: Any, X: Any, y: ArrayLike | None = None, path: str | os.PathLike[str] = "report.html", **options: Any
) -> Path:
    """Collect, render and write the page about a fitted model.

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
        Where the page is.

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
    text = render(collect(estimator, X, y, **options))
    place = Path(path)
    place.write_text(text, encoding="utf-8")
    return place


def _documentation() -> str | None:
    """Return where the documentation is on the web, if the installed package says so."""
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


def _inert(text: str) -> str:
    """Return JSON that cannot end the element it is in, whatever its strings say."""
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _plain(value: Any) -> Any:
    """Return what JSON can say of a value: numbers to a few digits, no NaN, pictures as base64."""
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
    return _whole(str(value))


def _whole(text: str) -> str:
    """Return text without half characters (lone surrogates), which UTF-8 cannot write."""
    return text.encode("utf-8", "replace").decode("utf-8")
