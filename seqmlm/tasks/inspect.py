"""`seqmlm data inspect`: what is in a file, before anything is trained on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from seqmlm import plugins
from seqmlm.data.census import Census
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.data.small_cells import SMALL, Cell, cells, told
from seqmlm.domains.base import Domain
from seqmlm.engine.masking.corrupt import Corruptor
from seqmlm.engine.types import Encoding
from seqmlm.errors import DataError
from seqmlm.tasks.config import PretrainConfig, resolve
from seqmlm.tasks.corpus import CorpusReader, load_or_train
from seqmlm.tasks.maskers import make_masker
from seqmlm.tasks.privacy import tellable
from seqmlm.tokenizers.base import Tokenizer
from seqmlm.workspace import Workspace

_QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
_MOST_COMMON = 30
_EXAMPLE_CHARACTERS = 400


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """What was found; of sensitive data a count from 1 to 10 is "<11".

    Args:
        records, characters, duplicates: counts; duplicates are records whose raw text occurred before.
        estimated: whether duplicates, splits and leaks are estimates, as they are for a very long input.
        length_quantiles: of the raw text, in characters.
        looked_at: records that units and vocabulary were counted in, drawn at random.
        unit: what the domain counts; unit_quantiles: units of a record.
        vocabulary: the domain's tokenizer, its size, and tokens that stand for something unknown.
        tokens: the most common tokens of the records looked at, with counts.
        outside_alphabet: pieces that the domain's closed alphabet does not have, with counts.
        split: records that would train, validate and calibrate, and different sequences that stand both in
            training and in a part that is held out ("in both").
        problems: bad records and oddities, by reason.
        places: where each of the reasons was met first.
        remedies: what can be done about each of the reasons, where the reader knows.
        audit: what the domain itself counts (see `Domain.audit`).
        example: one record before and after masking; empty for sensitive data unless asked for.
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

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def inspect(
    domain: str,
    paths: Sequence[str],
    *,
    format: str | None = None,
    options: Mapping[str, Any] | None = None,
    seed: int = 0,
    sensitive: bool = False,
    show_records: bool = False,
) -> Inspection:
    """Read files as a training would and count what is there; memory stays bounded.

    Nothing is raised for a bad record: all are counted by reason.

    Args:
        domain: its name.
        paths: files or folders; none for the domain's sample.
        format: of all files; guessed when absent.
        options: of the reader.
        seed: of split and samples.
        sensitive: treat the data as sensitive, also where the domain is not.
        show_records: show the example of sensitive data too.

    Raises:
        UsageError: an unknown domain, format or option.
        DataError: a path that does not exist.
    """
    found = plugins.domain(domain)
    data: dict[str, Any] = {"paths": list(paths), "format": format, "options": dict(options or {})}
    data["on_error"] = "skip"
    if sensitive:
        data["sensitive"] = True
    config = resolve(found, {"data": data, "seed": seed})
    reader = CorpusReader(config, found, Workspace.locate())
    problems = Problems("skip", sensitive=config.data.sensitive)
    census = Census(reader.split(), seed)

    def counted() -> Iterator[Record]:
        for name in reader.sources:
            for record in reader.records(name, problems):
                census.add(record)
                yield record

    audit = found.audit(counted(), problems)
    return _report(found, config, census, problems, audit, show_records)


def _report(
    domain: Domain,
    config: PretrainConfig,
    census: Census,
    problems: Problems,
    audit: Mapping[str, Any],
    show_records: bool,
) -> Inspection:
    hide, counts = config.data.sensitive, census.counts()
    looked = _Looked.at(domain, config, census.kept) if census.kept else _Looked.nothing()
    example = {}
    if looked.tokenizer is not None and (show_records or not hide):
        example = _example(domain, config, looked)
    return Inspection(
        records=_told(counts.records, hide),
        characters=census.characters,
        duplicates=_told(counts.duplicates, hide),
        estimated=not counts.exact,
        length_quantiles=tellable({"quantiles": census.lengths(_QUANTILES)}, hide)["quantiles"],
        looked_at=_told(len(looked.encodings), hide),
        unit=domain.unit,
        unit_quantiles=tellable({"quantiles": looked.units()}, hide)["quantiles"],
        vocabulary=tellable(looked.vocabulary(), hide),
        tokens={k: v for k, v in tellable(looked.tokens(), hide).items() if v != SMALL},
        outside_alphabet={} if hide else dict(looked.outside.most_common(_MOST_COMMON)),
        split={
            **_parts(
                {"train": counts.train, "validation": counts.validation, "calibration": counts.calibration},
                hide,
            ),
            "in both": _told(counts.leaked, hide),
        },
        problems=tellable(problems.counts, hide),
        places=problems.places,
        remedies=problems.remedies,
        audit=audit,
        example=example,
    )


