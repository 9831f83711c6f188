"""The tokenizer interface: convert raw sequences to ids, units and spans; save and load a vocabulary."""

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
"""Files from which the tokenizer of a checkpoint is read."""


class Unknown(NamedTuple):
    """A part of a raw sequence that is not in the alphabet of a tokenizer.

    offset: its 0-based start in the raw sequence, in characters; in items if raw is a list.
    text: the part itself.
    """

    offset: int
    text: str


class UnknownUnit(DataError):
    """A sequence contains a part without an id. Raised by `encode` and `encode_batch`.

    The tokenizer does not know the file. `source` and `line` are therefore None, and the caller adds them
    with `at`.

    Args:
        unknown: the first unknown part; its attribute is `found`.
        alphabet: the known symbols, for the message.
        index: number of the sequence in the batch; 0 for `encode`.
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
        """The same error with the file and line of the record."""
        return UnknownUnit(self.found, alphabet=self.alphabet, index=self.index, source=source, line=line)


@dataclass(frozen=True, kw_only=True)
class Traits:
    """Properties that all tokenizers of a class share.

    Args:
        unit: the common name of its unit, such as "word".
        trainable: whether its vocabulary is learnt (`train`).
        closed: whether a symbol outside the alphabet is an error, not an unknown token.
        single_tokens: whether every unit is one token. Counts of tokens are then frequencies of units.
        reads: function that tells whether it can encode a raw value.
        sensitive_options: options of `train` for sensitive data. They keep rare items out of the vocabulary.
    """

    unit: str
    trainable: bool = False
    closed: bool = False
    single_tokens: bool = False
    reads: Callable[[Any], bool] = lambda raw: isinstance(raw, str)
    sensitive_options: Mapping[str, Any] = field(default_factory=dict)


class ForeignVocabulary:
    """A mixin for tokenizers whose vocabulary may be from another field. It counts unreadable text."""

    refuses: bool = True
    """Whether `encode_batch` refuses text if the vocabulary cannot read many of its letters. Commands that
    follow growing files set it to False, because later lines may be readable."""

    def unread(self) -> str:
        """Why the vocabulary cannot read the text so far, and what to do; "" if it can."""
        raise AssertionError("each tokenizer of this kind overrides it")


class Tokenizer(ABC):
    """Converts raw sequences of one field to `Encoding`s, and keeps the vocabulary.

    Construct it with `cls()` if it is not trainable, or with `cls.train(texts, **options)`. An entry point in
    `seqmlm.tokenizers` registers it.

    A raw sequence is a `str` in fields with text. In fields with structured records (visits, events), it is
    such a record. Spans then point into `str(raw)`.
    """

    name: ClassVar[str]
    traits: ClassVar[Traits]

    space: TokenSpace
    """The size of the vocabulary, and the special ids."""

    tokens: Sequence[str]
    """(V,) the string of each id in the vocabulary."""

    options: Mapping[str, Any] = {}
    """The options of its construction, as plain values. They are saved with it."""

    channels: Mapping[str, Mapping[str, Any]] = {}
    """Name to kind of additional inputs in its encodings; see `seqmlm.engine.channels.Channel`."""

    @cached_property
    def units(self) -> Units:
        """The rule that masks units and reads predictions for them. Here, units are groups of tokens."""
        return Units(self.space)

    @cached_property
    def spelling(self) -> Spelling:
        """The spelling of ids in the text of the field."""
        return Spelling(self.tokens)

    @abstractmethod
    def encode_batch(self, raws: Sequence[Any]) -> list[Encoding]:
        """Encode many sequences, including special tokens, without truncation and padding.

        The arrays of one batch may be views of one buffer.

        Raises:
            UnknownUnit: a sequence has a part outside a closed alphabet. `index` is the number of the first
                such sequence. Tokenizers without a closed alphabet use their unknown token.
        """

    def encode(self, raw: Any) -> Encoding:
        """Encode a single sequence; see `encode_batch`."""
        return self.encode_batch([raw])[0]

    def unknown(self, raw: Any) -> list[Unknown]:
        """All parts of `raw` that `encode` would refuse or replace by the unknown token, in order."""
        return []

    @classmethod
    def train(cls, texts: Iterable[Any], *, vocabulary_size: int | None = None, **options: Any) -> Self:
        """Learn a vocabulary.

        Args:
            texts: training text, read once. Memory is bounded for any amount of text.
            vocabulary_size: the largest number of ids. With None, it depends on the amount of text.
            options: options of this tokenizer.

        Raises:
            UsageError: the vocabulary of this tokenizer is fixed (`trainable` is False).
        """
        raise UsageError(f"{cls.name} has a fixed vocabulary and is not trained; omit vocabulary_size")

    @abstractmethod
    def hf(self) -> PreTrainedTokenizerFast:
        """The same tokenizer as a Hugging Face fast tokenizer, with equal ids for every sequence."""

    def _content(self) -> Any:
        """The content that determines ids, in addition to name and options, as JSON values."""
        return list(self.tokens)

    def save(self, directory: Path) -> None:
        """Write `tokenizer.json` and `tokenizer_config.json` for AutoTokenizer, and our own card."""
        directory.mkdir(parents=True, exist_ok=True)
        self.hf().save_pretrained(str(directory))
        _name_for_all_versions(directory / "tokenizer_config.json")
        card = {"name": self.name, "options": dict(self.options), "fingerprint": fingerprint(self)}
        (directory / CARD).write_text(json.dumps(card, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    @classmethod
    @abstractmethod
    def load(cls, directory: Path) -> Self:
        """Load a folder that `save` wrote.

        Raises:
            StateError: the folder has no such tokenizer.
        """


class Growing(Tokenizer):
    """A tokenizer that can add ids for later data, and reports its decisions about its training data."""

    @abstractmethod
    def grown(self, texts: Iterable[Any]) -> Self:
        """This tokenizer with new ids for the unknown parts of some texts. Existing ids do not change.

        Args:
            texts: training text, read once.
        """

    @property
    @abstractmethod
    def facts(self) -> Mapping[str, str]:
        """Decisions about its training data, from a field to a few words.

        `seqmlm data inspect` shows them.
        """

    @abstractmethod
    def advice(self, counts: Sequence[int]) -> str | None:
        """Advice for data that the vocabulary covers badly; None if it covers them well.

        Args:
            counts: (V,) the number of occurrences of each token in the data.
        """


def fingerprint(tokenizer: Tokenizer) -> str:
    """SHA-256, in hex, of all content that determines the ids."""
    content = [tokenizer.name, tokenizer.options, tokenizer._content()]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return sha256(text.encode()).hexdigest()


def of_length(tokenizer: Tokenizer, tokens: int | None = None) -> Tokenizer:
    """A tokenizer for rows of one length. It refuses other lengths, in training and in every other use.

    Its positions are columns. A reversed row is therefore not a valid row, and the tokenizer has one strand.

    Args:
        tokens: tokens in a row, including start and end. With None, the first row determines the number.
    """
    shortened, rule = copy(tokenizer), copy(tokenizer.units)
    shortened.encode_batch = partial(_of_one_length, tokenizer, [tokens])  # type: ignore[method-assign]
    rule.facts = replace(rule.facts, strands=None)
    shortened.units = rule
    return shortened


def encode_symbols(tokenizer: Tokenizer, text: str) -> Encoding:
    """Encode symbols that are not a row of data, without the check of row lengths; see `encode_batch`."""
    return type(tokenizer).encode_batch(tokenizer, [text])[0]


def space_of(special: Sequence[str], size: int) -> TokenSpace:
    """The space of a vocabulary that begins with the special tokens of BERT, without or with [UNK]."""
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
    """Encodings as views of shared arrays, one for each pair of bounds."""
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
    """Encode rows with the number of tokens in `length`, or with the number of tokens in the first row."""
    encodings = tokenizer.encode_batch(raws)
    if length[0] is None and encodings:
        length[0] = len(encodings[0])
    different = next((len(encoding) for encoding in encodings if len(encoding) != length[0]), None)
    if different is None:
        return encodings
    space = tokenizer.space
    edges = sum(token is not None for token in (space.start, space.end))
    raise DataError(
        f"a row has {different - edges} units, but this linear model reads rows of "
        f"{(length[0] or 0) - edges} units",
        remedy="give sequences of equal length, such as aligned ones (--option gaps=keep), or train "
        "--size tiny, small or base",
    )


def _name_for_all_versions(path: Path) -> None:
    """Write the older class name, which transformers 4 and 5 both know. Version 5 writes a new one."""
    config = json.loads(path.read_text(encoding="utf-8"))
    if config.get("tokenizer_class") == "TokenizersBackend":
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
        path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def options_of(kind: type[Any], values: Mapping[str, Any], tokenizer: str) -> Any:
    """The options of a tokenizer, as a dataclass of this kind.

    Raises:
        UsageError: a name is unknown, or a value makes no sense.
    """
    names = [option.name for option in fields(kind)]
    for name in values:
        if name not in names:
            raise UsageError(f"{tokenizer} has no option {name!r}{nearest(name, names)}")
    return kind(**values)


def kept_options(kind: type[Any], card: Mapping[str, Any], tokenizer: str) -> Any:
    """The options of a stored tokenizer. An option that no longer exists is ignored if it was off.

    Raises:
        UsageError: an option that no longer exists was on. The model would get different input.
    """
    names = {option.name for option in fields(kind)}
    on = {name: value for name, value in card["options"].items() if name in names or value not in _OFF}
    return options_of(kind, on, tokenizer)


_OFF = (None, False, "none", "all")


def read_card(directory: Path, expected: str | None = None) -> dict[str, Any]:
    """The card that `save` wrote: `name`, `options`, `fingerprint`.

    Args:
        directory: the folder of a tokenizer.
        expected: the name it must have, if any.

    Raises:
        StateError: the card is missing, is not JSON, or is from another tokenizer.
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
