"""The registry: register models with their origin, find them, and move aliases."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from sqlalchemy import delete, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, sessionmaker

from seqmlm.errors import StateError, UsageError, nearest
from seqmlm.registry import database, tables
from seqmlm.registry.entries import CalibrationEntry, DatasetEntry, ModelEntry, Origin, TokenizerEntry
from seqmlm.registry.schema import Schema
from seqmlm.workspace import NAME, Workspace, check_name

Entry = TypeVar("Entry")
Row = TypeVar("Row", bound=tables.Base)
Result = TypeVar("Result")

LATEST = "latest"
# Processes that register under the same name can collide. More collisions than this have another cause.
_ATTEMPTS = 20


class Registry:
    """The registry of a workspace.

    The SQLite file of a workspace is created and migrated on first use. A server is migrated only by
    `seqmlm db upgrade`. Use the registry as a context manager, or call `close`.

    Raises:
        UsageError: the database URL cannot be used.
        StateError: the database cannot be reached, or its schema has another version.
    """

    schemas: ClassVar[tuple[Schema, ...]] = (tables.REGISTRY,)

    def __init__(self, workspace: Workspace) -> None:
        self.root = workspace.root
        self.engine = database.engine(workspace.database_url)
        self._sessions = sessionmaker(self.engine)
        self._writing = sessionmaker(self.engine.execution_options(**database.WRITING))
        try:
            for schema in self.schemas:
                self._migrate(schema)
        except StateError:
            self.close()
            raise

    @classmethod
    def here(cls) -> Self:
        """The registry of the current workspace."""
        return cls(Workspace.locate())

    def _migrate(self, schema: Schema) -> None:
        current, head = database.revisions(self.engine, schema)
        if current != head and self.engine.dialect.name != "sqlite":
            address = self.engine.url.render_as_string(hide_password=True)
            raise StateError(
                f"the registry at {address} is at schema {current}, not {head}; run `seqmlm db upgrade` once "
                "(after a backup)"
            )
        if current != head:
            database.upgrade(self.engine, schema)

    def patiently(self, operation: Callable[[], Result]) -> Result:
        """Run an operation, and repeat it while the server cannot be reached; see `database.patiently`."""
        return database.patiently(operation)

    def close(self) -> None:
        """Close the connections."""
        self.engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """A session for queries.

        Raises:
            StateError: the database cannot be reached.
        """
        with database.reachable(self.engine), self._sessions() as session:
            yield session

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """A session whose changes are committed at its end, all of them or none."""
        with database.reachable(self.engine), self._writing.begin() as session:
            yield session

    def register(
        self,
        name: str,
        directory: str | Path,
        origin: Origin,
        *,
        parent: ModelEntry | None = None,
        aliases: Sequence[str] = (),
    ) -> ModelEntry:
        """Register a model folder as the next version of `name`.

        If the folder is already registered under this name, it keeps its version. A resumed run therefore
        does not register a second version.

        Raises:
            UsageError: the name or an alias is not allowed.
            StateError: the folder is not a model folder.
        """
        check_name(name, "model")
        for alias in aliases:
            _check_alias(alias)
        path = self._stored_path(Path(directory))
        for _ in range(_ATTEMPTS):
            try:
                with self.writing() as session:
                    row = self._of_folder(session, name, path)
                    row.domain, row.masking, row.init = origin.domain, dict(origin.masking), origin.init
                    row.parent_id = parent.id if parent else None
                    row.mlflow_run_id = origin.mlflow_run_id
                    row.dataset = _row(session, tables.Dataset, origin.dataset, "fingerprint")
                    row.tokenizer = _row(session, tables.Tokenizer, origin.tokenizer, "hash")
                    session.add(row)
                    session.flush()
                    for alias in aliases:
                        session.merge(tables.Alias(name=name, alias=alias, model_id=row.id))
                    session.flush()
                    session.refresh(row)
                    return self._entry(row)
            except StateError as error:
                # Meanwhile another process took the version, or added the same data set. Try again.
                if not isinstance(error.__cause__, IntegrityError):
                    raise
        raise StateError(f"model {name!r} could not be registered: too many others are doing so; try again")

    def get(self, name: str, *, version: int | None = None, alias: str | None = None) -> ModelEntry:
        """One version of a model, by number or alias. The default, and the alias `latest`, is the newest.

        Raises:
            StateError: there is no such model, version or alias.
        """
        query = select(tables.Model).where(tables.Model.name == name)
        if version is not None:
            query = query.where(tables.Model.version == version)
        elif alias is not None and alias != LATEST:
            query = query.join(tables.Alias, tables.Alias.model_id == tables.Model.id)
            query = query.where(tables.Alias.name == name, tables.Alias.alias == alias)
        with self.reading() as session:
            row = session.scalars(query.order_by(tables.Model.version.desc()).limit(1)).first()
            if row is not None:
                return self._entry(row)
            raise StateError(self._explain(session, name, version, alias))

    def models(self, name: str | None = None) -> list[ModelEntry]:
        """All versions of all models, or of the model with this name; newest first."""
        query = select(tables.Model).order_by(tables.Model.created.desc(), tables.Model.id.desc())
        if name is not None:
            query = query.where(tables.Model.name == name)
        with self.reading() as session:
            return [self._entry(row) for row in session.scalars(query)]

    def names(self) -> list[str]:
        """Names of all models, sorted."""
        with self.reading() as session:
            return list(session.scalars(select(tables.Model.name).distinct().order_by(tables.Model.name)))

    def set_alias(self, model: ModelEntry, alias: str) -> None:
        """Give this version an alias. If another version of the model has the alias, it is moved."""
        _check_alias(alias)
        with self.writing() as session:
            session.merge(tables.Alias(name=model.name, alias=alias, model_id=model.id))

    def set_calibrations(self, model: ModelEntry, entries: Sequence[CalibrationEntry]) -> None:
        """Replace the recorded calibrations of a version."""
        with self.writing() as session:
            session.execute(delete(tables.Calibration).where(tables.Calibration.model_id == model.id))
            session.add_all(tables.Calibration(model_id=model.id, **asdict(entry)) for entry in entries)

    def calibrations(self, model: ModelEntry) -> list[CalibrationEntry]:
        """The calibrations of a version, sorted by level and mode."""
        kind = tables.Calibration
        query = select(kind).where(kind.model_id == model.id).order_by(kind.level, kind.mode)
        with self.reading() as session:
            return [_value(CalibrationEntry, row) for row in session.scalars(query)]

    def lineage(self, model: ModelEntry) -> list[ModelEntry]:
        """The registered models from which training started, nearest first."""
        entries: list[ModelEntry] = []
        with self.reading() as session:
            row = session.get_one(tables.Model, model.id).parent
            while row is not None:
                entries.append(self._entry(row))
                row = row.parent
        return entries

    def _stored_path(self, directory: Path) -> str:
        folder = directory.expanduser().resolve()
        if not (folder / "config.json").is_file():
            raise StateError(f"{folder} is not a model folder: it has no config.json")
        # Several workspaces can share a server. On a server the path is therefore absolute.
        inside_root = self.engine.dialect.name == "sqlite" and folder.is_relative_to(self.root)
        return folder.relative_to(self.root).as_posix() if inside_root else str(folder)

    def _of_folder(self, session: Session, name: str, path: str) -> tables.Model:
        """The row of a folder under a name; a new row with the next version if there is none."""
        query = select(tables.Model).where(tables.Model.name == name, tables.Model.path == path)
        newest = select(func.max(tables.Model.version)).where(tables.Model.name == name)
        return session.scalars(query).one_or_none() or tables.Model(
            name=name, path=path, version=(session.scalar(newest) or 0) + 1
        )

    def _explain(self, session: Session, name: str, version: int | None, alias: str | None) -> str:
        versions = list(session.scalars(select(tables.Model.version).where(tables.Model.name == name)))
        if not versions:
            names = list(session.scalars(select(tables.Model.name).distinct()))
            return f"no model {name!r}" + (nearest(name, names) if names else "; none is registered yet")
        if version is not None:
            return f"model {name!r} has no version {version}; it has {', '.join(map(str, sorted(versions)))}"
        aliases = session.scalars(select(tables.Alias.alias).where(tables.Alias.name == name))
        return f"model {name!r} has no alias {alias!r}{nearest(str(alias), [LATEST, *aliases])}"

    def _entry(self, row: tables.Model) -> ModelEntry:
        return _value(
            ModelEntry,
            row,
            path=self.root / row.path,
            parent=f"{row.parent.name}:{row.parent.version}" if row.parent else None,
            dataset=_value(DatasetEntry, row.dataset, sources=tuple(row.dataset.sources)),
            tokenizer=_value(TokenizerEntry, row.tokenizer),
            aliases=tuple(alias.alias for alias in row.aliases),
            created=row.created,
        )


def _value(kind: type[Entry], row: tables.Base, **extra: Any) -> Entry:
    """An entry made from the columns of a row with the same names; `extra` replaces some of them."""
    same = {column.name: getattr(row, column.name) for column in fields(kind)}  # type: ignore[arg-type]
    return kind(**{**same, **extra})


def _row(session: Session, kind: type[Row], entry: DatasetEntry | TokenizerEntry, key: str) -> Row:
    """The row of an entry, found by its key; a new row if there is none."""
    values = asdict(entry)
    query = select(kind).where(getattr(kind, key) == values[key])
    return session.scalars(query).one_or_none() or kind(**values)


def _check_alias(alias: str) -> None:
    # Aliases are also shown in MLflow, which reserves latest and v<number>.
    version_like = alias[:1] in "vV" and alias[1:].isdigit()
    if not NAME.fullmatch(alias) or alias.lower() == LATEST or alias.isdigit() or version_like:
        raise UsageError(
            f"{alias!r} cannot be an alias: use a word such as champion "
            "(not 'latest', which is always the newest version, and not a version number)"
        )
