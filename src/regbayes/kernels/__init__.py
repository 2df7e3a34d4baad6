"""Compute kernels: arrays in, arrays out.

One file per family: the law in plain NumPy (``reference_box_epoch``) beside the compiled function that is tested
against it and that models call (``box_epoch``). A kernel knows no model, draws no random numbers and prints nothing;
it says what it writes and returns a measure of progress.
"""
