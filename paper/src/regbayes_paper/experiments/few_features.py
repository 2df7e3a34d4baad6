"""Features learned with the targets against as many found without them, for several numbers of features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from regbayes_paper.experiments import systems
from regbayes_paper.experiments.registry import System, grid, named, peers
from regbayes_paper.experiments.school import REFERENCE, School
from regbayes_paper.experiments.sweep import SizeSweep
from regbayes_paper.experiments.table2 import Table2

TEMPERATURES = (0.01, 0.03, 0.1)
APART = grid(
    C=(0.003, 0.03, 0.3), temperature=(0.0, 0.001, 0.003, 0.01, 0.03, 0.1), margins=("decoupled",)
)  # as many settings as for the joint one; what features without targets need may be colder
PAIR = ("MT-iLSVM", "MT-IBP+SVM")


def _pair(rows: tuple[System, ...], Cs: tuple[float, ...]) -> tuple[System, ...]:
    joint, apart = (named(rows, name) for name in PAIR)
    return (
        replace(apart, grid=APART, quick_grid=apart.quick_grid[:1]),
        replace(joint, grid=grid(C=Cs, temperature=TEMPERATURES), quick_grid=joint.quick_grid[:1]),
    )


LABELS = _pair(systems.MULTILABEL, (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0))
RAGGED = _pair(systems.RAGGED, (0.001, 0.003, 0.01, 0.03, 0.1))


class _FewFeatures(SizeSweep):
    """Both tuned alike, temperature included."""

    sizes = (10, 20, 50)
    quick_sizes = (4, 8)
    joint_and_two_stage = PAIR
    like: ClassVar[str]
    """The experiment whose splits, metrics and peers it has."""

    def protocol(self) -> Sequence[str]:
        """What is done."""
        return (
            f"MT-iLSVM and MT-IBP+SVM with K latent features at most and no inputs beside them: the same start, code "
            "and loss, but features that have seen the targets, or have not. Each chooses C and the temperature at "
            f"each K, by {self.n_folds}-fold cross-validation inside the training part; splits, metrics and peers, "
            f"which are for scale, are those of `{self.like}`.",
        )


class LabelFeatures(_FewFeatures, Table2):
    """Labels as tasks."""

    name = "table2-k"
    like = "table2"
    title = "Few features: labels, learned jointly or in two stages"
    swept = LABELS
    systems = (*LABELS, *peers(systems.MULTILABEL))
    drawn: ClassVar[tuple[str, ...]] = ("accuracy", "f1_micro_cut", "f1_macro_cut")
    level = "LinearSVC"


class SchoolFeatures(_FewFeatures, School):
    """Exam scores."""

    name = "school-k"
    like = "school"
    title = "Few features: exam scores, learned jointly or in two stages"
    swept = RAGGED
    systems = (*RAGGED, *peers(systems.RAGGED))
    default_seeds = 5
    level = REFERENCE
