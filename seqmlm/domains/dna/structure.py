"""Decode maps of DNA and RNA into stems: stacked base pairs that enclose a loop.

The decoder considers all sets of complementary pairs that do not cross, and selects the set with the highest
sum of evidence (`seqmlm.structure.nested`). It is compared with two baselines that need no model. The first
is the longest stem that the letters allow. The second is the pairs at the same positions in the other
sequences, which is strong if all sequences belong to one family.
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
"""Minimum bases of a loop, and minimum stacked pairs of a stem."""

DEVIATIONS, OWN = 5.0, 0.05
"""Thresholds for a pair. Its evidence must be `DEVIATIONS` standard deviations above the median, and its own
value must be more than the share `OWN` of its evidence.

The first threshold is high because neighbouring pairs share much of their evidence, so that noise forms stems
too.
"""

Z = 3.0
"""Threshold for z-scores, which are used if there is a null model. It is subtracted from the z-score."""

STACKED = (1.0, 1.0, 0.5)
"""Weights in the evidence for a pair: of the pair itself, of each pair stacked directly on it, and of each
pair one step farther."""

_PAIRING = ("AT", "TA", "CG", "GC", "GT", "TG")  # including the wobble pair of RNA (GU)
_OPEN, _CLOSED = "([{<", ")]}>"
_STOCKHOLM = (".sto", ".stk", ".stockholm")


def pairing_matrix(units: Sequence[str]) -> Bools:
    """(N, N) whether two bases can pair, with room for a loop. Only the upper triangle is set."""
    spelled = [unit.upper().replace("U", "T") for unit in units]
    can = np.array([[a + b in _PAIRING for b in spelled] for a in spelled], dtype=np.bool_)
    return np.triu(can.reshape(len(spelled), len(spelled)), LOOP + 1)


def stem_lengths(can: Bools) -> NDArray[np.int64]:
    """(N, N) the number of stacked pairs in the longest stem through each possible pair; 0 for other pairs.

    Args:
        can: (N, N) the possible pairs from `pairing_matrix`.
    """
    size = len(can)
    outer = np.zeros((size + 2, size + 2), dtype=np.int64)  # with a border of zeros
    inner = np.zeros_like(outer)
    for i in range(1, size + 1):
        outer[i, 1:-1] = can[i - 1] * (1 + outer[i - 1, 2:])
    for i in range(size, 0, -1):
        inner[i, 1:-1] = can[i - 1] * (1 + inner[i + 1, :-2])
    length: NDArray[np.int64] = np.maximum(outer + inner - 1, 0)[1:-1, 1:-1] * can
    return length


def longest_stem(can: Bools) -> frozenset[Pair]:
    """The pairs of the longest stem that the letters allow, or no pairs if it has fewer than `LEAST`.

    If several stems are equally long, the first is returned.
    """
    length = stem_lengths(can)
    if not length.size or length.max() < LEAST:
        return frozenset()
    i, j = divmod(int(length.argmax()), len(can))
    return frozenset((i + k, j - k) for k in range(int(length[i, j])))


def stem_evidence(values: Doubles, can: Bools) -> Doubles:
    """(N, N) the evidence for each pair, from its own value and the values of stacked pairs.

    A stem has several stacked pairs, so each of them is evidence for its neighbours. Bases that depend on
    each other for other reasons (neighbours, bases of one motif) rarely form pairs that can stack.

    The map is first corrected (`seqmlm.structure.maps.apc`), and its median is subtracted. The evidence is a
    weighted mean over the pair itself, the two pairs stacked on it, and the next two pairs. The last two have
    half the weight. Impossible pairs add nothing. Only the upper triangle is set.

    Args:
        values: (N, N) symmetric map; NaN for unknown values.
        can: (N, N) the possible pairs from `pairing_matrix`.
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
    """(N, N) scores that rank all possible pairs.

    The given `pairs` rank first. Within both groups, pairs rank by their `stem_evidence`. A base has only one
    partner. The evidence e is therefore multiplied by e / (e + o) for each of the two bases. Here o is the
    evidence for the best other partner of the base.
    """
    evidence = np.maximum(stem_evidence(values, can), 0.0)
    symmetric = evidence + evidence.T
    # The best other partner is the best partner of the base or, for the best partner itself, the second best.
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
    """(N, N) the value of each possible pair minus the median of the corrected map; 0 for other pairs."""
    corrected = apc(values)
    far = np.triu(np.isfinite(corrected), LOOP + 1)
    if not far.any():
        return np.zeros_like(values)
    return np.where(can & far, corrected - np.median(corrected[far]), 0.0)


