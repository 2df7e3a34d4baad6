"""MedLDA as in the paper's appendix B: margins on the posterior of the training documents, and a Gaussian response."""
