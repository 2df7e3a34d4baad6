"""The inputs beside latent features, with all training rows and with few of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from regbayes import ILSVMClassifier
from regbayes_paper.experiments import systems
from regbayes_paper.experiments.data import Sample
from regbayes_paper.experiments.registry import Context, System, grid, peers
from regbayes_paper.experiments.store import Cell, Record
from regbayes_paper.experiments.sweep import Sweep
from regbayes_paper.experiments.table1 import Table1

FEW = 200
ALL_ROWS, FEW_ROWS = "all rows", f"{FEW} rows"


def _ilsvm(context: Context, scale: bool = True, **settings: Any) -> Any:
    model = ILSVMClassifier(context.n_components, random_state=context.seed, **settings)
    return make_pipeline(StandardScaler(), model) if scale else model


ROWS = (
    System(
        "iLSVM^f",
        _ilsvm,
        grid(C=(0.1, 0.3, 1.0, 3.0), temperature=(0.1, 0.2), include_inputs=(True,), scale=(False, True)),
        grid(C=(0.3, 1.0), include_inputs=(True,)),
    ),
    System(
        "iLSVM",
        _ilsvm,
        grid(C=(0.1, 0.3, 1.0, 3.0), temperature=(0.1, 0.2), scale=(False, True)),
        grid(C=(0.3, 1.0)),
    ),
)


class Inputs(Sweep, Table1):
    """iLSVM whose classifier sees the inputs too, against linear models on the inputs."""

    name = "inputs"
    title = "Inputs beside latent features, with many and with few rows"
    systems = (*ROWS, *peers(systems.MULTIWAY))

    @property
    def n_components(self) -> int:
        """Few, since the inputs are there."""
        return 10 if self.quick else 20

    def protocol(self) -> Sequence[str]:
        """What is done."""
        return (
            f"The splits of `table1`, with the whole training part and with {FEW} rows of it, stratified; always the "
            f"whole test part. iLSVM^f has the inputs beside {self.n_components} latent features, iLSVM the features "
            f"alone. Settings by {self.n_folds}-fold cross-validation inside the rows that are used, whether to "
            "standardise the inputs among them, for these as for the linear peers.",
        )

    def values(self, system: System) -> Sequence[str]:
        """Both numbers of rows."""
        return (ALL_ROWS, FEW_ROWS)

    def training_rows(self, cell: Cell, train: Sample) -> Sample:
        """All of them, or few of every class."""
        if cell.setting == ALL_ROWS or len(train) <= FEW:
            return train
        chosen, _ = train_test_split(np.arange(len(train)), train_size=FEW, random_state=cell.seed, stratify=train.y)
        return train.rows(chosen)

    def draw(self, records: Sequence[Record], folder: Path) -> list[Path]:
        """Draw the table: two values are no line."""
        return Table1.draw(self, records, folder)
