"""Compare trees of sentences from maps with trees of a treebank and with baselines without a model.

    python benchmarks/structure_text.py --data ../shared/data [--json FILE] [--quick] [--maps FOLDER]
    python benchmarks/structure_text.py --data ../shared/data --train 25 --seeds 3

The baselines are the chain of neighbours, random trees without crossings, and the dependency model with
valence (Klein and Manning 2004). EM trains that model on the gold tags of the test sentences themselves, as
in the paper. It therefore knows the parts of speech, and maps do not. Sentences have at most ten words.

`--maps` reads the output of `seqmlm structure MODEL TREEBANK --out FOLDER` for the same treebank. Baselines
are then judged on its words, so that all have the same edges. Punctuation is left out. Shares are over edges
(UUAS), with a bootstrap over sentences. `gain` is the paired difference to the chain.

`--train MINUTES` trains a `tiny` model (MINUTES times 300 steps). The training data are the sentences of
`english_sentences.py` and the training part of EWT. It maps test sentences of EWT that are not in these: all
with at most ten words, and 200 with 11 to 40. With `--language german-french`, it trains one model of both
languages on the development parts and PUD (4,275 sentences). The test parts of both GSD treebanks are pooled.
Models and maps are kept under --out. An interrupted benchmark continues at the point of interruption.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from anomaly_models import trained
from dmv import DependencyModel
from english_sentences import write_sentences
from structure_maps import mapped

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.structure import unit_spans
from seqmlm.domains.text.conllu import read_conllu
from seqmlm.domains.text.structure import parse_of, tree_of
from seqmlm.evaluation.intervals import ratio
from seqmlm.structure.trees import Edge, chain, projective_tree

LONGEST = 10  # words without punctuation, as of Klein and Manning
FILES = {
    "ewt": "text/ud_en_ewt/*.conllu.gz",
    "pud": "text/ud_pud_parallel/en_*.conllu.gz",
    "german and french": "text/ud_*_gsd/*.conllu.gz",
}


class Sentence(NamedTuple):
    """A sentence: the tags of its words, and edges between words counted from 0.

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
        paths: CoNLL-U files.
        units: units of each sentence, by its id; other sentences are left out. None means the words of the
            treebank.
        longest: largest number of words, punctuation not counted.
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
        tree, spans = tree_of(text, own, parse), unit_spans(text, own)
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
    """The trees of each baseline (`chain`, `random`, `dmv`), one per sentence."""
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
    """The UUAS of each method, with its interval and its gain over the chain."""
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
    """The output of `seqmlm structure --graphs` for sentences, by their ids."""

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


METHODS = ("cmi", "cpmi", "pmi")
LONGER, LONGEST_OF_ALL = 200, 40
SYMBOLS = 16
"""The number of symbols per place in `cmi`: two are enough for the error of the published sampler."""
FLAGS = {"data": {"validation": 0.005, "calibration": 0.002}}
"""Training settings without a calibration, which takes minutes on thousands of sentences and is not used."""


class Language(NamedTuple):
    """The training data of a model, its test treebanks, and the prefix of its file names."""

    learnt: Sequence[Path]
    tests: Sequence[Path]
    prefix: str = ""


def english(data: Path, out: Path) -> Language:
    """Sentences of many sources, and EWT."""
    folder = data / "text" / "ud_en_ewt"
    learnt = [write_sentences(data, out / "sentences.txt"), next(folder.glob("*train*"))]
    return Language(learnt, sorted(folder.glob("*test*")))


def german_french(data: Path, out: Path) -> Language:
    """All sentences of both languages together, which are few."""
    folder = data / "text"
    learnt = [*folder.glob("ud_*_gsd/*dev*"), *folder.glob("ud_pud_parallel/[df][er]_*")]
    return Language(sorted(learnt), sorted(folder.glob("ud_*_gsd/*test*")), "german-french-")


LANGUAGES = {"english": english, "german-french": german_french}


