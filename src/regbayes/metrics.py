"""Metrics for targets of several tasks: accuracy and explained variance over observed targets."""

from __future__ import annotations

from regbayes.estimators.metrics import *  # noqa: F403
from regbayes.estimators.metrics import __all__ as __all__
