"""Connections to the registry's database, and its schema brought up to date."""

from __future__ import annotations

import json
import logging
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import JSON, Engine, Table, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, OperationalError, SQLAlchemyError

from seqmlm.engine.durable import move_into_place, owner_only
from seqmlm.errors import StateError, UsageError
from seqmlm.registry.tables import VERSION_TABLE, Base
from seqmlm.workspace import first_use

MIGRATIONS = Path(__file__).parent / "migrations"
# Execution option of connections that will write.
WRITING = {"seqmlm_writing": True}
_BUSY_MILLISECONDS = 30_000
_CONNECT_SECONDS = 10
# Between attempts to reach a server: a minute in all, which a restart does not need.
_PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0, 15.0)
# Classes of SQLSTATE that say that the server cannot be reached now: connections lost and refused, one that
# shuts down or starts up, and one with too many connections.
_UNREACHABLE_STATES = ("08", "57P0", "53300")

Result = TypeVar("Result")


class UnreachableError(StateError):
    """A database that cannot be reached, or is locked, now; the same may succeed later."""


def engine(url: str) -> Engine:
    """Make an engine for SQLite (write-ahead log, foreign keys checked) or PostgreSQL.

    Raises:
        UsageError: the URL is not one, or is for another database.
    """
    parsed = parse(url)
    if parsed.get_backend_name() == "sqlite":
        if parsed.database:
            Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
        made = create_engine(parsed, json_serializer=_json)
        event.listen(made, "connect", _prepare_sqlite)
        event.listen(made, "begin", _begin_sqlite)
        return made
    arguments = {"connect_timeout": _CONNECT_SECONDS}
    return create_engine(parsed, pool_pre_ping=True, connect_args=arguments, json_serializer=_json)


def parse(url: str) -> URL:
    """Read a database URL; `postgresql://` means the psycopg 3 driver.

    Raises:
        UsageError: it is not a URL of SQLite or PostgreSQL, or the driver is not installed.
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


def upgrade(made: Engine) -> None:
    """Run the migrations that the database has not seen, under a lock.

    Raises:
        StateError: the database cannot be reached or written.
    """
    from alembic import command

    writer = made.execution_options(**WRITING)
    with reachable(made), _alone(made), writer.begin() as connection, _quiet():
        command.upgrade(configuration(connection), "head")


def revisions(made: Engine) -> tuple[str | None, str]:
    """The schema revision the database is at (None: empty), and the one this version of seqmlm needs."""
    from alembic.migration import MigrationContext
    from alembic.script import ScriptDirectory

    head = ScriptDirectory(str(MIGRATIONS)).get_current_head()
    assert head is not None
    if not exists(made.url):
        return None, head
    with reachable(made), made.connect() as connection, _quiet():
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
        return context.get_current_revision(), head


def exists(url: URL) -> bool:
    """False where the database is a file that has yet to be made."""
    return url.get_backend_name() != "sqlite" or bool(url.database and Path(url.database).exists())


def configuration(connection: Any) -> Any:
    """Alembic's configuration for one connection; there is no ini file."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


@contextmanager
def reachable(made: Engine) -> Iterator[None]:
    """Turn a database's own errors into one sentence with the address and a remedy.

    Raises:
        UnreachableError: a server cannot be reached, or was lost in between; StateError: anything else.
    """
    try:
        yield
    except (SQLAlchemyError, OSError) as error:
        address = made.url.render_as_string(hide_password=True)
        reason = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
        remedy = "see that it can be reached and written, or point SEQMLM_DATABASE_URL elsewhere"
        if _damaged(error):
            remedy = "the file is damaged: `seqmlm doctor --repair` keeps what is sound of it"
        raise (UnreachableError if _unreachable(made, error) else StateError)(
            f"the registry at {address} cannot be used: {reason}; {remedy}"
        ) from error


def patiently(operation: Callable[[], Result], pause: Callable[[float], None] = time.sleep) -> Result:
    """Do something, again while its server cannot be reached: pauses that grow, a minute in all.

    Args:
        operation: it may be repeated: a connection that is lost during a commit does not say whether that
            was done.
        pause: waits for some seconds.

    Raises:
        UnreachableError: the server could not be reached at the end either.
    """
    for seconds in _PAUSES:
        try:
            return operation()
        except UnreachableError:
            pause(seconds)
    return operation()


def _unreachable(made: Engine, error: Exception) -> bool:
    """Whether the server was not there, or the file locked, rather than refused what it was asked."""
    if not isinstance(error, DBAPIError):
        return False
    if made.dialect.name == "sqlite":
        return getattr(error.orig, "sqlite_errorname", "").startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))
    state = getattr(error.orig, "sqlstate", None)
    # A connection that could not be made has no SQLSTATE.
    never = isinstance(error, OperationalError) and state is None
    return error.connection_invalidated or never or str(state).startswith(_UNREACHABLE_STATES)


