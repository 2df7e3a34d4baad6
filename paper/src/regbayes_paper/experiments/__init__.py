"""The paper's tables and figures, rerun with additional methods on the same splits."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from regbayes_paper.experiments.protocol import Experiment

__all__ = ["EXPERIMENTS", "make"]

EXPERIMENTS = {
    "table1": ("table1", "Table1"),
    "table2": ("table2", "Table2"),
    "school": ("school", "School"),
    "sensitivity": ("sensitivity", "Sensitivity"),
    "training-size": ("school", "TrainingSize"),
    "features": ("features", "Features"),
    "mmh-k": ("table1", "HarmoniumSize"),
}
"""Module and class of each experiment."""


def make(name: str, *, quick: bool = False) -> Experiment:
    """Return an experiment by its name; ``quick`` selects the small form."""
    if name not in EXPERIMENTS:
        raise ValueError(f"name must be one of {', '.join(EXPERIMENTS)}; got {name!r}.")
    module, cls = EXPERIMENTS[name]
    experiment: Experiment = getattr(importlib.import_module(f"regbayes_paper.experiments.{module}"), cls)(quick)
    return experiment
