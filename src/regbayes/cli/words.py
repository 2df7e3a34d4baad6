"""Word counts of documents with a fixed vocabulary.

scikit-learn's ``CountVectorizer`` counts the words. The model file stores the vocabulary as plain text and contains no
executable code.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin

from regbayes._registry import persistable
from regbayes.cli.errors import BadDataError, UserError, counted, listed
from regbayes.cli.read import Table

if TYPE_CHECKING:
    import pandas as pd

    from regbayes.cli.options import FitRequest
    from regbayes.cli.output import Output

__all__ = ["WordCounts", "join_texts", "learn_words", "show_documents", "text_columns"]

# A word begins with a letter and has at least two characters. Model files do not store the pattern, because a regular
# expression from an untrusted file can take exponential time.
TOKEN = r"(?u)\b[^\W\d_]\w+\b"
MAX_CHARACTERS = 40  # maximum length of a word; longer ones are often URLs or encoded data
MAX_COUNT = 2**31 - 1  # maximum count of a word in a document


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
        counter = _counter(self.ngrams, vocabulary=list(self.words))
        return counter.transform(join_texts(X[name] for name in self.columns))

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


def learn_words(table: Table, request: FitRequest, output: Output) -> tuple[WordCounts, Any]:
    """Choose the vocabulary and return it with the word counts of a table."""
    columns: list[str] = []
    if table.counts is not None:
        if request.text or request.ngrams > 1:
            raise UserError(f"--text and --ngrams: {table.source} holds counts of words, not text")
        counts, words, least = _check_counts(table), np.array(table.words, dtype=object), request.min_df or 1
    else:
        columns = text_columns(table, request.text)
        counter = _counter(request.ngrams)
        try:
            counts = counter.fit_transform(join_texts(table.column(name) for name in columns))
        except ValueError:
            raise BadDataError(f"{table.source}: column {columns[0]!r} has no words (two letters or more)") from None
        words = counter.get_feature_names_out()
        least = request.min_df or (3 if table.n_rows >= 100 else 1)
    in_documents = np.bincount(counts.indices[counts.data != 0], minlength=len(words))
    kept = (in_documents >= least) & np.array(
        [len(word) <= MAX_CHARACTERS * request.ngrams for word in words], dtype=bool
    )
    kept &= ~np.isin(words, list(_read_stop_words(request.stop_words)))
    most = request.max_words
    if kept.sum() > most:
        totals = np.where(kept, np.asarray(counts.sum(axis=0)).ravel(), -1)
        kept[np.argsort(-totals, kind="stable")[most:]] = False
    if not kept.any():
        raise BadDataError(
            f"{table.source}: none of {len(words)} words is in {counted(least, 'document')} or more. Lower --min-df; "
            "text without spaces between words must be cut into words first"
        )
    output.say(f"{kept.sum()} words of {len(words)}: those in {counted(least, 'document')} or more, {most} at most")
    return WordCounts(words[kept].tolist(), columns, request.ngrams), counts[:, np.flatnonzero(kept)]


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


def join_texts(columns: Iterable[Any]) -> list[str]:
    """Join the texts of each row; missing texts are empty."""
    parts = [[value if isinstance(value, str) else "" for value in column] for column in columns]
    return ["\n".join(row) for row in zip(*parts, strict=True)]


def _read_stop_words(wanted: str | None) -> set[str]:
    """Return the stop words: none, scikit-learn's English list or those of a file."""
    if wanted is None:
        return set()
    if wanted == "english":
        from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

        return set(ENGLISH_STOP_WORDS)
    try:
        return set(Path(wanted).read_text(encoding="utf-8").lower().split())
    except (OSError, UnicodeError) as error:
        raise UserError(f"--stop-words must be english or a text file; {wanted!r}: {error}") from None


def _counter(ngrams: int, **options: Any) -> Any:
    from sklearn.feature_extraction.text import CountVectorizer

    return CountVectorizer(token_pattern=TOKEN, ngram_range=(1, ngrams), dtype=np.int32, **options)


def _check_counts(table: Table) -> Any:
    """Validate a table's counts and return them without stored zeros, as integers if integral."""
    if len(set(table.words)) < len(table.words):
        raise BadDataError(f"{table.source} has several columns of one name among its words")
    data = table.counts.data
    odd = data[~(np.isfinite(data) & (data >= 0) & (data <= MAX_COUNT))]
    if len(odd):
        raise BadDataError(f"{table.source} should hold counts of words, up to {MAX_COUNT}; it has {odd[0]:g}")
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
        return join_texts(table.column(name) for name in words.columns)
    texts = []
    for start, end in pairwise(counts.indptr):
        numbers, places = counts.data[start:end], counts.indices[start:end]
        order = np.argsort(-numbers, kind="stable")[:n_words]
        texts.append(", ".join(f"{words.words[places[i]]} ×{numbers[i]:g}" for i in order))
    return texts
