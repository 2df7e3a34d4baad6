"""Encoding of tables as the inputs of a model: `TableInputs` of columns, `WordCounts` of documents.

Numbers are standardized; missing ones are replaced by the median and marked by an indicator column. Text columns are
one-hot encoded. Dates become years, months, weekdays and days. Columns without information (constant, empty, or a
different text in every row) are dropped. A `ColumnTransformer`, stored in the model file, does the encoding.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
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
from regbayes.cli.errors import BadDataError, UserError, counted, listed
from regbayes.cli.read import Table, make_frame, text_of

if TYPE_CHECKING:
    import pandas as pd

    from regbayes.cli.options import FitRequest

MAX_CATEGORIES = 50  # inputs of one text column, one of which stands for all rarer categories
MAX_NUMBER = 1e100  # limit above which sums of squares could overflow
# A word begins with a letter and has 2 to 40 characters; longer ones are often URLs or encoded data. Model files do not
# store the pattern, because a regular expression from an untrusted file can take exponential time.
TOKEN = r"(?u)\b[^\W\d_]\w{1,39}\b"


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
    numbers_, categories_ : list of str
        Numeric columns and text columns, which include the parts of dates.
    dates_ : dict of str to dict
        Date and time columns with their formats and parts.
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
        self.dates_: dict[str, dict[str, Any]] = {}
        self.numbers_: list[str] = []
        self.categories_: list[str] = []
        self.left_out_: dict[str, list[str]] = {}
        for name in X:
            if name not in self.categorical and (dates := _find_dates(_values(X[name]))) is not None:
                self.dates_[name] = dates
        expanded = self._expand(X)
        for name in expanded:
            column = _values(expanded[name])
            is_text = column.dtype == object or name in self.categorical
            reason = _why_no_category(text_of(column)) if is_text else _why_no_number(column, self.standardize)
            if reason is None:
                (self.categories_ if is_text else self.numbers_).append(name)
            else:
                self.left_out_.setdefault(reason, []).append(name)
        parts = {name: [f"{name}: {part}" for part in dates["parts"]] for name, dates in self.dates_.items()}
        used = {*self.numbers_, *self.categories_}
        self.columns_ = [name for name in X if used & {*parts.get(name, [name])}]
        self.remarks_ = [*(_describe_dates(name, dates) for name, dates in self.dates_.items()), *self._hints(X)]
        scale = [("scale", StandardScaler())] if self.standardize else []
        absent = SimpleImputer(strategy="constant", fill_value="")  # no category is the empty text
        one_hot = OneHotEncoder(
            drop="if_binary", handle_unknown="ignore", max_categories=MAX_CATEGORIES, sparse_output=False
        )
        steps = [
            ("numbers", Pipeline([("fill", SimpleImputer(strategy="median")), *scale]), self.numbers_),
            ("missing", MissingIndicator(error_on_new=False), self.numbers_),
            ("categories", Pipeline([("fill", absent), ("encode", one_hot)]), self.categories_),
        ]
        self.transformer_ = ColumnTransformer([step for step in steps if step[2]])
        if self.columns_:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # transform issues the warnings about the training table
                self.transformer_.fit(self._prepare(X))
        return self

    def _expand(self, X: pd.DataFrame) -> pd.DataFrame:
        """Return the frame with date columns replaced by their parts."""
        columns: list[tuple[str, Any]] = []
        for name in X:
            if name in self.dates_:
                columns += _expand_dates(name, text_of(_values(X[name])), self.dates_[name])
            else:
                columns.append((name, _values(X[name])))
        return make_frame(columns) if self.dates_ else X

    def expand_dates(self, X: pd.DataFrame) -> pd.DataFrame:
        """Return the input columns with dates replaced by their parts.

        `transform` also accepts the result. The report varies one of its columns at a time.
        """
        if not self.dates_:
            return X
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # transform warns about dates in another format
            expanded = self._expand(X)
        return expanded[[name for name in expanded if name in self.numbers_ or name in self.categories_]]

    def _hints(self, X: pd.DataFrame, n_characters: int = 40) -> list[str]:
        """Return hints about columns that number the rows or contain documents.

        Texts with more than `n_characters` on average are documents.
        """
        columns = {name: _values(X[name]) for name in X if name not in self.categorical}
        numbers = {name: column for name, column in columns.items() if column.dtype != object}
        whole = {name: column for name, column in numbers.items() if np.all(column == np.round(column))}
        counters = [name for name, column in whole.items() if np.all(np.diff(column) > 0)]
        rising = [f"whole numbers that rise from row to row: {listed(counters)}. To leave them out: --ignore"]
        dropped = [name for names in self.left_out_.values() for name in names if name in columns.keys() - numbers]
        lengths = {name: [len(text) for text in columns[name] if text is not None] for name in dropped}
        documents = [name for name, found in lengths.items() if found and np.mean(found) > n_characters]
        topics = [f"--text {name} would find topics in the documents of that column" for name in documents[:1]]
        return [*(rising if counters else ()), *topics]

    def encode(self, table: Table) -> Floats:
        """Return the inputs of a table; raise an error that lists missing columns."""
        return self.transform(table.select(self.columns_))

    def transform(self, X: pd.DataFrame) -> Floats:
        """Return the inputs; warn about replaced values with their number."""
        check_is_fitted(self)
        prepared = self._prepare(X)
        if self.categories_:
            encoder = self.transformer_.named_transformers_["categories"]["encode"]
            for name, known in zip(self.categories_, encoder.categories_, strict=True):
                unknown = prepared[name][prepared[name].notna() & ~prepared[name].isin(known)]
                if len(unknown):
                    warnings.warn(
                        f"column {name!r}: categories that were not there in training "
                        f"({listed(sorted(set(unknown)), 3)}) in {counted(len(unknown), 'row')} count as none of the "
                        "known ones",
                        stacklevel=3,
                    )
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Found unknown categories")
            return np.ascontiguousarray(self.transformer_.transform(prepared), dtype=np.float64)

    def _prepare(self, X: pd.DataFrame) -> pd.DataFrame:
        """Convert columns to their types in training; infinite values become missing."""
        X = self._expand(X)
        columns: list[tuple[str, Any]] = [(name, as_numbers(_values(X[name]), name)) for name in self.numbers_]
        for name in self.categories_:
            texts = [np.nan if text is None else text for text in text_of(_values(X[name]))]
            columns.append((name, np.array(texts, dtype=object)))
        return make_frame(columns)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """Return input names such as ``size``, ``place=wood`` and ``size is missing``."""
        check_is_fitted(self)
        found, steps = list(self.numbers_), self.transformer_.named_transformers_ if self.columns_ else {}
        if self.numbers_:
            found += [f"{self.numbers_[i]} is missing" for i in steps["missing"].features_]
        encoder = steps["categories"]["encode"] if self.categories_ else None
        for i, name in enumerate(self.categories_):
            known, rare, dropped = encoder.categories_[i], encoder.infrequent_categories_[i], encoder.drop_idx_
            first = None if dropped is None or dropped[i] is None else known[dropped[i]]
            shown = [text for text in known if text != first and (rare is None or text not in rare)]
            found += [f"{name}={text}" if text else f"{name} is missing" for text in shown]
            found += [] if rare is None else [f"{name}=(other)"]
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


def _why_no_category(texts: list[str | None]) -> str | None:
    """Return why a text column is dropped, or None if it is used."""
    n = len({*texts} - {None})
    if n == 0:
        return "without a single value"
    if n == 1 and None not in texts:
        return "constant"
    names_rows = n == len(texts) > 2 or (n > MAX_CATEGORIES and n > len(texts) / 2)
    return "text that is different in most rows" if names_rows else None


# --- dates


def _find_dates(column: NDArray[Any]) -> dict[str, Any] | None:
    """Return the format, the earliest date and the varying parts of a date column, or None if it has other values."""
    from pandas.tseries.api import guess_datetime_format

    seen = [text for text in dict.fromkeys(column.tolist()) if text is not None] if column.dtype == object else []
    if not seen or not all(isinstance(text, str) for text in seen) or seen[0].isalnum():
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the guess warns if it contradicts `dayfirst`
        guesses = [guess_datetime_format(seen[0], dayfirst=dayfirst) for dayfirst in (False, True)]
    iso = ["ISO8601"] if re.match(r"\d{4}-\d{2}", seen[0]) else []
    for written in dict.fromkeys([*iso, *guesses, "%H:%M", "%H:%M:%S"]):
        if written is not None and (moments := _parse(seen, written)).notna().all():
            dates = {"format": written, "origin": str(moments.min().date()), "like": seen[0]}
            return dates | {"parts": [name for name, values in _split(moments, dates).items() if len(set(values)) > 1]}
    return None


def _parse(texts: Sequence[str | None], written: str) -> Any:
    """Parse date texts, as UTC if they have a time zone; other formats become missing."""
    import pandas as pd

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = pd.to_datetime(pd.Series(texts, dtype=object), format=written, errors="coerce", utc=True)
    return pd.DatetimeIndex(found).tz_localize(None)


def _split(moments: Any, dates: dict[str, Any]) -> dict[str, NDArray[Any]]:
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


def _expand_dates(name: str, texts: Sequence[str | None], dates: dict[str, Any]) -> list[tuple[str, NDArray[Any]]]:
    """Return the parts of a date column that varied in training, with their names."""
    moments = _parse(texts, dates["format"])
    odd = [text for text, gone in zip(texts, moments.isna(), strict=True) if gone and text is not None]
    if odd:
        warnings.warn(
            f"column {name!r}: {odd[0]!r} is not written as in training (like {dates['like']!r}), and counts as "
            f"missing, in {counted(len(odd), 'row')}",
            stacklevel=5,
        )
    made = _split(moments, dates)
    return [(f"{name}: {part}", made[part]) for part in dates["parts"]]


def _describe_dates(name: str, dates: dict[str, Any]) -> str:
    """Describe how a date column was read and encoded."""
    order = {"%m/%d": " (month/day)", "%d/%m": " (day/month)"}.get(dates["format"][:5], "")
    parts = [f"{part} (days since {dates['origin']})" if part == "elapsed" else part for part in dates["parts"]]
    return (
        f"{name!r} holds dates or times, like {dates['like']!r}{order}; inputs: {', '.join(parts)}. --categorical "
        f"{name} takes them as names"
    )


# --- documents


@persistable(name="regbayes.cli.WordCounts")
class WordCounts(TransformerMixin, BaseEstimator):
    """Transformer from documents to counts of the words in a vocabulary.

    Parameters
    ----------
    words : sequence of str
    columns : sequence of str
        Columns with the text; empty if the model was fitted to counts.
    ngrams : int
        Maximum number of words of a counted phrase.
    """

    def __init__(self, words: Sequence[str], columns: Sequence[str] = (), ngrams: int = 1) -> None:
        self.words = words
        self.columns = columns
        self.ngrams = ngrams

    def fit(self, X: Any, y: Any = None) -> WordCounts:
        """Do nothing; `learn_words` chooses the vocabulary."""
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def transform(self, X: pd.DataFrame) -> Any:
        """Return sparse word counts of the text in a data frame."""
        return _counter(self.ngrams, list(self.words)).transform(_join_texts(X[name] for name in self.columns))

    def encode(self, table: Table) -> Any:
        """Return sparse word counts of a table; warn about documents without known words."""
        if table.counts is not None:
            counts = _align_counts(table, self.words)
        elif self.columns:
            counts = self.transform(table.frame[text_columns(table, self.columns)])
        else:
            raise UserError(
                f"the model was fitted to counts of words: name the column of {table.source} with the text by --text. "
                f"It has {listed(table.names)}"
            )
        empty = int(np.sum(np.diff(counts.indptr) == 0))
        if empty == table.n_rows:
            raise BadDataError(
                f"{table.source}: the model knows none of the words, so there is nothing to predict from (it knows "
                f"{listed(self.words, 5)})"
            )
        if empty:
            warnings.warn(
                f"{empty} of {table.n_rows} documents have no word that the model knows; their prediction is that of "
                "an average document",
                stacklevel=2,
            )
        return counts

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """Return the words."""
        return np.array(self.words, dtype=object)


def learn_words(table: Table, request: FitRequest) -> tuple[WordCounts, Any, str]:
    """Choose the vocabulary; return it with the word counts of a table and a sentence about the choice."""
    columns: list[str] = []
    if table.counts is not None:
        if request.text or request.ngrams > 1:
            raise UserError(f"--text and --ngrams: {table.source} holds counts of words, not text")
        counts, words, least = _check_counts(table), np.array(table.words, dtype=object), request.min_df or 1
    else:
        columns, counter = text_columns(table, request.text), _counter(request.ngrams)
        try:
            counts = counter.fit_transform(_join_texts(table.column(name) for name in columns))
        except ValueError:
            raise BadDataError(f"{table.source}: column {columns[0]!r} has no words (two letters or more)") from None
        words = counter.get_feature_names_out()
        least = request.min_df or (3 if table.n_rows >= 100 else 1)
    kept = (counts.count_nonzero(axis=0) >= least) & ~np.isin(words, list(_read_stop_words(request.stop_words)))
    totals = np.where(kept, np.asarray(counts.sum(axis=0)).ravel(), -1)
    kept[np.argsort(-totals, kind="stable")[request.max_words :]] = False
    if not kept.any():
        raise BadDataError(
            f"{table.source}: none of {len(words)} words is in {counted(least, 'document')} or more. Lower --min-df; "
            "text without spaces between words must be cut into words first"
        )
    most = f"those in {counted(least, 'document')} or more, {request.max_words} at most"
    chosen = WordCounts(words[kept].tolist(), columns, request.ngrams)
    return chosen, counts[:, np.flatnonzero(kept)], f"{kept.sum()} words of {len(words)}: {most}"


def text_columns(table: Table, columns: Sequence[str]) -> list[str]:
    """Return the given text columns, or those that the table marks as text."""
    columns = list(columns or table.text)
    if not columns:
        texts = [name for name, column in table.frame.items() if column.dtype == object]
        raise UserError(f"name the column with the text by --text. Text is in {listed(texts) or 'none of the columns'}")
    for name in columns:
        if table.column(name, "--text").dtype != object:
            raise BadDataError(f"--text {name}: the column holds numbers or nothing, not text")
    return columns


def _join_texts(columns: Iterable[Any]) -> list[str]:
    """Join the texts of each row; missing texts are empty."""
    parts = [[value if isinstance(value, str) else "" for value in column] for column in columns]
    return ["\n".join(row) for row in zip(*parts, strict=True)]


def _read_stop_words(wanted: str | None) -> set[str]:
    """Return the stop words: none, scikit-learn's English list or those of a file."""
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    if wanted is None or wanted == "english":
        return set() if wanted is None else set(ENGLISH_STOP_WORDS)
    try:
        return set(Path(wanted).read_text(encoding="utf-8").lower().split())
    except (OSError, UnicodeError) as error:
        raise UserError(f"--stop-words must be english or a text file; {wanted!r}: {error}") from None


