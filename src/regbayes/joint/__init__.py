"""Features learned together with a linear head under margins, written once for every model.

The objective is ``J = generative terms(params, stats) + head(features(params))``. A model says how features of rows are
inferred without their labels, how a gradient by features becomes one by parameters, and what its terms are
(`JointModel`); descent, line search, tolerances, blocks of rows and callbacks are here.
"""
