"""Experiments: records, resuming, selection of settings, tables, and imports of the public API."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge

import regbayes_paper
from regbayes_paper.__main__ import FOLDER, PAGE, main, page, publish
from regbayes_paper.experiments import EXPERIMENTS, make, samples, sensitivity, tuning
from regbayes_paper.experiments.features import describe
from regbayes_paper.experiments.peers import TaskDeviationRidge
from regbayes_paper.experiments.protocol import PEERS, Cell, Context, Experiment, Metric, Record, System, grid, paired
from regbayes_paper.experiments.runner import append_record, draw, plan, read_records, run, section
from regbayes_paper.experiments.samples import Dataset, Sample

RNG = np.random.default_rng(0)
X = RNG.standard_normal((80, 3))
SAMPLE = Sample(X, (X[:, 0] + 0.3 * RNG.standard_normal(80) > 0).astype(int))


def names_in_the_reference() -> dict[str, set[str]]:
    """Return the names that the API reference lists, by module."""
    found, module = {}, ""
    for path in (Path(__file__).parents[2] / "docs" / "reference").glob("*.rst"):
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith(".. currentmodule::"):
                module = line.split()[-1]
            elif line.startswith("   ") and line.strip().isidentifier():
                found.setdefault(module, set()).add(line.strip())
    return found


def test_package_imports_only_documented_names_of_regbayes():
    """Names imported from regbayes have no leading underscore and are in the API reference."""
    listed = names_in_the_reference()
    for path in Path(regbayes_paper.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "regbayes":
                assert {alias.name for alias in node.names} <= listed[node.module], path
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names if alias.name.split(".")[0] == "regbayes"]
                assert names in ([], ["regbayes"]), path


class Toy(Experiment):
    """Two systems on one data set, one of which is not available."""

    name, title = "toy", "A toy table"
    metrics = (Metric("accuracy", "accuracy", "share of right predictions"),)
    drawn = ("accuracy",)
    systems = (
        System("one", lambda _, C: LogisticRegression(C=C), grid(C=(1e-6, 1.0)), grid(C=(1.0,))),
        System("absent", lambda _: None, needs="no_such_package"),
        System("fixed", lambda _: LogisticRegression(), group=PEERS, random=False),
    )
    kind = tuning.MULTIWAY
    paper: ClassVar[dict] = {"data": {"one": {"accuracy": "0.900 ± 0.1"}}}
    sizes = (3, 3)
    seeds = (2, 1)
    broken = ""

    def protocol(self):
        return ("Two systems.",)

    def datasets(self):
        return [Dataset("data", SAMPLE, ((np.arange(60), np.arange(60, 80)),))]

    def evaluate(self, cell):
        if cell.row == self.broken:
            raise ValueError("it is broken")
        return super().evaluate(cell)


def measure(toy, folder, **options):
    """Return the outcome, the records and the progress messages."""
    said = []
    outcome = run([toy], folder, say=said.append, **options)
    return outcome, read_records(folder / f"{toy.stem}.jsonl"), said


def test_run_again_skips_recorded_cells(tmp_path):
    _, records, _ = measure(Toy(), tmp_path)
    assert [str(cell) for cell in records] == [
        "data · one · seed 0",
        "data · one · seed 1",
        "data · fixed · seed 0",  # a deterministic fit needs only one seed on a published split
    ]
    first = next(iter(records.values()))
    assert first.chosen == {"C": 1.0}
    assert {"commit", "numpy", "date"} <= first.provenance.keys()
    text = section(Toy(), tmp_path)
    assert "| absent | not run |" in text
    assert "| — the paper | 0.900 ± 0.1 |" in text
    assert draw(Toy(), tmp_path, tmp_path / "figures") == [tmp_path / "figures" / "toy.png"]
    toy = Toy()
    toy.broken = "one"  # measuring this cell would fail
    _, again, said = measure(toy, tmp_path)
    assert again == records
    assert said[0] == "toy: 0 cells to measure."
    assert len(measure(Toy(), tmp_path, n_seeds=3)[1]) == 4
    _, anew, said = measure(Toy(), tmp_path, fresh=True)
    assert "3 cells" in said[0]
    assert [record.values for record in anew.values()] == [record.values for record in records.values()]


def test_run_with_two_processes_matches_one_process(tmp_path):
    name, both = "training-size", []
    for jobs in (1, 2):
        run([make(name, quick=True)], tmp_path / str(jobs), jobs=jobs, say=lambda _: None)
        found = read_records(tmp_path / str(jobs) / f"{name}-quick.jsonl")
        both.append({cell: record.values for cell, record in found.items()})
    assert both[0] == both[1]


def test_plan_estimates_times_and_run_skips_late_cells(tmp_path):
    """The estimate is the time with another seed, or the small form's time scaled by the work."""
    measure(Toy(quick=True), tmp_path)
    tasks = plan(Toy(), tmp_path)
    small = read_records(tmp_path / "toy-quick.jsonl")
    assert all(task.seconds > 0 for task in tasks)
    fixed = next(task for task in tasks if task.cell.row == "fixed")
    assert fixed.seconds == pytest.approx(small[fixed.cell].seconds)  # both forms have the same work in this example
    outcome, records, said = measure(Toy(), tmp_path, deadline=0.0)
    assert (outcome.skipped, records) == (3, {})
    assert "the same command continues" in said[-1]


