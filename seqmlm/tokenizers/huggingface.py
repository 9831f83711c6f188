"""Tokenizers for imported checkpoints: any saved Hugging Face fast tokenizer, with units and spans."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import numpy as np

from seqmlm.engine import foreign
from seqmlm.engine.types import Encoding
from seqmlm.errors import StateError, UsageError, number_of
from seqmlm.parsing import LARGEST_JSON, read_json, word_list
from seqmlm.tokenizers.backend import BackendTokenizer, backend_content, checkpoint_space
from seqmlm.tokenizers.base import CHECKPOINT_CONTENT, CHECKPOINT_SETTINGS, ForeignVocabulary, Tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast


FEWEST_LETTERS = 20
"""With fewer letters, no error reports that a tokenizer cannot read an input."""

MANY_LETTERS = 500
"""After this many letters of an input, unreadable text is refused without reading the rest."""

LEAST_READ = 0.05
"""A tokenizer cannot read a text if its share of known tokens is at most this."""


class HuggingFaceTokenizer(ForeignVocabulary, BackendTokenizer):
    """A saved fast tokenizer with its own special tokens. Units are the words of its pre-tokenizer.

    If a tokenizer has no pre-tokenizer (one letter per token), every token is a unit.

    Args:
        fast: a Hugging Face fast tokenizer.

    Raises:
        UsageError: the tokenizer is not a fast tokenizer, or has no mask or padding token.
    """

    name: ClassVar[str] = "huggingface.v1"
    divided: ClassVar[bool] = True  # as Hugging Face divides it

    def __init__(self, fast: PreTrainedTokenizerFast) -> None:
        backend = getattr(fast, "backend_tokenizer", None)
        if backend is None:
            raise UsageError(
                f"{type(fast).__name__} is a slow tokenizer (no tokenizer.json); save it as a fast one first"
            )
        super().__init__(backend, checkpoint_space(fast))
        self._fast = fast
        self._letters = self._tokens = self._ordinary = 0  # of texts so far; tokens without special ones

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read the folder of a saved Hugging Face tokenizer. Our own card is not needed.

        Raises:
            StateError: the folder has no tokenizer.
            UsageError: it cannot be used (see the class).
        """
        return cls(_auto(str(directory)))

    def encode_batch(self, raws: Sequence[str]) -> list[Encoding]:
        """Encode texts as the checkpoint's tokenizer does.

        Raises:
            UsageError: nearly all tokens of the first `MANY_LETTERS` letters are unknown, and `refuses` is
                True.
        """
        encodings = super().encode_batch(raws)
        if encodings and (self._letters < MANY_LETTERS or self.unread()):
            self._count(raws, encodings)
            if self.refuses and self._letters >= MANY_LETTERS and (reason := self.unread()):
                raise UsageError(reason)
        return encodings

    def _count(self, raws: Sequence[str], encodings: Sequence[Encoding]) -> None:
        """Count the letters, tokens and known tokens of some texts."""
        self._letters += sum(len("".join(raw.split())) for raw in raws)
        tokens = np.concatenate([encoding.ids for encoding in encodings])
        tokens = tokens[
            ~np.isin(tokens, [number for number in self.space.special if number != self.space.unk])
        ]
        self._tokens += len(tokens)
        self._ordinary += int((tokens != self.space.unk).sum())

    def unread(self) -> str:
        """Why the tokenizer cannot read the texts so far; "" if it can.

        Without known tokens, all results would be equal.
        """
        if self._letters < FEWEST_LETTERS or self._ordinary > LEAST_READ * self._tokens:
            return ""
        return (
            f"{self._tokens - self._ordinary:,} of {number_of(self._tokens, 'token')} are unknown: the "
            "checkpoint was made for another kind of data; use a checkpoint whose vocabulary has these "
            "units, or check --domain"
        )

    def hf(self) -> PreTrainedTokenizerFast:
        return self._fast

    def _content(self) -> Any:
        return backend_content(self._backend)


class CheckpointReader(Protocol):
    """A tokenizer class that recognises checkpoints with a suitable vocabulary."""

    @classmethod
    def of_checkpoint(cls, checkpoint: PreTrainedTokenizerBase) -> Tokenizer | None:
        """The tokenizer of a checkpoint; None if its vocabulary is not suitable."""


