"""From documents to counts of words, and the same again for new documents.

scikit-learn's ``CountVectorizer`` does the counting. What is learned is a list of words, which the model's file keeps
as plain text: nothing in the file is ever run, and raw text can be predicted.
"""

from __future__ import annotations

import re
import unicodedata
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin

from regbayes._registry import persistable
from regbayes._types import Flags
from regbayes.cli.errors import BadDataError, UserError, counted, listed, not_among
from regbayes.cli.output import Output
from regbayes.cli.tables import Table

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["WordCounts", "learn_words", "show_documents", "text_columns"]

# A word begins with a letter and has at least two characters. The pattern is no part of a model's file: a regular
# expression from a stranger can keep a machine busy for ever.
TOKEN = r"(?u)\b[^\W\d_]\w+\b"
LONGEST_WORD = 40  # characters; longer ones are addresses and data
MAX_WORDS = 50_000
MIN_DOCUMENTS = 3  # that a word must occur in
FEW_DOCUMENTS = 100  # below which one is enough
ENGLISH_SHARE = 0.1  # of English stop words among all words, above which a text is English
COMMON = 0.7  # share of documents above which a word of another language counts as a stop word
UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u4e00-\u9fff]")  # scripts without spaces
LONG_UNSPACED = 4  # characters; most words of these scripts have fewer
STOP_WORDS = ("auto", "english", "none")
SHOWN_WORDS = 25  # of a document that is known by its counts


@persistable(name="regbayes.cli.WordCounts")
class WordCounts(TransformerMixin, BaseEstimator):
    """Counts of known words in documents.

    Parameters
    ----------
    words : sequence of str
    columns : sequence of str
        That hold the text; empty where the model was fitted to counts.
    numbered : bool
        Whether words are known by the numbers of their columns alone.
    """

    def __init__(self, words: Sequence[str], columns: Sequence[str] = (), numbered: bool = False) -> None:
        self.words = words
        self.columns = columns
        self.numbered = numbered

    def fit(self, X: Any, y: Any = None) -> WordCounts:
        """Return the transformer itself: `learn_words` has chosen the words."""
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def transform(self, X: pd.DataFrame) -> Any:
        """Return the counts of the words in the text of a data frame's columns, sparse."""
        return _counter(vocabulary=list(self.words)).transform(_join_texts(X[name] for name in self.columns))

    def encode(self, table: Table) -> Any:
        """Return the counts of the words in a table's documents, sparse; a warning tells of documents without any."""
        counts = self._counts(table)
        empty = int(np.sum(np.diff(counts.indptr) == 0))
        if empty == table.n_rows:
            raise BadDataError(
                f"{table.source}: the model knows none of the words, so there is nothing to predict from (it knows "
                f"{listed(self.words, 5)})"
            )
        if empty:
            warnings.warn(
                f"{empty} of {table.n_rows} documents have no word that the model knows, and get what an average "
                "document gets",
                stacklevel=2,
            )
        return counts

    def _counts(self, table: Table) -> Any:
        if table.counts is not None:
            return _align_counts(table, self.words)
        if self.numbered:
            raise BadDataError(
                f"the model was fitted to numbered columns and does not know what the words are; {table.source} should "
                "hold counts too (LIBSVM or NPZ)"
            )
        if not self.columns:
            raise UserError(
                f"the model was fitted to counts of words: say which column of {table.source} holds the text, with "
                f"--text. It has {listed(table.names)}"
            )
        return self.transform(table.frame[text_columns(table, self.columns)])

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """Return the words."""
        return np.array(self.words, dtype=object)


