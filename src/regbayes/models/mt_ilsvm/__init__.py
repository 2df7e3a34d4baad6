"""MT-iLSVM: related tasks that share binary features of the input columns.

A sample is ``x ~ Z w`` with a binary matrix Z over the *input columns*, shared by all tasks. Each task has a max-margin
classifier on ``Z^T x``. docs/math.md section 4.
"""
