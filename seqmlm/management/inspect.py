"""`seqmlm data inspect` and `data formats`: describe data before training, in bounded memory.

Two samples are kept:

* a uniform sample of records (Vitter 1985, algorithm R)
* a sample of the hash values of raw sequences (Gibbons 2001, distinct sampling)

In the second sample, equal sequences are kept or left out together. It therefore gives unbiased estimates of
duplicates, and of sequences on both sides of a split. Below their size limits both samples are complete, and
all figures are exact.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from seqmlm import plugins
from seqmlm.config import meanings
from seqmlm.data.counts import Cell, released, released_counts
from seqmlm.data.duplicates import hash128
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.data.splits import CALIBRATION, TRAIN, VALIDATION, Split
from seqmlm.engine.masking.base import Corruptor, MaskingConfig
from seqmlm.engine.types import Encoding
from seqmlm.errors import DataError
from seqmlm.inference.maskers import make_masker
from seqmlm.privacy import handling_sensitive_data
from seqmlm.tokenizers.base import Growing, Tokenizer
from seqmlm.training.config import PretrainConfig, TokenizerConfig, resolve_config
from seqmlm.training.corpus import CorpusReader, load_or_train
from seqmlm.workspace import Workspace

if TYPE_CHECKING:
    from seqmlm.domains.field import Field
    from seqmlm.domains.files import Format

_MARKS = 8  # positions in the split that are kept per sequence
_QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
_MOST_COMMON = 30
_EXAMPLE_CHARACTERS = 400


class Census:
    """Counts of a stream of records, in bounded memory.

    Args:
        split: the rule that divides the records.
        seed: seed of the uniform samples.
        distinct: number of distinct sequences above which the sample of hash values is thinned.
        uniform: number of records whose length and position in the split are kept.
        sample_size: largest number of whole records that are kept.
        characters: largest number of characters of these records in total.
    """

    def __init__(
        self,
        split: Split,
        seed: int,
        *,
        distinct: int = 500_000,
        uniform: int = 100_000,
        sample_size: int = 1_000,
        characters: int = 1 << 23,
    ) -> None:
        self.records = self.characters = 0
        self._split, self._limit, self._uniform = split, distinct, uniform
        self._sample_size, self._room = sample_size, characters
        self._seen: dict[bytes, list[tuple[int, int]]] = {}
        self._level = 0  # hash values are kept if this number of low bits are 0
        self._lengths = np.zeros(uniform, dtype=np.int64)
        self._marks = np.zeros((uniform, 2), dtype=np.int64)
        self._kept: list[Record] = []
        self._kept_characters = 0
        self._random = np.random.default_rng(seed)

    def add(self, record: Record) -> None:
        """Count one record."""
        text = str(record.raw)
        mark = self._split.mark(record)
        place = self.records if self.records < self._uniform else int(self._random.integers(self.records + 1))
        if place < self._uniform:
            self._lengths[place], self._marks[place] = len(text), mark
        self.records += 1
        self.characters += len(text)
        self._keep(record, len(text))
        digest = hash128(text)
        if int.from_bytes(digest[:8], "little") & ((1 << self._level) - 1):
            return
        marks = self._seen.setdefault(digest, [])
        if mark not in marks and len(marks) < _MARKS:
            marks.append(mark)
        if len(self._seen) > self._limit:
            self._thin()

    def _keep(self, record: Record, length: int) -> None:
        if len(self._kept) < self._sample_size and self._kept_characters + length <= self._room:
            self._kept.append(record)
            self._kept_characters += length
            return
        place = int(self._random.integers(self.records))
        if place < len(self._kept):
            other_characters = self._kept_characters - len(str(self._kept[place].raw))
            if other_characters + length <= self._room:
                self._kept[place], self._kept_characters = record, other_characters + length

    def _thin(self) -> None:
        self._level += 1
        low = (1 << self._level) - 1
        self._seen = {d: m for d, m in self._seen.items() if not int.from_bytes(d[:8], "little") & low}

    @property
    def sampled_records(self) -> list[Record]:
        """The records to examine: all records of a short stream, else a uniform sample.

        The sample is not uniform if records are very long.
        """
        return self._kept

    def length_quantiles(self, quantiles: tuple[float, ...]) -> dict[str, int]:
        """Quantiles of the length of a record's text, in characters."""
        sampled = self._lengths[: min(self.records, self._uniform)]
        lengths = np.quantile(sampled if len(sampled) else [0], quantiles, method="inverted_cdf")
        return dict(zip(map(str, quantiles), map(int, lengths), strict=True))

    @property
    def distinct(self) -> int:
        """The number of distinct raw sequences. All other records are duplicates."""
        return min(len(self._seen) << self._level, self.records)

    @property
    def exact(self) -> bool:
        """Whether all counts are exact. For a long stream, some are estimates from a sample."""
        return self._level == 0 and self.records <= self._uniform

    def divided(self) -> tuple[dict[str, int], int]:
        """Records of each split, and the number of distinct sequences in both training and held-out data."""
        sampled_count = min(self.records, self._uniform)
        parts = self._split.parts(self._marks[:sampled_count])
        validation, calibration = (
            round(float((parts == part).mean()) * self.records) if sampled_count else 0
            for part in (VALIDATION, CALIBRATION)
        )
        train = self.records - validation - calibration
        # For each entry in the sample of hash values: the number of its sequence (M,), and its mark (M, 2).
        owners = np.array(
            [n for n, sequence_marks in enumerate(self._seen.values()) for _ in sequence_marks],
            dtype=np.int64,
        )
        marks = np.array(
            [selected for sequence_marks in self._seen.values() for selected in sequence_marks],
            dtype=np.int64,
        ).reshape(-1, 2)
        # A sequence is in the part of its records, which depends on the sizes of groups. If none of its
        # records is in the uniform sample, the split rule determines the part.
        part_of_mark = dict(
            zip(map(tuple, self._marks[:sampled_count].tolist()), parts.tolist(), strict=True)
        )
        rule_parts = self._split.parts(np.concatenate([self._marks[:sampled_count], marks]))[
            sampled_count:
        ].tolist()
        parts_of_marks = [
            part_of_mark.get(tuple(mark), part) for mark, part in zip(marks.tolist(), rule_parts, strict=True)
        ]
        trains = np.array(parts_of_marks, dtype=np.int8) == TRAIN
        is_in_part = (
            np.bincount(owners[selected], minlength=len(self._seen)) > 0 for selected in (trains, ~trains)
        )
        leaked = int(np.count_nonzero(np.logical_and(*is_in_part))) << self._level
        return {"train": train, "validation": validation, "calibration": calibration}, leaked


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """The result of an inspection. For sensitive data, a count from 1 to 10 is "<11".

    Args:
        records: number of records.
        characters: number of characters of their raw text.
        duplicates: number of records whose raw text occurred before.
        estimated: whether duplicates, splits and leaks are estimates, because the input is very long.
        length_quantiles: quantiles of the length of the raw text, in characters.
        looked_at: number of randomly drawn records in which units and vocabulary were counted.
        unit: name of the domain's unit.
        unit_quantiles: quantiles of the number of units per record.
        vocabulary: the domain's tokenizer, its size, and the number of unknown tokens.
        tokens: counts of the most common tokens in these records; empty for sensitive data.
        outside_alphabet: counts of symbols outside the domain's closed alphabet.
        split: records of each split, and the number of distinct sequences in both training and held-out
            data ("in both").
        problems: counts of bad records and notes, by reason.
        places: file and line of the first occurrence of each reason.
        remedies: the remedy for each reason, if the reader has one.
        audit: more counts of the domain (see `Reading.audit`).
        example: one record before and after masking; empty for sensitive data unless requested.
    """

    records: Cell
    characters: int
    duplicates: Cell
    estimated: bool
    length_quantiles: Mapping[str, int]
    looked_at: Cell
    unit: str
    unit_quantiles: Mapping[str, int]
    vocabulary: Mapping[str, Any]
    tokens: Mapping[str, Any]
    outside_alphabet: Mapping[str, Any]
    split: Mapping[str, Any]
    problems: Mapping[str, Any]
    places: Mapping[str, str] = field(default_factory=dict)
    remedies: Mapping[str, str] = field(default_factory=dict)
    audit: Mapping[str, Any] = field(default_factory=dict)
    example: Mapping[str, str] = field(default_factory=dict)


