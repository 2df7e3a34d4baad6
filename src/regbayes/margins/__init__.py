"""The large-margin step, once for everybody: what rows ask for, a loss, and a solver give weights with a certificate."""
