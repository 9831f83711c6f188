"""The fields: the file formats, defaults, levels and samples for each kind of sequence."""
