"""Models that users wrote in PyTorch or JAX, as joint models: features under margins, pulled back by autodiff.

`from_torch` takes modules or functions, `from_jax` functions. Neither library is imported before they are called.
"""

from regbayes.adapters.fit import FittedModel, fit
from regbayes.adapters.jax import from_jax
from regbayes.adapters.model import OwnModel, RowBlock
from regbayes.adapters.torch import from_torch

__all__ = ["FittedModel", "OwnModel", "RowBlock", "fit", "from_jax", "from_torch"]
