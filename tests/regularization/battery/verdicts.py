"""Compare results of `regularize` with the references."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from battery.pieces import Box, Norm, View, Wide, narrow, pieces_of, wide
from battery.problems import Problem, make_problem, named_problems
from battery.references import Answer, Atoms
from regbayes import regularize
from regbayes.regularization.regularize import RegularizedPosterior

VALUE = 1e-6  # relative to one plus the optimum: tolerance of the value
MET = 1e-6  # in half-ranges or standard deviations of a feature: tolerance of constraints
ROUNDED = 1e-9  # tolerance of the sum of the weights
GIVEN_UP = ("stalled", "iteration_limit")
ALLOWED = 0.02  # fraction of the problems with an optimum for which the solver may report no solution


@dataclass(frozen=True)
class Verdict:
    """Outcome of one problem; ``wrong`` lists the errors."""

    label: str  # the call that generates the problem
    name: str
    status: str
    answer: Answer
    wrong: str
    seconds: float
    noise: str = ""  # the first NumPy warning, which is not an error of the result

    @property
    def reference(self) -> str:
        """Return the reference's status; "no value" if only the value is unknown."""
        known = self.answer.word not in ("optimum", "boundary") or not np.isnan(self.answer.low)
        return self.answer.word if known else f"{self.answer.word}, no value"

    def __str__(self) -> str:
        return (
            f"{self.label}: {self.name}\n"
            f"    {self.status}, reference {self.answer.word} ({self.answer.how}): {self.wrong or 'right'}"
        )


def judge(problem: Problem, label: str = "") -> Verdict:
    """Solve a problem, solve it with the references, and compare."""
    started = time.perf_counter()
    try:
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            result = regularize(problem.posterior, problem.features, problem.regularizer, raise_infeasible=False)
    except Exception as error:  # any exception is a failure
        wrong = f"raised {type(error).__name__}: {error}"
        seconds = time.perf_counter() - started
        return Verdict(label, problem.name, type(error).__name__, problem.answer(), wrong, seconds)
    seconds = time.perf_counter() - started
    found = problem.answer()
    wrong = "; ".join(untruths(problem, result, found))
    noise = next((str(w.message) for w in heard if issubclass(w.category, RuntimeWarning)), "")
    return Verdict(label, problem.name, str(result.status), found, wrong, seconds, noise)


def judge_drawn(seed: int, number: int) -> Verdict:
    return judge(make_problem(seed, number), f"make_problem({seed}, {number})")


def judge_named() -> list[Verdict]:
    return [judge(problem, f"named_problems()[{i}]") for i, problem in enumerate(named_problems())]


def untruths(problem: Problem, result: RegularizedPosterior, found: Answer) -> list[str]:
    """Return statements of a result that a reference contradicts."""
    status, wrong = str(result.status), []
    if status == "infeasible":
        met = problem.reachable or found.word in ("optimum", "boundary")
        return ["infeasible, but it can be met"] if met else []
    if found.word == "infeasible" and status not in GIVEN_UP:
        wrong.append(f"{status}, but it cannot be met")
    if found.word == "optimum" and status == "boundary":
        wrong.append("boundary, but a finite tilt reaches the optimum")
    if not np.isnan(found.low):
        near = VALUE * (1 + abs(found.low))
        if result.dual > found.high + near:
            wrong.append(f"dual {result.dual!r} above the optimum {found.high!r}")
        if status not in GIVEN_UP and not result.primal >= found.low - near:
            wrong.append(f"primal {result.primal!r} below the optimum {found.low!r}")
        if status not in GIVEN_UP and result.primal - result.dual > near:
            wrong.append(f"{status} with a gap of {result.primal - result.dual:.1e}")
    if status not in GIVEN_UP:
        if (missed := violation(problem, result)) > MET:
            wrong.append(f"{status} with a violation of {missed:.1e}")
        wrong += misprints(problem, result)
    return wrong


