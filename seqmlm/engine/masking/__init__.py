"""Maskers: which positions are predicted, and what is put there; fields set theirs in `Defaults.masking`."""
