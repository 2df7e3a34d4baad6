"""Thin scikit-learn shells: validate, delegate, unpack."""

from __future__ import annotations

from regbayes.estimators._common import TruncationWarning
from regbayes.estimators.ibp import IBPFactorAnalysis
from regbayes.estimators.ilsvm import ILSVMClassifier
from regbayes.estimators.ilsvm_cv import ILSVMClassifierCV

__all__ = ["IBPFactorAnalysis", "ILSVMClassifier", "ILSVMClassifierCV", "TruncationWarning"]