def inspect_data(
    domain: str,
    paths: Sequence[str],
    *,
    format: str | None = None,
    options: Mapping[str, Any] | None = None,
    sensitive: bool = False,
    show_records: bool = False,
) -> Inspection:
    """Read files like a training, and count their contents in bounded memory.

    Bad records do not raise an error. They are counted by reason.

    Args:
        domain: name of the domain.
        paths: files, folders or data sets; empty for the domain's sample.
        format: format of the files; None to detect it.
        options: options of the reader.
        sensitive: treat the data as sensitive even if the domain is not.
        show_records: show the example record even if the data are sensitive.

    Raises:
        UsageError: the domain, format or an option is unknown.
        DataError: a path does not exist, or nothing can be read.
    """
    field = plugins.domain(domain)
    data: dict[str, Any] = {"paths": list(paths), "format": format, "options": dict(options or {})}
    data |= {"on_error": "skip"} | ({"sensitive": True} if sensitive else {})
    config = resolve_config(field, {"data": data})
    reader, hide = CorpusReader(config, field, Workspace.locate()), config.data.sensitive
    with handling_sensitive_data(hide):
        return _inspected(field, config, reader, show_records=show_records or not hide)


def _inspected(
    field: Field, config: PretrainConfig, reader: CorpusReader, *, show_records: bool
) -> Inspection:
    problems, census = Problems("skip"), Census(reader.split(), config.seed)

    def counted_records() -> Iterator[Record]:
        for name in reader.sources:
            for record in reader.records(name, problems):
                census.add(record)
                yield record

    audit = field.reading.audit(counted_records(), problems)
    if not census.records:
        raise problems.nothing()
    examined = (
        _Examined.of(field, config.tokenizer, census.sampled_records)
        if census.sampled_records
        else _Examined.nothing()
    )
    example = {} if not show_records else _example(field, config.masking, config.seed, examined)
    inspection = _inspection(field.unit, census, examined, problems, config.data.sensitive)
    return replace(inspection, audit=audit, example=example)


