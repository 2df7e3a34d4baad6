"""What a fit tells its user: scikit-learn callbacks, a progress bar, and warnings that say what to do."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from sklearn.exceptions import ConvergenceWarning
from tqdm import tqdm

from regbayes.engine import FitResult, Progress, Status


class FitReporter:
    """Forwards the engine's progress to scikit-learn's callbacks and, when verbose, to a progress bar.

    Used as a context around one run of the engine, and passed to it as a callback. The fitted attributes are set before
    the context is left, so that the last hook sees a fitted estimator.

    Parameters
    ----------
    estimator : estimator with `sklearn.callback.CallbackSupportMixin`
    max_iter : int
        Iterations at most, for the time left.
    data : mapping
        ``X``, ``y`` and ``metadata`` that the hooks may ask for.
    attributes : callable
        From the engine's state to the fitted attributes of an estimator that stopped there; called only when a
        callback asks for the fitted estimator.
    verbose : int
        Whether to show the bar.
    """

    def __init__(
        self,
        estimator: Any,
        max_iter: int,
        data: Mapping[str, Any],
        attributes: Callable[[Any], dict[str, Any]],
        verbose: int = 0,
    ) -> None:
        self.estimator = estimator
        self.max_iter = max_iter
        self.data = dict(data)
        self.attributes = attributes
        self.verbose = verbose

    def __enter__(self) -> Self:
        self.context = self.estimator._init_callback_context(max_subtasks=self.max_iter)
        self.context.call_on_fit_task_begin(estimator=self.estimator, **self.data)
        name = type(self.estimator).__name__
        self.bar = tqdm(total=self.max_iter, desc=name, unit="it", leave=True) if self.verbose else None
        return self

    def __call__(self, progress: Progress[Any]) -> bool:
        """Hear of one iteration; return whether a callback wants to stop."""
        if self.bar is not None:
            self.bar.update()  # rounds of a transductive fit count on
            self.bar.set_postfix_str(f"objective {progress.objective:.6g}", refresh=False)
        if not getattr(self.estimator, "_skl_callbacks", None):
            return False
        task = self.context.subcontext(task_name="iteration")
        task.call_on_fit_task_begin(estimator=self.estimator, **self.data)
        return bool(
            task.call_on_fit_task_end(
                estimator=self.estimator,
                reconstruction_attributes=lambda: self.attributes(progress.state),
                **self.data,
            )
        )

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.close()
        if kind is None:
            self.context.call_on_fit_task_end(estimator=self.estimator, reconstruction_attributes=dict, **self.data)


def warn_of_status(estimator: Any, fit: FitResult[Any]) -> None:
    """Turn the outcome of a fit, which is data, into a warning where the user can do something about it."""
    name = type(estimator).__name__
    if fit.status is Status.ITERATION_LIMIT:
        message = (
            f"{name} stopped at max_iter={fit.n_iter} before the objective settled to tol={estimator.tol}. "
            "Raise max_iter, or tol if this accuracy is enough."
        )
    elif fit.status is Status.DIVERGED:
        message = f"{name}: the objective became NaN or infinite; the best state before that is kept. Check X's scale."
    elif fit.status is Status.INTERRUPTED:
        message = f"{name} was interrupted after {fit.n_iter} iterations; the best state so far is kept."
    else:
        return
    warnings.warn(message, ConvergenceWarning, stacklevel=3)
