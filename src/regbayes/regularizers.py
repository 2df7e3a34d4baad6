"""Regularizers: what must hold of expectations, and what it costs when it does not."""

from __future__ import annotations

from regbayes.regularization.regularizers import *  # noqa: F403
from regbayes.regularization.regularizers import __all__ as __all__