def test_run_reports_failed_system_and_retries_it(tmp_path):
    toy = Toy()
    toy.broken = "one"
    outcome, records, said = measure(toy, tmp_path)
    assert len(outcome.failed) == 2
    assert len(records) == 1
    assert any("failed: ValueError: it is broken" in line for line in said)
    assert len(measure(Toy(), tmp_path)[1]) == 3


def test_run_interrupted_keeps_finished_records(tmp_path):
    class Stopped(Toy):
        def evaluate(self, cell):
            if cell.row == "fixed":
                raise KeyboardInterrupt
            return super().evaluate(cell)

    outcome, records, said = measure(Stopped(), tmp_path)
    assert outcome.interrupted
    assert "the same command continues" in said[-1]
    assert len(records) == 2


def test_published_page_matches_committed_records(tmp_path):
    """The page in the documentation is generated from the records; without records it says so."""
    publish(tmp_path, tmp_path)
    assert "No cell is recorded yet." in (tmp_path / PAGE).read_text()
    published = FOLDER / "docs" / PAGE
    assert published.read_text(encoding="utf-8") == page(FOLDER / "results")


def test_tables_without_data_sets_are_identical(tmp_path, monkeypatch):
    """Records describe their data sets, so tables do not need the data."""
    run([make("training-size", quick=True)], tmp_path, say=lambda _: None)
    before = section(make("training-size", quick=True), tmp_path)
    monkeypatch.setenv("REGBAYES_DATA", str(tmp_path / "nowhere"))
    samples.read.cache_clear()
    assert section(make("training-size", quick=True), tmp_path) == before
    samples.read.cache_clear()


def test_read_records_ignores_incomplete_line(tmp_path):
    path = tmp_path / "records.jsonl"
    cells = list(Toy().cells(2))
    append_record(path, Record(cells[0], {"accuracy": 0.5}, 1.0))
    path.write_text(path.read_text() + '{"cell": {"dataset"')
    append_record(path, Record(cells[1], {"accuracy": 0.6}, 1.0))
    assert list(read_records(path)) == cells[:2]


def test_paired_reports_standard_error_of_the_mean():
    cells = [cell for cell in Toy().cells(4) if cell.row == "one"]
    ours = [Record(cell, {"accuracy": 0.5 + 0.1 * cell.seed}, 0.0) for cell in cells]
    theirs = [Record(type(c)(c.dataset, "other", "", c.seed), {"accuracy": 0.4}, 0.0) for c in cells]
    (line,) = paired([*ours, *theirs], "one", "other", Toy.metrics[0])
    error = 100 * np.std([0.1, 0.2, 0.3, 0.4], ddof=1) / 2
    assert f"+25.00 ± {error:.2f} points" in line
    assert "4 seeds" in line


def test_evaluate_chooses_settings_without_test_targets():
    """The chosen settings do not depend on the test targets."""
    context, system = Context(0, 3, 3), Toy.systems[0]
    train, test = SAMPLE.rows(np.arange(60)), SAMPLE.rows(np.arange(60, 80))
    cell = next(iter(Toy().cells(1)))
    chosen = [
        tuning.evaluate(cell, system, train, Sample(test.X, y), context, tuning.MULTIWAY, n_folds=3).chosen
        for y in (test.y, 1 - test.y)
    ]
    assert chosen[0] == chosen[1]


