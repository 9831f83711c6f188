"""The structure of text in maps of dependence: a tree over the words, compared with the tree of a grammar.

Punctuation is not part of a tree, following Klein and Manning (2004). Units and words of a treebank may
differ: "don't" is two words there, and three units. Units and words that overlap are therefore joined to one
word. The tree of a treebank without its punctuation is a maximum spanning tree. Its weights are how close
words are in the tree with punctuation.
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
from seqmlm.domains.structure import Decoded, Decoder, Pair, Truth, unit_spans
from seqmlm.domains.text.conllu import read_conllu
from seqmlm.errors import DataError
from seqmlm.evaluation.intervals import ratio
from seqmlm.reports.drawing import MARK, THRESHOLD, page_style, picture
from seqmlm.structure.maps import DependenceMap
from seqmlm.structure.trees import (
    Edge,
    Node,
    chain,
    favour_adjacent,
    node_values,
    path_lengths,
    projective_tree,
    spanning_tree,
    unit_edges,
)

SCHEMA = "seqmlm.sample.text.v1"
MOST_WORDS = 120
"""Number of words in the longest sentence that is drawn."""

_INDIRECT = "through punctuation"  # an edge that exists only in the tree without punctuation
_NO_PUNCTUATION = frozenset("%&#@")  # punctuation in Unicode, but words or symbols in treebanks


class Parse(NamedTuple):
    """The tree of a sentence in a treebank.

    Attributes:
        spans: span of each word in the text. The words of a contraction share one.
        heads: 1-based number of each word's head, 0 for the root.
        relations: relation of each word to its head.
        punctuation: whether each word is punctuation.
    """

    spans: Sequence[tuple[int, int]]
    heads: Sequence[int]
    relations: Sequence[str]
    punctuation: Sequence[bool]


@dataclass(frozen=True, kw_only=True, eq=False)
class Tree(Truth):
    """A tree over words. The first unit of a word represents the word in edges.

    Args:
        nodes: the units of each word, in order, without punctuation.
    """

    nodes: Sequence[Node]


class Relation(NamedTuple):
    """Counts for the edges of one relation: how many the map and the chain of neighbours found.

    Attributes:
        relation: name of the relation.
        edges: number of true edges.
        hits, chain: number of edges that the map found, and that the chain of neighbours found.

        log_odds: log odds that an edge found by only one of the two was found by the map, with 1/2 added to
            both counts.
        z: log_odds divided by its standard error. Above 0, the map is better. Values above 2 are unlikely to
            be chance.
    """

    relation: str
    edges: int
    hits: int
    chain: int
    log_odds: float
    z: float


class TreeDecoder(Decoder):
    """Decode a tree over the words of a sentence.

    Args:
        projective: whether edges may not cross.
    """

    measure: str = "uuas"

    def __init__(self, *, projective: bool = False) -> None:
        self.projective = projective

    def decode(self, record: Record, units: Sequence[str], dependence: DependenceMap) -> frozenset[Pair]:
        """The maximum spanning tree over words, without punctuation.

        A CoNLL-U record knows its words and which of them are punctuation. In other records, each unit is a
        word.
        """
        return _tree(dependence, _words(record, units)[0], projective=self.projective)

    def truths(self, path: Path, problems: Problems) -> Callable[[Record, Sequence[str]], Truth | None]:
        """Read the trees of a CoNLL-U file, or of a sample's `truth.json` with its `text.txt` next to it.

        A sentence is identified by its text. If several sentences have the same text, the record's id
        decides.
        """
        sample = path.is_dir() or path.suffix == ".json"
        trees_of_text = dict(_sample_trees(path)) if sample else dict(_treebank_trees(path, problems))
        if not trees_of_text:
            raise DataError(
                "there is no tree in this file", source=str(path), remedy="give CoNLL-U with heads"
            )

        def truth_of(record: Record, units: Sequence[str]) -> Truth | None:
            trees = trees_of_text.get(str(record.raw))
            if trees is None:
                return None
            tree = tree_of(str(record.raw), units, trees.get(record.id) or next(iter(trees.values())))
            if tree is None:
                problems.note("a sentence whose words could not be aligned with its tree, not evaluated")
            return tree

        return truth_of

    def measures(self, decoded: Iterable[Decoded]) -> dict[str, float]:
        """Undirected unlabelled attachment (UUAS): the share of true edges found, over all sentences.

        `uuas` has the bounds of a bootstrap over sentences. The rivals are `chain` (neighbours linked) and
        `random` (a random tree without crossings). `projective` is the UUAS of the best tree without
        crossings. `gain` is the lead over the chain on the same resamples.
        """
        sentences = [
            _rival_trees(sentence, sentence.truth) for sentence in decoded if isinstance(sentence.truth, Tree)
        ]
        if not (edges := sum(len(sentence.truth) for sentence in sentences)):
            return {}
        sizes = [len(sentence.truth) for sentence in sentences]
        hits = {
            name: np.array([len(sentence.truth & sentence.trees[name]) for sentence in sentences])
            for name in ("uuas", "chain", "random", "projective")
        }
        uuas, gain = ratio(hits["uuas"], sizes), ratio(hits["uuas"] - hits["chain"], sizes)
        figures = {"uuas": uuas.value, "uuas_low": uuas.low, "uuas_high": uuas.high}
        figures |= {name: int(hits[name].sum()) / edges for name in ("chain", "random", "projective")}
        figures |= {"gain": gain.value, "gain_low": gain.low, "gain_high": gain.high}
        # A single sentence has no bounds.
        return {name: value for name, value in figures.items() if np.isfinite(value)}

    def relations(self, decoded: Iterable[Decoded]) -> list[Relation]:
        """Each relation's edges, most frequent first: found by the spanning tree, and by the chain."""
        hits: defaultdict[str, list[tuple[bool, bool]]] = defaultdict(list)
        for sentence in decoded:
            if isinstance(sentence.truth, Tree):
                trees = _rival_trees(sentence, sentence.truth).trees
                for edge, relation in sentence.truth.kinds.items():
                    hits[relation].append((edge in trees["uuas"], edge in trees["chain"]))
        rows = []
        for relation, outcomes in sorted(hits.items(), key=lambda item: (-len(item[1]), item[0])):
            by_map, by_chain = (sum(flags) for flags in zip(*outcomes, strict=True))
            by_both = sum(map(all, outcomes))
            ours_alone, chain_alone = by_map - by_both + 0.5, by_chain - by_both + 0.5
            odds = float(np.log(ours_alone / chain_alone))
            z = odds / float(np.sqrt(1 / ours_alone + 1 / chain_alone))
            rows.append(Relation(relation, len(outcomes), by_map, by_chain, odds, z))
        return rows

    def picture(self, decoded: Decoded) -> str | None:
        """Arcs between words: edges of the truth above the words, predicted edges below."""
        truth = decoded.truth if isinstance(decoded.truth, Tree) else None
        nodes, marks = _words(decoded.record, decoded.units)
        if truth is not None:
            truth_units = {unit for node in truth.nodes for unit in node}
            marks = [node for node in (*nodes, *marks) if truth_units.isdisjoint(node)]
            nodes = list(truth.nodes)
        if len(nodes) + len(marks) > MOST_WORDS:
            return None
        ordered = sorted([*nodes, *marks])
        place = {node[0]: number for number, node in enumerate(ordered)}
        words = [_node_text(decoded, node) for node in ordered]
        above = frozenset[Pair]() if truth is None else truth.edges
        below = decoded.predicted
        if truth is not None:  # over the words of the truth, which may differ from the words of the record
            below = _tree(decoded.dependence, nodes, projective=self.projective)

        def arc_list(edges: Iterable[Pair]) -> list[tuple[int, int, str, bool]]:
            kinds: Mapping[Pair, str] = {} if truth is None else truth.kinds
            agreed = (above & below) if truth is not None else below
            return [(place[i], place[j], kinds.get((i, j), ""), (i, j) in agreed) for i, j in sorted(edges)]

        return arcs(words, arc_list(above), arc_list(below))

    def files(self, decoded: Iterable[Decoded]) -> Mapping[str, Iterator[str]]:
        """The file `trees.conllu`, and `relations.tsv` if the truth of a sentence is known."""
        texts: dict[str, Iterator[str]] = {"trees.conllu": (_conllu(sentence) for sentence in decoded)}
        if any(sentence.truth is not None for sentence in decoded):
            texts["relations.tsv"] = _table(self, decoded)
        return texts


