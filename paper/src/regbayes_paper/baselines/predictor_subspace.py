"""The infinite predictor subspace model, basic and augmented (Rai and Daumé 2010)."""

from __future__ import annotations

from numbers import Integral
from typing import Any, ClassVar

import numpy as np
from sklearn.utils._param_validation import Interval

from regbayes._registry import persistable
from regbayes.estimators._bases import POSITIVE, generator
from regbayes.estimators._labels import TaskClassifier
from regbayes.estimators._task_bases import TaskProblem
from regbayes_paper.baselines._linear_tasks import (
    ITERATION_CONSTRAINTS,
    LABEL_CONSTRAINTS,
    TASK_CONSTRAINTS,
    LinearScores,
    document,
    linear_attributes,
    linear_problem,
)
from regbayes_paper.models.linear_tasks import predictor_subspace
from regbayes_paper.models.linear_tasks.predictor_subspace import Subspace, SubspaceSettings

CONSTANT = 1.0
IN_USE = 0.5  # expected share of the largest entries that makes a direction one that is in use


@persistable(skip=("_skl_callbacks",))
@document()
class PredictorSubspaceClassifier(LinearScores, TaskClassifier):
    """Infinite predictor subspace model: logistic regressions whose weights share a sparse basis.

    The weights of every task are a combination of a few directions, each of which has a few inputs; how many directions
    and which inputs is learned under an Indian buffet prior. The augmented model explains the inputs with the same
    directions, so that rows without labels help to find them. Inference is mean field, with a quadratic bound on the
    logistic function.

    A task with more than two classes has weights for each ("this class or another?"). Columns of X are standardised
    inside.

    Parameters to turn first: ``augmented`` and ``alpha``; ``n_components`` only has to be large enough.

    Parameters
    ----------
    n_components : int, default=20
        Truncation: the most directions there can be. The basic model makes no more than there are weight vectors, which
        cannot span more; the inputs, in the augmented one, can.
    augmented : bool, default=False
        Whether the directions also explain the inputs.
    alpha : float, default=2.0
        Concentration of the Indian buffet process: larger values expect more directions.
    $label_parameters
    $scale_inputs
    max_iter : int, default=100
        Iterations at most.
    tol : float, default=1e-4
        Relative change of the bound on the evidence, twice in a row, at which to stop.
    random_state : int, RandomState instance or None, default=None
        For the start.

    Attributes
    ----------
    n_components_ : int
        Directions in use: those that have some input with probability above one half.
    components_ : array of shape (n_components, n_features)
        Expected directions, in standardised inputs.
    inclusion_ : array of shape (n_components, n_features)
        Probability that a direction has an input.
    loadings_ : array of shape (n_outputs, n_components)
        What weights are made of: ``coef_`` is ``loadings_ @ components_``.
    $fitted_to_labels

    References
    ----------
    P. Rai and H. Daumé III (2010). Infinite predictor subspace models for multitask learning. AISTATS.

    Examples
    --------
    >>> from sklearn.datasets import make_multilabel_classification
    >>> from regbayes_paper.baselines import PredictorSubspaceClassifier
    >>> X, Y = make_multilabel_classification(300, n_classes=4, random_state=0)
    >>> model = PredictorSubspaceClassifier(5, random_state=0).fit(X[::2], Y[::2])
    >>> model.score(X[1::2], Y[1::2]) > 0.75
    True
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **TASK_CONSTRAINTS,
        **LABEL_CONSTRAINTS,
        **ITERATION_CONSTRAINTS,
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "augmented": ["boolean"],
        "alpha": [POSITIVE],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        n_components: int = 20,
        *,
        augmented: bool = False,
        alpha: float = 2.0,
        class_weight: Any = None,
        unlabeled: Any = None,
        scale_inputs: bool = True,
        max_iter: int = 100,
        tol: float = 1e-4,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.augmented = augmented
        self.alpha = alpha
        self.class_weight = class_weight
        self.unlabeled = unlabeled
        self.scale_inputs = scale_inputs
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    def _learn(self, problem: TaskProblem) -> None:
        most = int(self.n_components)
        settings = SubspaceSettings(
            n_components=most if self.augmented else min(most, problem.n_outputs),
            alpha=float(self.alpha),
            augmented=bool(self.augmented),
            max_iter=int(self.max_iter),
            tol=float(self.tol),
        )
        linear, rng = linear_problem(problem, "logistic", CONSTANT), generator(self.random_state)
        with self._fitting(_attributes, settings.max_iter, problem.data) as reporter:
            reporter.result = predictor_subspace.fit(linear, settings, rng, [reporter])


def _attributes(state: Subspace) -> dict[str, Any]:
    return {
        **linear_attributes(state.weights, CONSTANT),
        "components_": state.basis.expected.T,
        "inclusion_": state.basis.probability.T,
        "loadings_": state.loadings[:, :-1],
        "n_components_": int(np.sum(state.basis.probability.max(axis=0) > IN_USE)),
    }
