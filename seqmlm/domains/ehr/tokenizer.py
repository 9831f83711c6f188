"""The tokenizer of patient histories (`events.v1`): one token per event, and tokens for the time between
visits.

A history becomes its background and then its visits, with [VS] and [VE] around their events (CEHR-BERT, Pang
et al. 2021). A visit is a set of events. A code with a measured value is one token with the bin of the value.
This needs fewer tokens than a separate token for the value, but a larger vocabulary. Codes outside the
vocabulary become their family, so that not all rare codes are [UNK].
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from seqmlm.domains.ehr.history import History, is_birth
from seqmlm.domains.ehr.layout import (
    FIRST_INTERVAL,
    UNK,
    Events,
    Longs,
    Tables,
    lay_out,
    visit_starts,
)
from seqmlm.domains.ehr.units import SAME, unit
from seqmlm.domains.ehr.vocabulary import (
    INTERVALS,
    SPECIAL,
    Learning,
    Vocabulary,
    conversion_target,
    family,
    learn,
    spell,
    vocabulary_of,
)
from seqmlm.engine.types import Encoding
from seqmlm.engine.units import UnitFacts, Units
from seqmlm.engine.windows import windows_at
from seqmlm.errors import StateError, UsageError, nearest
from seqmlm.parsing import read_json
from seqmlm.tokenizers.base import Tokenizer, Traits, kept_options, options_of, read_card, space_of
from seqmlm.tokenizers.spelling import Spelling

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


VOCABULARY = "seqmlm_events.json"


class EventsTokenizer(Tokenizer):
    """A tokenizer with one token per event: first the background, then `[VS]` and `[VE]` around each visit.

    A code with a measured value is a token such as `LAB//2345-7//Q7`. Q1 is the lowest bin of the training
    data. A code with a value in words is a token such as `LAB//5778-6//=yellow`.

    Values of a code are converted to one unit if the conversion is known (`ehr.units`). Other units have
    separate bins, such as `LAB//x//Q7//=mmol/l`. A value without unit is read in the unit of its code if the
    training data have only one unit. Otherwise, such values have separate bins. If the training data do not
    have the unit of a value, only the code is used.

    The events of a visit are a set. Each event occurs once, and all have the same position. They are sorted
    by token, or shuffled in training (`augment`). A code outside the vocabulary becomes its family
    (`[ICD10//I50]`) or [UNK]. Birth is not a token. Units are events. Intervals, background and visit classes
    are not part of any unit.

    Spans are the positions of codes in `str(history)`. Channels are NaN for tokens without a value.

    Args:
        vocabulary: the trained vocabulary. `train` and `load` supply it.
        options: see `EventOptions`.
    """

    name: ClassVar[str] = "events.v1"
    traits: ClassVar[Traits] = Traits(unit="event", trainable=True, reads=lambda raw: hasattr(raw, "events"))

    def __init__(self, vocabulary: Vocabulary, options: EventOptions) -> None:
        self._vocabulary, self._options = vocabulary, options
        self._lexicon = Lexicon(vocabulary)
        self.tokens = self._lexicon.tokens
        self.options = {**asdict(options), "channels": list(options.channels)}
        self.channels = {name: CHANNELS[name] for name in options.channels}
        self.space = space_of(SPECIAL, len(self.tokens))
        gap, symbol = options.gap_hours * 3600, self._lexicon.symbol
        self._tables = Tables(symbol=symbol, rule=options.visits, gap=gap, channels=options.channels)

    @classmethod
    def train(cls, texts: Iterable[History], *, vocabulary_size: int | None = None, **options: Any) -> Self:
        """Train a tokenizer: select codes, families and value bins.

        Memory grows with the number of distinct codes.

        Args:
            texts: the histories, which are read once.
            vocabulary_size: maximum number of token ids. None keeps every code that enough subjects have.
            options: options of `EventOptions`.

        Raises:
            UsageError: unknown option, or the vocabulary size is too small.
            DataError: no code is frequent enough.
        """
        chosen = options_of(EventOptions, options, cls.name)
        how = Learning(min_subjects=chosen.min_subjects, bins=chosen.bins, size=vocabulary_size)
        return cls(learn(texts, how), chosen)

    @cached_property
    def units(self) -> Units:
        facts = UnitFacts(
            unfamiliar=self.space.unknown_ids,
            augment=_shuffled_visits,
            masking={"pools": list(self._lexicon.pools())},
        )
        return _Visits(self.space, facts)

    @cached_property
    def spelling(self) -> Spelling:
        return _Clinical(self._lexicon)

    def encode_batch(self, raws: Sequence[History]) -> list[Encoding]:
        """Encode histories. The class describes the tokens."""
        return lay_out(self._events(raws), self._tables) if raws else []

    def _events(self, raws: Sequence[History]) -> Events:
        """The events of a batch as flat columns, without births."""
        events = list(chain.from_iterable(raw.events for raw in raws))
        lexicon, count = self._lexicon, len(events)
        codes = [event.code for event in events]
        ids = np.fromiter(map(lexicon.codes.__getitem__, codes), np.int64, count)
        values = np.array([event.value for event in events], dtype=np.float64)
        units = [event.unit for event in events] if lexicon.vocabulary.units else []
        ids = lexicon.with_values(ids, values, codes, units)
        if lexicon.texts:
            for place, event in enumerate(events):
                if event.text and event.value is None:
                    ids[place] = lexicon.texts.get((event.code, event.text), ids[place])
        sources: dict[str | None, int] = {None: 0}
        visits = [sources.setdefault(event.visit, len(sources)) for event in events]
        kinds = {"": 0} | lexicon.kinds
        spans = list(chain.from_iterable(raw.code_spans() for raw in raws))
        flat = Events(
            subjects=len(raws),
            subject=np.repeat(np.arange(len(raws)), [len(raw.events) for raw in raws]),
            ids=ids,
            time=np.array([event.time for event in events], dtype=np.float64),
            source=np.array(visits, dtype=np.int64),
            kind=np.fromiter((kinds.get(event.kind, UNK) for event in events), np.int64, count),
            spans=np.array(spans, dtype=np.int64).reshape(-1, 2),
            birth=np.array([raw.birth for raw in raws], dtype=np.float64),
        )
        births = {code for code in set(codes) if is_birth(code)}
        if not births:
            return flat
        is_kept = np.array([code not in births for code in codes])
        columns = ("subject", "ids", "time", "source", "kind", "spans")
        return replace(flat, **{name: getattr(flat, name)[is_kept] for name in columns})

    def hf(self) -> PreTrainedTokenizerFast:
        """The vocabulary as a Hugging Face tokenizer.

        It splits text at white space, looks up each part as a token, and adds `[CLS]` and `[SEP]`. The text
        `" ".join(tokens[i] for i in ids[1:-1])` gives the same ids again.
        """
        from tokenizers import pre_tokenizers

        from seqmlm.tokenizers.fast import fast_tokenizer, word_level

        backend = word_level(self.tokens)
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        return fast_tokenizer(backend, SPECIAL)

    def _content(self) -> Any:
        # Descriptions, and which codes are shown as clinical events, do not change ids.
        return {
            name: part
            for name, part in self._vocabulary.to_dict().items()
            if name not in ("meanings", "frame")
        }

    def save(self, directory: Path) -> None:
        """Write the files of `Tokenizer.save`, and the file `VOCABULARY` with the codes and value bins."""
        directory.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self._vocabulary.to_dict(), ensure_ascii=False, indent=1)
        (directory / VOCABULARY).write_text(text + "\n", encoding="utf-8")
        super().save(directory)

    @classmethod
    def load(cls, directory: Path) -> Self:
        card = read_card(directory, expected=cls.name)
        path = directory / VOCABULARY
        try:
            values = read_json(path)
            vocabulary = Vocabulary.from_dict(values)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            kind = type(error).__name__  # the text of the error can quote a code of a patient
            raise StateError(f"{path} is not the vocabulary of an events tokenizer ({kind})") from None
        return cls(vocabulary, kept_options(EventOptions, card, cls.name))


class _Visits(Units):
    """The unit rule of histories: units are events, and windows begin with a visit."""

    def windows(self, encoding: Encoding, max_length: int) -> list[Encoding]:
        """Windows that have the background and then begin with a visit. The last window is full.

        A visit that is longer than a window is divided. If the background is longer than half a window,
        windows are cut without regard to background and visits.
        """
        if len(encoding) <= max_length:
            return [encoding]
        starts = visit_starts(encoding.ids)
        if not len(starts) or starts[0] > max_length // 2:
            return super().windows(encoding, max_length)
        return windows_at(encoding, self.space, max_length, starts)


def _shuffled_visits(encoding: Encoding, rng: np.random.Generator) -> Encoding:
    """The history with the events of each visit in random order, because a visit is a set."""
    keys = rng.random(len(encoding))
    inside = encoding.groups >= 0
    keys[inside] = rng.random(int(inside.sum()))
    assert encoding.positions is not None
    order = np.lexsort((keys, encoding.positions))
    groups = encoding.groups[order]
    groups[groups >= 0] = encoding.groups[inside]  # so that units stay in ascending order
    return replace(encoding.take(order), groups=groups)


class _Clinical(Spelling):
    """The text of tokens: codes as written in the data, and `//Q7` for the bin of a value."""

    def __init__(self, lexicon: Lexicon) -> None:
        super().__init__(lexicon.tokens)
        self._lexicon = lexicon

    def surface(self, token: int) -> str:
        return unquote(self.tokens[token])

    def unit_text(self, token: int) -> str | None:
        """The text from `surface`, or None if the token is not a clinical event."""
        first = FIRST_INTERVAL + len(INTERVALS)
        return None if token < first or token in self._lexicon.frame else self.surface(token)

    def meaning(self, text: str) -> str | None:
        """The description of a code. The text can also have the bin or the words of its value."""
        return self._lexicon.meanings.get(text)


VisitRule = Literal["auto", "id", "day", "gap"]

# Additional inputs that a model can have for each token, and how `seqmlm.engine.channels` encodes them.
CHANNELS: dict[str, dict[str, Any]] = {
    "age": {"kind": "time2vec", "center": 50.0, "scale": 100.0},
    "time": {"kind": "time2vec", "scale": 3650.0},
    "visit": {"kind": "sinusoid"},
    "segment": {"kind": "category", "size": 3},
}


@dataclass(frozen=True, kw_only=True)
class EventOptions:
    """Options of `events.v1`.

    Args:
        visits: how events form visits: by their visit in the source ("id"), by calendar day in UTC ("day"),
            or by pauses of `gap_hours` ("gap"). The default, "auto", uses the visit of the source, or the day
            if an event has none.
        gap_hours: hours without events between two visits, for "gap".
        bins: maximum number of bins for the values of a code. Bins have equal counts.
        min_subjects: minimum number of subjects for a token.
        channels: additional inputs of the model: age (years), time (days since the first visit), visit
            (number) and segment (1 and 2 alternating).
    """

    visits: VisitRule = "auto"
    gap_hours: float = 24.0
    bins: int = 10
    min_subjects: int = 10
    channels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.visits not in (rules := get_args(VisitRule)):
            raise UsageError(
                f"tokenizer option 'visits' must be one of {', '.join(rules)}, not {self.visits!r}"
            )
        for name in ("bins", "min_subjects", "gap_hours"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or value < 1:
                raise UsageError(f"tokenizer option {name!r} must be a number of at least 1; got {value!r}")
        if isinstance(self.channels, str):
            raise UsageError("tokenizer option 'channels' must be a list, such as [age, time]")
        object.__setattr__(self, "channels", tuple(self.channels))
        for name in self.channels:
            if name not in CHANNELS:
                raise UsageError(f"tokenizer option 'channels': unknown {name!r}{nearest(name, CHANNELS)}")


_REMEMBERED = 1 << 20  # maximum number of cached unknown codes
_NO_BINS, _BY_UNIT = -1, -2  # marks in place of a row of bins: no bins, or a row for each unit


class _Codes(dict[str, int]):
    """Code -> token. Codes outside the vocabulary get the token of their family, or [UNK]."""

    def __init__(self, families: dict[str, int]) -> None:
        super().__init__()
        self._families = families

    def __missing__(self, code: str) -> int:
        token = self._families.get(family(code), UNK)
        if len(self) < _REMEMBERED:
            self[code] = token
        return token


class Lexicon:
    """The tokens of a vocabulary: special tokens, intervals, visit classes, families, and codes with values.

    Attributes:
        tokens: (V,) the spelling of each id.
        codes, texts, kinds: the token of each code, (code, value in words) and visit class.
        symbol: (V,) the number of each token's family, -1 for tokens without a family.
        frame: tokens that are not clinical events: visit classes, background, and codes that open visits.
        meanings: text of a token as shown to users -> its description.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        tokens = [*SPECIAL, *(f"[{name}]" for name in INTERVALS)]
        homes: list[str] = [""] * len(SPECIAL) + ["interval"] * len(INTERVALS)

        def add(spelling: str, home: str) -> int:
            """Add a token, and return its id. Tokens with the same `home` are interchangeable."""
            tokens.append(spelling)
            homes.append(home)
            return len(tokens) - 1

        self.kinds = {kind: add(f"[VT:{spell(kind)}]", "class") for kind in vocabulary.kinds}
        families = {
            name: add(f"[{spell(name)}]", f"family {vocabulary_of(name)}") for name in vocabulary.families
        }
        self.codes = _Codes(families)
        self.texts: dict[tuple[str, str], int] = {}
        owners: dict[int, str] = {token: name for name, token in families.items()}
        self._first_bin: dict[tuple[str, str], int] = {}
        self.frame = set(self.kinds.values())
        self.meanings: dict[str, str] = dict(vocabulary.meanings)
        frame = set(vocabulary.frame)
        for code in vocabulary.codes:
            home, spelling = f"code {vocabulary_of(code)}", spell(code)
            self.codes[code] = code_token = add(spelling, home)
            code_tokens = [code_token]
            bins: list[int] = []
            sets = vocabulary.bins(code)
            for measure, edges in sets:
                self._first_bin[code, measure] = len(tokens)
                # No code has this ending or contains "//=", because `spell` escapes both.
                suffix = f"//={spell(measure)}" if measure and len(sets) > 1 else ""
                bins += [add(f"{spelling}//Q{n + 1}{suffix}", home) for n in range(len(edges) + 1)]
            for text in vocabulary.texts.get(code, ()):
                self.texts[code, text] = add(f"{spelling}//={spell(text)}", home)
                code_tokens.append(self.texts[code, text])
            owners.update(dict.fromkeys([*code_tokens, *bins], family(code)))
            if code in frame:
                self.frame.update(code_tokens, bins)
            if code in vocabulary.meanings:
                texts = (unquote(tokens[token]) for token in (*code_tokens, *bins))
                self.meanings |= dict.fromkeys(texts, vocabulary.meanings[code])
        self.tokens = tuple(tokens)
        self._homes = homes
        numbers = {name: n for n, name in enumerate(dict.fromkeys(owners.values()))}
        self.symbol = np.full(len(tokens), -1, dtype=np.int64)
        self.symbol[list(owners)] = [numbers[name] for name in owners.values()]

    def with_values(
        self, ids: Longs, values: NDArray[np.float64], codes: Sequence[str], units: Sequence[str | None]
    ) -> Longs:
        """(N,) the tokens of N events, in which a code with a measured value has the token of its bin.

        Args:
            ids: (N,) the tokens of the codes.
            values: (N,) the measured values, NaN for events without a value.
            codes: the codes.
            units: the units; empty if the vocabulary has no units.
        """
        rows, first, edges = self._bin_table
        row = rows[ids]
        measured = np.isfinite(values)
        if units:
            values = values.copy()
            for place in np.flatnonzero(measured & (row == _BY_UNIT)).tolist():
                row[place], scale, offset = self._row(codes[place], units[place])
                values[place] = values[place] * scale + offset
        binned = np.flatnonzero(measured & (row >= 0))
        row = row[binned]
        tokens = ids.copy()
        tokens[binned] = first[row] + (values[binned, None] > edges[row]).sum(axis=1)
        return tokens

    def _row(self, code: str, unit_text: str | None) -> tuple[int, float, float]:
        """The row of bins for values of a code in a unit, and the scale and offset of the conversion."""
        units = self.vocabulary.units[code]
        measure = unit(unit_text)
        if not measure and len(units) == 1:
            measure = next(iter(units))
        target = conversion_target(code, measure, units) if measure else None
        group, (scale, offset) = target or (measure, SAME)
        return self._bin_rows.get((code, group), _NO_BINS), scale, offset

    @cached_property
    def _bin_rows(self) -> dict[tuple[str, str], int]:
        """(code, unit) -> the index of its row of bins."""
        return {name: row for row, name in enumerate(self._first_bin)}

    @cached_property
    def _bin_table(self) -> tuple[Longs, Longs, NDArray[np.float64]]:
        """All bins of the vocabulary.

        Returns:
            (V,) the row of each token, or `_NO_BINS` or `_BY_UNIT`.
            (R,) the token of the first bin of each row.
            (R, E) the edges of each row, filled with inf.
        """
        sets = {code: dict(self.vocabulary.bins(code)) for code in self.vocabulary.codes}
        width = max((len(edges) for measures in sets.values() for edges in measures.values()), default=0)
        table = np.full((len(self._bin_rows), width), np.inf)
        rows = np.full(len(self.tokens), _NO_BINS, dtype=np.int64)
        for (code, measure), row in self._bin_rows.items():
            edges = sets[code][measure]
            table[row, : len(edges)] = edges
            if not measure:
                rows[self.codes[code]] = row
        rows[[self.codes[code] for code in self.vocabulary.units]] = _BY_UNIT
        return rows, np.array(list(self._first_bin.values()), dtype=np.int64), table

    def pools(self) -> Iterator[list[int]]:
        """The pools of interchangeable tokens, which are of the same kind and the same vocabulary."""
        pools: dict[str, list[int]] = {}
        for token in range(FIRST_INTERVAL, len(self.tokens)):
            pools.setdefault(self._homes[token], []).append(token)
        yield from pools.values()
