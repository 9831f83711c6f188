"""How a model judges variants: log-ratios by every convention, from one set of passes, none of them twice.

x is the wild type, y the mutant, M the places where they differ; the log-ratio of a place is the log-
probability of the new unit minus that of the old one. Summed over M, with places asked in

    wt          x unmasked (one pass; ESM's "wt-marginals")
    masked      x with this place masked (ESM's option "masked-marginals")
    mask_fill   x with all of M masked (the formula of Meier et al. 2021)
    mutant      y with this place masked
    match_fill  the new unit in y, the old one in x, each with this place masked
    pll_delta   pseudo-log-likelihood of y minus that of x
    pll_excess  the same of what each place has above its expectation, the negative entropy there

Deletions and insertions have the last two alone. A unit that is lost or gained counts in `pll_delta` whatever
it is, so that this says little more than how long a deletion is; by `pll_excess` a unit that is as probable
as expected counts nothing.

For one substitution all but `wt` and the last two are the same. Of a sequence longer than the model every
place is asked in the window in whose middle it stands, as ProteinGym does; what lies outside does not count.

Where a token is several letters (k-mers, byte pairs) a letter is hidden with all tokens that show it,
and read as a letter: `masked` is the one masked convention there. Of both strands the mean is taken.

Beside them stands how well the model knows the wild type: by so many bits does what stands at the places of a
variant surprise it, by `masked`. Effects are worth little where chance does as well (Gordon et al. 2024).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqmlm.anomaly.values import Scored
from seqmlm.domains.variants import Variant
from seqmlm.engine.query import Query
from seqmlm.engine.reductions import Entropy, Rows
from seqmlm.engine.types import Encoding, Longs
from seqmlm.engine.units import QUERY_TOKENS
from seqmlm.engine.windows import window_around
from seqmlm.errors import UsageError
from seqmlm.inference.batches import Encoded, encoded_texts
from seqmlm.inference.scorer import RecordScorer
from seqmlm.inference.session import NO_RECORD, Session
from seqmlm.tokenizers.base import encode_symbols

MASKED = ("masked", "wt", "mask_fill", "mutant", "match_fill")
WHOLE = ("pll_delta", "pll_excess")
CONVENTIONS = (*MASKED, *WHOLE)
BITS = "wildtype_bits"
NOT_LETTERS = "variants need a model whose units are single letters, each a token"

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Effects = dict[str, float]


class Context(NamedTuple):
    """What a place is asked in: a copy of a wild type.

    place: the unit that is asked. masked: units that hold [MASK]. put: (unit, token) of those that hold
    another token.
    """

    place: int
    masked: tuple[int, ...] = ()
    put: tuple[tuple[int, int], ...] = ()


class _Wildtype:
    """A wild type, and what is known of it.

    tokens: (U,) where its units stand, every one a token, one a letter; -1 where a letter is no unit.
    known: (V,) log-probabilities in the contexts that variants share.
    pll: its pseudo-log-likelihood and the excess of that, or None as long as nobody asked.
    """

    def __init__(self, text: str, encoding: Encoding, tokens: Longs) -> None:
        self.text, self.encoding, self.tokens = text, encoding, tokens
        self.known: dict[Context, Floats] = {}
        self.pll: _Likelihood | None = None


class _Shared:
    """Places of a wild type that several variants have, in chunks which are each asked by themselves.

    Args:
        places: all of them, ascending. size: of a chunk.

    Attributes:
        first: of each chunk the variant that needs it first, in the order of the file.
    """

    def __init__(self, places: Sequence[int], size: int) -> None:
        self._chunk = {place: number // size for number, place in enumerate(places)}
        self._size, self._places = size, places
        self._due = set(self._chunk.values())
        self.first: dict[int, Variant] = {}

    def add(self, variant: Variant) -> None:
        """Take the next variant of the file."""
        for number in self._of(variant):
            self.first.setdefault(number, variant)

    def _of(self, variant: Variant) -> set[int]:
        return {self._chunk[edit.start] for edit in variant.edits if edit.start in self._chunk}

    def places(self, variant: Variant) -> int:
        """Places that are asked for a variant, since it is the first one that needs them."""
        own = [number for number in self._of(variant) if self.first.get(number) is variant]
        return sum(len(self._places_of(number)) for number in own)

    def _places_of(self, number: int) -> Sequence[int]:
        return self._places[number * self._size : (number + 1) * self._size]

    def due(self, variants: Iterable[Variant]) -> list[Sequence[int]]:
        """The chunks that some variants need and that were not asked yet, each once."""
        due = sorted(self._due & set().union(*map(self._of, variants)))
        self._due -= set(due)
        return [self._places_of(number) for number in due]


class _Place(NamedTuple):
    """A place of a variant: the tokens that stand there before and after, and the contexts it is asked in."""

    old: int
    new: int
    wt: Context
    masked: Context
    mask_fill: Context
    mutant: Context


class _Likelihood(NamedTuple):
    """Of a sequence, in nats: the pseudo-log-likelihood, and what of it is above its expectation."""

    pll: float
    excess: float

    @classmethod
    def of(cls, one: Scored) -> _Likelihood:
        """Of what was scored, with the entropy of each unit."""
        bits, expected = float(one.surprisal.sum()), float(one.values[Entropy.name].sum())
        return cls(pll=-bits * math.log(2), excess=(expected - bits) * math.log(2))


class VariantScorer:
    """Scores variants with one model.

    Args:
        session: the model; counts must not be mixed in.
        letters: what can stand at one place.
        pll: the PLL-delta and its excess of all variants, not of deletions and insertions alone.
        mirrored: the same variant as the other strand has it, or None; the mean of both is taken.
        windows: nearly every variant has a wild type of its own: none is remembered for a later call.

    Attributes:
        one_letter: whether every letter is a token; else `masked` is the one masked convention.

    Raises:
        UsageError: the model's units are not single letters.
    """

    def __init__(
        self,
        session: Session,
        letters: str,
        *,
        pll: bool = False,
        mirrored: Callable[[Variant], Variant | None] = lambda one: None,
        windows: bool = False,
    ) -> None:
        self.session, self._pll, self._letters = session, pll, letters
        self._mirrored = mirrored if session.tokenizer.units.mirrored else lambda one: None
        self._windows = windows
        self._scorer = RecordScorer(session)
        self._wildtypes: dict[str, _Wildtype] = {}
        self._shared: dict[str, _Shared] = {}
        self._whole: dict[str, Variant] = {}  # the first variant of each wild type that needs its likelihood
        self._symbols = session.tokenizer.units.names
        self.one_letter = self._symbols is None or session.tokenizer.traits.single_tokens
        if self.one_letter:
            own = self._checked(letters, encode_symbols(session.tokenizer, letters))
            self._ids = dict(zip(letters, own.encoding.ids[own.tokens], strict=True))
        elif not set(letters) <= set(self._symbols or ()):
            raise UsageError(NOT_LETTERS)

    def expect(self, variants: Iterable[Variant]) -> None:
        """Variants that will be asked about in several batches: what they share is asked once.

        It is asked by itself, so that no answer depends on which variants are in a batch, and in chunks of
        about two seconds of work by estimate, so that rows can be committed in between.
        """
        places, scored = dict[str, set[int]](), [one for one in variants if one.scored]
        for one in scored:
            if one.flank is None and self._needs_pll(one):
                self._whole.setdefault(one.wildtype, one)
            if one.substitutions and self.one_letter:
                places.setdefault(one.wildtype, set()).update(edit.start for edit in one.edits)
        for text, own in places.items():
            size = self.session.budget.batch / max(1.0, self._place_cost(text))
            self._shared[text] = _Shared(sorted(own), max(1, int(size)))
        for one in scored:
            if one.substitutions and one.wildtype in self._shared:
                self._shared[one.wildtype].add(one)

    def cost(self, variant: Variant) -> float:
        """Forward tokens that a variant takes, by estimate.

        What several variants share counts for the first of them in the file.
        """
        if not variant.scored:
            return 0.0
        tokens, edits, total = self._tokens(variant.wildtype), len(variant.edits), 0.0
        longest, copy = self.session.card.max_length, self.session.copy_tokens(tokens)
        shared = self._shared.get(variant.wildtype)
        if variant.substitutions and shared is not None:
            total += self._place_cost(variant.wildtype) * shared.places(variant)
            total += (1 + edits) * copy if edits > 1 else 0.0
        elif variant.substitutions:
            copies = edits if not self.one_letter else 2 if edits == 1 else 2 + 2 * edits
            total += min(tokens, longest) + copies * copy
        if self._needs_pll(variant):
            total += self._pll_cost(variant, tokens)
        return total if self._mirrored(variant) is None else 2 * total

    def _pll_cost(self, variant: Variant, tokens: int) -> float:
        """Forward tokens of the likelihoods of a mutant and, where it is not known before, its wild type."""
        cost, changed = self.session.budget.cost, sum(len(edit.text) for edit in variant.edits)
        gone = sum(edit.end - edit.start for edit in variant.edits)
        if variant.flank is not None:
            asked = 4 * variant.flank + changed + gone
            return asked * self.session.copy_tokens(tokens) + 2 * min(tokens, self.session.card.max_length)
        before = cost(tokens) if self._whole.get(variant.wildtype, variant) is variant else 0.0
        return before + cost(max(0, tokens + changed - gone))

    def _needs_pll(self, variant: Variant) -> bool:
        return self._pll or not variant.substitutions

    def _place_cost(self, text: str) -> float:
        """Forward tokens of a place asked hidden and seen, the latter in a window that others may share."""
        tokens, longest = self._tokens(text), self.session.card.max_length
        return self.session.copy_tokens(tokens) + (longest if tokens > longest else 0)

    def _tokens(self, text: str) -> int:
        """Of a wild type; where a letter is a token all but start and end are letters."""
        return len(text) + 2 if self.one_letter else self.session.tokens(text)

    def effects(self, variants: Sequence[Variant]) -> list[Effects]:
        """Log-ratios (nats) of some variants by convention, higher = fitter; {} for what is not scored.

        Where `masked` is known, `BITS` is beside it.

        Raises:
            DataError: a sequence that cannot be spelled.
            UsageError: a unit of the model is not one letter.
        """
        others = {n: other for n, one in enumerate(variants) if (other := self._mirrored(one)) is not None}
        found = self._effects([*variants, *others.values()])
        for number, behind in zip(others, found[len(variants) :], strict=True):
            found[number] = {name: (value + behind[name]) / 2 for name, value in found[number].items()}
        if self._windows:
            self._wildtypes.clear()
        return found[: len(variants)]

    def _effects(self, variants: Sequence[Variant]) -> list[Effects]:
        found: list[Effects] = [{} for _ in variants]
        exchanged = [n for n, one in enumerate(variants) if one.scored and one.substitutions]
        effects_of = self._exchanged if self.one_letter else self._hidden
        whole = [n for n, one in enumerate(variants) if one.scored and self._needs_pll(one)]
        for numbers, effects in ((exchanged, effects_of), (whole, self._deltas)):
            for n, own in zip(numbers, effects([variants[n] for n in numbers]), strict=True):
                found[n] |= own
        return found

    def _exchanged(self, variants: Sequence[Variant]) -> list[Effects]:
        """`MASKED` of substitutions, where every letter is a token."""
        places = [self._places(one) for one in variants]
        contexts: dict[str, dict[Context, None]] = {}
        for variant, own in zip(variants, places, strict=True):
            wanted = contexts.setdefault(variant.wildtype, {})
            wanted.update(dict.fromkeys(context for place in own for context in place[2:]))
        for text in filter(self._shared.__contains__, contexts):
            own_variants = [one for one in variants if one.wildtype == text]
            for chunk in self._shared[text].due(own_variants):
                self._rows(self._own(text), [Context(one, at) for one in chunk for at in ((), (one,))])
        answers = {text: self._rows(self._own(text), asked) for text, asked in contexts.items()}
        found = []
        for variant, own in zip(variants, places, strict=True):
            rows = answers[variant.wildtype]
            found.append(_summed(own, rows) | _bits([float(rows[one.masked][one.old]) for one in own]))
        return found

    def map(self, wildtype: str) -> Doubles:
        """(L, A) log-ratio of each letter in place of what stands there, by `masked`; NaN of gaps."""
        own = self._own(wildtype)
        places = np.flatnonzero(own.tokens >= 0)
        contexts = [Context(place, (place,)) for place in places.tolist()]
        answers = self._rows(own, contexts)
        rows = np.stack([answers[one] for one in contexts]).astype(np.float64)
        old = own.encoding.ids[own.tokens[places]]
        found = np.full((len(own.tokens), len(self._ids)), np.nan)
        found[places] = rows[:, list(self._ids.values())] - rows[np.arange(len(old)), old][:, None]
        return found

    def _own(self, text: str) -> _Wildtype:
        if text not in self._wildtypes:
            [encoding] = encoded_texts(self.session.tokenizer, [text])
            self._wildtypes[text] = self._checked(text, encoding)
        return self._wildtypes[text]

    def _checked(self, text: str, encoding: Encoding) -> _Wildtype:
        tokens = self.session.tokenizer.units.places(encoding)
        units = np.count_nonzero(encoding.groups >= 0)
        if len(tokens) < len(text) and encoding.spans is not None:  # N is no unit: nothing stands there
            every = np.full(len(text), -1, dtype=np.int64)
            every[encoding.spans[tokens, 0]] = tokens
            nowhere = {letter for letter, token in zip(text, every, strict=True) if token < 0}
            tokens = tokens if nowhere & set(self._letters) else every
        if len(tokens) != len(text) or units != np.count_nonzero(tokens >= 0):
            raise UsageError(NOT_LETTERS)
        return _Wildtype(text, encoding, tokens)

    def _places(self, variant: Variant) -> list[_Place]:
        own = self._own(variant.wildtype)
        new = {edit.start: int(self._ids[edit.text]) for edit in variant.edits}
        every = tuple(new)
        return [
            _Place(
                old=int(own.encoding.ids[own.tokens[place]]),
                new=token,
                wt=Context(place),
                masked=Context(place, (place,)),
                mask_fill=Context(place, every),
                mutant=Context(place, (place,), tuple(one for one in new.items() if one[0] != place)),
            )
            for place, token in new.items()
        ]

    def _rows(self, own: _Wildtype, contexts: Iterable[Context]) -> Mapping[Context, Floats]:
        """(V,) log-probabilities of all tokens at the place of each context; none is asked twice."""
        found = {one: own.known[one] for one in contexts if one in own.known}
        windows: dict[int, tuple[Encoding, list[Context]]] = {}
        longest, space = self.session.card.max_length, self.session.tokenizer.space
        for one in contexts:
            if one not in found:
                token = int(own.tokens[one.place])
                # From the place itself on, so that windows of an even length begin where ProteinGym's do.
                window = window_around(own.encoding, space, longest, token, token)
                first = int(window.groups[window.groups >= 0][0])
                windows.setdefault(first, (window, []))[1].append(one)
        queries, of = [], []
        for window, asked in windows.values():
            copies: dict[Context, list[Context]] = {}
            for one in asked:
                copies.setdefault(one._replace(place=0), []).append(one)
            step, several = max(1, QUERY_TOKENS // len(window)), list(copies.values())
            for at in range(0, len(several), step):
                queries.append(self._query(own, window, several[at : at + step]))
                of.append([one for copy in several[at : at + step] for one in copy])
        for answer, part in zip(self.session.conditionals().ask(queries, [Rows()]), of, strict=True):
            found |= dict(zip(part, answer.values[Rows.name], strict=True))
        own.known |= {one: row for one, row in found.items() if not one.put and len(one.masked) < 2}
        return found

    def _query(self, own: _Wildtype, window: Encoding, copies: Sequence[Sequence[Context]]) -> Query:
        """One question about a window: a variant for each copy, in which all its places are asked."""
        there = {int(group): at for at, group in enumerate(window.groups) if group >= 0}
        groups = own.encoding.groups[own.tokens].tolist()
        at = [there.get(group, -1) for group in groups]  # -1: outside the window
        every = list(enumerate(one[0] for one in copies))
        masked = [(at[unit], n) for n, one in every for unit in one.masked if at[unit] >= 0]
        put = [(at[unit], token, n) for n, one in every for unit, token in one.put if at[unit] >= 0]
        asked = [(at[one.place], n) for n, copy in enumerate(copies) for one in copy]
        hidden, changed = np.array(masked, dtype=np.int32).reshape(-1, 2), np.array(put, dtype=np.int32)
        read = np.array(asked, dtype=np.int32)
        return Query(
            encoding=window,
            masked=hidden[:, 0],
            masked_in=hidden[:, 1],
            asked=read[:, 0],
            asked_in=read[:, 1],
            substituted=changed[:, 0] if put else None,
            substitutes=changed[:, 1] if put else None,
            substituted_in=changed[:, 2] if put else None,
        )

    def _hidden(self, variants: Sequence[Variant]) -> list[Effects]:
        """`masked` where tokens are several letters: each letter hidden with all tokens that show it."""
        rule, session = self.session.tokenizer.units, self.session
        assert rule.names is not None
        symbol = {letter: number for number, letter in enumerate(rule.names)}
        encodings = encoded_texts(session.tokenizer, [one.wildtype for one in variants])
        queries, of = [], []
        for number, (one, encoding) in enumerate(zip(variants, encodings, strict=True)):
            for edit in one.edits:
                gapped = rule.open(encoding, [(edit.start, edit.end)])
                queries.append(rule.ask_gaps(rule.narrowed(gapped, 0, session.card.max_length)))
                of.append((number, symbol[edit.text], symbol[one.wildtype[edit.start]]))
        ratios, known = [0.0] * len(variants), [list[float]() for _ in variants]
        want = (Rows(),)
        answers = session.conditionals().ask(queries, rule.needs(want))
        for (number, new, old), query, answer in zip(of, queries, answers, strict=True):
            [row] = rule.read(query, answer, want).values[Rows.name]
            ratios[number] += float(row[new]) - float(row[old])
            known[number].append(float(row[old]))
        return [{"masked": ratio} | _bits(own) for ratio, own in zip(ratios, known, strict=True)]

    def _deltas(self, variants: Sequence[Variant]) -> list[Effects]:
        """`WHOLE` of each mutant and its wild type, and the PLL-delta of their means over units."""
        whole = [one for one in variants if one.flank is None]
        for own in {one.wildtype: self._own(one.wildtype) for one in whole}.values():
            if own.pll is None:
                [own.pll] = self._likelihoods([own.encoding])
        encodings = encoded_texts(self.session.tokenizer, [one.mutant for one in whole])
        wanted = [np.ones(len(one), dtype=np.bool_) for one in encodings]
        for one in variants:
            if one.flank is not None:
                pair = encoded_texts(self.session.tokenizer, [one.wildtype, one.mutant])
                wanted += self._segments(one, pair[0], pair[1])
                encodings += pair
        likelihoods = self._likelihoods(encodings, wanted)
        mutants, pairs = iter(likelihoods[: len(whole)]), iter(likelihoods[len(whole) :])
        found = []
        for one in variants:
            before = self._own(one.wildtype).pll if one.flank is None else next(pairs)
            after = next(mutants if one.flank is None else pairs)
            assert before is not None
            found.append({"pll_delta": after.pll - before.pll, "pll_excess": after.excess - before.excess})
            if one.flank is None:
                mean = after.pll / max(1, len(one.mutant)) - before.pll / len(one.wildtype)
                found[-1]["pll_delta_per_unit"] = mean
        return found

    def _likelihoods(
        self, encodings: Sequence[Encoding], wanted: Sequence[NDArray[np.bool_]] | None = None
    ) -> list[_Likelihood]:
        """Of sequences, or of their tokens that are wanted."""
        every = wanted or [np.ones(len(one), dtype=np.bool_) for one in encodings]
        batch = [Encoded(NO_RECORD, one) for one in encodings]
        return [*map(_Likelihood.of, self._scorer.scored(batch, want=(Entropy(),), wanted=every))]

    def _segments(self, variant: Variant, old: Encoding, new: Encoding) -> list[NDArray[np.bool_]]:
        """(L,) of wild type and mutant: the tokens of what changes and of `flank` letters at each side.

        Tokens may be cut otherwise in the mutant: the segment ends where both have the end of a token, so
        that both count the same letters beside the change.
        """
        assert variant.flank is not None
        sizes = len(variant.wildtype), len(variant.mutant)
        left = max(0, variant.edits[0].start - variant.flank)
        right = max(0, sizes[0] - variant.edits[-1].end - variant.flank)
        # Residues have no spans: there each token is a letter, and its group says which.
        spans = [_spans(one) for one in (old, new)]
        starts = np.intersect1d(spans[0][:, 0], spans[1][:, 0])
        ends = np.intersect1d(sizes[0] - spans[0][:, 1], sizes[1] - spans[1][:, 1])
        left = int(starts[starts <= left].max(initial=0))
        right = int(ends[ends <= right].max(initial=0))
        rule, found = self.session.tokenizer.units, []
        for encoding, size in zip((old, new), sizes, strict=True):
            at = rule.spans(encoding)[:, 0]
            wanted = np.zeros(len(encoding), dtype=np.bool_)
            wanted[rule.places(encoding)[(at >= left) & (at < size - right)]] = True
            found.append(wanted)
        return found


def _bits(log_probs: Sequence[float]) -> Effects:
    """The mean surprisal of what the wild type has, by name; nothing where nothing changes."""
    return {BITS: -float(np.mean(log_probs, dtype=np.float64)) / math.log(2)} if log_probs else {}


def _spans(encoding: Encoding) -> Longs:
    """(T, 2) the letters of each token that is one."""
    inside = encoding.groups >= 0
    if encoding.spans is not None:
        return encoding.spans[inside].astype(np.int64)
    return encoding.groups[inside].astype(np.int64)[:, None] + np.arange(2)


def _summed(places: Sequence[_Place], rows: Mapping[Context, Floats]) -> Effects:
    """The conventions' log-ratios, summed over the places of a variant."""
    found = dict.fromkeys(MASKED, 0.0)
    for one in places:
        for name in ("wt", "masked", "mask_fill", "mutant"):
            row = rows[getattr(one, name)]
            found[name] += float(row[one.new]) - float(row[one.old])
        found["match_fill"] += float(rows[one.mutant][one.new]) - float(rows[one.masked][one.old])
    return found
