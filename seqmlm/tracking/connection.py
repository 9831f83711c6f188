"""Reaching MLflow: quietly, and with a quick failure where it does not answer."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from seqmlm.tracking.remote import Remote
from seqmlm.workspace import Workspace, first_use

# MLflow retries HTTP for minutes and databases for 100 s; a training waits for neither. Users' settings win.
_DEFAULTS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
}
_CONNECT_SECONDS = 5
_LOUD = ("mlflow", "alembic", "urllib3")


class TrackerDown(Exception):
    """MLflow cannot be reached; the message says why."""


@contextmanager
def quiet() -> Iterator[None]:
    """Let MLflow, Alembic and SQLAlchemy say nothing: what goes wrong arrives as an exception anyway."""
    loggers = [logging.getLogger(name) for name in _LOUD]
    levels = [logger.level for logger in loggers]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Its import sets the levels of its loggers, so it must come before ours.
            import mlflow  # noqa: F401

            for logger in loggers:
                logger.setLevel(logging.CRITICAL + 1)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def connect(workspace: Workspace) -> Remote:
    """Open MLflow's store, creating the workspace's own database on first use.

    Raises:
        TrackerDown: it does not answer within seconds.
    """
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    uri = workspace.tracking_uri
    try:
        with quiet():
            if not workspace.tracks_locally:
                return Remote(uri, None)
            _probe(uri)
            with first_use(workspace.runs / ".mlflow.lock"):
                return Remote(uri, workspace.artifacts)
    except Exception as error:
        reason = hide_password(_first_line(error), uri)
        raise TrackerDown(f"MLflow at {public(uri)} does not answer: {reason}") from error


def _probe(uri: str) -> None:
    """Open the database once with a short timeout, since MLflow would retry a dead one for 100 seconds."""
    import sqlalchemy

    if uri.startswith("file:") or "://" not in uri:
        raise ValueError("a folder is not a store MLflow keeps up; use sqlite:///<file> or http://<server>")
    url = sqlalchemy.make_url(uri)
    arguments: dict[str, Any] = {}
    if url.get_backend_name() == "sqlite":
        if url.database and url.database != ":memory:":
            Path(url.database).parent.mkdir(parents=True, exist_ok=True)
    elif url.get_backend_name() in ("postgresql", "mysql"):
        arguments["connect_timeout"] = _CONNECT_SECONDS
    engine = sqlalchemy.create_engine(url, connect_args=arguments, poolclass=sqlalchemy.NullPool)
    with engine.connect() as connection:
        connection.exec_driver_sql("SELECT 1")


def public(uri: str) -> str:
    """The address without its password."""
    return hide_password(uri, uri)


def hide_password(text: str, uri: str) -> str:
    """Some text that may quote an address, without the password of that address."""
    try:
        secret = urlsplit(uri).password
    except ValueError:
        secret = None
    return text.replace(secret, "***") if secret else text


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
