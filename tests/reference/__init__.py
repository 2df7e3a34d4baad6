"""What kernels are compared with: the same operations in plain NumPy, as their definitions say them."""
