"""Files to records to memory-mapped encodings."""
