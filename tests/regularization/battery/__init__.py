"""Randomized stress tests of `regularize` against independent reference solutions.

`problems` generates the problems, `references` solves them independently, and `verdicts` compares both.
"""
