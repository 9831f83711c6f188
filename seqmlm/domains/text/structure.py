"""What maps of dependence mean in text: a tree over the words, which is compared with that of a grammar.

Punctuation has no place in a tree, as of Klein and Manning (2004). Units and words of a treebank need not
agree ("don't" is two words there, and three units): what overlaps is put together to one word. A tree of a
treebank without its punctuation is the maximum spanning tree of closeness in the tree with it.
"""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.samples import read_truth
from seqmlm.domains.structure import Decoded, Decoder, Pair, Truth, placed
from seqmlm.domains.text.conllu import read_conllu
from seqmlm.errors import DataError
from seqmlm.evaluation.intervals import ratio
from seqmlm.reports.drawing import MARK, THRESHOLD, page_style, picture
from seqmlm.structure.maps import DependenceMap
from seqmlm.structure.trees import (
    Edge,
    Node,
    chain,
    node_values,
    path_lengths,
    projective_tree,
    spanning_tree,
    unit_edges,
    with_ties,
)

SCHEMA = "seqmlm.sample.text.v1"
MOST_WORDS = 120
"""Words of the longest sentence that is drawn."""

_INDIRECT = "through punctuation"  # an edge of the tree without punctuation that the tree with it has not
_NO_PUNCTUATION = frozenset("%&#@")  # words or symbols to treebanks, punctuation to Unicode


class Parse(NamedTuple):
    """The tree of a sentence as a treebank has it.

    spans: of each word in the text, shared by the words of a contraction.
    heads: 1-based word that each depends on, 0 for the root.
    relations: of each word to its head. punctuation: whether each is that.
    """

    spans: Sequence[tuple[int, int]]
    heads: Sequence[int]
    relations: Sequence[str]
    punctuation: Sequence[bool]


@dataclass(frozen=True, kw_only=True, eq=False)
class Tree(Truth):
    """A tree over words; each is told by the first of its units.

    Args:
        nodes: the units of each word, in order, without punctuation.
    """

    nodes: Sequence[Node]


class Relation(NamedTuple):
    """How many edges of one relation were found, beside the chain of neighbours.

    log_odds: of an edge that one of the two finds alone being ours, with 1/2 added to both counts; z: by its
    standard error. Above 0 the map is better, and beyond 2 that is unlikely to be chance.
    """

    relation: str
    edges: int
    found: int
    chain: int
    log_odds: float
    z: float


