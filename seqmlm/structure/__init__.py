"""Dependence maps: how strongly the units of a sequence depend on each other, computed from conditionals."""
