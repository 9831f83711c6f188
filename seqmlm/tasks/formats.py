"""`seqmlm data formats`: what files a domain reads, and the options of each, as their readers say."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from seqmlm import plugins

_ARGUMENT = re.compile(r"^    (\w+(?:, \w+)*): ")  # an entry of the section "Args:" of a docstring


@dataclass(frozen=True, kw_only=True)
class FormatFacts:
    """One format: the name endings that mean it, whether a folder can be one, and its options."""

    name: str
    reads: str
    suffixes: tuple[str, ...]
    folder: bool
    options: tuple[OptionFacts, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class OptionFacts:
    """One option of a reader: `--option NAME=VALUE`."""

    name: str
    default: Any
    meaning: str


def formats(domain: str) -> list[FormatFacts]:
    """The formats of a domain, the first being the one assumed where a file's name says nothing.

    Raises:
        UsageError: an unknown domain.
    """
    found = []
    for name, format in plugins.domain(domain).all_formats.items():
        reader = format.read.func if isinstance(format.read, partial) else format.read
        meanings = _meanings(reader)
        parameters = inspect.signature(format.read).parameters
        options = tuple(
            OptionFacts(name=key, default=parameters[key].default, meaning=meanings.get(key, ""))
            for key in format.options()
        )
        first = (inspect.getdoc(reader) or "").split("\n\n")[0]
        found.append(
            FormatFacts(
                name=name,
                reads=" ".join(first.split()),
                suffixes=format.suffixes,
                folder=format.folder is not None,
                options=options,
            )
        )
    return found


def _meanings(reader: Callable[..., Any]) -> Mapping[str, str]:
    """What the section "Args:" of a docstring says of each argument."""
    meanings: dict[str, str] = {}
    names: list[str] = []
    inside = False
    for line in (inspect.getdoc(reader) or "").splitlines():
        if not line.startswith(" ") and line:
            inside = line.strip() == "Args:"
            continue
        entry = _ARGUMENT.match(line) if inside else None
        if entry:
            names = entry[1].split(", ")
            meanings.update(dict.fromkeys(names, line[entry.end() :]))
        elif inside:
            for name in names:
                meanings[name] = f"{meanings[name]} {line.strip()}".strip()
    return meanings