def _damaged(error: BaseException) -> bool:
    """Whether SQLite says that its file is not what it has written."""
    name = getattr(getattr(error, "orig", error), "sqlite_errorname", "")
    return name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB"))


@contextmanager
def _alone(made: Engine) -> Iterator[None]:
    """One migration at a time: a lock file beside an SQLite file; servers lock in the migration itself."""
    file = made.url.database
    if made.dialect.name == "sqlite" and file and file != ":memory:":
        with first_use(Path(file).with_name(f".{Path(file).name}.lock")):
            yield
    else:
        yield


@contextmanager
def _quiet() -> Iterator[None]:
    """Alembic reports every step at level INFO, and MLflow turns that on for the process."""
    logger = logging.getLogger("alembic")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


def _json(value: Any) -> str:
    """JSON of counts and options, which may hold numbers of numpy and paths."""
    return json.dumps(value, default=lambda item: item.item() if hasattr(item, "item") else str(item))


def _prepare_sqlite(connection: Any, _record: object) -> None:
    # The driver would begin transactions on its own, and late; we begin them (see below).
    connection.isolation_level = None
    for pragma in (f"busy_timeout = {_BUSY_MILLISECONDS}", "journal_mode = WAL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}").close()


def _begin_sqlite(connection: Any) -> None:
    # IMMEDIATE: writers queue up. A transaction that reads first and wants to write later would fail at once.
    writing = connection.get_execution_options().get("seqmlm_writing")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")


def history() -> list[str]:
    """All revisions this version of seqmlm knows, oldest first."""
    from alembic.script import ScriptDirectory

    found = ScriptDirectory(str(MIGRATIONS)).walk_revisions()
    return [script.revision for script in reversed(list(found))]


# Repair of a damaged file


@dataclass
class Repaired:
    """What came of a repair.

    Args:
        aside: the damaged file, as it was; None where nothing was damaged, and nothing was done.
        kept: rows that were kept, by table.
        lost: rows that were lost, by table, as far as they can be counted; None: it is not known how many.
    """

    aside: Path | None = None
    kept: dict[str, int] = field(default_factory=dict)
    lost: dict[str, int | None] = field(default_factory=dict)


def repair(url: str) -> Repaired:
    """Copy the rows that can be read of a damaged SQLite file to a new one, which takes its place.

    Whenever the process dies, the damaged file or the new one is there. Tables of others in the file
    (MLflow's) are not copied.

    Args:
        url: of the database; nothing may use it meanwhile.

    Raises:
        UsageError: it is no SQLite file: a server has means of its own.
        StateError: it is in use, of a newer version of seqmlm, or cannot be written.
    """
    made = engine(url)
    made.dispose()
    name = made.url.database
    if made.dialect.name != "sqlite" or not name or not Path(name).is_file():
        raise UsageError(
            "only a registry that is a file can be repaired; a server has its own means for that"
        )
    path = Path(name)
    new = path.with_name(f"{path.name}.repaired")
    try:
        with _alone(made), closing(sqlite3.connect(path, isolation_level=None, timeout=1.0)) as old:
            if _is_sound(old, path):
                return Repaired()
            _remove(new)
            with owner_only(path.stat().st_mode & 0o077 == 0):
                found = _copy(old, new)
            aside = _free_name(path)
            for end in ("", "-wal"):
                if path.with_name(path.name + end).exists():
                    shutil.copy2(path.with_name(path.name + end), aside.with_name(aside.name + end))
            found.aside = aside
        for end in ("-wal", "-shm"):  # they belong to the damaged file
            path.with_name(path.name + end).unlink(missing_ok=True)
        move_into_place(new, path)
    except (OSError, sqlite3.Error) as error:
        raise StateError(
            f"the registry at {path} cannot be repaired: {error}; the damaged file is kept"
        ) from None
    finally:
        _remove(new)
    return found


def _remove(path: Path) -> None:
    for end in ("", "-wal", "-shm"):
        path.with_name(path.name + end).unlink(missing_ok=True)


