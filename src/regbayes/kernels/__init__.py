"""Compute kernels: arrays in, arrays out.

``reference`` is the law in plain NumPy, ``cpu`` the compiled twin that is tested against it, and ``dispatch`` the one
place that chooses. A kernel knows no model, draws no random numbers and prints nothing; it says what it writes and
returns a measure of progress.
"""
