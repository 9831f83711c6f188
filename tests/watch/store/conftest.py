"""Streams to test on, in an SQLite file and on a PostgreSQL server where one is named."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from registries import empty_url, home

from seqmlm.watch.store import Streams
from seqmlm.workspace import Workspace

__all__ = ["empty_url", "home", "registry"]


@pytest.fixture
def registry(home: Workspace) -> Iterator[Streams]:
    with Streams(home) as opened:
        yield opened
