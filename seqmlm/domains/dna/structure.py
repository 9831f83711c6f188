"""Maps of dependence in DNA and RNA: stems, bases that pair around a loop.

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
from seqmlm.data.readers.biopython import entries, parse_entry
from seqmlm.data.record import Record
from seqmlm.domains.samples import read_truth
from seqmlm.domains.structure import Decoded, Decoder, Pair, Truth
from seqmlm.errors import DataError
from seqmlm.evaluation.detection import Detection
from seqmlm.evaluation.intervals import ratio
from seqmlm.structure.maps import DependenceMap, apc
from seqmlm.structure.nested import nested_pairs
from seqmlm.structure.network import outlier_threshold

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


def pairing_matrix(units: Sequence[str]) -> Bools:
    """(N, N) True for bases that can pair, with room for a loop; the upper triangle alone."""
    spelled = [unit.upper().replace("U", "T") for unit in units]
    can = np.array([[a + b in _PAIRING for b in spelled] for a in spelled], dtype=np.bool_)
    return np.triu(can.reshape(len(spelled), len(spelled)), LOOP + 1)


def stem_lengths(can: Bools) -> NDArray[np.int64]:
    """(N, N) stacked pairs in the longest stem through each pair that can be; 0 for other pairs."""
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
    length = stem_lengths(can)
    if not length.size or length.max() < LEAST:
        return frozenset()
    i, j = divmod(int(length.argmax()), len(can))
    return frozenset((i + k, j - k) for k in range(int(length[i, j])))


def stem_evidence(values: Doubles, can: Bools) -> Doubles:
    """(N, N) evidence for pairs: how much they and those stacked on them stand out; the upper triangle alone.

    A stem is several pairs, so that each vouches for the next ones, while what depends on each other for
    another reason (neighbours, bases of one motif) rarely does so in pairs that can stack. Added up are what
    a pair, those next to it and, half, those after the next ones are above the median, of corrected values
    (`seqmlm.structure.maps.apc`); a pair that cannot be adds nothing.

    Args:
        values: (N, N) symmetric; NaN where nothing is known.
        can: (N, N) pairs that can be, see `pairing_matrix`; the upper triangle alone.
    """
    above, size, reach = _excess(values, can), len(values), len(STACKED) - 1
    wide = np.pad(above, reach)
    sums = np.zeros_like(above)
    for distance, weight in enumerate(STACKED):
        for shift in {distance, -distance}:
            rows, columns = reach + shift, reach - shift
            sums += weight * wide[rows : rows + size, columns : columns + size]
    evidence: Doubles = np.triu(sums, LOOP + 1) / (2 * sum(STACKED) - STACKED[0])
    return evidence


def pair_scores(values: Doubles, can: Bools, pairs: Iterable[Pair]) -> Doubles:
    """(N, N) scores that rank all pairs that can be: the given `pairs` come first, each kind by its
    `stem_evidence`.

    A base pairs once, so that evidence e counts e / (e + o) times as much for each of the two bases, o being
    that for the base's best other partner.
    """
    evidence = np.maximum(stem_evidence(values, can), 0.0)
    symmetric = evidence + evidence.T
    # The best other partner is the best of all, or for that one the second.
    best, order = np.zeros_like(symmetric), np.argsort(symmetric, axis=1)
    if len(symmetric) > 1:
        rows = np.arange(len(symmetric))
        best[:] = symmetric[rows, order[:, -1]][:, None]
        best[rows, order[:, -1]] = symmetric[rows, order[:, -2]]
    for rival in (best, best.T):
        evidence = evidence * np.divide(
            symmetric, symmetric + rival, out=np.zeros_like(symmetric), where=symmetric > 0
        )
    top = float(evidence.max(initial=0.0)) + 1.0
    for pair in pairs:
        evidence[pair] += top
    return evidence


def _excess(values: Doubles, can: Bools) -> Doubles:
    """(N, N) how much a pair itself stands above the median of the corrected map; 0 if it cannot be."""
    corrected = apc(values)
    far = np.triu(np.isfinite(corrected), LOOP + 1)
    if not far.any():
        return np.zeros_like(values)
    return np.where(can & far, corrected - np.median(corrected[far]), 0.0)


def brackets(size: int, pairs: Iterable[Pair]) -> str:
    """Pairs in dot-bracket notation, which `parse_brackets` reads; those that cross more others are letters.

    >>> brackets(6, [(0, 4), (1, 3), (2, 5)])
    '((A))a'
    """
    all_pairs = set(pairs)
    crossed = {pair: [rival for rival in all_pairs if _cross(pair, rival)] for pair in all_pairs}
    level: dict[Pair, int] = {}
    for pair in sorted(all_pairs, key=lambda candidate: (len(crossed[candidate]), candidate)):
        used = {level.get(rival) for rival in crossed[pair]}
        level[pair] = next(number for number in count() if number not in used)
    letters = ["."] * size
    for (i, j), number in level.items():
        letters[i], letters[j] = "()" if number == 0 else (chr(64 + number), chr(96 + number))
    return "".join(letters)


def _cross(first: Pair, second: Pair) -> bool:
    """Whether two pairs cross: one begins within the other and ends behind it."""
    (a, b), (c, d) = sorted((first, second))
    return a < c < b < d


def parse_brackets(text: str) -> frozenset[Pair]:
    """The pairs of a structure in dot-bracket or WUSS notation; letters (Aa) are pairs that cross others. A
    bracket without its partner is a ValueError."""
    waiting: dict[str, list[int]] = {}
    pairs: set[Pair] = set()
    for place, letter in enumerate(text):
        if letter in _OPEN or (letter.isalpha() and letter.isupper()):
            waiting.setdefault(letter, []).append(place)
        elif letter in _CLOSED or letter.isalpha():
            partner = _OPEN[_CLOSED.index(letter)] if letter in _CLOSED else letter.upper()
            if not waiting.get(partner):
                raise ValueError(f"place {place + 1} closes what is not open")
            pairs.add((waiting[partner].pop(), place))
    if unclosed := [places[-1] for places in waiting.values() if places]:
        raise ValueError(f"place {min(unclosed) + 1} opens what is not closed")
    return frozenset(pairs)


class StemsDecoder(Decoder):
    """Stems of complementary bases."""

    separation: int = LOOP + 1
    measure: str = "pair_f1"

    def decode(self, record: Record, units: Sequence[str], dependence: DependenceMap) -> frozenset[Pair]:
        """The nested stems whose values stand out most, in sum, with those stacked on them (`stem_evidence`).

        A pair that does not stand out costs as much as one that does usually brings, and none brings more
        than two of these: a stem may have a weak pair, but one strong pair does not make a stem.
        """
        values, can = dependence.values, pairing_matrix(units)
        far = np.triu(np.ones_like(can), self.separation)
        if dependence.z is not None:
            excess = dependence.z - Z
        else:
            # Values of neighbours have a long tail: as contacts, no more than N pairs can stand out.
            evidence = np.where(np.isfinite(values), stem_evidence(values, can), np.nan)
            ordered = np.sort(evidence[can & far & np.isfinite(evidence)])
            floor = float(ordered[-len(units) - 1]) if len(ordered) > len(units) else -np.inf
            excess = evidence - max(outlier_threshold(evidence, can & far, DEVIATIONS), floor)
            # A pair next to a stem has its evidence from the stem alone.
            excess = np.where(_excess(values, can) > OWN * evidence, excess, -np.inf)
        strong = can & far & (excess > 0)
        if not strong.any():
            return frozenset()
        usual = float(np.median(excess[strong]))
        weights = np.where(strong, np.minimum(excess, 2 * usual), -usual)
        return frozenset(nested_pairs(np.where(can & far, weights, -np.inf), loop=LOOP, min_stem=LEAST))

    def truths(self, path: Path, problems: Problems) -> Callable[[Record, Sequence[str]], Truth | None]:
        """The stems of `truth.json`, of a Stockholm alignment (SS_cons) or of a dot-bracket file.

        In contigs of a sample the bases of one motif are unknown: they depend on each other through the
        motif's being there, and are no pairs of a stem. Their kind is "motif". Of its RNA genes the pairs of
        two motifs count, too ("motif pair"), though they cross stems.
        """
        if path.is_dir() or (suffix := stem_suffix(path)) == ".json":
            return _sample_truths(read_truth(path, SCHEMA, ("contigs", "genes", "motifs")))
        reader = _alignment_pairs if suffix in _STOCKHOLM else _bracket_pairs
        if not (structures := dict(reader(path, problems))):
            remedy = "give truth.json, a Stockholm alignment with SS_cons, or a file in dot-bracket notation"
            raise DataError("no structure is in this file", source=str(path), remedy=remedy)

        def truth_of(record: Record, units: Sequence[str]) -> Truth | None:
            """The known structure of the sequence a record is of; None where there is none."""
            name, start = _contig(record)
            return _shift_pairs(structures[name], start, len(units)) if name in structures else None

        return truth_of

    def measures(self, decoded: Iterable[Decoded]) -> dict[str, float]:
        """F1 of pairs and AUPRC, beside the longest stem and what the other sequences have there."""
        comparisons = [_Comparison.of(sequence) for sequence in decoded if sequence.truth is not None]
        if not comparisons:
            return {}
        places = Counter(pair for comparison in comparisons for pair in comparison.true)
        figures: dict[str, float] = {}
        rivals: dict[str, Callable[[_Comparison], frozenset[Pair]]] = {
            "": lambda comparison: comparison.predicted,
            "_of_longest_stem": lambda comparison: comparison.longest,
            "_of_template": lambda comparison: _template_pairs(comparison, places, len(comparisons)),
        }
        for name, pairs in rivals.items():
            hits = np.array([len(pairs(comparison) & comparison.true) for comparison in comparisons])
            sizes = np.array([len(pairs(comparison)) + len(comparison.true) for comparison in comparisons])
            f1 = ratio(2 * hits, sizes)
            figures[f"pair_f1{name}"] = f1.value
            if not name:
                figures |= {"pair_f1_low": f1.low, "pair_f1_high": f1.high}
        with_pairs = [comparison for comparison in comparisons if comparison.true]
        kinds = {"": "value", "_of_stems": "stems", "_of_longest_stem": "longest", "_of_template": "template"}
        for name, kind in kinds.items():
            precisions = [
                _template_precision(comparison, places) if kind == "template" else comparison.precisions[kind]
                for comparison in with_pairs
            ]
            figures[f"auprc{name}"] = float(np.mean(precisions)) if precisions else float("nan")
        shares = [comparison.labels.mean() for comparison in with_pairs]
        figures["prevalence"] = float(np.mean(shares)) if shares else float("nan")
        return figures

    def picture(self, decoded: Decoded) -> str | None:
        """The sequence with its pairs below it, and those of the truth."""
        size = len(decoded.units)
        rows = ["".join(unit[:1] for unit in decoded.units), brackets(size, decoded.predicted)]
        if decoded.truth is not None:
            rows.append(brackets(size, decoded.truth.edges) + "  truth")
        return str(Markup("<pre>{}</pre>").format("\n".join(rows)))

    def files(self, decoded: Iterable[Decoded]) -> Mapping[str, Iterator[str]]:
        """`structure.dbn`: name, letters and brackets of each sequence."""

        def text_blocks() -> Iterator[str]:
            """Three lines for each sequence."""
            for sequence in decoded:
                letters = "".join(unit[:1] for unit in sequence.units)
                pairs = brackets(len(sequence.units), sequence.predicted)
                yield f">{sequence.record.id}\n{letters}\n{pairs}\n"

        return {"structure.dbn": text_blocks()}


class _Comparison(NamedTuple):
    """One decoded sequence compared with its truth, as figures over all sequences need it.

    true, predicted, longest: pairs of the truth, of the decoder, and of the longest stem; known ones alone.
    first, second, labels: (P,) the known pairs, and whether the truth has them. precisions: average precision
    of the values, of `pair_scores`, and of the length of the longest stem through a pair.
    """

    true: frozenset[Pair]
    predicted: frozenset[Pair]
    longest: frozenset[Pair]
    first: NDArray[np.int64]
    second: NDArray[np.int64]
    labels: Bools
    precisions: Mapping[str, float]

    @classmethod
    def of(cls, decoded: Decoded) -> _Comparison:
        assert decoded.truth is not None
        first, second = np.triu_indices(len(decoded.units), LOOP + 1)
        is_known, labels = decoded.truth.labels(first, second)
        first, second, labels = first[is_known], second[is_known], labels[is_known]
        can = pairing_matrix(decoded.units)
        length = stem_lengths(can)
        values = np.nan_to_num(decoded.dependence.values[first, second], nan=-np.inf)
        stems = pair_scores(decoded.dependence.values, can, decoded.predicted)
        allowed = np.where(can, stems, -np.inf)[first, second]
        scores = {"value": values, "stems": allowed, "longest": length[first, second].astype(np.float64)}
        known_pairs = set(zip(first.tolist(), second.tolist(), strict=True))
        return cls(
            true=decoded.truth.edges & known_pairs,
            predicted=decoded.predicted & known_pairs,
            longest=longest_stem(can) & known_pairs,
            first=first,
            second=second,
            labels=labels,
            precisions={
                name: _average_precision(labels, scores_of_kind) for name, scores_of_kind in scores.items()
            }
            if labels.any()
            else {},
        )


def _template_pairs(comparison: _Comparison, places: Counter[Pair], count: int) -> frozenset[Pair]:
    """The pairs that at least half of the other sequences have."""
    known_pairs = set(zip(comparison.first.tolist(), comparison.second.tolist(), strict=True))
    required = max(count - 1, 1)
    return frozenset(
        pair for pair in known_pairs if 2 * (places[pair] - (pair in comparison.true)) >= required
    )


def _template_precision(comparison: _Comparison, places: Counter[Pair]) -> float:
    """Average precision of a ranking by how many other sequences have a pair."""
    size = int(comparison.second.max()) + 1
    table = np.zeros((size, size))
    for (i, j), number in places.items():
        if j < size:
            table[i, j] = number - ((i, j) in comparison.true)
    return _average_precision(comparison.labels, table[comparison.first, comparison.second])


def _average_precision(labels: Bools, scores: Doubles) -> float:
    """Average precision of scores, of pairs with and without a label."""
    return Detection(labels, scores).curve().average_precision


# Truths


def _contig(record: Record) -> tuple[str, int]:
    """The sequence a record is of, and where in it the record begins."""
    if "contig" in record.meta:
        return str(record.meta["contig"]), int(record.meta["start"])
    return record.id, 0


def _shift_pairs(pairs: Iterable[Pair], start: int, size: int) -> Truth:
    """The pairs of a sequence within a record that begins at base `start`."""
    moved = ((i - start, j - start) for i, j in pairs)
    return Truth(edges=frozenset((i, j) for i, j in moved if i >= 0 and j < size))


def _sample_truths(truth: Mapping[str, Any]) -> Callable[[Record, Sequence[str]], Truth | None]:
    """A function that finds the planted pairs of a record of the sample."""
    width = {motif["name"]: len(motif["matrix"]) for motif in truth["motifs"]}
    contigs = {sequence["id"]: sequence for sequence in (*truth["contigs"], *truth["genes"])}

    def truth_of(record: Record, units: Sequence[str]) -> Truth | None:
        """The planted pairs of a record; None where it is of no contig or gene of the sample."""
        name, start = _contig(record)
        if (planted := contigs.get(name)) is None:
            return None
        stems, between = (
            _shift_pairs(map(tuple, planted.get(key, ())), start, len(units)).edges
            for key in ("pairs", "motif_pairs")
        )
        motif = np.full(len(units), -1)
        for number, (kind, begin, _) in enumerate(planted.get("motifs", ())):
            motif[max(begin - start, 0) : max(begin - start + width[kind], 0)] = number
        motif_of: list[int] = motif.tolist()

        def is_known(pair: Pair) -> bool:
            """Whether a pair is known: not of two bases of one motif."""
            return motif_of[pair[0]] < 0 or motif_of[pair[0]] != motif_of[pair[1]]

        same = np.argwhere(np.triu((motif[:, None] == motif[None, :]) & (motif >= 0), 1))
        motif_pairs: list[Pair] = [(i, j) for i, j in same.tolist()]
        kinds = dict.fromkeys(motif_pairs, "motif") | dict.fromkeys(stems, "stem")
        return Truth(
            edges=stems | between, kinds=kinds | dict.fromkeys(between, "motif pair"), covers=is_known
        )

    return truth_of


def _alignment_pairs(path: Path, problems: Problems) -> Iterator[tuple[str, frozenset[Pair]]]:
    """The pairs of each row of alignments with a common structure, in places of the row without gaps."""
    from Bio import AlignIO

    source = source_of(path)
    for entry in entries(source, problems, MAX_BYTES, "alignment"):
        parse = partial(AlignIO.parse, format="stockholm")
        for alignment in parse_entry(parse, entry, "a Stockholm alignment", source, problems)[0]:
            common = alignment.column_annotations.get("secondary_structure")
            if common is None:
                problems.note("an alignment without a common structure (SS_cons), left out", source=source)
                continue
            pairs = _parse_structure(common, source, entry.line, problems)
            for row in alignment:
                there = np.array([letter not in "-.~" for letter in str(row.seq)])
                place = (np.cumsum(there) - 1).tolist()
                yield row.id, frozenset((place[i], place[j]) for i, j in pairs if there[i] and there[j])


def _bracket_pairs(path: Path, problems: Problems) -> Iterator[tuple[str, frozenset[Pair]]]:
    """The pairs of each sequence of a file with its name (`>name`), letters and brackets on three lines."""
    name, source = "", source_of(path)
    for number, text in lines(source, problems, max_bytes=MAX_BYTES):
        line = text.strip()
        if line.startswith(">"):
            name = line[1:].split()[0] if line[1:].split() else ""
        elif name and line and not line[0].isalpha():
            yield name, _parse_structure(line.split()[0], source, number, problems)


def _parse_structure(text: str, source: str, line: int, problems: Problems) -> frozenset[Pair]:
    """The pairs of a structure; none for one whose brackets do not match, which goes to `problems`."""
    try:
        return parse_brackets(text)
    except ValueError as error:
        reason = f"a structure whose brackets do not match: {error}"
        problems.bad(DataError(reason, source=source, line=line, remedy="correct it"), text)
        return frozenset()
