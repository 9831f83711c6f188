"""Readers of formats that several fields share: `read_x(path, problems, **options) -> Iterator[Record]`."""
