"""Commands run in this process: results and error messages."""

from __future__ import annotations

import csv
import io
import re

import numpy as np
import pytest

from cli_tools import flowers, run_here
from persistence_tools import VERSION_1
from reference_tools import fits_its_rows
from regbayes.cli.errors import ExitCode
from regbayes.cli.output import jsonable

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
    cases["made by regbayes 0.1: fit again"] = VERSION_1 / "command_line.model"
    cases["not a regbayes file"] = folder / "flowers.csv"
    cases["none.model' does not exist"] = folder / "none.model"
    from regbayes import ILSVMClassifier

    ILSVMClassifier().save(folder / "estimator.model")
    cases["not a model that 'regbayes fit' wrote"] = folder / "estimator.model"
    for message, path in cases.items():
        done = run_here("predict", path, folder / "new.csv")
        assert done.code == ExitCode.MODEL, message
        assert message in done.err


FIT = "fit {}/flowers.csv -t kind -o {}/x"
MISTAKES = {
    "fit {}/none.csv -t kind -o {}/x": (3, "none.csv' does not exist"),
    "fit {}/flowers.csv -o {}/x": (2, "name the column to predict with --target"),
    "fit {}/flowers.csv -t sort -o {}/x": (3, "it has 'size', 'width', 'place', 'kind'"),
    "fit {}/flowers.csv -t kind -o {}/none/x": (2, "none does not exist"),
    "fit {}/flowers.csv -t kind -o {}": (2, "is not a regular file"),
    "fit {}/flowers.csv -t kind": (2, "Missing option '--output'"),
    f"{FIT} --C -1": (2, "--C must be positive"),
    f"{FIT} --image 8": (2, "must be HEIGHTxWIDTH"),
    f"{FIT} --delimiter ::": (2, "--delimiter must be one character"),
    f"{FIT} --kind regressor": (3, "'kind' is text"),
    f"{FIT} --no-cv --resume": (2, "--resume continues a search"),
    f"{FIT} --n-components 100000000": (2, "takes more memory than a model may have"),
    "fly": (2, "No such command 'fly'"),
    "predict {}/flowers.model {}/new.csv -o {}/x.xls": (2, "should end in .csv, .npz or .parquet"),
    "predict {}/flowers.model {}/new.csv --keep id": (3, "no column 'id'"),
    "predict {}/flowers.model {}/new.csv --keep kind": (2, "the prediction has this name"),
    "predict {}/both.model {}/numbers.csv --scores": (4, "only classes have scores"),
    "predict {}/flowers.model {}/numbers.csv": (3, "lacks columns that the model was fitted to"),
    "evaluate {}/flowers.model {}/untold.csv": (3, "no column 'kind'"),
    "evaluate {}/flowers.model": (2, "Missing argument 'DATA'"),
    "report {}/flowers.model -o {}/none/page.html": (2, "none does not exist"),
    "report {}/flowers.model {}/untold.csv -o {}/page.html": (3, "no column 'kind'"),
}


@pytest.mark.parametrize("command", MISTAKES)
def test_user_error_prints_message_and_exit_code(folder, numbers, command):
    code, message = MISTAKES[command]
    (folder / "untold.csv").write_text("size,width,place\n1,2,field\n")
    arguments = [argument.format(folder) for argument in command.split()]
    done = run_here(*arguments)
    assert (done.code, done.out) == (code, "")
    assert message in " ".join(done.err.replace("│", " ").split())
    assert "Traceback" not in done.err
    found = run_here(*arguments, "--json").json if command != "fly" else {"exit_code": code, "error": message}
    assert found["exit_code"] == code
    assert message in found["error"]


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


def test_json_has_null_for_non_finite_numbers():
    given = {"a": np.float64("nan"), 1: [np.int64(3), (np.bool_(True), None)], "b": np.array([np.inf])}
    assert jsonable(given) == {"a": None, "1": [3, [True, None]], "b": [None]}


def test_column_names_are_not_rendered_as_markup(folder):
    (folder / "brackets.csv").write_text("[bold]a[/bold],[link=x],kind\n1,2,x\n2,1,y\n")
    done = run_here("fit", folder / "brackets.csv", "-t", "[red]", "-o", folder / "x.model")
    assert "it has '[bold]a[/bold]', '[link=x]', 'kind'" in done.err


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
    head, *rows = (folder / "new.csv").read_text().splitlines()
    (tmp_path / "loud.csv").write_text("\n".join([head.upper(), *rows]) + "\n")
    run = run_here("predict", folder / "flowers.model", tmp_path / "loud.csv")
    assert run.code == 3
    assert "Did you mean 'SIZE'?" in run.err
