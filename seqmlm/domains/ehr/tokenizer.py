"""Patient histories (`events.v1`): one token per event, visits as sets, tokens for the time between visits.

A history becomes background, then visits with [VS] and [VE] around their events (CEHR-BERT, Pang et al.
2021). A code with a measured value is one token with the bin of the value: fewer tokens than separate ones,
at the cost of a larger vocabulary. Codes outside the vocabulary fall back to their family, so that rare codes
are not all [UNK].
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
    """One token per event, `[VS]` and `[VE]` around a visit, background first.

    A code with a measured value is `LAB//2345-7//Q7`, Q1 being the lowest bin of the training data; with a
    value in words, `LAB//5778-6//=yellow`. Values are converted to one unit of their code where a factor is
    known (`ehr.units`); units that remain have bins of their own, `LAB//x//Q7//=mmol/l`. A value without
    unit is taken to be in its code's unit where training data had only one, and else has bins apart; one in
    a unit that training data did not have is the code alone.

    The events of a visit are a set: each once, sorted by token, all at one position, in any order during
    training (`augment`). A code outside the vocabulary becomes its family (`[ICD10//I50]`), else [UNK];
    births are not tokens. Units are events; intervals, background and visit classes belong to none.

    Spans are the codes in `str(history)`. Channels hold NaN where a token has no such value.

    Args:
        vocabulary: what was learnt; `train` and `load` make it.
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
        """Learn codes, families and value bins from histories read once; memory grows with distinct codes.

        Args:
            vocabulary_size: the most ids; None keeps every code of enough subjects.
            options: of `EventOptions`.

        Raises:
            UsageError: an unknown option, or a vocabulary size that leaves no room.
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
        """Encode histories; see the class for the tokens."""
        return lay_out(self._events(raws), self._tables) if raws else []

    def _events(self, raws: Sequence[History]) -> Events:
        """The events of a batch as flat columns."""
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
        """A tokenizer of the vocabulary's own spelling: tokens between white space; adds `[CLS]` and `[SEP]`.

        `" ".join(tokens[i] for i in ids[1:-1])` gives those ids again.
        """
        from tokenizers import pre_tokenizers

        from seqmlm.tokenizers.fast import fast_tokenizer, word_level

        backend = word_level(self.tokens)
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        return fast_tokenizer(backend, SPECIAL)

    def _content(self) -> Any:
        # Neither descriptions nor what is shown determine ids.
        return {
            name: part
            for name, part in self._vocabulary.to_dict().items()
            if name not in ("meanings", "frame")
        }

    def save(self, directory: Path) -> None:
        """Write what `Tokenizer.save` writes, and the vocabulary with its value bins in a file of its own."""
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
            kind = type(error).__name__  # the error itself may quote a code of a patient
            raise StateError(f"{path} is not the vocabulary of an events tokenizer ({kind})") from None
        return cls(vocabulary, kept_options(EventOptions, card, cls.name))


class _Visits(Units):
    """Events in visits."""

    def windows(self, encoding: Encoding, max_length: int) -> list[Encoding]:
        """Windows that begin with a visit, the background before each; the last one is full.

        A visit longer than a window is divided; if the background takes more than half of a window, windows
        are cut without regard to either.
        """
        if len(encoding) <= max_length:
            return [encoding]
        starts = visit_starts(encoding.ids)
        if not len(starts) or starts[0] > max_length // 2:
            return super().windows(encoding, max_length)
        return windows_at(encoding, self.space, max_length, starts)


def _shuffled_visits(encoding: Encoding, rng: np.random.Generator) -> Encoding:
    """A history with the events of each visit in random order, since they are a set."""
    keys = rng.random(len(encoding))
    inside = encoding.groups >= 0
    keys[inside] = rng.random(int(inside.sum()))
    assert encoding.positions is not None
    order = np.lexsort((keys, encoding.positions))
    groups = encoding.groups[order]
    groups[groups >= 0] = encoding.groups[inside]  # units are in ascending order
    return replace(encoding.take(order), groups=groups)


class _Clinical(Spelling):
    """Codes as the data have them, with `//Q7` for a value's bin."""

    def __init__(self, lexicon: Lexicon) -> None:
        super().__init__(lexicon.tokens)
        self._lexicon = lexicon

    def surface(self, token: int) -> str:
        return unquote(self.tokens[token])

    def unit_text(self, token: int) -> str | None:
        """The text that `surface` gives; None for the frame of visits, which is no clinical event."""
        first = FIRST_INTERVAL + len(INTERVALS)
        return None if token < first or token in self._lexicon.frame else self.surface(token)

    def meaning(self, text: str) -> str | None:
        """The description of a code, also where the bin or words of its value follow."""
        return self._lexicon.meanings.get(text)


