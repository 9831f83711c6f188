"""Find domains, tokenizers, maskers and tasks by name, through entry points. Built-in ones are also found so.

A third-party package adds a plug-in with an entry point in the group `seqmlm.domains`, `seqmlm.tokenizers`,
`seqmlm.maskers` or `seqmlm.tasks`. Names of tokenizers and maskers have a version ("span.v1"). Therefore a
stored config keeps its meaning when a default changes.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Literal

from seqmlm.errors import StateError, UsageError, nearest

if TYPE_CHECKING:
    from seqmlm.domains.field import Field
    from seqmlm.tokenizers.base import Tokenizer

Kind = Literal["domains", "tokenizers", "maskers", "tasks"]

MOVED = {"kmer": "dnabert", "kmer_span": "dnabert"}
"""Plug-ins that used to be built in: name without version -> folder of `examples` that contains it now."""


@cache
def entries(kind: Kind) -> dict[str, EntryPoint]:
    """The plug-ins of this installation, by name. Nothing is imported."""
    return {entry.name: entry for entry in entry_points(group=f"seqmlm.{kind}")}


def names(kind: Kind) -> list[str]:
    """The plug-in names of this installation, sorted. Nothing is imported."""
    return sorted(entries(kind))


def load(kind: Kind, name: str) -> Any:
    """Import the plug-in with this name.

    Raises:
        UsageError: no plug-in of this kind has the name.
        StateError: the plug-in is declared but cannot be imported.
    """
    declared = entries(kind)
    if name not in declared:
        if folder := MOVED.get(name.removesuffix(".v1")):
            source = f"run `pip install ./examples/{folder}` in the source of seqmlm"
            raise UsageError(f"{kind[:-1]} {name!r} needs the plug-in seqmlm-{folder}: {source}")
        near = declared if ".v" in name else {entry.partition(".v")[0] for entry in declared}
        raise UsageError(f"unknown {kind[:-1]} {name!r}{nearest(name, near)}")
    try:
        return declared[name].load()
    except Exception as error:
        plugin = f"{kind[:-1]} {name!r} ({declared[name].value})"
        raise StateError(f"{plugin} cannot be imported: {error!r}; reinstall or remove it") from error


def domain(name: str) -> Field:
    """The domain object with this name."""
    field: Field = load("domains", name)
    return field


def tokenizer_class(name: str) -> type[Tokenizer]:
    """The tokenizer class with this name. Without a version, the newest is used ("bpe" is "bpe.v1")."""
    kind: type[Tokenizer] = load("tokenizers", versioned("tokenizers", name))
    return kind


def versioned(kind: Kind, name: str) -> str:
    """Complete a name without a version with the newest installed version."""
    return newest(entries(kind), name)


def newest(names: Collection[str], name: str) -> str:
    """Complete a name without a version with the newest version in `names`.

    An unknown name is returned as it is.
    >>> newest(["bpe.v1", "bpe.v2"], "bpe"), newest(["bpe.v1", "bpe.v2"], "bpe.v1")
    ('bpe.v2', 'bpe.v1')
    """
    if name in names:
        return name
    versions = [version for version in names if version.rpartition(".v")[0] == name]
    return max(versions, key=lambda version: int(version.rpartition(".v")[2])) if versions else name
