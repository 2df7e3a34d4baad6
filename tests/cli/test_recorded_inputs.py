"""One small file for everything that a table or documents can look like, and what ``regbayes`` answers.

The answers were recorded with the first edition (commit 3cac0be). A test that fails here says that answers changed, not
that they are wrong. Where that was meant, record the case again:
``PYTHONPATH=tests/helpers python tests/cli/test_recorded_inputs.py NAME``, and say so in the change log.
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
from collections.abc import Callable
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array
from sklearn.datasets import dump_svmlight_file

from cli_tools import BLAME, LAW, PRAISE, SPORT, document, run_here

RECORDED = Path(__file__).parents[1] / "recorded" / "cli_inputs.json"
ONE = ("--n-components", 3, "--max-iter", 3, "--no-cv", "--C", 1, "--temperature", 0.2)
TEXT = ("--n-components", 3, "--max-iter", 5, "--no-cv", "--C", 1, "--inference", "variational")
SEARCH = ("--n-components", 3, "--max-iter", 3, "--folds", 2, "--C", 0.3, "--C", 1, "--no-compare")
TOLERANCE = 1e-4  # of the largest number of a column; last bits differ between processors, and grow over a search
# Cases whose answers last bits decide: classes that tie after a few iterations, shares of topics in single precision.
# What was decided and said of them is compared on every processor, their numbers are not.
LAST_BITS = (
    *("npz with inputs and a target", "documents with a class", "documents of two columns with a number"),
    "libsvm",
)

Make = Callable[[Path, np.random.Generator], tuple[str, str, tuple[Any, ...], tuple[Any, ...]]]
CASES: dict[str, Make] = {}


def case(make: Make) -> Make:
    """Add a case: it writes files, and returns training data, new data, and the options of fit and of predict."""
    CASES[make.__name__.replace("_", " ")] = make
    return make


def frame(rng: np.random.Generator, n: int = 36) -> pd.DataFrame:
    """Two numbers, a category, and targets of every kind that follow from the first number."""
    a, b = rng.standard_normal((2, n)).round(3)
    noise = rng.standard_normal((2, n)) * 0.2
    return pd.DataFrame(
        {
            "a": a,
            "b": b,
            "place": np.array(["field", "wood", "shore"])[rng.integers(3, size=n)],
            "kind": np.array(["aster", "lily", "rose"])[(a + noise[0] > -0.5).astype(int) + (a > 0.5)],
            "flag": (a - b > 0).astype(int),
            "digit": (a + noise[1] > -0.5).astype(int) + (b > 0) * 2,
            "amount": (2 * a - b + noise[0]).round(3),
            "size": (100 * b + 10 * noise[1]).round(2),
            "school": [f"s{i % 3}" for i in range(n)],
        }
    )


def tables(folder: Path, rng: np.random.Generator, columns: list[str], name: str = "t.csv", **how: Any) -> None:
    """Write a table to fit and one to predict."""
    for path, n in ((f"{name}", 36), (f"new-{name}", 12)):
        frame(rng, n)[columns].to_csv(folder / path, index=False, **how)


INPUTS = ["a", "b", "place"]


# CSV


@case
def csv_with_text_classes(folder, rng):
    tables(folder, rng, [*INPUTS, "kind"])
    return "t.csv", "new-t.csv", ("-t", "kind", *ONE), ("--scores", "--features", "--keep", "a")


@case
def semicolons_and_decimal_commas(folder, rng):
    tables(folder, rng, [*INPUTS, "kind"], sep=";", decimal=",")
    return "t.csv", "new-t.csv", ("-t", "kind", *ONE), ("--scores",)


@case
def tabs_with_quotation_marks_in_the_text(folder, rng):
    for name in ("t.tsv", "new-t.tsv"):
        text = frame(rng)[[*INPUTS, "kind"]].replace({"wood": 'a "wood', "field": '"field" or so'})
        rows = ["\t".join(map(str, row)) for row in text.itertuples(index=False)]
        (folder / name).write_text("\n".join(["a\tb\tplace\tkind", *rows]) + "\n")
    return "t.tsv", "new-t.tsv", ("-t", "kind", *ONE), ("--scores",)


@case
def bars_and_quoted_fields_with_delimiters_and_lines_in_them(folder, rng):
    for name in ("t.txt", "new-t.txt"):
        quoted = frame(rng)[[*INPUTS, "kind"]].replace(
            {"wood": "wood | tree", "shore": "a\nshore", "field": ' a "field"'}
        )
        quoted.to_csv(folder / name, index=False, sep="|")
    return "t.txt", "new-t.txt", ("-t", "kind", *ONE), ("--scores",)


@case
def a_delimiter_that_is_told(folder, rng):
    tables(folder, rng, [*INPUTS, "kind"], sep=":")
    return "t.csv", "new-t.csv", ("-t", "kind", "--delimiter", ":", *ONE), ("--delimiter", ":")


@case
def byte_order_mark_and_windows_lines(folder, rng):
    tables(folder, rng, [*INPUTS, "kind"], encoding="utf-8-sig", lineterminator="\r\n")
    return "t.csv", "new-t.csv", ("-t", "kind", *ONE), ("--scores",)


@case
def latin_letters(folder, rng):
    for name in ("t.csv", "new-t.csv"):
        frame(rng)[[*INPUTS, "kind"]].replace({"wood": "forêt"}).to_csv(folder / name, index=False, encoding="latin-1")
    return "t.csv", "new-t.csv", ("-t", "kind", "--encoding", "latin-1", *ONE), ("--encoding", "latin-1")


@case
def no_header(folder, rng):
    tables(folder, rng, [*INPUTS, "kind"], header=False)
    return "t.csv", "new-t.csv", ("-t", "column4", "--no-header", *ONE), ("--no-header", "--keep", "column1")


@case
def blanks_empty_lines_and_compression(folder, rng):
    for name in ("t.csv.gz", "new-t.csv.gz"):
        lines = frame(rng)[[*INPUTS, "kind"]].to_csv(index=False).replace(",", " , ").splitlines()
        (folder / name).write_bytes(gzip.compress("\n\n".join(lines).encode()))
    return "t.csv.gz", "new-t.csv.gz", ("-t", "kind", *ONE), ("--scores",)


@case
def missing_values_of_many_spellings(folder, rng):
    marks = ["", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None", "?", "unknown", " "]
    for name in ("t.csv", "new-t.csv"):
        found = frame(rng)[[*INPUTS, "kind"]].astype(str)
        for j, column in enumerate(found):
            for i in rng.choice(len(found), 12, replace=False)[: 12 if column != "kind" else 3]:
                found.loc[i, column] = marks[(i + j) % len(marks)]
        found.to_csv(folder / name, index=False)
    told = ("--missing", "unknown")
    return "t.csv", "new-t.csv", ("-t", "kind", *told, *ONE), ("--scores", *told)


@case
def categories_few_many_and_new(folder, rng):
    for name, n in (("t.csv", 180), ("new-t.csv", 12)):
        found = frame(rng, n)
        found["two"] = np.where(found.b > 0, "yes", "no")
        found["many"] = [f"c{i}" for i in rng.integers(70, size=n)]
        found["hole"] = np.where(rng.random(n) < 0.2, None, found.place)
        found["own"] = [f"row {i}" for i in range(n)]
        if n == 12:
            found.loc[:3, ["two", "many", "hole"]] = ["perhaps", "c99", "moon"]
        found[["a", "two", "many", "hole", "own", "kind"]].to_csv(folder / name, index=False)
    return "t.csv", "new-t.csv", ("-t", "kind", *ONE), ("--scores",)


@case
def columns_that_change_their_type_and_order(folder, rng):
    found = frame(rng).assign(code=rng.integers(3, size=36), word=np.array(["1", "2", "x"])[rng.integers(3, size=36)])
    found[["a", "b", "code", "word", "kind"]].to_csv(folder / "t.csv", index=False)
    new = frame(rng, 8).assign(code=["0", "1", "2", "7"] * 2, word=[1, 2] * 4, b=["0.5", "1e-1"] * 4)
    new[["word", "code", "kind", "b", "a", "amount"]].to_csv(folder / "new.csv", index=False)
    return "t.csv", "new.csv", ("-t", "kind", "--categorical", "code", *ONE), ("--scores",)


@case
def booleans(folder, rng):
    for name in ("t.csv", "new-t.csv"):
        found = frame(rng).assign(wet=lambda d: d.b > 0, seen=lambda d: np.where(d.a > 0, "TRUE", "FALSE"))
        found.assign(good=found.flag == 1)[["a", "b", "wet", "seen", "good"]].to_csv(folder / name, index=False)
    return "t.csv", "new-t.csv", ("-t", "good", *ONE), ("--scores",)


@case
def integers_as_classes(folder, rng):
    tables(folder, rng, [*INPUTS, "digit"])
    return "t.csv", "new-t.csv", ("-t", "digit", *ONE), ("--scores",)


@case
def integers_as_amounts(folder, rng):
    tables(folder, rng, [*INPUTS, "digit"])
    return "t.csv", "new-t.csv", ("-t", "digit", "--kind", "regressor", *ONE), ()


@case
def broken_numbers_as_classes(folder, rng):
    for name in ("t.csv", "new-t.csv"):
        found = frame(rng)
        found.assign(half=found.digit + 0.5)[[*INPUTS, "half"]].to_csv(folder / name, index=False)
    return "t.csv", "new-t.csv", ("-t", "half", "--kind", "classifier", *ONE), ("--scores",)


@case
def a_number_as_target(folder, rng):
    tables(folder, rng, [*INPUTS, "amount"])
    return "t.csv", "new-t.csv", ("-t", "amount", *ONE), ("--features",)


@case
def several_numbers_with_holes_in_them(folder, rng):
    for name in ("t.csv", "new-t.csv"):
        found = frame(rng)
        found.loc[rng.choice(36, 8, replace=False), "amount"] = None
        found.loc[rng.choice(36, 8, replace=False), "size"] = None
        found[[*INPUTS, "amount", "size"]].to_csv(folder / name, index=False)
    return "t.csv", "new-t.csv", ("-t", "amount", "-t", "size", *ONE), ()


@case
def several_classes_with_holes_in_them(folder, rng):
    for name in ("t.csv", "new-t.csv"):
        found = frame(rng)
        found.loc[rng.choice(36, 8, replace=False), "kind"] = None
        found[[*INPUTS, "kind", "flag", "digit"]].to_csv(folder / name, index=False)
    return "t.csv", "new-t.csv", ("-t", "kind", "-t", "flag", "-t", "digit", *ONE), ("--scores",)


@case
def groups_of_rows_with_a_number(folder, rng):
    tables(folder, rng, [*INPUTS, "school", "amount"])
    text = (folder / "new-t.csv").read_text().replace("s1", "elsewhere")
    (folder / "new-t.csv").write_text(text)
    return "t.csv", "new-t.csv", ("-t", "amount", "--task", "school", *ONE), ()


@case
def numbered_groups_of_rows_with_a_class(folder, rng):
    for name in ("t.csv", "new-t.csv"):
        found = frame(rng)
        found.assign(school=np.arange(36) % 4 / 2)[[*INPUTS, "school", "flag"]].to_csv(folder / name, index=False)
    return "t.csv", "new-t.csv", ("-t", "flag", "--task", "school", *ONE), ("--scores",)


@case
def dates(folder, rng):
    for name in ("t.csv", "new-t.csv"):
        found = frame(rng)
        found["day"] = [date(2020, 1, 1) + timedelta(days=i) for i in range(36)]
        found["month"] = [f"2020-{1 + i % 3:02}-01" for i in range(36)]
        found["year"] = [2000 + i % 5 for i in range(36)]
        found[["a", "day", "month", "year", "kind"]].to_csv(folder / name, index=False)
    return "t.csv", "new-t.csv", ("-t", "kind", *ONE), ("--scores",)


@case
def an_index_without_a_name(folder, rng):
    for name in ("t.csv", "new-t.csv"):
        frame(rng)[[*INPUTS, "kind"]].to_csv(folder / name)
    return "t.csv", "new-t.csv", ("-t", "kind", *ONE), ("--keep", "column1")


@case
def numbers_that_hardly_are(folder, rng):
    for name in ("t.csv", "new-t.csv"):
        found = frame(rng).assign(same=4, huge=1e200 * rng.standard_normal(36), empty=None, rise=range(36))
        found = found.astype({"a": object})
        found.loc[:2, "a"] = ["inf", "-inf", "1e3"]
        found["odd"] = [*map(str, rng.integers(9, size=35)), "many"]
        found["long"] = [f"{v:.18e}" for v in rng.standard_normal(36)]
        columns = ["a", "same", "huge", "empty", "rise", "odd", "long", "kind"]
        found[columns].to_csv(folder / name, index=False)
    return "t.csv", "new-t.csv", ("-t", "kind", *ONE), ("--scores",)


@case
def inputs_as_they_are(folder, rng):
    for name in ("t.csv", "new-t.csv"):
        found = frame(rng).assign(c=3.0, id=[f"r{i}" for i in range(36)])
        found[["id", "a", "b", "c", "size", "kind"]].to_csv(folder / name, index=False)
    options = ("-t", "kind", "--no-standardize", "--ignore", "size", "--names", "id", "--balanced")
    return "t.csv", "new-t.csv", (*options, *ONE), ("--keep", "id", "--features")


@case
def pixels_with_constant_ones(folder, rng):
    for name in ("t.csv", "new-t.csv"):
        found = frame(rng).assign(c=0, d=1)
        found[["a", "b", "c", "d", "flag"]].to_csv(folder / name, index=False)
    return "t.csv", "new-t.csv", ("-t", "flag", "--image", "2x2", *ONE), ("--scores",)


# Other formats


@case
def parquet(folder, rng):
    for name in ("t.parquet", "new.parquet"):
        found = frame(rng)
        found["count"] = pd.array([None, *rng.integers(5, size=35)], dtype="Int64")
        found["price"] = [None, *(Decimal(f"{v:.2f}") for v in rng.standard_normal(35))]
        found["wet"] = pd.array([None, *(rng.random(35) > 0.5)], dtype="boolean")
        found["place"] = found.place.where(rng.random(36) > 0.2).astype("category")
        found["day"] = [date(2020, 1, 1 + i % 3) for i in range(36)]
        found["time"] = pd.to_datetime([f"2020-01-0{1 + i % 2} 12:00" for i in range(36)])
        found["single"] = found.a.astype("float32")
        columns = ["b", "single", "count", "price", "wet", "place", "day", "time", "kind"]
        found.set_index(np.arange(36) + 7)[columns].to_parquet(folder / name)
    return "t.parquet", "new.parquet", ("-t", "kind", *ONE), ("--scores", "--keep", "price", "--keep", "count")


@case
def parquet_with_a_named_index_and_a_boolean_target(folder, rng):
    for name in ("t.parquet", "new.parquet"):
        found = frame(rng)
        found["good"] = found.flag == 1
        found.set_index(pd.Index(rng.permutation(36), name="key"))[["a", "place", "good"]].to_parquet(folder / name)
    return "t.parquet", "new.parquet", ("-t", "good", *ONE), ("--scores", "--keep", "key")


@case
def npz_with_inputs_and_a_target(folder, rng):
    for name in ("t.npz", "new.npz"):
        found = frame(rng)
        np.savez(folder / name, X=found[["a", "b"]], y=found.kind.to_numpy(str), feature_names=np.array(["p", "q"]))
    return "t.npz", "new.npz", ONE, ("--scores",)


@case
def npz_with_labels(folder, rng):
    for name in ("t.npz", "new.npz"):
        found = frame(rng)
        labels = np.column_stack([found.flag, found.a > 0])
        np.savez(folder / name, X=found[["a", "b"]].to_numpy("f4"), Y=labels, label_names=np.array(["l", "m"]))
    return "t.npz", "new.npz", ("-t", "Y", *ONE), ("--scores",)


@case
def npz_of_columns_with_tasks(folder, rng):
    for name in ("t.npz", "new.npz"):
        found = frame(rng)
        np.savez(
            folder / name,
            a=found.a,
            place=np.where(found.b > 1, "", found.place).astype(str),
            wet=found.b > 0,
            task=np.arange(36) % 3,
            amount=found.amount,
        )
    return "t.npz", "new.npz", ("-t", "amount", "--task", "task", *ONE), ()


@case
def npz_with_sparse_inputs(folder, rng):
    for name in ("t.npz", "new.npz"):
        found = frame(rng)
        X = csr_array(np.where(rng.random((36, 4)) < 0.5, 0.0, found[["a", "b", "a", "b"]]))
        parts = {f"X_{part}": getattr(X, part) for part in ("data", "indices", "indptr", "shape")}
        np.savez(folder / name, **parts, y=found.digit)
    return "t.npz", "new.npz", ONE, ("--scores",)


@case
def libsvm(folder, rng):
    for name in ("t.svm", "new.svm"):
        found = frame(rng)
        X = np.where(rng.random((36, 3)) < 0.3, 0, found[["a", "b", "a"]])
        dump_svmlight_file(X, found.digit, str(folder / name), zero_based=False)
    return "t.svm", "new.svm", ONE, ("--scores",)


@case
def libsvm_with_several_labels(folder, rng):
    for name in ("t.libsvm", "new.libsvm"):
        lines = []
        for row in frame(rng).itertuples():
            labels = ",".join(str(k) for k, there in ((1, row.flag), (3, row.a > 0), (4, row.b > 0)) if there)
            lines.append(f"{labels} 0:{row.a} 2:{row.b}")
        (folder / name).write_text("\n".join(lines) + "\n")
    return "t.libsvm", "new.libsvm", ONE, ("--scores",)


# Documents


def reviews(rng: np.random.Generator, n: int) -> pd.DataFrame:
    """Documents of two subjects, and stars that follow from the share of praise."""
    share = rng.uniform(size=n).round(2)
    tone = [" ".join(np.where(rng.uniform(size=10) < s, rng.choice(PRAISE, 10), rng.choice(BLAME, 10))) for s in share]
    about = [document(SPORT if i % 2 else LAW, rng, 8) for i in range(n)]
    return pd.DataFrame(
        {
            "id": [f"r{i}" for i in range(n)],
            "title": [text.split()[4].title() for text in about],
            "review": [f"{first}. {second}, 1984!" for first, second in zip(about, tone, strict=True)],
            "subject": ["sport" if i % 2 else "law" for i in range(n)],
            "stars": share * 4 + 1,
            "good": (share > 0.5).astype(int),
            "sporty": np.arange(n) % 2,
        }
    )


def texts(folder: Path, rng: np.random.Generator) -> None:
    for name, n in (("t.csv", 30), ("new-t.csv", 10)):
        reviews(rng, n).to_csv(folder / name, index=False)


@case
def documents_with_a_class(folder, rng):
    texts(folder, rng)
    return (
        "t.csv",
        "new-t.csv",
        ("--text", "review", "-t", "subject", *TEXT),
        ("--scores", "--features", "--keep", "id"),
    )


@case
def documents_of_two_columns_with_a_number(folder, rng):
    texts(folder, rng)
    words = ("--text", "title", "--text", "review", "--min-df", 2, "--stop-words", "english", "--max-words", 18)
    return "t.csv", "new-t.csv", (*words, "-t", "stars", *TEXT), ("--features",)


@case
def documents_with_several_labels(folder, rng):
    texts(folder, rng)
    return "t.csv", "new-t.csv", ("--text", "review", "-t", "good", "-t", "sporty", *TEXT), ("--scores",)


@case
def documents_with_holes_and_unknown_words(folder, rng):
    texts(folder, rng)
    with (folder / "t.csv").open("a") as file:
        file.write("r98,,,law,3,0,0\nr99,,12 34,sport,2,0,1\n")
    (folder / "new-t.csv").write_text(
        "review,subject\nunknown words,law\nball and goal,sport\n,law\nCourt and VOTE,law\n"
    )
    return "t.csv", "new-t.csv", ("--text", "review", "-t", "subject", *TEXT), ("--scores",)


@case
def a_folder_of_documents(folder, rng):
    for part in ("mails", "more"):
        for row in reviews(rng, 16).itertuples():
            (folder / part / row.subject).mkdir(parents=True, exist_ok=True)
            (folder / part / row.subject / f"{row.id}.txt").write_text(row.review)
    return "mails", "more", TEXT, ("--scores",)


def counts(rng: np.random.Generator, n: int = 30) -> tuple[csr_array, np.ndarray]:
    y = np.arange(n) % 3
    return csr_array(rng.poisson(np.where(y[:, None] == np.arange(6) // 2, 3.0, 0.3))), y


@case
def sparse_counts_in_npz(folder, rng):
    words = np.array([f"word{i}" for i in range(6)])
    for name in ("t.npz", "new.npz"):
        X, y = counts(rng)
        parts = {f"X_{part}": getattr(X, part) for part in ("data", "indices", "indptr", "shape")}
        np.savez(folder / name, **parts, y=y, vocabulary=words, class_names=np.array(["u", "v", "w"]))
    return "t.npz", "new.npz", ("--model", "medlda", *TEXT), ("--scores",)


@case
def sparse_counts_in_libsvm(folder, rng):
    for name in ("t.svm", "new.svm"):
        X, y = counts(rng)
        dump_svmlight_file(X, y, str(folder / name), zero_based=False)
    return "t.svm", "new.svm", ("--model", "medlda", *TEXT), ("--scores",)


# Searches


@case
def a_search_for_classes(folder, rng):
    tables(folder, rng, [*INPUTS, "kind"])
    return "t.csv", "new-t.csv", ("-t", "kind", *SEARCH), ("--scores",)


@case
def a_search_for_groups(folder, rng):
    tables(folder, rng, ["a", "b", "school", "amount"])
    options = ("-t", "amount", "--task", "school", "--temperature", 0.1, "--features-only")
    return "t.csv", "new-t.csv", (*options, *SEARCH), ()


@case
def a_search_for_labels_with_holes(folder, rng):
    for name in ("t.csv", "new-t.csv"):
        found = frame(rng).astype({"flag": object})
        found.loc[rng.choice(36, 6, replace=False), "flag"] = None
        found[["a", "b", "kind", "flag"]].to_csv(folder / name, index=False)
    options = ("-t", "kind", "-t", "flag", "--temperature", 0.1, "--include-inputs", "--balanced")
    return "t.csv", "new-t.csv", (*options, *SEARCH), ("--scores",)


@case
def a_search_for_topics(folder, rng):
    texts(folder, rng)
    options = ("--text", "review", "-t", "subject", "--inference", "variational", "--n-components", 2)
    return "t.csv", "new-t.csv", (*options, *SEARCH), ("--scores",)


# What is recorded


def observe(name: str, folder: Path) -> dict[str, Any]:
    """Fit, predict and evaluate; return what was decided, said and answered."""
    training, new, options, more = CASES[name](folder, np.random.default_rng(list(name.encode())))
    model = folder / "model"
    fit = run_here("fit", folder / training, "-o", model, "--json", *options)
    assert fit.code == 0, fit.err
    found = fit.json
    reading = [more[i : i + 2] for i, option in enumerate(more) if option in ("--delimiter", "--encoding", "--missing")]
    reading = [*sum(reading, ()), *(("--no-header",) if "--no-header" in more else ())]
    predicted = run_here("predict", model, folder / new, "--json", *more)
    judged = run_here("evaluate", model, folder / new, "--json", *reading)
    assert (predicted.code, judged.code) == (0, 0), predicted.err + judged.err
    decided = ("estimator", "kind", "targets", "task", "rows", "inputs", "n_components_in_use", "settings")
    hushed = ("stopped at max_iter", "compiling, once")  # the second is of the machine
    said = [line.replace(str(folder), "") for line in fit.err.splitlines() if not any(map(line.__contains__, hushed))]
    return {
        "decided": {key: found[key] for key in decided},
        "keys": sorted(found),
        "cross_validation": found["cross_validation"],
        "said": said,
        "warnings": [text.replace(str(folder), "") for text in predicted.json["warnings"]],
        "columns": predicted.json["columns"],
        "scores": judged.json["scores"],
    }


def rounded(found: Any) -> Any:
    """Return what was observed with eight digits of every broken number."""
    if isinstance(found, dict):
        return {key: rounded(value) for key, value in found.items()}
    if isinstance(found, list):
        return [rounded(value) for value in found]
    return float(f"{found:.8g}") if isinstance(found, float) else found


def same(old: Any, new: Any, where: str = "") -> list[str]:
    """Return where two observations differ."""
    if isinstance(old, dict) and isinstance(new, dict) and list(old) == list(new):
        return [line for key in old for line in same(old[key], new[key], f"{where}.{key}")]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        if any(isinstance(value, float) for value in old):
            scale = max(abs(value) for value in old if value is not None) or 1.0
            return [] if np.allclose(_numbers(old), _numbers(new), 0, TOLERANCE * scale, equal_nan=True) else [where]
        return [line for i, (a, b) in enumerate(zip(old, new, strict=True)) for line in same(a, b, f"{where}[{i}]")]
    if isinstance(old, float) and isinstance(new, int | float):
        return [] if abs(old - new) <= TOLERANCE * max(abs(old), 1.0) else [f"{where}: {old} != {new}"]
    return [] if old == new else [f"{where}: {old!r} != {new!r}"]


def _numbers(values: list[Any]) -> list[float]:
    return [np.nan if value is None else value for value in values]


@pytest.mark.parametrize("name", CASES)
def test_answers_are_as_recorded(name, tmp_path):
    old, new = json.loads(RECORDED.read_text())[name], json.loads(json.dumps(observe(name, tmp_path)))
    if name in LAST_BITS:
        old, new = ({part: seen[part] for part in ("decided", "said")} for seen in (old, new))
    assert same(old, new) == []


def test_nothing_is_recorded_that_is_no_case():
    assert list(json.loads(RECORDED.read_text())) == list(CASES)


if __name__ == "__main__":
    recorded = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    for name in sys.argv[1:] or CASES:
        with tempfile.TemporaryDirectory() as place:
            recorded[name] = rounded(json.loads(json.dumps(observe(name, Path(place)))))
        print(name, recorded[name]["decided"]["estimator"], recorded[name]["said"])  # noqa: T201
    RECORDED.write_text(
        json.dumps({name: recorded[name] for name in CASES}, indent=None).replace('}, "', '},\n"') + "\n"
    )