def _told(count: int, hide: bool) -> Cell:
    return told(count) if hide else count


def _parts(counts: Mapping[str, int], hide: bool) -> dict[str, Cell]:
    return cells(counts, parts=True) if hide else dict(counts)


@dataclass(frozen=True, eq=False)
class _Looked:
    """The records that were encoded, and what could not be."""

    tokenizer: Tokenizer | None
    records: list[Record]
    encodings: list[Encoding]
    outside: Counter[str]

    @classmethod
    def nothing(cls) -> _Looked:
        return cls(None, [], [], Counter())

    @classmethod
    def at(cls, domain: Domain, config: PretrainConfig, kept: list[Record]) -> _Looked:
        """Encode records with the domain's tokenizer, trained on them where it has no vocabulary yet."""
        try:
            tokenizer = load_or_train(config, lambda: map(domain.training_text, kept))
        except DataError:  # too little to learn a vocabulary from: all else can be told
            return cls.nothing()
        outside: Counter[str] = Counter()
        spelled = []
        for record in kept:
            unknown = tokenizer.unknown(record.raw)
            outside.update(one.text for one in unknown)
            if not (unknown and tokenizer.closed):
                spelled.append(record)
        encodings = tokenizer.encode_batch([record.raw for record in spelled]) if spelled else []
        return cls(tokenizer, spelled, encodings, outside)

    def units(self) -> dict[str, int]:
        """Quantiles of the units of a record."""
        rule = None if self.tokenizer is None else self.tokenizer.units
        sizes = [len(rule.numbers(encoding)) for encoding in self.encodings] if rule is not None else []
        found = np.quantile(sizes or [0], _QUANTILES, method="inverted_cdf")
        return dict(zip(map(str, _QUANTILES), map(int, found), strict=True))

    def tokens(self) -> dict[str, int]:
        """The most common ordinary tokens, as the vocabulary spells them, with counts."""
        if self.tokenizer is None or not self.encodings:
            return {}
        space = self.tokenizer.space
        counts = np.bincount(np.concatenate([e.ids for e in self.encodings]), minlength=space.size)
        counts[space.is_special] = 0
        order = np.argsort(-counts, kind="stable")[:_MOST_COMMON]
        return {self.tokenizer.tokens[i]: int(counts[i]) for i in order.tolist() if counts[i]}

    def vocabulary(self) -> dict[str, Any]:
        """Name and size of the tokenizer, and how many tokens it could not spell."""
        if self.tokenizer is None:
            return {}
        unknown = self.tokenizer.space.unk
        ids = np.concatenate([e.ids for e in self.encodings]) if self.encodings else np.zeros(0)
        return {
            "tokenizer": self.tokenizer.name,
            "size": self.tokenizer.space.size,
            "unknown tokens": 0 if unknown is None else int(np.count_nonzero(ids == unknown)),
        }


def _example(domain: Domain, config: PretrainConfig, looked: _Looked) -> dict[str, str]:
    """The first record that can be shown, before and after masking."""
    if looked.tokenizer is None or not looked.records:
        return {}
    tokenizer, masking = looked.tokenizer, config.masking
    corruptor = Corruptor(masking, make_masker(masking, tokenizer), tokenizer.space, None, config.seed)
    record, encoding = looked.records[0], looked.encodings[0]
    masked = corruptor(encoding, 0, 0)
    places, put_there = masked.positions.astype(np.int32), masked.ids[masked.positions]
    shown = domain.show(tokenizer, record.raw, encoding, places, put_there)
    lines = dict(line.split(maxsplit=1) for line in shown.splitlines() if " " in line)
    names = {"true": "before", "masked": "chosen", "predicted": "after"}
    return {to: lines[name][:_EXAMPLE_CHARACTERS] for name, to in names.items() if name in lines}
