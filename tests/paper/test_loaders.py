"""The loaders: folder, cache and network, in this order, and what they say where nothing is found."""

from __future__ import annotations

import dataclasses
import socket

import numpy as np
import pytest
from scipy.sparse import csr_matrix, random_array

from openml_stand_in import serving
from regbayes_paper import data
from regbayes_paper.data import ChecksumWarning, DataError, DataNotFoundError, catalog, loaders
from regbayes_paper.data.fetch import label_digest

EMOTIONS = catalog.CATALOG["emotions"]


@pytest.fixture(autouse=True)
def nowhere(monkeypatch, tmp_path):
    """No folder of data, an empty cache, and no network."""
    monkeypatch.delenv("REGBAYES_DATA", raising=False)
    monkeypatch.setenv("REGBAYES_CACHE", str(tmp_path / "cache"))

    def refuse(*_, **__):
        raise OSError("no network in this test")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr("time.sleep", lambda _: None)  # between tries


@pytest.fixture
def emotions():
    """Numbers in the shape of the Emotions set."""
    rng = np.random.default_rng(0)
    return rng.standard_normal((593, 72)).round(3), (rng.random((593, 6)) < 0.3).astype(np.int8)


def as_arff(X, Y, *, words=("0", "1"), inputs_last=False) -> str:
    inputs = [f"@attribute x{i} numeric" for i in range(X.shape[1])]
    labels = [f"@attribute {name} {{{','.join(words)}}}" for name in EMOTIONS.labels]
    rows = [([*map(repr, x)], [words[v] for v in y]) for x, y in zip(X.tolist(), Y.tolist(), strict=True)]
    lines = [",".join([*y, *x] if inputs_last else [*x, *y]) for x, y in rows]
    header = [*labels, *inputs] if inputs_last else [*inputs, *labels]
    return "\n".join(["@relation emotions", *header, "@data", *lines, ""])


def test_an_npz_file_in_the_folder(tmp_path, emotions, monkeypatch):
    X, Y = emotions
    np.savez(tmp_path / "emotions.npz", X=X, Y=Y, train_idx=np.arange(391), test_idx=np.arange(391, 593))
    with pytest.warns(ChecksumWarning, match="not the file whose checksum is recorded"):
        found = data.load_emotions(folder=tmp_path)
    np.testing.assert_array_equal(found.data, X)
    np.testing.assert_array_equal(found.target, Y)
    assert len(found.train) == 391
    assert found.target_names.tolist() == list(EMOTIONS.labels)
    assert found.filename == str(tmp_path / "emotions.npz")
    assert "593 songs" in found.DESCR
    monkeypatch.setenv("REGBAYES_DATA", str(tmp_path))
    with pytest.warns(ChecksumWarning):
        again, target = data.load_emotions(return_X_y=True)
    np.testing.assert_array_equal(again, X)
    np.testing.assert_array_equal(target, Y)


@pytest.mark.parametrize("inputs_last", [False, True])
def test_mulan_files_in_the_folder(tmp_path, emotions, monkeypatch, inputs_last):
    X, Y = emotions
    monkeypatch.setitem(catalog.CATALOG, "emotions", dataclasses.replace(EMOTIONS, arff_sha256={}))
    for part, rows in (("train", slice(0, 391)), ("test", slice(391, None))):
        (tmp_path / f"emotions-{part}.arff").write_text(as_arff(X[rows], Y[rows], inputs_last=inputs_last))
    found = data.load_emotions(folder=tmp_path)
    np.testing.assert_array_equal(found.data, X)
    np.testing.assert_array_equal(found.target, Y)
    np.testing.assert_array_equal(np.concatenate([found.train, found.test]), np.arange(593))


ARFF = "@relation r\n@attribute a numeric\n@attribute\t'wind speed' real\n@attribute c {cat,'big dog'}\n@data\n"


