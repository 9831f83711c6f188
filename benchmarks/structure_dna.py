"""Compare maps of models of nucleic acids with known structure: base pairs of RNA and TATA boxes.

    rna         base pairs of tRNA and 5S rRNA. One tiny masked model is trained on unaligned sequences
                of both families, without any structure. Test sequences are from other clusters (single
                linkage at 80 % identity). No test sequence is nearer than that to a training sequence.
                `seqmlm structure` maps them one by one. Its stems and values are compared with SS_cons.
                Some baselines need no training: the longest stem, the most pairs (Nussinov), and
                ViennaRNA if it is installed. The template uses the pairs of the training sequences. Two
                arms use the alignment: a linear model of the training rows, which maps test rows by
                couplings, and the mutual information of the same columns by counts, with the same decoder.
    promoters   the TATA box of human and Arabidopsis. A tiny model is trained on promoters, and other
                promoters are mapped. The bases of the strongest block of each map make a matrix. It is
                compared with MA0108.3 of JASPAR. Baselines: random windows; the most enriched word; and
                the most frequent word at the place of the box, which uses the known place. For
                Arabidopsis, promoters without the box are in the training data too. If every sequence had
                the box at one place, the place would determine it, and its bases would hardly depend on
                each other.

    python benchmarks/structure_dna.py --data ../shared/data            # about an hour a seed, one thread
    python benchmarks/structure_dna.py --data ../shared/data --quick    # a few minutes, no result

Models, maps and figures are kept under --out. An interrupted benchmark continues at the point of
interruption.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import structure_maps
from numpy.typing import NDArray

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.dna.structure import StemsDecoder, longest_stem, pair_scores, pairing_matrix, stem_lengths
from seqmlm.domains.structure import Pair
from seqmlm.evaluation.detection import Detection
from seqmlm.evaluation.intervals import bootstrap_weights
from seqmlm.structure.maps import DependenceMap, apc
from seqmlm.structure.nested import nested_pairs
from seqmlm.training.launch import TrainRequest
from seqmlm.training.observers import SilentConsole
from seqmlm.training.pretrain import pretrain
from seqmlm.workspace import Workspace

Row = dict[str, Any]
Doubles = NDArray[np.float64]
DRAWS = 2000
METHODS = {"dependency": 1.0, "jacobian": 1.0, "cmi": 0.1}
"""Map methods, and the share of test sequences that each maps: `cmi` takes 10 to 15 times as long."""
APART = 4
"""The smallest distance of a judged pair in bases: a loop has three."""


STEPS, TOKENS = {"rna": 16000, "human": 3000, "Arabidopsis": 4000}, 1024
"""The steps of a training, and the tokens of a step."""
ITERATIONS = 200
"""The steps of the linear model."""
METHOD = next(iter(METHODS))
"""The method of the main figures."""


class Asked(NamedTuple):
    """The options of a run."""

    data: Path
    out: Path
    seeds: int
    quick: bool


def trained(asked: Asked, name: str, texts: Mapping[str, str], steps: int, seed: int) -> str:
    """The name of a tiny model of the sequences in their direction, never of the other strand."""
    own = {"max_steps": steps, "tokens_per_batch": TOKENS, "augment": False}
    return made(asked, name, texts, {"model": {"size": "tiny"}, "train": own, "seed": seed})


def made(asked: Asked, name: str, texts: Mapping[str, str], flags: Row, **options: str) -> str:
    """The name of a model of the sequences, which is trained if it is missing."""
    data = {"paths": [str(written(asked.out / f"{name}.fa", texts))], "options": options}
    if not (Workspace.locate().run_dir(name) / "result.json").exists():
        request = TrainRequest(domain="dna", name=name, flags={**flags, "data": data}, resume="auto")
        pretrain(request, SilentConsole())
    return name


def written(path: Path, texts: Mapping[str, str]) -> Path:
    path.write_text("".join(f">{name}\n{text}\n" for name, text in texts.items()))
    return path


def mapped(
    asked: Asked,
    model: str,
    method: str,
    texts: Mapping[str, str],
    kept: Path,
    letters: Mapping[str, str] | None = None,
    apart: int = APART,
) -> tuple[dict[str, Doubles], dict[str, set[Pair]]]:
    """The map of each sequence by `seqmlm structure`, and the pairs that it takes, by name.

    Args:
        letters: the sequences without gaps, by name; None if `texts` have no gaps.
    """
    fasta = written(kept.with_suffix(".fa"), texts)
    structure_maps.mapped(kept, model=model, paths=(str(fasta),), method=method, min_separation=apart)
    values = {name: np.full((len(text), len(text)), -np.inf) for name, text in (letters or texts).items()}
    pairs: dict[str, set[Pair]] = {name: set() for name in texts}
    for row in structure_maps.edges(kept):
        pair = row["i"], row["j"]
        values[row["id"]][pair] = row["value"]
        if row["predicted"]:
            pairs[row["id"]].add(pair)
    return values, pairs


# Part rna: base pairs of single sequences

FAMILIES = {"tRNA": ("tRNA1415G", 60, 100), "5S rRNA": ("5S_rRNA", 15, 40)}
"""The file, and the numbers of clusters of each family for selection and for tests."""
IDENTITY = 0.8
LARGEST = 0.05
"""A cluster with more than this share of its family is in the training data."""


class Rna(NamedTuple):
    """A sequence as the model sees it (T for U), its pairs by SS_cons, its cluster, and its row with gaps."""

    id: str
    letters: str
    pairs: frozenset[Pair]
    cluster: int
    row: str


def family(asked: Asked, name: str) -> list[Rna]:
    """The distinct sequences of a family; identity is of aligned columns, by the shorter sequence's bases."""
    from Bio import AlignIO
    from scipy.sparse.csgraph import connected_components

    path = asked.data / "dna" / "rna_structure" / f"{FAMILIES[name][0]}.sto.gz"
    with gzip.open(path, "rt") as file:
        alignment = AlignIO.read(io.StringIO(file.read()), "stockholm")
    knows = StemsDecoder().truths(path, Problems())
    rows = {str(row.seq).upper().replace(".", "-"): str(row.id) for row in reversed(alignment)}
    letters = np.array([list(row) for row in rows])
    there = letters != "-"
    sizes = there.sum(axis=1)
    same = np.array([((letters == own) & there).sum(axis=1) for own in letters])
    _, clusters = connected_components(same / np.minimum.outer(sizes, sizes) >= IDENTITY)
    found = []
    for (row, id), cluster in zip(rows.items(), clusters.tolist(), strict=True):
        text = row.replace("-", "").replace("U", "T")
        truth = knows(Record(id=id, raw=text, source=str(path), line=1), list(text))
        if truth is not None and set(text) <= set("ACGT"):
            found.append(Rna(id, text, truth.edges, cluster, row.replace("U", "T")))
    return found


