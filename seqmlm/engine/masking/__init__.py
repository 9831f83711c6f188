"""Maskers: rules that select the positions to predict and what replaces them.

Each domain declares its default masker in `Defaults.masking`.
"""
