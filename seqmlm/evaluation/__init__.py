"""Metrics, baselines and intervals over conditionals."""