class Division(NamedTuple):
    """Training sequences, one sequence of each cluster for selection, and one of each cluster for tests."""

    training: list[Rna]
    choosing: list[Rna]
    test: list[Rna]


def divided(sequences: list[Rna], choosing: int, test: int) -> Division:
    """The division of a family, which is the same for all seeds."""
    members: dict[int, list[Rna]] = {}
    for one in sequences:
        members.setdefault(one.cluster, []).append(one)
    order = np.random.default_rng(0).permutation(sorted(members)).tolist()
    small = [cluster for cluster in order if len(members[cluster]) <= LARGEST * len(sequences)]
    apart = set(small[: choosing + test])
    return Division(
        [one for one in sequences if one.cluster not in apart],
        [members[cluster][0] for cluster in small[:choosing]],
        [members[cluster][0] for cluster in small[choosing : choosing + test]],
    )


class Answer(NamedTuple):
    """The prediction of a method for one sequence.

    Args:
        values: (N, N) higher = more likely a pair.
        pairs: predicted pairs.
        stems: (N, N) the same by stems; None if `values` take account of stems.
    """

    values: Doubles
    pairs: frozenset[Pair]
    stems: Doubles | None = None


Method = Callable[[Rna], Answer]


def of_longest_stem(one: Rna) -> Answer:
    can = pairing_matrix(list(one.letters))
    return Answer(stem_lengths(can).astype(np.float64), longest_stem(can))


