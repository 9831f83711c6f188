"""What maps of dependence mean in DNA and RNA: stems, bases that pair around a loop.

Of all sets of complementary pairs that do not cross, the one is taken whose values stand out most in sum
(`seqmlm.structure.nested`). Its rivals need no model: the longest stem that the letters allow, and the pairs
that the other sequences have at the same places, which says much where all are of one family.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from seqmlm.data.files import MAX_BYTES, source_of, stem_suffix
from seqmlm.data.lines import lines
from seqmlm.data.problems import Problems
from seqmlm.data.readers.biopython import entries, parsed
from seqmlm.data.record import Record
from seqmlm.domains.samples import read_truth
from seqmlm.domains.structure import Decoded, Decoder, Pair, Truth
from seqmlm.errors import DataError
from seqmlm.evaluation.detection import Detection
from seqmlm.evaluation.intervals import ratio
from seqmlm.structure.maps import DependenceMap, apc
from seqmlm.structure.nested import nested
from seqmlm.structure.network import outstanding

Bools = NDArray[np.bool_]
Doubles = NDArray[np.float64]

SCHEMA = "seqmlm.sample.dna.v1"

LOOP, LEAST = 3, 3
"""Bases of a loop, and stacked pairs of a stem, at least."""

DEVIATIONS, OWN = 5.0, 0.05
"""A pair counts if its evidence is so many standard deviations above the median (pairs side by side have much
of it in common, so that noise has stems of it, too), and if so much of it is of its own value."""

Z = 3.0
"""Where a null model was drawn, a pair counts by how many more of its standard deviations it is above it."""

STACKED = (1.0, 1.0, 0.5)
"""Weight of a pair in the evidence for it, of each one stacked on it, and of each one after the next."""

_PAIRING = ("AT", "TA", "CG", "GC", "GT", "TG")  # the wobble pair of RNA too
_OPEN, _CLOSED = "([{<", ")]}>"
_STOCKHOLM = (".sto", ".stk", ".stockholm")


def complementary(units: Sequence[str]) -> Bools:
    """(N, N) bases that can pair, with room for a loop; the upper triangle alone."""
    spelled = [unit.upper().replace("U", "T") for unit in units]
    can = np.array([[a + b in _PAIRING for b in spelled] for a in spelled], dtype=np.bool_)
    return np.triu(can.reshape(len(spelled), len(spelled)), LOOP + 1)


def stacked(can: Bools) -> NDArray[np.int64]:
    """(N, N) of each pair that can be, how many stacked pairs are in the longest stem through it."""
    size = len(can)
    outer = np.zeros((size + 2, size + 2), dtype=np.int64)  # with a border of nothing
    inner = np.zeros_like(outer)
    for i in range(1, size + 1):
        outer[i, 1:-1] = can[i - 1] * (1 + outer[i - 1, 2:])
    for i in range(size, 0, -1):
        inner[i, 1:-1] = can[i - 1] * (1 + inner[i + 1, :-2])
    length: NDArray[np.int64] = np.maximum(outer + inner - 1, 0)[1:-1, 1:-1] * can
    return length


def longest_stem(can: Bools) -> frozenset[Pair]:
    """The longest stem that the letters allow, the first of several; nothing where none is long enough."""
    length = stacked(can)
    if not length.size or length.max() < LEAST:
        return frozenset()
    i, j = divmod(int(length.argmax()), len(can))
    return frozenset((i + k, j - k) for k in range(int(length[i, j])))


def supported(values: Doubles, can: Bools) -> Doubles:
    """(N, N) how much pairs and those stacked on them stand out of a map; the upper triangle alone.

    A stem is several pairs, so that each vouches for the next ones, while what depends on each other for
    another reason (neighbours, bases of one motif) rarely does so in pairs that can stack. Added up are what
    a pair, those next to it and, half, those after the next ones are above the median, of corrected values
    (`seqmlm.structure.maps.apc`); a pair that cannot be adds nothing.

    Args:
        values: (N, N) symmetric; NaN where nothing is known.
        can: (N, N) pairs that can be, see `complementary`; the upper triangle alone.
    """
    above, size, most = _above(values, can), len(values), len(STACKED) - 1
    wide = np.pad(above, most)
    found = np.zeros_like(above)
    for apart, weight in enumerate(STACKED):
        for shift in {apart, -apart}:
            rows, columns = most + shift, most - shift
            found += weight * wide[rows : rows + size, columns : columns + size]
    made: Doubles = np.triu(found, LOOP + 1) / (2 * sum(STACKED) - STACKED[0])
    return made


def ranking(values: Doubles, can: Bools, pairs: Iterable[Pair]) -> Doubles:
    """(N, N) by which all pairs that can be are ranked: those of the stems that were taken come first, each
    kind by its evidence, of values and `can` as of `supported`.

    A base pairs once, so that evidence e counts e / (e + o) times as much for each of the two bases, o being
    that for the base's best other partner.
    """
    found = np.maximum(supported(values, can), 0.0)
    both = found + found.T
    # The best other partner is the best of all, or for that one the second.
    best, order = np.zeros_like(both), np.argsort(both, axis=1)
    if len(both) > 1:
        rows = np.arange(len(both))
        best[:] = both[rows, order[:, -1]][:, None]
        best[rows, order[:, -1]] = both[rows, order[:, -2]]
    for other in (best, best.T):
        found = found * np.divide(both, both + other, out=np.zeros_like(both), where=both > 0)
    top = float(found.max(initial=0.0)) + 1.0
    for pair in pairs:
        found[pair] += top
    return found


def _above(values: Doubles, can: Bools) -> Doubles:
    """(N, N) how much a pair itself stands above the median of the corrected map; 0 if it cannot be."""
    corrected = apc(values)
    far = np.triu(np.isfinite(corrected), LOOP + 1)
    if not far.any():
        return np.zeros_like(values)
    return np.where(can & far, corrected - np.median(corrected[far]), 0.0)


def brackets(size: int, pairs: Iterable[Pair]) -> str:
    """Pairs in dot-bracket notation; those that cross more others are letters, as `bracketed` reads them.

    >>> brackets(6, [(0, 4), (1, 3), (2, 5)])
    '((A))a'
    """
    every = set(pairs)
    crossed = {pair: [other for other in every if _cross(pair, other)] for pair in every}
    level: dict[Pair, int] = {}
    for pair in sorted(every, key=lambda one: (len(crossed[one]), one)):
        taken = {level.get(other) for other in crossed[pair]}
        level[pair] = next(number for number in count() if number not in taken)
    letters = ["."] * size
    for (i, j), number in level.items():
        letters[i], letters[j] = "()" if number == 0 else (chr(64 + number), chr(96 + number))
    return "".join(letters)


def _cross(one: Pair, other: Pair) -> bool:
    (a, b), (c, d) = sorted((one, other))
    return a < c < b < d


def bracketed(text: str) -> frozenset[Pair]:
    """The pairs of a structure in dot-bracket or WUSS notation; letters (Aa) are pairs that cross others. A
    bracket without its partner is a ValueError."""
    waiting: dict[str, list[int]] = {}
    found: set[Pair] = set()
    for place, letter in enumerate(text):
        if letter in _OPEN or (letter.isalpha() and letter.isupper()):
            waiting.setdefault(letter, []).append(place)
        elif letter in _CLOSED or letter.isalpha():
            partner = _OPEN[_CLOSED.index(letter)] if letter in _CLOSED else letter.upper()
            if not waiting.get(partner):
                raise ValueError(f"place {place + 1} closes what is not open")
            found.add((waiting[partner].pop(), place))
    if left := [own[-1] for own in waiting.values() if own]:
        raise ValueError(f"place {min(left) + 1} opens what is not closed")
    return frozenset(found)


class StemsDecoder(Decoder):
    """Stems of complementary bases."""

    separation: int = LOOP + 1
    measure: str = "pair_f1"

    def decode(self, record: Record, units: Sequence[str], dependence: DependenceMap) -> frozenset[Pair]:
        """The nested stems whose values stand out most, in sum, with those stacked on them (`supported`).

        A pair that does not stand out costs as much as one that does usually brings, and none brings more
        than two of these: a stem may have a weak pair, but one strong pair does not make a stem.
        """
        values, can = dependence.values, complementary(units)
        far = np.triu(np.ones_like(can), self.separation)
        if dependence.z is not None:
            excess = dependence.z - Z
        else:
            # Values of neighbours have a long tail: as contacts, no more than N pairs can stand out.
            evidence = np.where(np.isfinite(values), supported(values, can), np.nan)
            found = np.sort(evidence[can & far & np.isfinite(evidence)])
            least = float(found[-len(units) - 1]) if len(found) > len(units) else -np.inf
            excess = evidence - max(outstanding(evidence, can & far, DEVIATIONS), least)
            # A pair next to a stem has its evidence from the stem alone.
            excess = np.where(_above(values, can) > OWN * evidence, excess, -np.inf)
        strong = can & far & (excess > 0)
        if not strong.any():
            return frozenset()
        usual = float(np.median(excess[strong]))
        weights = np.where(strong, np.minimum(excess, 2 * usual), -usual)
        return frozenset(nested(np.where(can & far, weights, -np.inf), loop=LOOP, least=LEAST))

    def truths(self, path: Path, problems: Problems) -> Callable[[Record, Sequence[str]], Truth | None]:
        """The stems of `truth.json`, of a Stockholm alignment (SS_cons) or of a dot-bracket file.

        In contigs of a sample the bases of one motif are unknown: they depend on each other through the
        motif's being there, and are no pairs of a stem. Their kind is "motif". Of its RNA genes the pairs of
        two motifs count, too ("motif pair"), though they cross stems.
        """
        if path.is_dir() or (suffix := stem_suffix(path)) == ".json":
            return _of_sample(read_truth(path, SCHEMA, ("contigs", "genes", "motifs")))
        read = _of_alignment if suffix in _STOCKHOLM else _of_brackets
        if not (known := dict(read(path, problems))):
            remedy = "give truth.json, a Stockholm alignment with SS_cons, or a file in dot-bracket notation"
            raise DataError("no structure is in this file", source=str(path), remedy=remedy)

        def knows(record: Record, units: Sequence[str]) -> Truth | None:
            name, start = _contig(record)
            return _shifted(known[name], start, len(units)) if name in known else None

        return knows

    def measures(self, decoded: Iterable[Decoded]) -> dict[str, float]:
        """F1 of pairs and AUPRC, beside the longest stem and what the other sequences have there."""
        judged = [_Judged.of(one) for one in decoded if one.truth is not None]
        if not judged:
            return {}
        places = Counter(pair for one in judged for pair in one.true)
        found: dict[str, float] = {}
        rivals: dict[str, Callable[[_Judged], frozenset[Pair]]] = {
            "": lambda one: one.predicted,
            "_of_longest_stem": lambda one: one.longest,
            "_of_template": lambda one: _template(one, places, len(judged)),
        }
        for name, pairs in rivals.items():
            hits = np.array([len(pairs(one) & one.true) for one in judged])
            sizes = np.array([len(pairs(one)) + len(one.true) for one in judged])
            f1 = ratio(2 * hits, sizes)
            found[f"pair_f1{name}"] = f1.value
            if not name:
                found |= {"pair_f1_low": f1.low, "pair_f1_high": f1.high}
        whole = [one for one in judged if one.true]
        kinds = {"": "value", "_of_stems": "stems", "_of_longest_stem": "longest", "_of_template": "template"}
        for name, kind in kinds.items():
            own = [_precision(one, places) if kind == "template" else one.precisions[kind] for one in whole]
            found[f"auprc{name}"] = float(np.mean(own)) if own else float("nan")
        found["prevalence"] = float(np.mean([one.labels.mean() for one in whole])) if whole else float("nan")
        return found

    def picture(self, decoded: Decoded) -> str | None:
        """The sequence with its pairs below it, and those of the truth."""
        size = len(decoded.units)
        rows = ["".join(unit[:1] for unit in decoded.units), brackets(size, decoded.predicted)]
        if decoded.truth is not None:
            rows.append(brackets(size, decoded.truth.edges) + "  truth")
        return str(Markup("<pre>{}</pre>").format("\n".join(rows)))

    def files(self, decoded: Iterable[Decoded]) -> Mapping[str, Iterator[str]]:
        """`structure.dbn`: name, letters and brackets of each sequence."""

        def written() -> Iterator[str]:
            for one in decoded:
                letters = "".join(unit[:1] for unit in one.units)
                yield f">{one.record.id}\n{letters}\n{brackets(len(one.units), one.predicted)}\n"

        return {"structure.dbn": written()}


class _Judged(NamedTuple):
    """What of one sequence is needed for figures over all.

    true, predicted, longest: pairs of the truth, of the decoder, and of the longest stem; known ones alone.
    first, second, labels: (P,) the known pairs, and whether the truth has them. precisions: average precision
    of the values, of `ranking`, and of the length of the longest stem through a pair.
    """

    true: frozenset[Pair]
    predicted: frozenset[Pair]
    longest: frozenset[Pair]
    first: NDArray[np.int64]
    second: NDArray[np.int64]
    labels: Bools
    precisions: Mapping[str, float]

    @classmethod
    def of(cls, one: Decoded) -> _Judged:
        assert one.truth is not None
        first, second = np.triu_indices(len(one.units), LOOP + 1)
        told, labels = one.truth.of(first, second)
        first, second, labels = first[told], second[told], labels[told]
        can = complementary(one.units)
        length = stacked(can)
        values = np.nan_to_num(one.dependence.values[first, second], nan=-np.inf)
        stems = ranking(one.dependence.values, can, one.predicted)
        allowed = np.where(can, stems, -np.inf)[first, second]
        scores = {"value": values, "stems": allowed, "longest": length[first, second].astype(np.float64)}
        within = set(zip(first.tolist(), second.tolist(), strict=True))
        return cls(
            true=one.truth.edges & within,
            predicted=one.predicted & within,
            longest=longest_stem(can) & within,
            first=first,
            second=second,
            labels=labels,
            precisions={name: _average(labels, own) for name, own in scores.items()} if labels.any() else {},
        )


def _template(one: _Judged, places: Counter[Pair], count: int) -> frozenset[Pair]:
    """The pairs that at least half of the other sequences have."""
    known = set(zip(one.first.tolist(), one.second.tolist(), strict=True))
    least = max(count - 1, 1)
    return frozenset(pair for pair in known if 2 * (places[pair] - (pair in one.true)) >= least)


def _precision(one: _Judged, places: Counter[Pair]) -> float:
    """Average precision of how many other sequences have a pair."""
    size = int(one.second.max()) + 1
    table = np.zeros((size, size))
    for (i, j), number in places.items():
        if j < size:
            table[i, j] = number - ((i, j) in one.true)
    return _average(one.labels, table[one.first, one.second])


def _average(labels: Bools, scores: Doubles) -> float:
    return Detection(labels, scores).curve().average_precision


# Truths


def _contig(record: Record) -> tuple[str, int]:
    """The sequence a record is of, and where in it the record begins."""
    if "contig" in record.meta:
        return str(record.meta["contig"]), int(record.meta["start"])
    return record.id, 0


def _shifted(pairs: Iterable[Pair], start: int, size: int) -> Truth:
    own = ((i - start, j - start) for i, j in pairs)
    return Truth(edges=frozenset((i, j) for i, j in own if i >= 0 and j < size))


def _of_sample(truth: Mapping[str, Any]) -> Callable[[Record, Sequence[str]], Truth | None]:
    width = {one["name"]: len(one["matrix"]) for one in truth["motifs"]}
    contigs = {one["id"]: one for one in (*truth["contigs"], *truth["genes"])}

    def knows(record: Record, units: Sequence[str]) -> Truth | None:
        name, start = _contig(record)
        if (found := contigs.get(name)) is None:
            return None
        stems, between = (
            _shifted(map(tuple, found.get(key, ())), start, len(units)).edges
            for key in ("pairs", "motif_pairs")
        )
        motif = np.full(len(units), -1)
        for number, (kind, begin, _) in enumerate(found.get("motifs", ())):
            motif[max(begin - start, 0) : max(begin - start + width[kind], 0)] = number
        own: list[int] = motif.tolist()

        def known(pair: Pair) -> bool:
            return own[pair[0]] < 0 or own[pair[0]] != own[pair[1]]

        same = np.argwhere(np.triu((motif[:, None] == motif[None, :]) & (motif >= 0), 1))
        within: list[Pair] = [(i, j) for i, j in same.tolist()]
        kinds = dict.fromkeys(within, "motif") | dict.fromkeys(stems, "stem")
        return Truth(edges=stems | between, kinds=kinds | dict.fromkeys(between, "motif pair"), known=known)

    return knows


def _of_alignment(path: Path, problems: Problems) -> Iterator[tuple[str, frozenset[Pair]]]:
    """The pairs of each row of alignments with a common structure, in places of the row without gaps."""
    from Bio import AlignIO

    source = source_of(path)
    for entry in entries(source, problems, MAX_BYTES, "alignment"):
        parse = partial(AlignIO.parse, format="stockholm")
        for alignment in parsed(parse, entry, "a Stockholm alignment", source, problems)[0]:
            common = alignment.column_annotations.get("secondary_structure")
            if common is None:
                problems.note("an alignment without a common structure (SS_cons), left out", source=source)
                continue
            pairs = _parsed(common, source, entry.line, problems)
            for row in alignment:
                there = np.array([letter not in "-.~" for letter in str(row.seq)])
                place = (np.cumsum(there) - 1).tolist()
                yield row.id, frozenset((place[i], place[j]) for i, j in pairs if there[i] and there[j])


def _of_brackets(path: Path, problems: Problems) -> Iterator[tuple[str, frozenset[Pair]]]:
    """The pairs of each sequence of a file with its name (`>name`), letters and brackets on three lines."""
    name, source = "", source_of(path)
    for number, text in lines(source, problems, max_bytes=MAX_BYTES):
        line = text.strip()
        if line.startswith(">"):
            name = line[1:].split()[0] if line[1:].split() else ""
        elif name and line and not line[0].isalpha():
            yield name, _parsed(line.split()[0], source, number, problems)


def _parsed(text: str, source: str, line: int, problems: Problems) -> frozenset[Pair]:
    try:
        return bracketed(text)
    except ValueError as error:
        reason = f"a structure whose brackets do not match: {error}"
        problems.bad(DataError(reason, source=source, line=line, remedy="correct it"), text)
        return frozenset()
