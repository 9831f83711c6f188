"""Formats that several fields share; a reader is `read_x(path, problems, **options) -> Iterator[Record]`."""
