"""The tokenizer interface: raw sequences to ids, units and spans; save and load give equal ids."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from seqmlm.engine.types import Encoding, Floats, Ids, TokenSpace
from seqmlm.engine.units import Units
from seqmlm.errors import DataError, StateError, UsageError, nearest
from seqmlm.parsing import read_json, word_list
from seqmlm.tokenizers.spelling import Spelling

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

CARD = "seqmlm_tokenizer.json"
CHECKPOINT_CONTENT = word_list(
    "tokenizer.json vocab.txt vocab.json merges.txt spiece.model sentencepiece.bpe.model"
)
CHECKPOINT_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
CHECKPOINT_FILES = (*CHECKPOINT_CONTENT, *CHECKPOINT_SETTINGS)
"""What a tokenizer of a checkpoint is read from."""


class Unknown(NamedTuple):
    """A part of a raw sequence outside a tokenizer's alphabet.

    offset: where it starts in the raw sequence, 0-based, in characters (or in items, where raw is a list).
    text: the part itself.
    """

    offset: int
    text: str


class UnknownUnit(DataError):
    """A sequence contains something without an id; raised by `encode` and `encode_batch`.

    The tokenizer does not know the file, so `source` and `line` are None; the caller adds them with `at`.

    Args:
        unknown: the first unknown piece; the attribute is `found`.
        alphabet: the known symbols, for the remedy.
        index: number of the sequence inside the batch; 0 for `encode`.
    """

    def __init__(
        self,
        unknown: Unknown,
        *,
        alphabet: str,
        index: int = 0,
        source: str | None = None,
        line: int | None = None,
    ) -> None:
        self.found, self.alphabet, self.index = unknown, alphabet, index
        super().__init__(
            f"{unknown.text!r} is not in the alphabet {alphabet}",
            source=source,
            line=line,
            remedy=f"position {unknown.offset + 1} of the sequence; correct it, or leave it out",
        )

    def at(self, source: str, line: int | None) -> UnknownUnit:
        """The same error with file and line of the record."""
        return UnknownUnit(self.found, alphabet=self.alphabet, index=self.index, source=source, line=line)


@dataclass(frozen=True, kw_only=True)
class Traits:
    """Traits that every tokenizer of a class has.

    Args:
        unit: what it counts, as a person calls it ("word").
        trainable: its vocabulary is learnt (`train`).
        closed: a symbol outside the alphabet is an error rather than an unknown token.
        single_tokens: every unit is one token, so that counts of tokens say how frequent units are.
        reads: whether it can encode a raw value.
        sensitive_options: options of `train` that keep rare items out of the vocabulary.
    """

    unit: str
    trainable: bool = False
    closed: bool = False
    single_tokens: bool = False
    reads: Callable[[Any], bool] = lambda raw: isinstance(raw, str)
    sensitive_options: Mapping[str, Any] = field(default_factory=dict)


class ForeignVocabulary:
    """A part of tokenizers whose vocabulary may not be of the field: it counts what it cannot read."""

    refuses: bool = True
    """Whether `encode_batch` refuses many letters that the vocabulary cannot read. A follower of files that
    grow sets it to False: later lines may be readable."""

    def unread(self) -> str:
        """Why the vocabulary cannot read what was encoded so far, and what to do; "" where it can."""
        raise AssertionError("each such tokenizer says it")


class Tokenizer(ABC):
    """Turns raw sequences of one field into `Encoding`s, and keeps the vocabulary that gives ids a meaning.

    `cls()` (not trainable) and `cls.train(texts, **options)` construct one. It is registered by an entry
    point in `seqmlm.tokenizers`.

    Raw is a `str` wherever the field has text; a field with structured records (visits, events) takes those,
    and then `str(raw)` is the text that spans point into.
    """

    name: ClassVar[str]
    traits: ClassVar[Traits]

    space: TokenSpace
    """Size of the vocabulary and the special ids."""

    tokens: Sequence[str]
    """(V,) the vocabulary's string for each id."""

    options: Mapping[str, Any] = {}
    """The options it was constructed with, as plain values; saved with it."""

    channels: Mapping[str, Mapping[str, Any]] = {}
    """Name to kind of the further inputs in its encodings; see `seqmlm.engine.channels.Channel`."""

    @cached_property
    def units(self) -> Units:
        """How the field's units are hidden and read back from answers; here they are groups of tokens."""
        return Units(self.space)

    @cached_property
    def spelling(self) -> Spelling:
        """How ids are written in the field's text."""
        return Spelling(self.tokens)

    @abstractmethod
    def encode_batch(self, raws: Sequence[Any]) -> list[Encoding]:
        """Encode many sequences, special tokens included; no truncation, no padding.

        The arrays of one batch may be views of one buffer.

        Raises:
            UnknownUnit: the first sequence with something outside the alphabet (`index` says which), for
                tokenizers with a closed alphabet; the others use their unknown token or need none.
        """

    def encode(self, raw: Any) -> Encoding:
        """Encode one sequence; see `encode_batch`."""
        return self.encode_batch([raw])[0]

    def unknown(self, raw: Any) -> list[Unknown]:
        """Everything in `raw` that `encode` would refuse or replace by the unknown token, in order."""
        return []

    @classmethod
    def train(cls, texts: Iterable[Any], *, vocabulary_size: int | None = None, **options: Any) -> Self:
        """Learn a vocabulary.

        Args:
            texts: training text, read once; memory stays bounded however much there is.
            vocabulary_size: the largest number of ids; None fits it to the amount of text.
            options: the tokenizer's own.

        Raises:
            UsageError: this tokenizer's vocabulary is fixed (`trainable` is False).
        """
        raise UsageError(f"{cls.name} has a fixed vocabulary and is not trained; omit vocabulary_size")

    @abstractmethod
    def hf(self) -> PreTrainedTokenizerFast:
        """The same tokenizer as a Hugging Face fast tokenizer: equal ids for every sequence."""

    def _content(self) -> Any:
        """The content that determines ids besides name and options, as JSON values."""
        return list(self.tokens)

    def save(self, directory: Path) -> None:
        """Write `tokenizer.json` and `tokenizer_config.json` (for AutoTokenizer) and our own card."""
        directory.mkdir(parents=True, exist_ok=True)
        self.hf().save_pretrained(str(directory))
        _name_for_all_versions(directory / "tokenizer_config.json")
        card = {"name": self.name, "options": dict(self.options), "fingerprint": fingerprint(self)}
        (directory / CARD).write_text(json.dumps(card, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    @classmethod
    @abstractmethod
    def load(cls, directory: Path) -> Self:
        """Load what `save` wrote.

        Raises:
            StateError: the folder has no such tokenizer.
        """


class Growing(Tokenizer):
    """A tokenizer that can get ids for what later data have, and says what it decided about its data."""

    @abstractmethod
    def grown(self, texts: Iterable[Any]) -> Self:
        """This tokenizer with ids for what these texts have and it does not know, behind all ids it has.

        What it knows keeps its id.

        Args:
            texts: training text, read once.
        """

    @property
    @abstractmethod
    def facts(self) -> Mapping[str, str]:
        """Decisions on the fields of its training data, field to a few words; shown by inspection."""

    @abstractmethod
    def advice(self, counts: Sequence[int]) -> str | None:
        """Advice for data of which the vocabulary says little; None where it says enough.

        Args:
            counts: (V,) how often each token occurs there.
        """


def fingerprint(tokenizer: Tokenizer) -> str:
    """SHA-256, in hex, of everything that determines the ids."""
    content = [tokenizer.name, tokenizer.options, tokenizer._content()]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return sha256(text.encode()).hexdigest()


def of_length(tokenizer: Tokenizer, tokens: int | None = None) -> Tokenizer:
    """A tokenizer for rows of one length: others are refused, in training as in every use.

    Its places are columns, so that a row read backwards is no row: it has one strand.

    Args:
        tokens: of a row, start and end included; None for as many as the first row has.
    """
    shortened, rule = copy(tokenizer), copy(tokenizer.units)
    shortened.encode_batch = partial(_of_one_length, tokenizer, [tokens])  # type: ignore[method-assign]
    rule.facts = replace(rule.facts, strands=None)
    shortened.units = rule
    return shortened


def encode_symbols(tokenizer: Tokenizer, text: str) -> Encoding:
    """Encode symbols that are no row of data, whatever the length of rows; see `encode_batch`."""
    return type(tokenizer).encode_batch(tokenizer, [text])[0]


def space_of(special: Sequence[str], size: int) -> TokenSpace:
    """The space of a vocabulary that begins with special tokens, those of BERT (or but [UNK]) among them."""
    place = {token: number for number, token in enumerate(special)}
    return TokenSpace(
        size=size,
        pad=place["[PAD]"],
        mask=place["[MASK]"],
        unk=place.get("[UNK]"),
        start=place["[CLS]"],
        end=place["[SEP]"],
        special=tuple(place.values()),
    )


def split_encodings(
    bounds: Iterable[tuple[int, int]], ids: Ids, groups: Ids, spans: Ids, weights: Floats | None = None
) -> list[Encoding]:
    """Encodings as views of common arrays, one between each two bounds."""
    return [
        Encoding(
            ids=ids[a:b],
            groups=groups[a:b],
            spans=spans[a:b],
            weights=None if weights is None else weights[a:b],
        )
        for a, b in bounds
    ]


def _of_one_length(tokenizer: Tokenizer, length: list[int | None], raws: Sequence[Any]) -> list[Encoding]:
    """Encode rows of as many tokens as `length` holds, or else the first one has."""
    encodings = tokenizer.encode_batch(raws)
    if length[0] is None and encodings:
        length[0] = len(encodings[0])
    different = next((len(encoding) for encoding in encodings if len(encoding) != length[0]), None)
    if different is None:
        return encodings
    space = tokenizer.space
    edges = sum(token is not None for token in (space.start, space.end))
    raise DataError(
        f"a row of {different - edges} units, where a linear model reads rows of {(length[0] or 0) - edges}",
        remedy="give aligned sequences with their gaps (--option gaps=keep), or others that are all of one "
        "length; for sequences of any length train --size tiny, small or base",
    )


def _name_for_all_versions(path: Path) -> None:
    """transformers 5 writes a class name that version 4 does not know; both know the older name."""
    config = json.loads(path.read_text(encoding="utf-8"))
    if config.get("tokenizer_class") == "TokenizersBackend":
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
        path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def options_of(kind: type[Any], values: Mapping[str, Any], tokenizer: str) -> Any:
    """Options of a tokenizer, a dataclass of this kind, by name.

    Raises:
        UsageError: an unknown name, or a value that makes no sense.
    """
    names = [option.name for option in fields(kind)]
    for name in values:
        if name not in names:
            raise UsageError(f"{tokenizer} has no option {name!r}{nearest(name, names)}")
    return kind(**values)


def kept_options(kind: type[Any], card: Mapping[str, Any], tokenizer: str) -> Any:
    """Options as a tokenizer was stored with; one that is gone since is left out where it was off.

    Raises:
        UsageError: one that is gone since and was on: what the model sees would be something else.
    """
    names = {option.name for option in fields(kind)}
    on = {name: value for name, value in card["options"].items() if name in names or value not in _OFF}
    return options_of(kind, on, tokenizer)


_OFF = (None, False, "none", "all")


def read_card(directory: Path, expected: str | None = None) -> dict[str, Any]:
    """The card `save` wrote: `name`, `options`, `fingerprint`.

    Args:
        directory: a tokenizer's folder.
        expected: the name it must have, if any.

    Raises:
        StateError: no card, not JSON, or another tokenizer's.
    """
    path = directory / CARD
    try:
        card = read_json(path)
        name = card["name"]
    except FileNotFoundError:
        raise StateError(f"{directory} has no saved tokenizer ({CARD} is missing)") from None
    except (ValueError, KeyError, TypeError) as error:
        raise StateError(f"{path} is not a tokenizer card ({error!r}); save the tokenizer again") from None
    if expected is not None and name != expected:
        raise StateError(f"{directory} holds tokenizer {name!r}, not {expected!r}")
    return dict(card)
