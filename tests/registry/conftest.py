"""Registries to test on, on an SQLite file and on a PostgreSQL server where one is named."""

from __future__ import annotations

from registries import empty_url, home, register, registry

__all__ = ["empty_url", "home", "register", "registry"]