def of_most_pairs(one: Rna, least: int) -> Answer:
    """The largest number of nested pairs, in stems of at least a number of pairs."""
    can = pairing_matrix(list(one.letters))
    pairs = frozenset(nested_pairs(np.where(can, 1.0, -np.inf), min_stem=least))
    values = np.zeros(can.shape)
    for pair in pairs:
        values[pair] = 1.0
    return Answer(values, pairs)


def of_template(training: Sequence[Rna]) -> Method:
    """The frequency of a pair at each place in training sequences of similar length, if its letters can pair.

    Bases of the first half count from the first, the others from the last. Each base of difference in length
    divides the weight of a training sequence by e.
    """

    @lru_cache
    def table(size: int) -> Doubles:
        shares, total = np.zeros((size, size)), 0.0
        for one in training:
            own = len(one.letters)
            weight = float(np.exp(-abs(own - size)))
            total += weight
            for pair in one.pairs:
                i, j = (at if 2 * at < own else at - own + size for at in pair)
                if 0 <= i < j < size:
                    shares[i, j] += weight
        return shares / max(total, 1e-300)

    def answer(one: Rna) -> Answer:
        values = np.where(pairing_matrix(list(one.letters)), table(len(one.letters)), 0.0)
        return Answer(values, frozenset((int(i), int(j)) for i, j in np.argwhere(values > 0.5)))

    return answer


def of_vienna() -> Method | None:
    """The structure of least free energy, and pair probabilities; None if ViennaRNA is not installed."""
    try:
        import RNA
    except ImportError:
        return None

    def answer(one: Rna) -> Answer:
        fold = RNA.fold_compound(one.letters.replace("T", "U"))
        brackets, energy = fold.mfe()
        fold.exp_params_rescale(energy)
        fold.pf()
        values = np.array(fold.bpp())[1:, 1:]
        table = RNA.ptable(brackets)
        return Answer(values, frozenset((i - 1, j - 1) for i, j in enumerate(table[1:], 1) if j > i))

    return answer


def of_covariation(training: Sequence[Rna]) -> Method:
    """Mutual information of columns among the rows that train, corrected for its average product."""
    letters = np.array([list(one.row) for one in training])
    state = np.array([(letters == base).astype(np.float64) for base in "ACGT"])
    both = np.einsum("anl,bnm->lmab", state, state)
    joint = both / np.maximum(both.sum(axis=(2, 3), keepdims=True), 1)
    apart = joint.sum(axis=3, keepdims=True) * joint.sum(axis=2, keepdims=True)
    terms = joint * np.log(np.maximum(joint, 1e-300) / np.maximum(apart, 1e-300))
    values = apc(terms.sum(axis=(2, 3)))

    def answer(one: Rna) -> Answer:
        columns = [place for place, letter in enumerate(one.row) if letter != "-"]
        own = values[np.ix_(columns, columns)]
        units, record = list(one.letters), Record(id=one.id, raw=one.letters, source="", line=1)
        taken = StemsDecoder().decode(record, units, DependenceMap(values=own, method="mi", passes=0))
        return Answer(own, taken, pair_scores(own, pairing_matrix(units), taken))

    return answer


def of_maps(
    asked: Asked, model: str, method: str, sequences: Sequence[Rna], kept: Path, *, rows: bool = False
) -> Method:
    """The predictions of `seqmlm structure` for sequences, or for their rows of the alignment."""
    letters = {one.id: one.letters for one in sequences}
    texts = {one.id: one.row for one in sequences} if rows else letters
    values, pairs = mapped(asked, model, method, texts, kept, letters)

    def answer(one: Rna) -> Answer:
        own = values[one.id]
        known = np.where(np.isfinite(own), own, own.T)
        whole = np.where(np.isfinite(known), known, np.nan)
        taken = frozenset(pairs[one.id])
        return Answer(own, taken, pair_scores(whole, pairing_matrix(list(one.letters)), taken))

    return answer