VisitRule = Literal["auto", "id", "day", "gap"]

# Further inputs a model can have for each token, and how `seqmlm.engine.channels` reads them.
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
        visits: what makes events one visit: "id" the source's visit, "day" the calendar day (UTC), "gap"
            less than `gap_hours` since the event before, "auto" the source's visit where there is one, else
            the day.
        gap_hours: see `visits`.
        bins: most bins of a measured value, of equal counts.
        min_subjects: fewest subjects that a token may stand for.
        channels: further inputs: any of age (years), time (days since the first visit), visit (number),
            segment (1 and 2 alternating).
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
                raise UsageError(f"tokenizer option {name!r} must be a number of at least 1, not {value!r}")
        if isinstance(self.channels, str):
            raise UsageError("tokenizer option 'channels' is a list, such as [age, time]")
        object.__setattr__(self, "channels", tuple(self.channels))
        for name in self.channels:
            if name not in CHANNELS:
                raise UsageError(f"tokenizer option 'channels': unknown {name!r}{nearest(name, CHANNELS)}")


_REMEMBERED = 1 << 20  # unknown codes cached
_NO_BINS, _BY_UNIT = -1, -2  # instead of the number of a code's bins: it has none, or each unit its own


class _Codes(dict[str, int]):
    """Code to token; codes outside the vocabulary get their family's token, else [UNK]."""

    def __init__(self, families: dict[str, int]) -> None:
        super().__init__()
        self._families = families

    def __missing__(self, code: str) -> int:
        token = self._families.get(family(code), UNK)
        if len(self) < _REMEMBERED:
            self[code] = token
        return token


class Lexicon:
    """The tokens of a vocabulary: special ones, intervals, visit classes, families, codes with their values.

    Attributes:
        tokens: (V,) spelling of each id.
        codes, texts, kinds: any code, (code, value in words), and visit class to token.
        symbol: (V,) number of the family a token is of, -1 for none.
        frame: tokens of visit classes, background and what opens visits.
        meanings: what users see of a code, or of one with a value, to its description.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        tokens = [*SPECIAL, *(f"[{name}]" for name in INTERVALS)]
        homes: list[str] = [""] * len(SPECIAL) + ["interval"] * len(INTERVALS)

        def add(spelling: str, home: str) -> int:
            """Add a token; its id."""
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
                # No code ends so, nor has "//=" in it: see `spell`.
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
        """(N,) tokens of events, those with a number moved to its bin, of the tokens, values (NaN for none),
        codes and units (none where the vocabulary has none) of N events.
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
        """The row of bins for values of a code in a unit, and the scale and offset that convert them."""
        units = self.vocabulary.units[code]
        measure = unit(unit_text)
        if not measure and len(units) == 1:
            measure = next(iter(units))
        target = conversion_target(code, measure, units) if measure else None
        group, (scale, offset) = target or (measure, SAME)
        return self._bin_rows.get((code, group), _NO_BINS), scale, offset

    @cached_property
    def _bin_rows(self) -> dict[tuple[str, str], int]:
        """(code, unit) to the number of its bins among all."""
        return {name: row for row, name in enumerate(self._first_bin)}

    @cached_property
    def _bin_table(self) -> tuple[Longs, Longs, NDArray[np.float64]]:
        """(V,) row of each code with bins, or `_NO_BINS` or `_BY_UNIT`; (R,) the token of each row's first
        bin; (R, E) edges, then inf."""
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
        """Pools of interchangeable tokens: of one vocabulary, and of the same form."""
        pools: dict[str, list[int]] = {}
        for token in range(FIRST_INTERVAL, len(self.tokens)):
            pools.setdefault(self._homes[token], []).append(token)
        yield from pools.values()
