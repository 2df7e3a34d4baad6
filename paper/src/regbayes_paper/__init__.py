"""The paper behind regbayes: its baselines, data, experiments, tables and figures.

Zhu, Chen and Xing (2014), "Bayesian inference with posterior regularization and applications to infinite latent SVMs".
Run ``python -m regbayes_paper table1 --quick``.
"""

from __future__ import annotations

from regbayes._registry import declare_provider

# `regbayes.load` finds the classes of this package once it is imported.
declare_provider("regbayes_paper.baselines", ("regbayes_paper.",))
