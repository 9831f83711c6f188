"""Statistics, calibration and p-values for units, parts and records (docs/how-to/score.md)."""
