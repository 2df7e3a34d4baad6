"""The public names: imported when first used, and the two lists of them agree."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from sklearn.pipeline import Pipeline

import regbayes

SOURCE = Path(regbayes.__file__)


def names_for_type_checkers() -> set[str]:
    """Everything imported under ``if TYPE_CHECKING``."""
    (block,) = (node for node in ast.parse(SOURCE.read_text()).body if isinstance(node, ast.If))
    return {alias.name for statement in block.body for alias in statement.names}


def test_every_public_name_is_there_and_known_to_type_checkers():
    for name in regbayes.__all__:
        assert getattr(regbayes, name) is not None
    assert names_for_type_checkers() == set(regbayes.__all__) - {"__version__"}
    assert set(regbayes.__all__) <= set(dir(regbayes))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'ILSVM'"):
        _ = regbayes.ILSVM


def test_importing_the_package_alone_loads_nothing_heavy():
    program = "import regbayes, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "scipy", "sklearn", "numba"} & set(loaded)


def test_a_saved_model_loads_before_anything_else_was_imported(tmp_path):
    path = tmp_path / "model"
    from regbayes.cli.modelfile import ModelFile
    from regbayes.cli.targets import TargetSpec

    target = TargetSpec(("y",), "classifier", (False,))
    pipeline = Pipeline([("inputs", "passthrough"), ("model", regbayes.ILSVMClassifier(3))])
    ModelFile(pipeline, target, None, {}).save(path)
    program = f"import regbayes; m = regbayes.load({str(path)!r}); print(type(m).__name__, type(m.estimator).__name__)"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert shown.split() == ["ModelFile", "ILSVMClassifier"]