def learn_words(
    table: Table,
    columns: Sequence[str],
    output: Output,
    *,
    min_df: int | None = None,
    max_words: int | None = None,
    stop_words: str | None = None,
) -> tuple[WordCounts, Any]:
    """Choose the words, and return them with their counts in the documents of a table.

    Parameters
    ----------
    columns : sequence of str
        That hold the text; empty where the table says so itself, or holds counts.
    output : Output
        Hears which words are kept, and what looks wrong.
    min_df : int, optional
        Documents that a word must occur in.
    max_words : int, optional
        How many words, the most frequent ones.
    stop_words : str, optional
        "auto", "english", "none", or a file with a word per line.

    Raises
    ------
    BadDataError
        If there is no text, or no word is left.
    UserError
        If it is not known which column holds the text.
    """
    stop_words = stop_words or "auto"
    if table.counts is not None:
        if columns:
            raise UserError(f"--text {columns[0]}: {table.source} holds counts of words, not text")
        counts, words = _check_counts(table), np.array(table.words, dtype=object)
        min_df, stop_words = min_df or 1, "none" if stop_words == "auto" else stop_words
    else:
        columns = text_columns(table, columns)
        counter = _counter()
        try:
            counts = counter.fit_transform(_join_texts(table.column(name) for name in columns))
        except ValueError:
            raise BadDataError(f"{table.source}: column {columns[0]!r} has no words (letters, two or more)") from None
        words = counter.get_feature_names_out()
        min_df = min_df or (MIN_DOCUMENTS if table.n_rows >= FEW_DOCUMENTS else 1)
    kept = _choose(counts, words, min_df, stop_words, max_words or MAX_WORDS, output)
    if not kept.any():
        raise BadDataError(
            f"{table.source}: no word is left of {len(words)} that occur: none is in {counted(min_df, 'document')} or "
            "more and no stop word. Lower --min-df; text without spaces between words must be cut into words first"
        )
    if _without_spaces(words[kept]):
        output.warn(
            "most words are longer than words of their script are: Chinese, Japanese, Thai and the like have no spaces "
            "between words, and must be cut into words first"
        )
    return WordCounts(words[kept].tolist(), list(columns), table.first is not None), counts[:, kept]


def text_columns(table: Table, columns: Sequence[str]) -> list[str]:
    """Return the columns that hold text, those that are named or those that the table knows of."""
    columns = list(columns or table.text)
    if not columns:
        raise UserError(f"say which column holds the text, with --text. {_candidates(table)}")
    for name in columns:
        if name not in table:
            raise BadDataError(f"--text {name}: {table.source} has no such column; {not_among(name, table.names)}")
        column = table.column(name)
        if column.dtype != object:
            what = "is empty" if not np.isfinite(column).any() else "holds numbers, not text"
            raise BadDataError(f"--text {name}: the column {what}")
    return columns


def _join_texts(columns: Iterable[Any]) -> list[str]:
    """Return the text of each row, empty where it is missing."""
    parts = [[value if isinstance(value, str) else "" for value in column] for column in columns]
    return ["\n".join(row) for row in zip(*parts, strict=True)]


def _candidates(table: Table) -> str:
    """Say which columns hold text, the longest texts first."""
    lengths = {
        name: sum(len(value) for value in column if value is not None)
        for name, column in table.frame.items()
        if column.dtype == object
    }
    found = sorted(lengths, key=lambda name: -lengths[name])
    return f"Text is in {listed(found)}" if found else f"{table.source} has no column of text"


def _choose(counts: Any, words: NDArray[Any], minimum: int, stop_words: str, most: int, output: Output) -> Flags:
    """Return which words to keep, and say what was left out."""
    in_documents = np.bincount(counts.indices[counts.data != 0], minlength=len(words))
    stop, name = _stop_words(counts, words, in_documents, stop_words)
    short = np.array([len(word) <= LONGEST_WORD for word in words], dtype=bool)
    kept = np.asarray((in_documents >= minimum) & ~stop & short)
    parts = [f"{name} left out"] if stop.any() else []
    if minimum > 1:
        parts.append(f"those in fewer than {minimum} documents left out")
    if kept.sum() > most:
        places = np.flatnonzero(kept)
        totals = np.asarray(counts.sum(axis=0)).ravel()[places]
        kept[places[np.argsort(-totals, kind="stable")[most:]]] = False
        parts.append(f"the {most} most frequent kept")
    output.say(f"{int(kept.sum())} words of {len(words)}" + (f": {', '.join(parts)}" if parts else ""))
    return kept