# Words and trees


def _words(record: Record, units: Sequence[str]) -> tuple[list[Node], list[Node]]:
    """The units of each word of a sentence, and the units of each punctuation mark."""
    parse, spans = parse_of(record), unit_spans(str(record.raw), units)
    if parse is not None and spans is not None and (groups := _unit_groups(parse, spans)) is not None:
        split = [(node, all(parse.punctuation[word] for word in words)) for node, words in groups]
    else:
        split = [((number,), _is_mark(unit)) for number, unit in enumerate(units) if unit.strip()]
    return [node for node, mark in split if not mark], [node for node, mark in split if mark]


def _is_mark(unit: str) -> bool:
    """Whether a unit consists of punctuation."""
    return all(
        unicodedata.category(character)[0] == "P" and character not in _NO_PUNCTUATION
        for character in unit.strip()
    )


def _tree(dependence: DependenceMap, nodes: Sequence[Node], *, projective: bool = False) -> frozenset[Pair]:
    """The maximum spanning tree of a map over words, without crossing edges if `projective`."""
    weights = favour_adjacent(node_values(dependence.values, nodes))
    return unit_edges(projective_tree(weights) if projective else spanning_tree(weights), nodes)


def _unit_groups(parse: Parse, spans: Sequence[tuple[int, int]]) -> list[tuple[Node, list[int]]] | None:
    """Groups of units and of the words that they overlap, in order; None if a word has no unit."""
    groups: list[tuple[list[int], list[int]]] = []
    word, reach = 0, -1
    order = sorted(range(len(parse.spans)), key=lambda index: parse.spans[index])
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
    """A treebank's tree over the units of a text; None if it cannot be aligned with them or is not a tree."""
    spans = unit_spans(text, units)
    groups = None if spans is None or len(parse.spans) != len(parse.heads) else _unit_groups(parse, spans)
    links = [(word, head - 1) for word, head in enumerate(parse.heads) if 0 < head <= len(parse.heads)]
    lengths = path_lengths(len(parse.heads), links)
    if groups is None or list(parse.heads).count(0) != 1 or not np.isfinite(lengths).all():
        return None
    word_groups = [
        (node, words) for node, words in groups if not all(parse.punctuation[word] for word in words)
    ]
    nodes, words = [node for node, _ in word_groups], [members for _, members in word_groups]
    distances = np.array([lengths[np.ix_(a, b)].min() for a in words for b in words])
    number = {word: place for place, members in enumerate(words) for word in members}
    relation_of: dict[Edge, str] = {}
    for word, head in links:
        if word in number and head in number and number[word] != number[head]:
            i, j = sorted((number[word], number[head]))
            relation_of.setdefault((i, j), parse.relations[word])
    edges = spanning_tree(-distances.reshape(len(words), len(words)))
    kinds = {
        pair: relation_of.get(edge, _INDIRECT) for edge in sorted(edges) for pair in unit_edges([edge], nodes)
    }
    judged = frozenset(node[0] for node in nodes)
    return Tree(
        edges=frozenset(kinds),
        kinds=kinds,
        covers=judged.issuperset,
        nodes=nodes,
    )


