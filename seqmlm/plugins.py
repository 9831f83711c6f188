"""Names to things: domains, tokenizers, maskers and tasks come through entry points, the built-in ones too.

A third-party package adds one by declaring an entry point in the group `seqmlm.domains`, `seqmlm.tokenizers`,
`seqmlm.maskers` or `seqmlm.tasks`. Names of tokenizers and maskers carry a version ("span.v1"), so that a
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
"""Names, without version, of what was built in once -> the folder of `examples` that has it now."""


@cache
def entries(kind: Kind) -> dict[str, EntryPoint]:
    """The plugins that this installation declares, by name; loads nothing."""
    return {entry.name: entry for entry in entry_points(group=f"seqmlm.{kind}")}


def names(kind: Kind) -> list[str]:
    """The names known in this installation, sorted; loads nothing."""
    return sorted(entries(kind))


def load(kind: Kind, name: str) -> Any:
    """Import what `name` stands for.

    Raises:
        UsageError: no plugin of that kind has the name.
        StateError: the plugin is declared but cannot be imported.
    """
    declared = entries(kind)
    if name not in declared:
        if folder := MOVED.get(name.removesuffix(".v1")):
            source = f"`pip install ./examples/{folder}` in the source of seqmlm installs it"
            raise UsageError(f"{kind[:-1]} {name!r} is in the plug-in seqmlm-{folder}, not here: {source}")
        near = declared if ".v" in name else {entry.partition(".v")[0] for entry in declared}
        raise UsageError(f"unknown {kind[:-1]} {name!r}{nearest(name, near)}")
    try:
        return declared[name].load()
    except Exception as error:
        plugin = f"{kind[:-1]} {name!r} ({declared[name].value})"
        raise StateError(f"{plugin} cannot be imported: {error!r}; reinstall or remove it") from error


def domain(name: str) -> Field:
    """The domain object called `name`."""
    field: Field = load("domains", name)
    return field


def tokenizer_class(name: str) -> type[Tokenizer]:
    """The tokenizer class called `name`; a missing version means the newest ("bpe" is "bpe.v1")."""
    kind: type[Tokenizer] = load("tokenizers", versioned("tokenizers", name))
    return kind


def versioned(kind: Kind, name: str) -> str:
    """Complete a name given without its version to the newest version there is."""
    return newest(entries(kind), name)


def newest(names: Collection[str], name: str) -> str:
    """Complete a name given without its version to the newest one of `names`; itself where there is none.

    >>> newest(["bpe.v1", "bpe.v2"], "bpe"), newest(["bpe.v1", "bpe.v2"], "bpe.v1")
    ('bpe.v2', 'bpe.v1')
    """
    if name in names:
        return name
    versions = [version for version in names if version.rpartition(".v")[0] == name]
    return max(versions, key=lambda version: int(version.rpartition(".v")[2])) if versions else name
