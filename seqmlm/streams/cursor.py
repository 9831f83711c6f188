"""How far a scoring has come: a small file beside the output, replaced as a whole after each commit."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from seqmlm.data.files import UNDER_WAY, is_reference
from seqmlm.engine.durable import entry_of, replace_file
from seqmlm.errors import DataError, StateError
from seqmlm.parsing import read_json
from seqmlm.streams.sinks import write_error

_VERSION = 4
DEFAULTS = "defaults"
"""Part of a request: what its settings are where they are not given."""


@dataclass(frozen=True, kw_only=True)
class Position:
    """How far a run has come.

    Args:
        records: of the input that were read and whose rows are committed.
        output: the mark of the sink.
        counts: what the summary continues to count from.
        problems: see `Problems.snapshot`; with `quarantined`, the bytes of the quarantine file.
    """

    records: int = 0
    output: Mapping[str, int] = field(default_factory=dict)
    counts: Mapping[str, Any] = field(default_factory=dict)
    problems: Mapping[str, Any] = field(default_factory=dict)


class Cursor:
    """The file `<output>.resume.json`.

    Args:
        out: the output it belongs to.
        request: what decides the rows: model, inputs, options; values JSON can hold. A scoring is resumed
            only where all of it is the same.
    """

    def __init__(self, out: Path, request: Mapping[str, Any]) -> None:
        self.path = out.with_name(out.name + UNDER_WAY)
        self._out = out
        self._request = json.loads(json.dumps(request, default=str))

    def load(self) -> Position | None:
        """Where the unfinished scoring of this output stands; None where there is none.

        Raises:
            StateError: it is of another request (the sentence names what differs), or cannot be read.
        """
        if (stored := self._content()) is None:
            return None
        if differing := differences(stored["request"], self._request):
            raise StateError(
                f"cannot continue {self._out}: {'; '.join(differing)}; give what was given before, or "
                "run the command again without --resume"
            )
        position: Position = stored["position"]
        return position

    def unfinished(self) -> tuple[Position | None, Mapping[str, Any]]:
        """Where an unfinished scoring of this output stands, whatever was asked, and what was; None and
        nothing where there is none that can be read."""
        with suppress(StateError):
            if (stored := self._content()) is not None:
                return stored["position"], stored["request"]
        return None, {}

    def _content(self) -> dict[str, Any] | None:
        try:
            content: dict[str, Any] = read_json(self.path)
            if content.pop("sha256") == _digest(content) and content["version"] == _VERSION:
                return {**content, "position": Position(**content["position"])}
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass  # damaged, or no file of ours
        raise StateError(
            f"cannot continue {self._out}: {self.path} is not a cursor this version can read; run the "
            "command again without --resume"
        )

    def save(self, position: Position) -> None:
        """Replace the file; after a power cut there is the old one or the new one; StateError: it cannot be
        written, and the old one is still there."""
        content = {"version": _VERSION, "request": self._request, "position": asdict(position)}
        text = json.dumps({**content, "sha256": _digest(content)})
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self.path, text.encode())
        except OSError as error:
            raise write_error(self.path, error) from None

    def remove(self) -> None:
        """The scoring is finished."""
        self.path.unlink(missing_ok=True)


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def file_facts(paths: Iterable[str | Path]) -> dict[str, str]:
    """Path to the SHA-256 of the content, of every file: what a changed file differs in; DataError: a file
    cannot be read.

    All bytes count, so that a change that keeps size and time is seen, and a copy with another time goes on;
    reading them takes far less than scoring them. A data set (hf:NAME@COMMIT) differs in its name, and what
    can be read only once (a pipe) in nothing.
    """
    digests = dict.fromkeys(map(str, paths), "")
    for path in digests:
        if not is_reference(path) and (os.path.isfile(path) or not os.path.exists(path)):
            try:
                digests[path] = str(entry_of(Path(path))["sha256"])
            except OSError as error:
                why = f"cannot be read: {error.strerror}"
                raise DataError(why, source=path, remedy="check the path") from None
    return digests


def with_defaults(request: Mapping[str, Any], config: Any) -> dict[str, Any]:
    """A request with the default of each setting, so that versions with other settings can go on with it.

    Args:
        request: what decides the rows. A value may be made of a setting that was left at its default, as the
            mode of a scoring is.
        config: the dataclass that the request is made of.
    """
    defaults = {}
    for setting in fields(config):
        default = setting.default if setting.default_factory is MISSING else setting.default_factory()
        if default is not MISSING and setting.name in request:
            value = getattr(config, setting.name)
            defaults[setting.name] = request[setting.name] if value == default else default
    return {**request, DEFAULTS: defaults}


def differences(stored: Mapping[str, Any], request: Mapping[str, Any]) -> list[str]:
    """A phrase for each part of a request that is not what it was.

    A setting that only one of both has is as its default in the other one. An earlier version did not store
    defaults: a setting of it that was empty was not given.
    """
    earlier, earlier_default = _settings(stored)
    later, later_default = _settings(request)
    phrases = []
    for name in sorted(earlier.keys() | later.keys()):
        was, now_is = (
            earlier.get(name, later_default.get(name)),
            later.get(name, earlier_default.get(name)),
        )
        if json.dumps(was) == json.dumps(now_is):  # with the order of the inputs
            continue
        if name not in later and not was and DEFAULTS not in stored:
            continue
        if isinstance(was, dict) and isinstance(now_is, dict):
            keys = [key for key in sorted(was.keys() | now_is.keys()) if was.get(key) != now_is.get(key)]
            for key in keys:
                how = "is new" if key not in was else "is missing" if key not in now_is else "has changed"
                phrases.append(f"{name} {key} {how}")
            phrases += [] if keys else [f"the order of {name} has changed"]
        else:
            phrases.append(f"{name} was {_setting_text(was)} and is {_setting_text(now_is)}")
    return phrases


def _settings(request: Mapping[str, Any]) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """The settings of a request, and their defaults."""
    settings = dict(request)
    return settings, settings.pop(DEFAULTS, {})


def _setting_text(value: Any) -> str:
    if isinstance(value, dict):  # digests of files say nothing to a person
        return "given"
    return "not given" if value is None else str(value)
