"""From the columns of a table to the numbers a model is fitted to, and the same again for new tables.

Numbers are standardized; missing ones take the median, and a further column marks them. Text becomes a column of zeros
and ones per category. Dates become years, months, weekdays and days. Columns without information (constant, empty, or
a different text in every row) are left out. scikit-learn's `ColumnTransformer` does it, is fitted to the training table
and kept in the model's file; this module decides which column goes where.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import ColumnTransformer
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils.validation import check_is_fitted

from regbayes._registry import persistable
from regbayes._types import Floats
from regbayes.cli.errors import counted, listed
from regbayes.cli.read import Table, make_frame, text_of

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["MAX_NUMBER", "TableInputs", "as_numbers", "find_dates"]

MAX_CATEGORIES = 50
MAX_NUMBER = 1e100  # squares of larger numbers, summed, are infinite
ISO_DATE = re.compile(r"\d{4}-\d{2}(-\d{2}([T ].+)?)?")  # pandas takes 2020 and 20200131 for dates too
DAYS = ("%Y/%m/%d", "%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y", "%d-%m-%Y", "%d %b %Y", "%b %d, %Y", "%d %B %Y", "%B %d, %Y")

Dates = dict[str, Any]  # what is known of a column: "format", "origin" (the earliest), "like" (one of them), "parts"


@persistable(name="regbayes.cli.TableInputs")
class TableInputs(TransformerMixin, BaseEstimator):
    """The inputs of a model, from a data frame with columns of numbers and of text.

    Parameters
    ----------
    standardize : bool
        Whether numbers are scaled to unit variance. Without it they stay the same, and constant columns are kept.
    categorical : sequence of str
        Columns of numbers that are names of categories.

    Attributes
    ----------
    numbers_ : list of str
        Columns of numbers.
    categories_ : dict of str to list of str
        Columns of text, and all categories seen in them. Rare ones of many have no input of their own, and neither has
        one of two.
    dates_ : dict of str to dict
        Columns of dates and times, and how they are written; their parts are among the numbers and categories.
    columns_ : list of str
        The columns that inputs are made of.
    transformer_ : ColumnTransformer
    left_out_ : dict of str to list of str
        Why columns are not inputs, and their names.
    remarks_ : list of str
        How columns were read, and what a user may want to do about them.
    """

    def __init__(self, standardize: bool = True, categorical: Sequence[str] = ()) -> None:
        self.standardize = standardize
        self.categorical = categorical

    def fit(self, X: pd.DataFrame, y: Any = None) -> TableInputs:
        """Look at the columns, and decide what becomes of each."""
        self.dates_: dict[str, Dates] = {
            name: dates
            for name in X
            if name not in self.categorical
            and _values(X[name]).dtype == object
            and (dates := find_dates(text_of(_values(X[name])))) is not None
        }
        self.numbers_: list[str] = []
        self.categories_: dict[str, list[str]] = {}
        self.left_out_: dict[str, list[str]] = {}
        flagged: list[str] = []
        kept: dict[str, list[str]] = {}
        expanded, source = self._expand(X)
        for name in expanded:
            column = _values(expanded[name])
            text = column.dtype == object or name in self.categorical
            why = _why_no_category(column) if text else _why_no_number(column, self.standardize)
            if why is not None:
                self.left_out_.setdefault(why, []).append(name)
            elif text:
                self.categories_[name], kept[name] = _choose_categories(column)
            else:
                self.numbers_.append(name)
                flagged += [] if np.isfinite(column).all() else [name]
        used = {source[name] for name in (*self.numbers_, *self.categories_)}
        self.columns_ = [name for name in X if name in used]
        self.remarks_ = [*(describe_dates(name, dates) for name, dates in self.dates_.items()), *self._hints(X)]
        absent = SimpleImputer(strategy="constant", fill_value="")  # no text is empty
        encode = OneHotEncoder(categories=list(kept.values()), handle_unknown="ignore", sparse_output=False)
        scale = [("scale", StandardScaler())] if self.standardize else []
        parts = [
            ("numbers", Pipeline([("fill", SimpleImputer(strategy="median")), *scale]), self.numbers_),
            ("missing", MissingIndicator(features="all"), flagged),
            ("categories", Pipeline([("fill", absent), ("encode", encode)]), list(kept)),
        ]
        self.transformer_ = ColumnTransformer([part for part in parts if part[2]])
        if self.columns_:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # transform warns of the training table
                self.transformer_.fit(self._prepare(X))
        return self

    def _expand(self, X: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, str]]:
        """Return the frame with the parts of dates in their place, and the column that each comes from."""
        columns: list[tuple[str, Any]] = []
        source: dict[str, str] = {}
        for name in X:
            made: dict[str, Any] = {name: X[name]}
            if name in self.dates_:
                made = expand_dates(name, text_of(_values(X[name])), self.dates_[name])
            columns += made.items()
            source |= dict.fromkeys(made, name)
        return make_frame(columns) if self.dates_ else X, source

    def expand_dates(self, X: pd.DataFrame) -> pd.DataFrame:
        """Return the columns that inputs are made of, with the parts of dates in their place.

        `transform` takes such a frame as well. The report changes one column of it at a time.
        """
        if not self.dates_:
            return X
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # transform warns of dates that are written in another way
            expanded, _ = self._expand(X)
        return expanded[[name for name in expanded if name in self.numbers_ or name in self.categories_]]

    def _hints(self, X: pd.DataFrame, n_characters: int = 40) -> list[str]:
        """Return what a user may want to do about columns that number the rows, or hold documents.

        Documents have more than `n_characters` on average, names have fewer.
        """
        found = []
        columns = {name: _values(X[name]) for name in X}
        counters = [
            name
            for name, column in columns.items()
            if name not in self.categorical
            and column.dtype != object
            and np.all(column == np.round(column))
            and np.all(np.diff(column) > 0)
        ]
        if counters:
            found.append(f"whole numbers that rise from row to row: {listed(counters)}. To leave them out: --ignore")
        for name in (name for names in self.left_out_.values() for name in names if name in X):
            lengths = [len(value) for value in columns[name] if isinstance(value, str)]
            if lengths and np.mean(lengths) > n_characters:
                return [*found, f"--text {name} would find topics in the documents of that column"]
        return found

    def encode(self, table: Table) -> Floats:
        """Return the inputs of a table; an error lists columns that are not there."""
        return self.transform(table.select(self.columns_))

    def transform(self, X: pd.DataFrame) -> Floats:
        """Return the inputs; warnings count the values that had to be changed."""
        check_is_fitted(self)
        return np.ascontiguousarray(self.transformer_.transform(self._prepare(X)), dtype=np.float64)

    def _prepare(self, X: pd.DataFrame) -> pd.DataFrame:
        """Return a frame whose columns have the types of training; infinite values are missing."""
        X, _ = self._expand(X)
        columns = [(name, as_numbers(_values(X[name]), name)) for name in self.numbers_]
        columns += [(name, self._as_categories(_values(X[name]), name)) for name in self.categories_]
        return make_frame(columns)

    def _as_categories(self, column: NDArray[Any], name: str) -> NDArray[Any]:
        texts = text_of(column)
        known = set(self.categories_[name])
        unknown = [text for text in texts if text is not None and text not in known]
        if unknown:
            warnings.warn(
                f"column {name!r}: categories that were not there in training ({listed(sorted(set(unknown)), 3)}) in "
                f"{counted(len(unknown), 'row')} count as none of the known ones",
                stacklevel=4,
            )
        return np.array([np.nan if text is None else text for text in texts], dtype=object)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """Return names of the inputs: of a number its column, ``place=wood`` of a category, ``size is missing``."""
        check_is_fitted(self)
        found: list[str] = []
        for part, _, columns in self.transformer_.transformers if self.columns_ else ():
            for i, column in enumerate(columns):
                if part == "categories":
                    seen = self.transformer_.named_transformers_[part]["encode"].categories_[i]
                    found += [f"{column}={name}" if name else f"{column} is missing" for name in seen]
                else:
                    found.append(column if part == "numbers" else f"{column} is missing")
        return np.array(found, dtype=object)


def _values(column: pd.Series) -> NDArray[Any]:
    """Return a column of a data frame as numbers, or as objects with None where they are missing."""
    plain = isinstance(column.dtype, np.dtype) and column.dtype.kind in "iuf"
    return column.to_numpy(dtype=np.float64) if plain else column.to_numpy(dtype=object, na_value=None)


def as_numbers(column: NDArray[Any], name: str) -> Floats:
    """Return numbers, NaN where they are missing; a warning counts those that cannot be read or are infinite."""
    import pandas as pd

    found = pd.to_numeric(pd.Series(column), errors="coerce").to_numpy(dtype=np.float64)
    odd = pd.notna(column) & ~np.isfinite(found)
    if odd.any():
        warnings.warn(
            f"column {name!r} held numbers in training; {str(column[odd][0])!r} and the like in "
            f"{counted(int(odd.sum()), 'row')} count as missing",
            stacklevel=4,
        )
    return np.where(np.isfinite(found), found, np.nan)


def _why_no_number(column: Floats, standardize: bool) -> str | None:
    """Return why a column of numbers is not an input; None if it is one."""
    finite = column[np.isfinite(column)]
    if len(finite) == 0:
        return "without a single value"
    if np.abs(finite).max() > MAX_NUMBER:
        return f"with numbers beyond {MAX_NUMBER:.0e}"
    return "constant" if standardize and finite.min() == finite.max() else None


def _why_no_category(column: NDArray[Any]) -> str | None:
    """Return why a column of text is not an input; None if it is one."""
    texts = text_of(column)
    seen = [text for text in texts if text is not None]
    n = len(set(seen))
    if n == 0:
        return "without a single value"
    if n == 1 and len(seen) == len(texts):
        return "constant"
    names_rows = n == len(texts) > 2 or (n > MAX_CATEGORIES and n > len(texts) / 2)
    return "text that is different in most rows" if names_rows else None


def _choose_categories(column: NDArray[Any]) -> tuple[list[str], list[str]]:
    """Return all categories, and those that have an input: of two one is enough, of many the most frequent."""
    texts = text_of(column)
    counts = Counter(text for text in texts if text is not None)
    known = sorted(counts)
    frequent = {text for text, _ in counts.most_common(MAX_CATEGORIES)}
    kept = known[1:] if len(known) == 2 else [text for text in known if text in frequent]
    return known, [*kept, ""] if None in texts else kept


# --- dates


def find_dates(texts: Sequence[str | None]) -> Dates | None:
    """Return how the dates or times of a column are written; None if some of its texts are not dates."""
    seen = list(dict.fromkeys(text for text in texts if text is not None))
    iso = ["ISO8601"] if all(ISO_DATE.fullmatch(text) for text in seen) else []
    clocks = ("%H:%M", "%H:%M:%S")
    formats = (*iso, *clocks, *(f"{day}{clock}" for day in DAYS for clock in ("", *(f" {one}" for one in clocks))))
    for written in formats if seen else ():
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
    """Return how a column was read, and what becomes of it."""
    order = {"%m/%d": " (month/day)", "%d/%m": " (day/month)"}.get(dates["format"][:5], "")
    since = f" (days since {dates['origin'].split(' ')[0]})"
    parts = [f"{part}{since}" if part == "elapsed" else part for part in dates["parts"]]
    return (
        f"{name!r} holds dates or times, like {dates['like']!r}{order}; inputs: {', '.join(parts)}. --categorical "
        f"{name} takes them as names"
    )
