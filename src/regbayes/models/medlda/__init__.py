"""MedLDA: topics of documents under margins, in two rooms that end in one fit (`topics`).

The sampler is `gibbs`. Mean field is `meanfield`, with margins on what prediction sees; `batches` learns from portions
of the documents, and `device` works on a GPU. docs/math.md section 5.
"""
