"""Constraints on expectations: regularizers, the dual problem and `regularize`."""