class TreeDecoder(Decoder):
    """A tree over the words of a sentence.

    Args:
        projective: whether edges may not cross.
    """

    measure: str = "uuas"

    def __init__(self, *, projective: bool = False) -> None:
        self.projective = projective

    def decode(self, record: Record, units: Sequence[str], dependence: DependenceMap) -> frozenset[Pair]:
        """The maximum spanning tree over words, punctuation left out.

        A record of CoNLL-U knows its words and which of them are punctuation; of any other a word is a unit.
        """
        return _tree(dependence, _words(record, units)[0], projective=self.projective)

    def truths(self, path: Path, problems: Problems) -> Callable[[Record, Sequence[str]], Truth | None]:
        """The trees of CoNLL-U, or of `truth.json` of a sample with its `text.txt` beside it.

        A sentence is known by its text; of several with the same text, the one with the record's id.
        """
        sample = path.is_dir() or path.suffix == ".json"
        known = dict(_of_sample(path)) if sample else dict(_of_treebank(path, problems))
        if not known:
            raise DataError(
                "there is no tree in this file", source=str(path), remedy="give CoNLL-U with heads"
            )

        def truth(record: Record, units: Sequence[str]) -> Truth | None:
            trees = known.get(str(record.raw))
            if trees is None:
                return None
            made = tree_of(str(record.raw), units, trees.get(record.id) or next(iter(trees.values())))
            if made is None:
                problems.note("a sentence whose words could not be aligned with its tree: it is not judged")
            return made

        return truth

    def measures(self, decoded: Iterable[Decoded]) -> dict[str, float]:
        """Undirected unlabelled attachment (UUAS): the share of edges found, over the edges of all sentences.

        `uuas` with the bounds of a bootstrap over sentences, `chain` (neighbours linked) and `random` (a
        random tree without crossings) as rivals, `projective`: of the best tree without crossings; `gain`
        over the chain on the same resamples.
        """
        found = [_compared(one, one.truth) for one in decoded if isinstance(one.truth, Tree)]
        if not (edges := sum(len(one.truth) for one in found)):
            return {}
        sizes = [len(one.truth) for one in found]
        hits = {
            name: np.array([len(one.truth & one.trees[name]) for one in found])
            for name in ("uuas", "chain", "random", "projective")
        }
        ours, gain = ratio(hits["uuas"], sizes), ratio(hits["uuas"] - hits["chain"], sizes)
        made = {"uuas": ours.value, "uuas_low": ours.low, "uuas_high": ours.high}
        made |= {name: int(hits[name].sum()) / edges for name in ("chain", "random", "projective")}
        made |= {"gain": gain.value, "gain_low": gain.low, "gain_high": gain.high}
        # One sentence has no bounds.
        return {name: value for name, value in made.items() if np.isfinite(value)}

    def relations(self, decoded: Iterable[Decoded]) -> list[Relation]:
        """Each relation's edges, most frequent first: found by the spanning tree, and by the chain."""
        hits: defaultdict[str, list[tuple[bool, bool]]] = defaultdict(list)
        for one in decoded:
            if isinstance(one.truth, Tree):
                trees = _compared(one, one.truth).trees
                for edge, relation in one.truth.kinds.items():
                    hits[relation].append((edge in trees["uuas"], edge in trees["chain"]))
        rows = []
        for relation, found in sorted(hits.items(), key=lambda item: (-len(item[1]), item[0])):
            ours, near = (sum(own) for own in zip(*found, strict=True))
            both = sum(map(all, found))
            alone, theirs = ours - both + 0.5, near - both + 0.5
            odds = float(np.log(alone / theirs))
            z = odds / float(np.sqrt(1 / alone + 1 / theirs))
            rows.append(Relation(relation, len(found), ours, near, odds, z))
        return rows

    def picture(self, decoded: Decoded) -> str | None:
        """Arcs between words: those of the truth above, those predicted below."""
        truth = decoded.truth if isinstance(decoded.truth, Tree) else None
        nodes, marks = _words(decoded.record, decoded.units)
        if truth is not None:
            judged = {unit for node in truth.nodes for unit in node}
            marks = [node for node in (*nodes, *marks) if judged.isdisjoint(node)]
            nodes = list(truth.nodes)
        if len(nodes) + len(marks) > MOST_WORDS:
            return None
        shown = sorted([*nodes, *marks])
        place = {node[0]: number for number, node in enumerate(shown)}
        words = [_spelled(decoded, node) for node in shown]
        above = frozenset[Pair]() if truth is None else truth.edges
        below = decoded.predicted
        if truth is not None:  # over the words of the truth, which may not be those of the record
            below = _tree(decoded.dependence, nodes, projective=self.projective)

        def drawn(edges: Iterable[Pair]) -> list[tuple[int, int, str, bool]]:
            kinds: Mapping[Pair, str] = {} if truth is None else truth.kinds
            agreed = (above & below) if truth is not None else below
            return [(place[i], place[j], kinds.get((i, j), ""), (i, j) in agreed) for i, j in sorted(edges)]

        return arcs(words, drawn(above), drawn(below))

    def files(self, decoded: Iterable[Decoded]) -> Mapping[str, Iterator[str]]:
        """`trees.conllu`; and `relations.tsv`, where the truth of a sentence is known."""
        made: dict[str, Iterator[str]] = {"trees.conllu": (_conllu(one) for one in decoded)}
        if any(one.truth is not None for one in decoded):
            made["relations.tsv"] = _table(self, decoded)
        return made


# Words and trees


def _words(record: Record, units: Sequence[str]) -> tuple[list[Node], list[Node]]:
    """The words of a sentence, and its punctuation."""
    parse, spans = parse_of(record), placed(str(record.raw), units)
    if parse is not None and spans is not None and (groups := _aligned(parse, spans)) is not None:
        split = [(node, all(parse.punctuation[word] for word in words)) for node, words in groups]
    else:
        split = [((number,), _is_mark(unit)) for number, unit in enumerate(units) if unit.strip()]
    return [node for node, mark in split if not mark], [node for node, mark in split if mark]


def _is_mark(unit: str) -> bool:
    return all(unicodedata.category(one)[0] == "P" and one not in _NO_PUNCTUATION for one in unit.strip())


def _tree(dependence: DependenceMap, nodes: Sequence[Node], *, projective: bool = False) -> frozenset[Pair]:
    weights = with_ties(node_values(dependence.values, nodes))
    return unit_edges(projective_tree(weights) if projective else spanning_tree(weights), nodes)


def _aligned(parse: Parse, spans: Sequence[tuple[int, int]]) -> list[tuple[Node, list[int]]] | None:
    """Units and words that overlap, together, in order; None where a word has no unit."""
    groups: list[tuple[list[int], list[int]]] = []
    word, reach = 0, -1
    order = sorted(range(len(parse.spans)), key=lambda one: parse.spans[one])
    for unit, (start, end) in enumerate(spans):
        if start >= reach:
            groups.append(([], []))
            reach = end
        groups[-1][0].append(unit)
        reach = max(reach, end)
        while word < len(order) and parse.spans[order[word]][0] < reach:
            if parse.spans[order[word]][1] <= start:
                return None
            groups[-1][1].append(order[word])
            reach = max(reach, parse.spans[order[word]][1])
            word += 1
    if word < len(order):
        return None
    return [(tuple(units), sorted(words)) for units, words in groups if words]


