"""Wrappers of NumPyro, PyMC, BlackJAX and custom models.

The packages are optional; each is imported when its wrapper is first used.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME_OF = {
    "BlackJAXModel": "regbayes.ppl.blackjax",
    "CallableSampler": "regbayes.ppl.callable_sampler",
    "NumPyroModel": "regbayes.ppl.numpyro",
    "PyMCModel": "regbayes.ppl.pymc",
    "Run": "regbayes.resampling.sampler",
    "Sampler": "regbayes.resampling.sampler",
    "Start": "regbayes.resampling.sampler",
    "Tilt": "regbayes.resampling.sampler",
}

__all__ = list(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'regbayes.ppl' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
