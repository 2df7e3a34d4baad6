"""The exponential family harmonium: visible units of several kinds joined to Gaussian hidden units, with margins."""
