"""Compute kernels: arrays in, arrays out.

A kernel knows no model, draws no random numbers and prints nothing. It says what it writes and returns a measure of
progress. Each family is one module; ``tests/reference`` has its functions in plain NumPy, and tests compare the two.
"""