def tree_of(text: str, units: Sequence[str], parse: Parse) -> Tree | None:
    """The tree over units; None where they cannot be aligned with its words, or it is no tree."""
    spans = placed(text, units)
    groups = None if spans is None or len(parse.spans) != len(parse.heads) else _aligned(parse, spans)
    links = [(word, head - 1) for word, head in enumerate(parse.heads) if 0 < head <= len(parse.heads)]
    lengths = path_lengths(len(parse.heads), links)
    if groups is None or list(parse.heads).count(0) != 1 or not np.isfinite(lengths).all():
        return None
    kept = [(node, words) for node, words in groups if not all(parse.punctuation[word] for word in words)]
    nodes, words = [node for node, _ in kept], [own for _, own in kept]
    apart = np.array([lengths[np.ix_(a, b)].min() for a in words for b in words])
    number = {word: place for place, own in enumerate(words) for word in own}
    related: dict[Edge, str] = {}
    for word, head in links:
        if word in number and head in number and number[word] != number[head]:
            i, j = sorted((number[word], number[head]))
            related.setdefault((i, j), parse.relations[word])
    edges = spanning_tree(-apart.reshape(len(words), len(words)))
    kinds = {
        pair: related.get(edge, _INDIRECT) for edge in sorted(edges) for pair in unit_edges([edge], nodes)
    }
    judged = frozenset(node[0] for node in nodes)
    return Tree(
        edges=frozenset(kinds),
        kinds=kinds,
        known=judged.issuperset,
        nodes=nodes,
    )


def parse_of(record: Record) -> Parse | None:
    """The tree that a record of CoNLL-U brings along, or None; a word without a head counts as a root."""
    meta = record.meta
    if not all(name in meta for name in ("spans", "heads", "deprel", "upos")) or None in meta["spans"]:
        return None
    marks = [
        upos == "PUNCT" or (upos == "_" and relation == "punct")
        for upos, relation in zip(meta["upos"], meta["deprel"], strict=True)
    ]
    return Parse(meta["spans"], [head or 0 for head in meta["heads"]], meta["deprel"], marks)


def _of_treebank(path: Path, problems: Problems) -> Iterator[tuple[str, dict[str, Parse]]]:
    known: dict[str, dict[str, Parse]] = {}
    for record in read_conllu(path, problems):
        if (parse := parse_of(record)) is None:
            problems.note("a sentence whose words are not pieces of its text: it is not judged")
        else:
            known.setdefault(record.raw, {})[record.id] = parse
    yield from known.items()


def _of_sample(path: Path) -> Iterator[tuple[str, dict[str, Parse]]]:
    truth = read_truth(path, SCHEMA, ("sentences",))
    file = (path if path.is_dir() else path.parent) / str(truth["file"])
    remedy = "keep truth.json beside the text that was drawn with it"
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        reason = f"the sentences of this truth could not be read: {error.strerror}"
        raise DataError(reason, source=str(file), remedy=remedy) from None
    if len(lines) != len(truth["sentences"]):
        reason = f"{len(truth['sentences']):,} trees for {len(lines):,} sentences"
        raise DataError(reason, source=str(path), remedy=remedy)
    for line, one in zip(lines, truth["sentences"], strict=True):
        spans = placed(line, [*line.removesuffix(".").split(), "."]) or []
        marks = [relation == "punct" for relation in one["relations"]]
        yield line, {"": Parse(spans, one["heads"], one["relations"], marks)}


# Measures


class _Compared(NamedTuple):
    truth: frozenset[Pair]
    trees: Mapping[str, frozenset[Pair]]


def _compared(one: Decoded, truth: Tree) -> _Compared:
    """The tree of a map and its rivals, over the words that the truth has."""
    weights = with_ties(node_values(one.dependence.values, truth.nodes))
    size = len(truth.nodes)
    dice = np.triu(np.random.default_rng([size, *map(ord, str(one.record.raw)[:64])]).random((size, size)), 1)
    trees = {
        "uuas": spanning_tree(weights),
        "projective": projective_tree(weights),
        "chain": chain(size),
        "random": projective_tree(dice + dice.T),
    }
    return _Compared(truth.edges, {name: unit_edges(tree, truth.nodes) for name, tree in trees.items()})


# Files and pictures