def _counter(ngrams: int, vocabulary: list[str] | None = None) -> Any:
    from sklearn.feature_extraction.text import CountVectorizer

    return CountVectorizer(token_pattern=TOKEN, ngram_range=(1, ngrams), dtype=np.int32, vocabulary=vocabulary)


def _check_counts(table: Table) -> Any:
    """Validate a table's counts and return them without stored zeros, as integers if integral."""
    if len(set(table.words)) < len(table.words):
        raise BadDataError(f"{table.source} has several columns of one name among its words")
    data, most = table.counts.data, np.iinfo(np.int32).max
    odd = data[~(np.isfinite(data) & (data >= 0) & (data <= most))]
    if len(odd):
        raise BadDataError(f"{table.source} should hold counts of words, up to {most}; it has {odd[0]:g}")
    counts = table.counts.astype(np.int32 if np.all(data == np.rint(data)) else np.float64)
    counts.eliminate_zeros()
    return counts


def _align_counts(table: Table, words: Sequence[str]) -> Any:
    """Return the counts of a table for a vocabulary; words absent from the table have count 0."""
    from scipy.sparse import csr_array

    place = {word: i for i, word in enumerate(words)}
    pairs = [(i, place[word]) for i, word in enumerate(table.words) if word in place]
    rows, columns = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    found = _check_counts(table)
    choose = csr_array((np.ones(len(rows), dtype=found.dtype), (rows, columns)), shape=(len(table.words), len(words)))
    return csr_array(found @ choose)


def show_documents(table: Table, words: WordCounts, counts: Any, n_words: int = 25) -> list[str]:
    """Return the texts of documents for the report, or their most frequent words."""
    if table.counts is None:
        return _join_texts(table.column(name) for name in words.columns)
    texts = []
    for start, end in pairwise(counts.indptr):
        numbers, places = counts.data[start:end], counts.indices[start:end]
        order = np.argsort(-numbers, kind="stable")[:n_words]
        texts.append(", ".join(f"{words.words[places[i]]} ×{numbers[i]:g}" for i in order))
    return texts
