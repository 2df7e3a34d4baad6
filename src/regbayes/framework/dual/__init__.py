"""The dual problem and its solver."""

from regbayes.framework.dual.problem import DualSolution, nearest_in_domain
from regbayes.framework.dual.solve import solve_dual

__all__ = ["DualSolution", "nearest_in_domain", "solve_dual"]
