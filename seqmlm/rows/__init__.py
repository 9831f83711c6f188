"""Rows of results: the file they grow in, their vectors, and tracks along time. P-values are in `anomaly`."""
