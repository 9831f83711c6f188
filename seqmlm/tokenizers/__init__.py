"""Tokenizers: they convert the units of a field to token ids, groups and spans."""
