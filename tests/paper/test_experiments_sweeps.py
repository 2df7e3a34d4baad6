"""What is varied in an experiment reaches the fit; experiments beyond the paper measure what they say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neighbors import KNeighborsClassifier

from experiments_tools import ragged_sample
from regbayes_paper.experiments import data, few_features, inputs, make, temperature
from regbayes_paper.experiments.data import Sample
from regbayes_paper.experiments.landmine import mean_auc
from regbayes_paper.experiments.peers import TaskAdapter, TaskDeviationRidge
from regbayes_paper.experiments.registry import System
from regbayes_paper.experiments.store import Cell


@pytest.fixture
def no_data(monkeypatch, tmp_path):
    """Neither a folder of data nor a cache; the quick form asks no network."""
    monkeypatch.delenv("REGBAYES_DATA", raising=False)
    monkeypatch.setenv("REGBAYES_CACHE", str(tmp_path / "cache"))
    data._read.cache_clear()
    yield
    data._read.cache_clear()


def test_the_number_of_features_is_that_of_the_line(no_data, monkeypatch):
    sizes = []

    def make_model(context, **_):
        sizes.append(context.n_components)
        return KNeighborsClassifier()

    joint, apart = (replace(system, make=make_model, quick_grid=({},)) for system in few_features.LABELS)
    peer = System("peer", make_model)
    monkeypatch.setattr(few_features.LabelFeatures, "swept", (joint, apart))
    monkeypatch.setattr(few_features.LabelFeatures, "systems", (joint, apart, peer))
    experiment = make("table2-k", quick=True)
    cells = {(cell.row, cell.setting) for cell in experiment.cells(1)}
    assert cells == {(s.name, f"K = {k}") for s in (joint, apart) for k in (4, 8)} | {("peer", "")}
    for cell in (c for c in experiment.cells(1) if c.setting == "K = 8"):
        sizes.clear()
        experiment.evaluate(cell)
        assert set(sizes) == {8}
    facts = [experiment.facts(Cell("digit questions", joint.name, f"K = {k}", 0)) for k in (4, 8)]
    assert facts[0] != facts[1]


def test_joint_and_two_stage_have_settings_of_their_own_and_no_inputs():
    for apart, joint in (few_features.LABELS, few_features.RAGGED):
        assert {s["margins"] for s in apart.grid} == {"decoupled"}
        assert not any("margins" in s for s in joint.grid)
        assert not any(s.get("include_inputs") for system in (apart, joint) for s in system.grid)
        assert len(apart.grid) >= len(joint.grid) - 3


def test_few_rows_are_of_every_class_and_the_test_part_is_the_whole(no_data, monkeypatch):
    experiment = make("inputs", quick=True)
    dataset = experiment.datasets()[0]
    train, test = experiment.parts(dataset, 3)
    few = experiment.training_rows(Cell(dataset.name, "iLSVM", inputs.FEW_ROWS, 3), train)
    assert len(few) == inputs.FEW
    assert set(few.y) == set(train.y)
    shares = np.bincount(train.y) / len(train)
    np.testing.assert_allclose(np.bincount(few.y), inputs.FEW * shares, atol=1.01)
    assert experiment.training_rows(Cell(dataset.name, "iLSVM", inputs.ALL_ROWS, 3), train) is train
    scored = []

    class Spy(DummyClassifier):
        def predict(self, X):
            scored.append(len(X))
            return super().predict(X)

    spy = System("spy", lambda _: Spy())
    monkeypatch.setattr(inputs.Inputs, "systems", (spy,))
    experiment.evaluate(Cell(dataset.name, "spy", inputs.FEW_ROWS, 3))
    assert scored == [len(test)]


def test_a_temperature_is_that_of_the_line(no_data):
    experiment = make("temperature", quick=True)
    dataset = experiment.datasets()[0].name
    warm, cold = (
        experiment.evaluate(Cell(dataset, temperature.JOINT.name, f"T = {value}", 0)).values
        for value in temperature.QUICK_TEMPERATURES
    )
    assert 0.25 >= warm["softness"] > 2 * cold["softness"] >= 0  # cooled features are nearly on or off
    system, _ = experiment.at(Cell(dataset, temperature.TWO_STAGE.name, "T = 0.02", 0))
    assert system.grid == ({"temperature": 0.02, "C": 1.0},)


def test_features_that_were_drawn_are_counted(no_data):
    experiment = make("feature-count", quick=True)
    few, many = (
        experiment.evaluate(Cell("planted", f"K = {K}", "100 rows", 0)).values for K in experiment._sizes("planted")
    )
    assert few["features"] <= 10 < many["features"] <= 20
    assert few["there"] == many["there"] > 10  # of the rows, whatever the model


def test_deviations_are_those_of_a_ridge_with_task_terms():
    sample = ragged_sample()
    alpha, deviation = 2.0, 0.4
    price = alpha / deviation**2
    model = TaskAdapter(Ridge(alpha, tol=1e-12), "deviations", deviation)
    exact = TaskDeviationRidge(alpha, slope_alpha=price, intercept_alpha=price)
    predicted = [m.fit(sample.X, sample.y, sample.task).predict(sample.X, sample.task) for m in (model, exact)]
    np.testing.assert_allclose(*predicted, atol=1e-6)


def test_scores_of_tasks_are_those_of_their_own_models():
    sample = ragged_sample()
    y = (sample.y > np.median(sample.y)).astype(int)
    model = TaskAdapter(LogisticRegression(), "separate").fit(sample.X, y, sample.task)
    scores = model.decision_function(sample.X, sample.task)
    np.testing.assert_array_equal(model.predict(sample.X, sample.task), scores > 0)
    own = sample.task == 5
    rows = model.scaler_.transform(sample.X)[own]
    np.testing.assert_allclose(scores[own], LogisticRegression().fit(rows, y[own]).decision_function(rows))
    assert not hasattr(TaskAdapter(Ridge()), "decision_function")


def test_the_area_is_averaged_over_tasks_with_both_classes():
    task = np.repeat([0, 1, 2], 4)
    y = np.array([0, 0, 1, 1, 0, 1, 0, 1, 1, 1, 1, 1])
    scores = np.array([0.0, 1.0, 2.0, 3.0, 10.0, 11.0, 12.0, 9.0, 0.0, 0.0, 0.0, 0.0])
    sample = Sample(np.zeros((12, 1)), y, task)
    assert mean_auc(sample, scores) == pytest.approx((1.0 + 0.25) / 2)


def test_landmine_splits_divide_every_class_of_every_task():
    sample = ragged_sample()
    y = (np.arange(60) % 5 == 0).astype(int)
    train, test = data.split_within_tasks(Sample(sample.X, y, sample.task), 1, 0.5, by_class=True)
    for t in np.unique(sample.task):
        assert [int(part.y[part.task == t].sum()) for part in (train, test)] == [2, 2]
        assert int(np.sum(train.task == t)) == 10
