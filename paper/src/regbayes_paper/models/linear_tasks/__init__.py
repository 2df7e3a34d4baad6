"""Linear models of several tasks: what the systems that learn a weight vector per task have in common, and each."""