def judged(one: Rna, answer: Answer) -> Row:
    """Counts for F1, and the ranking of all pairs by values and, for possible pairs, by stems."""
    places = np.triu_indices(len(one.letters), APART)
    labels = np.array([pair in one.pairs for pair in zip(*(at.tolist() for at in places), strict=True)])
    stems = answer.values if answer.stems is None else answer.stems
    allowed = np.where(pairing_matrix(list(one.letters)), stems, -np.inf)
    by_values, by_stems = (Detection(labels, own[places]).curve() for own in (answer.values, allowed))
    return {
        "cluster": one.cluster,
        "hits": len(answer.pairs & one.pairs),
        "sizes": len(answer.pairs) + len(one.pairs),
        "auprc": by_values.average_precision,
        "auprc of stems": by_stems.average_precision,
        "auroc of stems": by_stems.auroc,
    }


def rna(asked: Asked) -> Iterator[Row]:
    """Figures of each test sequence, by family, arm and seed."""
    divisions = {name: divided(family(asked, name), *FAMILIES[name][1:]) for name in FAMILIES}
    texts = {one.id: one.letters for own in divisions.values() for one in own.training}
    steps, most = (100, 3) if asked.quick else (STEPS["rna"], None)
    for name, own in divisions.items():
        arms: dict[str, Method | None] = {
            "longest stem": of_longest_stem,
            "most pairs": lambda one: of_most_pairs(one, 1),
            "most pairs, stems of 3": lambda one: of_most_pairs(one, 3),
            "template": of_template(own.training),
            "ViennaRNA": of_vienna(),
            "covariation, aligned": of_covariation(own.training),
        }
        for arm, method in arms.items():
            if method is not None:
                yield from figures(own.test[:most], method, {"family": name, "arm": arm, "seed": 0})
    for name, own in divisions.items():  # which has no seed that matters: its loss is convex
        rows = {one.id: one.row for one in own.training}
        linear: Row = {"model": {"size": "linear"}, "train": {"max_steps": 20 if asked.quick else ITERATIONS}}
        kept = asked.out / f"linear-{name.replace(' ', '-')}"
        model = made(asked, kept.name, rows, linear, gaps="keep")
        method = of_maps(asked, model, "couplings", own.test[:most], kept, rows=True)
        yield from figures(own.test[:most], method, {"family": name, "arm": "linear, aligned", "seed": 0})
    for seed in range(asked.seeds):
        model = trained(asked, f"rna-{steps}-{seed}", texts, steps, seed)
        for (arm, share), (name, own) in product(METHODS.items(), divisions.items()):
            some = own.test[: most or round(share * len(own.test))]
            kept = asked.out / f"rna-{steps}-{seed}-{name.replace(' ', '-')}-{arm}"
            method = of_maps(asked, model, arm, some, kept)
            yield from figures(some, method, {"family": name, "arm": arm, "seed": seed})


def figures(sequences: Sequence[Rna], method: Method, facts: Row) -> Iterator[Row]:
    for one in sequences:
        yield {**facts, "id": one.id, **judged(one, method(one))}


RANKED = ("auprc", "auprc of stems", "auroc of stems")


def table_of(rows: Sequence[Row], name: str, arm: str) -> tuple[list[str], Doubles]:
    """Clusters, and (N, 5) hits, sizes and the figures in `RANKED`, as means over seeds."""
    found: dict[str, list[list[float]]] = {}
    for row in rows:
        if (row["family"], row["arm"]) == (name, arm):
            own = [float(row[one]) for one in ("hits", "sizes", *RANKED)]
            found.setdefault(str(row["cluster"]), []).append(own)
    return list(found), np.array([np.mean(own, axis=0) for own in found.values()])


def scores(table: Doubles, weights: Doubles) -> Doubles:
    """F1 over all pairs, and the means of the others."""
    f1 = 2 * (weights @ table[:, 0]) / max(float(weights @ table[:, 1]), 1e-300)
    return np.array([f1, *(weights @ table[:, 2:] / weights.sum())])


