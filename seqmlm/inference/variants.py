"""Score variants with log-ratios in several conventions, from shared forward passes without repetition.

x is the wild type, y is the mutant, and M are the places where they differ. The log-ratio of a place is the
log-probability of the new unit minus the log-probability of the old unit. It is summed over M. The
places are predicted with

    wt          x unmasked (one pass; ESM's "wt-marginals")
    masked      x with this place masked (ESM's option "masked-marginals")
    mask_fill   x with all of M masked (the formula of Meier et al. 2021)
    mutant      y with this place masked
    match_fill  the new unit in y, the old unit in x, each with this place masked
    pll_delta   pseudo-log-likelihood of y minus pseudo-log-likelihood of x
    pll_excess  the same, but each place counts minus its expectation, the negative entropy there

Deletions and insertions have only the last two. In `pll_delta`, a lost or gained unit counts, whatever it is.
Therefore it mostly measures the length of a deletion. In `pll_excess`, a unit that is as probable as expected
counts 0.

For a single substitution, all except `wt` and the last two are equal. In a sequence longer than the model
allows, each place is predicted in the window around it, as in ProteinGym. Content outside the window has no
effect.

If a token has several letters (k-mers, byte pairs), a letter is masked with all tokens that show it, and
predicted as a letter. Then `masked` is the only masked convention. With two strands, the mean of both is
used.

The results also include how well the model knows the wild type: its mean surprisal in bits at the places of a
variant, with `masked`. Effects are of little value if a random guess does as well (Gordon et al. 2024).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqmlm.anomaly.values import ScoredRecord
from seqmlm.domains.variants import Variant
from seqmlm.engine.gap_queries import gap_window, gaps_query
from seqmlm.engine.query import Query
from seqmlm.engine.reductions import Entropy, Rows
from seqmlm.engine.types import Encoding, Longs
from seqmlm.engine.units import QUERY_TOKENS
from seqmlm.engine.windows import window_around
from seqmlm.errors import UsageError
from seqmlm.inference.record_batches import Encoded, encoded_texts
from seqmlm.inference.scorer import RecordScorer
from seqmlm.inference.session import NO_RECORD, Session
from seqmlm.tokenizers.base import encode_symbols

MASKED = ("masked", "wt", "mask_fill", "mutant", "match_fill")
WHOLE = ("pll_delta", "pll_excess")
CONVENTIONS = (*MASKED, *WHOLE)
BITS = "wildtype_bits"
NOT_LETTERS = "variants need a model whose units are single letters, with a token for each letter"

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Effects = dict[str, float]


class Context(NamedTuple):
    """A copy of a wild type in which the distribution at one place is read.

    Attributes:
        place: the unit that is read.
        masked: units that are replaced with [MASK].
        substitutions: (unit, token) for units that are replaced with another token.
    """

    place: int
    masked: tuple[int, ...] = ()
    substitutions: tuple[tuple[int, int], ...] = ()


class _Wildtype:
    """A wild type with its tokens and the log-probabilities computed so far.

    Each of its units is one token and one letter.

    Attributes:
        tokens: (U,) the position of each unit's token, and -1 if a letter is not a unit.
        log_probs: (V,) log-probabilities, in the contexts that variants share.
        pll: the pseudo-log-likelihood, with its excess. None until it is computed.
    """

    def __init__(self, text: str, encoding: Encoding, tokens: Longs) -> None:
        self.text, self.encoding, self.tokens = text, encoding, tokens
        self.log_probs: dict[Context, Floats] = {}
        self.pll: _Likelihood | None = None


class _Shared:
    """Places of a wild type that several variants share, in chunks that are computed separately.

    Args:
        places: all places, ascending.
        size: number of places in a chunk.

    Attributes:
        first: for each chunk, the first variant in the file that needs it.
    """

    def __init__(self, places: Sequence[int], size: int) -> None:
        self._chunk = {place: number // size for number, place in enumerate(places)}
        self._size, self._places = size, places
        self._due = set(self._chunk.values())
        self.first: dict[int, Variant] = {}

    def add(self, variant: Variant) -> None:
        """Add the next variant of the file."""
        for number in self._of(variant):
            self.first.setdefault(number, variant)

    def _of(self, variant: Variant) -> set[int]:
        return {self._chunk[edit.start] for edit in variant.edits if edit.start in self._chunk}

    def places(self, variant: Variant) -> int:
        """The number of places that are computed for a variant, because it is the first to need them."""
        first_needed = [number for number in self._of(variant) if self.first.get(number) is variant]
        return sum(len(self._places_of(number)) for number in first_needed)

    def _places_of(self, number: int) -> Sequence[int]:
        return self._places[number * self._size : (number + 1) * self._size]

    def due(self, variants: Iterable[Variant]) -> list[Sequence[int]]:
        """The chunks that some variants need and that were not computed yet, each once."""
        due = sorted(self._due & set().union(*map(self._of, variants)))
        self._due -= set(due)
        return [self._places_of(number) for number in due]


class _Place(NamedTuple):
    """A place of a variant: the old and the new token, and the contexts in which it is read."""

    old_token: int
    new_token: int
    wt: Context
    masked: Context
    mask_fill: Context
    mutant: Context


class _Likelihood(NamedTuple):
    """Pseudo-log-likelihood of a sequence (nats), and its excess over the expectation."""

    pll: float
    excess: float

    @classmethod
    def of(cls, score: ScoredRecord) -> _Likelihood:
        """The likelihood of a sequence from its scores, which must have the entropy of each unit."""
        bits, expected = float(score.surprisal.sum()), float(score.values[Entropy.name].sum())
        return cls(pll=-bits * math.log(2), excess=(expected - bits) * math.log(2))


class VariantScorer:
    """Scores variants with one model.

    Args:
        session: the model. Counts must not be mixed in.
        letters: the letters that may occur at a place.
        pll: whether to compute `pll_delta` and `pll_excess` for all variants, not only for deletions and
            insertions.
        mirrored: returns the same variant on the other strand, or None. The mean of both is used.
        windows: whether nearly every variant has its own wild type. Wild types are then not remembered for
            later calls.

    Attributes:
        one_letter: whether every letter is a token. If not, `masked` is the only masked convention.

    Raises:
        UsageError: the units of the model are not single letters.
    """

    def __init__(
        self,
        session: Session,
        letters: str,
        *,
        pll: bool = False,
        mirrored: Callable[[Variant], Variant | None] = lambda variant: None,
        windows: bool = False,
    ) -> None:
        self.session, self._pll, self._letters = session, pll, letters
        self._mirrored = mirrored if session.tokenizer.units.facts.strands else lambda variant: None
        self._windows = windows
        self._scorer = RecordScorer(session)
        self._wildtypes: dict[str, _Wildtype] = {}
        self._shared: dict[str, _Shared] = {}
        self._whole: dict[str, Variant] = {}  # first variant of each wild type that needs its likelihood
        self._symbols = session.tokenizer.units.facts.names
        self.one_letter = self._symbols is None or session.tokenizer.traits.single_tokens
        if self.one_letter:
            alphabet = self._checked(letters, encode_symbols(session.tokenizer, letters))
            self._ids = dict(zip(letters, alphabet.encoding.ids[alphabet.tokens], strict=True))
        elif not set(letters) <= set(self._symbols or ()):
            raise UsageError(NOT_LETTERS)

    def expect(self, variants: Iterable[Variant]) -> None:
        """Announce variants of several batches, so that shared contexts are computed once.

        Shared contexts are computed separately, so that no result depends on which variants are in a batch.
        They are divided into chunks of about two seconds of work by estimate, so that rows can be committed
        in between.
        """
        places, scored = dict[str, set[int]](), [variant for variant in variants if variant.scored]
        for variant in scored:
            if variant.flank is None and self._needs_pll(variant):
                self._whole.setdefault(variant.wildtype, variant)
            if variant.substitutions and self.one_letter:
                places.setdefault(variant.wildtype, set()).update(edit.start for edit in variant.edits)
        for text, wildtype_places in places.items():
            size = self.session.budget.batch / max(1.0, self._place_cost(text))
            self._shared[text] = _Shared(sorted(wildtype_places), max(1, int(size)))
        for variant in scored:
            if variant.substitutions and variant.wildtype in self._shared:
                self._shared[variant.wildtype].add(variant)

    def cost(self, variant: Variant) -> float:
        """Estimate the forward tokens for a variant.

        Contexts that several variants share count for the first of these variants in the file.
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
        """Forward tokens for the likelihood of a mutant and, if not known yet, of its wild type."""
        cost, new_letters = self.session.budget.cost, sum(len(edit.text) for edit in variant.edits)
        old_letters = sum(edit.end - edit.start for edit in variant.edits)
        if variant.flank is not None:
            copies = 4 * variant.flank + new_letters + old_letters
            return copies * self.session.copy_tokens(tokens) + 2 * min(tokens, self.session.card.max_length)
        wildtype_cost = cost(tokens) if self._whole.get(variant.wildtype, variant) is variant else 0.0
        return wildtype_cost + cost(max(0, tokens + new_letters - old_letters))

    def _needs_pll(self, variant: Variant) -> bool:
        return self._pll or not variant.substitutions

    def _place_cost(self, text: str) -> float:
        """Forward tokens for a place, masked and unmasked.

        Other places may share the window of the latter.
        """
        tokens, longest = self._tokens(text), self.session.card.max_length
        return self.session.copy_tokens(tokens) + (longest if tokens > longest else 0)

    def _tokens(self, text: str) -> int:
        """Number of tokens of a wild type. If each letter is a token, they are its letters, start and end."""
        return len(text) + 2 if self.one_letter else self.session.tokens(text)

    def effects(self, variants: Sequence[Variant]) -> list[Effects]:
        """Log-ratios (nats) of variants, by convention. Higher is fitter.

        Variants that are not scored have none.

        If `masked` is available, the result also has `BITS`.

        Raises:
            DataError: a sequence cannot be tokenized.
            UsageError: a unit of the model is not a single letter.
        """
        mirrored = {
            n: twin for n, variant in enumerate(variants) if (twin := self._mirrored(variant)) is not None
        }
        ratios = self._effects([*variants, *mirrored.values()])
        for number, twin_ratios in zip(mirrored, ratios[len(variants) :], strict=True):
            ratios[number] = {name: (ratio + twin_ratios[name]) / 2 for name, ratio in ratios[number].items()}
        if self._windows:
            self._wildtypes.clear()
        return ratios[: len(variants)]

    def _effects(self, variants: Sequence[Variant]) -> list[Effects]:
        ratios: list[Effects] = [{} for _ in variants]
        exchanged = [n for n, variant in enumerate(variants) if variant.scored and variant.substitutions]
        effects_of = self._substitution_effects if self.one_letter else self._letter_effects
        with_pll = [n for n, variant in enumerate(variants) if variant.scored and self._needs_pll(variant)]
        for numbers, effects in ((exchanged, effects_of), (with_pll, self._deltas)):
            for n, variant_ratios in zip(numbers, effects([variants[n] for n in numbers]), strict=True):
                ratios[n] |= variant_ratios
        return ratios

    def _substitution_effects(self, variants: Sequence[Variant]) -> list[Effects]:
        """The `MASKED` conventions of substitutions, if every letter is a token."""
        places = [self._places(variant) for variant in variants]
        contexts: dict[str, dict[Context, None]] = {}
        for variant, variant_places in zip(variants, places, strict=True):
            wildtype_contexts = contexts.setdefault(variant.wildtype, {})
            wildtype_contexts.update(
                dict.fromkeys(context for place in variant_places for context in place[2:])
            )
        for text in filter(self._shared.__contains__, contexts):
            own_variants = [variant for variant in variants if variant.wildtype == text]
            for chunk in self._shared[text].due(own_variants):
                self._rows(
                    self._wildtype_of(text),
                    [Context(place, masked) for place in chunk for masked in ((), (place,))],
                )
        answers = {
            text: self._rows(self._wildtype_of(text), text_contexts)
            for text, text_contexts in contexts.items()
        }
        effects = []
        for variant, variant_places in zip(variants, places, strict=True):
            rows = answers[variant.wildtype]
            effects.append(
                _ratio_sums(variant_places, rows)
                | _bits([float(rows[place.masked][place.old_token]) for place in variant_places])
            )
        return effects

    def map(self, text: str) -> Doubles:
        """(L, A) log-ratio of each letter to the letter of the sequence, with `masked`. NaN for gaps."""
        wildtype = self._wildtype_of(text)
        places = np.flatnonzero(wildtype.tokens >= 0)
        contexts = [Context(place, (place,)) for place in places.tolist()]
        answers = self._rows(wildtype, contexts)
        rows = np.stack([answers[context] for context in contexts]).astype(np.float64)
        old_tokens = wildtype.encoding.ids[wildtype.tokens[places]]
        ratios = np.full((len(wildtype.tokens), len(self._ids)), np.nan)
        ratios[places] = (
            rows[:, list(self._ids.values())] - rows[np.arange(len(old_tokens)), old_tokens][:, None]
        )
        return ratios

    def _wildtype_of(self, text: str) -> _Wildtype:
        if text not in self._wildtypes:
            [encoding] = encoded_texts(self.session.tokenizer, [text])
            self._wildtypes[text] = self._checked(text, encoding)
        return self._wildtypes[text]

    def _checked(self, text: str, encoding: Encoding) -> _Wildtype:
        tokens = self.session.tokenizer.units.places(encoding)
        units = np.count_nonzero(encoding.groups >= 0)
        if len(tokens) < len(text) and encoding.spans is not None:  # N is not a unit: it has no token
            letter_tokens = np.full(len(text), -1, dtype=np.int64)
            letter_tokens[encoding.spans[tokens, 0]] = tokens
            nowhere = {letter for letter, token in zip(text, letter_tokens, strict=True) if token < 0}
            tokens = tokens if nowhere & set(self._letters) else letter_tokens
        if len(tokens) != len(text) or units != np.count_nonzero(tokens >= 0):
            raise UsageError(NOT_LETTERS)
        return _Wildtype(text, encoding, tokens)

    def _places(self, variant: Variant) -> list[_Place]:
        wildtype = self._wildtype_of(variant.wildtype)
        new_tokens = {edit.start: int(self._ids[edit.text]) for edit in variant.edits}
        edited = tuple(new_tokens)
        return [
            _Place(
                old_token=int(wildtype.encoding.ids[wildtype.tokens[place]]),
                new_token=token,
                wt=Context(place),
                masked=Context(place, (place,)),
                mask_fill=Context(place, edited),
                mutant=Context(
                    place,
                    (place,),
                    tuple(substitution for substitution in new_tokens.items() if substitution[0] != place),
                ),
            )
            for place, token in new_tokens.items()
        ]

    def _rows(self, wildtype: _Wildtype, contexts: Iterable[Context]) -> Mapping[Context, Floats]:
        """(V,) log-probabilities of all tokens at the place of each context. No context is computed twice."""
        log_probs = {
            context: wildtype.log_probs[context] for context in contexts if context in wildtype.log_probs
        }
        windows: dict[int, tuple[Encoding, list[Context]]] = {}
        longest, space = self.session.card.max_length, self.session.tokenizer.space
        for context in contexts:
            if context not in log_probs:
                token = int(wildtype.tokens[context.place])
                # From the place itself, so that windows with an even length start where those of ProteinGym
                # start.
                window = window_around(wildtype.encoding, space, longest, token, token)
                first = int(window.groups[window.groups >= 0][0])
                windows.setdefault(first, (window, []))[1].append(context)
        queries, origins = [], []
        for window, window_contexts in windows.values():
            copies: dict[Context, list[Context]] = {}
            for context in window_contexts:
                copies.setdefault(context._replace(place=0), []).append(context)
            copies_per_query, groups = max(1, QUERY_TOKENS // len(window)), list(copies.values())
            for first_copy in range(0, len(groups), copies_per_query):
                queries.append(
                    self._query(wildtype, window, groups[first_copy : first_copy + copies_per_query])
                )
                origins.append(
                    [
                        context
                        for copy in groups[first_copy : first_copy + copies_per_query]
                        for context in copy
                    ]
                )
        for answer, query_contexts in zip(
            self.session.conditionals().ask(queries, [Rows()]), origins, strict=True
        ):
            log_probs |= dict(zip(query_contexts, answer.values[Rows.name], strict=True))
        wildtype.log_probs |= {
            context: row
            for context, row in log_probs.items()
            if not context.substitutions and len(context.masked) < 2
        }
        return log_probs

    def _query(self, wildtype: _Wildtype, window: Encoding, copies: Sequence[Sequence[Context]]) -> Query:
        """A query about a window, with a variant for each copy.

        All places of a copy are read in its variant.
        """
        token_of_group = {int(group): at for at, group in enumerate(window.groups) if group >= 0}
        groups = wildtype.encoding.groups[wildtype.tokens].tolist()
        at = [token_of_group.get(group, -1) for group in groups]  # -1: outside the window
        first_contexts = list(enumerate(copy[0] for copy in copies))
        masked = [(at[unit], n) for n, context in first_contexts for unit in context.masked if at[unit] >= 0]
        substituted = [
            (at[unit], token, n)
            for n, context in first_contexts
            for unit, token in context.substitutions
            if at[unit] >= 0
        ]
        read_places = [(at[context.place], n) for n, copy in enumerate(copies) for context in copy]
        hidden, changed = (
            np.array(masked, dtype=np.int32).reshape(-1, 2),
            np.array(substituted, dtype=np.int32),
        )
        read_in = np.array(read_places, dtype=np.int32)
        return Query(
            encoding=window,
            masked=hidden[:, 0],
            masked_in=hidden[:, 1],
            asked=read_in[:, 0],
            asked_in=read_in[:, 1],
            substituted=changed[:, 0] if substituted else None,
            substitutes=changed[:, 1] if substituted else None,
            substituted_in=changed[:, 2] if substituted else None,
        )

    def _letter_effects(self, variants: Sequence[Variant]) -> list[Effects]:
        """`masked` if tokens have several letters. Each letter is masked with all tokens that show it."""
        rule, session = self.session.tokenizer.units, self.session
        assert rule.facts.names is not None
        symbol = {letter: number for number, letter in enumerate(rule.facts.names)}
        encodings = encoded_texts(session.tokenizer, [variant.wildtype for variant in variants])
        queries, origins = [], []
        for number, (variant, encoding) in enumerate(zip(variants, encodings, strict=True)):
            for edit in variant.edits:
                gapped = rule.open_gaps(encoding, [(edit.start, edit.end)])
                queries.append(gaps_query(rule, gap_window(rule, gapped, 0, session.card.max_length)))
                origins.append((number, symbol[edit.text], symbol[variant.wildtype[edit.start]]))
        ratios, wildtype_log_probs = [0.0] * len(variants), [list[float]() for _ in variants]
        want = (Rows(),)
        answers = session.conditionals().ask(queries, rule.needs(want))
        for (number, new_symbol, old_symbol), query, answer in zip(origins, queries, answers, strict=True):
            [row] = rule.unit_log_probs(query, answer, want).values[Rows.name]
            ratios[number] += float(row[new_symbol]) - float(row[old_symbol])
            wildtype_log_probs[number].append(float(row[old_symbol]))
        return [
            {"masked": ratio} | _bits(log_probs)
            for ratio, log_probs in zip(ratios, wildtype_log_probs, strict=True)
        ]

    def _deltas(self, variants: Sequence[Variant]) -> list[Effects]:
        """The `WHOLE` conventions of mutants and wild types, and the difference of their means per unit."""
        unflanked = [variant for variant in variants if variant.flank is None]
        for wildtype in {
            variant.wildtype: self._wildtype_of(variant.wildtype) for variant in unflanked
        }.values():
            if wildtype.pll is None:
                [wildtype.pll] = self._likelihoods([wildtype.encoding])
        encodings = encoded_texts(self.session.tokenizer, [variant.mutant for variant in unflanked])
        selected = [np.ones(len(encoding), dtype=np.bool_) for encoding in encodings]
        for variant in variants:
            if variant.flank is not None:
                pair = encoded_texts(self.session.tokenizer, [variant.wildtype, variant.mutant])
                selected += self._segments(variant, pair[0], pair[1])
                encodings += pair
        likelihoods = self._likelihoods(encodings, selected)
        mutants, pairs = iter(likelihoods[: len(unflanked)]), iter(likelihoods[len(unflanked) :])
        effects = []
        for variant in variants:
            wildtype_likelihood = (
                self._wildtype_of(variant.wildtype).pll if variant.flank is None else next(pairs)
            )
            mutant_likelihood = next(mutants if variant.flank is None else pairs)
            assert wildtype_likelihood is not None
            effects.append(
                {
                    "pll_delta": mutant_likelihood.pll - wildtype_likelihood.pll,
                    "pll_excess": mutant_likelihood.excess - wildtype_likelihood.excess,
                }
            )
            if variant.flank is None:
                mean = mutant_likelihood.pll / max(1, len(variant.mutant)) - wildtype_likelihood.pll / len(
                    variant.wildtype
                )
                effects[-1]["pll_delta_per_unit"] = mean
        return effects

    def _likelihoods(
        self, encodings: Sequence[Encoding], selected: Sequence[NDArray[np.bool_]] | None = None
    ) -> list[_Likelihood]:
        """Likelihoods of sequences. With masks (L,), only their selected tokens count."""
        masks = selected or [np.ones(len(encoding), dtype=np.bool_) for encoding in encodings]
        batch = [Encoded(NO_RECORD, encoding) for encoding in encodings]
        return [*map(_Likelihood.of, self._scorer.unit_scores(batch, want=(Entropy(),), selected=masks))]

    def _segments(self, variant: Variant, wildtype: Encoding, mutant: Encoding) -> list[NDArray[np.bool_]]:
        """(L,) masks of the wild type and mutant: tokens of the change and of `flank` letters on each side.

        The mutant may be tokenized differently. A segment therefore ends at token ends that both share, so
        that both count the same letters around the change.
        """
        assert variant.flank is not None
        sizes = len(variant.wildtype), len(variant.mutant)
        prefix = max(0, variant.edits[0].start - variant.flank)
        suffix = max(0, sizes[0] - variant.edits[-1].end - variant.flank)
        # Residues have no spans. There, each token is a letter, and its group is the number of the letter.
        spans = [_spans(encoding) for encoding in (wildtype, mutant)]
        starts = np.intersect1d(spans[0][:, 0], spans[1][:, 0])
        ends = np.intersect1d(sizes[0] - spans[0][:, 1], sizes[1] - spans[1][:, 1])
        prefix = int(starts[starts <= prefix].max(initial=0))
        suffix = int(ends[ends <= suffix].max(initial=0))
        rule, segments = self.session.tokenizer.units, []
        for encoding, size in zip((wildtype, mutant), sizes, strict=True):
            at = rule.spans(encoding)[:, 0]
            selected = np.zeros(len(encoding), dtype=np.bool_)
            selected[rule.places(encoding)[(at >= prefix) & (at < size - suffix)]] = True
            segments.append(selected)
        return segments


def _bits(log_probs: Sequence[float]) -> Effects:
    """The mean surprisal of the wild type's units at the changed places, by name. Empty without a change."""
    return {BITS: -float(np.mean(log_probs, dtype=np.float64)) / math.log(2)} if log_probs else {}


def _spans(encoding: Encoding) -> Longs:
    """(T, 2) start and end of each token of a unit, in letters."""
    inside = encoding.groups >= 0
    if encoding.spans is not None:
        return encoding.spans[inside].astype(np.int64)
    return encoding.groups[inside].astype(np.int64)[:, None] + np.arange(2)


def _ratio_sums(places: Sequence[_Place], rows: Mapping[Context, Floats]) -> Effects:
    """The log-ratios of the conventions, summed over the places of a variant."""
    ratios = dict.fromkeys(MASKED, 0.0)
    for place in places:
        for name in ("wt", "masked", "mask_fill", "mutant"):
            row = rows[getattr(place, name)]
            ratios[name] += float(row[place.new_token]) - float(row[place.old_token])
        ratios["match_fill"] += float(rows[place.mutant][place.new_token]) - float(
            rows[place.masked][place.old_token]
        )
    return ratios
