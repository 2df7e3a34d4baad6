"""From the columns of a table to the numbers a model is fitted to, and the same again for new tables.

Numbers are standardised; where some were missing they take the median, and a column says which. Text becomes a column
of zeros and ones per category; dates become years, months, weekdays and days. Columns that say nothing (constant,
empty, or a different text in every row) are left out. scikit-learn does it, in a `ColumnTransformer` that is learned
from the training table and kept in the model's file; what is here decides which column goes where.
"""

from __future__ import annotations

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
from regbayes.cli.dates import Dates, describe_dates, expand_dates, find_dates
from regbayes.cli.errors import BadDataError, counted, listed
from regbayes.cli.tables import Table, make_frame, plain_number, text_of

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["LARGEST", "TableInputs"]

MAX_CATEGORIES = 50
LARGEST = 1e100  # squares of larger numbers, summed, are infinite
DOCUMENT_LENGTH = 40  # characters on average, above which text is documents rather than names
FAR = 1e5  # times the range of the middle values: farther ones were hardly meant
FEW_ROWS = 10  # below which whole numbers may rise from row to row by chance
IDENTIFIER_SHARE = 0.5  # of rows with a text of their own, above which a column names rows and does not group them
ABSENT = ""  # the category of a missing text; no text is empty


@persistable(name="regbayes.cli.TableInputs")
class TableInputs(TransformerMixin, BaseEstimator):
    """The inputs of a model, from a data frame with columns of numbers and of text.

    Parameters
    ----------
    standardize : bool
        Whether numbers are scaled to unit variance. Without it they are taken as they are, constant columns too.
    categorical : sequence of str
        Columns of numbers that are names of categories.

    Attributes
    ----------
    numbers_ : list of str
        Columns of numbers.
    categories_ : dict of str to list of str
        Columns of text, and all categories that were seen in them: the rare ones of many have no input of their own,
        nor has one of two.
    dates_ : dict of str to dict
        Columns of dates and times, and how they are written; what is made of them is among the numbers and categories.
    columns_ : list of str
        The columns that inputs are made of.
    transformer_ : ColumnTransformer
    order_ : array of int
        The inputs are what it makes in this order: that of the columns.
    left_out_ : dict of str to list of str
        Why columns are no inputs, and their names.
    hints_ : list of str
        What a user may want to do about columns.
    remarks_ : list of str
        How columns were read, where that is not plain to see.
    doubts_ : list of str
        What looks wrong with columns.
    """

    def __init__(self, standardize: bool = True, categorical: Sequence[str] = ()) -> None:
        self.standardize = standardize
        self.categorical = categorical

    def fit(self, X: pd.DataFrame, y: Any = None) -> TableInputs:
        """Look at the columns, and decide what becomes of each."""
        numbers: list[str] = []
        flagged: list[str] = []
        kept: dict[str, list[str]] = {}
        self.categories_: dict[str, list[str]] = {}
        self.left_out_: dict[str, list[str]] = {}
        self.doubts_: list[str] = []
        given, self.dates_ = X, self._find_dates(X)
        self.remarks_ = [describe_dates(name, dates) for name, dates in self.dates_.items()]
        X, source = self._expand(X)
        for name in X:
            column = _values(X[name])
            text = column.dtype == object or name in self.categorical
            why = _why_no_category(column) if text else _why_no_number(column, self.standardize)
            if why is not None:
                self.left_out_.setdefault(why, []).append(name)
            elif text:
                self.categories_[name], kept[name] = _choose_categories(column)
            else:
                numbers.append(name)
                flagged += [] if np.isfinite(column).all() else [name]
                self.doubts_ += [] if not self.standardize else _doubt_scale(name, column)
        self.numbers_ = numbers
        used = {source[name] for name in (*numbers, *self.categories_)}
        self.columns_ = [name for name in given if name in used]
        self.hints_ = self._hints(given)
        self.transformer_ = self._transformer(flagged, kept)
        if numbers or kept:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what is said of the training table is said when it is transformed
                self.transformer_.fit(self._prepare(given))
        place = {name: i for i, name in enumerate(X)}
        self.order_ = np.argsort([place[column] for column, _ in self._made()], kind="stable")
        return self

    def _transformer(self, flagged: list[str], kept: dict[str, list[str]]) -> ColumnTransformer:
        """Return scikit-learn's transformer: the inputs that it makes come in the order of its parts."""
        median, scale = SimpleImputer(strategy="median"), StandardScaler()
        absent = SimpleImputer(strategy="constant", fill_value=ABSENT)
        encode = OneHotEncoder(categories=list(kept.values()), handle_unknown="ignore", sparse_output=False)
        parts = [
            ("numbers", Pipeline([("fill", median), *([("scale", scale)] if self.standardize else [])]), self.numbers_),
            ("missing", MissingIndicator(features="all"), flagged),
            ("categories", Pipeline([("fill", absent), ("encode", encode)]), list(kept)),
        ]
        return ColumnTransformer([part for part in parts if part[2]])

    def _find_dates(self, X: pd.DataFrame) -> dict[str, Dates]:
        found: dict[str, Dates] = {}
        for name in X:
            column = _values(X[name])
            if column.dtype == object and name not in self.categorical:
                dates = find_dates(text_of(column))
                found |= {} if dates is None else {name: dates}
        return found

    def _expand(self, X: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, str]]:
        """Return the frame with what is made of dates in their place, and the column that each comes from."""
        if not self.dates_:
            return X, {name: name for name in X}
        columns: list[tuple[str, Any]] = []
        source: dict[str, str] = {}
        for name in X:
            made: Any = {name: _values(X[name])}
            if name in self.dates_:
                made = expand_dates(name, text_of(_values(X[name])), self.dates_[name])
            columns += made.items()
            source |= dict.fromkeys(made, name)
        return make_frame(columns), source

    def spread_dates(self, X: pd.DataFrame) -> pd.DataFrame:
        """Return the columns that inputs are made of, with the parts of dates in their place.

        `transform` takes such a frame as well. It is what to change one column of: a date changes all its parts.
        """
        if not self.dates_:
            return X
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # dates that are written otherwise were named when they were transformed
            spread, _ = self._expand(X)
        return spread[[name for name in spread if name in self.numbers_ or name in self.categories_]]

    def _hints(self, X: pd.DataFrame) -> list[str]:
        counters = [name for name in X if name not in self.categorical and _counts_rows(_values(X[name]))]
        left_out = [name for names in self.left_out_.values() for name in names]
        documents = [name for name in left_out if name in X and _holds_documents(_values(X[name]))]
        found = []
        if counters:
            found.append(
                f"whole numbers that rise from row to row: {listed(counters)}. If they only number the rows: --ignore "
                "them"
            )
        if documents:
            found.append(f"--text {documents[0]} would find topics in what is written there")
        return found

    def encode(self, table: Table) -> Floats:
        """Return the inputs of a table; an error that lists the columns that lack."""
        return self.transform(table.select(self.columns_))

    def transform(self, X: pd.DataFrame) -> Floats:
        """Return the inputs; warnings say which values could not be used as they are."""
        check_is_fitted(self)
        found = self.transformer_.transform(self._prepare(X))
        return np.ascontiguousarray(found[:, self.order_], dtype=np.float64)

    def _prepare(self, X: pd.DataFrame) -> pd.DataFrame:
        """Return a frame whose columns have the types of training; what is infinite is missing."""
        X, _ = self._expand(X)
        columns = [(name, _as_numbers(_values(X[name]), name)) for name in self.numbers_]
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
        return np.array([name for _, name in self._made()], dtype=object)[self.order_]

    def _made(self) -> list[tuple[str, str]]:
        """Return the column and the name of every number that the transformer makes."""
        found: list[tuple[str, str]] = []
        for part, _, columns in self.transformer_.transformers if self.numbers_ or self.categories_ else ():
            for i, column in enumerate(columns):
                if part == "categories":
                    categories = self.transformer_.named_transformers_[part]["encode"].categories_[i]
                    found += [
                        (column, f"{column}={name}" if name != ABSENT else f"{column} is missing")
                        for name in categories
                    ]
                else:
                    found.append((column, column if part == "numbers" else f"{column} is missing"))
        return found


