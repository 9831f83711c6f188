"""From files to records, and from records to memory-mapped encodings."""
