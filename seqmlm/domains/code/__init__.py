"""The code domain: work trees, files and notebooks in, lexer tokens as units.

A record is a file: what a name means is decided by its file, and a window cuts between tokens. Masks go by
token class and hide an identifier at all its places half of the time, because most of code is punctuation
that is easy and names that can be copied. Only the first layer looks beyond the nearest tokens: that learns
fastest, and exact scores then cost little.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from seqmlm.anomaly.levels import Level
from seqmlm.data.files import stem_suffix
from seqmlm.data.record import Record
from seqmlm.domains.code.collections import read_code_json, read_notebook
from seqmlm.domains.code.levels import LEVELS
from seqmlm.domains.code.lexers.source import LANGUAGES, SourceText
from seqmlm.domains.code.source import read_source
from seqmlm.domains.code.worktree import JSON, NOTEBOOK, read_worktree, worktree_files
from seqmlm.domains.content import CODE as SOURCE
from seqmlm.domains.field import BuiltInSample, Changes, Defaults, Field, Gaps, Text, chapter, shows
from seqmlm.domains.files import Format, Reading, dataset_format
from seqmlm.engine.masking.base import MaskingConfig
from seqmlm.errors import DataError

if TYPE_CHECKING:
    from seqmlm.reports.pictures import Picture


class Sources(Text):
    """Source text, of a language where one is known."""

    columns: ClassVar[Mapping[str, str]] = {"text": "string", "language": "string"}

    def of_text(self, text: str, fields: Mapping[str, Any]) -> str:
        """Source text of the language that the row, or an option, names; else text alone."""
        language = str(fields.get("language") or "")
        return SourceText(text, language) if language else text

    def with_text(self, raw: Any, text: str) -> Any:
        """Another text in the same language."""
        return SourceText(text, raw.language) if isinstance(raw, SourceText) else text

    def file_text(self, sequences: Iterable[tuple[str, Any]]) -> Iterator[str]:
        """Source text, one behind the other."""
        return (f"{raw}\n" for _, raw in sequences)

    def language(self, raw: Any) -> str:
        return getattr(raw, "language", "")

    def row(self, record: Record) -> dict[str, Any]:
        return {"text": str(record.raw), "language": self.language(record.raw)}


def _no_table(path: str) -> None:
    """Refuse a table that is named: as one source file its rows would be lines of code."""
    if stem_suffix(path) in (".csv", ".tsv", ".xls", ".xlsx", ".ods"):
        remedy = 'write lines of {"code": "...", "id": "..."} to a .jsonl file, other columns beside them'
        reason = "code is read from source files, JSON lines and Parquet, not from such tables"
        raise DataError(reason, source=path, remedy=remedy)


def _pictures(level: Level) -> Sequence[Picture]:
    from seqmlm.domains.code.picture import SourceLines

    return (SourceLines(),)


def _shows(row: Mapping[str, Any], anomaly: Mapping[str, Any]) -> bool:
    """Whether a row shows an anomaly; rows of classes and modules leave it to the rows of their functions."""
    return row.get("kind") not in ("class", "module") and shows(row, anomaly)


CODE = Field(
    name="code",
    title="Source code: work trees, files, notebooks",
    unit="lexer token",
    formats={
        "source": Format(
            read=read_source,
            suffixes=tuple(s for suffixes in LANGUAGES.values() for s in suffixes),
            scoring={"generated": True},
        ),
        "notebook": Format(read=read_notebook, suffixes=NOTEBOOK),
        "json": Format(read=read_code_json, suffixes=JSON),
        "worktree": Format(
            read=read_worktree, folder=Path.is_dir, files=worktree_files, scoring={"near_duplicates": 0.0}
        ),
    },
    reading=Reading(dataset=dataset_format(read_code_json), usual=_no_table, content=(SOURCE,)),
    defaults=Defaults(
        tokenizer="code.v1",
        masking=MaskingConfig(masker="token_class.v1", rate=0.3, mask=0.8, random=0.1, keep=0.1),
        size="small",
        max_length=512,
        model={"layers": "nearby.v1", "initialization": "unigram.v1"},
        validation=0.1,  # of packages, which are few and unequal
    ),
    text=Sources(),
    levels=LEVELS,  # line (what a reviewer reads), token, function, file
    pictures=_pictures,
    gaps=Gaps(text=Sources()),
    structure=chapter(__name__, "structure.SyntaxDecoder"),
    changes=Changes(level="line", read=chapter(__name__, "changes.read_changes")),
    sample=BuiltInSample(write=chapter(__name__, "sample.write"), planted_in="file", shows=_shows),
)
