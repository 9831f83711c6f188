"""Scorings of followed files: whether they run, since when nothing was judged, and what can be pruned."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from seqmlm.data.timestamps import duration
from seqmlm.engine.durable import FileLock
from seqmlm.errors import StateError, UsageError
from seqmlm.registry import Registry, resolve
from seqmlm.watch.store import Pruned, StreamEntry, Streams
from seqmlm.workspace import Workspace

ALIVE_SECONDS = 60.0
"""Between commits of a stream that reads nothing: whoever looks at the database sees that it is alive."""

_ALIVE = timedelta(seconds=2.5 * ALIVE_SECONDS)


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How a scoring of followed files stands.

    Args:
        output: the file its rows go to.
        files: patterns of what it follows.
        running: whether some process goes on with it now.
        alive: its last commit.
        judged: when its last row was judged; None: none was.
        rows: that it has judged, since it began.
        pruned: of them were deleted from the database.
        alarms_only: rows without an alarm are not kept (nor counted in `rows`).
    """

    output: str
    files: tuple[str, ...]
    running: bool
    alive: datetime
    judged: datetime | None
    rows: int
    pruned: int
    alarms_only: bool = False

    def sentence(self) -> str:
        """In words, with the time in the local zone."""
        runs = "is running" if self.running else "is not running"
        if self.judged is None:
            return f"{runs}, and has judged nothing yet"
        return f"{runs}, and has judged nothing since {local(self.judged)}"


def local(moment: datetime) -> str:
    """A time to the second in the local zone.

    >>> len(local(datetime(2026, 1, 2, tzinfo=UTC)))
    19
    """
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def standing(entry: StreamEntry, workspace: Workspace) -> Standing:
    """How a stream stands: whoever runs it holds the lock of its output; on another machine, with a database
    that is a server, it commits at least every minute."""
    out = Path(entry.output)
    held = bool(FileLock(out.with_name(f"{out.name}.lock")).held)
    fresh = abs(datetime.now(UTC) - entry.alive) < _ALIVE
    return Standing(
        output=entry.output,
        files=tuple(map(str, entry.request.get("files") or [entry.request.get("source") or ""])),
        running=held or (fresh and not workspace.database_url.startswith("sqlite")),
        alive=entry.alive,
        judged=entry.judged,
        rows=entry.last,
        pruned=entry.pruned.rows,
        alarms_only=bool(entry.request.get("alarms_only")),
    )


def streams_of(registry: Streams, model: str | None) -> list[StreamEntry]:
    """The streams that a model judged, whichever version of it where none is named; None: all.

    Raises:
        StateError: no such model, or no stream that it judged.
    """
    found = registry.streams()
    if model is None:
        if not found:
            raise StateError(f"no scoring of this workspace follows files; {_BEGIN.format('MODEL')}")
        return found
    folders = {os.path.realpath(one.path) for one in registry.models(model)}
    if not folders:
        folders = {os.path.realpath(resolve(model, lambda: Registry(Workspace.locate())).location)}
    own = [one for one in found if folders & _folders(one.request) or _by_alias(one.request, model)]
    if not own:
        raise StateError(f"no scoring of this workspace follows files with {model}; {_BEGIN.format(model)}")
    return own


_BEGIN = "to begin one: seqmlm watch {} 'logs/*.log' --fpr 0.001 --out OUT"


def _folders(request: Mapping[str, Any]) -> set[str]:
    """Folders of the model that a stream was judged by."""
    return {os.path.realpath(Path(file).parent) for file in request.get("model file", ())}


def _by_alias(request: Mapping[str, Any], model: str) -> bool:
    """Whether a stream is judged by what an alias of a model names, which may be any of its versions."""
    alias = str(request.get("model", ""))  # asked by a version, it names files
    return "@" in alias and model in (alias, alias.partition("@")[0])


def since_of(text: str, option: str = "--since") -> timedelta:
    """The duration that an option asks for.

    Raises:
        UsageError: it is none.
    """
    seconds = duration(text)
    if not seconds:
        raise UsageError(f"{option} is a duration such as 24h or 30m; got {text!r}")
    try:
        datetime.now(UTC) - timedelta(seconds=seconds)
    except OverflowError:
        raise UsageError(f"{option} {text} is before all calendars; give a shorter duration") from None
    return timedelta(seconds=seconds)


def prune_streams(
    older_than: str, *, stream: Path | None = None, pretend: bool = False
) -> list[tuple[Standing, Pruned]]:
    """Delete what is older than a duration and no longer needed of followed scorings, which may be running.

    Args:
        older_than: "30d".
        stream: only the scoring that writes this file.
        pretend: delete nothing, and say what would be deleted.

    Returns:
        Of each stream how it stands, and what was deleted of it.

    Raises:
        UsageError: no duration.
        StateError: no scoring follows files for this output.
    """
    before = datetime.now(UTC) - since_of(older_than, "--older-than")
    workspace = Workspace.locate()
    with Streams(workspace) as registry:
        found = registry.streams()
        if stream is not None:
            output = str(stream.expanduser().resolve())
            found = [one for one in found if one.output == output]
            if not found:
                raise StateError(f"no scoring of this workspace follows files and writes {stream}")
        return [(standing(one, workspace), registry.prune(one.id, before, pretend=pretend)) for one in found]
