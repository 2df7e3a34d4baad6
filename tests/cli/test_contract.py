"""What programs rely on: the options of each command, the keys of --json, and the columns of predictions.

These tables change only where the change log says so. Exit codes of mistakes are in ``test_commands.py``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import typer

from cli_tools import flowers, reviews, run_here
from regbayes.cli.app import make_app

ONE = ("--n-components", 4, "--max-iter", 3, "--no-cv", "--C", 1)
SEARCH = ("--n-components", 3, "--max-iter", 3, "--folds", 2, "--C", 0.3, "--C", 1)

FITS = {  # model -> data and options
    "flowers": ("flowers.csv", "-t", "kind", *ONE),
    "flowers-search": ("flowers.csv", "-t", "kind", *SEARCH),
    "flowers-stability": ("flowers.csv", "-t", "kind", "--stability", 2, *ONE),
    "numbers": ("numbers.csv", "-t", "sum", "-t", "difference", *ONE),
    "numbers-search": ("numbers.csv", "-t", "sum", "-t", "difference", *SEARCH),
    "groups": ("numbers.csv", "-t", "sum", "--task", "group", "--ignore", "difference", *ONE),
    "labels": ("labels.npz", *ONE),
    "texts": ("reviews.csv", "--text", "review", "-t", "subject", *ONE),
    "texts-search": ("reviews.csv", "--text", "review", "-t", "stars", *SEARCH),
}
FIT_KEYS = {
    *("command", "model", "estimator", "kind", "targets[]", "task", "rows", "inputs", "setting"),
    *("settings.C", "warnings[]"),
    *("n_components", "n_components_in_use", "seconds", "interrupted", "baseline_score", "cross_validation", "kept"),
    *("weight", "no_better_than_baseline", "comparison"),
}
SEARCH_KEYS = (FIT_KEYS - {"cross_validation", "comparison"}) | {
    *(f"cross_validation.{name}" for name in ("metric", "mean", "std", "folds", "pooled")),
    *(
        f"comparison.{name}"
        for name in ("metric", "folds", "best_of", "no_better_than_baseline", "interrupted", "messages[]")
    ),
    *(f"comparison.{name}[]" for name in ("outperformed_by", "never_predicted")),
    *(f"comparison.systems[].{name}" for name in ("role", "name", "score", "std", "difference", "error")),
    *(f"comparison.systems[].{name}" for name in ("size", "size_unit", "seconds", "note")),
    *(f"cross_validation.candidates[].{name}" for name in ("C", "mean", "std")),
}
TASK_SEARCH_KEYS = {
    f"{place}.{name}"
    for place in ("settings", "cross_validation.candidates[]")
    for name in ("include_inputs", "temperature")
}
STABILITY_KEYS = {
    *(f"stability.{name}" for name in ("resamples", "threshold", "match")),
    *(f"stability.features[].{name}" for name in ("feature", "returned", "median_similarity", "lowest_similarity")),
}
TOPIC_KEYS = {"topics[].topic", "topics[].share", "topics[].words[]"}
KEYS_OF_FITS = {
    "flowers": FIT_KEYS,
    "flowers-search": SEARCH_KEYS,
    "flowers-stability": FIT_KEYS | STABILITY_KEYS,
    "numbers": FIT_KEYS,
    "numbers-search": SEARCH_KEYS | TASK_SEARCH_KEYS,
    "groups": FIT_KEYS,
    "labels": FIT_KEYS,
    "texts": FIT_KEYS | TOPIC_KEYS | {"topics[].weights.sport"},
    "texts-search": SEARCH_KEYS
    | TOPIC_KEYS
    | {"topics[].weights.stars", "settings.inference", "cross_validation.candidates[].inference"},
}

COLUMNS = {  # model and options -> columns
    ("flowers",): ["kind"],
    ("flowers", "--keep", "size", "--scores", "--features"): [
        *("size", "kind", "kind=aster score", "kind=lily score", "kind=rose score"),
    ],
    ("numbers",): ["sum", "difference"],
    ("groups",): ["sum"],
    ("labels", "--scores"): ["Y0", "Y1", "Y0=1 score", "Y1=1 score"],
    ("texts", "--keep", "id", "--scores", "--features"): [
        *("id", "subject", "subject=sport score", "topic0", "topic1", "topic2", "topic3"),
    ],
}

EVALUATE_KEYS = {"command", "model", "kind", "rows", "warnings[]"}
KEYS_OF_SCORES = {
    "flowers": {
        *("scores.accuracy", "scores.balanced accuracy", "scores.F1, class average"),
        "scores.always the most frequent class",
        *("details[].class", "details[].rows", "details[].precision", "details[].recall", "details[].F1"),
    },
    "numbers": {
        "scores.R², mean over targets",
        *(
            "details[].target",
            "details[].rows",
            "details[].R²",
            "details[].root mean squared error",
            "details[].mean absolute error",
        ),
    },
    "groups": {
        *("scores.R²", "scores.R² within tasks", "scores.mean absolute error", "scores.root mean squared error"),
        "details[]",
    },
    "labels": {
        *("scores.accuracy over all labels", "scores.all labels of a row right", "scores.F1, macro"),
        "scores.F1, micro",
        *("details[].target", "details[].rows", "details[].share", "details[].accuracy", "details[].F1"),
    },
}

READING = ["--format", "--delimiter", "--decimal", "--header", "--no-header", "--missing", "--encoding"]
SAYING = ["--json", "--quiet", "-q"]
OPTIONS = {
    "demo": ["--output", "-o", *SAYING],
    "fit": [
        *("data", "--output", "-o", "--target", "-t", "--kind", "--model", "--task", "--ignore", "--categorical"),
        *("--names", "--standardize", "--no-standardize", "--weight", "--balanced", "--image"),
        *("--text", "--ngrams", "--min-df", "--max-words", "--stop-words", "--inference"),
        *(
            "--cv",
            "--no-cv",
            "--folds",
            "--resume",
            "--compare",
            "--no-compare",
            "--n-components",
            "--C",
            "--temperature",
        ),
        *(
            "--slab",
            "--include-inputs",
            "--features-only",
            "--stability",
            "--max-iter",
            "--seed",
            "--jobs",
            "-j",
        ),
        *READING,
        *SAYING,
    ],
    "predict": [
        *("--output", "-o", "--keep", "--scores", "--probabilities", "--features", "--threshold"),
        *("model", "data", "--text", *READING, *SAYING),
    ],
    "evaluate": ["--threshold", "model", "data", "--text", *READING, *SAYING],
    "report": ["model", "data", "--output", "-o", "--text", *READING, *SAYING],
}


def keys_of(found: Any, path: str = "") -> set[str]:
    """Return the paths of all keys; the elements of a list have one path."""
    if isinstance(found, list):
        inside = [keys_of(element, f"{path}[]") for element in found if isinstance(element, dict)]
        return set().union(*inside) or {f"{path}[]"}
    if not isinstance(found, dict):
        return {path}
    return {key for name, value in found.items() for key in keys_of(value, f"{path}.{name}" if path else name)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a table for every kind of target."""
    place = tmp_path_factory.mktemp("recorded")
    (place / "flowers.csv").write_text(flowers())
    (place / "reviews.csv").write_text(reviews())
    X = np.random.default_rng(0).standard_normal((60, 2))
    rows = [f"{x:.3f},{y:.3f},g{i % 3},{x + y:.3f},{x - y:.3f}" for i, (x, y) in enumerate(X)]
    (place / "numbers.csv").write_text("\n".join(["a,b,group,sum,difference", *rows]) + "\n")
    np.savez(place / "labels.npz", X=X, Y=(X > 0).astype(int))
    return place


