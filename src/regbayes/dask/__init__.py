"""Estimators over rows on the workers of a Dask cluster."""
