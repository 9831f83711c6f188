"""`seqmlm data inspect`: what is in a file, before anything is trained on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from seqmlm import plugins
from seqmlm.data.dedup import SeenHashes, hash128
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.data.splits import assign
from seqmlm.domains.base import Domain
from seqmlm.engine.masking.base import MaskingConfig
from seqmlm.engine.masking.corrupt import Corruptor
from seqmlm.tasks.corpus import split_source
from seqmlm.tasks.maskers import make_masker
from seqmlm.tokenizers.base import Tokenizer

_QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
_RESERVOIR = 100_000
_MOST_COMMON = 30
_LETTERS_FROM = 20_000  # records whose letters are counted: an alphabet shows early


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """What was found.

    Args:
        records, characters, duplicates: counts; duplicates are records whose raw text occurred before.
        length_quantiles: of the raw text, in characters.
        letters: the most common characters of the first records, with counts.
        outside_alphabet: letters the domain's tokenizer does not know, with counts.
        split: records that would train and validate.
        problems: bad records and oddities, by reason.
        example: one record before and after masking; empty for a sensitive domain.
    """

    records: int
    characters: int
    duplicates: int
    length_quantiles: Mapping[str, int]
    letters: Mapping[str, int]
    outside_alphabet: Mapping[str, int]
    split: Mapping[str, int]
    problems: Mapping[str, int]
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
) -> Inspection:
    """Read files as a training would and count what is there; memory stays bounded.

    Nothing is raised for a bad record: all are counted by reason.

    Raises:
        UsageError: an unknown domain, format or option.
        DataError: a path that does not exist.
    """
    found = plugins.domain(domain)
    kind = plugins.tokenizer_class(found.defaults.tokenizer)
    tokenizer = None if kind.trainable else kind(**found.defaults.tokenizer_options)
    problems = Problems("skip", sensitive=found.sensitive)
    tally = _Tally(found, tokenizer, seed)
    sources = [split_source(path)[1] for path in paths]
    for record in found.read(sources, problems, format=format, **(options or {})):
        tally.add(record)
    return tally.finish(problems)


class _Tally:
    """Counts kept while records stream by."""

    def __init__(self, domain: Domain, tokenizer: Tokenizer | None, seed: int) -> None:
        self.domain, self.tokenizer, self.seed = domain, tokenizer, seed
        self.records = self.characters = self.duplicates = 0
        self.seen = SeenHashes()
        self.letters: Counter[str] = Counter()
        self.outside: Counter[str] = Counter()
        self.split: Counter[str] = Counter()
        self.lengths: list[int] = []
        self.random = np.random.default_rng(seed)
        self.first: Record | None = None

    def add(self, record: Record) -> None:
        text = str(record.raw)
        self.records += 1
        self.characters += len(text)
        self.duplicates += int(not self.seen.add([hash128(record.raw)])[0])
        self.split[assign(self.domain.split_key(record), self.seed, 0.05)] += 1
        if self.records <= _LETTERS_FROM:
            self.letters.update(text)
        if self.tokenizer is not None:
            self.outside.update(unknown.text for unknown in self.tokenizer.unknown(record.raw))
        self._keep_length(len(text))
        self.first = self.first or record

    def _keep_length(self, length: int) -> None:
        """Reservoir sampling (Vitter 1985): every record has the same chance to be among those kept."""
        if len(self.lengths) < _RESERVOIR:
            self.lengths.append(length)
        elif (place := int(self.random.integers(self.records))) < _RESERVOIR:
            self.lengths[place] = length

    def finish(self, problems: Problems) -> Inspection:
        quantiles = np.quantile(self.lengths or [0], _QUANTILES, method="inverted_cdf")
        return Inspection(
            records=self.records,
            characters=self.characters,
            duplicates=self.duplicates,
            length_quantiles=dict(zip(map(str, _QUANTILES), map(int, quantiles), strict=True)),
            letters=dict(self.letters.most_common(_MOST_COMMON)),
            outside_alphabet=dict(self.outside.most_common(_MOST_COMMON)),
            split=dict(self.split),
            problems=problems.counts,
            example=self._example(),
        )

    def _example(self) -> dict[str, str]:
        """The first record before and after masking."""
        if self.first is None or self.domain.sensitive:
            return {}
        kind = plugins.tokenizer_class(self.domain.defaults.tokenizer)
        options = self.domain.defaults.tokenizer_options
        tokenizer = self.tokenizer or kind.train([self.domain.training_text(self.first)], **options)
        if tokenizer.unknown(self.first.raw):
            return {}
        config: MaskingConfig = self.domain.defaults.masking
        corruptor = Corruptor(config, make_masker(config, tokenizer), tokenizer.space, None, self.seed)
        encoding = tokenizer.encode(self.first.raw)
        masked = corruptor(encoding, 0, 0)
        places, put_there = masked.positions.astype(np.int32), masked.ids[masked.positions]
        text = self.domain.show(tokenizer, self.first.raw, encoding, places, put_there)
        shown = dict(line.split(maxsplit=1) for line in text.splitlines())
        return {"before": shown["true"], "chosen": shown["masked"], "after": shown["predicted"]}
