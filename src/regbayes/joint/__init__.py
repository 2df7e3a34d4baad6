"""Joint learning of latent features and a linear max-margin head, for any model.

The objective is ``J = generative terms(params, stats) + head(features(params))``. A model implements label-free
inference of features, backpropagation through it, and its generative terms (`JointModel`). This package implements
descent, line search, tolerances, blocks of samples and callbacks.
"""
