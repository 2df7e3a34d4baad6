"""MT-iLSVM: many related tasks, one shared set of binary features of the input columns.

An example is ``x ~ Z w`` with a binary matrix Z over the *input columns*, shared by all tasks; a task sees the example
through ``Z^T x`` and asks for large margins. docs/math.md section 4.
"""
