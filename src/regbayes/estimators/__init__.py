"""Estimators with scikit-learn's interface.

`regbayes` exports the public ones and imports each at first use.
"""
