"""The request of a stream, and whether a later start can continue the stream.

A stream can be continued only with the same settings and patterns of files. The model may change. A stream
continues with the newest version of the model that its command names. Each row names the version that scored
it. Level, mode and calibration are therefore chosen at each start. The trade-off: p-values of one stream can
come from several calibrations.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from seqmlm.errors import StateError
from seqmlm.scoring.live import LiveModel
from seqmlm.streams.cursor import DEFAULTS, differences, with_defaults
from seqmlm.watch.config import WatchConfig

UNDECIDED = frozenset(
    (
        *("model", "paths", "extrapolate", "out", "tokens_per_batch", "max_latency", "ignore"),
        *("quiet", "webhook", "webhook_format", "metrics_port", "metrics_host"),
    )
)
"""Settings that may differ when a stream is continued."""

JUDGES = "judges"
"""The key of the model versions that scored rows, newest last: the SHA-256 of each file by reference."""

_REMOVED = ("source", "calibration", "model", "model file", "counts")
"""Keys in requests of earlier versions of this package that have no meaning any more."""

_JUDGE = (JUDGES, "sensitive")
_CHOSEN = ("mode", "level", "precision")  # earlier versions of this package stored the chosen values
_JOURNAL = (
    "its rows came from the systemd journal (--source), which is not supported any more: follow a file that "
    "journalctl writes, with another --out (see docs/reference/watch.md)"
)


def stream_request(config: WatchConfig, patterns: Sequence[str], model: LiveModel) -> dict[str, Any]:
    """The request of a stream: settings that must not change, absolute patterns, and the model version."""
    settings = {name: value for name, value in asdict(config).items() if name not in UNDECIDED}
    settings |= {"files": list(patterns), "options": dict(sorted(config.options.items()))}
    judge = {JUDGES: {model.reference: model.digests}, "sensitive": model.sensitive}
    return {**with_defaults(settings, config), **judge}


@dataclass(frozen=True, kw_only=True)
class Continued:
    """The decision to continue a stream.

    Args:
        request: the request to store.
        notes: messages about changes of the model.
    """

    request: Mapping[str, Any]
    notes: Sequence[str]

    @property
    def recalibrated(self) -> bool:
        """Whether rows are now scored with another calibration than before."""
        return bool(self.notes)


def continued(stored: Mapping[str, Any], request: Mapping[str, Any], out: Path) -> Continued:
    """Check that a stream with a stored request can be continued with a new request.

    Raises:
        StateError: the stream cannot be continued.
    """
    phrases = differences(_settings(stored), {name: request[name] for name in request if name not in _JUDGE})
    if stored.get("source"):
        raise StateError(f"cannot continue {out}: {_JOURNAL}")
    if phrases:
        raise StateError(
            f"cannot continue {out}: {'; '.join(phrases)}; give the earlier settings, or name another file "
            "with --out"
        )
    if stored.get("sensitive", request.get("sensitive")) != request.get("sensitive"):
        raise StateError(
            f"cannot continue {out}: the earlier model and this model differ: one is for sensitive data, the "
            "other is not; name another file with --out"
        )
    earlier, judges = judges_of(stored), judges_of(request)
    last, notes = next(reversed(earlier), None), list[str]()
    for reference, digests in judges.items():
        if reference == last and earlier[last] != digests:
            notes.append(f"{reference} has changed, and scores later rows in its new state")
        elif last is not None and earlier[last] != digests:
            notes.append(f"{reference} scores the rows from here on, {last} scored the earlier rows")
    if stored.get("calibration"):
        notes.append("the model's calibration replaces the rolling calibration of this stream")
    for reference, digests in reversed(earlier.items()):
        if digests not in judges.values():
            judges = {reference: digests} | judges
    return Continued(request={**request, JUDGES: judges}, notes=notes)


def _settings(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a stored request that the user set, with their defaults."""
    defaults = stored.get(DEFAULTS, {})
    as_chosen = {name for name in _CHOSEN if name in defaults and stored.get(name) == defaults[name]}
    unused = {*_REMOVED, *_JUDGE, *as_chosen}
    settings = {name: value for name, value in stored.items() if name not in unused}
    return {**settings, DEFAULTS: {name: value for name, value in defaults.items() if name not in unused}}


def judges_of(stored: Mapping[str, Any]) -> dict[str, Mapping[str, str]]:
    """The model versions that scored rows of a stream: the SHA-256 of each file, by reference.

    Earlier versions of this package stored an alias, or the files of a model. The key is then the alias or
    the model's folder.
    """
    if JUDGES in stored:
        return dict(stored[JUDGES])
    if files := stored.get("model file"):
        return {str(Path(min(files)).parent): files}
    return {stored["model"]: {}} if stored.get("model") else {}


def judged_by(stored: Mapping[str, Any], names: Collection[str], folders: Collection[str]) -> bool:
    """Whether a model scored rows of a stream.

    Args:
        stored: the stored request of the stream.
        names: names and references of the model.
        folders: folders of its versions.
    """
    for reference, digests in judges_of(stored).items():
        name = reference.replace("@", ":").partition(":")[0]
        if reference in names or name in names:
            return True
        if any(os.path.realpath(Path(file).parent) in folders for file in digests):
            return True
    return False
