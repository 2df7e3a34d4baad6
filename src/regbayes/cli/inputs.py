"""Encoding of table columns as the inputs of a model.

Numbers are standardized; missing ones are replaced by the median and marked by an indicator column. Text columns are
one-hot encoded. Dates become years, months, weekdays and days. Columns without information (constant, empty, or a
different text in every row) are dropped. A `ColumnTransformer`, stored in the model file, does the encoding. This
module assigns each column to a step.
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
MAX_NUMBER = 1e100  # limit above which sums of squares could overflow
ISO_DATE = re.compile(r"\d{4}-\d{2}(-\d{2}([T ].+)?)?")  # pandas would also parse 2020 and 20200131 as dates
DAYS = ("%Y/%m/%d", "%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y", "%d-%m-%Y", "%d %b %Y", "%b %d, %Y", "%d %B %Y", "%B %d, %Y")

Dates = dict[str, Any]  # keys: "format", "origin" (earliest date), "like" (an example), "parts"


@persistable(name="regbayes.cli.TableInputs")
class TableInputs(TransformerMixin, BaseEstimator):
    """Transformer from a data frame with numeric and text columns to model inputs.

    Parameters
    ----------
    standardize : bool
        Whether to scale numbers to unit variance. If False, numbers are unchanged and constant columns are kept.
    categorical : sequence of str
        Numeric columns to encode as categories.

    Attributes
    ----------
    numbers_ : list of str
        Numeric columns.
    categories_ : dict of str to list of str
        Text columns and the categories seen in training. Rare categories of columns with many, and one category of
        two, have no input of their own.
    dates_ : dict of str to dict
        Date and time columns with their formats. Their parts are among the numbers and categories.
    columns_ : list of str
        Columns that are used as inputs.
    transformer_ : ColumnTransformer
    left_out_ : dict of str to list of str
        Names of the dropped columns by the reason.
    remarks_ : list of str
        Messages about how columns were read, with hints.
    """

    def __init__(self, standardize: bool = True, categorical: Sequence[str] = ()) -> None:
        self.standardize = standardize
        self.categorical = categorical

    def fit(self, X: pd.DataFrame, y: Any = None) -> TableInputs:
        """Choose the encoding of each column."""
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
        absent = SimpleImputer(strategy="constant", fill_value="")  # no category is the empty text
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
                warnings.simplefilter("ignore")  # transform issues the warnings about the training table
                self.transformer_.fit(self._prepare(X))
        return self

    def _expand(self, X: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, str]]:
        """Return the frame with date columns replaced by their parts, and the source column of each."""
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
        """Return the input columns with dates replaced by their parts.

        `transform` also accepts the result. The report varies one of its columns at a time.
        """
        if not self.dates_:
            return X
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # transform warns about dates in another format
            expanded, _ = self._expand(X)
        return expanded[[name for name in expanded if name in self.numbers_ or name in self.categories_]]

    def _hints(self, X: pd.DataFrame, n_characters: int = 40) -> list[str]:
        """Return hints about columns that number the rows or contain documents.

        Texts with more than `n_characters` on average are documents.
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
        """Return the inputs of a table; raise an error that lists missing columns."""
        return self.transform(table.select(self.columns_))

    def transform(self, X: pd.DataFrame) -> Floats:
        """Return the inputs; warn about replaced values with their number."""
        check_is_fitted(self)
        return np.ascontiguousarray(self.transformer_.transform(self._prepare(X)), dtype=np.float64)

    def _prepare(self, X: pd.DataFrame) -> pd.DataFrame:
        """Convert columns to their types in training; infinite values become missing."""
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
        """Return input names such as ``size``, ``place=wood`` and ``size is missing``."""
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
    """Return a column as floats, or as objects with None for missing values."""
    plain = isinstance(column.dtype, np.dtype) and column.dtype.kind in "iuf"
    return column.to_numpy(dtype=np.float64) if plain else column.to_numpy(dtype=object, na_value=None)


def as_numbers(column: NDArray[Any], name: str) -> Floats:
    """Return floats with NaN for missing values; warn about unreadable and infinite ones."""
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
    """Return why a numeric column is dropped, or None if it is used."""
    finite = column[np.isfinite(column)]
    if len(finite) == 0:
        return "without a single value"
    if np.abs(finite).max() > MAX_NUMBER:
        return f"with numbers beyond {MAX_NUMBER:.0e}"
    return "constant" if standardize and finite.min() == finite.max() else None


def _why_no_category(column: NDArray[Any]) -> str | None:
    """Return why a text column is dropped, or None if it is used."""
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
    """Return all categories, and those with an input: one of two, or the most frequent of many."""
    texts = text_of(column)
    counts = Counter(text for text in texts if text is not None)
    known = sorted(counts)
    frequent = {text for text, _ in counts.most_common(MAX_CATEGORIES)}
    kept = known[1:] if len(known) == 2 else [text for text in known if text in frequent]
    return known, [*kept, ""] if None in texts else kept


# --- dates


def find_dates(texts: Sequence[str | None]) -> Dates | None:
    """Return the format of a date column, or None if some of its texts are not dates."""
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
    """Parse date texts, as UTC if they have a time zone; other formats become missing."""
    import pandas as pd

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = pd.to_datetime(pd.Series(texts, dtype=object), format=written, errors="coerce", utc=True)
    return pd.DatetimeIndex(found).tz_localize(None)


def _split(moments: Any, dates: Dates) -> dict[str, NDArray[Any]]:
    """Split dates into numeric parts and the names of months and weekdays."""
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
    """Return the parts of a date column that varied in training."""
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
    """Describe how a date column was read and encoded."""
    order = {"%m/%d": " (month/day)", "%d/%m": " (day/month)"}.get(dates["format"][:5], "")
    since = f" (days since {dates['origin'].split(' ')[0]})"
    parts = [f"{part}{since}" if part == "elapsed" else part for part in dates["parts"]]
    return (
        f"{name!r} holds dates or times, like {dates['like']!r}{order}; inputs: {', '.join(parts)}. --categorical "
        f"{name} takes them as names"
    )
