"""Hard problems for `regularize`, independent answers to them, and who was right.

`problems` makes them, `references` answers them without any of the package's mathematics, `verdicts` compares.
"""