def misprints(problem: Problem, result: RegularizedPosterior) -> list[str]:
    """Return numbers of the result that differ from those of its own posterior."""
    base, wrong = problem.base, []
    view = View(np.arange(len(base.centre)), base.centre, base.unit, np.longdouble(1))
    pieces = pieces_of(problem.regularizer, view)
    if isinstance(base, Atoms):
        total = np.sum(wide(result.posterior.weights))
        if abs(total - 1) > ROUNDED:
            wrong.append(f"weights that sum to {float(total)!r}")
        q = np.exp(wide(result.posterior.log_weights[problem.posterior.log_weights > -np.inf]))
        q = q / np.sum(q)
    else:
        q = base.tilted(wide(result.multipliers) * base.unit)
    kl = base.divergence(q)
    if abs(kl - result.kl) > VALUE * (1 + kl):
        wrong.append(f"kl {result.kl!r} for {float(kl)!r}")
    z = _expectation(problem, result)
    off = np.abs(wide(result.after) - base.centre - base.unit * z) / base.unit
    if np.any(off > MET + base.grain):
        wrong.append(f"after that is off by {float(np.max(off)):.1e}")
    if not any(isinstance(piece, Box | Norm) for piece in pieces):
        gap = kl + sum((piece.value(z[piece.index]) for piece in pieces), np.longdouble(0)) - wide(result.dual)
        if gap > result.gap + VALUE * (1 + abs(result.dual)):
            wrong.append(f"gap {result.gap:.1e} for {float(gap):.1e}")
    phi = wide(result.multipliers) * base.unit
    coarse = np.sum(np.abs(phi) * (1 + np.abs(base.centre / base.unit))) * np.finfo(np.float64).eps
    if np.all(np.isfinite(narrow(phi))) and coarse < MET:
        away = np.abs(base.expectation(base.tilted(phi)) - z)
        if np.any(away > MET + base.grain):
            wrong.append(f"multipliers whose tilt is off by {float(np.max(away)):.1e}")
    slack = wide(np.full(len(z), np.inf))
    for piece in pieces:
        if not isinstance(piece, Box):
            return wrong
        room = np.minimum(z[piece.index] - piece.low, piece.high - z[piece.index])
        np.minimum.at(slack, piece.index, room)
    off = np.abs(wide(result.slack) / np.abs(base.unit) - slack)[np.isfinite(narrow(slack))]
    if np.any(off > MET + base.grain[np.isfinite(narrow(slack))]):
        wrong.append(f"slack that is off by {float(np.max(off)):.1e}")
    return wrong


def violation(problem: Problem, result: RegularizedPosterior) -> float:
    """Return the violation of the result's posterior in standardized units."""
    base = problem.base
    z = _expectation(problem, result)
    view = View(np.arange(len(base.centre)), base.centre, base.unit, np.longdouble(1))
    # Rounding error of the targets bounds the accuracy.
    coarse = 1 + base.grain / MET
    off = [
        np.abs(piece.nearest(z[piece.index]) - z[piece.index]) / coarse[piece.index]
        for piece in pieces_of(problem.regularizer, view)
    ]
    worst = max((float(np.max(amount, initial=0)) for amount in off), default=0.0)
    return worst if np.all(np.isfinite(narrow(z))) else np.inf


def _expectation(problem: Problem, result: RegularizedPosterior) -> Wide:
    base = problem.base
    if isinstance(base, Atoms):
        log_weights = wide(result.posterior.log_weights[problem.posterior.log_weights > -np.inf])
        q = np.exp(log_weights)
        return base.expectation(q / np.sum(q))
    return (wide(problem.features) @ wide(result.posterior.mean) - base.centre) / base.unit


def given_up(verdicts: Sequence[Verdict]) -> tuple[list[Verdict], int]:
    """Return unsolved problems with an optimum, and the number of optima."""
    solvable = [v for v in verdicts if v.reference == "optimum"]
    return [v for v in solvable if v.status in GIVEN_UP], len(solvable)
