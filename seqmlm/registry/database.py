"""Connections to the registry's database, and migrations of its schema."""

from __future__ import annotations

import json
import logging
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Engine, create_engine, event, inspect, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, OperationalError, SQLAlchemyError

from seqmlm.engine.durable import move_into_place
from seqmlm.errors import StateError, UsageError
from seqmlm.parsing import plain
from seqmlm.registry.schema import Schema
from seqmlm.registry.tables import REGISTRY
from seqmlm.workspace import first_use

_ENVIRONMENT = Path(__file__).parent / "migrations"
_RESCAN = "`seqmlm models rescan` moves it aside and fills a new one from the model folders"
_ON_SERVER = (
    "point SEQMLM_DATABASE_URL at an empty database, then run `seqmlm db upgrade` and `seqmlm models rescan`"
)
_json = partial(json.dumps, default=plain)  # counts and options may contain numpy numbers and paths
# Execution option for connections that will write.
WRITING = {"seqmlm_writing": True}
_BUSY_MILLISECONDS = 30_000
_CONNECT_SECONDS = 10
# Seconds between attempts to reach a server. They add up to a minute, more than a restart takes.
_PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0, 15.0)
# Classes of SQLSTATE for a server that cannot be reached now: the connection was lost or refused, the server
# is shutting down or starting up, or it has too many connections.
_UNREACHABLE_STATES = ("08", "57P0", "53300")

Result = TypeVar("Result")


class UnreachableError(StateError):
    """The database cannot be reached now, or is locked. A later attempt may succeed."""


class UnusableError(StateError):
    """The database is damaged, or has a schema that this version of seqmlm does not know."""


def engine(url: str) -> Engine:
    """Create an engine for SQLite (with write-ahead log and foreign keys) or PostgreSQL; see `parse`."""
    parsed = parse(url)
    if parsed.get_backend_name() == "sqlite":
        if parsed.database:
            Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
        bind = create_engine(parsed, json_serializer=_json)
        event.listen(bind, "connect", _prepare_sqlite)
        event.listen(bind, "begin", _begin_sqlite)
        return bind
    arguments = {"connect_timeout": _CONNECT_SECONDS}
    return create_engine(parsed, pool_pre_ping=True, connect_args=arguments, json_serializer=_json)


def parse(url: str) -> URL:
    """Parse a database URL. `postgresql://` selects the psycopg 3 driver.

    Raises:
        UsageError: the URL is not for SQLite or PostgreSQL, or the driver is not installed.
    """
    try:
        parsed = make_url(url)
        if parsed.drivername in ("postgresql", "postgres"):
            parsed = parsed.set(drivername="postgresql+psycopg")
        if parsed.get_backend_name() not in ("sqlite", "postgresql"):
            raise ArgumentError(f"{parsed.get_backend_name()} is not supported")
        parsed.get_dialect().import_dbapi()
    except ModuleNotFoundError as error:
        raise UsageError(f"PostgreSQL needs a driver: pip install 'seqmlm[postgres]' ({error})") from None
    except (ArgumentError, NoSuchModuleError) as error:
        raise UsageError(
            f"SEQMLM_DATABASE_URL: {str(error).splitlines()[0]}; write sqlite:///FILE or "
            "postgresql+psycopg://USER:PASSWORD@HOST/DATABASE"
        ) from None
    return parsed


def upgrade(bind: Engine, schema: Schema = REGISTRY) -> None:
    """Run the pending migrations of a schema, under a lock."""
    from alembic import command

    writer = bind.execution_options(**WRITING)
    with reachable(bind), _single_migration(bind), writer.begin() as connection, _quiet():
        command.upgrade(configuration(connection, schema), "head")


def revisions(bind: Engine, schema: Schema = REGISTRY) -> tuple[str | None, str]:
    """The schema revision of the database (None if it is empty), and the revision that this version needs.

    Raises:
        UnusableError: this version does not know the revision of the database.
        StateError: the database cannot be reached or read.
    """
    head = schema.head
    if not exists(bind.url):
        return None, head
    with reachable(bind), bind.connect() as connection:
        present = inspect(connection).has_table(schema.version_table)
        query = text(f"SELECT version_num FROM {schema.version_table}")
        current = connection.scalar(query) if present else None
    if current not in {None, *schema.revisions}:
        address = bind.url.render_as_string(hide_password=True)
        remedy = _RESCAN if bind.dialect.name == "sqlite" else _ON_SERVER
        raise UnusableError(
            f"the registry at {address} is at schema {current}, which this version of seqmlm does not know "
            f"(it needs {head}); {remedy}"
        )
    return current, head


def exists(url: URL) -> bool:
    """Whether the database exists. Servers always do; an SQLite file may not exist yet."""
    return url.get_backend_name() != "sqlite" or bool(url.database and Path(url.database).exists())


