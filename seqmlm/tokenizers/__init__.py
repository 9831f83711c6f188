"""A field's units turned into token ids, groups and spans."""
