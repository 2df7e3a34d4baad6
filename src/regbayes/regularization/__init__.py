"""Constraints on the expectations of a posterior: regularizers, the dual problem and `regularize`."""
