"""Thin scikit-learn shells: validate, delegate, unpack."""
