"""Output files: atomic writes, no overwritten inputs and no lost models."""

from __future__ import annotations

import shutil
import tempfile

import numpy as np
import pytest

from cli_tools import flowers, run_here, run_process
from regbayes.cli.errors import UserError
from regbayes.cli.fit import SearchWatch
from regbayes.cli.output import replacing

FIT = ("--n-components", 3, "--max-iter", 2, "--folds", 2, "--C", 1, "--no-compare")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Folder with a table and a model of it."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "t.csv").write_text(flowers(40))
    assert run_here("fit", folder / "t.csv", "-t", "kind", "-o", folder / "m", *FIT).code == 0
    return folder


@pytest.mark.parametrize(
    "command",
    [
        ("fit", "{}/t.csv", "-t", "kind", "-o", "{}/t.csv"),
        ("fit", "{}/t.csv", "-t", "kind", "-o", "{}/link"),
        ("predict", "{}/m", "{}/t.csv", "-o", "{}/t.csv"),
        ("predict", "{}/m.csv", "{}/t.csv", "-o", "{}/m.csv"),
        ("report", "{}/m", "-o", "{}/m"),
        ("report", "{}/m", "{}/t.csv", "-o", "{}/t.csv"),
    ],
    ids=" ".join,
)
def test_output_does_not_overwrite_input(place, command):
    if not (place / "link").exists():
        (place / "link").symlink_to(place / "t.csv")
        shutil.copy(place / "m", place / "m.csv")
    before = {path: path.read_bytes() for path in place.iterdir()}
    done = run_here(*(part.format(place) for part in command))
    assert (done.code, "is the file that the command reads" in done.err) == (2, True)
    assert {path: path.read_bytes() for path in place.iterdir()} == before


@pytest.mark.parametrize(
    ("failure", "raised"),
    [(OSError(28, "No space left on device"), UserError), (KeyboardInterrupt(), KeyboardInterrupt)],
    ids=["full disk", "Ctrl-C"],
)
def test_failed_write_keeps_old_file(tmp_path, failure, raised):
    (tmp_path / "t").write_text("old")

    def write(failure=None):
        with replacing(str(tmp_path / "t")) as new:
            new.write_text("new")
            if failure is not None:
                raise failure

    with pytest.raises(raised):
        write(failure)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]
    write()
    assert [path.read_text() for path in tmp_path.iterdir()] == ["new"]


def test_model_is_saved_in_other_folder_if_output_disappears(place, tmp_path, monkeypatch):
    """A folder deleted during a long fit must not lose the fit."""
    (tmp_path / "gone").mkdir()
    (tmp_path / "temporary").mkdir()
    (tmp_path / "temporary" / "m").write_text("of somebody else")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    heard = SearchWatch.__call__

    def lose(watch, record):
        shutil.rmtree(tmp_path / "gone", ignore_errors=True)
        heard(watch, record)

    monkeypatch.setattr(SearchWatch, "__call__", lose)
    done = run_here("fit", place / "t.csv", "-t", "kind", "-o", tmp_path / "gone" / "m", *FIT, "--json")
    assert done.code == 2
    kept = done.json["model"]
    assert f"The model is in {kept} instead" in done.err
    assert (tmp_path / "temporary" / "m").read_text() == "of somebody else"
    assert run_here("predict", kept, place / "t.csv").code == 0


def test_full_disk_behind_stdout_is_a_usage_error(place):
    for command in ("predict", "evaluate"):
        with open("/dev/full", "w") as full:
            done = run_process(command, place / "m", place / "t.csv", stdout=full)
        assert done.code == 2
        assert done.err.splitlines()[-1] == "error: the output: No space left on device"


@pytest.mark.parametrize("suffix", ["csv", "npz", "parquet"])
def test_predictions_are_equal_in_all_formats(place, suffix):
    path = place / f"p.{suffix}"
    done = run_here("predict", place / "m", place / "t.csv", "--output", path)
    assert (done.code, done.out) == (0, "")
    wanted = run_here("predict", place / "m", place / "t.csv").out.split()[1:]
    if suffix == "csv":
        found = path.read_text().split()[1:]
    elif suffix == "npz":
        with np.load(path, allow_pickle=False) as saved:
            found = saved["kind"].tolist()
    else:
        import pyarrow.parquet

        found = pyarrow.parquet.read_table(path)["kind"].to_pylist()
    assert found == wanted
