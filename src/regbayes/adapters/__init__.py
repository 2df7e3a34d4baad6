"""Adapters that combine PyTorch or JAX models with a max-margin classifier head.

`from_torch` accepts modules or functions, `from_jax` functions. Each imports its library when called.
"""

from regbayes.adapters.fit import FittedModel, fit
from regbayes.adapters.jax import from_jax
from regbayes.adapters.model import OwnModel, RowBlock
from regbayes.adapters.torch import from_torch

__all__ = ["FittedModel", "OwnModel", "RowBlock", "fit", "from_jax", "from_torch"]