def _inspection(unit: str, census: Census, examined: _Examined, problems: Problems, hide: bool) -> Inspection:
    parts, leaked = census.divided()
    figures: dict[str, Any] = {
        "records": census.records,
        "duplicates": census.records - census.distinct,
        "looked_at": len(examined.encodings),
        "length_quantiles": census.length_quantiles(_QUANTILES),
        "unit_quantiles": examined.units(),
        "vocabulary": examined.vocabulary(hide),
        "problems": problems.counts,
        "split": {"in both": leaked},
    }
    figures = released(figures)
    figures["split"] = {**released_counts(parts, parts=True), **figures["split"]}
    return Inspection(
        unit=unit,
        characters=census.characters,
        estimated=not census.exact,
        tokens={} if hide else examined.tokens(),
        outside_alphabet={} if hide else dict(examined.outside.most_common(_MOST_COMMON)),
        places=problems.places,
        remedies=problems.remedies,
        **figures,
    )


@dataclass(frozen=True, eq=False)
class _Examined:
    """A sample of the records with their encodings, and counts of symbols unknown to the tokenizer."""

    tokenizer: Tokenizer | None
    records: list[Record]
    encodings: list[Encoding]
    outside: Counter[str]

    @classmethod
    def nothing(cls) -> _Examined:
        return cls(None, [], [], Counter())

    @classmethod
    def of(cls, domain: Field, config: TokenizerConfig, sample: list[Record]) -> _Examined:
        """Encode records with the domain's tokenizer. It is trained on them if it has no fixed vocabulary."""
        try:
            tokenizer = load_or_train(config, lambda: (record.raw for record in sample))
        except DataError:  # too little text for a vocabulary: all other figures can still be computed
            return cls.nothing()
        outside: Counter[str] = Counter()
        spelled = []
        for record in sample:
            unknown = tokenizer.unknown(record.raw)
            outside.update(symbol.text for symbol in unknown)
            if not (unknown and tokenizer.traits.closed):
                spelled.append(record)
        encodings = tokenizer.encode_batch([record.raw for record in spelled]) if spelled else []
        return cls(tokenizer, spelled, encodings, outside)

    def units(self) -> dict[str, int]:
        """Quantiles of the number of units per record."""
        rule = None if self.tokenizer is None else self.tokenizer.units
        sizes = [len(rule.numbers(encoding)) for encoding in self.encodings] if rule is not None else []
        counts = np.quantile(sizes or [0], _QUANTILES, method="inverted_cdf")
        return dict(zip(map(str, _QUANTILES), map(int, counts), strict=True))

    def _counts(self, tokenizer: Tokenizer) -> NDArray[np.int64]:
        """(V,) occurrences of each token."""
        ids = [np.zeros(0, np.int64), *(encoding.ids.astype(np.int64) for encoding in self.encodings)]
        return np.bincount(np.concatenate(ids), minlength=tokenizer.space.size)

    def tokens(self) -> dict[str, int]:
        """Counts of the most common tokens, without special tokens."""
        if self.tokenizer is None:
            return {}
        counts = self._counts(self.tokenizer)
        counts[self.tokenizer.space.is_special] = 0
        order = np.argsort(-counts, kind="stable")[:_MOST_COMMON]
        return {self.tokenizer.tokens[i]: int(counts[i]) for i in order.tolist() if counts[i]}

    def vocabulary(self, hide: bool) -> dict[str, Any]:
        """The name and size of the tokenizer, the number of unknown tokens, and its facts about fields."""
        if (tokenizer := self.tokenizer) is None:
            return {}
        counts, unknown = self._counts(tokenizer), tokenizer.space.unk
        facts = {
            "tokenizer": tokenizer.name,
            "size": tokenizer.space.size,
            "unknown tokens": 0 if unknown is None else int(counts[unknown]),
        }
        if hide or not isinstance(tokenizer, Growing):
            return facts
        advice = tokenizer.advice(counts.tolist())
        facts |= {f"field {name}": text for name, text in tokenizer.facts.items()}
        return facts if advice is None else {**facts, "warning": advice}


