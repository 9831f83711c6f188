"""The tokenizer interface: raw sequences to ids, units and spans; save and load give equal ids."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import fields
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from seqmlm.engine.holes import Gapped
from seqmlm.engine.types import Encoding, Ids, TokenSpace
from seqmlm.engine.units import Units
from seqmlm.engine.windows import Moving, moving_windows, windows
from seqmlm.errors import DataError, StateError, UsageError, nearest
from seqmlm.parsing import read_json, word_list

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

CARD = "seqmlm_tokenizer.json"
CHECKPOINT_CONTENT = word_list(
    "tokenizer.json vocab.txt vocab.json merges.txt spiece.model sentencepiece.bpe.model"
)
CHECKPOINT_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
CHECKPOINT_FILES = (*CHECKPOINT_CONTENT, *CHECKPOINT_SETTINGS)
"""What a tokenizer of a checkpoint is read from."""

STAND_IN = "\ue000"
"""A character for private use, which texts do not have: it stands where nobody knows what belongs there."""


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
        found: the first unknown piece.
        alphabet: the known symbols, for the remedy.
        index: number of the sequence inside the batch; 0 for `encode`.
    """

    def __init__(
        self,
        found: Unknown,
        *,
        alphabet: str,
        index: int = 0,
        source: str | None = None,
        line: int | None = None,
    ) -> None:
        self.found, self.alphabet, self.index = found, alphabet, index
        super().__init__(
            f"{found.text!r} is not in the alphabet {alphabet}",
            source=source,
            line=line,
            remedy=f"position {found.offset + 1} of the sequence; correct it, or leave it out",
        )

    def at(self, source: str, line: int | None) -> UnknownUnit:
        """The same error with file and line of the record."""
        return UnknownUnit(self.found, alphabet=self.alphabet, index=self.index, source=source, line=line)


