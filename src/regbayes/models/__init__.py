"""Latent feature and topic models with max-margin heads."""
