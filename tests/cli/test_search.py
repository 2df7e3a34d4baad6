"""Model selection of the command line: agreement with the package, grids and folds."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import StratifiedKFold

from cli_tools import run_here
from regbayes import ILSVMClassifierCV
from regbayes.cli.context import FitContext, prepare
from regbayes.cli.fit import fit as fit_model
from regbayes.cli.fit import make_estimator, make_search, possible_folds
from regbayes.cli.options import FitRequest
from regbayes.cli.output import Output
from regbayes.cli.targets import score_of

SMALL = {"n_components": [4], "max_iter": 5, "folds": 2}


def table(y, name="y", d=3) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    codes = np.unique(np.asarray(y, dtype=str), return_inverse=True)[1]
    X = rng.standard_normal((len(y), d)) + codes[:, None] % 3
    return pd.DataFrame(X, columns=[f"x{i}" for i in range(d)]).assign(**{name: y})


def context_of(folder, frame, target=("y",), **options) -> FitContext:
    frame.to_csv(folder / "t.csv", index=False)
    request = FitRequest(data=str(folder / "t.csv"), output=str(folder / "m"), target=list(target), **options)
    return prepare(request, Output())


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_search_matches_package_search(tmp_path, jobs):
    context = context_of(tmp_path, table(np.array(list("abc") * 20)), C=[0.1, 1.0], jobs=jobs, **SMALL)
    found = fit_model(context)
    folds = StratifiedKFold(2, shuffle=True, random_state=0)
    search = make_search(context, make_estimator(context), 2).set_params(refit=True)
    reference = search.fit(context.X, context.y)
    own = ILSVMClassifierCV(4, Cs=(0.1, 1.0), max_iter=5, cv=folds, random_state=0)
    assert reference.best_params_.keys() == own.fit(context.X, context.y).best_params_.keys()
    candidates = found.cross_validation("accuracy", 0.0)["candidates"]
    means = dict(zip(reference.cv_results_["param_C"], reference.cv_results_["mean_test_score"], strict=True))
    assert {one["C"]: one["mean"] for one in candidates if one["C"] in means} == pytest.approx(means)
    if found.settings["C"] == reference.C_:  # the grid was not extended
        np.testing.assert_array_equal(found.estimator.coef_features_, reference.coef_features_)
    scores = [np.mean(found.out_of_fold[test] == context.y[test]) for _, test in search.cv]
    assert np.mean(scores) == pytest.approx(max(one["mean"] for one in candidates))


def test_search_extends_grid_beyond_edge(tmp_path):
    frame = table(np.array(list("ab") * 20))
    frame.to_csv(tmp_path / "t.csv", index=False)
    options = ("--n-components", 3, "--max-iter", 5, "--folds", 2, "--no-compare", "--json")
    fit = ("fit", tmp_path / "t.csv", "-t", "y", "-o", tmp_path / "m", *options)
    done = run_here(*fit, "--C", 1e-5, "--C", 1e-4)
    tried = [one["C"] for one in done.json["cross_validation"]["candidates"]]
    said = re.findall("is the (largest|smallest) value tried", done.err)
    further = {"largest": [1e-5, 1e-4, 1e-3], "smallest": [1e-6, 1e-5, 1e-4]}
    assert tried == (further[said[0]] if said else [1e-5, 1e-4])
    assert done.json["settings"]["C"] in tried


@pytest.mark.parametrize(
    ("sizes", "folds", "said"),
    [
        ((57, 3), 3, "3 folds: the rarest class, 'b', has 3 rows"),
        ((39, 1), 1, "'b', has 1 row, too few"),
        ((30, 30), 5, ""),
    ],
)
def test_number_of_folds_follows_rarest_class(tmp_path, capsys, sizes, folds, said):
    context = context_of(tmp_path, table(np.repeat(list("ab"), sizes)))
    assert possible_folds(context) == folds
    assert said in capsys.readouterr().err


def test_topic_grid_has_at_least_number_of_classes(tmp_path):
    words = np.array([f"w{i % 30} w{i % 7}" for i in range(60)])
    frame = pd.DataFrame({"text": words, "y": [f"c{i % 30}" for i in range(60)]})
    context = context_of(tmp_path, frame, text=["text"])
    search = make_search(context, make_estimator(context), 2)
    assert search.param_grid["n_components"] == [30, 60, 120]


def test_balanced_score_matches_balanced_accuracy():
    rng = np.random.default_rng(0)
    y, predicted = rng.integers(3, size=50), rng.integers(3, size=50)
    assert score_of("classifier", y, predicted, balanced=True) == pytest.approx(balanced_accuracy_score(y, predicted))
    weights = rng.integers(1, 4, 50)
    rows = np.repeat(np.arange(50), weights)
    for balanced in (False, True):
        found = score_of("classifier", y, predicted, balanced=balanced, weights=weights.astype(float))
        assert found == pytest.approx(score_of("classifier", y[rows], predicted[rows], balanced=balanced))
