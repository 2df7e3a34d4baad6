"""MedLDA: max-margin supervised topic models.

`gibbs` is a collapsed Gibbs sampler. `meanfield` is mean field with margins on label-free inference; `batches` learns
from mini-batches and `device` runs on a GPU. Both fits return `topics.FittedTopics`. docs/math.md section 5.
"""
