"""Base class of classifiers with one score per class."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin

from regbayes_paper._types import Floats


class ClassScores(ClassifierMixin, ABC):
    """Classifier that predicts the class with the largest score."""

    @abstractmethod
    def _class_scores(self, X: ArrayLike) -> Floats:
        """Return the score of each class, (n_samples, n_classes)."""

    def decision_function(self, X: ArrayLike) -> Floats:
        """Return the scores of all classes, or of the second class if there are two."""
        scores = self._class_scores(X)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: ArrayLike) -> Any:
        """Predict classes."""
        scores = self._class_scores(X)
        return self.classes_[scores.argmax(axis=1)]