def parse_of(record: Record) -> Parse | None:
    """The tree in the `meta` of a CoNLL-U record, or None. A word without a head counts as a root."""
    meta = record.meta
    if not all(name in meta for name in ("spans", "heads", "deprel", "upos")) or None in meta["spans"]:
        return None
    marks = [
        upos == "PUNCT" or (upos == "_" and relation == "punct")
        for upos, relation in zip(meta["upos"], meta["deprel"], strict=True)
    ]
    return Parse(meta["spans"], [head or 0 for head in meta["heads"]], meta["deprel"], marks)


def _treebank_trees(path: Path, problems: Problems) -> Iterator[tuple[str, dict[str, Parse]]]:
    """(text, record id -> tree) for the sentences of a CoNLL-U file."""
    trees: dict[str, dict[str, Parse]] = {}
    for record in read_conllu(path, problems):
        if (parse := parse_of(record)) is None:
            problems.note("a sentence whose words are not pieces of its text, not evaluated")
        else:
            trees.setdefault(record.raw, {})[record.id] = parse
    yield from trees.items()


def _sample_trees(path: Path) -> Iterator[tuple[str, dict[str, Parse]]]:
    """(text, {"": tree}) for the sentences of a sample, from `truth.json` and the text next to it."""
    truth = read_truth(path, SCHEMA, ("sentences",))
    file = (path if path.is_dir() else path.parent) / str(truth["file"])
    remedy = "keep truth.json next to the text from the same sample"
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        reason = f"the sentences of this truth could not be read: {error.strerror}"
        raise DataError(reason, source=str(file), remedy=remedy) from None
    if len(lines) != len(truth["sentences"]):
        reason = f"{len(truth['sentences']):,} trees for {len(lines):,} sentences"
        raise DataError(reason, source=str(path), remedy=remedy)
    for line, sentence in zip(lines, truth["sentences"], strict=True):
        spans = unit_spans(line, [*line.removesuffix(".").split(), "."]) or []
        marks = [relation == "punct" for relation in sentence["relations"]]
        yield line, {"": Parse(spans, sentence["heads"], sentence["relations"], marks)}


