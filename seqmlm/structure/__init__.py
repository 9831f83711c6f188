"""What depends on what: maps of dependence between the units of a sequence, read from conditionals."""
