"""MedLDA: topics of documents under margins, in two rooms that end in one fit (`topics`).

The sampler is `gibbs`, with its `corpus`. Mean field is `meanfield`, with margins on what
prediction sees, and `posterior`, the paper's scheme, with its Gaussian `response`. docs/math.md section 5.
"""
