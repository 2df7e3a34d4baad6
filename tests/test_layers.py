"""The layers: who may import whom. The first tests check the package, the others the checker."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from import_rules import LAYERS, hard_dependencies, violations

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "regbayes"
DEPENDENCIES = hard_dependencies(ROOT / "pyproject.toml")


def test_the_package_respects_its_layers():
    found = violations(SOURCE, DEPENDENCIES)
    assert not found, "\n" + "\n".join(map(str, found))


def test_importing_the_package_loads_no_optional_dependency():
    program = "import json, sys, regbayes; print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    loaded = set(json.loads(output))
    assert "regbayes" in loaded
    # pandas is not in the list: scikit-learn loads it where it is installed.
    optional = {"arviz", "cupy", "cvxpy", "dask", "jax", "matplotlib", "numpyro", "pymc", "torch", "xarray"}
    assert not loaded & optional


def test_the_architecture_page_shows_the_same_order():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    block = re.search(r"```layers\n(.*?)```", page, re.DOTALL)
    assert block, "docs/architecture.md has no ```layers block"
    assert tuple(line.split()[0].removesuffix("/") for line in block[1].splitlines()) == LAYERS


def check(tmp_path: Path, files: dict[str, str]) -> list[str]:
    """Write a small package and give the checker's messages, without the places."""
    for name, text in files.items():
        path = tmp_path / "regbayes" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return [found.message for found in violations(tmp_path / "regbayes", DEPENDENCIES)]


ALLOWED = {
    "the layer before": ("priors/a.py", "from regbayes.framework.dual import solve"),
    "its own layer": ("models/ilsvm/fit.py", "from regbayes.models.ilsvm.updates import sweep"),
    "its own layer, relative": ("models/ilsvm/fit.py", "from .updates import sweep"),
    "the layer before, relative": ("models/ilsvm/fit.py", "from ...engine import run"),
    "the standard library": ("kernels/a.py", "import math, os.path"),
    "a hard dependency": ("kernels/a.py", "import numpy as np\nfrom scipy.special import expit\nimport numba"),
    "scikit-learn in an estimator": ("estimators/a.py", "from sklearn.base import BaseEstimator\nimport warnings"),
    "joblib, which scikit-learn brings": ("estimators/a.py", "import joblib"),
    "an optional dependency when called": ("plots/a.py", "def draw():\n    import matplotlib.pyplot as plt"),
    "an optional dependency for its types": (
        "framework/a.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import arviz",
    ),
    "persistence when called": ("framework/a.py", "class A:\n    def save(self):\n        import regbayes.persistence"),
    "the one warning": ("framework/regularize.py", "import warnings"),
    "everything in the front": ("__init__.py", "from regbayes.estimators.ilsvm import ILSVMClassifier"),
    "a public module": ("regularizers.py", "from regbayes.framework.regularizers import Hinge"),
    "a public module in the front": ("__init__.py", "from regbayes import regularizers"),
    "the public names in an experiment": ("experiments/table.py", "from regbayes import ILSVMClassifier"),
    "a print in a command": ("cli/fit.py", "print('done')"),
    "the registry from anywhere": ("kernels/a.py", "from regbayes._registry import persistable"),
}

