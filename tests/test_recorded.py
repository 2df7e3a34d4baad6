"""Every estimator answers as it did when its answers were recorded, on any processor.

A test that fails here says that answers changed, not that they are wrong. Where that was meant, and the objective is
not higher, record the case again: ``tests/helpers/recorded_cases.py`` says how.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
from sklearn.utils._param_validation import StrOptions

import regbayes
from recorded_cases import CASES, Case, Parts, differences, observe, recorded

NO_MATTER = {"verbose", "random_state", "n_jobs", "deterministic"}  # no options, or none that change an answer here


def message(case: Case, old: Parts, new: Parts, apart: dict[str, float]) -> str:
    """Say what differs, and whether the objective went up or down."""
    lines = [
        f"{case.name}: answers differ from those recorded by more than {case.tolerance:g}, relative to the largest"
    ]
    lines += [f"  {part}: {size:.3g}" for part, size in apart.items() if size > case.tolerance]
    if "objective" in old and "objective" in new:
        before, after = float(old["objective"][0]), float(new["objective"][0])
        higher = after > before + case.tolerance * abs(before)
        lines.append(f"  J before {before!r}, after {after!r}: {'HIGHER' if higher else 'not higher'}")
    lines.append(f"  if this is meant: python tests/helpers/recorded_cases.py --write {case.name!r},")
    lines.append("  and say why in the commit message")
    return "\n".join(lines)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_answers_are_as_recorded(case):
    old, new = recorded()[case.name], observe(case)
    apart = differences(old, new)
    assert max(apart.values()) <= case.tolerance, message(case, old, new, apart)


def test_nothing_is_recorded_that_is_no_case():
    assert list(recorded()) == list(CASES)


# Recorded nowhere: tests of their own have theorems and oracles.
NOT_RECORDED = (
    *("ILSVMClassifier", "ILSVMClassifierCV", "IBPFactorAnalysis", "PathSearchCV"),
    *("MedLDAClassifierCV", "MedLDARegressorCV", "MarginClassifier"),
)


def estimators() -> dict[str, type]:
    """Every public estimator that the record knows."""
    found = {name: getattr(regbayes, name) for name in regbayes.__all__}
    classes = {name: one for name, one in found.items() if inspect.isclass(one) and hasattr(one, "get_params")}
    return {name: one for name, one in classes.items() if name not in NOT_RECORDED}


def enumerated(constraints: Any) -> Iterator[Any]:
    """Return the values that a parameter's constraints list."""
    for constraint in constraints if isinstance(constraints, list) else []:
        if isinstance(constraint, StrOptions):
            yield from constraint.options
        elif constraint == "boolean":
            yield from (False, True)
        elif constraint is None:
            yield None


@pytest.mark.parametrize("estimator", estimators().values(), ids=estimators())
def test_every_value_of_every_enumerated_parameter_is_recorded(estimator):
    defaults = {name: one.default for name, one in inspect.signature(estimator).parameters.items()}
    used = [{**defaults, **case.parameters} for case in CASES.values() if case.make is estimator]
    assert used, f"no case has {estimator.__name__}"
    for name, constraints in estimator._parameter_constraints.items():
        for value in enumerated(constraints) if name not in NO_MATTER else []:
            found = any(type(p[name]) is type(value) and p[name] == value for p in used)
            assert found, f"no case has {estimator.__name__}({name}={value!r})"


def test_differences_are_seen():
    case = CASES["mt classifier/default"]
    old = recorded()[case.name]
    moved = {**old, "scores": old["scores"] + 1e-7 * abs(old["scores"]).max(), "objective": old["objective"] - 1.0}
    apart = differences(old, moved)
    assert apart["scores"] == pytest.approx(1e-7)
    assert apart["features"] == 0.0
    assert "not higher" in message(case, old, moved, apart)
    assert "HIGHER" in message(case, moved, old, apart)
    assert differences(old, {**old, "scores": old["scores"][1:]})["scores"] == float("inf")
    assert differences(old, {part: array for part, array in old.items() if part != "scores"})["scores"] == float("inf")
