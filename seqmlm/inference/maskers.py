"""Create the masker that a card or a config names, for a tokenizer."""

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
    """Create the masker that a config names.

    For every masker, the option `words` may contain words as text, and `words_file` is a file with one word
    per line. Both are converted to the tokenizer's ids. The tokenizer also provides what a masker must know
    about the vocabulary.

    Raises:
        UsageError: a masker or option is unknown, a word list cannot be read, or the masker cannot hide units
            that several tokens show.
    """
    options = inline_words(config.options)
    if "words" in options:
        words = options["words"]
        options["words"] = [_word_ids(word, tokenizer) if isinstance(word, str) else word for word in words]
    kind = plugins.load("maskers", config.masker)
    if (reason := tokenizer.units.masker_problem(kind)) is not None:
        raise UsageError(reason)
    facts = tokenizer.units.facts.masking
    parameters = inspect.signature(kind).parameters
    options = {name: facts[name] for name in parameters if name in facts} | options
    return base.make_masker(kind, replace(config, options=options), tokenizer.space)


def inline_words(options: Mapping[str, Any]) -> dict[str, Any]:
    """Masker options with the words of `words_file` in `words`, so that a stored config needs no file.

    Raises:
        UsageError: the file cannot be read.
    """
    inlined = dict(options)
    if "words_file" in inlined:
        path = inlined.pop("words_file")
        try:
            lines = Path(path).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            problem = f"cannot read {path} ({error}); write one word per line"
            raise UsageError(f"masking.options.words_file: {problem}") from None
        words = [line.strip() for line in lines if line.strip() and not line.startswith(("#", ";"))]
        inlined["words"] = [*inlined.get("words", ()), *words]
    return inlined


def _word_ids(word: str, tokenizer: Tokenizer) -> list[int]:
    encoding = tokenizer.encode(word)
    return [int(token) for token in encoding.ids[encoding.groups >= 0]]
