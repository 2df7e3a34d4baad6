"""Checkpoints of long fits: progress in a file, from which the same call of ``fit`` continues.

A fit is a deterministic sequence of runs of `regbayes.engine.run`. The file has the results of the completed runs and a
snapshot of the current one. When the fit is repeated, completed runs return their results, and the current one goes on
from its snapshot.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from numbers import Integral
from pathlib import Path
from typing import Any

import joblib
import numpy as np

from regbayes._registry import persistable
from regbayes.engine import Status
from regbayes.engine.loop import Recorder, Snapshot
from regbayes.estimators._arrays import is_elsewhere
from regbayes.persistence import PersistenceError, load, save
from regbayes.persistence.files import package_version

IRRELEVANT = ("n_jobs", "verbose")  # parameters that do not change the result


@persistable(name="regbayes.Checkpoint.File")
@dataclass
class CheckpointFile:
    """Content of the file of a `Checkpoint`."""

    fingerprint: str  # hash of the estimator, its parameters and the data
    runs: list[Snapshot[Any]]  # all have ended, except perhaps the last


class Checkpoint(Recorder):
    """Callback that saves the progress of a fit, so that the fit continues after its process was killed.

    Repeat the same call of ``fit``, with the same callback, to continue. The result is bitwise equal to that of an
    uninterrupted fit. The file is removed when the fit is complete.

    Parameters
    ----------
    path : str or path-like
        File for the progress of one fit. It is written atomically and without pickle, as by ``save``.
    seconds : float, default=60.0
        Minimum time between two writes.

    Notes
    -----
    ``fit`` of iLSVM, MT-iLSVM, MedLDA and `IBPFactorAnalysis` is supported for NumPy and SciPy arrays. ``random_state``
    must be an integer and ``warm_start`` False. ``partial_fit`` ignores the callback. Computations between iterations,
    such as the initialization, are repeated.

    Raises ValueError if the file belongs to another estimator, other parameters, other data or another version.

    Examples
    --------
    >>> import os, tempfile
    >>> from sklearn.datasets import load_iris
    >>> from regbayes import Checkpoint, ILSVMClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> path = os.path.join(tempfile.mkdtemp(), "fit.checkpoint")
    >>> model = ILSVMClassifier(4, random_state=0).set_callbacks(Checkpoint(path))
    >>> model = model.fit(X, y)  # after a crash, run this line again
    """

    def __init__(self, path: str | os.PathLike[str], seconds: float = 60.0) -> None:
        if not seconds >= 0:
            raise ValueError(f"`seconds` must be at least 0; got {seconds!r}.")
        self.path = Path(path)
        self.seconds = seconds

    # Hooks of scikit-learn; the estimators of regbayes call the methods below instead.

    def setup(self, estimator: Any, context: Any) -> None:
        """Do nothing."""

    def teardown(self, estimator: Any, context: Any) -> None:
        """Do nothing."""

    def on_fit_task_begin(self, estimator: Any, context: Any) -> None:
        """Do nothing."""

    def on_fit_task_end(self, estimator: Any, context: Any) -> bool:
        """Return that the fit goes on."""
        return False

    # Hooks of regbayes.

    def open(self, estimator: Any, data: Mapping[str, Any]) -> None:
        """Read the file, if there is one."""
        parameters = estimator.get_params(deep=False)
        if parameters.get("warm_start"):
            raise ValueError("`warm_start` must be False for a fit with a Checkpoint.")
        if not isinstance(parameters.get("random_state", 0), Integral):
            raise ValueError(
                f"`random_state` must be an integer for a fit with a Checkpoint; got {parameters['random_state']!r}."
            )
        if hasattr(data["X"], "__dask_graph__") or is_elsewhere(data["X"]):
            raise ValueError(f"`X` must be a NumPy or SciPy array with a Checkpoint; got {type(data['X']).__name__}.")
        relevant = {name: value for name, value in parameters.items() if name not in IRRELEVANT}
        fingerprint = joblib.hash([type(estimator).__qualname__, package_version(), relevant, data])
        self._file, self._n_begun, self._saved = CheckpointFile(fingerprint, []), 0, time.monotonic()
        if not self.path.exists():
            return
        found = load(self.path)
        if not isinstance(found, CheckpointFile):
            raise PersistenceError(f"cannot load {self.path}: it is not a checkpoint")
        if found.fingerprint != fingerprint:
            raise ValueError(
                f"{self.path} is the checkpoint of another fit: the estimator, its parameters, the data or the version "
                "of regbayes differ. Delete the file, or choose another path."
            )
        self._file = found

    def begin(self, state: Any) -> Snapshot[Any] | None:
        """Return where the next run continues."""
        self._n_begun += 1
        if self._n_begun > len(self._file.runs):
            return None
        known = self._file.runs[self._n_begun - 1]
        states = [known.result.state] if known.has_ended else [known.result.state, known.state]
        if not all(fits(found, state) for found in states):
            raise PersistenceError(f"cannot load {self.path}: its arrays do not fit the model")
        return known

    def record(self, take_snapshot: Callable[[], Snapshot[Any]], status: Status | None = None) -> None:
        """Save the current run, if the last time was long enough ago."""
        before = self._file.runs[: self._n_begun - 1]
        if len(before) < self._n_begun - 1 or not all(run.has_ended for run in before) or status is Status.STOPPED:
            return  # the fit was stopped or interrupted
        is_due = time.monotonic() >= self._saved + self.seconds
        if status is not None or is_due:
            self._file.runs = [*before, take_snapshot()]
        if is_due:
            save(self._file, self.path)
            self._saved = time.monotonic()

    def close(self) -> None:
        """Free the snapshots, and remove the file unless the fit was stopped or interrupted."""
        runs, self._file.runs = self._file.runs, []
        if len(runs) == self._n_begun and all(run.has_ended for run in runs):
            self.path.unlink(missing_ok=True)


def fits(found: Any, start: Any) -> bool:
    """Return whether the types and shapes of a state from a file are those of the initial state of its run."""
    if found is None or start is None or isinstance(start, bool | int | float | np.number):
        return found is None or start is None or isinstance(found, bool | int | float | np.number)
    if type(found) is not type(start):
        return False
    if isinstance(start, np.ndarray):
        return found.shape == start.shape and found.dtype == start.dtype
    if is_dataclass(start):
        return all(fits(getattr(found, one.name), getattr(start, one.name)) for one in fields(start))
    if isinstance(start, dict):
        return found.keys() == start.keys() and all(fits(found[name], start[name]) for name in start)
    return not isinstance(start, list | tuple) or all(map(fits, found, start))