def show_rna(rows: list[Row]) -> None:
    """Print the figures of each arm, and the gain of the first map over each baseline, by cluster."""
    for name in FAMILIES:
        print(f"\n{name}:  F1, AUPRC of values, AUPRC and AUROC of stems; clusters")
        drawn, own = {}, {}
        for arm in dict.fromkeys(row["arm"] for row in rows if row["family"] == name):
            clusters, table = table_of(rows, name, arm)
            draw = bootstrap_weights(clusters, DRAWS, 0)
            own[arm] = scores(table, np.ones(len(table)))
            drawn[arm] = np.array([scores(table, draw(number)) for number in range(DRAWS)])
            print(f"{arm:<24}{_cells(own[arm], drawn[arm])}   {len(clusters)}")
        for arm in (arm for arm in own if arm not in METHODS):
            print(f"{METHOD} - {arm:<24}{_cells(own[METHOD] - own[arm], drawn[METHOD] - drawn[arm])}")


def _cells(values: Doubles, drawn: Doubles) -> str:
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    return "   ".join(f"{x:.3f} [{a:.3f}, {b:.3f}]" for x, a, b in zip(values, low, high, strict=True))


# Part promoters: the TATA box without having been told of it

PROMOTERS = {
    "human": ("promoters_epdnew/human_TATA_pos.txt.gz", 249, None),
    "Arabidopsis": (
        "promoters_cnnprom/Arabidopsis_tata.fa.gz",
        200,
        "promoters_cnnprom/Arabidopsis_non_tata.fa.gz",
    ),
}
"""The file, the index of the first transcribed base, and a file of other training promoters."""
BEFORE, AFTER = 100, 50
"""The number of bases before the first transcribed base, and from it on, in training and in maps."""
HELD_OUT, MAPPED = 100, 50
"""The number of held-out promoters, and of those that are mapped."""
SHARED, WORD = 0.1, 12
"""A training sequence that has more than this share of the words of a test sequence is left out."""
BOX = "MA0108.3"
WIDTH = 8
"""Bases of a block; the matrix has 7 columns."""
NEAR = 5
"""The distance in bases from the block of the mean map in which the block of a sequence is searched."""
PLACE = range(-40, -15)
"""The place of the TATA box, counted from the first transcribed base: blocks begin and end within it."""


def promoters_of(asked: Asked, organism: str) -> tuple[dict[str, str], dict[str, str]]:
    """Training and test sequences by name; names of training sequences with the box begin with "with"."""
    name, start, others = PROMOTERS[organism]
    cut = cut_out(asked.data / "dna" / name, start)
    more = [] if others is None else cut_out(asked.data / "dna" / others, start)
    order = np.random.default_rng(0).permutation(len(cut)).tolist()
    test = [cut[number] for number in order[:HELD_OUT]]
    known = [_words(one) for one in test]
    most = SHARED * (BEFORE + AFTER - WORD + 1)
    learnt = {
        f"{kind}{n}": one
        for kind, some in (("with", [cut[number] for number in order[HELD_OUT:]]), ("other", more))
        for n, one in enumerate(some)
        if max(len(_words(one) & own) for own in known) <= most
    }
    return learnt, {f"test{n}": one for n, one in enumerate(test)}


def cut_out(path: Path, start: int) -> list[str]:
    """The distinct sequences of a file, from BEFORE bases in front of the first transcribed one."""
    with gzip.open(path, "rt") as file:
        text = file.read()
    if text.startswith(">"):
        texts = ["".join(own.split("\n")[1:]) for own in text[1:].split("\n>")]
    else:
        texts = text.split()
    cut = list(dict.fromkeys(one.upper()[start - BEFORE : start + AFTER] for one in texts))
    return [one for one in cut if len(one) == BEFORE + AFTER and set(one) <= set("ACGT")]


def _words(text: str) -> set[str]:
    return {text[at : at + WORD] for at in range(len(text) - WORD + 1)}


