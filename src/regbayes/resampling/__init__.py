"""Resampling of a model under constraints: samplers, tempering and pooled draws."""
