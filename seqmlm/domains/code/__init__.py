"""The code domain: work trees, files and notebooks in, lexer tokens as units."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from seqmlm.anomaly.levels import Level
from seqmlm.domains.base import Domain, DomainDefaults, Format, Sample
from seqmlm.domains.code.collections import read_code_json, read_notebook
from seqmlm.domains.code.levels import LEVELS
from seqmlm.domains.code.source import read_source
from seqmlm.domains.code.worktree import JSON, NOTEBOOK, read_worktree, worktree_files
from seqmlm.engine.masking.base import MaskingConfig
from seqmlm.tokenizers.lexers.source import LANGUAGES


class CodeDomain(Domain):
    """Source code, a record a file: what a name means is decided by its file, and a window cuts between
    tokens.

    Masks go by token class and hide an identifier at all its places half of the time, because most of code is
    punctuation that is easy and names that can be copied.
    """

    name: ClassVar[str] = "code"
    title: ClassVar[str] = "Source code: work trees, files, notebooks"
    unit: ClassVar[str] = "lexer token"
    formats: ClassVar[Mapping[str, Format]] = {
        "source": Format(read=read_source, suffixes=tuple(s for own in LANGUAGES.values() for s in own)),
        "notebook": Format(read=read_notebook, suffixes=NOTEBOOK),
        "json": Format(read=read_code_json, suffixes=JSON),
        "worktree": Format(read=read_worktree, folder=Path.is_dir, files=worktree_files),
    }
    defaults: ClassVar[DomainDefaults] = DomainDefaults(
        tokenizer="code.v1",
        masking=MaskingConfig(masker="token_class.v1", rate=0.15, mask=0.8, random=0.1, keep=0.1),
        size="small",
        max_length=512,
        validation=0.1,  # of packages, which are few and unequal
    )

    @property
    def levels(self) -> tuple[Level, ...]:
        """Line (what a reviewer reads), token, function, file."""
        return LEVELS

    def sample(self, out: Path, *, n: int | None = None, seed: int = 0) -> Sample:
        """Python modules of small packages with a few planted bugs; n modules, 400 by default."""
        from seqmlm.domains.code import sample

        return sample.write(out, n, seed)


CODE = CodeDomain()