# Measures


class _RivalTrees(NamedTuple):
    """The true edges of a sentence, and the edges of the map and of its rivals by name."""

    truth: frozenset[Pair]
    trees: Mapping[str, frozenset[Pair]]


def _rival_trees(decoded: Decoded, truth: Tree) -> _RivalTrees:
    """The tree of a map and the trees of its rivals, over the words of the truth."""
    weights = favour_adjacent(node_values(decoded.dependence.values, truth.nodes))
    size = len(truth.nodes)
    dice = np.triu(
        np.random.default_rng([size, *map(ord, str(decoded.record.raw)[:64])]).random((size, size)), 1
    )
    trees = {
        "uuas": spanning_tree(weights),
        "projective": projective_tree(weights),
        "chain": chain(size),
        "random": projective_tree(dice + dice.T),
    }
    return _RivalTrees(truth.edges, {name: unit_edges(tree, truth.nodes) for name, tree in trees.items()})


# Files and pictures


def _node_text(decoded: Decoded, node: Node) -> str:
    """The text of a word."""
    spans = unit_spans(str(decoded.record.raw), decoded.units)
    if spans is None:
        return "".join(decoded.units[unit] for unit in node)
    return " ".join(str(decoded.record.raw)[spans[node[0]][0] : spans[node[-1]][1]].split())