def _example(domain: Field, masking: MaskingConfig, seed: int, examined: _Examined) -> dict[str, str]:
    tokenizer = examined.tokenizer
    if tokenizer is None or not examined.records:
        return {}
    corruptor = Corruptor(masking, make_masker(masking, tokenizer), tokenizer.space, None, seed)
    record, encoding = examined.records[0], examined.encodings[0]
    masked = corruptor(encoding, 0, 0)
    places, put_there = masked.positions.astype(np.int32), masked.ids[masked.positions]
    text = domain.text.show(tokenizer, record.raw, encoding, places, put_there)
    lines = dict(line.split(maxsplit=1) for line in text.splitlines() if " " in line)
    names = {"true": "before", "masked": "chosen", "predicted": "after"}
    return {to: lines[name][:_EXAMPLE_CHARACTERS] for name, to in names.items() if name in lines}


@dataclass(frozen=True, kw_only=True)
class FormatFacts:
    """A file format: its description and endings, whether it can be a folder, and its options."""

    name: str
    reads: str
    suffixes: tuple[str, ...]
    folder: bool
    options: tuple[OptionFacts, ...]


@dataclass(frozen=True, kw_only=True)
class OptionFacts:
    """An option of a reader: `--option NAME=VALUE`."""

    name: str
    default: Any
    meaning: str


def formats(domain: str) -> list[FormatFacts]:
    """The formats of a domain. The first is used if a file's name matches none."""
    return [_facts(name, format) for name, format in plugins.domain(domain).files.formats.items()]


def _facts(name: str, format: Format) -> FormatFacts:
    text = (format.read.func if isinstance(format.read, partial) else format.read).__doc__ or ""
    option_meanings, parameters = meanings(text), inspect.signature(format.read).parameters
    return FormatFacts(
        name=name,
        reads=" ".join(inspect.cleandoc(text).split("\n\n")[0].split()),
        suffixes=format.suffixes,
        folder=format.folder is not None,
        options=tuple(
            OptionFacts(name=key, default=parameters[key].default, meaning=option_meanings.get(key, ""))
            for key in format.options
        ),
    )