@pytest.mark.parametrize(
    ("rows", "X"),
    [
        ("1,?,cat\n% a comment\n0,2.5,'big dog'\n", [[1.0, np.nan], [0.0, 2.5]]),
        ("{0 1}\n{1 2.5, 2 'big dog'}\n", [[1.0, 0.0], [0.0, 2.5]]),
    ],
    ids=["dense", "sparse"],
)
def test_arff_files_whose_last_attribute_is_the_class(tmp_path, rows, X):
    (tmp_path / "flickr.arff").write_text(ARFF + rows)
    found = data.load_flickr(folder=tmp_path)
    np.testing.assert_array_equal(found.data, X)
    assert found.target.tolist() == [0, 1]
    assert found.feature_names.tolist() == ["a", "wind speed"]
    assert found.target_names.tolist() == ["cat", "big dog"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2\n", "cannot be read as ARFF: Invalid layout of the ARFF file, at line 1"),
        ("@relation r\n@attribute a numeric\n", "Invalid layout of the ARFF file, at line 2"),
        (ARFF + "1,2,cat\n1,2\n", "Bad @DATA instance format in line 7: 1,2"),
        (ARFF + "1,two,cat\n", "Invalid numerical value, at line 6"),
        (ARFF + "1,2,mouse\n", "Data value mouse not found in nominal declaration, at line 6"),
        (ARFF + "1,2,'big\n", "at line 6. Error parsing"),
        (ARFF + "{0 1\n", "at line 6. Error parsing"),
        (ARFF + "{7 1}\n", "Bad @DATA instance format in line 6"),
        (ARFF + "1,2,?\n", "has rows without a class"),
        (
            "@relation r\n@attribute a string\n@attribute c {x}\n@data\nword,x\n",
            "inputs that are not numbers: .*'word'",
        ),
    ],
)
def test_damaged_arff_files(tmp_path, text, message):
    (tmp_path / "flickr.arff").write_text(text)
    with pytest.raises(DataError, match=message):
        data.load_flickr(folder=tmp_path)


def test_arff_files_with_other_labels(tmp_path, emotions):
    path = tmp_path / "emotions.arff"
    path.write_text(as_arff(*emotions).replace("quiet-still", "noisy"))
    with pytest.raises(DataError, match="it lacks quiet-still"):
        data.load_emotions(folder=tmp_path)
    path.write_text(as_arff(*emotions, words=("0", "2")))
    with pytest.raises(DataError, match="labels should be 0 and 1, or false and true; found '2'"):
        data.load_emotions(folder=tmp_path)


def test_arff_parts_that_do_not_belong_together(tmp_path):
    for part, categories in (("train", "{cat,dog}"), ("test", "{dog,cat}")):
        text = f"@relation r\n@attribute x numeric\n@attribute c {categories}\n@data\n1,dog\n"
        (tmp_path / f"flickr-{part}.arff").write_text(text)
    with pytest.raises(DataError, match="the training part and the test part have different class_names"):
        data.load_flickr(folder=tmp_path)


def test_openml_then_the_cache(tmp_path, emotions, monkeypatch):
    X, Y = emotions
    monkeypatch.undo()  # this test has a network: the stand-in
    monkeypatch.delenv("REGBAYES_DATA", raising=False)
    monkeypatch.setenv("REGBAYES_CACHE", str(tmp_path / "cache"))
    known = dataclasses.replace(EMOTIONS, target_sha256=label_digest(Y))
    monkeypatch.setitem(catalog.CATALOG, "emotions", known)
    arff = as_arff(X, Y, words=("FALSE", "TRUE"))
    with serving(monkeypatch, EMOTIONS.openml_id, arff, list(EMOTIONS.labels)) as asked:
        fetched = data.load_emotions()
        assert f"/api/v1/json/data/{EMOTIONS.openml_id}" in asked
        n_asked = len(asked)
        kept = data.load_emotions()
        assert len(asked) == n_asked  # the cache answered
    for found in (fetched, kept):
        np.testing.assert_array_equal(found.data, X)
        np.testing.assert_array_equal(found.target, Y)
        np.testing.assert_array_equal(found.train, np.arange(391))
    path = tmp_path / "cache" / "emotions.npz"
    path.write_bytes(path.read_bytes()[:-100] + b"x" * 100)
    with pytest.raises(DataError, match="is damaged: its checksum"):
        data.load_emotions()