def of_models(language: Language, out: Path, minutes: float, seeds: int, *, quick: bool) -> dict[str, Any]:
    """UUAS of the maps of trained models and of the baselines, for short and longer test sentences."""
    learnt, tests, prefix = language
    known = set[str]()
    for path in learnt:
        if path.suffix == ".txt":
            known |= {line.strip() for line in path.read_text(encoding="utf-8").splitlines()}
        else:
            known |= {str(record.raw) for record in read_conllu(path, Problems())}
    every = [one for one in sentences(tests, longest=LONGEST_OF_ALL) if str(one.record.raw) not in known]
    long = [one for one in every if len(one.tags) > LONGEST]
    chosen = np.random.default_rng(0).permutation(len(long))[:LONGER].tolist()
    parts = {"at most 10 words": [one for one in every if len(one.tags) <= LONGEST]}
    parts["11 to 40 words"] = [long[number] for number in sorted(chosen)]
    if quick:
        parts = {name: some[: len(some) // 10] for name, some in parts.items()}
    result = {}
    for part, wanted in parts.items():
        file = out / f"{prefix}{part.replace(' ', '-')}{'-quick' if quick else ''}.conllu"
        write_treebank(tests, file, {one.record.id for one in wanted})
        for seed in range(seeds):
            name = f"{prefix or 'english-'}trees"
            model = trained(out, name, "text", list(learnt), FLAGS, seed, minutes)
            maps = {}
            for method in METHODS:
                to = out / f"{file.stem}-{minutes:g}min-seed{seed}-{method}"
                asked = {"method": method, "k": SYMBOLS, "truth": file}
                mapped(to, model=str(model.path), paths=(str(file),), **asked)
                maps[method] = read_maps(to / "graphs")
            treebank = list(sentences([file], units=maps["cmi"].units, longest=LONGEST_OF_ALL))
            trees = rivals(treebank, steps=5 if quick else 40, seed=seed)
            trees |= {method: found_in(treebank, own) for method, own in maps.items()}
            result[f"{part}, seed {seed}"] = shown(f"{part}, seed {seed}", figures(treebank, trees))
    return result


def write_treebank(paths: Sequence[Path], file: Path, wanted: Collection[str]) -> None:
    """Some sentences of CoNLL-U files, by their ids."""
    blocks = [one for path in paths for one in gzip.decompress(path.read_bytes()).decode().split("\n\n")]
    named = re.compile(r"^# sent_id = (.*)$", re.MULTILINE)
    kept = [one for one in blocks if (found := named.search(one)) and found[1].strip() in wanted]
    file.write_text("".join(f"{one.strip()}\n\n" for one in kept), encoding="utf-8")


def shown(name: str, own: dict[str, Any]) -> dict[str, Any]:
    """Print figures and return them."""
    print(f"{name}: {own['sentences']:,} sentences, {own['edges']:,} edges")
    for rival, its in own.items():
        if isinstance(its, dict):
            print(f"  {rival:8} {json.dumps(its)}", flush=True)
    return own


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the data catalogue")
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    parser.add_argument("--quick", action="store_true", help="500 sentences of each treebank, 5 steps of EM")
    parser.add_argument(
        "--maps", type=Path, help="output of `seqmlm structure --graphs` for the same treebank"
    )
    parser.add_argument("--train", type=float, help="minutes: trains models and maps sentences of EWT's test")
    parser.add_argument("--seeds", type=int, default=3, help="number of models")
    parser.add_argument("--language", choices=list(LANGUAGES), default="english", help="language of --train")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("benchmarks/results/structure_text"),
        help="where models and maps are kept",
    )
    asked = parser.parse_args()
    if asked.train is not None:
        asked.out.mkdir(parents=True, exist_ok=True)
        out = asked.out.resolve()
        language, seeds = LANGUAGES[asked.language](asked.data, out), 1 if asked.quick else asked.seeds
        told = of_models(language, out, asked.train, seeds, quick=asked.quick)
        if asked.json is not None:
            asked.json.write_text(json.dumps(told, indent=1) + "\n")
        return
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
        result[name] = shown(f"{name}, {time.perf_counter() - begun:.0f} s", figures(treebank, trees))
    if asked.json is not None:
        asked.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
