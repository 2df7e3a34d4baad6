"""Compute kernels: arrays in, arrays out.

Kernels are independent of models, draw no random numbers and print nothing. They document what they write and return a
measure of progress. Each family is one module; ``tests/reference`` implements its functions in plain NumPy.
"""
