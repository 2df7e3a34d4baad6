"""Parquet files beyond memory: settings of a sample, and a fit to all rows that says so."""

from __future__ import annotations

import json

import numpy as np
import pytest

from cli_tools import run_here
from regbayes import load
from regbayes.cli import big, readers, tables
from regbayes.cli.big import BigTable, _draw, find_big
from regbayes.cli.tables import read_table
from regbayes.cli.writers import write_in_batches

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

N = 3000
QUICK = ("--n-components", 4, "--max-iter", 5, "--folds", 2, "--no-compare", "--C", 1, "--json")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    rng = np.random.default_rng(0)
    on = (rng.random((N, 3)) < 0.4).astype(float)
    numbers = on @ rng.normal(size=(3, 6)) + 0.5 * rng.normal(size=(N, 6))
    frame = pd.DataFrame(numbers, columns=[f"x{i}" for i in range(6)])
    frame.loc[::50, "x2"] = np.nan
    frame["place"] = np.array(["wood", "field", "shore"])[rng.integers(0, 3, N)]
    frame["wet"] = pd.array(rng.random(N) < 0.5, dtype="boolean")
    frame.loc[5:9, "wet"] = pd.NA
    frame["kind"] = np.array(["moss", "fern"])[(on[:, 0] + on[:, 1] > 0.5).astype(int)]
    frame.loc[7, "kind"] = "lichen"  # a class of few
    frame.loc[1200:1204, "kind"] = "lichen"
    frame.loc[20:29, "kind"] = None
    frame["height"], frame["weight"] = 3.0 * on[:, 0] + rng.normal(size=N), 2.0 * on[:, 1] + rng.normal(size=N)
    frame.loc[100:140, "height"] = np.nan
    path = tmp_path_factory.mktemp("big") / "plants.parquet"
    frame.to_parquet(path, row_group_size=700)
    return str(path)


@pytest.fixture
def small_limits(monkeypatch):
    """Let a few thousand cells be many."""
    monkeypatch.setattr(big, "MAX_CELLS", 10_000)
    monkeypatch.setattr(big, "SAMPLE_ROWS", 400)
    monkeypatch.setattr(big, "BATCH_ROWS", 512)
    monkeypatch.setattr(big, "BLOCK_BYTES", 1 << 16)


def test_only_large_files_are_read_in_batches(path, monkeypatch):
    assert find_big(path) is None
    monkeypatch.setattr(big, "MAX_CELLS", 10_000)
    table = find_big(path)
    assert (table.n_rows, len(table.names)) == (N, 11)
    assert find_big(path + ".csv") is None


def test_batches_are_what_is_read_at_once(path, small_limits):
    whole = read_table(path).frame
    table = find_big(path)
    for names in (["x2", "place"], ["kind"]):
        pd.testing.assert_frame_equal(table.read(names).frame, whole[names])
    rows = np.array([0, 3, 511, 512, 2999])
    drawn = table.take(rows).frame
    numbers = [f"x{i}" for i in range(6)]
    np.testing.assert_array_equal(drawn[numbers].to_numpy(), whole[numbers].to_numpy()[rows])
    assert drawn["kind"].tolist() == whole["kind"].iloc[rows].tolist()
    # True and false are numbers in every batch, whether it has holes or not.
    assert {str(batch.frame["wet"].dtype) for batch in table.batches()} == {"float64"}


def test_a_sample_has_some_of_every_class():
    labels = np.repeat([0, 1, 2], [5000, 14990, 10])
    drawn = _draw(labels, len(labels), 0)
    counts = np.bincount(labels[drawn])
    assert counts[2] == 10
    assert counts[1] == pytest.approx(7495, abs=1)
    assert np.all(np.diff(drawn) > 0)
    assert len(_draw(None, 50_000, 0)) == big.SAMPLE_ROWS
    np.testing.assert_array_equal(_draw(None, 30, 0), np.arange(30))


