"""Loaders of data sets: file formats, invalid files and published splits."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import random_array

from regbayes_paper import data
from regbayes_paper.data import CATALOG, DataError, DataNotFoundError, load, load_movie_reviews, load_school, load_yeast

RNG = np.random.default_rng(0)


def test_load_real_files_returns_known_shapes_and_splits():
    if data.data_folder() is None:
        pytest.skip("needs the folder that REGBAYES_DATA names")
    for name, known in CATALOG.items():
        if known.shape is None:
            continue
        found = load(name, download_if_missing=False)
        assert found.data.shape == known.shape
        assert len(found.target) == known.shape[0]
        if known.n_train is not None:
            assert len(found.train) == known.n_train
            np.testing.assert_array_equal(np.sort(np.concatenate([found.train, found.test])), np.arange(known.shape[0]))
    splits = load_school().splits
    assert len(splits) == 10
    assert {(len(train), len(test)) for train, test in splits} == {(11472, 3890)}
    for train, test in splits:
        assert len(np.union1d(train, test)) == 15362


def write_yeast(folder, **changes):
    """Write a file with the shape of Yeast."""
    Y = RNG.integers(0, 2, (2417, 14)).astype(np.int8)
    arrays = {"X": RNG.standard_normal((2417, 103)), "Y": Y} | changes
    np.savez(folder / "yeast.npz", **{name: value for name, value in arrays.items() if value is not None})


def test_load_npz_in_another_order_has_no_published_split(tmp_path):
    write_yeast(tmp_path)
    found = load_yeast(folder=tmp_path)
    assert found.data.shape == (2417, 103)
    assert "train" not in found
    X, Y = load_yeast(folder=tmp_path, return_X_y=True)
    np.testing.assert_array_equal(Y, found.target)
    np.testing.assert_array_equal(X, found.data)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"X": np.zeros((2417, 5))}, "must have shape"),
        ({"Y": None}, "must hold X and Y"),
        ({"Y": np.zeros((5, 14))}, "has 2417 rows, but Y has 5"),
    ],
)
def test_load_invalid_file_raises_data_error(tmp_path, changes, message):
    write_yeast(tmp_path, **changes)
    with pytest.raises(DataError, match=message):
        load_yeast(folder=tmp_path)


def test_load_corrupt_file_raises_data_error(tmp_path):
    (tmp_path / "yeast.npz").write_bytes(b"PK not a zip")
    with pytest.raises(DataError, match="cannot be read as npz"):
        load_yeast(folder=tmp_path)


def test_load_missing_data_set_explains_how_to_obtain_it(tmp_path, monkeypatch):
    with pytest.raises(DataNotFoundError, match="from OpenML"):
        load_yeast(folder=tmp_path, download_if_missing=False)
    monkeypatch.setenv("REGBAYES_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(DataNotFoundError, match="does not exist"):
        load_yeast()


def test_load_movie_reviews_returns_sparse_counts_and_targets(tmp_path):
    X = random_array((5006, 14856), density=1e-4, format="csr", rng=RNG)
    X.data = np.ceil(5 * X.data)
    parts = {"X_data": X.data, "X_indices": X.indices, "X_indptr": X.indptr, "X_shape": np.array(X.shape)}
    ratings = RNG.random(5006)
    np.savez(tmp_path / "movie_review_scale.npz", y=ratings, y_class3=(3 * ratings).astype(int), **parts)
    found, classes = load_movie_reviews(folder=tmp_path, target="class3", return_X_y=True)
    np.testing.assert_array_equal(found.toarray().sum(axis=0), X.toarray().sum(axis=0))
    np.testing.assert_array_equal(classes, (3 * ratings).astype(int))
