"""How a model judges variants: log-ratios by every convention, from one set of passes, none of them twice.

x is the wild type, y the mutant, M the places where they differ; the log-ratio of a place is the log-
probability of the new unit minus that of the old one. Summed over M, with places asked in

    wt          x unmasked (one pass; ESM's "wt-marginals")
    masked      x with this place masked (ESM's option "masked-marginals")
    mask_fill   x with all of M masked (the formula of Meier et al. 2021)
    mutant      y with this place masked
    match_fill  the new unit in y, the old one in x, each with this place masked
    pll_delta   pseudo-log-likelihood of y minus that of x: the only one that deletions and insertions have

For one substitution all but `wt` and `pll_delta` are the same. Of a sequence longer than the model every
place is asked in the window in whose middle it stands, as ProteinGym does; what lies outside does not count.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqmlm.domains.variants import Variant
from seqmlm.engine.query import Query
from seqmlm.engine.reductions import Rows
from seqmlm.engine.types import Encoding, Longs
from seqmlm.engine.units import QUERY_TOKENS
from seqmlm.engine.windows import window_around
from seqmlm.errors import UsageError
from seqmlm.inference.batches import encoded_texts
from seqmlm.inference.scorer import RecordScorer
from seqmlm.inference.session import Session

MASKED = ("masked", "wt", "mask_fill", "mutant", "match_fill")
CONVENTIONS = (*MASKED, "pll_delta")

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Effects = dict[str, float]


class Context(NamedTuple):
    """What a place is asked in: a copy of a wild type.

    Args:
        place: the unit that is asked.
        masked: units that hold [MASK].
        put: (unit, token) of those that hold another token.
    """

    place: int
    masked: tuple[int, ...] = ()
    put: tuple[tuple[int, int], ...] = ()


class _Wildtype:
    """A wild type, and what is known of it.

    Args:
        text: raw.
        encoding: of it, every unit a token.
        tokens: (U,) where its units stand.

    Attributes:
        known: (V,) log-probabilities in the contexts that variants share.
        pll: its pseudo-log-likelihood, or None as long as nobody asked.
    """

    def __init__(self, text: str, encoding: Encoding, tokens: Longs) -> None:
        self.text, self.encoding, self.tokens = text, encoding, tokens
        self.known: dict[Context, Floats] = {}
        self.pll: float | None = None


class _Place(NamedTuple):
    """A place of a variant: the tokens that stand there before and after, and the contexts it is asked in."""

    old: int
    new: int
    wt: Context
    masked: Context
    mask_fill: Context
    mutant: Context


class VariantScorer:
    """Scores variants with one model.

    Args:
        session: the model; counts must not be mixed in.
        letters: what can stand at one place.
        pll: the PLL-delta of all variants, not of deletions and insertions alone.
    """

    def __init__(self, session: Session, letters: str, *, pll: bool = False) -> None:
        self.session, self._pll, self._letters = session, pll, letters
        self._scorer = RecordScorer(session)
        self._wildtypes: dict[str, _Wildtype] = {}
        alphabet = self._checked(letters, session.tokenizer.encode_symbols(letters))
        self._ids = dict(zip(letters, alphabet.encoding.ids[alphabet.tokens], strict=True))

    def effects(self, variants: Sequence[Variant]) -> list[Effects]:
        """Log-ratios (nats) of some variants by convention, higher = fitter; {} for what is not scored.

        Raises:
            DataError: a sequence that cannot be spelled.
            UsageError: a unit of the model is not one letter.
        """
        found: list[Effects] = [{} for _ in variants]
        places = {n: self._places(one) for n, one in enumerate(variants) if one.scored and one.substitutions}
        contexts: dict[str, dict[Context, None]] = {}
        for number, own in places.items():
            wanted = contexts.setdefault(variants[number].wildtype, {})
            wanted.update(dict.fromkeys(context for place in own for context in place[2:]))
            if own and len(self._own(variants[number].wildtype).encoding) <= self.session.card.max_length:
                # One pass answers for all places: later batches will find theirs there.
                wanted.update(dict.fromkeys(map(Context, range(len(variants[number].wildtype)))))
        answers = {text: self._rows(self._own(text), asked) for text, asked in contexts.items()}
        for number, own in places.items():
            found[number] = _summed(own, answers[variants[number].wildtype])
        whole = [n for n, one in enumerate(variants) if one.scored and (self._pll or not one.substitutions)]
        for number, delta in zip(whole, self._deltas([variants[n] for n in whole]), strict=True):
            found[number] |= delta
        return found

    def map(self, wildtype: str) -> Doubles:
        """(L, A) log-ratio of each letter in place of what stands there, by `masked`; L units."""
        own = self._own(wildtype)
        contexts = [Context(place, (place,)) for place in range(len(own.tokens))]
        answers = self._rows(own, contexts)
        rows = np.stack([answers[one] for one in contexts]).astype(np.float64)
        old = own.encoding.ids[own.tokens]
        return np.asarray(rows[:, list(self._ids.values())] - rows[np.arange(len(old)), old][:, None])

    def bits(self) -> float | None:
        """Mean surprisal of what the wild types have at the places asked by `masked`; None if none was."""
        found = [
            -float(row[own.encoding.ids[own.tokens[one.place]]])
            for own in self._wildtypes.values()
            for one, row in own.known.items()
            if one.masked
        ]
        return float(np.mean(found)) / math.log(2) if found else None

    def _own(self, text: str) -> _Wildtype:
        if text not in self._wildtypes:
            [encoding] = encoded_texts(self.session.tokenizer, [text])
            self._wildtypes[text] = self._checked(text, encoding)
        return self._wildtypes[text]

    def _checked(self, text: str, encoding: Encoding) -> _Wildtype:
        tokens = self.session.tokenizer.units.places(encoding)
        if len(tokens) != len(text) or np.count_nonzero(encoding.groups >= 0) != len(text):
            raise UsageError("variants need a model whose units are single letters, each a token")
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

    def _deltas(self, variants: Sequence[Variant]) -> list[Effects]:
        """PLL of each mutant minus that of its wild type, and the same of their means over units."""
        new = [
            text for text in dict.fromkeys(one.wildtype for one in variants) if self._own(text).pll is None
        ]
        texts = [*new, *(one.mutant for one in variants)]
        scores = self._scorer.sequences(encoded_texts(self.session.tokenizer, texts))
        for text, score in zip(new, scores, strict=False):
            self._own(text).pll = score.pll
        found = []
        for one, score in zip(variants, scores[len(new) :], strict=True):
            before = self._own(one.wildtype).pll or 0.0
            mean = score.pll / max(1, len(one.mutant)) - before / len(one.wildtype)
            found.append({"pll_delta": score.pll - before, "pll_delta_per_unit": mean})
        return found


def _summed(places: Sequence[_Place], rows: Mapping[Context, Floats]) -> Effects:
    """The conventions' log-ratios, summed over the places of a variant."""
    found = dict.fromkeys(MASKED, 0.0)
    for one in places:
        for name in ("wt", "masked", "mask_fill", "mutant"):
            row = rows[getattr(one, name)]
            found[name] += float(row[one.new]) - float(row[one.old])
        found["match_fill"] += float(rows[one.mutant][one.new]) - float(rows[one.masked][one.old])
    return found
