"""Keys of ``--json`` and columns of predictions, as documented in docs/command_line.md."""

from __future__ import annotations

import numpy as np
import pytest

from cli_tools import flowers, reviews, run_here

ONE = ("--n-components", 4, "--max-iter", 3, "--no-cv", "--C", 1)
SEARCH = ("--n-components", 3, "--max-iter", 3, "--folds", 2, "--C", 0.3, "--C", 1)
FITS = {  # model -> data and options
    "flowers": ("flowers.csv", "-t", "kind", *ONE),
    "flowers-search": ("flowers.csv", "-t", "kind", *SEARCH),
    "labels": ("labels.npz", *ONE),
    "texts": ("reviews.csv", "--text", "review", "-t", "subject", *ONE),
}
FIT_KEYS = {
    *("command", "model", "estimator", "kind", "targets", "task", "rows", "inputs", "weight", "setting", "settings"),
    *("n_components", "n_components_in_use", "seconds", "interrupted", "kept", "baseline_score", "cross_validation"),
    *("comparison", "no_better_than_baseline", "warnings"),
}
COMPARISON_KEYS = {
    *("metric", "folds", "best_of", "systems", "no_better_than_baseline", "outperformed_by", "never_predicted"),
    *("messages", "interrupted"),
}
SYSTEM_KEYS = {*("role", "name", "score", "std", "difference", "error", "size", "size_unit", "seconds", "note")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder with tables for several kinds of target."""
    place = tmp_path_factory.mktemp("contract")
    (place / "flowers.csv").write_text(flowers())
    (place / "reviews.csv").write_text(reviews())
    X = np.random.default_rng(0).standard_normal((60, 2))
    np.savez(place / "labels.npz", X=X, Y=(X > 0).astype(int))
    return place


@pytest.fixture(scope="module")
def fits(folder):
    """JSON output of each fit."""
    return {
        name: run_here("fit", folder / data, "-o", folder / name, *options, "--json").json
        for name, (data, *options) in FITS.items()
    }


def test_fit_json_has_documented_keys(fits):
    assert {name: found.keys() for name, found in fits.items()} == {
        name: FIT_KEYS | ({"topics"} if name == "texts" else set()) for name in FITS
    }
    search = fits["flowers-search"]
    assert search["cross_validation"].keys() == {"metric", "mean", "std", "folds", "pooled", "candidates"}
    assert {"C", "mean", "std"} <= search["cross_validation"]["candidates"][0].keys()
    assert search["comparison"].keys() == COMPARISON_KEYS
    assert all(row.keys() == SYSTEM_KEYS for row in search["comparison"]["systems"])
    assert fits["texts"]["topics"][0].keys() == {"topic", "share", "weights", "words"}
    assert fits["flowers"]["cross_validation"] is fits["flowers"]["no_better_than_baseline"] is None


def test_predict_has_documented_keys_and_columns(folder, fits):
    more = {"labels": ["--scores"], "texts": ["--keep", "id", "--features"]}
    columns = {
        "labels": ["Y0", "Y1", "Y0=1 score", "Y1=1 score"],
        "texts": ["id", "subject", *(f"topic{k}" for k in range(4))],
    }
    for name, options in more.items():
        predict = ("predict", folder / name, folder / FITS[name][0], *options)
        found = run_here(*predict, "--json").json
        assert list(found) == ["command", "rows", "columns", "warnings"]
        assert list(found["columns"]) == columns[name]
    written = run_here(*predict, "-o", folder / "predictions.csv", "--json").json
    assert written.keys() == {"command", "rows", "output", "warnings"}


def test_report_and_error_json_have_documented_keys(folder, fits):
    found = run_here("report", folder / "flowers", "-o", folder / "page.html", "--json").json
    assert found.keys() == {"command", "model", "data", "output", "bytes", "warnings"}
    done = run_here("evaluate", folder / "flowers", folder / "none.csv", "--json")
    assert (done.code, done.json.keys()) == (3, {"error", "exit_code"})