FORBIDDEN = {
    "a later layer": ("kernels/a.py", "from regbayes.engine import run", "kernels imports engine"),
    "a later layer by its module": ("engine/a.py", "import regbayes.models.ilsvm", "engine imports models"),
    "a later layer from the front": ("priors/a.py", "from regbayes import models", "priors imports models"),
    "a later layer, relative": ("engine/a.py", "from ..framework import dual", "engine imports framework"),
    "a later layer in a package's front": ("engine/__init__.py", "from ..priors import x", "engine imports priors"),
    "a later layer when called": (
        "framework/a.py",
        "def f():\n    from regbayes.models import ilsvm",
        "framework imports models",
    ),
    "a later layer for its types": (
        "framework/a.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from regbayes.models import ilsvm",
        "framework imports models",
    ),
    "a later layer in a class body": ("models/a.py", "class A:\n    import regbayes.estimators", "models imports est"),
    "a later layer in a try": (
        "models/a.py",
        "try:\n    import regbayes.cli\nexcept ImportError:\n    pass",
        "models imports cli",
    ),
    "persistence at import": ("framework/a.py", "import regbayes.persistence", "framework imports persistence"),
    "the public names": ("framework/a.py", "from regbayes import E", "the package's public names"),
    "a public module from inside": ("framework/a.py", "from regbayes.regularizers import Hinge", "public names"),
    "the package itself": ("estimators/a.py", "import regbayes", "the package's public names"),
    "a command in the front": ("__init__.py", "from regbayes.cli import main", "__init__ imports cli"),
    "a module outside the layers": ("engine/a.py", "from regbayes.misc import helper", "in none of the layers"),
    "an unknown layer": ("misc/a.py", "", "'misc' is not one of the layers"),
    "scikit-learn": ("models/a.py", "from sklearn.svm import LinearSVC", "models imports sklearn"),
    "scikit-learn when called": ("kernels/a.py", "def f():\n    import sklearn", "kernels imports sklearn"),
    "warnings": ("models/a.py", "from warnings import warn", "models imports warnings"),
    "warnings elsewhere in the framework": ("framework/dual/solve.py", "import warnings", "framework imports warnings"),
    "scikit-learn beside the one warning": ("framework/regularize.py", "import sklearn", "framework imports sklearn"),
    "print": ("engine/a.py", "def f():\n    print('iteration')", "engine prints"),
    "matplotlib at import": ("plots/a.py", "import matplotlib.pyplot as plt", "matplotlib is optional"),
    "arviz at import": ("framework/a.py", "from arviz import hdi", "arviz is optional"),
    "numpyro at import": ("models/a.py", "try:\n    import numpyro\nexcept ImportError: ...", "numpyro is optional"),
    "pandas at import": ("datasets/a.py", "import pandas as pd", "pandas is optional"),
    "numpy in the registry": ("_registry.py", "def f():\n    import numpy", "the standard library alone"),
    "the else of a typing block": (
        "plots/a.py",
        "import typing\nif typing.TYPE_CHECKING:\n    pass\nelse:\n    import pandas",
        "pandas is optional",
    ),
}


@pytest.mark.parametrize(("name", "text"), ALLOWED.values(), ids=ALLOWED)
def test_the_checker_allows(tmp_path, name, text):
    assert check(tmp_path, {name: text}) == []


@pytest.mark.parametrize(("name", "text", "message"), FORBIDDEN.values(), ids=FORBIDDEN)
def test_the_checker_finds(tmp_path, name, text, message):
    found = check(tmp_path, {name: text})
    assert len(found) == 1
    assert message in found[0]


def test_the_checker_reports_every_violation_and_its_line(tmp_path):
    (tmp_path / "regbayes" / "kernels").mkdir(parents=True)
    module = tmp_path / "regbayes" / "kernels" / "a.py"
    module.write_text("import numpy\n\nimport sklearn\nimport jax, torch\n")
    assert [str(found).partition(": ")[0] for found in violations(tmp_path / "regbayes", DEPENDENCIES)] == [
        f"{module}:3",
        f"{module}:4",
        f"{module}:4",
    ]


def test_every_pair_of_layers_is_ordered(tmp_path):
    def file_of(layer: str) -> str:
        return f"{layer}.py" if layer in ("_registry", "_types", "_extras", "__init__") else f"{layer}/module.py"

    def import_of(layer: str) -> str:
        return "import regbayes" if layer == "__init__" else f"import regbayes.{layer}"

    wrong = [
        (importer, imported)
        for i, importer in enumerate(LAYERS)
        for j, imported in enumerate(LAYERS)
        if bool(check(tmp_path / f"{i}-{j}", {file_of(importer): import_of(imported)})) != (j > i)
    ]
    assert wrong == []
