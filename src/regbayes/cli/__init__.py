"""The command line: one module per command, and the plain functions that do the work beside them.

Nothing heavy is imported before a command runs, so that ``regbayes --help`` answers at once.
"""