def test_a_classifier_is_fitted_to_all_rows_and_says_so(path, small_limits, tmp_path):
    out = tmp_path / "plants.model"
    targets = ("--target", "kind", "--ignore", "height", "--ignore", "weight")
    run = run_here("fit", path, *targets, "--output", out, *QUICK[2:], "--n-components", 12)
    assert run.code == 0, run.err
    said = " ".join(run.err.split())
    assert "more than 10,000 cells are not read into memory" in said
    assert "a sample of 400 rows" in said
    assert f"a fit to all {N - 10} rows, in blocks" in said
    found = json.loads(run.out)
    assert found["rows"] == N - 10  # without a target
    assert 400 <= found["sample_rows"] <= 410  # and some more of the rare class
    model = load(out)
    assert found["n_components_in_use"] == model.estimator.n_components_ == model.report.features.all_in_use.sum() < 12
    assert not hasattr(model.estimator, "embedding_")  # as large as the rows
    assert sorted(model.estimator.classes_) == ["fern", "lichen", "moss"]
    notes = [words for level, words in model.report.model.notices if level == "note"]
    assert f"fitted to all {N - 10} rows" in notes[0]
    assert found["cross_validation"]["pooled"] > 0.8
    # Missing values are filled by what the sample has; the rest is the fit of all rows.
    table = read_table(path)
    seen = np.array([value is not None for value in table.frame["kind"]])
    assert np.mean(model.predict(table)[seen] == table.frame["kind"].to_numpy()[seen]) > 0.8


def test_several_targets_are_fitted_on_workers(path, small_limits, tmp_path):
    pytest.importorskip("distributed")
    out = tmp_path / "plants.model"
    targets = ("--target", "height", "--target", "weight", "--ignore", "kind")
    run = run_here("fit", path, *targets, "--output", out, *QUICK, "--jobs", 1)
    assert run.code == 0, run.err
    found = json.loads(run.out)
    assert (found["rows"], found["sample_rows"]) == (N, 400)
    model = load(out)
    assert type(model.estimator).__name__ == "MultiTaskILSVMRegressor"
    assert type(model.estimator).__module__ == "regbayes.estimators.multitask"
    table = read_table(path)
    predicted = model.predict(table)[:, 1]
    assert np.corrcoef(predicted, table.frame["weight"])[0, 1] > 0.5


@pytest.mark.parametrize(
    ("trip", "kept"), [(1, "the model is that of the sample"), (14, "the fit to all rows was ended")]
)
def test_an_interrupt_of_workers_is_told(path, small_limits, tmp_path, monkeypatch, trip, kept):
    pytest.importorskip("distributed")
    from dask_tools import interfere

    def interrupt(client):
        raise KeyboardInterrupt

    interfere(monkeypatch, trip, interrupt)
    out = tmp_path / "plants.model"
    targets = ("--target", "height", "--target", "weight", "--ignore", "kind")
    run = run_here("fit", path, *targets, "--output", out, *QUICK, "--jobs", 1)
    assert run.code == 130, run.err
    found = json.loads(run.out)
    assert found["interrupted"]
    assert load(out).facts["kept"].startswith(f"Interrupted: {kept}")


