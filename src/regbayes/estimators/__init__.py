"""Estimators with scikit-learn's interface: they validate, delegate to the models, and set fitted attributes.

`regbayes` exports the public ones and imports each when its name is first used.
"""