@pytest.fixture(scope="module")
def fits(folder):
    """What each fit printed."""
    return {
        name: run_here("fit", folder / data, "-o", folder / name, *options, "--json")
        for name, (data, *options) in FITS.items()
    }


def data_of(folder, name):
    return folder / FITS[name][0]


def test_keys_of_a_path():
    assert keys_of({"a": [{"b": 1}, {"c": []}], "d": [1], "e": {"f": None}}) == {"a[].b", "a[].c[]", "d[]", "e.f"}


@pytest.mark.parametrize("name", FITS)
def test_keys_of_fit(fits, name):
    assert fits[name].code == 0, fits[name].err
    assert keys_of(fits[name].json) == KEYS_OF_FITS[name]


@pytest.mark.parametrize("what", COLUMNS, ids=" ".join)
def test_keys_and_columns_of_predict(folder, fits, what):
    name, *options = what
    done = run_here("predict", folder / name, data_of(folder, name), *options, "--json")
    assert done.code == 0, done.err
    assert list(done.json) == ["command", "rows", "columns", "warnings"]
    columns = [name for name in done.json["columns"] if not name.startswith("feature")]  # those in use
    assert columns == COLUMNS[what]
    written = folder / "predictions.csv"
    done = run_here("predict", folder / name, data_of(folder, name), *options, "-o", written, "--json")
    assert keys_of(done.json) == {"command", "rows", "output", "warnings[]"}
    assert written.read_text().startswith(",".join(COLUMNS[what]))


@pytest.mark.parametrize("name", KEYS_OF_SCORES)
def test_keys_of_evaluate(folder, fits, name):
    done = run_here("evaluate", folder / name, data_of(folder, name), "--json")
    assert done.code == 0, done.err
    assert keys_of(done.json) == EVALUATE_KEYS | KEYS_OF_SCORES[name]


def test_keys_of_report_and_of_errors(folder, fits):
    done = run_here("report", folder / "flowers", "-o", folder / "page.html", "--json")
    assert (done.code, keys_of(done.json)) == (0, {"command", "model", "data", "output", "bytes", "warnings[]"})
    done = run_here("evaluate", folder / "flowers", folder / "none.csv", "--json")
    assert (done.code, keys_of(done.json)) == (3, {"error", "exit_code"})


def test_options_of_every_command():
    commands = typer.main.get_command(make_app()).commands
    found = {
        name: [spelling for one in command.params for spelling in one.opts + one.secondary_opts]
        for name, command in commands.items()
    }
    assert found == OPTIONS
