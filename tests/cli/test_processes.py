"""Commands run as processes with stdout, stderr and exit codes."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys

import numpy as np
import pytest

import regbayes
from cli_tools import flowers, run_here, run_process


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder with two tables and a model fitted to the first by a process."""
    place = tmp_path_factory.mktemp("processes")
    (place / "flowers.csv").write_text(flowers())
    (place / "new.csv").write_text(flowers(20, seed=1))
    done = run_process(
        *("fit", "flowers.csv", "--target", "kind", "--output", "flowers.model", "--folds", 2, "--n-components", 4),
        *("--max-iter", 5, "--C", 1, "--json"),
        folder=place,
    )
    assert done.code == 0, done.err
    assert done.json["cross_validation"]["folds"] == 2
    assert "cross-validation: 1 setting on 2 folds" in done.err
    return place


def test_help_imports_no_heavy_modules():
    program = (
        "import sys\nfrom regbayes.cli import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n"
        "    print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "regbayes demo" in done.stdout
    assert not {"numpy", "scipy", "sklearn", "numba", "pandas"} & set(done.stderr.split())


BLOCKED = "import sys; sys.modules |= dict.fromkeys({names!r}); "


@pytest.mark.parametrize("names", [("typer",), ("rich",), ("pandas",), ("pandas", "rich", "typer")], ids=", ".join)
def test_missing_cli_extra_explains_installation(names):
    program = BLOCKED.format(names=names) + "import runpy; runpy.run_module('regbayes', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 5
    assert done.stdout == ""
    assert done.stderr == f"error: the regbayes command needs {', '.join(names)}: pip install {' '.join(names)}\n"


def test_model_file_loads_without_cli_extra(folder):
    program = BLOCKED.format(names=("pandas", "rich", "typer")) + (
        "import regbayes; model = regbayes.load('flowers.model'); print(model.inputs.get_feature_names_out()[0]); "
        "print(type(model.estimator).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["size", "ILSVMClassifier"]


def test_predict_reads_stdin(folder):
    done = run_process("predict", "flowers.model", "-", stdin=(folder / "new.csv").read_text(), folder=folder)
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0] == "kind"
    assert len(lines) == 21
    assert set(lines[1:]) <= {"rose", "lily", "aster"}


def test_evaluate_survives_closed_stdout(folder):
    done = run_process("evaluate", "flowers.model", "new.csv", folder=folder)
    assert done.code == 0
    assert "accuracy" in done.out
    command = f"{sys.executable} -m regbayes predict flowers.model flowers.csv --features | head -n 1"
    cut = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True, check=True)
    assert cut.stdout.startswith("kind,feature0")
    assert "Traceback" not in cut.stderr


# Background processes of a shell and their children ignore Ctrl-C, so the handler is restored. The test waits for a
# progress line, so their interval is reduced from 15 to 0.5 seconds.
LISTENING = (
    "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from regbayes.cli import output; output.QUIET_SECONDS = 0.5; "
    "runpy.run_module('regbayes', run_name='__main__', alter_sys=True)"
)


def test_ctrl_c_keeps_best_model_so_far(folder):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 40))
    y = (X[:, :3].sum(axis=1) > 0).astype(int)
    np.savez(folder / "long.npz", X=X, y=y)
    settings = [option for i in range(2000) for option in ("--C", str(0.01 * 1.002**i))]
    command = [sys.executable, "-c", LISTENING, "fit", "long.npz", "--output", "long.model", "--json", *settings]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert any(re.match(r"[1-9]\d* of 10000 fits", line) for line in process.stderr)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130, err
    found = json.loads(out)
    assert found["interrupted"]
    assert 0 < len(found["cross_validation"]["candidates"]) <= 2000
    assert "interrupted after" in err
    assert "Traceback" not in err
    judged = run_here("evaluate", folder / "long.model", folder / "long.npz", "--json")
    assert judged.json["scores"]["accuracy"] > max(np.mean(y), np.mean(1 - y))  # accuracy of a constant prediction


def test_demo_prints_table_report_and_next_steps(tmp_path):
    done = run_process("demo", folder=tmp_path)
    assert done.code == 0, done.err
    assert "iLSVM: features and classifier together" in done.out
    assert "regbayes evaluate regbayes-demo/digits.model regbayes-demo/digits-test.csv" in done.out
    assert (tmp_path / "regbayes-demo" / "digits.html").stat().st_size > 10_000
    assert regbayes.load(tmp_path / "regbayes-demo" / "digits.model").report.model.sample == "new"
    assert "Traceback" not in done.err
