"""Masked language models on any kind of sequence: train, score and compare."""

__version__ = "0.1.0"