def _free_name(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    return aside


def _is_sound(old: sqlite3.Connection, path: Path) -> bool:
    """Whether SQLite finds nothing wrong with the file; from here on nobody else may use it.

    Raises:
        UnreachableError: somebody uses it.
    """
    try:
        old.execute("PRAGMA locking_mode = EXCLUSIVE")
        old.execute("BEGIN EXCLUSIVE")
        old.execute("COMMIT")
        return [one for (one,) in old.execute("PRAGMA integrity_check")] == ["ok"]
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorname", "").startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            raise UnreachableError(f"{path} is in use: stop what uses it, then repair it") from None
        if _damaged(error):
            return False
        raise


def _copy(old: sqlite3.Connection, new: Path) -> Repaired:
    """Make a file with the tables of the old one's schema, fill it with what can be read, and upgrade it."""
    try:
        (revision,) = old.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchone() or (None,)
    except sqlite3.Error:
        revision = None  # the newest one, then: tables and columns of an older file are among its own
    if revision is not None and revision not in history():
        raise StateError(
            f"the registry is at schema {revision}, of a newer version of seqmlm: repair it with that"
        )
    made = engine(URL.create("sqlite", database=str(new)).render_as_string())
    try:
        _migrate(made, revision or "head")
        found = Repaired()
        with closing(sqlite3.connect(new, isolation_level=None)) as filled:
            filled.execute("BEGIN")
            for table in Base.metadata.sorted_tables:
                columns = [row[1] for row in filled.execute(f"PRAGMA table_info({table.name})")]
                if columns:
                    _copy_table(old, filled, table, columns, found)
            _drop_orphans(filled, found)
            filled.execute("COMMIT")
        _migrate(made, "head")
        with made.connect() as connection:
            connection.exec_driver_sql("COMMIT")
            connection.exec_driver_sql("PRAGMA journal_mode = DELETE")  # all of it in one file
        return found
    finally:
        made.dispose()


def _migrate(made: Engine, revision: str) -> None:
    from alembic import command

    with reachable(made), made.execution_options(**WRITING).begin() as connection, _quiet():
        command.upgrade(configuration(connection), revision)


def _copy_table(
    old: sqlite3.Connection, filled: sqlite3.Connection, table: Table, columns: list[str], found: Repaired
) -> None:
    objects = [n for n, name in enumerate(columns) if isinstance(table.c[name].type, JSON)]
    marks = ", ".join("?" * (1 + len(columns)))
    names = ", ".join(columns)
    kept, lost = 0, 0

    def take(row: tuple[Any, ...]) -> None:
        nonlocal kept, lost
        try:
            for n in objects:
                if row[1 + n] is not None:  # where that may not be, the table refuses it
                    json.loads(row[1 + n])
            filled.execute(f"INSERT INTO {table.name} (rowid, {names}) VALUES ({marks})", row)
            kept += 1
        except (sqlite3.Error, ValueError, TypeError):
            lost += 1  # a row that is there and makes no sense

    try:
        unread = _each(old, f"SELECT rowid, {names} FROM {table.name} NOT INDEXED", take)
    except sqlite3.OperationalError:  # there is no such table, as far as can be read
        unread = None
    found.kept[table.name] = kept
    if unread is None or lost + unread:
        found.lost[table.name] = None if unread is None else lost + unread


def _each(old: sqlite3.Connection, query: str, take: Callable[[tuple[Any, ...]], None]) -> int | None:
    """Take each row that can be read; gives the number of others (None: not known).

    From both ends, and what lies between two damaged pages by halves.
    """

    def some(low: int, high: int, order: str = "") -> int | None:
        """Take rows up to the first that cannot be read; the number of the last one taken, None for all."""
        last = low - 1 if not order else high + 1
        try:
            for row in old.execute(
                f"{query} WHERE rowid BETWEEN ? AND ? ORDER BY rowid {order}", (low, high)
            ):
                last = row[0]
                take(row)
        except sqlite3.DatabaseError as error:
            if not _damaged(error) and "decode" not in str(error):
                raise
            return last
        return None

    largest = 2**63 - 1
    first = some(1, largest)
    if first is None:
        return 0
    last = some(first + 1, largest, "DESC")
    if last is None or last > largest - 1:
        return 0 if last is None else None
    lost, ranges = 0, [(first + 1, last - 1)]
    while ranges:
        low, high = ranges.pop()
        reached = some(low, high) if low <= high else None
        if reached is None:
            continue
        low = reached + 1
        if low >= high:
            lost += 1
            continue
        middle = (low + high) // 2
        ranges += [(middle + 1, high), (low, middle)]
    return lost


def _drop_orphans(filled: sqlite3.Connection, found: Repaired) -> None:
    """Rows that belong to rows that were lost are lost as well."""
    while orphans := {(table, row) for table, row, _, _ in filled.execute("PRAGMA foreign_key_check")}:
        for table, row in orphans:
            filled.execute(f"DELETE FROM {table} WHERE rowid = ?", (row,))
            found.kept[table] -= 1
            known = found.lost.get(table, 0)
            found.lost[table] = None if known is None else known + 1