def brackets(size: int, pairs: Iterable[Pair]) -> str:
    """Pairs in dot-bracket notation, which `parse_brackets` reads.

    If pairs cross, the pairs with more crossings are written as letters (`A` pairs with `a`).

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
    """Whether two pairs cross: one begins inside the other and ends after it."""
    (a, b), (c, d) = sorted((first, second))
    return a < c < b < d


def parse_brackets(text: str) -> frozenset[Pair]:
    """The pairs of a structure in dot-bracket or WUSS notation. Letters (`A` with `a`) are pairs that cross.

    Raises:
        ValueError: a bracket or letter has no partner.
    """
    waiting: dict[str, list[int]] = {}
    pairs: set[Pair] = set()
    for place, letter in enumerate(text):
        if letter in _OPEN or (letter.isalpha() and letter.isupper()):
            waiting.setdefault(letter, []).append(place)
        elif letter in _CLOSED or letter.isalpha():
            partner = _OPEN[_CLOSED.index(letter)] if letter in _CLOSED else letter.upper()
            if not waiting.get(partner):
                raise ValueError(f"position {place + 1} closes a bracket that is not open")
            pairs.add((waiting[partner].pop(), place))
    if unclosed := [places[-1] for places in waiting.values() if places]:
        raise ValueError(f"position {min(unclosed) + 1} opens a bracket that is never closed")
    return frozenset(pairs)


class StemsDecoder(Decoder):
    """The decoder of DNA and RNA: maps become stems of complementary bases."""

    separation: int = LOOP + 1
    measure: str = "pair_f1"

    def decode(self, record: Record, units: Sequence[str], dependence: DependenceMap) -> frozenset[Pair]:
        """The set of nested stems with the highest sum of weights, from `stem_evidence` or z-scores.

        A weak pair subtracts the median weight of the strong pairs. A strong pair adds at most twice this
        median. A stem can therefore have a weak pair, but one strong pair by itself does not make a stem.
        """
        values, can = dependence.values, pairing_matrix(units)
        far = np.triu(np.ones_like(can), self.separation)
        if dependence.z is not None:
            excess = dependence.z - Z
        else:
            # Values of neighbours have a long tail. As for contacts, at most N pairs can be strong.
            evidence = np.where(np.isfinite(values), stem_evidence(values, can), np.nan)
            ordered = np.sort(evidence[can & far & np.isfinite(evidence)])
            floor = float(ordered[-len(units) - 1]) if len(ordered) > len(units) else -np.inf
            excess = evidence - max(outlier_threshold(evidence, can & far, DEVIATIONS), floor)
            # A pair next to a stem gets its evidence only from the stem, and is not part of it.
            excess = np.where(_excess(values, can) > OWN * evidence, excess, -np.inf)
        strong = can & far & (excess > 0)
        if not strong.any():
            return frozenset()
        usual = float(np.median(excess[strong]))
        weights = np.where(strong, np.minimum(excess, 2 * usual), -usual)
        return frozenset(nested_pairs(np.where(can & far, weights, -np.inf), loop=LOOP, min_stem=LEAST))

    def truths(self, path: Path, problems: Problems) -> Callable[[Record, Sequence[str]], Truth | None]:
        """A function that finds the known stems of a record.

        The stems come from `truth.json` of a sample, a Stockholm alignment with `SS_cons`, or a dot-bracket
        file. In contigs of the sample, two bases of the same motif depend on each other through the presence
        of the motif. They are not pairs, and predicting them is not an error. Their kind is "motif". In RNA
        genes of the sample, pairs between two motifs ("motif pair") count too, although they cross stems.

        Raises:
            DataError: the file has no structure.
        """
        if path.is_dir() or (suffix := stem_suffix(path)) == ".json":
            return _sample_truths(read_truth(path, SCHEMA, ("contigs", "genes", "motifs")))
        reader = _alignment_pairs if suffix in _STOCKHOLM else _bracket_pairs
        if not (structures := dict(reader(path, problems))):
            remedy = "give truth.json, a Stockholm alignment with SS_cons, or a file in dot-bracket notation"
            raise DataError("the file has no structure", source=str(path), remedy=remedy)

        def truth_of(record: Record, units: Sequence[str]) -> Truth | None:
            """The known pairs of a record, or None if its sequence has no known structure."""
            name, start = _contig(record)
            return _shift_pairs(structures[name], start, len(units)) if name in structures else None

        return truth_of

    def measures(self, decoded: Iterable[Decoded]) -> dict[str, float]:
        """F1 and average precision (AUPRC) of pairs, for the model and for both baselines.

        The baselines are the longest stem, and the pairs of the other sequences at the same positions.
        """
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
        """The sequence above its predicted pairs and, if known, its true pairs, in dot-bracket notation."""
        size = len(decoded.units)
        rows = ["".join(unit[:1] for unit in decoded.units), brackets(size, decoded.predicted)]
        if decoded.truth is not None:
            rows.append(brackets(size, decoded.truth.edges) + "  truth")
        return str(Markup("<pre>{}</pre>").format("\n".join(rows)))

    def files(self, decoded: Iterable[Decoded]) -> Mapping[str, Iterator[str]]:
        """`structure.dbn`, a dot-bracket file with the name, letters and brackets of each sequence."""

        def text_blocks() -> Iterator[str]:
            """The three lines of each sequence."""
            for sequence in decoded:
                letters = "".join(unit[:1] for unit in sequence.units)
                pairs = brackets(len(sequence.units), sequence.predicted)
                yield f">{sequence.record.id}\n{letters}\n{pairs}\n"

        return {"structure.dbn": text_blocks()}


class _Comparison(NamedTuple):
    """One decoded sequence compared with its truth, as `StemsDecoder.measures` needs it.

    Only pairs that the truth covers are included.

    Attributes:
        true, predicted, longest: pairs of the truth, of the decoder, and of the longest stem.
        first, second, labels: (P,) the bases of each covered pair, and whether it is a true pair.
        precisions: average precision of three rankings. They use the values of the map ("value"),
            `pair_scores` ("stems"), and the length of the longest stem through a pair ("longest").
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
    """The pairs that occur at the same positions in at least half of the other sequences."""
    known_pairs = set(zip(comparison.first.tolist(), comparison.second.tolist(), strict=True))
    required = max(count - 1, 1)
    return frozenset(
        pair for pair in known_pairs if 2 * (places[pair] - (pair in comparison.true)) >= required
    )


