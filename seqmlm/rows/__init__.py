"""Rows of results: files of rows, vectors, and formats of other tools. P-values are in `anomaly`."""
