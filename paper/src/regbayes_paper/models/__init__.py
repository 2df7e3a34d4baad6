"""The models behind the baselines."""