def _without_spaces(words: NDArray[Any]) -> bool:
    """Whether most words are of a script without spaces, and so long that they are pieces of sentences."""
    found = [len(word) for word in words if UNSPACED.search(word)]
    return len(found) > 0.5 * len(words) and float(np.median(found)) > LONG_UNSPACED


def _stop_words(counts: Any, words: NDArray[Any], in_documents: NDArray[Any], wanted: str) -> tuple[Flags, str]:
    """Return which words say nothing, and what to call them."""
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    if wanted == "none":
        return np.zeros(len(words), dtype=bool), ""
    if wanted not in STOP_WORDS:
        return np.isin(words, list(_read_word_list(wanted))), f"the words of {wanted}"
    english = np.array([word in ENGLISH_STOP_WORDS for word in words], dtype=bool)
    totals = np.asarray(counts.sum(axis=0), dtype=np.float64).ravel()
    if wanted == "english" or totals[english].sum() > ENGLISH_SHARE * totals.sum():
        return english, "English stop words"
    return np.asarray(in_documents > COMMON * counts.shape[0]), f"words of more than {COMMON:.0%} of the documents"


def _read_word_list(path: str) -> set[str]:
    try:
        return set(_normalize_text(Path(path).read_text(encoding="utf-8")).split())
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text in UTF-8"
        choices = ", ".join(STOP_WORDS)
        raise UserError(f"--stop-words must be {choices} or a file with a word per line; {path!r}: {reason}") from None


def _counter(**options: Any) -> Any:
    from sklearn.feature_extraction.text import CountVectorizer

    return CountVectorizer(preprocessor=_normalize_text, token_pattern=TOKEN, dtype=np.int32, **options)


def _normalize_text(text: str) -> str:
    """Return text in lower case, each letter in one form."""
    return unicodedata.normalize("NFKC", text).lower()


def _check_counts(table: Table) -> Any:
    if len(set(table.words)) < len(table.words):
        raise BadDataError(f"{table.source} has several columns of one name among its words")
    data = table.counts.data
    if not np.all(np.isfinite(data)):
        raise BadDataError(f"{table.source} should hold counts of words; it has NaN or infinite values")
    if len(data) and data.min() < 0:
        raise BadDataError(f"{table.source} should hold counts of words; it has the value {data.min():g}")
    return _whole(table.counts)


def _align_counts(table: Table, words: Sequence[str]) -> Any:
    """Return the columns of a table's counts that belong to words; a word that is not there is nowhere."""
    from scipy.sparse import csr_array

    place = {word: i for i, word in enumerate(words)}
    pairs = [(i, place[word]) for i, word in enumerate(table.words) if word in place]
    rows, columns = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    found = _check_counts(table)
    choose = csr_array((np.ones(len(rows), dtype=found.dtype), (rows, columns)), shape=(len(table.words), len(words)))
    return csr_array(found @ choose)


def _whole(counts: Any) -> Any:
    """Return counts as whole numbers, if they are, without stored zeros."""
    whole = counts.data.dtype.kind in "biu" or bool(np.all(counts.data == np.rint(counts.data)))
    counts = counts.astype(np.int32 if whole else np.float64)
    counts.eliminate_zeros()
    return counts


@dataclass(frozen=True)
class CountedDocuments(Sequence[str]):
    """Documents that are known by counts, shown by their most frequent words; made when they are asked for."""

    counts: Any
    words: Sequence[str]

    def __len__(self) -> int:
        return int(self.counts.shape[0])

    def __getitem__(self, row: Any) -> str:
        start, end = self.counts.indptr[row], self.counts.indptr[row + 1]
        numbers, places = self.counts.data[start:end], self.counts.indices[start:end]
        order = np.argsort(-numbers, kind="stable")[:SHOWN_WORDS]
        return ", ".join(
            self.words[places[i]] + (f" ×{numbers[i]:g}" if numbers[i] != 1 else "") for i in order.tolist()
        )


def show_documents(table: Table, words: WordCounts, counts: Any) -> Sequence[str]:
    """Return what the page shows of documents: their text, or the words that are known of them."""
    if not words.columns:
        return CountedDocuments(counts, words.words)
    return _join_texts(table.column(name) for name in words.columns)