def _conllu(decoded: Decoded) -> str:
    """A sentence as CoNLL-U with predicted heads. The root is the first of the words with the most edges.

    Punctuation depends on the root. If there are several trees (as in an empty map), so do the words of the
    others.
    """
    words, marks = _words(decoded.record, decoded.units)
    nodes = sorted([*words, *marks])
    if not nodes:
        return ""
    links: dict[int, list[int]] = {node[0]: [] for node in nodes}
    for i, j in decoded.predicted:
        if i in links and j in links:
            links[i].append(j)
            links[j].append(i)
    root = max((words or nodes), key=lambda node: (len(links[node[0]]), -node[0]))[0]
    heads, waiting = {root: -1}, [root]
    while waiting:
        head = waiting.pop()
        unvisited = [unit for unit in links[head] if unit not in heads]
        heads.update(dict.fromkeys(unvisited, head))
        waiting += unvisited
    number = {node[0]: place for place, node in enumerate(nodes, start=1)}
    spans = unit_spans(str(decoded.record.raw), decoded.units)
    unmarked = {node[0] for node in words}
    rows = [
        f"# sent_id = {' '.join(decoded.record.id.split())}",
        f"# text = {' '.join(str(decoded.record.raw).split())}",
    ]
    for place, node in enumerate(nodes):
        head = heads.get(node[0], root)
        relation = "root" if node[0] == root else "dep" if node[0] in unmarked else "punct"
        next_unit = nodes[place + 1][0] if place + 1 < len(nodes) else None
        is_glued = spans is not None and next_unit is not None and spans[node[-1]][1] == spans[next_unit][0]
        upos = "PUNCT" if relation == "punct" else "_"
        cells = [_node_text(decoded, node), "_", upos, "_", "_", str(number.get(head, 0)), relation, "_"]
        rows.append("\t".join([str(place + 1), *cells, "SpaceAfter=No" if is_glued else "_"]))
    return "\n".join(rows) + "\n\n"


def _table(decoder: TreeDecoder, decoded: Iterable[Decoded]) -> Iterator[str]:
    """The lines of `relations.tsv`."""
    yield "relation\tedges\tfound\tchain\tlog_odds\tz\n"
    for row in decoder.relations(decoded):
        yield f"{row.relation}\t{row.edges}\t{row.hits}\t{row.chain}\t{row.log_odds:.3f}\t{row.z:.2f}\n"


_MISSED = {"color": "0.8"}
_LETTER, _GAP, _LEVEL, _MIDDLE = 7, 14, 13, 34  # pixels: letter, space between words, arc step, word row


def arcs(
    words: Sequence[str],
    above: Sequence[tuple[int, int, str, bool]],
    below: Sequence[tuple[int, int, str, bool]],
) -> str:
    """A sentence as SVG, with arcs above and below its words.

    Args:
        words: the words in their written form.
        above, below: (word, word, label, whether the other side also has it). Other arcs are dashed below and
            pale above.
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
        drawing = figure.Figure(figsize=(width / 72, height / 72))
        axes = drawing.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
        axes.axis("off")
        for part, line, sign, style in ((above, top, -1, _MISSED), (below, base, 1, THRESHOLD)):
            for i, j, label, agreed in part:
                reach = line + sign * _LEVEL * _level(j - i) * 4 / 3
                points = [(middle[i], line), (middle[i], reach), (middle[j], reach), (middle[j], line)]
                curve = path.Path(points, [1, 4, 4, 4])
                axes.add_patch(patches.PathPatch(curve, fill=False, **({"color": MARK} if agreed else style)))
                if sign < 0:
                    axes.text(middle[[i, j]].mean(), line - _LEVEL * _level(j - i) - 2, label, ha="center")
        for x, word in zip(middle, words, strict=True):
            axes.text(x, top + 21, word, ha="center")
        svg = picture(drawing, "arcs of the truth above the words, predicted arcs below")
    # The picture keeps its width, so that letters keep their size.
    return str(Markup('<div class="natural" style="--w:{}px">{}</div>').format(width, svg))


def _level(distance: int) -> float:
    """Height of an arc in steps. It grows less than the distance, so that a long sentence fits on a page."""
    return 1 + 1.6 * float(np.log2(max(1, distance)))
