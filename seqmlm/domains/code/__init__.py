"""The code domain: work trees, files and notebooks in, lexer tokens as units."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from seqmlm.anomaly.levels import Level
from seqmlm.data.record import Record
from seqmlm.domains.base import Changed, Domain, DomainDefaults, Format, dataset_format
from seqmlm.domains.code.collections import read_code_json, read_notebook
from seqmlm.domains.code.levels import LEVELS
from seqmlm.domains.code.source import read_source
from seqmlm.domains.code.worktree import JSON, NOTEBOOK, read_worktree, worktree_files
from seqmlm.engine.masking.base import MaskingConfig
from seqmlm.tokenizers.lexers.source import LANGUAGES, SourceText

if TYPE_CHECKING:
    from seqmlm.data.problems import Problems
    from seqmlm.reports.pictures import Picture


class CodeDomain(Domain):
    """Source code, a record a file: what a name means is decided by its file, and a window cuts between
    tokens.

    Masks go by token class and hide an identifier at all its places half of the time, because most of code is
    punctuation that is easy and names that can be copied. Only the first layer looks beyond the nearest
    tokens: that learns fastest, and exact scores then cost little.
    """

    name: ClassVar[str] = "code"
    changes_level: ClassVar[str] = "line"
    planted_in: ClassVar[str] = "file"
    title: ClassVar[str] = "Source code: work trees, files, notebooks"
    unit: ClassVar[str] = "lexer token"
    structure: ClassVar[str] = "SyntaxDecoder"
    formats: ClassVar[Mapping[str, Format]] = {
        "source": Format(
            read=read_source,
            suffixes=tuple(s for own in LANGUAGES.values() for s in own),
            scoring={"generated": True},
        ),
        "notebook": Format(read=read_notebook, suffixes=NOTEBOOK),
        "json": Format(read=read_code_json, suffixes=JSON),
        "worktree": Format(
            read=read_worktree, folder=Path.is_dir, files=worktree_files, scoring={"near_duplicates": 0.0}
        ),
    }
    dataset: ClassVar[Format] = dataset_format(read_code_json)
    columns: ClassVar[Mapping[str, str]] = {"text": "string", "language": "string"}
    defaults: ClassVar[DomainDefaults] = DomainDefaults(
        tokenizer="code.v1",
        masking=MaskingConfig(masker="token_class.v1", rate=0.3, mask=0.8, random=0.1, keep=0.1),
        size="small",
        max_length=512,
        model={"layers": "nearby.v1", "initialization": "unigram.v1"},
        validation=0.1,  # of packages, which are few and unequal
    )

    @property
    def levels(self) -> tuple[Level, ...]:
        """Line (what a reviewer reads), token, function, file."""
        return LEVELS

    def pictures(self, level: Level) -> Sequence[Picture]:
        """Numbered lines with their surprisal in a gutter."""
        from seqmlm.domains.code.picture import SourceLines

        return (SourceLines(),)

    def of_text(self, text: str, fields: Mapping[str, Any]) -> str:
        """Source text of the language that the row, or an option, names; else text alone."""
        language = str(fields.get("language") or "")
        return SourceText(text, language) if language else text

    def written(self, sequences: Iterable[tuple[str, Any]]) -> Iterator[str]:
        """Source text, one behind the other."""
        yield from (f"{raw}\n" for _, raw in sequences)

    def respelled(self, raw: Any, text: str) -> Any:
        """Another text in the same language."""
        return SourceText(text, raw.language) if isinstance(raw, SourceText) else text

    def changes(
        self, root: Path, problems: Problems, *, since: str | None = None, diff: Path | None = None
    ) -> Iterator[Changed]:
        """The files that a git revision, or a unified diff, differs in."""
        from seqmlm.domains.code.changes import read_changes

        return read_changes(root, problems, since=since, diff=diff)

    def shows(self, row: Mapping[str, Any], anomaly: Mapping[str, Any]) -> bool:
        """As `Domain.shows`; rows of classes and modules leave out what their functions have."""
        return row.get("kind") not in ("class", "module") and super().shows(row, anomaly)

    def row(self, record: Record) -> dict[str, Any]:
        """The text and its language."""
        return {"text": str(record.raw), "language": getattr(record.raw, "language", "")}


CODE = CodeDomain()