class Tokenizer(ABC):
    """Turns raw sequences of one field into `Encoding`s, and keeps the vocabulary that gives ids a meaning.

    A subclass sets `name` and `unit`; `trainable` if its vocabulary is learnt, `closed` if a symbol outside
    the alphabet is an error rather than an unknown token; `augments` if a sequence has equivalent forms for
    training (the other strand of a genome); `two_strands` if each sequence has another strand (`mirrored`);
    `single_tokens` if every unit is one token, so that counts of tokens say how frequent units are;
    `grows` if it can get ids for what later data have (`grown`);
    `stand_in`, what is written where a gap is (a unit of a closed alphabet); `sensitive_options`, options of
    `train` that keep rare items out of the vocabulary. A tokenizer of structured records overrides `reads`.
    `cls()` (not trainable) and `cls.train(texts, **options)` construct one. It is registered by an entry
    point in `seqmlm.tokenizers`.

    Raw is a `str` wherever the field has text; a field with structured records (visits, events) takes those,
    and then `str(raw)` is the text that spans point into.
    """

    name: ClassVar[str]
    unit: ClassVar[str]
    trainable: ClassVar[bool] = False
    closed: ClassVar[bool] = False
    augments: ClassVar[bool] = False
    two_strands: ClassVar[bool] = False
    grows: ClassVar[bool] = False
    stand_in: ClassVar[str] = STAND_IN
    single_tokens: ClassVar[bool] = False
    sensitive_options: ClassVar[Mapping[str, Any]] = {}

    @classmethod
    def reads(cls, raw: Any) -> bool:
        """Whether it can encode this raw value: text, unless a subclass says otherwise."""
        return isinstance(raw, str)

    space: TokenSpace
    """Size of the vocabulary and the special ids."""

    tokens: Sequence[str]
    """(V,) the vocabulary's string for each id."""

    options: Mapping[str, Any] = {}
    """The options it was constructed with, as plain values; saved with it."""

    channels: Mapping[str, Mapping[str, Any]] = {}
    """Name to kind of the further inputs in its encodings; see `seqmlm.engine.channels.Channel`."""

    @property
    def masking_facts(self) -> Mapping[str, Any]:
        """Facts about this vocabulary that maskers may need, by the name of their keyword parameter.

        A masker with a parameter `k` gets `masking_facts["k"]` unless the masking options set it.
        """
        return {}

    @property
    def unfamiliar(self) -> Sequence[int]:
        """Ids for items outside the vocabulary; a sequence of only these carries no information."""
        return () if self.space.unk is None else (self.space.unk,)

    @property
    def facts(self) -> Mapping[str, str]:
        """What was decided of the fields of its training data, field to a few words; shown by inspection."""
        return {}

    def advice(self, counts: Sequence[int]) -> str | None:
        """What to do where the vocabulary says little of some data.

        Args:
            counts: (V,) how often each token occurs there.
        """
        return None

    def windows(self, encoding: Encoding, max_length: int) -> list[Encoding]:
        """Windows of a sequence for training, of at most `max_length` tokens each."""
        return windows(encoding, self.space, max_length)

    def moving_windows(
        self, encoding: Encoding, max_length: int, shares: NDArray[np.float64]
    ) -> Moving | None:
        """Windows for training that may be cut elsewhere in each epoch; None for those of `windows`.

        Args:
            shares: see `seqmlm.engine.windows.moving_windows`.
        """
        return moving_windows(encoding, self.space, max_length, shares)

    @property
    def units(self) -> Units:
        """How the field's units are hidden and read back from answers; here they are groups of tokens."""
        return Units(self.space)

    def unhidden(self, masker: type[Any]) -> str | None:
        """Why what a masker hides would still be seen, and what to use instead; None where it would not."""
        return None

    def augment(self, encoding: Encoding, rng: np.random.Generator) -> Encoding:
        """An equivalent form of a training sequence, of the same length; by default the sequence itself."""
        return encoding

    def mirrored(self, encoding: Encoding) -> Encoding | None:
        """The other strand of a sequence, its units in the opposite order; None where these are other units.

        Asked only where sequences have `two_strands`.
        """
        return None

    @abstractmethod
    def encode_batch(self, raws: Sequence[Any]) -> list[Encoding]:
        """Encode many sequences, special tokens included; no truncation, no padding.

        The arrays of one batch may be views of one buffer.

        Raises:
            UnknownUnit: the first sequence with something outside the alphabet (`index` says which), for
                tokenizers with a closed alphabet; the others use their unknown token or need none.
        """

    def of_length(self, tokens: int | None = None) -> Self:
        """This tokenizer for rows of one length: others are refused, in training as in every use.

        Its places are columns, so that a row read backwards is no row: it has one strand.

        Args:
            tokens: of a row, start and end included; None for as many as the first row has.
        """
        made = copy(self)
        made.encode_batch = partial(_of_one_length, self, [tokens])  # type: ignore[method-assign]
        made.two_strands = False  # type: ignore[misc]
        return made

    def encode_symbols(self, text: str) -> Encoding:
        """Encode symbols that are no row of data, whatever the length of rows; see `encode_batch`."""
        return type(self).encode_batch(self, [text])[0]

    def encode(self, raw: Any) -> Encoding:
        """Encode one sequence; see `encode_batch`."""
        return self.encode_batch([raw])[0]

    def gapped(
        self, raws: Sequence[Any], spans: Sequence[Sequence[tuple[int, int]]], counts: Sequence[Sequence[int]]
    ) -> list[Gapped]:
        """Encode sequences with gaps.

        Args:
            raws: with `stand_in` in every gap.
            spans: of each sequence, where its gaps are, as spans of encodings are: (start, end), in order.
            counts: of each sequence, how many tokens are hidden in each gap.

        Raises:
            UsageError: a gap that cannot be one, such as one inside a unit.
        """
        rule = self.units
        return [rule.open(*one) for one in zip(self.encode_batch(raws), spans, counts, strict=True)]

    def unknown(self, raw: Any) -> list[Unknown]:
        """Everything in `raw` that `encode` would refuse or replace by the unknown token, in order."""
        return []

    def conceal(self, text: str) -> str:
        """The text of a record as rows and reports may show it, of equal length; here, as it is."""
        return text

    def surface(self, token: int) -> str:
        """The text of id `token` in a raw sequence, without the vocabulary's markers ("##", "▁")."""
        return self.tokens[token]

    def spelling(self, tokens: Sequence[int]) -> str:
        """The text that some tokens have together, one after the other; lines, where units are lines."""
        return "\n".join(map(self.surface, tokens))

    def respelled(self, encoding: Encoding) -> tuple[str, Ids]:
        """The text of an encoding, with spaces where units were separate, and (L, 2) spans into that text."""
        pieces: list[str] = []
        spans = np.zeros((len(encoding), 2), dtype=np.int32)
        at, last_group, last_end = 0, None, None
        for position in np.flatnonzero(encoding.groups >= 0).tolist():
            group, text = int(encoding.groups[position]), self.surface(int(encoding.ids[position]))
            start, end = (0, 0) if encoding.spans is None else encoding.spans[position].tolist()
            if last_group is not None and group != last_group and start != last_end:
                pieces.append(" ")
                at += 1
            spans[position] = at, at + len(text)
            pieces.append(text)
            at, last_group, last_end = at + len(text), group, end
        return "".join(pieces), spans

    def alone(self, token: int) -> str | None:
        """The text of id `token` where it can be a unit by itself; None where it is but a piece of one."""
        return self.surface(token)

    def meaning(self, text: str) -> str | None:
        """What a unit spelled so stands for in words, where the data said it of all alike; here nothing."""
        return None

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

    def grown(self, texts: Iterable[Any]) -> Self:
        """This tokenizer with ids for what these texts have and it does not know, behind all ids it has.

        What it knows keeps its id; here nothing is added.

        Args:
            texts: training text, read once.
        """
        return self

    @abstractmethod
    def hf(self) -> PreTrainedTokenizerFast:
        """The same tokenizer as a Hugging Face fast tokenizer: equal ids for every sequence."""

    def fingerprint(self) -> str:
        """SHA-256, in hex, of everything that determines the ids."""
        content = [self.name, self.options, self._content()]
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return sha256(text.encode()).hexdigest()

    def _content(self) -> Any:
        """What determines the ids besides name and options, as JSON values."""
        return list(self.tokens)

    def save(self, directory: Path) -> None:
        """Write `tokenizer.json` and `tokenizer_config.json` (for AutoTokenizer) and our own card."""
        directory.mkdir(parents=True, exist_ok=True)
        self.hf().save_pretrained(str(directory))
        _name_for_all_versions(directory / "tokenizer_config.json")
        card = {"name": self.name, "options": dict(self.options), "fingerprint": self.fingerprint()}
        (directory / CARD).write_text(json.dumps(card, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    @classmethod
    @abstractmethod
    def load(cls, directory: Path) -> Self:
        """Load what `save` wrote.

        Raises:
            StateError: the folder has no such tokenizer.
        """


def _of_one_length(tokenizer: Tokenizer, length: list[int | None], raws: Sequence[Any]) -> list[Encoding]:
    """Encode rows of as many tokens as `length` holds, or else the first one has."""
    found = tokenizer.encode_batch(raws)
    if length[0] is None and found:
        length[0] = len(found[0])
    other = next((len(one) for one in found if len(one) != length[0]), None)
    if other is None:
        return found
    space = tokenizer.space
    edges = sum(token is not None for token in (space.start, space.end))
    raise DataError(
        f"a row of {other - edges} units, where a linear model reads rows of {(length[0] or 0) - edges}",
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
    known = [field.name for field in fields(kind)]
    for name in values:
        if name not in known:
            raise UsageError(f"{tokenizer} has no option {name!r}{nearest(name, known)}")
    return kind(**values)


def kept_options(kind: type[Any], card: Mapping[str, Any], tokenizer: str) -> Any:
    """Options as a tokenizer was stored with; one that is gone since is left out where it was off.

    Raises:
        UsageError: one that is gone since and was on: what the model sees would be something else.
    """
    known = {field.name for field in fields(kind)}
    on = {name: value for name, value in card["options"].items() if name in known or value not in _OFF}
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
        found = card["name"]
    except FileNotFoundError:
        raise StateError(f"{directory} has no saved tokenizer ({CARD} is missing)") from None
    except (ValueError, KeyError, TypeError) as error:
        raise StateError(f"{path} is not a tokenizer card ({error!r}); save the tokenizer again") from None
    if expected is not None and found != expected:
        raise StateError(f"{directory} holds tokenizer {found!r}, not {expected!r}")
    return dict(card)
