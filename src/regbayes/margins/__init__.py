"""The large-margin step, once for everybody: targets, a loss and a solver give weights with a certificate."""
