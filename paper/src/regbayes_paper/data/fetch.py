"""What comes over the network, all of it through scikit-learn: OpenML's sets, and the newsgroups."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regbayes_paper.data.catalog import Known
from regbayes_paper.data.files import Arrays, DataError, as_labels

__all__ = ["fetch_multilabel", "fetch_newsgroups", "label_digest"]


def label_digest(labels: NDArray[Any]) -> str:
    """Return the SHA-256 of labels, row by row: it tells whether rows are in the published order."""
    return hashlib.sha256(np.ascontiguousarray(labels, dtype=np.int8).tobytes()).hexdigest()


def fetch_multilabel(known: Known) -> Arrays:
    """Fetch a multi-label set from OpenML.

    The published split counts rows, and OpenML does not promise their order. So the split is given only where the
    labels are, row by row, those of the published files.
    """
    from sklearn.datasets import fetch_openml

    # The parser "liac-arff" does without pandas; our own cache keeps the arrays.
    with _without_words():
        found = fetch_openml(
            data_id=known.openml_id, as_frame=False, parser="liac-arff", cache=False, n_retries=1, delay=0.5
        )
    names = [str(name) for name in found.target_names]
    if sorted(names) != sorted(known.labels):
        raise DataError(
            f"OpenML's data set {known.openml_id} should have the labels {', '.join(known.labels)}; "
            f"it has {', '.join(names) or 'none'}"
        )
    order = [names.index(label) for label in known.labels]
    labels = as_labels(np.asarray(found.target)[:, order], f"OpenML's data set {known.openml_id}")
    arrays: Arrays = {
        "X": np.asarray(found.data, dtype=np.float64),
        "Y": labels,
        "feature_names": np.array([str(name) for name in found.feature_names]),
        "label_names": np.array(known.labels),
    }
    if label_digest(labels) == known.target_sha256 and known.n_train is not None:
        arrays["train_idx"] = np.arange(known.n_train)
        arrays["test_idx"] = np.arange(known.n_train, len(labels))
    return arrays


def fetch_newsgroups() -> Arrays:
    """Fetch the newsgroups with scikit-learn and count their words as the file of the catalog does."""
    from scipy.sparse import vstack
    from sklearn.datasets import fetch_20newsgroups
    from sklearn.feature_extraction.text import CountVectorizer

    options: dict[str, Any] = {"shuffle": False, "remove": ("headers",), "n_retries": 1, "delay": 0.5}
    with _without_words():
        parts = [fetch_20newsgroups(subset=part, **options) for part in ("train", "test")]
    counter = CountVectorizer(stop_words="english", token_pattern=r"[a-z][a-z]+", min_df=3)
    counts = vstack([counter.fit_transform(parts[0].data), counter.transform(parts[1].data)]).tocsr()
    n_train, n = len(parts[0].data), counts.shape[0]
    return {
        "X_data": counts.data,
        "X_indices": counts.indices,
        "X_indptr": counts.indptr,
        "X_shape": np.array(counts.shape),
        "y": np.concatenate([part.target for part in parts]),
        "vocabulary": counter.get_feature_names_out().astype(str),
        "class_names": np.array(parts[0].target_names),
        "train_idx": np.arange(n_train),
        "test_idx": np.arange(n_train, n),
    }


@contextmanager
def _without_words() -> Iterator[None]:
    """Keep scikit-learn from warning of each retry: in the end there is a set, or one error that says it all."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