def _template_precision(comparison: _Comparison, places: Counter[Pair]) -> float:
    """The average precision if pairs are ranked by the number of other sequences that have the pair."""
    size = int(comparison.second.max()) + 1
    table = np.zeros((size, size))
    for (i, j), number in places.items():
        if j < size:
            table[i, j] = number - ((i, j) in comparison.true)
    return _average_precision(comparison.labels, table[comparison.first, comparison.second])


def _average_precision(labels: Bools, scores: Doubles) -> float:
    """The average precision of a ranking by `scores`. `labels` marks the true pairs."""
    return Detection(labels, scores).curve().average_precision


# Truths


def _contig(record: Record) -> tuple[str, int]:
    """The name of a record's sequence, and the position of the record in it."""
    if "contig" in record.meta:
        return str(record.meta["contig"]), int(record.meta["start"])
    return record.id, 0


def _shift_pairs(pairs: Iterable[Pair], start: int, size: int) -> Truth:
    """The pairs of a sequence that are inside a record of `size` bases that begins at base `start`."""
    moved = ((i - start, j - start) for i, j in pairs)
    return Truth(edges=frozenset((i, j) for i, j in moved if i >= 0 and j < size))


def _sample_truths(truth: Mapping[str, Any]) -> Callable[[Record, Sequence[str]], Truth | None]:
    """A function that finds the planted pairs of a record of the sample."""
    width = {motif["name"]: len(motif["matrix"]) for motif in truth["motifs"]}
    contigs = {sequence["id"]: sequence for sequence in (*truth["contigs"], *truth["genes"])}

    def truth_of(record: Record, units: Sequence[str]) -> Truth | None:
        """The planted pairs of a record, or None if it is not part of the sample."""
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
            """Whether the truth covers a pair: its bases are not in the same motif."""
            return motif_of[pair[0]] < 0 or motif_of[pair[0]] != motif_of[pair[1]]

        same = np.argwhere(np.triu((motif[:, None] == motif[None, :]) & (motif >= 0), 1))
        motif_pairs: list[Pair] = [(i, j) for i, j in same.tolist()]
        kinds = dict.fromkeys(motif_pairs, "motif") | dict.fromkeys(stems, "stem")
        return Truth(
            edges=stems | between, kinds=kinds | dict.fromkeys(between, "motif pair"), covers=is_known
        )

    return truth_of


def _alignment_pairs(path: Path, problems: Problems) -> Iterator[tuple[str, frozenset[Pair]]]:
    """The name and pairs of each row of alignments with a common structure (`SS_cons`).

    Positions in pairs count the letters of the row without its gaps.
    """
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
    """The name and pairs of each sequence in a dot-bracket file, which has three lines for each: `>name`,
    letters and brackets."""
    name, source = "", source_of(path)
    for number, text in lines(source, problems, max_bytes=MAX_BYTES):
        line = text.strip()
        if line.startswith(">"):
            name = line[1:].split()[0] if line[1:].split() else ""
        elif name and line and not line[0].isalpha():
            yield name, _parse_structure(line.split()[0], source, number, problems)


def _parse_structure(text: str, source: str, line: int, problems: Problems) -> frozenset[Pair]:
    """The pairs of a structure. If its brackets do not match, it goes to `problems` and has no pairs."""
    try:
        return parse_brackets(text)
    except ValueError as error:
        reason = f"a structure whose brackets do not match: {error}"
        problems.bad(DataError(reason, source=source, line=line, remedy="correct the brackets"), text)
        return frozenset()
