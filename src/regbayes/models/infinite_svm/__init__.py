"""The infinite SVM: a Dirichlet-process mixture of Gaussian components, each with a large-margin classifier."""
