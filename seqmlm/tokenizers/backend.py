"""Convert encodings of the `tokenizers` library to ours: ids, units and spans, for any fast tokenizer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import tokenizers

from seqmlm.engine.types import SPECIAL_GROUP, Encoding, Ids, TokenSpace
from seqmlm.errors import StateError, UsageError
from seqmlm.tokenizers.base import Tokenizer, Traits, Unknown, split_encodings
from seqmlm.tokenizers.spelling import Spelling


class Pieces(Spelling):
    """The spelling of word pieces, from the decoder of a `tokenizers.Tokenizer`.

    Args:
        tokens: (V,) the vocabulary.
        backend: the tokenizer.
        space: the special ids.
    """

    def __init__(self, tokens: Sequence[str], backend: tokenizers.Tokenizer, space: TokenSpace) -> None:
        super().__init__(tokens)
        self._backend, self._space = backend, space
        self._alone: dict[int, bool] = {}

    def surface(self, token: int) -> str:
        """The text of an id inside a sentence, without outer spaces."""
        if self._space.is_special[token]:
            return self.tokens[token]
        return self.text_of_tokens([token]).removeprefix("##")

    def text_of_tokens(self, tokens: Sequence[int]) -> str:
        decoder, texts = self._backend.decoder, [self.tokens[token] for token in tokens]
        text: str = "".join(texts) if decoder is None else decoder.decode(texts)
        return text.strip()

    def unit_text(self, token: int) -> str | None:
        """The text of an id if that text, after a word, is encoded as this id; else None."""
        if self._space.is_special[token]:
            return None
        text = self.surface(token)
        if self._backend.pre_tokenizer is None:
            return text
        if token not in self._alone:
            self._alone[token] = bool(text) and any(
                self._ends_with(context + text, token) for context in ("a ", "a")
            )
        return text if self._alone[token] else None

    def _ends_with(self, text: str, token: int) -> bool:
        """Whether the last word of a text is only this token."""
        encoding = self._backend.encode(text, add_special_tokens=False)
        words = encoding.word_ids
        return bool(words) and encoding.ids[-1] == token and words.count(words[-1]) == 1


class BackendTokenizer(Tokenizer):
    """A tokenizer based on a `tokenizers.Tokenizer`. The units are its pre-tokens (words).

    Args:
        backend: the trained tokenizer. Its post-processor adds the special tokens.
        space: the size of its vocabulary, and its special ids.

    Class attributes:
        divided: whether a text is divided at a gap, as the library divides it at a special token. The parts
            are then encoded separately. Otherwise the gap is encoded as an unknown word.
        pieces: the class that spells its ids.

    A special token in a raw text ("[MASK]") is normal text. Data cannot inject special tokens.
    """

    traits: ClassVar[Traits] = Traits(unit="word")
    divided: ClassVar[bool] = False
    pieces: ClassVar[type[Pieces]] = Pieces

    def __init__(self, backend: tokenizers.Tokenizer, space: TokenSpace) -> None:
        self._backend = tokenizers.Tokenizer.from_str(backend.to_str())
        self._backend.no_truncation()
        self._backend.no_padding()
        self._backend.encode_special_tokens = True
        # Without a pre-tokenizer, the library treats the whole text as one word. Each token is then a unit.
        self._has_words = self._backend.pre_tokenizer is not None
        self.space = space
        tokens = [""] * space.size
        for token, number in self._backend.get_vocab(with_added_tokens=True).items():
            tokens[number] = token
        self.tokens = tuple(tokens)
        self.spelling = self.pieces(self.tokens, self._backend, space)
        if self.divided:
            self.spelling.encode_gaps = self._encode_gaps
        surfaces = map(self.spelling.surface, range(space.size))
        self._is_blank = np.array([not text for text in surfaces], dtype=np.bool_)

    def encode_batch(self, raws: Sequence[str]) -> list[Encoding]:
        """Encode texts in parallel threads. Groups are word numbers; spans are characters of the raw text.

        If one character takes several tokens, all of them have the span of this character. Spans do not
        include white space before a word. A token that is only white space therefore has an empty span.
        """
        return self._encoded(raws)[0]

    def _encode_gaps(self, raws: Sequence[str]) -> list[Encoding]:
        return self._encoded(raws, self._with_gaps)[0]

    @cached_property
    def _with_gaps(self) -> tokenizers.Tokenizer:
        """The backend with one more token, for a gap. It includes spaces as the mask token does."""
        backend = tokenizers.Tokenizer.from_str(self._backend.to_str())
        backend.encode_special_tokens = True
        mask_token = backend.get_added_tokens_decoder().get(self.space.mask)
        sides = {"lstrip": mask_token.lstrip, "rstrip": mask_token.rstrip} if mask_token is not None else {}
        backend.add_tokens([tokenizers.AddedToken(Spelling.stand_in, normalized=False, **sides)])
        return backend

    def _encoded(
        self, raws: Sequence[str], backend: tokenizers.Tokenizer | None = None
    ) -> tuple[list[Encoding], list[Any]]:
        """Our encodings, and the encodings of the library. Tokens that only the backend has become [MASK]."""
        encodings = (backend or self._backend).encode_batch(list(raws))
        ids, starts = _concatenate([encoding.ids for encoding in encodings])
        ids[ids >= self.space.size] = self.space.mask
        offsets = chain.from_iterable(chain.from_iterable(encoding.offsets for encoding in encodings))
        spans = np.fromiter(offsets, dtype=np.int32, count=2 * len(ids)).reshape(-1, 2)
        _trim(spans, raws, starts)
        groups = self._groups(encodings, ids, starts)
        self._empty_blanks(ids, groups, spans)
        return split_encodings(pairwise(starts.tolist()), ids, groups, spans), encodings

    def _empty_blanks(self, ids: Ids, groups: Ids, spans: Ids) -> None:
        """Give each token that is only a space an empty span at the start of its word; in place."""
        blank = np.flatnonzero(self._is_blank[ids])
        spans[blank, 1] = spans[blank, 0]
        leading = blank[groups[blank] == groups[np.minimum(blank + 1, len(groups) - 1)]]
        leading = leading[leading + 1 < len(groups)]
        spans[leading] = spans[leading + 1, :1]

    def _groups(self, encodings: Sequence[Any], ids: Ids, starts: Ids) -> Ids:
        if self._has_words:
            groups = word_numbers(chain.from_iterable(encoding.word_ids for encoding in encodings))
        else:
            offsets = np.repeat(starts[:-1], np.diff(starts))
            groups = np.arange(len(ids), dtype=np.int32) - offsets.astype(np.int32)
        groups[self.space.is_special[ids]] = SPECIAL_GROUP
        return groups

    def unknown(self, raw: str) -> list[Unknown]:
        """The words that become the unknown token."""
        encoding = self.encode(raw)
        assert encoding.spans is not None
        places = encoding.spans[encoding.ids == self.space.unk] if self.space.unk is not None else []
        return [Unknown(int(start), raw[start:end]) for start, end in places]


def word_numbers(words: Iterable[int | None]) -> Ids:
    """The word number of each token; -1 for special tokens."""
    # The conversion to float makes None (a special token) NaN; this is the fastest way in numpy.
    return np.nan_to_num(np.array([*words], dtype=np.float64), nan=SPECIAL_GROUP).astype(np.int32)


def read_backend(directory: Path) -> tokenizers.Tokenizer:
    """The `tokenizer.json` of a saved tokenizer.

    Raises:
        StateError: the file cannot be read.
    """
    try:
        return tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    except Exception as error:  # the library raises bare Exceptions
        raise StateError(f"{directory / 'tokenizer.json'} cannot be read: {error}") from None


def backend_content(backend: tokenizers.Tokenizer) -> Any:
    """The content of a backend that determines ids, as JSON: without truncation, padding and file version."""
    content = json.loads(backend.to_str())
    return {key: value for key, value in content.items() if key not in ("version", "truncation", "padding")}


def _trim(spans: Ids, raws: Sequence[str], starts: Ids) -> None:
    """Move the starts of (T, 2) spans past white space, in place. A word does not include its space."""
    text = np.frombuffer(("".join(raws) + "\0").encode("utf-32-le", errors="surrogatepass"), dtype=np.uint32)
    is_space = (text == 32) | ((text >= 9) & (text <= 13)) | (text == 0xA0) | (text == 0x3000)
    bases = np.zeros(len(raws) + 1, dtype=np.int64)
    np.cumsum([len(raw) for raw in raws], out=bases[1:])
    at = np.repeat(bases[:-1], np.diff(starts)) + spans[:, 0]
    rows = np.flatnonzero((spans[:, 0] < spans[:, 1]) & is_space[at])
    while len(rows):
        spans[rows, 0] += 1
        at[rows] += 1
        rows = rows[(spans[rows, 0] < spans[rows, 1]) & is_space[at[rows]]]


def _concatenate(lists: Sequence[Sequence[int]]) -> tuple[Ids, Ids]:
    """All lists joined, and the (N + 1,) offsets of their starts."""
    starts = np.zeros(len(lists) + 1, dtype=np.int32)
    np.cumsum([len(part) for part in lists], out=starts[1:])
    return np.fromiter(chain.from_iterable(lists), dtype=np.int32, count=int(starts[-1])), starts


def checkpoint_space(fast: Any) -> TokenSpace:
    """The ids of a Hugging Face fast tokenizer, and which of them are special.

    Raises:
        UsageError: the tokenizer has no mask or padding token.
    """
    backend = fast.backend_tokenizer
    for role in ("mask_token_id", "pad_token_id"):
        if getattr(fast, role, None) is None:
            raise UsageError(
                f"the tokenizer has no {role.removesuffix('_id')}; masked language models need one"
            )
    start = fast.cls_token_id if fast.cls_token_id is not None else fast.bos_token_id
    end = fast.sep_token_id if fast.sep_token_id is not None else fast.eos_token_id
    # The post-processor may add neither. Sequences then have no start and end token, despite the names.
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
