"""Records of a search by cross-validation: what they hold, and how to write them and read them again."""

from __future__ import annotations

from regbayes.estimators.search_records import *  # noqa: F403
from regbayes.estimators.search_records import __all__ as __all__
