"""Reference implementations of the kernels in plain NumPy, written from their definitions."""
