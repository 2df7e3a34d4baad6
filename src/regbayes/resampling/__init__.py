"""Constraints on a model that can be sampled again: samplers, tempering and the pool of their draws."""
