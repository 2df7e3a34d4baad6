"""One folder per model, the same files in each."""
