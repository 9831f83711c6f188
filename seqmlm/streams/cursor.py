"""The progress of a run, in a small file next to the output that is replaced after each commit."""

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
"""The key of a request that has the default values of its settings."""


@dataclass(frozen=True, kw_only=True)
class Position:
    """The progress of a run at a commit.

    Args:
        records: number of input records that were read and whose rows are committed.
        output: the mark of the sink.
        counts: the counts of the summary so far.
        problems: the result of `Problems.snapshot`, with the size of the quarantine file in bytes as
            `quarantined`.
    """

    records: int = 0
    output: Mapping[str, int] = field(default_factory=dict)
    counts: Mapping[str, Any] = field(default_factory=dict)
    problems: Mapping[str, Any] = field(default_factory=dict)


class Cursor:
    """The file `<output>.resume.json`.

    Args:
        out: the output that the file belongs to.
        request: everything that determines the rows (model, inputs, options), as JSON values. A run is
            resumed only if the whole request is unchanged.
    """

    def __init__(self, out: Path, request: Mapping[str, Any]) -> None:
        self.path = out.with_name(out.name + UNDER_WAY)
        self._out = out
        self._request = json.loads(json.dumps(request, default=str))

    def load(self) -> Position | None:
        """The progress of the unfinished run with this output; None if there is none.

        Raises:
            StateError: the file belongs to another request, and the message lists the differences; or it
                cannot be read.
        """
        if (stored := self._content()) is None:
            return None
        if differing := differences(stored["request"], self._request):
            raise StateError(
                f"cannot continue {self._out}: {'; '.join(differing)}; use the earlier settings and inputs, "
                "or run the command again without --resume"
            )
        position: Position = stored["position"]
        return position

    def unfinished(self) -> tuple[Position | None, Mapping[str, Any]]:
        """The progress of the unfinished run with this output, and its request, whatever the request is.

        The result is None and an empty request if there is no cursor that can be read.
        """
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
            pass  # damaged, or not written by seqmlm
        raise StateError(
            f"cannot continue {self._out}: this version cannot read {self.path}; run the command again "
            "without --resume"
        )

    def save(self, position: Position) -> None:
        """Replace the file atomically. After a power failure it has the old or the new content.

        Raises:
            StateError: the file cannot be written. The old file is unchanged.
        """
        content = {"version": _VERSION, "request": self._request, "position": asdict(position)}
        text = json.dumps({**content, "sha256": _digest(content)})
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self.path, text.encode())
        except OSError as error:
            raise write_error(self.path, error) from None

    def remove(self) -> None:
        """Delete the file, because the run is finished."""
        self.path.unlink(missing_ok=True)


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def file_facts(paths: Iterable[str | Path]) -> dict[str, str]:
    """The SHA-256 of each file, by path, to detect changed inputs.

    The hash covers all bytes. It therefore detects a change that keeps size and time, and accepts a copy with
    another time. Reading the bytes takes far less time than scoring them. The value is "" for a data set
    (hf:NAME@COMMIT), whose name identifies it, and for a pipe, which can be read only once.

    Raises:
        DataError: a file cannot be read.
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
    """A request with the default of each setting, so that a version with other settings can continue it.

    Args:
        request: everything that determines the rows. A value may be computed although its setting has the
            default value, such as the mode of a scoring.
        config: the dataclass from which the request was made.
    """
    defaults = {}
    for setting in fields(config):
        default = setting.default if setting.default_factory is MISSING else setting.default_factory()
        if default is not MISSING and setting.name in request:
            value = getattr(config, setting.name)
            defaults[setting.name] = request[setting.name] if value == default else default
    return {**request, DEFAULTS: defaults}


def differences(stored: Mapping[str, Any], request: Mapping[str, Any]) -> list[str]:
    """A phrase for each part of a request that has changed.

    If only one of the two requests has a setting, it has its default in the other request. Earlier versions
    did not store defaults. An empty setting of theirs counts as not given.
    """
    earlier, earlier_default = _settings(stored)
    later, later_default = _settings(request)
    phrases = []
    for name in sorted(earlier.keys() | later.keys()):
        was, now_is = (
            earlier.get(name, later_default.get(name)),
            later.get(name, earlier_default.get(name)),
        )
        if json.dumps(was) == json.dumps(now_is):  # compares the order of the inputs, too
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
    if isinstance(value, dict):  # hashes of files are useless to a person
        return "given"
    return "not given" if value is None else str(value)
