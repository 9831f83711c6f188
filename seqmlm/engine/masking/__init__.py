"""Maskers: which positions are predicted, and what is put there."""