def strongest_block(values: Doubles, around: int | None = None) -> int:
    """The start of the window whose pairs have the highest mean value, among all or near a place."""
    last = len(values) - WIDTH
    first, last = (0, last) if around is None else (max(0, around - NEAR), min(last, around + NEAR))
    within = np.triu_indices(WIDTH, 1)
    means = [values[at : at + WIDTH, at : at + WIDTH][within].mean() for at in range(first, last + 1)]
    return first + int(np.argmax(means))


def frequencies(texts: Sequence[str], starts: Sequence[int]) -> Doubles:
    """(WIDTH, 4) frequencies of the bases in windows with these starts, one per text."""
    windows = np.array([list(one[at : at + WIDTH]) for one, at in zip(texts, starts, strict=True)])
    shares: Doubles = (windows[:, :, None] == np.array(list("ACGT"))).mean(axis=0)
    return shares


def enriched(training: Sequence[str], texts: Sequence[str]) -> list[int]:
    """The place in each text that is most similar to the most enriched word (Markov chain of order 2).

    Args:
        training: the texts in which words are counted.
    """
    words = {n: _counted(training, n) for n in (2, 3)}
    total = sum(words[3].values())

    def excess(word: str, count: int) -> float:
        expected = float(total)
        for at in range(WIDTH - 2):
            expected *= words[3][word[at : at + 3]] / (total if at == 0 else words[2][word[at : at + 2]])
        return float((count - expected) / np.sqrt(expected))

    own = _counted(training, WIDTH)
    return like_word(max(own, key=lambda word: excess(word, own[word])), texts)


def at_the_place(training: Sequence[str], texts: Sequence[str]) -> list[int]:
    """The same for the most frequent word at the place of the box. This baseline uses the known place."""
    within = slice(PLACE.start + BEFORE, PLACE.stop + BEFORE)
    own = _counted([one[within] for one in training], WIDTH)
    word = max(own, key=lambda one: own[one])
    return [at + PLACE.start + BEFORE for at in like_word(word, [one[within] for one in texts])]


def _counted(texts: Sequence[str], size: int) -> Counter[str]:
    return Counter(one[at : at + size] for one in texts for at in range(len(one) - size + 1))


def like_word(word: str, texts: Sequence[str]) -> list[int]:
    """The first place in each text with the fewest different letters."""

    def wrong(text: str, at: int) -> int:
        return sum(a != b for a, b in zip(text[at : at + len(word)], word, strict=True))

    return [min(range(len(one) - len(word) + 1), key=lambda at, one=one: wrong(one, at)) for one in texts]  # type: ignore[misc]


def likeness(found: Doubles, matrix: Doubles) -> float:
    """Mean correlation of columns at the best offset and strand, the narrower one within the other."""
    narrow, wide = sorted((found, matrix), key=len)
    best = -1.0
    for other in (wide, wide[::-1, ::-1]):
        for at in range(len(wide) - len(narrow) + 1):
            pairs = zip(narrow, other[at : at + len(narrow)], strict=True)
            best = max(best, float(np.mean([_correlation(a, b) for a, b in pairs])))
    return best


def _correlation(a: Doubles, b: Doubles) -> float:
    a, b = a - a.mean(), b - b.mean()
    size = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / size if size > 1e-12 else 0.0


def matrices(asked: Asked) -> dict[str, Doubles]:
    """(W, 4) frequencies of each matrix of JASPAR, by its accession."""
    from Bio import motifs

    with gzip.open(asked.data / "dna" / "motifs" / "jaspar2024_core.transfac.gz", "rt") as file:
        found = motifs.parse(file, "TRANSFAC", strict=False)
    counts = {one["AC"]: np.array([one.counts[base] for base in "ACGT"]).T for one in found}
    return {name: own / own.sum(axis=1, keepdims=True) for name, own in counts.items()}


