"""The experiments themselves: their rows, their data, their variants and figures."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.dummy import DummyClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import SVC

from experiments_tools import ragged_sample
from regbayes import ILSVMClassifier
from regbayes.models.indian_buffet import stick_weights
from regbayes_paper.data import DataNotFoundError, loaders
from regbayes_paper.experiments import EXPERIMENTS, data, figures, make, mmh_k, registry, run, systems, versions
from regbayes_paper.experiments.comparison import paired
from regbayes_paper.experiments.data import Dataset, Sample
from regbayes_paper.experiments.features import describe
from regbayes_paper.experiments.figures import lowest_by_far
from regbayes_paper.experiments.protocol import Experiment
from regbayes_paper.experiments.registry import Context, System, named
from regbayes_paper.experiments.school import POOLED
from regbayes_paper.experiments.store import Cell, Record
from regbayes_paper.experiments.training_size import first_share
from regbayes_paper.experiments.variants import DecayingStartILSVM, Variant, studies, training_rows

PAPER_ROWS = {
    "table1": {"EFH+SVM", "MMH", "IBP+SVM", "iLSVM"},
    "table2": {"YaXue", "Piyushrai-1", "Piyushrai-2", "MT-IBP+SVM", "MT-iLSVM"},
    "school": {"STL", "BMTL", "MTGP", "MTRL", "MT-IBP+SVM", "MT-iLSVM", "MT-IBP+SVM^f", "MT-iLSVM^f"},
}
CLASSIFIERS = {"majority", "LinearSVC", "logistic regression", "RBF-SVM", "random forest"}
REGRESSORS = {
    *("task mean", "one ridge for all", "ridge + task columns", "ridge + task deviations"),
    *("RBF ridge + task columns", "random forest + task columns"),
}
PEERS = {
    "table1": CLASSIFIERS,
    "table2": CLASSIFIERS,
    "school": REGRESSORS,
    "sensitivity": CLASSIFIERS | REGRESSORS,
    "training-size": REGRESSORS,
    "features": CLASSIFIERS,
    "mmh-k": CLASSIFIERS,
    "table2-k": CLASSIFIERS,
    "school-k": REGRESSORS,
    "inputs": CLASSIFIERS,
    "temperature": CLASSIFIERS,
    "feature-count": set(),  # nothing is predicted
    "landmine": {"one logistic regression for all", "one logistic regression per task"},
}


@pytest.fixture
def no_data(monkeypatch, tmp_path):
    """Neither a folder of data nor a cache nor a network."""

    def refuse(*_, **__):
        raise AssertionError("the quick form asked the network")

    monkeypatch.delenv("REGBAYES_DATA", raising=False)
    monkeypatch.setenv("REGBAYES_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(loaders, "fetch_multilabel", refuse)
    data._read.cache_clear()
    yield
    data._read.cache_clear()


@pytest.mark.parametrize("name", PAPER_ROWS)
def test_every_row_of_the_paper_is_printed_with_its_numbers(no_data, name):
    (block, *_) = make(name, quick=True).blocks()
    printed = {line.row for line in block.lines if line.paper}
    assert printed == PAPER_ROWS[name]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_has_the_peers_that_a_user_would_pick(no_data, name):
    experiment = make(name, quick=True)
    assert {line.row for block in experiment.blocks() for line in block.lines} >= PEERS[name]
    assert {cell.row for cell in experiment.cells(1)} >= PEERS[name]


def test_other_settings_of_swept_sizes_are_those_of_the_table():
    swept = {system.name: list(system.grid) for system in mmh_k.SWEPT}
    forms = swept.pop(mmh_k.ORIGINAL.name) + swept.pop(mmh_k.WEIGHTED.name)  # in the table they are one row
    for name, settings in {"MMH": forms, **swept}.items():
        in_table = [{k: v for k, v in s.items() if k != "n_components"} for s in named(systems.MULTIWAY, name).grid]
        assert all(s in settings for s in in_table)
        assert name == "MMH" or all(s in in_table for s in settings)
        assert len({str(s) for s in settings}) == len(settings)


def test_a_setting_that_is_kept_is_chosen_at_one_size(no_data, monkeypatch):
    sizes = []

    def make_model(context, C, n_components):
        sizes.append(n_components)
        return KNeighborsClassifier(n_neighbors=1) if C == 0.01 else DummyClassifier()

    swept = replace(mmh_k.ORIGINAL, make=make_model, quick_grid=({"C": 0.001}, {"C": 0.01}))
    monkeypatch.setattr(mmh_k.HarmoniumSize, "swept", (swept,))
    monkeypatch.setattr(mmh_k.HarmoniumSize, "systems", (swept,))
    experiment = make("mmh-k", quick=True)
    cell = Cell("digits", swept.name, "K = 5", 0)
    assert cell in experiment.cells(1)
    found = experiment.evaluate(cell)
    assert found.chosen == {"C": 0.01, "n_components": 5}
    assert sizes == [mmh_k.SETTLED_AT] * 2 * experiment.n_folds + [5]
    assert found.search_seconds > 0


def test_an_rbf_svm_may_take_inputs_as_they_are():
    X, y = load_digits(return_X_y=True)
    X, y = X[:300], y[:300]
    raw = named(systems.MULTIWAY, "RBF-SVM").estimator(Context(0, 5, X.shape[1]), {"C": 3.0, "gamma": "scale"})
    expected = SVC(C=3.0, gamma=1 / (X.shape[1] * X.var())).fit(X, y)
    np.testing.assert_allclose(raw.fit(X, y).decision_function(X), expected.decision_function(X))


@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.parametrize("quick", [True, False])
def test_cells_are_those_of_the_lines_that_can_be_run(no_data, monkeypatch, name, quick):
    monkeypatch.setattr(loaders, "fetch_multilabel", lambda known: (_ for _ in ()).throw(OSError("no network")))
    experiment = make(name, quick=quick)
    cells = experiment.cells(2)
    runnable = {(b.dataset, x.row, x.setting) for b in experiment.blocks() for x in b.lines if not x.missing}
    assert {(c.dataset, c.row, c.setting) for c in cells} == runnable
    assert len(set(cells)) == len(cells)
    assert {c.seed for c in cells} == {0, 1}
    assert all(experiment.facts(cell) for cell in cells)
    keys = {m.key for m in experiment.metrics} | {m.key for b in experiment.blocks() for m in b.metrics or ()}
    assert keys <= {m.key for m in experiment.metrics}


def test_a_row_that_is_not_built_is_not_available_yet():
    assert System("YaXue", None).missing == "not available yet"
    lacking = System("new", lambda _: None, needs="regbayes_paper.baselines.NotThereYet")
    assert lacking.missing == "not available yet: needs regbayes_paper.baselines.NotThereYet"
    assert System("new", lambda _: None, needs="no.such.module.Class").missing.endswith("no.such.module.Class")
    extra = System("new", lambda _: None, extra=("no_such_package", "gp"))
    assert extra.missing == "not available here: pip install -e './paper[gp]'"
    assert not System("new", lambda _: None, needs="regbayes_paper.baselines.MaxMarginHarmoniumClassifier").missing


def test_without_harmoniums_mmh_k_says_what_it_needs(no_data, monkeypatch):
    monkeypatch.setattr(registry, "found", lambda name: None)
    experiment = make("mmh-k", quick=True)
    assert "regbayes_paper.baselines.MaxMarginHarmoniumClassifier" in " ".join(experiment.protocol())
    assert {cell.row for cell in experiment.cells(1)} & {"MMH", "EFH+SVM"} == set()
    (block,) = experiment.blocks()
    assert all(line.missing for line in block.lines if line.row in ("MMH", "EFH+SVM"))


PAPERS_ROWS = {
    "MULTIWAY": {"EFH+SVM", "MMH", "IBP+SVM", "iLSVM"},
    "MULTILABEL": {"YaXue", "Piyushrai-1", "Piyushrai-2", "MT-IBP+SVM", "MT-iLSVM"},
    "RAGGED": {"STL", "BMTL", "MTGP", "MTRL", "MT-IBP+SVM", "MT-iLSVM", "MT-IBP+SVM^f", "MT-iLSVM^f"},
}


@pytest.mark.parametrize("rows", PAPERS_ROWS)
def test_every_system_of_the_papers_tables_has_its_row(rows):
    names = [system.name for system in getattr(systems, rows) if system.group == registry.PAPER]
    assert set(names) >= PAPERS_ROWS[rows]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("rows", PAPERS_ROWS)
def test_estimators_of_all_settings_can_be_made(rows):
    for system in getattr(systems, rows):
        if not system.missing:
            for settings in (*system.grid, *system.quick_grid):
                assert hasattr(system.estimator(Context(0, 7, 5), settings), "fit")


def test_a_systems_facts_follow_its_settings():
    system = named(systems.MULTIWAY, "LinearSVC")
    facts = system.facts(False, 300)
    assert facts == named(systems.MULTIWAY, "LinearSVC").facts(False, 300)
    assert facts != replace(system, grid=system.grid[1:]).facts(False, 300)
    assert facts != system.facts(True, 300)
    latent = named(systems.MULTIWAY, "iLSVM")
    assert latent.facts(False, 300) != latent.facts(False, 299)


def test_facts_follow_the_code(monkeypatch, tmp_path):
    (tmp_path / "a.py").write_text("x = 1\n")
    (tmp_path / "b.py").write_text("y = 1\n")
    files = [tmp_path / "a.py", tmp_path / "b.py"]
    before = versions.digest_of(files)
    assert versions.digest_of(files[::-1]) == before
    (tmp_path / "b.py").write_text("y = 2\n")
    assert versions.digest_of(files) != before
    assert versions.model_code() != versions.protocol_code()
    ours = named(systems.MULTIWAY, "iLSVM"), named(systems.RAGGED, "ASO")  # of the latter, the paper has no row
    peer = named(systems.MULTIWAY, "LinearSVC")
    facts = [system.facts(True, 5) for system in (*ours, peer)]
    monkeypatch.setattr(registry, "model_code", lambda: "other")
    assert [system.facts(True, 5) == before for system, before in zip((*ours, peer), facts, strict=True)] == [
        False,
        False,
        True,
    ]


# Data.


def test_without_data_others_take_their_place_and_say_so(no_data):
    (digits,) = data.multiway(quick=True)
    assert (digits.name, digits.stands_for) == ("digits", "TRECVID2003")
    assert "in place of TRECVID2003 (not public" in digits.description
    (labels,) = data.multilabel(quick=True)
    assert labels.stands_for == "Yeast"
    assert data.ragged(quick=True).stands_for == "School"


def test_the_sets_that_a_user_has_are_used(no_data, monkeypatch, tmp_path):
    rng = np.random.default_rng(0)
    for name, n in (("trecvid2003", 30), ("flickr", 40)):
        arrays = {"X": rng.standard_normal((n, 4)), "y": np.arange(n) % 3}
        np.savez(tmp_path / f"{name}.npz", **arrays, train_idx=np.arange(10), test_idx=np.arange(10, n))
    monkeypatch.setenv("REGBAYES_DATA", str(tmp_path))
    found = data.multiway(quick=True)
    assert [(d.name, len(d.sample), d.stands_for) for d in found] == [("TRECVID2003", 30, ""), ("Flickr", 40, "")]
    train, test = found[0].split(3, 0.5)
    np.testing.assert_array_equal(train.X, found[0].sample.X[:10])
    assert len(test) == 20


def test_a_folder_that_is_not_there_is_not_passed_over(no_data, monkeypatch, tmp_path):
    monkeypatch.setenv("REGBAYES_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(DataNotFoundError, match="nowhere"):
        run("school", quick=True, output=tmp_path)


def test_random_splits_divide_every_task():
    task = np.repeat(np.arange(5), [8, 12, 16, 20, 40])
    sample = Sample(np.arange(96.0)[:, None], np.zeros(96), task)
    train, test = data.split_within_tasks(sample, 0, 0.75)
    np.testing.assert_array_equal(np.bincount(train.task), [6, 9, 12, 15, 30])
    assert sorted(np.concatenate([train.X, test.X])[:, 0]) == list(range(96))
    again, _ = data.split_within_tasks(sample, 0, 0.75)
    np.testing.assert_array_equal(again.X, train.X)
    assert not np.array_equal(np.sort(train.X[:, 0]), train.X[:, 0])  # so that the first rows are random ones
    half = first_share(train, 50)
    assert set(half.task) == set(task)
    assert len(half) >= len(train) // 2


def test_smaller_sets_keep_their_parts_and_whole_tasks():
    labels = np.arange(40) // 20
    full = Dataset("d", Sample(np.arange(40.0)[:, None], labels), np.arange(30), np.arange(30, 40))
    small = data.smaller(full, 20)
    assert (len(small.train), len(small.test)) == (15, 5)
    assert np.all(small.sample.X[small.train] < 30)
    assert np.all(small.sample.X[small.test] >= 30)
    assert len(np.unique(small.sample.y[small.train])) == 2  # the rows were sorted by label
    by_age = data.smaller(data.age_groups(), 300)
    sizes = np.unique(data.age_groups().sample.task, return_counts=True)[1]
    kept, counts = np.unique(by_age.sample.task, return_counts=True)
    np.testing.assert_array_equal(counts, sizes[kept])
    assert full.digest != small.digest


# Variants.


def test_a_decaying_start_has_fewer_and_fewer_rows_with_a_feature():
    starts = {}

    def spying_on(model: type[ILSVMClassifier]) -> ILSVMClassifier:
        class Spy(model):
            def _start(self, *arguments):
                starts[model] = super()._start(*arguments)
                return starts[model]

        return Spy(6, max_iter=1, random_state=0)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spying_on(DecayingStartILSVM).fit(data.digits().sample.X[:200], data.digits().sample.y[:200])
    decaying = starts[DecayingStartILSVM]
    shares = stick_weights(decaying.sticks)
    np.testing.assert_allclose(shares, (2 / 3) ** np.arange(1, 7), rtol=0.1)
    assert np.all(np.diff(decaying.variances) > 0)  # loadings of rare features are less sure


@pytest.mark.parametrize("study", [s for s in studies(True) if s.key == "testing"], ids=lambda s: s.kind)
def test_a_joint_fit_sees_no_target_of_the_test_rows(study):
    sample = ragged_sample()
    y = {"ragged": sample.y, "labels": np.ones((60, 2), dtype=int), "multiway": np.ones(60, dtype=int)}[study.kind]
    task = sample.task if study.kind == "ragged" else None
    train, test = Sample(sample.X[:40], y[:40], None if task is None else task[:40]), Sample(sample.X[40:], y[40:])
    test = test if task is None else Sample(test.X, test.y, task[40:])
    rows = training_rows(study, Variant("joint", joint=True), train, test)
    np.testing.assert_array_equal(rows.X, sample.X)
    np.testing.assert_array_equal(rows.y[:40], y[:40])
    hidden = rows.y[40:]
    assert np.all(hidden == -1) if study.kind == "multiway" else np.all(np.isnan(hidden))


def test_features_are_described():
    rng = np.random.default_rng(4)
    labels = np.repeat([0, 1], 50)
    psi = np.column_stack([np.full(100, 0.9), labels * 0.8 + 0.1, rng.random(100) * 0.05])
    psi[17, 1] = 1.0
    found = describe(psi, labels)
    assert found["features"] == [1]  # the first is the same for all rows, the last nearly
    np.testing.assert_allclose(np.array(found["by_class"])[:, 0], [0.118, 0.9], atol=1e-9)
    assert found["top"][0][0] == 17


def invented(experiment: Experiment, cells: Sequence[Cell]) -> list[Record]:
    """Records as if the cells had been measured."""
    rng = np.random.default_rng(5)
    psi, labels = rng.random((20, 4)), np.arange(20) % 2
    keys = [metric.key for metric in experiment.metrics]
    return [
        Record(cell, "", dict(zip(keys, rng.random(len(keys)), strict=True)), 1.0, 0.0, None, {}, describe(psi, labels))
        for cell in cells
    ]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_figures_are_drawn_from_what_there_is(no_data, tmp_path, name):
    experiment = make(name, quick=True)
    cells = experiment.cells(2)
    for some in (cells, cells[:1]):  # all of it, and a run that was interrupted at once
        files = experiment.draw(invented(experiment, some), tmp_path)
        assert files
        for path in files:
            height, width = plt.imread(path).shape[:2]
            assert height > 300
            assert width > 500
        assert experiment.remarks(invented(experiment, some)) is not None


def test_a_value_far_below_all_others_is_written_and_not_drawn_to_scale(no_data, monkeypatch, tmp_path):
    assert lowest_by_far({0: 0.92, 1: 0.1, 2: 0.94}) == 1
    assert lowest_by_far({0: 0.8, 1: 0.77, 2: 0.82}) is None
    assert lowest_by_far({0: 0.62, 1: 0.49, 2: 0.63}) == 1
    assert lowest_by_far({0: 0.62, 1: 0.49, 2: 0.63}, [0.36]) is None  # what the paper printed is drawn, and lower
    assert lowest_by_far({0: 0.62, 1: 0.1}) is None
    drawn = []
    monkeypatch.setattr(figures, "save", lambda figure, path: drawn.append(figure) or path)
    experiment = make("table1", quick=True)
    values = {"majority": 0.1}
    records = [
        Record(cell, "", {"accuracy": values.get(cell.row, 0.9 + 0.01 * place), "f1": 0.9}, 1.0, 0.0, None)
        for place, cell in enumerate(experiment.cells(1))
    ]
    experiment.draw(records, tmp_path)
    left, right = drawn[0].axes
    assert [text.get_text() for text in left.texts] == ["◂ 0.100"]
    assert left.get_xlim()[0] > 0.8
    assert not right.texts


def test_paired_differences():
    def records(row: str, values: list[float]) -> list[Record]:
        return [Record(Cell("d", row, "", i), "", {"pooled": v}, 0.0, 0.0, None) for i, v in enumerate(values)]

    both = records("a", [0.31, 0.33]) + records("b", [0.30, 0.30])
    (line,) = paired(both, "a", "b", POOLED, "d")
    assert "paired on 2 seeds: +2.00 ± 1.00 points of EV pooled" in line
    assert paired(both[:3], "a", "b", POOLED, "d") == []
    assert paired(both, "a", "b", POOLED, "d", "K = 5") == []  # other cells
    assert paired(both, "a", "b", POOLED, "other") == []
