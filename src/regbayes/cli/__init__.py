"""The command line: one module per command, and the plain functions that do the work beside them.

Nothing heavy is imported before a command runs, so that ``regbayes --help`` answers at once. Model files can be read
without the packages of the ``cli`` extra: what imports them is imported by commands alone.
"""

from __future__ import annotations

from typing import Literal

Format = Literal["csv", "parquet", "npz", "arff", "libsvm"]  # of a table's file
Kind = Literal["classifier", "multilabel", "regressor"]  # what the target asks for
