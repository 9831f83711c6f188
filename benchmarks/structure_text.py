"""Trees of English without a treebank: what a map has to beat, on sentences of at most ten words.

    python benchmarks/structure_text.py --data ../shared/data [--json FILE] [--quick] [--maps FOLDER]

The rivals are the chain of neighbours, random trees without crossings, and the dependency model with valence
(Klein and Manning 2004) learnt by EM from the gold tags of the very sentences it is judged on, as its authors
do: it is told the parts of speech, which maps are not. `--maps` is what `seqmlm structure MODEL TREEBANK
--out FOLDER` wrote of it; rivals are then judged on its words, the same edges for all. Punctuation is left
out, shares are over edges (UUAS) with a bootstrap over sentences; `gain` is paired, over the chain.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.structure import placed
from seqmlm.domains.text.conllu import read_conllu
from seqmlm.domains.text.structure import parse_of, tree_of
from seqmlm.evaluation.intervals import ratio
from seqmlm.structure.dmv import DependencyModel
from seqmlm.structure.trees import Edge, chain, projective_tree

LONGEST = 10  # words without punctuation, as of Klein and Manning
FILES = {"ewt": "text/ud_en_ewt/*.conllu.gz", "pud": "text/ud_pud_parallel/en_*.conllu.gz"}


class Sentence(NamedTuple):
    """A sentence of at most ten words: their tags, and edges between words counted from 0.

    nodes: the units of each word.
    """

    record: Record
    tags: tuple[str, ...]
    gold: frozenset[Edge]
    nodes: Sequence[tuple[int, ...]]


def sentences(
    paths: Sequence[Path], *, units: Mapping[str, Sequence[str]] | None = None, longest: int = LONGEST
) -> Iterator[Sentence]:
    """Sentences of 2 to `longest` words.

    Args:
        paths: CoNLL-U.
        units: of each sentence, by its id; None for the words of the treebank. Others are left out.
        longest: most words, punctuation not counted.
    """
    for record in (record for path in paths for record in read_conllu(path, Problems())):
        parse = parse_of(record)
        if parse is None or (units is not None and record.id not in units):
            continue
        if len(parse.punctuation) - sum(parse.punctuation) > 2 * longest:  # units may hold several words
            continue
        text = str(record.raw)
        words = sorted(set(map(tuple, parse.spans)))
        own = [text[a:b] for a, b in words] if units is None else units[record.id]
        tree, spans = tree_of(text, own, parse), placed(text, own)
        if tree is None or spans is None or not 2 <= len(tree.nodes) <= longest:
            continue
        place = {node[0]: number for number, node in enumerate(tree.nodes)}
        gold = frozenset((place[i], place[j]) for i, j in tree.edges)
        tagged = list(zip(parse.spans, record.meta["upos"], strict=True))
        tags = (
            next(
                tag for (start, end), tag in tagged if start < spans[node[-1]][1] and end > spans[node[0]][0]
            )
            for node in tree.nodes
        )
        yield Sentence(record, tuple(tags), gold, tree.nodes)


def rivals(
    treebank: Sequence[Sentence], *, steps: int = 40, seed: int = 0
) -> dict[str, list[frozenset[Edge]]]:
    """The trees of each rival, a sentence each: `chain`, `random`, `dmv`."""
    random = np.random.default_rng(seed)
    guessed = []
    for one in treebank:
        dice = np.triu(random.random((len(one.tags), len(one.tags))), 1)
        guessed.append(projective_tree(dice + dice.T))
    model, _ = DependencyModel.fit([one.tags for one in treebank], steps=steps)
    return {
        "chain": [chain(len(one.tags)) for one in treebank],
        "random": guessed,
        "dmv": model.trees([one.tags for one in treebank]),
    }


def figures(treebank: Sequence[Sentence], trees: Mapping[str, Sequence[frozenset[Edge]]]) -> dict[str, Any]:
    """UUAS of each, with its interval and its gain over the chain."""
    sizes = [len(one.gold) for one in treebank]
    near = np.array([len(one.gold & chain(len(one.tags))) for one in treebank])
    found = {}
    for name, own in trees.items():
        hits = np.array([len(one.gold & tree) for one, tree in zip(treebank, own, strict=True)])
        share, gain = ratio(hits, sizes), ratio(hits - near, sizes)
        found[name] = {
            "uuas": [share.value, share.low, share.high],
            "gain": [gain.value, gain.low, gain.high],
        }
    return {"sentences": len(treebank), "edges": sum(sizes), **found}


class Found(NamedTuple):
    """What `seqmlm structure --out` wrote of sentences, by their ids."""

    units: dict[str, list[str]]
    edges: dict[str, set[Edge]]


def read_maps(folder: Path) -> Found:
    """Units and edges of `edges.json`."""
    rows = json.loads((folder / "edges.json").read_text(encoding="utf-8"))
    units = {row["id"]: row["units"] for row in rows}
    return Found(units, {row["id"]: {(edge["i"], edge["j"]) for edge in row["edges"]} for row in rows})


def found_in(treebank: Sequence[Sentence], found: Found) -> list[frozenset[Edge]]:
    """The trees of maps, between words counted from 0."""
    trees = []
    for one in treebank:
        place = {node[0]: number for number, node in enumerate(one.nodes)}
        pairs = ((place.get(i), place.get(j)) for i, j in found.edges[one.record.id])
        trees.append(frozenset((i, j) for i, j in pairs if i is not None and j is not None))
    return trees


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the data catalogue")
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    parser.add_argument("--quick", action="store_true", help="500 sentences of each treebank, 5 steps of EM")
    parser.add_argument("--maps", type=Path, help="what seqmlm structure --out wrote of the same treebank")
    asked = parser.parse_args()
    maps = None if asked.maps is None else read_maps(asked.maps)
    result: dict[str, Any] = {}
    for name, pattern in FILES.items():
        paths = sorted(asked.data.glob(pattern))
        if not paths:
            print(f"{name}: no files {pattern} in {asked.data}")
            continue
        found = sentences(paths, units=None if maps is None else maps.units)
        treebank = list(islice(found, 500 if asked.quick else None))
        if not treebank:
            print(f"{name}: the maps are of other sentences")
            continue
        begun = time.perf_counter()
        trees = rivals(treebank, steps=5 if asked.quick else 40)
        if maps is not None:
            trees["maps"] = found_in(treebank, maps)
        own = figures(treebank, trees)
        result[name] = own
        size, seconds = f"{len(treebank):,} sentences, {own['edges']:,} edges", time.perf_counter() - begun
        print(f"{name}: {size}, {seconds:.0f} s")
        for rival, its in own.items():
            if isinstance(its, dict):
                print(f"  {rival:8} {json.dumps(its)}")
    if asked.json is not None:
        asked.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
