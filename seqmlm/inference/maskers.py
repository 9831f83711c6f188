"""A masker as the engine wants it: options that name words become token ids here."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from seqmlm import plugins
from seqmlm.engine.masking import base
from seqmlm.engine.masking.base import Masker, MaskingConfig
from seqmlm.errors import UsageError
from seqmlm.tokenizers.base import Tokenizer


def make_masker(config: MaskingConfig, tokenizer: Tokenizer) -> Masker:
    """Construct the masker a config names.

    Any masker's option `words` may hold words as text, and `words_file` names a file with one word a line;
    both are spelled in the tokenizer's ids. What a masker must know of the vocabulary, the tokenizer says.

    Raises:
        UsageError: an unknown masker or option, a word list that cannot be read, or a masker that cannot hide
            what several tokens show.
    """
    options = inline_words(config.options)
    if "words" in options:
        words = options["words"]
        options["words"] = [_spelled(word, tokenizer) if isinstance(word, str) else word for word in words]
    kind = plugins.load("maskers", config.masker)
    _check_overlap(kind, config.masker, tokenizer)
    facts = tokenizer.masking_facts
    known = inspect.signature(kind).parameters
    options = {name: facts[name] for name in known if name in facts} | options
    return base.make_masker(kind, replace(config, options=options), tokenizer.space)


def _check_overlap(kind: type[Masker], name: str, tokenizer: Tokenizer) -> None:
    """Refuse a masker that leaves what it hides visible in neighbouring tokens."""
    if tokenizer.overlap > 1 and not _hides_overlap(kind):
        fit = [one for one in plugins.names("maskers") if _hides_overlap(plugins.load("maskers", one))]
        raise UsageError(
            f"tokenizer {tokenizer.name} shows each {tokenizer.unit} in {tokenizer.overlap} neighbouring "
            f"tokens, and masker {name} would hide only some of them: use --masker {' or '.join(fit)}"
        )


def _hides_overlap(kind: type[Masker]) -> bool:
    return bool(getattr(kind, "hides_overlap", False))


def inline_words(options: Mapping[str, Any]) -> dict[str, Any]:
    """Masker options with the words of `words_file` in `words`, so that a stored config needs no file.

    Raises:
        UsageError: the file cannot be read.
    """
    inlined = dict(options)
    if "words_file" in inlined:
        words = _read_words(inlined.pop("words_file"))
        inlined["words"] = [*inlined.get("words", ()), *words]
    return inlined


def _read_words(path: str) -> list[str]:
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"masking.options.words_file: cannot read {path} ({error}); give one word a line"
        ) from None
    return [line.strip() for line in lines if line.strip() and not line.startswith(("#", ";"))]


def _spelled(word: str, tokenizer: Tokenizer) -> list[int]:
    encoding = tokenizer.encode(word)
    return [int(token) for token in encoding.ids[encoding.groups >= 0]]