def configuration(connection: Any, schema: Schema = REGISTRY) -> Any:
    """Alembic's configuration for a schema and a connection. There is no ini file."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_ENVIRONMENT).replace("%", "%%"))
    config.set_main_option("path_separator", "newline")  # folders may have spaces in their names
    config.set_main_option("version_locations", str(schema.migrations).replace("%", "%%"))
    config.attributes |= {"connection": connection, "schema": schema}
    return config


@contextmanager
def reachable(bind: Engine) -> Iterator[None]:
    """Convert database errors within the context to one sentence with the address and a remedy.

    Raises:
        UnreachableError: a server cannot be reached, or the connection was lost.
        UnusableError: the file is damaged.
        StateError: any other database error.
    """
    try:
        yield
    except (SQLAlchemyError, OSError) as error:
        address = bind.url.render_as_string(hide_password=True)
        reason = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
        if _damaged(error):
            raise UnusableError(f"the registry at {address} is damaged: {reason}; {_RESCAN}") from error
        raise (UnreachableError if _unreachable(bind, error) else StateError)(
            f"the registry at {address} cannot be used: {reason}; check that it can be reached and written, "
            "or point SEQMLM_DATABASE_URL elsewhere"
        ) from error


def patiently(operation: Callable[[], Result], pause: Callable[[float], None] = time.sleep) -> Result:
    """Run an operation, and repeat it while its server cannot be reached.

    The pauses grow, and add up to a minute. The operation must be safe to repeat: if the connection is lost
    during a commit, nobody knows whether the commit succeeded.
    """
    for seconds in _PAUSES:
        try:
            return operation()
        except UnreachableError:
            pause(seconds)
    return operation()


def _unreachable(bind: Engine, error: Exception) -> bool:
    """Whether the server was unreachable or the file locked, as opposed to a refused statement."""
    if not isinstance(error, DBAPIError):
        return False
    if bind.dialect.name == "sqlite":
        return getattr(error.orig, "sqlite_errorname", "").startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))
    state = getattr(error.orig, "sqlstate", None)
    # A connection that could not be made has no SQLSTATE.
    never = isinstance(error, OperationalError) and state is None
    return error.connection_invalidated or never or str(state).startswith(_UNREACHABLE_STATES)


def _damaged(error: BaseException) -> bool:
    """Whether SQLite reports that its file is corrupt or not a database."""
    name = getattr(getattr(error, "orig", error), "sqlite_errorname", "")
    return name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB"))


@contextmanager
def _single_migration(bind: Engine) -> Iterator[None]:
    """Allow one migration at a time.

    An SQLite file has a lock file next to it. For servers, `migrations/env.py` takes a lock.
    """
    file = bind.url.database
    if bind.dialect.name == "sqlite" and file and file != ":memory:":
        with first_use(Path(file).with_name(f".{Path(file).name}.lock")):
            yield
    else:
        yield


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide Alembic's messages: it logs every step at level INFO, which MLflow enables for the process."""
    logger = logging.getLogger("alembic")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


def _prepare_sqlite(connection: Any, _record: object) -> None:
    # The driver would begin transactions by itself, and too late. `_begin_sqlite` begins them.
    connection.isolation_level = None
    for pragma in (f"busy_timeout = {_BUSY_MILLISECONDS}", "journal_mode = WAL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}").close()


def _begin_sqlite(connection: Any) -> None:
    # IMMEDIATE makes writers wait. Without it, a transaction that reads before it writes fails at once if
    # another process is writing.
    writing = connection.get_execution_options().get("seqmlm_writing")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")


def set_aside(url: str) -> Path | None:
    """Rename an unusable registry file, so that a new one can be created; None if it is usable.

    The new name ends with `.damaged`. A server database is never moved.

    Raises:
        UnreachableError: another process uses the file.
        StateError: the file cannot be read or moved.
    """
    bind = engine(url)
    bind.dispose()
    if bind.dialect.name != "sqlite" or not exists(bind.url):
        return None
    path = Path(str(bind.url.database))
    with reachable(bind), _single_migration(bind):
        try:
            _check(path)
            revisions(bind)
            return None
        except UnusableError:
            bind.dispose()
        target, number = path.with_name(f"{path.name}.damaged"), 1
        while target.exists():
            number += 1
            target = path.with_name(f"{path.name}.damaged-{number}")
        # The logs are moved before the file: SQLite would apply a remaining log to a new file.
        for end in ("-wal", "-shm", ""):
            if path.with_name(path.name + end).exists():
                move_into_place(path.with_name(path.name + end), target.with_name(target.name + end))
    return target


def _check(path: Path) -> None:
    """Let SQLite check the whole file, under an exclusive lock.

    Raises:
        UnreachableError: another process uses the file.
        UnusableError: the file is damaged.
        StateError: the file cannot be read.
    """
    with closing(sqlite3.connect(path, isolation_level=None, timeout=1.0)) as opened:
        try:
            opened.execute("PRAGMA locking_mode = EXCLUSIVE")
            opened.execute("BEGIN EXCLUSIVE")
            opened.execute("COMMIT")
            messages = [message for (message,) in opened.execute("PRAGMA integrity_check")]
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorname", "").startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
                raise UnreachableError(f"{path} is in use: stop the program that uses it first") from None
            if not _damaged(error):
                raise StateError(f"{path} cannot be read: {error}") from None
            messages = [str(error)]
    if messages != ["ok"]:
        raise UnusableError(f"{path} is damaged: {messages[0]}; {_RESCAN}")
