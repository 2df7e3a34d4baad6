"""Dates and times in columns of text: which way they are written, and the inputs that they become."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regbayes.cli.errors import counted

__all__ = ["Dates", "describe_dates", "expand_dates", "find_dates"]

ISO = "ISO8601"
ISO_LOOK = re.compile(
    r"\d{4}-\d{1,2}(-\d{1,2})?([T ]\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?\s*(Z|UTC|[+-]\d{2}:?\d{2})?)?", re.ASCII
)
DAYS = ("%Y/%m/%d", "%Y.%m.%d", "%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y", "%d-%m-%Y", "%m/%d/%y", "%d/%m/%y", "%d.%m.%y")
NAMED = ("%d %b %Y", "%d-%b-%Y", "%d-%b-%y", "%b %d, %Y", "%b %d %Y", "%d %B %Y", "%B %d, %Y", "%B %d %Y")
CLOCKS = ("%H:%M", "%H:%M:%S", "%I:%M %p", "%I:%M:%S %p")
LOOKED_AT = 50  # values that a way of writing is tried on before all are

Dates = dict[str, Any]  # what is known of a column: "format", "origin" (the earliest, text) and "clock"


def find_dates(texts: Sequence[str | None]) -> Dates | None:
    """Return how the dates or times of a column are written; None if some of its texts are none."""
    seen = list(dict.fromkeys(text for text in texts if text is not None))
    if not seen or not all(text[:1].isalnum() and any(c.isdigit() for c in text) for text in seen[:LOOKED_AT]):
        return None
    written = _way_of_writing(seen)
    if written is None:
        return None
    moments = _parse(seen, written)
    return {
        "format": written,
        "origin": str(moments.min()),
        "clock": bool((moments.normalize() != moments).any()),
        "like": seen[0],
    }


def _way_of_writing(seen: list[str]) -> str | None:
    ways = (ISO, *CLOCKS, *(f"{day}{clock}" for day in (*DAYS, *NAMED) for clock in ("", *(f" {c}" for c in CLOCKS))))
    for way in ways:
        if _all_parse(seen[:LOOKED_AT], way) and _all_parse(seen, way):
            return way
    return None


def _all_parse(seen: list[str], way: str) -> bool:
    if way == ISO and not all(ISO_LOOK.fullmatch(text) for text in seen):
        return False
    return bool(_parse(seen, way).notna().all())


def _parse(texts: Sequence[str | None], way: str) -> Any:
    """Return moments, with holes where a text is missing or written in another way; those with a zone in UTC."""
    import pandas as pd

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = pd.to_datetime(pd.Series(texts, dtype=object), format=way, errors="coerce", utc=True)
    return pd.DatetimeIndex(found).tz_localize(None)


def parts_of(dates: Dates) -> tuple[str, ...]:
    """Return the inputs that a column becomes."""
    if dates["format"] in CLOCKS:
        return ("hour",)
    return ("year", "month", "weekday", "elapsed", *(("hour",) if dates["clock"] else ()))


def expand_dates(name: str, texts: Sequence[str | None], dates: Dates) -> Mapping[str, NDArray[Any]]:
    """Return the columns that a column of dates becomes: numbers, and months and weekdays by their names."""
    import pandas as pd

    moments = _parse(texts, dates["format"])
    gone = np.asarray(moments.isna())
    odd = [text for text, hole in zip(texts, gone, strict=True) if hole and text is not None]
    if odd:
        warnings.warn(
            f"column {name!r}: {odd[0]!r} is not written as in training (like {dates['like']!r}), and counts as "
            f"missing, in {counted(len(odd), 'row')}",
            stacklevel=5,
        )
    days = (moments - pd.Timestamp(dates["origin"])) / pd.Timedelta(days=1)
    clock = moments.hour + moments.minute / 60 + moments.second / 3600
    made: dict[str, NDArray[Any]] = {
        "year": np.asarray(moments.year, dtype=np.float64),
        "month": np.where(gone, np.array(None), moments.month_name()),
        "weekday": np.where(gone, np.array(None), moments.day_name()),
        "elapsed": np.asarray(days, dtype=np.float64),
        "hour": np.asarray(clock, dtype=np.float64),
    }
    return {f"{name}: {part}": made[part] for part in parts_of(dates)}


def describe_dates(name: str, dates: Dates) -> str:
    """Say what becomes of a column."""
    if dates["format"] in CLOCKS:
        return f"{name!r} holds times of day, like {dates['like']!r}: the hour is an input"
    spelled = _spell(dates["format"])
    hour = ", hour" if dates["clock"] else ""
    since = dates["origin"].split(" ")[0]
    return (
        f"{name!r} holds dates, like {dates['like']!r}{spelled}: year, month, weekday{hour} and elapsed (days since "
        f"{since}) are inputs; --categorical {name} takes them as names"
    )


def _spell(way: str) -> str:
    """Say which number is the month where a reader may take it for the day."""
    if way.startswith("%m/%d"):
        return " (month/day/year)"
    return " (day/month/year)" if way.startswith("%d/%m") else ""