def checkpoint_tokenizer(reference: str | Path, readers: Sequence[type[CheckpointReader]] = ()) -> Tokenizer:
    """The tokenizer of a checkpoint: from the first reader that recognises it, or `huggingface.v1`.

    Args:
        reference: a folder or hub id.
        readers: tokenizer classes of the field, best first (see `Defaults.checkpoints`).

    Raises:
        StateError: the checkpoint has no tokenizer.
        UsageError: the tokenizer cannot be used.
    """
    checkpoint = _auto(str(reference))
    for reader in readers:
        tokenizer = reader.of_checkpoint(checkpoint)
        if tokenizer is not None:
            return tokenizer
    return HuggingFaceTokenizer(checkpoint)


# Settings of a tokenizer that change its ids, in addition to names that end in "_token". Other settings (chat
# templates, other files, arguments of other classes) are not read.
_SETTINGS = word_list(
    """tokenizer_class model_max_length do_lower_case strip_accents tokenize_chinese_chars do_basic_tokenize
    never_split add_prefix_space trim_offsets keep_accents remove_space errors added_tokens_decoder
    additional_special_tokens extra_special_tokens split_special_tokens clean_up_tokenization_spaces
    model_specific_special_tokens backend"""
)
_CLASS = re.compile(r"\w*Tokenizer(Fast)?|TokenizersBackend")


def _auto(reference: str) -> Any:
    """The tokenizer that transformers makes from its files. They are copied to a folder without other files.

    Raises:
        StateError: there is no tokenizer, it needs code of its own, or its files are damaged.
    """
    from transformers import AutoTokenizer

    with TemporaryDirectory(prefix="seqmlm-tokenizer-") as folder:
        try:
            _copy_known(reference, Path(folder))
            tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        except StateError:
            raise
        except Exception as error:  # transformers raises OSError, ValueError, KeyError and more
            reason = " ".join(str(error).replace(folder, reference).split())
            raise StateError(
                f"no tokenizer could be read from {reference}: {reason}; give a folder or hub id with a "
                "tokenizer.json"
            ) from None
    tokenizer.name_or_path = reference
    return tokenizer


def _copy_known(reference: str, folder: Path) -> None:
    """Copy the files of a tokenizer to an empty folder, with only known settings in its configs."""
    settings = {
        name: path for name in CHECKPOINT_CONTENT if (path := foreign.file_of(reference, name)) is not None
    }
    if not settings:  # transformers would make a tokenizer without words
        raise StateError(
            f"no tokenizer could be read from {reference}: it has no {CHECKPOINT_CONTENT[0]}; give a "
            "folder or hub id that has one"
        )
    for name, path in settings.items():
        if path.stat().st_size > LARGEST_JSON:
            raise StateError(f"{path} has more than {LARGEST_JSON} bytes: it is not a tokenizer")
        if path.suffix == ".json":
            with foreign.damaged_file_errors(path):
                read_json(path)
        shutil.copyfile(path, folder / name)
    for name in CHECKPOINT_SETTINGS:
        values = foreign.settings(reference, name)
        if values is not None:
            is_table = name == "added_tokens.json"  # a table of tokens, not of settings
            known_settings = values if is_table else {key: values[key] for key in values if _is_setting(key)}
            _write(reference, folder / name, known_settings)
    config = foreign.settings(reference)
    if config is not None:
        _write(reference, folder / foreign.CONFIG, {key: config[key] for key in _WANTED if key in config})


_WANTED = ("model_type", "tokenizer_class")


def _is_setting(key: str) -> bool:
    return key in _SETTINGS or key.endswith("_token")


def _write(reference: str, path: Path, values: Mapping[str, Any]) -> None:
    named = values.get("tokenizer_class")
    if named is not None and not (isinstance(named, str) and _CLASS.fullmatch(named)):
        raise StateError(
            f"{reference}: in {path.name}, tokenizer_class is {named!r}, which is not the name of a class; "
            "download or copy it again"
        )
    path.write_text(json.dumps(values, ensure_ascii=False), encoding="utf-8")