def _spelled(one: Decoded, node: Node) -> str:
    spans = placed(str(one.record.raw), one.units)
    if spans is None:
        return "".join(one.units[unit] for unit in node)
    return " ".join(str(one.record.raw)[spans[node[0]][0] : spans[node[-1]][1]].split())


def _conllu(one: Decoded) -> str:
    """A sentence with predicted heads: the word with most edges is the root, the first of several.

    Punctuation depends on the root; where there are several trees (an empty map has none), so do the others.
    """
    words, marks = _words(one.record, one.units)
    nodes = sorted([*words, *marks])
    if not nodes:
        return ""
    links: dict[int, list[int]] = {node[0]: [] for node in nodes}
    for i, j in one.predicted:
        if i in links and j in links:
            links[i].append(j)
            links[j].append(i)
    root = max((words or nodes), key=lambda node: (len(links[node[0]]), -node[0]))[0]
    heads, waiting = {root: -1}, [root]
    while waiting:
        head = waiting.pop()
        new = [unit for unit in links[head] if unit not in heads]
        heads.update(dict.fromkeys(new, head))
        waiting += new
    number = {node[0]: place for place, node in enumerate(nodes, start=1)}
    spans = placed(str(one.record.raw), one.units)
    unmarked = {node[0] for node in words}
    rows = [
        f"# sent_id = {' '.join(one.record.id.split())}",
        f"# text = {' '.join(str(one.record.raw).split())}",
    ]
    for place, node in enumerate(nodes):
        head = heads.get(node[0], root)
        relation = "root" if node[0] == root else "dep" if node[0] in unmarked else "punct"
        after = nodes[place + 1][0] if place + 1 < len(nodes) else None
        glued = spans is not None and after is not None and spans[node[-1]][1] == spans[after][0]
        upos = "PUNCT" if relation == "punct" else "_"
        cells = [_spelled(one, node), "_", upos, "_", "_", str(number.get(head, 0)), relation, "_"]
        rows.append("\t".join([str(place + 1), *cells, "SpaceAfter=No" if glued else "_"]))
    return "\n".join(rows) + "\n\n"


def _table(decoder: TreeDecoder, decoded: Iterable[Decoded]) -> Iterator[str]:
    yield "relation\tedges\tfound\tchain\tlog_odds\tz\n"
    for row in decoder.relations(decoded):
        yield f"{row.relation}\t{row.edges}\t{row.found}\t{row.chain}\t{row.log_odds:.3f}\t{row.z:.2f}\n"


_MISSED = {"color": "0.8"}
_LETTER, _GAP, _LEVEL, _MIDDLE = 7, 14, 13, 34  # pixels: a letter, between words, an arc's step, the words


def arcs(
    words: Sequence[str],
    above: Sequence[tuple[int, int, str, bool]],
    below: Sequence[tuple[int, int, str, bool]],
) -> str:
    """A sentence as SVG, with arcs above and below its words.

    Args:
        words: as they are written.
        above, below: (word, word, what it is, whether the other side has it too): others are dashed below
            and pale above.
    """
    from matplotlib import figure, patches, path

    edges = np.cumsum([0, *(max(2, len(word)) * _LETTER + _GAP for word in words)])
    middle = (edges[1:] + edges[:-1]) / 2
    heights = [
        round(_LEVEL * (1 + max((_level(j - i) for i, j, _, _ in part), default=0)))
        for part in (above, below)
    ]
    top, base = heights[0] + 8, heights[0] + 8 + _MIDDLE
    width, height = int(edges[-1]) + 2, base + heights[1] + 8
    with page_style():
        whole = figure.Figure(figsize=(width / 72, height / 72))
        axes = whole.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
        axes.axis("off")
        for part, line, sign, other in ((above, top, -1, _MISSED), (below, base, 1, THRESHOLD)):
            for i, j, label, agreed in part:
                reach = line + sign * _LEVEL * _level(j - i) * 4 / 3
                points = [(middle[i], line), (middle[i], reach), (middle[j], reach), (middle[j], line)]
                curve = path.Path(points, [1, 4, 4, 4])
                axes.add_patch(patches.PathPatch(curve, fill=False, **({"color": MARK} if agreed else other)))
                if sign < 0:
                    axes.text(middle[[i, j]].mean(), line - _LEVEL * _level(j - i) - 2, label, ha="center")
        for x, word in zip(middle, words, strict=True):
            axes.text(x, top + 21, word, ha="center")
        drawn = picture(whole, "arcs of the truth above the words, those predicted below")
    # As wide as it is, so that letters keep their size.
    return str(Markup('<div class="natural" style="--w:{}px">{}</div>').format(width, drawn))


def _level(distance: int) -> float:
    """Height of an arc in steps: less than in proportion, so that a long sentence stays on a page."""
    return 1 + 1.6 * float(np.log2(max(1, distance)))
