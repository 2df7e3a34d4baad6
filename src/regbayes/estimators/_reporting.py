"""What a fit tells its user: scikit-learn callbacks, a progress bar, and warnings that say what to do."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from sklearn.exceptions import ConvergenceWarning
from tqdm import tqdm

from regbayes.engine import FitResult, Progress, Status


class InterruptedWarning(ConvergenceWarning):
    """The user interrupted a fit; it gave back what it had."""


class PoorFitWarning(ConvergenceWarning):
    """A fit does worse on its own training rows than it should, and another start did not help."""


class FitReporter:
    """Forwards the engine's progress to scikit-learn's callbacks and, when verbose, to progress bars.

    Used as a context around a fit, and passed to the engine as a callback. The fitted attributes are set before the
    context is left, so that the last hook sees a fitted estimator.

    Iterations are tasks of the fit. Where a fit has stages, these are its tasks and iterations are tasks of their
    stage, and every stage has a bar of its own. Further starts have the same stages again. A callback that asks to
    stop, after an iteration or a stage, ends the whole fit.

    Parameters
    ----------
    estimator : estimator with `sklearn.callback.CallbackSupportMixin`
    max_iter : int or mapping
        Iterations at most, for the time left. Where the fit has stages: the most of each, in their order, None where
        that is not known. Those that come to no iteration do not appear.
    data : mapping
        ``X``, ``y`` and ``metadata`` that the hooks may ask for.
    attributes : callable
        From the engine's state to the fitted attributes of an estimator that stopped there; called only when a
        callback asks for the fitted estimator.
    verbose : int
        Whether to show the bars.
    """

    def __init__(
        self,
        estimator: Any,
        max_iter: int | Mapping[str, int | None],
        data: Mapping[str, Any],
        attributes: Callable[[Any], dict[str, Any]],
        verbose: int = 0,
    ) -> None:
        self.estimator = estimator
        self.max_iter = max_iter
        self.data = dict(data)
        self.attributes = attributes
        self.verbose = verbose
        self.stage = ""  # that the last iteration belonged to
        self.bar: tqdm[Any] | None = None
        self.reconstruct: Callable[[], dict[str, Any]] = dict  # attributes as they were after the last iteration

    def __enter__(self) -> Self:
        most = self.max_iter if isinstance(self.max_iter, int) else len(self.max_iter)
        self.context = self.estimator._init_callback_context(max_subtasks=most)
        self.context.call_on_fit_task_begin(estimator=self.estimator, **self.data)
        self.level = self.context  # the task that iterations are tasks of
        if isinstance(self.max_iter, int):
            self._open_bar(self.max_iter)
        return self

    def __call__(self, progress: Progress[Any]) -> bool:
        """Hear of one iteration; return whether a callback wants to stop."""
        stop = False
        if progress.stage != self.stage:
            stop = self._end_stage()
            self._begin_stage(progress.stage)
        if self.bar is not None:
            self.bar.update()
            self.bar.set_postfix_str(f"objective {progress.objective:.6g}", refresh=False)
        if self._has_callbacks:
            task = self.level.subcontext(task_name="iteration")
            task.call_on_fit_task_begin(estimator=self.estimator, **self.data)
            self.reconstruct = lambda: self.attributes(progress.state)
            stop |= self._end(task)
        return stop

    def begin_again(self) -> bool:
        """Make room for the stages of a further start; return whether a callback wants to stop instead."""
        stop, self.stage = self._end_stage(), ""
        if self.context.max_subtasks is not None and not isinstance(self.max_iter, int):
            self.context.max_subtasks += len(self.max_iter)
        return stop

    @property
    def _has_callbacks(self) -> bool:
        return bool(getattr(self.estimator, "_skl_callbacks", None))

    def _begin_stage(self, stage: str) -> None:
        assert not isinstance(self.max_iter, int)
        self.stage = stage
        self._open_bar(self.max_iter[stage])
        if self._has_callbacks:
            self.level = self.context.subcontext(task_name=stage, max_subtasks=self.max_iter[stage])
            self.level.call_on_fit_task_begin(estimator=self.estimator, **self.data)

    def _end_stage(self) -> bool:
        """Close what a stage opened; return whether a callback wants to stop."""
        if self.bar is not None:
            self.bar.close()
        if self.level is self.context:
            return False
        ended, self.level = self.level, self.context
        return self._end(ended)

    def _end(self, task: Any) -> bool:
        """Tell the callbacks that a task is over; return whether one wants to stop."""
        return bool(
            task.call_on_fit_task_end(estimator=self.estimator, reconstruction_attributes=self.reconstruct, **self.data)
        )

    def _open_bar(self, total: int | None) -> None:
        if self.verbose:
            name = f"{type(self.estimator).__name__} {self.stage}".rstrip()
            self.bar = tqdm(total=total, desc=name, unit="it", leave=True)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.reconstruct = dict  # the estimator itself is fitted by now
            self._end_stage()
            self.context.call_on_fit_task_end(estimator=self.estimator, reconstruction_attributes=dict, **self.data)
        elif self.bar is not None:
            self.bar.close()


def warn_of_status(estimator: Any, fit: FitResult[Any]) -> None:
    """Turn the outcome of a fit, which is data, into a warning where the user can do something about it."""
    name = type(estimator).__name__
    if fit.status is Status.ITERATION_LIMIT:
        limit = fit.n_iter if estimator.max_iter is None else estimator.max_iter  # None: the model's own default
        message = (
            f"{name} stopped at max_iter={limit} before the objective settled to tol={estimator.tol}. "
            "Raise max_iter, or tol if this accuracy is enough."
        )
    elif fit.status is Status.DIVERGED:
        message = f"{name}: the objective became NaN or infinite; the best state before that is kept. Check X's scale."
    elif fit.status is Status.INTERRUPTED:
        when = f"after {fit.n_iter} iterations" if fit.n_iter else "during its warm-up"
        message = f"{name} was interrupted {when}; the best state so far is kept."
        warnings.warn(message, InterruptedWarning, stacklevel=3)
        return
    else:
        return
    warnings.warn(message, ConvergenceWarning, stacklevel=3)
