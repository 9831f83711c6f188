"""The registry's schema: which revision it is at, and bringing it up to date on purpose."""

from __future__ import annotations

from seqmlm.registry import database
from seqmlm.workspace import Workspace


def current_revision(workspace: Workspace | None = None) -> tuple[str, str | None, str]:
    """The registry's address (without password), its revision (None: empty) and the one this version needs.

    Raises:
        StateError: the database cannot be reached.
    """
    engine = database.engine((workspace or Workspace.locate()).database_url)
    try:
        return (engine.url.render_as_string(hide_password=True), *database.revisions(engine))
    finally:
        engine.dispose()


def upgrade(workspace: Workspace | None = None) -> tuple[str, str | None, str]:
    """Run all migrations; returns the address, the revision before and the one after.

    Raises:
        StateError: the database cannot be reached or written.
    """
    engine = database.engine((workspace or Workspace.locate()).database_url)
    try:
        before, _ = database.revisions(engine)
        database.upgrade(engine)
        after, _ = database.revisions(engine)
        return engine.url.render_as_string(hide_password=True), before, str(after)
    finally:
        engine.dispose()
