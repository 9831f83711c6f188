"""A model ready to be asked: its folder, batches, scorer, detector, and how rows are committed."""