def _values(column: pd.Series) -> NDArray[Any]:
    """Return a column of a data frame as numbers, or as objects with None where they are missing."""
    plain = isinstance(column.dtype, np.dtype) and column.dtype.kind in "iuf"
    return column.to_numpy(dtype=np.float64) if plain else column.to_numpy(dtype=object, na_value=None)


def _as_numbers(column: NDArray[Any], name: str) -> Floats:
    """Return numbers with NaN where they are missing or infinite."""
    if column.dtype == object:
        column = np.array([_as_number(value, name, i) for i, value in enumerate(column)])
    infinite = np.isinf(column)
    if infinite.any():
        n = int(infinite.sum())
        counts = "infinite value counts" if n == 1 else "infinite values count"
        warnings.warn(f"column {name!r}: {n} {counts} as missing", stacklevel=4)
    return np.where(infinite, np.nan, column)


def _as_number(value: Any, name: str, place: int) -> float:
    try:
        return np.nan if value is None else float(value)
    except ValueError:
        raise BadDataError(
            f"column {name!r} held numbers in training, but row {place + 1} holds {value!r}. If that marks a missing "
            f"value: --missing {value!r}"
        ) from None


def _why_no_number(column: Floats, standardize: bool) -> str | None:
    """Return why a column of numbers is no input; None if it is one."""
    finite = column[np.isfinite(column)]
    if len(finite) == 0:
        return "without a single value"
    if not standardize:
        return None
    if np.abs(finite).max() > LARGEST:
        return f"with numbers beyond {LARGEST:.0e}"
    return "constant" if finite.min() == finite.max() else None