def promoters(asked: Asked) -> Iterator[Row]:
    """The likeness of the windows of each arm to the matrix of JASPAR, by organism and seed."""
    known = matrices(asked)
    for organism in PROMOTERS:
        steps, most = (100, 3) if asked.quick else (STEPS[organism], MAPPED)
        training, test = promoters_of(asked, organism)
        test = dict(list(test.items())[:most])
        texts, random = list(test.values()), np.random.default_rng(0)
        starts = {"random window": random.integers(BEFORE + AFTER - WIDTH + 1, size=len(texts)).tolist()}
        boxed = [one for name, one in training.items() if name.startswith("with")]
        starts["enriched word"] = enriched(boxed, texts)
        starts["word of its place"] = at_the_place(boxed, texts)
        for arm, own in starts.items():
            yield {"organism": organism, "arm": arm, "seed": 0, **compared(texts, own, known)}
        for seed in range(asked.seeds):
            model = trained(asked, f"promoters-{organism}-{steps}-{seed}", training, steps, seed)
            maps, _ = mapped(asked, model, METHOD, test, asked.out / f"{model}-maps", apart=1)
            mean = strongest_block(np.mean([maps[name] for name in test], axis=0))
            blocks = {
                "block of each map": [strongest_block(maps[name]) for name in test],
                "block of the mean map": [mean] * len(test),
                "block of each near that": [strongest_block(maps[name], mean) for name in test],
            }
            last = np.random.default_rng(seed).permutation(blocks["block of each near that"]).tolist()
            facts = {"organism": organism, "training": len(training), "seed": seed}
            for arm, own in {**blocks, "those, dealt anew": last}.items():
                yield {**facts, "arm": arm, **compared(texts, own, known)}


def compared(texts: Sequence[str], starts: Sequence[int], known: Mapping[str, Doubles]) -> Row:
    """Likeness to the TATA box, the number of matrices that are more like it, and the places of windows."""
    found = frequencies(texts, starts)
    like = {name: likeness(found, own) for name, own in known.items()}
    places = [at - BEFORE for at in starts]
    return {
        "sequences": len(texts),
        "likeness": like[BOX],
        "matrices more like it": sum(one > like[BOX] for one in like.values()),
        "of": len(like),
        "most like": max(like, key=lambda name: like[name]),
        "at its place": float(np.mean([at in PLACE and at + WIDTH - 1 in PLACE for at in places])),
        "median place": float(np.median(places)),
        "consensus": "".join("ACGT"[one] for one in found.argmax(axis=1)),
    }


def show_promoters(rows: list[Row]) -> None:
    for organism in PROMOTERS:
        print(f"\n{organism}: likeness to {BOX}, matrices that are more like, share at its place, consensus")
        own = [row for row in rows if row["organism"] == organism]
        for arm in dict.fromkeys(row["arm"] for row in own):
            some = [row for row in own if row["arm"] == arm]
            told = [
                np.mean([row[x] for row in some])
                for x in ("likeness", "matrices more like it", "at its place")
            ]
            print(f"{arm:<28}{told[0]:.3f}  {told[1]:6.1f}  {told[2]:.2f}  {some[0]['consensus']}")


PARTS: Mapping[str, tuple[Callable[[Asked], Iterator[Row]], Callable[[list[Row]], None]]] = {
    "rna": (rna, show_rna),
    "promoters": (promoters, show_promoters),
}
"""The functions that measure and print each part, by its name."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--part", choices=list(PARTS), action="append", help="default: all; repeatable")
    parser.add_argument(
        "--out", type=Path, default=Path("benchmarks/results/structure_dna"), help="where results are kept"
    )
    parser.add_argument("--seeds", type=int, default=3, help="models of each part")
    parser.add_argument("--json", type=Path, help="write all rows here")
    parser.add_argument("--quick", action="store_true", help="a few minutes, no result")
    given = parser.parse_args()
    out: Path = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    os.environ["SEQMLM_HOME"] = str(out / "workspace")
    asked = Asked(given.data, out, 1 if given.quick else given.seeds, given.quick)
    every: list[Row] = []
    for part in given.part or PARTS:
        measure, show = PARTS[part]
        rows = list(measure(asked))
        show(rows)
        every += [{"part": part, **row} for row in rows]
    if given.json:
        given.json.write_text(json.dumps(every, indent=1) + "\n")


if __name__ == "__main__":
    main()
