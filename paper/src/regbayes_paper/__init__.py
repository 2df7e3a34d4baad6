"""Baselines, data, experiments, tables and figures of the paper behind regbayes.

Zhu, Chen and Xing (2014), "Bayesian inference with posterior regularization and applications to infinite latent SVMs".
Run ``python -m regbayes_paper table1 --quick``.
"""
