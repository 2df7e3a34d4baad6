"""Watching a search: how far it is, the time left, and what was best so far."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from regbayes.cli.errors import counted
from regbayes.cli.interrupts import is_interrupt
from regbayes.cli.output import Output

if TYPE_CHECKING:
    from regbayes.search import FoldRecord

__all__ = ["Compiling", "SearchWatch"]

PLAIN_SECONDS = 15.0  # between lines where there is no terminal


class Compiling:
    """Hears when Numba compiles, which it does once on a machine: says so, and counts the seconds."""

    def __init__(self, output: Output) -> None:
        self.output = output
        self.seconds = 0.0
        self._depth = 0
        self._began = 0.0

    def __enter__(self) -> Self:
        from numba.core import event

        watch = self

        class Listener(event.Listener):
            def on_start(self, event: Any) -> None:
                watch._start()

            def on_end(self, event: Any) -> None:
                watch._end()

        self._listener = Listener()
        event.register("numba:compile", self._listener)
        return self

    def __exit__(self, *_: object) -> None:
        from numba.core import event

        event.unregister("numba:compile", self._listener)

    def _start(self) -> None:
        """One function is compiled; those that it calls are compiled inside."""
        if self._depth == 0:
            self._began = time.perf_counter()
            if self.seconds == 0.0:
                self.output.say("compiling, once, about 15 s")
        self._depth += 1

    def _end(self) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.seconds += time.perf_counter() - self._began


class SearchWatch:
    """Hears of every fit of a search as it is done: a bar in a terminal, a line now and then elsewhere.

    Parameters
    ----------
    n_settings, n_folds : int
        Every setting is fitted on every fold; one fit more, to all rows, comes after them.
    names : sequence of str
        The parameters that are told of.
    output : Output

    Attributes
    ----------
    records : list of FoldRecord
    chosen : dict
        The settings that were chosen, once they are.
    told : bool
        Whether it was said that the search was interrupted.
    """

    def __init__(self, n_settings: int, n_folds: int, names: Sequence[str], output: Output) -> None:
        self.n_settings = n_settings
        self.n_folds = n_folds
        self.names = names
        self.output = output
        self.records: list[FoldRecord] = []
        self.chosen: dict[str, Any] = {}
        self.told = False
        self._bar: Any = None
        self._began = self._spoke = time.perf_counter()

    @property
    def total(self) -> int:
        """Fits of the search."""
        return self.n_settings * self.n_folds

    @property
    def n_rivals(self) -> int:
        """Settings that were tried on as many folds as the chosen one, itself among them: Ctrl-C may leave others."""
        folds = len(self.records_of(self.chosen))
        return sum(len(of) == folds for of in self._by_setting())

    def add_setting(self) -> None:
        """Hear that one setting more is tried."""
        self.n_settings += 1

    def __enter__(self) -> Self:
        if sys.stderr.isatty() and not self.output.quiet:
            self._bar = _bar()
            self._bar.start()
            self._bar.add_task("fits", total=self.total + 1)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, record: FoldRecord) -> None:
        """Hear of a fit that is done."""
        self.records.append(record)
        done, now = len(self.records), time.perf_counter()
        if self._bar is not None:
            self._bar.update(0, completed=done, description="fits" if done < self.total else "all rows")
        elif now - self._spoke >= PLAIN_SECONDS:
            self._spoke = now
            left = (now - self._began) / done * (self.total + 1 - done)
            self.output.say(f"{done} of {self.total} fits, about {left:.0f} s left")

    def tell(self, found: warnings.WarningMessage, search: Any) -> bool:
        """Say at once that the search was interrupted, since a fit comes after it; return whether that was it."""
        if self.told or not is_interrupt(found) or len(self.records) == self.total:  # then the last fit was
            return False
        self.tell_interrupted(search.best_params_)
        return True

    def tell_interrupted(self, chosen: Mapping[str, Any], *, again: bool = True) -> None:
        """Say what is kept: settings, which are fitted now unless that was done before."""
        self.told = True
        self.chosen = dict(chosen)
        self.__exit__()
        settings = ", ".join(f"{name}={value}" for name, value in self._shown(chosen).items())
        fit = f"fitting the best settings so far ({settings}) to all rows. Ctrl-C again keeps that fit as it is by then"
        self.output.warn(
            f"interrupted after {counted(len(self.records), 'fit')}: "
            f"{fit if again else f'the best settings so far ({settings}) are kept'}",
            interruption=True,
        )

    def kept(self, *, ended_early: bool) -> str:
        """Return what was kept after Ctrl-C: which settings, of how many, tried on how many folds."""
        done, folds = len(self.records), len(self.records_of(self.chosen))
        settings = ", ".join(f"{name}={value}" for name, value in self._shown(self.chosen).items())
        last = "was ended early too, at its best state so far" if ended_early else "was finished"
        if done == self.total:
            return f"Interrupted in the last fit, to all rows ({settings}), which was ended at its best state so far."
        which = f"{counted(self.n_rivals, 'setting')} that {'was' if self.n_rivals == 1 else 'were'} tried"
        return (
            f"Interrupted after {done} of {self.total} fits: {settings} is the best of {which} on {folds} of "
            f"{self.n_folds} folds; the last fit, to all rows, {last}."
        )

    def records_of(self, chosen: Mapping[str, Any]) -> list[FoldRecord]:
        """Return the fits with some settings, fold by fold."""
        return sorted((record for record in self.records if record.params == chosen), key=lambda one: one.fold)

    def best(self) -> dict[str, Any]:
        """Return the settings that are best so far, among those that were tried on most folds."""
        tried = self._by_setting()
        most = max(map(len, tried))
        return max((of for of in tried if len(of) == most), key=lambda of: np.mean([r.score for r in of]))[0].params

    def _by_setting(self) -> list[list[FoldRecord]]:
        found: dict[str, list[FoldRecord]] = {}
        for record in self.records:
            found.setdefault(record.key[0], []).append(record)
        return list(found.values())

    def _shown(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {name: params[name] for name in self.names}

    def results(self, chosen: Mapping[str, Any]) -> dict[str, Any]:
        """Return what was tried and what was chosen, for the model's file and for JSON."""
        found: dict[str, Any] = {"settings": self._shown(chosen), "cross_validation": {}}
        candidates = []
        for of in self._by_setting():
            scores = [record.score for record in of]
            judged = {"mean": float(np.mean(scores)), "std": float(np.std(scores))}
            candidates.append({**self._shown(of[0].params), **judged})
            if of[0].params == chosen:
                found["cross_validation"] = {**judged, "folds": len(of)}
        candidates.sort(key=lambda one: [one[name] for name in self.names])
        found["cross_validation"]["candidates"] = candidates
        return found

    def unseen_predictions(self, chosen: Mapping[str, Any], n_rows: int) -> NDArray[Any] | None:
        """Return what fits with the chosen settings said of rows that they had not seen; None if some rows lack."""
        from regbayes.search import OutOfFold

        found = OutOfFold.collect(self.records_of(chosen))
        return found.predictions if np.array_equal(found.rows, np.arange(n_rows)) else None


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=Console(file=sys.stderr), transient=True)
