"""Small things that users meet: names of columns, short answers, and no waiting for what is not needed."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from scipy.sparse import csr_array

import regbayes
from cli_tools import flowers, run_here
from regbayes import ILSVMClassifier, UnscaledWarning
from regbayes.cli.output import Output
from regbayes.cli.progress import Compiling

QUICK = ("--n-components", 12, "--max-iter", 20, "--no-cv", "--C", 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Models of three classes, of two, and of several labels."""
    place = tmp_path_factory.mktemp("small")
    (place / "t.csv").write_text(flowers())
    lines = flowers().replace(",rose", ",1").replace(",lily", ",0").replace(",aster", ",0")
    (place / "two.csv").write_text(lines)
    for name, data in (("three", "t.csv"), ("two", "two.csv")):
        assert run_here("fit", place / data, "-t", "kind", "-o", place / name, *QUICK).code == 0
    X = np.random.default_rng(0).standard_normal((40, 3))
    np.savez(place / "labels.npz", X=X, Y=(X[:, :2] > 0).astype(int))
    assert run_here("fit", place / "labels.npz", "-o", place / "labels", *QUICK).code == 0
    return place


def columns_of(folder, model, data, *options):
    return run_here("predict", folder / model, folder / data, *options, "--json").json["columns"]


def test_features_are_those_in_use(folder):
    found = columns_of(folder, "three", "t.csv", "--features")
    model = regbayes.load(folder / "three")
    values = model.estimator.transform(model.encode(_table(folder)))
    names = [name for name in found if name.startswith("feature")]
    assert 0 < len(names) == model.estimator.n_components_ < 12
    for name in names:
        np.testing.assert_allclose(found[name], values[:, int(name.removeprefix("feature"))])
        assert np.ptp(found[name]) > 0.1


def _table(folder):
    from regbayes.cli.tables import read_table

    return read_table(str(folder / "t.csv"))


def test_scores_name_the_class_that_they_speak_for(folder):
    two = columns_of(folder, "two", "two.csv", "--scores")
    assert list(two) == ["kind", "kind=1 score"]
    assert [int(score > 0) for score in two["kind=1 score"]] == two["kind"]
    assert list(columns_of(folder, "labels", "labels.npz", "--scores")) == ["Y0", "Y1", "Y0=1 score", "Y1=1 score"]


def test_a_loaded_model_is_told_in_ten_lines(folder):
    for name in ("three", "two", "labels"):
        told = repr(regbayes.load(folder / name))
        assert len(told.splitlines()) <= 10
        assert len(told) < 1000
    assert "ILSVMClassifier" in repr(regbayes.load(folder / "three"))


def test_the_package_shows_its_public_names_alone():
    assert dir(regbayes) == sorted(regbayes.__all__)
    assert all(getattr(regbayes, name) is not None for name in regbayes.__all__)


PREDICT = (
    "import sys; from regbayes.cli import main\n"
    "try:\n    main(['predict', 'three', 'one.csv'])\n"
    "except SystemExit:\n    print(*sys.modules, file=sys.stderr)"
)


def test_predicting_a_row_imports_what_it_needs(folder):
    (folder / "one.csv").write_text(flowers(1))
    done = subprocess.run([sys.executable, "-c", PREDICT], cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == "kind"
    loaded = set(done.stderr.split())
    assert "regbayes.estimators.ilsvm" in loaded
    unneeded = {
        "regbayes.plots",
        "regbayes.estimators.medlda",
        "regbayes.estimators.multitask",
    }
    unneeded |= {"regbayes.estimators.path_search", "regbayes.report.collecting", "regbayes.cli.fit"}
    unneeded |= {"numba.np.arrayobj", "matplotlib"}  # the first comes with the first call of compiled code
    assert not unneeded & loaded


def cpu_of(*command: str, folder) -> float:
    """Return the CPU seconds of a process."""
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([sys.executable, *command], cwd=folder, **silent)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return used.ru_utime + used.ru_stime


def test_predicting_a_row_costs_hardly_more_than_importing_what_it_stands_on(folder):
    (folder / "one.csv").write_text(flowers(1))
    imports, predict = np.inf, np.inf
    for _ in range(3):  # another process may have been in the way
        imports = min(imports, cpu_of("-c", "import sklearn.pipeline, numba, pandas", folder=folder))
        predict = min(predict, cpu_of("-m", "regbayes", "predict", "three", "one.csv", folder=folder))
        if predict < 1.3 * imports:
            return
    pytest.fail(f"{predict:.2f} s, and {imports:.2f} s for the imports alone")


def test_few_rows_are_predicted_as_many_are(folder):
    (folder / "few.csv").write_text("\n".join(flowers().splitlines()[:4]) + "\n")
    program = PREDICT.replace("'three', 'one.csv'", "'three', 'few.csv', '--scores'")
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=True)
    few = np.array([line.split(",")[1:] for line in done.stdout.splitlines()[1:]], dtype=float)
    many = columns_of(folder, "three", "t.csv", "--scores")
    wanted = np.column_stack([many[name] for name in many if name.endswith("score")])[:3]
    np.testing.assert_allclose(few, wanted, rtol=1e-9, atol=1e-9)


def test_compiling_is_announced_and_timed(capsys):
    import numba

    @numba.njit
    def inner(x):
        return x + 1

    @numba.njit
    def outer(x):
        return inner(x) * 2

    with Compiling(Output()) as compiling:
        assert outer(1) == 4
        first = compiling.seconds
        assert outer(2) == 6
    assert first > 0
    assert compiling.seconds == first  # once
    assert capsys.readouterr().err == "compiling, once, about 15 s\n"
    outer(1.0)
    assert compiling.seconds == first


# In Python


@pytest.fixture(scope="module")
def rows():
    X = np.random.default_rng(0).standard_normal((40, 5))
    return X, (X[:, 0] > 0).astype(int)


def test_sparse_rows_get_a_way_out(rows):
    with pytest.raises(TypeError, match=r"toarray\(\)"):
        ILSVMClassifier(3).fit(csr_array(rows[0]), rows[1])


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_columns_of_different_scales_are_warned_of(rows):
    X, y = rows
    factors = np.array([1.0, 1.0, 3000.0, 1.0, 1.0])
    with pytest.warns(UnscaledWarning, match="StandardScaler"):
        ILSVMClassifier(3, max_iter=2).fit(X * factors, y)
    with pytest.warns(UnscaledWarning):
        regbayes.IBPFactorAnalysis(3, max_iter=2).fit(X * factors)
