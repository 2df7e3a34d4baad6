"""A small model laid out as the package's own are: a linear classifier that finds which inputs matter.

docs/adding_a_model.md walks through the files; copy the folder to begin a model of your own.

The model: weights ``w_d ~ N(0, 1 / tau_d)`` with precisions ``tau_d ~ Gamma(shape, rate)``, and margins
``y_n <E w, x_n> >= 1``, violations of which cost C. The posterior is sought among products ``q(w) q(tau)``.
"""

from __future__ import annotations