def _doubt_scale(name: str, column: Floats) -> list[str]:
    """Say so where single numbers are so large that, scaled by them, all others are alike."""
    finite = column[np.isfinite(column)]
    few, low, middle, high, most = np.percentile(finite, [5, 25, 50, 75, 95])
    low, high, share = (low, high, "half") if low < high else (few, most, "nine of ten")
    farthest = finite[np.argmax(np.abs(finite - middle))]
    if low == high or abs(farthest - middle) <= FAR * (high - low):
        return []
    return [
        f"column {name!r} holds {farthest:g}, though {share} of its values are between {low:g} and {high:g}: it sets "
        "the scale, and the others look alike beside it. Put it right; if it marks a missing value: --missing "
        f"{plain_number(float(farthest))}"
    ]


def _why_no_category(column: NDArray[Any]) -> str | None:
    """Return why a column of text is no input; None if it is one."""
    texts = text_of(column)
    seen = [text for text in texts if text is not None]
    n = len(set(seen))
    if n == 0:
        return "without a single value"
    if n == 1 and len(seen) == len(texts):
        return "constant"
    if n > MAX_CATEGORIES and n > IDENTIFIER_SHARE * len(texts):
        return "text that is different in most rows"
    return "text that is different in every row" if n == len(texts) > 2 else None


def _choose_categories(column: NDArray[Any]) -> tuple[list[str], list[str]]:
    """Return all categories, and those that have an input: of two one is enough, of many the most frequent."""
    texts = text_of(column)
    counts = Counter(text for text in texts if text is not None)
    known = sorted(counts)
    kept = known[1:] if len(known) == 2 else known
    if len(known) > MAX_CATEGORIES:
        kept = sorted(sorted(known, key=lambda text: -counts[text])[:MAX_CATEGORIES])
    return known, [*kept, ABSENT] if None in texts else kept


def _counts_rows(column: NDArray[Any]) -> bool:
    """Whether a column may be a number of the rows, which rows that are sorted by their target make a telling one."""
    if column.dtype == object or len(column) < FEW_ROWS or not np.isfinite(column).all():
        return False
    return bool(np.all(column == np.round(column)) and np.all(np.diff(column) > 0))


def _holds_documents(column: NDArray[Any]) -> bool:
    """Whether a column of text is so long that it was written to be read."""
    if column.dtype != object:
        return False
    lengths = [len(value) for value in column if value is not None]
    return bool(lengths) and float(np.mean(lengths)) > DOCUMENT_LENGTH
