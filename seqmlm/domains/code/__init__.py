"""The field of source code: it reads work trees, files and notebooks, and its units are lexer tokens.

A record is a file, because the meaning of a name depends on its file. Windows are cut between tokens.

The masking rate depends on the class of a token. Half of the time, an identifier is masked at all its
occurrences. The reason is that most of code is punctuation, which is easy to predict, and names, which can be
copied. Only the first layer attends beyond the nearest tokens. This trains fastest, and exact scores are
cheap.
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
    """The text form of source code, with its language if it is known."""

    columns: ClassVar[Mapping[str, str]] = {"text": "string", "language": "string"}

    def of_text(self, text: str, fields: Mapping[str, Any]) -> str:
        """The text as source code of the language in `fields`, or plain text without a language."""
        language = str(fields.get("language") or "")
        return SourceText(text, language) if language else text

    def with_text(self, raw: Any, text: str) -> Any:
        """`text` as source code in the language of `raw`."""
        return SourceText(text, raw.language) if isinstance(raw, SourceText) else text

    def file_text(self, sequences: Iterable[tuple[str, Any]]) -> Iterator[str]:
        """The source texts, one after another."""
        return (f"{raw}\n" for _, raw in sequences)

    def language(self, raw: Any) -> str:
        return getattr(raw, "language", "")

    def row(self, record: Record) -> dict[str, Any]:
        return {"text": str(record.raw), "language": self.language(record.raw)}


def _no_table(path: str) -> None:
    """Refuse a table, because its rows would be read as lines of one source file."""
    if stem_suffix(path) in (".csv", ".tsv", ".xls", ".xlsx", ".ods"):
        remedy = (
            'write a .jsonl file with lines such as {"code": "...", "id": "..."} and other columns as keys'
        )
        reason = "source code cannot be read from such tables, only from source files, JSON lines and Parquet"
        raise DataError(reason, source=path, remedy=remedy)


def _pictures(level: Level) -> Sequence[Picture]:
    from seqmlm.domains.code.picture import SourceLines

    return (SourceLines(),)


def _shows(row: Mapping[str, Any], anomaly: Mapping[str, Any]) -> bool:
    """Whether a row shows an anomaly. Rows of classes and modules do not: their functions have rows."""
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
        validation=0.1,  # a large share, because whole packages are held out, and they are few and unequal
    ),
    text=Sources(),
    levels=LEVELS,  # line first, because a reviewer reads lines; then token, function and file
    pictures=_pictures,
    gaps=Gaps(text=Sources()),
    structure=chapter(__name__, "structure.SyntaxDecoder"),
    changes=Changes(level="line", read=chapter(__name__, "changes.read_changes")),
    sample=BuiltInSample(write=chapter(__name__, "sample.write"), planted_in="file", shows=_shows),
)
