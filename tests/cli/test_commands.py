"""Commands run in this process: results and error messages."""

from __future__ import annotations

import csv
import io
import json
import re

import numpy as np
import pytest

from cli_tools import flowers, run_here
from persistence_tools import VERSION_1
from reference_tools import fits_its_rows
from regbayes.cli.errors import ExitCode
from regbayes.cli.output import Output, jsonable

QUICK = ("--n-components", 4, "--max-iter", 5, "--no-cv", "--C", 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder with two tables and a model of the first."""
    place = tmp_path_factory.mktemp("commands")
    (place / "flowers.csv").write_text(flowers())
    (place / "new.csv").write_text(flowers(30, seed=1))
    done = run_here("fit", place / "flowers.csv", "-t", "kind", "-o", place / "flowers.model", *QUICK)
    assert done.code == 0, done.err
    return place


@pytest.fixture(scope="module")
def numbers(folder):
    """Models of two regression targets, and of one with tasks."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 2))
    rows = ["a,b,group,sum,difference"]
    rows += [f"{x:.3f},{y:.3f},g{i % 3},{x + y:.3f},{x - y:.3f}" for i, (x, y) in enumerate(X)]
    (folder / "numbers.csv").write_text("\n".join(rows) + "\n")
    both = run_here(
        "fit", folder / "numbers.csv", "-t", "sum", "-t", "difference", "-o", folder / "both.model", *QUICK, "--json"
    )
    grouped = run_here(
        *("fit", folder / "numbers.csv", "-t", "sum", "--task", "group", "--ignore", "difference"),
        *("-o", folder / "grouped.model", *QUICK, "--json"),
    )
    assert (both.code, grouped.code) == (0, 0), both.err + grouped.err
    return both.json, grouped.json


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_fit_prints_model_and_next_commands(folder):
    done = run_here("fit", folder / "flowers.csv", "-t", "kind", "-o", folder / "again.model", *QUICK)
    assert "classifier: 'kind' holds 3 different texts" in done.err
    assert "90 rows, 6 inputs from 3 columns" in done.err
    assert "ILSVMClassifier, C=1.0" in done.out
    assert "of 4 in use" in done.out
    assert f"regbayes report {folder / 'again.model'}" in done.out
    quiet = run_here("fit", folder / "flowers.csv", "-t", "kind", "-o", folder / "again.model", *QUICK, "--quiet")
    assert "classifier" not in quiet.err


def test_fit_without_cv_uses_default_C(folder):
    done = run_here(
        *("fit", folder / "flowers.csv", "-t", "kind", "-o", folder / "auto.model", "--no-cv"),
        *("--n-components", 4, "--max-iter", 5, "--temperature", 0.05),
    )
    assert "ILSVMClassifier, C=auto" in done.out


def test_predict_writes_every_row_in_order(folder):
    plain = rows_of(run_here("predict", folder / "flowers.model", folder / "new.csv").out)
    assert len(plain) == 30
    truth = [row["kind"] for row in rows_of((folder / "new.csv").read_text())]
    assert fits_its_rows([row["kind"] for row in plain], truth)
    more = run_here("predict", folder / "flowers.model", folder / "new.csv", "--scores", "--features", "--keep", "size")
    detailed = rows_of(more.out)
    assert list(detailed[0]) == [
        *("size", "kind", "kind=aster score", "kind=lily score", "kind=rose score"),
        *(name for name in detailed[0] if re.fullmatch(r"feature\d+", name)),
    ]
    for row in detailed:
        scores = {name: float(row[f"kind={name} score"]) for name in ("aster", "lily", "rose")}
        assert row["kind"] == max(scores, key=scores.get)


def test_evaluate_scores_match_predictions(folder):
    found = run_here("evaluate", folder / "flowers.model", folder / "new.csv", "--json").json
    predicted = rows_of(run_here("predict", folder / "flowers.model", folder / "new.csv").out)
    truth = rows_of((folder / "new.csv").read_text())
    hits = [p["kind"] == t["kind"] for p, t in zip(predicted, truth, strict=True)]
    assert found["scores"]["accuracy"] == pytest.approx(np.mean(hits))
    by_class = {detail["class"]: detail for detail in found["details"]}
    roses = [hit for hit, row in zip(hits, truth, strict=True) if row["kind"] == "rose"]
    assert by_class["rose"]["recall"] == pytest.approx(np.mean(roses))
    assert sum(detail["rows"] for detail in found["details"]) == 30
    shown = run_here("evaluate", folder / "flowers.model", folder / "new.csv").out
    assert "balanced accuracy" in shown
    assert "by class" in shown
    assert found["warnings"] == []
    again = run_here("evaluate", folder / "flowers.model", folder / "flowers.csv", "--json").json
    assert again["warnings"] == [
        "the model was fitted to as many rows of a file of this name. If they are the same, expect less of new ones"
    ]


def test_fit_supports_several_targets_and_tasks(folder, numbers):
    both, grouped = numbers
    assert both["kind"] == grouped["kind"] == "regressor"
    assert both["targets"] == ["sum", "difference"]
    assert grouped["task"] == "group"
    judged = run_here("evaluate", folder / "both.model", folder / "numbers.csv", "--json").json
    assert [detail["target"] for detail in judged["details"]] == ["sum", "difference"]
    assert judged["scores"]["R², mean over targets"] == pytest.approx(np.mean([d["R²"] for d in judged["details"]]))
    grouped_scores = run_here("evaluate", folder / "grouped.model", folder / "numbers.csv", "--json").json["scores"]
    assert grouped_scores["R² within tasks"] <= grouped_scores["R²"]
    (folder / "other.csv").write_text("a,b,group\n1,2,g0\n1,2,elsewhere\n")
    done = run_here("predict", folder / "grouped.model", folder / "other.csv")
    assert len(rows_of(done.out)) == 2
    assert "tasks that were not there in training, in 1 row: predicted by what tasks share" in done.err


def test_fit_supports_multiple_labels(folder):
    rng = np.random.default_rng(1)
    X = rng.standard_normal((50, 3))
    Y = (X @ rng.standard_normal((3, 2)) > 0).astype(int)
    np.savez(folder / "labels.npz", X=X, Y=Y)
    done = run_here("fit", folder / "labels.npz", "-o", folder / "labels.model", *QUICK, "--json")
    assert done.json["kind"] == "multilabel"
    assert done.json["targets"] == ["Y0", "Y1"]
    judged = run_here("evaluate", folder / "labels.model", folder / "labels.npz", "--json").json
    predicted = rows_of(run_here("predict", folder / "labels.model", folder / "labels.npz").out)
    answers = np.array([[int(row["Y0"]), int(row["Y1"])] for row in predicted])
    assert judged["scores"]["accuracy over all labels"] == pytest.approx(np.mean(answers == Y))
    tp, wrong = np.sum((answers == 1) & (Y == 1)), np.sum(answers != Y)
    assert judged["scores"]["F1, micro"] == pytest.approx(2 * tp / (2 * tp + wrong))
    assert judged["scores"]["all labels of a row right"] == pytest.approx(np.mean((answers == Y).all(axis=1)))


def test_damaged_or_altered_model_file_raises(folder):
    content = (folder / "flowers.model").read_bytes()
    cases = {}
    for message, name, changed in (
        ("was altered", "bad.model", content.replace(b'"n_components": 4', b'"n_components": 5')),
        ("upgrade regbayes", "newer.model", content.replace(b"regbayes 2 ", b"regbayes 99 ", 1)),
        ("truncated or damaged", "cut.model", content[:-500]),
    ):
        assert changed != content
        (folder / name).write_bytes(changed)
        cases[message] = folder / name
    cases["made by regbayes 0.1.0: fit again"] = VERSION_1 / "command_line.model"
    cases["not a regbayes file"] = folder / "flowers.csv"
    cases["none.model' does not exist"] = folder / "none.model"
    from regbayes import ILSVMClassifier

    ILSVMClassifier().save(folder / "estimator.model")
    cases["not a model that 'regbayes fit' wrote"] = folder / "estimator.model"
    for message, path in cases.items():
        done = run_here("predict", path, folder / "new.csv")
        assert done.code == ExitCode.MODEL, message
        assert message in done.err


MISTAKES = {
    "no file": (("fit", "{}/none.csv", "-t", "kind", "-o", "{}/x"), 3, "none.csv' does not exist"),
    "no target": (("fit", "{}/flowers.csv", "-o", "{}/x"), 2, "name the column to predict with --target"),
    "no such target": (
        ("fit", "{}/flowers.csv", "-t", "sort", "-o", "{}/x"),
        3,
        "it has 'size', 'width', 'place', 'kind'",
    ),
    "no folder": (("fit", "{}/flowers.csv", "-t", "kind", "-o", "{}/none/x"), 2, "none does not exist"),
    "a folder": (("fit", "{}/flowers.csv", "-t", "kind", "-o", "{}"), 2, "is not a regular file"),
    "no output": (("fit", "{}/flowers.csv", "-t", "kind"), 2, "Missing option '--output'"),
    "a negative penalty": (
        ("fit", "{}/flowers.csv", "-t", "kind", "-o", "{}/x", "--C", "-1"),
        2,
        "--C must be positive",
    ),
    "no picture": (("fit", "{}/flowers.csv", "-t", "kind", "-o", "{}/x", "--image", "8"), 2, "must be HEIGHTxWIDTH"),
    "two characters": (
        ("fit", "{}/flowers.csv", "-t", "kind", "-o", "{}/x", "--delimiter", "::"),
        2,
        "--delimiter must be one character",
    ),
    "not a regression": (
        ("fit", "{}/flowers.csv", "-t", "kind", "-o", "{}/x", "--kind", "regressor"),
        3,
        "'kind' is text",
    ),
    "no such command": (("fly",), 2, "No such command 'fly'"),
    "predictions to a place unknown": (
        ("predict", "{}/flowers.model", "{}/new.csv", "-o", "{}/x.xls"),
        2,
        "should end in .csv, .npz or .parquet",
    ),
    "nothing to keep": (("predict", "{}/flowers.model", "{}/new.csv", "--keep", "id"), 3, "no column 'id'"),
    "two columns of a name": (
        ("predict", "{}/flowers.model", "{}/new.csv", "--keep", "kind"),
        2,
        "the prediction has this name",
    ),
    "scores of numbers": (("predict", "{}/both.model", "{}/numbers.csv", "--scores"), 4, "only classes have scores"),
    "other columns": (
        ("predict", "{}/flowers.model", "{}/numbers.csv"),
        3,
        "lacks columns that the model was fitted to",
    ),
    "no truth": (("evaluate", "{}/flowers.model", "{}/untold.csv"), 3, "no column 'kind'"),
    "no page": (("report", "{}/flowers.model", "-o", "{}/none/page.html"), 2, "none does not exist"),
}


@pytest.mark.parametrize(("arguments", "code", "message"), MISTAKES.values(), ids=MISTAKES)
def test_user_error_prints_message_and_exit_code(folder, numbers, arguments, code, message):
    (folder / "untold.csv").write_text("size,width,place\n1,2,field\n")
    done = run_here(*(argument.format(folder) for argument in arguments))
    assert done.code == code
    assert message in " ".join(done.err.replace("│", " ").split())
    assert "Traceback" not in done.err
    assert done.out == ""


def test_user_error_with_json_prints_json(folder):
    done = run_here("evaluate", folder / "flowers.model", folder / "none.csv", "--json")
    assert done.json["exit_code"] == done.code == ExitCode.DATA
    assert "does not exist" in done.json["error"]


def test_usage_error_with_json_prints_json(folder):
    done = run_here("evaluate", folder / "flowers.model", "--json")
    assert done.json == {"error": "Missing argument 'DATA'.", "exit_code": ExitCode.USAGE}
    assert done.code == ExitCode.USAGE
    unknown = run_here("evaluate", folder / "flowers.model", folder / "new.csv", "--bogus", "--json")
    assert "--bogus" in unknown.json["error"]
    assert run_here("evaluate", "--bogus").out == ""


def test_unexpected_exception_is_reported_as_bug(folder, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("regbayes.cli.modelfile.load", broken)
    monkeypatch.delenv("REGBAYES_TRACEBACK", raising=False)
    done = run_here("predict", folder / "flowers.model", folder / "new.csv")
    assert done.code == ExitCode.BUG
    assert "ZeroDivisionError: oops. This is a bug" in done.err
    monkeypatch.setenv("REGBAYES_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        run_here("predict", folder / "flowers.model", folder / "new.csv")


def test_ctrl_c_exits_with_interrupted_code(folder, monkeypatch):
    monkeypatch.setattr("regbayes.cli.context.read_table", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    done = run_here("fit", folder / "flowers.csv", "-t", "kind", "-o", folder / "x.model")
    assert done.code == ExitCode.INTERRUPTED
    assert "error: interrupted" in done.err


def test_column_names_are_not_rendered_as_markup(folder):
    (folder / "brackets.csv").write_text("[bold]a[/bold],[link=x],kind\n1,2,x\n2,1,y\n")
    done = run_here("fit", folder / "brackets.csv", "-t", "[red]", "-o", folder / "x.model")
    assert "it has '[bold]a[/bold]', '[link=x]', 'kind'" in done.err


def test_jsonable_replaces_non_finite_numbers_by_null(capsys):
    assert jsonable({"a": np.float64("nan"), 1: [np.int64(3), (np.bool_(True), None)], "d": object}) == {
        "a": None,
        "1": [3, [True, None]],
        "d": str(object),
    }
    out = Output(json=True)
    out.line("not shown")
    out.result({"x": np.arange(2)})
    assert json.loads(capsys.readouterr().out) == {"x": [0, 1], "warnings": []}


@pytest.mark.parametrize("command", ["demo", "fit", "predict", "evaluate", "report"])
def test_help_shows_examples(command):
    done = run_here(command, "--help")
    assert done.code == 0
    assert "Examples" in done.out
    assert f"regbayes {command}" in done.out


def test_unknown_column_suggests_closest_name(folder, tmp_path):
    wrong = run_here("fit", folder / "flowers.csv", "-t", "Kind", "-o", tmp_path / "m")
    assert wrong.code == 3
    assert wrong.err.rstrip().endswith("Did you mean 'kind'?")
    far = run_here("fit", folder / "flowers.csv", "-t", "elephants", "-o", tmp_path / "m")
    assert "Did you mean" not in far.err
    names = (folder / "flowers.csv").read_text().splitlines()[0].split(",")
    both = run_here("fit", folder / "flowers.csv", "-t", "kind", "--ignore", ",".join(names[:2]), "-o", tmp_path / "m")
    assert both.code == 3
    assert both.err.rstrip().endswith("For several columns, give the option once for each")
    head, *rows = (folder / "new.csv").read_text().splitlines()
    (tmp_path / "loud.csv").write_text("\n".join([head.upper(), *rows]) + "\n")
    run = run_here("predict", folder / "flowers.model", tmp_path / "loud.csv")
    assert run.code == 3
    assert "Names must agree in upper and lower case" in run.err


@pytest.mark.parametrize(
    ("more", "hint"),
    [(("--cv", 3), "and then options"), (("kind",), "a column to predict is --target COLUMN")],
)
def test_extra_argument_prints_hint(folder, tmp_path, more, hint):
    run = run_here("fit", folder / "flowers.csv", *more, "-o", tmp_path / "m", "--json")
    assert run.code == 2
    assert hint in run.err
    assert hint in run.json["error"]
