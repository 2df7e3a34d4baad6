"""Large-margin solvers: targets and a loss give weights with a certificate."""
