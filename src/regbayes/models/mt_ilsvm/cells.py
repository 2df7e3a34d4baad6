"""The old place of what is now `regbayes.margins.targets`."""

from __future__ import annotations

from regbayes.margins.targets import Observations as Cells
from regbayes.margins.targets import Outputs
from regbayes.margins.targets import observe_classes as classification_cells
from regbayes.margins.targets import observe_numbers as regression_cells

__all__ = ["Cells", "Outputs", "classification_cells", "regression_cells"]
