"""RegBayes itself: regularizers, posteriors, the dual, and ``regularize``. Knows no model."""
