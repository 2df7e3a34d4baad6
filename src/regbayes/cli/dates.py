"""Dates and times in columns of text: how they are written, and the inputs that they become."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regbayes.cli.errors import counted

__all__ = ["Dates", "describe_dates", "expand_dates", "find_dates"]

ISO = "ISO8601"
ISO_DATE = re.compile(r"\d{4}-\d{2}(-\d{2}([T ].+)?)?")  # pandas takes 2020 and 20200131 for dates too
DAYS = ("%Y/%m/%d", "%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y", "%d-%m-%Y", "%d %b %Y", "%b %d, %Y", "%d %B %Y", "%B %d, %Y")
CLOCKS = ("%H:%M", "%H:%M:%S")
FORMATS = (ISO, *CLOCKS, *(f"{day}{clock}" for day in DAYS for clock in ("", " %H:%M", " %H:%M:%S")))

Dates = dict[str, Any]  # what is known of a column: "format", "origin" (the earliest), "like" (one of them), "parts"


def find_dates(texts: Sequence[str | None]) -> Dates | None:
    """Return how the dates or times of a column are written; None if some of its texts are not dates."""
    seen = list(dict.fromkeys(text for text in texts if text is not None))
    for written in FORMATS if seen else ():
        if written == ISO and not all(ISO_DATE.fullmatch(text) for text in seen):
            continue
        if _parse(seen[:1], written).notna().all() and (moments := _parse(seen, written)).notna().all():
            dates = {"format": written, "origin": str(moments.min().normalize()), "like": seen[0]}
            parts = _split(moments, dates)
            return {**dates, "parts": [name for name, values in parts.items() if len(set(values)) > 1]}
    return None


def _parse(texts: Sequence[str | None], written: str) -> Any:
    """Return moments, missing where a text is missing or written in another way; those with a zone in UTC."""
    import pandas as pd

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = pd.to_datetime(pd.Series(texts, dtype=object), format=written, errors="coerce", utc=True)
    return pd.DatetimeIndex(found).tz_localize(None)


def _split(moments: Any, dates: Dates) -> dict[str, NDArray[Any]]:
    """Return all parts of moments: numbers, and months and weekdays by their names."""
    import pandas as pd

    gone = np.asarray(moments.isna())
    return {
        "year": np.asarray(moments.year, dtype=np.float64),
        "month": np.where(gone, np.array(None), moments.month_name()),
        "weekday": np.where(gone, np.array(None), moments.day_name()),
        "elapsed": np.asarray((moments.normalize() - pd.Timestamp(dates["origin"])).days, dtype=np.float64),
        "hour": np.asarray(moments.hour + moments.minute / 60 + moments.second / 3600, dtype=np.float64),
    }


def expand_dates(name: str, texts: Sequence[str | None], dates: Dates) -> dict[str, NDArray[Any]]:
    """Return the columns that a column of dates becomes: the parts that varied in training."""
    moments = _parse(texts, dates["format"])
    odd = [text for text, gone in zip(texts, moments.isna(), strict=True) if gone and text is not None]
    if odd:
        warnings.warn(
            f"column {name!r}: {odd[0]!r} is not written as in training (like {dates['like']!r}), and counts as "
            f"missing, in {counted(len(odd), 'row')}",
            stacklevel=5,
        )
    made = _split(moments, dates)
    return {f"{name}: {part}": made[part] for part in dates["parts"]}


def describe_dates(name: str, dates: Dates) -> str:
    """Say how a column was read, and what becomes of it."""
    order = {"%m/%d": " (month/day)", "%d/%m": " (day/month)"}.get(dates["format"][:5], "")
    since = f" (days since {dates['origin'].split(' ')[0]})"
    parts = [f"{part}{since}" if part == "elapsed" else part for part in dates["parts"]]
    return (
        f"{name!r} holds dates or times, like {dates['like']!r}{order}; inputs: {', '.join(parts)}. --categorical "
        f"{name} takes them as names"
    )
