"""The studies of the experiment `sensitivity`: what is varied, on which data, and what the paper says of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from regbayes import ILSVMClassifier, MultiTaskILSVMClassifier, MultiTaskILSVMRegressor
from regbayes.models.ilsvm.model import Data, Params, Settings
from regbayes.models.ilsvm.starts import STICK_UPDATES, random_params
from regbayes.models.indian_buffet import prior_sticks, update_sticks
from regbayes_paper.experiments.data import Sample

LABELS, RAGGED, MULTIWAY = "labels", "ragged", "multiway"
UNLABELED = -1


class DecayingStartILSVM(ILSVMClassifier):
    """iLSVM whose features start out on in fewer and fewer rows, as the sticks of the prior do on average.

    Feature k (from 1) starts as if it were on in the share ``(alpha / (1 + alpha)) ** k`` of the rows; by default it is
    one half for all.
    """

    def _start(self, data: Data, settings: Settings, rng: np.random.Generator) -> Params:
        even = random_params(data.X, settings, rng)
        alpha, n = settings.alpha, data.X.totals.n_rows
        counts = n * (alpha / (1 + alpha)) ** np.arange(1, settings.n_components + 1)
        sticks = prior_sticks(alpha, settings.n_components)
        for _ in range(STICK_UPDATES):
            sticks = update_sticks(sticks, counts, n, alpha)
        variances = 1.0 / (1.0 / settings.prior_variance + counts / settings.noise_variance)
        return replace(even, sticks=sticks, variances=variances)


@dataclass(frozen=True)
class Variant:
    """One way to fit the model."""

    setting: str
    """As it is printed."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    joint: bool = False
    """Whether the test rows take part in the fit, without their targets."""
    model: Callable[..., Any] | None = None
    """Another estimator than the usual one."""
    x: float | None = None
    """Where it stands on an axis."""


@dataclass(frozen=True)
class Study:
    """Variants that are compared with each other."""

    key: str
    title: str
    kind: str
    row: str
    says: str
    """What the paper found."""
    variants: tuple[Variant, ...]


ALPHAS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
CS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
QUICK_ALPHAS = (1.0, 5.0)
QUICK_CS = (0.01, 0.1)

INSENSITIVE = "Paper: insensitive (Figure 8, no numbers)."
C_SCHOOL = "Paper: stable for C between 0.3 and 1, in its own units (Figure 8, no numbers)."
VARIANCES = (
    "Paper: estimating the variances changes the explained variance on School by at most 0.3 points, iLSVM likewise."
)
TESTING = "Paper: names joint inference of the test rows as possible (section 4.2) and reports no comparison."
START = "Paper: an exponentially decreasing start gives a faster decay and many inactive features (section 5.1)."


def _sweep(name: str, values: tuple[float, ...], label: str) -> tuple[Variant, ...]:
    return tuple(Variant(f"{label} = {value:g}", {name: value}, x=value) for value in values)


FIXED_MT = Variant("variances fixed at 1", {"noise_variance": 1.0, "prior_variance": 1.0})
PAPER_MT = Variant("prior variance fixed at 1, noise from the data, as in the paper", {"prior_variance": 1.0})
ONCE_MT = Variant("variances estimated once, before the margins")
ALWAYS = Variant("variances estimated throughout", {"noise_variance": "estimate", "prior_variance": "estimate"})
FIXED = Variant("variances fixed, from the inputs")
INDUCTIVE, JOINT = Variant("inductive"), Variant("joint", joint=True)
POSTERIOR = {"margins": "posterior", "temperature": 0.02, "max_iter": 40}


def studies(quick: bool) -> tuple[Study, ...]:
    """Return all studies."""
    alphas, cs = (QUICK_ALPHAS, QUICK_CS) if quick else (ALPHAS, CS)
    labels, numbers = (LABELS, "MT-iLSVM"), (RAGGED, "MT-iLSVM")
    return (
        Study("alpha", "alpha (Figure 8 a)", *labels, INSENSITIVE, _sweep("alpha", alphas, "alpha")),
        Study("C", "C (Figure 8 b)", *labels, INSENSITIVE, _sweep("C", cs, "C")),
        Study("alpha", "alpha (Figure 8 c)", *numbers, INSENSITIVE, _sweep("alpha", alphas, "alpha")),
        Study("C", "C (Figure 8 d)", *numbers, C_SCHOOL, _sweep("C", cs, "C")),
        Study("variances", "variances (section 5.3)", *labels, VARIANCES, (PAPER_MT, FIXED_MT, ONCE_MT, ALWAYS)),
        Study("variances", "variances (section 5.3)", *numbers, VARIANCES, (PAPER_MT, FIXED_MT, ONCE_MT, ALWAYS)),
        Study("variances", "variances (section 5.3)", MULTIWAY, "iLSVM", VARIANCES, (FIXED, ALWAYS)),
        Study("testing", "joint against inductive testing", *labels, TESTING, (INDUCTIVE, JOINT)),
        Study("testing", "joint against inductive testing", *numbers, TESTING, (INDUCTIVE, JOINT)),
        Study("testing", "joint against inductive testing", MULTIWAY, "iLSVM", TESTING, _testing()),
        Study("start", "the start of psi", MULTIWAY, "iLSVM", START, _starts()),
    )


def _testing() -> tuple[Variant, ...]:
    guessed = Variant("joint, with guessed labels", {"transductive": True}, joint=True)
    return (INDUCTIVE, JOINT, guessed)


def _starts() -> tuple[Variant, ...]:
    return (
        Variant("start at one half"),
        Variant("decaying start", model=DecayingStartILSVM),
        Variant("printed updates, start at one half", POSTERIOR),
        Variant("printed updates, decaying start", POSTERIOR, model=DecayingStartILSVM),
    )


MODELS: dict[str, Callable[..., Any]] = {
    LABELS: MultiTaskILSVMClassifier,
    RAGGED: MultiTaskILSVMRegressor,
    MULTIWAY: ILSVMClassifier,
}


def estimator(study: Study, variant: Variant, n_components: int, seed: int) -> Any:
    """Make the estimator of a variant; what is not varied is at its default."""
    parameters = dict(variant.parameters)
    if variant.joint and study.kind == MULTIWAY:
        parameters["unlabeled"] = UNLABELED
    make = variant.model or MODELS[study.kind]
    return make(n_components, random_state=seed, **parameters)


def training_rows(study: Study, variant: Variant, train: Sample, test: Sample) -> Sample:
    """Return the rows of the fit: for a joint one also the test rows, without their targets."""
    if not variant.joint:
        return train
    unknown = UNLABELED if study.kind == MULTIWAY else np.nan
    hidden = np.full(test.y.shape, unknown, dtype=np.int64 if study.kind == MULTIWAY else np.float64)
    targets = np.concatenate([train.y.astype(hidden.dtype), hidden])
    task = None
    if train.task is not None and test.task is not None:
        task = np.concatenate([train.task, test.task])
    return Sample(np.concatenate([train.X, test.X]), targets, task)