def test_an_interrupt_before_all_rows_are_read_keeps_the_model_of_the_sample(path, small_limits, tmp_path, monkeypatch):
    def interrupt(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr(big, "_forget_rows", interrupt)  # called when all rows are fitted: that fit is not kept
    out = tmp_path / "plants.model"
    run = run_here("fit", path, "--target", "kind", "--ignore", "height", "--ignore", "weight", "--output", out, *QUICK)
    assert run.code == 130, run.err
    assert "the model is that of the sample" in " ".join(run.err.split())
    model = load(out)
    assert len(model.estimator.embedding_) == model.facts["sample_rows"] == model.facts["rows"]
    assert not model.estimator.warm_start


def test_a_column_that_is_not_there_is_named(path, small_limits, tmp_path):
    run = run_here("fit", path, "--target", "age", "--output", tmp_path / "model")
    assert run.code != 0
    assert "has no column 'age'" in " ".join(run.err.split())


def test_a_file_needs_room(path, small_limits, tmp_path, monkeypatch):
    monkeypatch.setattr(big.shutil, "disk_usage", lambda folder: big.shutil._ntuple_diskusage(1000, 900, 100))
    run = run_here("fit", path, "--target", "kind", "--output", tmp_path / "model", *QUICK)
    assert run.code != 0
    assert "TMPDIR" in run.err


def test_a_big_table_knows_its_size():
    assert BigTable("file", 10**6, tuple("abcd")).gigabytes == pytest.approx(0.032)


@pytest.fixture(scope="module")
def models(path, tmp_path_factory):
    """One model of classes and one of numbers, fitted to what is read at once."""
    folder = tmp_path_factory.mktemp("models")
    targets = {"kind": ("--target", "kind", "--ignore", "height"), "height": ("--target", "height", "--ignore", "kind")}
    for name, options in targets.items():
        run = run_here("fit", path, *options, "--ignore", "weight", "--output", folder / name, *QUICK)
        assert run.code == 0, run.err
    return folder


@pytest.mark.parametrize(
    ("name", "suffix", "options"),
    [
        ("kind", ".csv", ("--keep", "place", "--keep", "x2", "--scores", "--probabilities")),
        ("kind", ".parquet", ("--keep", "place", "--keep", "x2", "--threshold", "moss=0.4")),
        ("height", ".parquet", ("--keep", "wet", "--features")),
        ("kind", None, ()),
    ],
)
def test_predictions_of_a_large_file_are_those_of_a_small_one(
    path, models, tmp_path, monkeypatch, name, suffix, options
):
    found = []
    for cells in (10**9, 10_000):
        monkeypatch.setattr(big, "MAX_CELLS", cells)
        monkeypatch.setattr(big, "BATCH_ROWS", 512)
        out = tmp_path / f"answers-{cells}{suffix}"
        given = () if suffix is None else ("--output", out)
        run = run_here("predict", models / name, path, *options, *given)
        assert run.code == 0, run.err
        assert ("512 are read at once" in " ".join(run.err.split())) == (cells == 10_000)
        if suffix is None:
            found.append(run.out)
        else:
            found.append(pd.read_csv(out) if suffix == ".csv" else pd.read_parquet(out))
    if suffix is None:
        assert found[0] == found[1]
        assert len(found[0].splitlines()) == N + 1
    else:
        pd.testing.assert_frame_equal(*found, check_dtype=False, rtol=1e-9)


def test_what_is_odd_in_a_batch_is_said_once(path, small_limits, tmp_path):
    frame = pd.read_parquet(path).drop(columns=["kind", "weight", "wet"])
    frame[frame["place"] != "shore"].head(600).to_csv(tmp_path / "few.csv", index=False)
    frame.to_parquet(tmp_path / "all.parquet")
    options = ("--target", "height", "--task", "place", "--output", tmp_path / "model")
    run = run_here("fit", tmp_path / "few.csv", *options, *QUICK)
    assert run.code == 0, run.err
    run = run_here("predict", tmp_path / "model", tmp_path / "all.parquet", "--output", tmp_path / "predictions.csv")
    assert run.code == 0, run.err
    said = " ".join(run.err.split())
    n_new = int((frame["place"].iloc[:512] == "shore").sum())
    assert (
        f"in one batch of 512 rows, the first to show it: tasks that were not there in training, in {n_new} rows"
        in said
    )
    assert said.count("tasks that were not there") == 1
    assert len(pd.read_csv(tmp_path / "predictions.csv")) == N


def test_columns_of_a_batch_are_what_those_of_all_batches_can_be(tmp_path):
    path = str(tmp_path / "answers.parquet")
    with write_in_batches(path, {"size": float, "name": str}) as write:
        write({"size": [1, 2], "name": [None, None], "class": [0, 1]})
        write({"size": [None, 2.5], "name": ["a", None], "class": [1, 1]})
    found = pd.read_parquet(path)
    np.testing.assert_array_equal(found["size"], [1.0, 2.0, np.nan, 2.5])
    assert found["name"].isna().tolist() == [True, True, False, True]
    assert found["class"].dtype == np.int64


def test_a_prediction_that_fails_halfway_leaves_no_file(tmp_path):
    for suffix in (".csv", ".parquet"):
        out = tmp_path / f"answers{suffix}"
        with pytest.raises(ZeroDivisionError):
            write_half(str(out))
        assert not out.exists()


def write_half(path):
    with write_in_batches(path, {}) as write:
        write({"size": [1, 2]})
        write({"size": [1 / 0]})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--output", "answers.npz"), "to .csv or .parquet"),
        (("--json",), "give --output"),
        (("--keep", "age"), "has no column 'age'"),
    ],
)
def test_what_batches_cannot_do_is_refused(path, models, small_limits, tmp_path, options, said):
    given = [tmp_path / option if str(option).endswith(".npz") else option for option in options]
    run = run_here("predict", models / "kind", path, *given)
    assert run.code != 0
    assert said in " ".join(run.err.split())


