"""iLSVM: binary latent features under an Indian buffet prior, learned together with a large-margin classifier."""
