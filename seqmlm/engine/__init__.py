"""The masked language model itself: tensors only, no field, no file format, no tracking."""
