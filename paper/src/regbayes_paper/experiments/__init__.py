"""The paper's tables and figures, each rerun with further methods on the same splits.

The command ``python -m regbayes_paper`` calls `run`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from regbayes_paper.experiments.protocol import Experiment
    from regbayes_paper.experiments.runner import Outcome

__all__ = ["EXPERIMENTS", "make", "run"]

EXPERIMENTS = {
    "table1": ("table1", "Table1"),
    "table2": ("table2", "Table2"),
    "school": ("school", "School"),
    "sensitivity": ("sensitivity", "Sensitivity"),
    "training-size": ("training_size", "TrainingSize"),
    "features": ("features", "Features"),
    "mmh-k": ("mmh_k", "HarmoniumSize"),
    "table2-k": ("few_features", "LabelFeatures"),
    "school-k": ("few_features", "SchoolFeatures"),
    "inputs": ("inputs", "Inputs"),
    "temperature": ("temperature", "Temperature"),
    "feature-count": ("feature_count", "FeatureCount"),
    "landmine": ("landmine", "Landmine"),
}
"""Module and class of each experiment, imported when it is run."""


def make(name: str, *, quick: bool = False) -> Experiment:
    """Return an experiment by its name.

    Parameters
    ----------
    name : str
        One of `EXPERIMENTS`.
    quick : bool, default=False
        Whether the small form, which ends within a minute.
    """
    if name not in EXPERIMENTS:
        raise ValueError(f"name must be one of {', '.join(EXPERIMENTS)}; got {name!r}")
    module, cls = EXPERIMENTS[name]
    experiment: Experiment = getattr(importlib.import_module(f"regbayes_paper.experiments.{module}"), cls)(quick)
    return experiment


def run(
    name: str,
    *,
    quick: bool = False,
    output: str | Path = "regbayes-results",
    seeds: int | None = None,
    jobs: int = 1,
    fresh: bool = False,
    say: Callable[[str], None] = print,
    show: Callable[[str], None] = print,
) -> Outcome:
    """Rerun one of the paper's tables or figures, going on from what an earlier run left.

    Parameters
    ----------
    name : str
        One of `EXPERIMENTS`.
    quick : bool, default=False
        Whether the small form, which ends within a minute.
    output : str or Path, default="regbayes-results"
        Folder for records, tables and figures.
    seeds : int, default=None
        Number of seeds; that of the protocol by default.
    jobs : int, default=1
        Processes; -1 is one for each core.
    fresh : bool, default=False
        Whether to measure everything again.
    say : callable
        Where progress goes.
    show : callable
        Where the protocol and the tables go.

    Returns
    -------
    Outcome
    """
    from regbayes_paper.experiments.runner import run_experiment

    if seeds is not None and seeds < 1:
        raise ValueError(f"seeds must be at least 1, got {seeds}")
    if jobs == 0 or jobs < -1:
        raise ValueError(f"jobs must be a number of processes, or -1 for one per core; got {jobs}")
    experiment = make(name, quick=quick)
    return run_experiment(experiment, Path(output), n_seeds=seeds, jobs=jobs, fresh=fresh, say=say, show=show)
