"""iLSVM: latent features learned jointly with a max-margin classifier."""
