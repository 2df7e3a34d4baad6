"""The dual problem and its solver."""

from regbayes.regularization.dual.problem import DualSolution, nearest_in_domain
from regbayes.regularization.dual.solve import solve_dual

__all__ = ["DualSolution", "nearest_in_domain", "solve_dual"]