def test_rows_in_another_order_than_published_have_no_split(tmp_path, emotions, monkeypatch):
    X, Y = emotions
    monkeypatch.undo()
    monkeypatch.delenv("REGBAYES_DATA", raising=False)
    monkeypatch.setenv("REGBAYES_CACHE", str(tmp_path / "cache"))
    known = dataclasses.replace(EMOTIONS, target_sha256=label_digest(Y[::-1]))
    monkeypatch.setitem(catalog.CATALOG, "emotions", known)
    with serving(monkeypatch, EMOTIONS.openml_id, as_arff(X, Y), list(EMOTIONS.labels)):
        found = data.load_emotions()
    assert "train" not in found


@pytest.mark.parametrize("name", ["yeast", "scene", "emotions"])
def test_offline_the_error_says_what_to_do(name):
    with pytest.raises(DataNotFoundError) as caught:
        getattr(data, f"load_{name}")()
    message = str(caught.value)
    assert "no network in this test" in message
    assert f"{name}-train.arff" in message
    assert "REGBAYES_DATA" in message


@pytest.mark.parametrize("name", ["trecvid2003", "flickr"])
def test_sets_that_are_not_public_come_from_a_folder(tmp_path, name):
    load = getattr(data, f"load_{name}")
    with pytest.raises(DataNotFoundError, match="not public"):
        load()
    np.savez(tmp_path / f"{name}.npz", X=np.eye(4), y=np.array([0, 1, 2, 1]), class_names=np.array(["a", "b", "c"]))
    found = load(folder=tmp_path)
    assert found.data.shape == (4, 4)
    assert found.target_names.tolist() == ["a", "b", "c"]
    (tmp_path / f"{name}.npz").unlink()
    (tmp_path / f"{name}.arff").write_text(
        "@relation r\n@attribute x numeric\n@attribute c {cat,dog}\n@data\n1,dog\n2,cat\n"
    )
    found = load(folder=tmp_path)
    assert found.target.tolist() == [1, 0]
    assert found.target_names.tolist() == ["cat", "dog"]


def test_no_download_where_it_is_not_wanted():
    with pytest.raises(DataNotFoundError) as caught:
        data.load_yeast(download_if_missing=False)
    assert "network (" not in str(caught.value)


def test_files_that_cannot_be_used(tmp_path, emotions):
    X, Y = emotions
    with pytest.raises(DataNotFoundError, match="not a folder"):
        data.load_emotions(folder=tmp_path / "none")
    path = tmp_path / "emotions.npz"
    for arrays, message in (
        ({"X": X}, "should hold X and Y; it holds X"),
        ({"X": X, "y": Y[:, 0]}, "0/1 matrix Y"),
        ({"X": X[:, :5], "Y": Y}, r"should have shape \(593, 72\), got \(593, 5\)"),
        ({"X": X, "Y": Y[:7]}, "Y has 7"),
        ({"X": X, "Y": Y[:, :2]}, "should have 6 columns"),
        ({"X": np.array([{}], dtype=object), "Y": Y}, "Object arrays cannot be loaded"),
    ):
        np.savez(path, **arrays)
        with pytest.warns(ChecksumWarning), pytest.raises(DataError, match=message):
            data.load_emotions(folder=tmp_path)
    path.write_bytes(b"not a zip archive")
    with pytest.warns(ChecksumWarning), pytest.raises(DataError, match="not an npz file"):
        data.load_emotions(folder=tmp_path)


