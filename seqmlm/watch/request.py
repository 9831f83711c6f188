"""What decides the rows of a stream, and whether a later start may go on with it.

The settings decide, and the patterns of files. The model does not: a stream goes on with the newest version
of the model that its command names, and each row names the version that judged it. So level, mode and
calibration are chosen anew at each start. The trade-off: p-values of one stream may come of several
calibrations.
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
"""Settings that change no row: a stream goes on where they differ."""

JUDGES = "judges"
"""Key of the versions that judged rows, the last one at the end: reference to the SHA-256 of each file."""

_REMOVED = ("source", "calibration", "model", "model file", "counts")
"""Parts of requests of earlier versions of this package that decide nothing any more."""

_JUDGE = (JUDGES, "sensitive")
_CHOSEN = ("mode", "level", "precision")  # which earlier versions of this package stored as chosen
_JOURNAL = (
    "its rows came of the journal of systemd (--source), which is read from a file now: let journalctl write "
    "one (see docs/reference/watch.md), and follow that with another --out"
)


def stream_request(config: WatchConfig, patterns: Sequence[str], model: LiveModel) -> dict[str, Any]:
    """The part of a request that decides rows, and the version that judges; the patterns are absolute."""
    settings = {name: value for name, value in asdict(config).items() if name not in UNDECIDED}
    settings |= {"files": list(patterns), "options": dict(sorted(config.options.items()))}
    judge = {JUDGES: {model.reference: model.digests}, "sensitive": model.sensitive}
    return {**with_defaults(settings, config), **judge}


@dataclass(frozen=True, kw_only=True)
class Continued:
    """How a stream goes on: the request to store, and what a person is told of it; whether p-values are
    those of another calibration than before."""

    request: Mapping[str, Any]
    notes: Sequence[str]

    @property
    def recalibrated(self) -> bool:
        """Whether rows are judged by another calibration than before."""
        return bool(self.notes)


def continued(stored: Mapping[str, Any], request: Mapping[str, Any], out: Path) -> Continued:
    """How a stream of a stored request goes on with another one; StateError: it cannot."""
    phrases = differences(_settings(stored), {name: request[name] for name in request if name not in _JUDGE})
    if stored.get("source"):
        raise StateError(f"cannot go on with {out}: {_JOURNAL}")
    if phrases:
        raise StateError(
            f"cannot go on with {out}: {'; '.join(phrases)}; give the earlier settings, or name another file "
            "with --out"
        )
    if stored.get("sensitive", request.get("sensitive")) != request.get("sensitive"):
        raise StateError(
            f"cannot go on with {out}: one model is of sensitive data, and the other is not; name another "
            "file with --out"
        )
    earlier, judges = judges_of(stored), judges_of(request)
    last, notes = next(reversed(earlier), None), list[str]()
    for reference, digests in judges.items():
        if reference == last and earlier[last] != digests:
            notes.append(f"{reference} has changed, and judges from here on as it is now")
        elif last is not None and earlier[last] != digests:
            notes.append(f"{reference} judges from here on, {last} did before")
    if stored.get("calibration"):
        notes.append("the calibration of the model judges in place of the rolling one of this stream")
    for reference, digests in reversed(earlier.items()):
        if digests not in judges.values():
            judges = {reference: digests} | judges
    return Continued(request={**request, JUDGES: judges}, notes=notes)


def _settings(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a stored request that a person gave, with their defaults."""
    defaults = stored.get(DEFAULTS, {})
    as_chosen = {name for name in _CHOSEN if name in defaults and stored.get(name) == defaults[name]}
    unused = {*_REMOVED, *_JUDGE, *as_chosen}
    settings = {name: value for name, value in stored.items() if name not in unused}
    return {**settings, DEFAULTS: {name: value for name, value in defaults.items() if name not in unused}}


def judges_of(stored: Mapping[str, Any]) -> dict[str, Mapping[str, str]]:
    """The versions that judged rows of a stream, by reference; earlier versions of this package stored an
    alias, or the files of a model, which name its folder."""
    if JUDGES in stored:
        return dict(stored[JUDGES])
    if files := stored.get("model file"):
        return {str(Path(min(files)).parent): files}
    return {stored["model"]: {}} if stored.get("model") else {}


def judged_by(stored: Mapping[str, Any], names: Collection[str], folders: Collection[str]) -> bool:
    """Whether a version of a model judged rows of a stream: it has such a name or reference, or its files lie
    in such a folder."""
    for reference, digests in judges_of(stored).items():
        name = reference.replace("@", ":").partition(":")[0]
        if reference in names or name in names:
            return True
        if any(os.path.realpath(Path(file).parent) in folders for file in digests):
            return True
    return False