def test_a_large_text_file_is_refused_before_it_is_read_and_parquet_is_named(path, models, tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "MAX_CELLS", 10_000)
    monkeypatch.setattr(readers, "MAX_CELLS", 10_000)
    monkeypatch.setattr(readers, "_read_bytes", None)
    monkeypatch.setattr(readers.pd, "read_parquet", None)
    for suffix in (".csv", ".csv.gz"):
        text = tmp_path / f"rows{suffix}"
        pd.DataFrame(np.arange(24_000).reshape(-1, 8) / 7.0).to_csv(text, index=False)
        for command in (("fit", text, "--output", tmp_path / "model"), ("predict", models / "kind", text)):
            run = run_here(*command)
            assert run.code != 0
            assert "save it as Parquet, which fit, predict and evaluate read in blocks" in " ".join(run.err.split())


@pytest.mark.parametrize(("name", "options"), [("kind", ()), ("kind", ("--threshold", "moss=0.4")), ("height", ())])
def test_scores_of_a_large_file_are_those_of_a_small_one(path, models, monkeypatch, name, options):
    found = []
    monkeypatch.setattr(big, "BATCH_ROWS", 512)
    for cells in (10**9, 10_000):
        monkeypatch.setattr(big, "MAX_CELLS", cells)
        run = run_here("evaluate", models / name, path, *options, "--json")
        assert run.code == 0, run.err
        said = " ".join(run.err.split())
        assert ("512 are read at once" in said) == (cells == 10_000)
        assert "rows have no target and are left out" in said
        found.append(json.loads(run.out))
    whole, batches = found
    assert whole.keys() == batches.keys()
    assert whole["rows"] == batches["rows"] < N
    assert batches["scores"] == pytest.approx(whole["scores"], rel=1e-9)
    pd.testing.assert_frame_equal(pd.DataFrame(whole["details"]), pd.DataFrame(batches["details"]), rtol=1e-9)


def test_scores_need_a_target(path, models, small_limits, tmp_path):
    frame = pd.read_parquet(path)
    frame["kind"] = pd.array([None] * N, dtype="string")
    frame.to_parquet(tmp_path / "none.parquet")
    run = run_here("evaluate", models / "kind", tmp_path / "none.parquet")
    assert run.code != 0
    assert "no value of the target in any row" in " ".join(run.err.split())
    frame.drop(columns="kind").to_parquet(tmp_path / "without.parquet")
    run = run_here("evaluate", models / "kind", tmp_path / "without.parquet")
    assert run.code != 0
    assert "no column 'kind'" in " ".join(run.err.split())