def test_split_stratifies_tasks_and_uses_published_splits():
    task = np.repeat([3, 5, 9], [20, 8, 12])
    dataset = Dataset("ragged", Sample(RNG.standard_normal((40, 2)), RNG.standard_normal(40), task))
    train, test = dataset.split(0)
    np.testing.assert_array_equal(np.bincount(train.task)[[3, 5, 9]], [15, 6, 9])
    assert len(test) == 10
    published = Dataset("fixed", SAMPLE, ((np.arange(60), np.arange(60, 80)), (np.arange(20, 80), np.arange(20))))
    np.testing.assert_array_equal(published.split(1)[1].X, X[:20])
    small = published.smaller(20)
    assert [len(part) for part in small.split(0)] == [15, 5]


def test_stand_in_data_sets_name_the_data_they_replace(monkeypatch):
    monkeypatch.delenv("REGBAYES_DATA", raising=False)
    assert "stands in for TRECVID2003, which is not public" in samples.multiway(False)[0].heading
    samples.read.cache_clear()
    assert samples.ragged(True)[0].stands_for == "School"
    record = Record(Cell("digits", "MMH", "", 0), {"accuracy": 0.9}, 1.0, stands_for="TRECVID2003")
    table = make("table1").blocks([record])[0]
    assert table.note == "The paper's numbers are about TRECVID2003 and cannot be compared."
    samples.read.cache_clear()


def test_task_deviation_ridge_matches_ridge_on_task_columns():
    task = np.repeat([0, 1], 40)
    y = X @ [1.0, 2.0, 0.0] + task + 0.1 * RNG.standard_normal(80)
    model = TaskDeviationRidge(alpha=2.0, slope_alpha=5.0, intercept_alpha=3.0).fit(X, y, task)
    rows = np.column_stack([np.ones(80), (X - X.mean(axis=0)) / X.std(axis=0)])
    own = [rows * (task == t)[:, None] / np.sqrt([3.0, 5.0, 5.0, 5.0]) for t in (0, 1)]
    design = np.column_stack([rows[:, 1:] / np.sqrt(2.0), *own])
    theirs = Ridge(1.0).fit(design, y)
    np.testing.assert_allclose(model.predict(X, task), theirs.predict(design), atol=1e-6)


def test_joint_fit_hides_test_targets():
    task = np.repeat([0, 1], 40)
    ragged = Sample(X, X[:, 0], task)
    for sample, kind in ((SAMPLE, "multiway"), (ragged, "ragged"), (Sample(X, np.eye(80)[:, :3]), "labels")):
        joint = sensitivity.with_hidden(sample.rows(np.arange(60)), sample.rows(np.arange(60, 80)), kind)
        hidden = joint.y[60:]
        assert np.all(hidden == -1) if kind == "multiway" else np.all(np.isnan(hidden))
        np.testing.assert_array_equal(joint.X, X)


def test_describe_sorts_features_by_use():
    psi = np.array([[0.1, 0.9, 0.5], [0.8, 0.9, 0.5], [0.2, 0.5, 0.5], [0.1, 1.0, 0.5]])
    found = describe(psi, np.array(["a", "a", "b", "b"]))
    assert found["features"] == [1, 0]
    assert found["top"][1][0] == 1
    np.testing.assert_allclose(found["by_class"], [[0.9, 0.45], [0.75, 0.15]])


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_has_cells_lines_and_protocol(name):
    experiment = make(name, quick=True)
    cells = experiment.cells(2)
    blocks = experiment.blocks([Record(cell, {}, 0.0) for cell in cells])
    lines = {(block.dataset, line.row, line.setting) for block in blocks for line in block.lines}
    assert {(cell.dataset, cell.row, cell.setting) for cell in cells} <= lines
    assert len(set(cells)) == len(cells)
    assert all(experiment.protocol())
    assert {experiment.rank(cell) for cell in cells} <= {0, 1, 2}
    assert all(experiment.work(cell) > 0 for cell in cells)


def test_command_line_runs_and_reports_invalid_arguments(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("REGBAYES_DATA", "")
    samples.read.cache_clear()
    assert main(["training-size", "--quick", "-o", str(tmp_path)]) == 0
    assert "stands in for School" in capsys.readouterr().out
    assert (tmp_path / "training-size-quick.jsonl").exists()
    samples.read.cache_clear()
    monkeypatch.setenv("REGBAYES_DATA", str(tmp_path / "nowhere"))
    assert main(["school", "--quick", "-o", str(tmp_path)]) == 5
    with pytest.raises(SystemExit, match="2"):
        main(["table3"])
    samples.read.cache_clear()
