"""Tokenizers of imported checkpoints: any saved Hugging Face fast tokenizer, with units and spans."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import tokenizers

from seqmlm.engine.types import TokenSpace
from seqmlm.errors import StateError, UsageError
from seqmlm.tokenizers.backend import BackendTokenizer, backend_content
from seqmlm.tokenizers.base import Tokenizer
from seqmlm.tokenizers.residue import TOKENS as RESIDUE_TOKENS
from seqmlm.tokenizers.residue import ResidueTokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


class HuggingFaceTokenizer(BackendTokenizer):
    """A saved fast tokenizer with its own special tokens; units are its pre-tokenizer's words.

    A tokenizer without pre-tokenizer (one letter a token) makes every token a unit.

    Args:
        fast: a Hugging Face fast tokenizer.

    Raises:
        UsageError: it is not a fast tokenizer, or has no mask or padding token.
    """

    name: ClassVar[str] = "huggingface.v1"

    def __init__(self, fast: PreTrainedTokenizerFast) -> None:
        backend = getattr(fast, "backend_tokenizer", None)
        if backend is None:
            raise UsageError(
                f"{type(fast).__name__} is a slow tokenizer (no tokenizer.json); save it as a fast one first"
            )
        super().__init__(backend, _space(fast, backend))
        self._fast = fast

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read a folder that a Hugging Face tokenizer was saved to; without our own card.

        Raises:
            StateError: the folder has no tokenizer.
            UsageError: it cannot be used (see the class).
        """
        return cls(_auto(str(directory)))

    def hf(self) -> PreTrainedTokenizerFast:
        return self._fast

    def _content(self) -> Any:
        return backend_content(self._backend)


def imported(reference: str | Path) -> Tokenizer:
    """The tokenizer of a checkpoint: a folder or a hub id.

    ESM's vocabulary comes back as `residue.v1` (its Hugging Face tokenizer is slow, has no spans and turns
    unknown letters into `<unk>`); every other as `huggingface.v1`.

    Raises:
        StateError: there is no tokenizer.
        UsageError: it cannot be used.
    """
    found = _auto(str(reference))
    vocabulary = found.get_vocab()
    if vocabulary == {token: number for number, token in enumerate(RESIDUE_TOKENS)}:
        return ResidueTokenizer()
    return HuggingFaceTokenizer(found)


def _auto(reference: str) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(reference)
    except Exception as error:  # transformers raises OSError, ValueError, KeyError and more
        raise StateError(f"no tokenizer could be read from {reference}: {error}") from None


def _space(fast: Any, backend: tokenizers.Tokenizer) -> TokenSpace:
    for role in ("mask_token_id", "pad_token_id"):
        if getattr(fast, role, None) is None:
            raise UsageError(
                f"the tokenizer has no {role.removesuffix('_id')}; masked language models need one"
            )
    start = fast.cls_token_id if fast.cls_token_id is not None else fast.bos_token_id
    end = fast.sep_token_id if fast.sep_token_id is not None else fast.eos_token_id
    # The post-processor may add neither: then sequences have no start and end token, despite their names.
    added = set(backend.encode("", add_special_tokens=True).ids)
    named = {fast.pad_token_id, fast.mask_token_id, fast.unk_token_id, start, end, *fast.all_special_ids}
    flagged = {number for number, token in backend.get_added_tokens_decoder().items() if token.special}
    return TokenSpace(
        size=max(backend.get_vocab(with_added_tokens=True).values()) + 1,
        pad=fast.pad_token_id,
        mask=fast.mask_token_id,
        unk=fast.unk_token_id,
        start=start if start in added else None,
        end=end if end in added else None,
        special=tuple(sorted((named | flagged) - {None})),
    )