def test_newsgroups_through_scikit_learn(monkeypatch):
    posts = {
        "train": ["Apples and APPLES, bananas", "apples bananas cherries", "apples the bananas 42", "cherries"],
        "test": ["bananas unseen"],
    }

    def fetch(subset, **_):
        from sklearn.utils import Bunch

        return Bunch(data=posts[subset], target=np.arange(len(posts[subset])) % 2, target_names=["x", "y"])

    monkeypatch.setattr("sklearn.datasets.fetch_20newsgroups", fetch)
    known = dataclasses.replace(catalog.CATALOG["20newsgroups_bydate"], shape=(5, 2))
    monkeypatch.setitem(catalog.CATALOG, "20newsgroups_bydate", known)
    for found in (data.load_20newsgroups(), data.load_20newsgroups()):  # fetched, then from the cache
        assert isinstance(found.data, csr_matrix)
        assert found.feature_names.tolist() == ["apples", "bananas"]
        np.testing.assert_array_equal(found.data.toarray(), [[2, 1], [1, 1], [1, 1], [0, 0], [0, 1]])
        assert found.train.tolist() == [0, 1, 2, 3]
        assert found.test.tolist() == [4]


def test_reviews_have_three_targets(tmp_path, monkeypatch):
    counts = random_array((6, 4), density=0.5, format="csr", rng=np.random.default_rng(0))
    counts.data = np.ceil(counts.data).astype(np.int16)
    known = dataclasses.replace(catalog.CATALOG["movie_review_scale"], shape=(6, 4), npz_sha256=None)
    monkeypatch.setitem(catalog.CATALOG, "movie_review_scale", known)
    np.savez(
        tmp_path / "movie_review_scale.npz",
        X_data=counts.data,
        X_indices=counts.indices,
        X_indptr=counts.indptr,
        X_shape=np.array(counts.shape),
        y=np.linspace(0, 1, 6),
        y_class3=np.arange(6) // 2,
        vocabulary=np.array(list("abcd")),
    )
    rating = data.load_movie_reviews(folder=tmp_path)
    np.testing.assert_array_equal(rating.data.toarray(), counts.toarray())
    assert rating.target_names.tolist() == ["rating"]
    assert data.load_movie_reviews(target="class3", folder=tmp_path).target.tolist() == [0, 0, 1, 1, 2, 2]
    with pytest.raises(DataError, match="no array 'y_class4'"):
        data.load_movie_reviews(target="class4", folder=tmp_path)
    with pytest.raises(ValueError, match="target must be"):
        data.load_movie_reviews(target="stars", folder=tmp_path)


def test_the_cache_folder_is_where_it_is_asked_for(monkeypatch, tmp_path):
    assert data.cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("REGBAYES_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    assert data.cache_folder() == tmp_path / "regbayes"


PUBLISHED = {  # name: rows, inputs, targets or classes, tasks
    "load_yeast": (2417, 103, 14, None),
    "load_scene": (2407, 294, 6, None),
    "load_emotions": (593, 72, 6, None),
    "load_school": (15362, 27, None, 139),
    "load_landmine": (14820, 9, 2, 29),
    "load_scene15": (4485, 119, 15, None),
    "load_20newsgroups": (18846, 30815, 20, None),
    "load_movie_reviews": (5006, 14856, None, None),
}


@pytest.mark.data
@pytest.mark.parametrize("name", PUBLISHED)
def test_the_real_sets_are_what_was_published(data_folder, name):
    rows, inputs, targets, tasks = PUBLISHED[name]
    found = getattr(loaders, name)(folder=data_folder)  # a checksum that differs would be a warning, and so an error
    assert found.data.shape == (rows, inputs)
    assert len(found.target) == rows
    if targets is not None:
        assert len(found.target_names) == targets
    if tasks is not None:
        assert len(np.unique(found.task)) == tasks
    if "train" in found:
        np.testing.assert_array_equal(np.sort(np.concatenate([found.train, found.test])), np.arange(rows))


@pytest.mark.data
@pytest.mark.parametrize("name", ["yeast", "scene", "emotions"])
def test_the_labels_tell_the_published_order(data_folder, name):
    found = getattr(loaders, f"load_{name}")(folder=data_folder)
    assert label_digest(found.target) == catalog.CATALOG[name].target_sha256
    assert len(found.train) == catalog.CATALOG[name].n_train
