"""Compare joint distributions of two hidden places: which one agrees best with a masked language model?

    antibodies   AntiBERTy (Ruffolo et al. 2021) on V genes, all residues
    reactions    the model of rxnmapper (Schwaller et al. 2021) on esterifications and amidations, all symbols
    text         a `tiny` model trained here for --minutes, sentences of the test part of EWT, 256 candidates
    whole        the same, all symbols
    information  conditional mutual information of each joint of a `tiny` model of a Potts chain after some
                 steps of training, its error compared with the exact value, and its difference to `chain`
    mutants      double mutants of PAB1 by a `tiny` model of its family: the log-ratio to the wild type under
                 each joint, compared with `seqmlm variants`; Spearman, intervals by pair of places
    words        ten words of two tokens with about the same frequency: how often is the original word the
                 most probable under each joint? Compared with the question of `seqmlm zeroshot`: the first
                 token, then the second. Same model and sentences as `text`, 64 candidates a place and all
                 of the words
    left         bits a token if all later tokens are hidden too, as for a reader from the left, and if only
                 the token is hidden; for the three models
    steps        Arnold-Gokhale on V genes by steps, from uniform marginals and from the marginals while both
                 places are hidden

The table has U-PPL, P-PPL, A-KL, G-KL and JSD of six joints (Torroba Hennigen and Kim 2023). It uses one
random and one contiguous pair of each sequence, with intervals by sequence. It also has the processor seconds
per pair. AntiBERTy, V genes and the model of reactions can be installed (`pip install --no-deps
antiberty==0.1.3 anarci==2026.2.13.2 rxnmapper==0.4.3`). Without them, their arms are left out. Rows and
figures are kept for each arm under --out, with the pairs. An interrupted benchmark continues at the point of
interruption.

    python benchmarks/joints.py --data ../shared/data
    python benchmarks/joints.py --data ../shared/data --only reactions --json reactions.json
    python benchmarks/joints.py --data ../shared/data --quick
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import combinations, islice
from pathlib import Path
from typing import Any

import numpy as np
from anomaly_models import trained
from embed_real import antiberty, germlines
from english_sentences import write_sentences
from finetune_real import written
from theory import LETTERS, PLACES, chain_samples, information, potts
from variants_real import Doubles, measured, spearman

from seqmlm.data.problems import Problems
from seqmlm.domains.protein.tokenizer import STANDARD
from seqmlm.domains.protein.variants import _columns_of
from seqmlm.engine.query import Query
from seqmlm.engine.reductions import TargetLogProb
from seqmlm.engine.types import Encoding
from seqmlm.evaluation.intervals import bootstrap_intervals, ratio
from seqmlm.inference.record_batches import encoded
from seqmlm.inference.session import Session
from seqmlm.reports.summary import NoProgress
from seqmlm.structure.joints import (
    METHODS,
    OTHERS,
    Candidates,
    Pair,
    arnold_gokhale,
    joint_measures,
    pair_conditionals,
    top_candidates,
)
from seqmlm.tasks.joint import NAMES, JointConfig, JointTask
from seqmlm.tasks.run import run

PAIRS = {"antibodies": 100, "reactions": 20, "text": 1000, "whole": 50}
STEPS = (1, 2, 3, 5, 10, 20, 40, 1000)

ACIDS = ("C", "CC", "CCC", "CC(C)", "CCCCC", "FC(F)(F)", "c1ccccc1", "COc1ccc(cc1)", "Clc1ccc(cc1)", "BrC")
REST = ("C", "CC", "C(C)C", "CCC", "Cc1ccccc1", "CCCC", "CC(F)(F)F", "c1ccccc1", "CCBr", "CCOC")

Asked = dict[str, Any]


def antibodies(options: argparse.Namespace, out: Path) -> Asked | None:
    model, genes = antiberty(out), germlines()
    if model is None or not genes:
        return None
    random.Random(0).shuffle(genes)
    lines = (f">{number}-{one['gene']}\n{one['body']}\n" for number, one in enumerate(genes))
    return {"model": model, "domain": "protein", "evaluate": written(out / "genes.fasta", "".join(lines))}


def reactions(options: argparse.Namespace, out: Path) -> Asked | None:
    model = rxnmapper(out)
    if model is None:
        return None
    lines = [f"{a}C(=O)O.{x}{r}>>{a}C(=O){x}{r}" for a in ACIDS for r in REST for x in "ON"]
    random.Random(0).shuffle(lines)
    return {"model": model, "domain": "text", "evaluate": written(out / "reactions.txt", "\n".join(lines))}


def rxnmapper(work: Path) -> str | None:
    """The model of rxnmapper as a folder of transformers; its pickle is read only as tensors."""
    import torch
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
    from transformers import AlbertConfig, AlbertForMaskedLM, PreTrainedTokenizerFast

    found, out = importlib.util.find_spec("rxnmapper"), work / "rxnmapper"
    if found is None or found.origin is None:
        return None
    (folder,) = Path(found.origin).parent.glob("models/transformers/albert*")
    if not out.exists():
        weights = torch.load(folder / "pytorch_model.bin", "cpu", weights_only=True)
        masked = AlbertForMaskedLM(AlbertConfig.from_pretrained(folder))
        missing = masked.load_state_dict(weights, strict=False).missing_keys
        assert not missing, missing
        vocabulary = {token: n for n, token in enumerate((folder / "vocab.txt").read_text().split())}
        made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
        made.pre_tokenizer = pre_tokenizers.Split(Regex(SMILES), "isolated")
        ends = [(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")]
        made.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", None, ends)
        names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
        PreTrainedTokenizerFast(tokenizer_object=made, **names).save_pretrained(out)
        masked.save_pretrained(out)
    return str(out)


SMILES = r"\[[^\]]+\]|Br?|Cl?|>>?|%[0-9]{2}|."
"""A symbol of a reaction."""


def text(options: argparse.Namespace, out: Path) -> Asked:
    learnt = write_sentences(options.data, out / "sentences.txt")
    model = trained(out, "english-joints", "text", [learnt], {}, 0, options.minutes)
    (held_out,) = (options.data / "text/ud_en_ewt").glob("*test*")
    return {"model": str(model.path), "evaluate": str(held_out), "candidates": 256}


def whole(options: argparse.Namespace, out: Path) -> Asked:
    return {**text(options, out), "candidates": None}


ARMS: dict[str, Callable[[argparse.Namespace, Path], Asked | None]] = {
    "antibodies": antibodies,
    "reactions": reactions,
    "text": text,
    "whole": whole,
}


def evaluated(asked: Asked, n: int, pairs: str, to: Path) -> dict[str, Any]:
    """The figures of one arm, and processor seconds per pair; resumed arms count only the remaining pairs."""
    began = time.process_time()
    config = JointConfig(
        **asked, pairs=pairs, n=n, out=to.with_suffix(".jsonl"), publish=to.with_suffix(".tsv"), resume=True
    )
    done = run("joint", JointTask, config, stdout=None, progress=NoProgress(), as_json=True)
    if done.stopped is not None:
        raise SystemExit(128 + done.stopped)
    return {**done.figures, "pairs": done.items, "seconds": (time.process_time() - began) / done.items}


def by_steps(options: argparse.Namespace, out: Path) -> dict[str, Any]:
    """The mean A-KL of Arnold-Gokhale by its steps, on contiguous residues of the arm `antibodies`."""
    asked = antibodies(options, out)
    if asked is None:
        return {}
    session = Session.open(asked["model"], domain="protein")
    rows = [
        json.loads(line)
        for line in (out / f"antibodies-contiguous{options.suffix}.jsonl").read_text().splitlines()
    ]
    texts = Path(asked["evaluate"]).read_text().splitlines()[1::2]
    pairs = [
        Pair(session.tokenizer.encode(x), row["i"], row["j"]) for x, row in zip(texts, rows, strict=False)
    ]
    known = {
        session.tokenizer.spelling.surface(int(one)): int(one) for one in session.tokenizer.space.ordinary
    }
    alphabet = np.array(sorted(known[one] for one in "ACDEFGHIKLMNPQRSTVWY"), dtype=np.int32)
    found: dict[str, list[float]] = {}
    needed = []
    for own in pair_conditionals(session.conditionals(), pairs[: 20 if options.quick else 100], alphabet):
        needed.append(arnold_gokhale(own).steps)
        for steps in STEPS:
            uniform = arnold_gokhale(own, steps).joint
            marginal = arnold_gokhale(own, steps, uniform=False).joint
            for name, joint in (("uniform", uniform), ("marginals", marginal)):
                found.setdefault(f"{name} {steps}", []).append(joint_measures(own, joint, 0, 0)["a_kl"])
    told = {name: float(np.mean(one)) for name, one in found.items()}
    return {"a_kl": told, "steps": {"mean": float(np.mean(needed)), "most": max(needed)}}


def by_information(options: argparse.Namespace, out: Path) -> dict[str, Any]:
    """The mean absolute error over pairs of places, in nats; intervals by pair."""
    table, fasta = potts(), chain_samples(out)
    letters = list(np.ndindex(*[len(LETTERS)] * (PLACES - 2)))
    found: dict[str, Any] = {"error": {}, "more than chain": {}}
    for steps in (30,) if options.quick else (100, 300, 900):
        model = trained(out, f"chain-{steps}", "protein", [fasta], {}, 0, steps / 300)
        session, tokenizer = Session(model), model.tokenizer
        ids = np.sort([tokenizer.encode(one).ids[1] for one in LETTERS]).astype(np.int32)
        error: dict[str, list[float]] = {name: [] for name in METHODS}
        for i, j in combinations(range(PLACES), 2):
            rest = [n for n in range(PLACES) if n not in (i, j)]
            shares = table.sum(axis=(i, j))
            texts = (np.insert(np.insert(np.array(x), i, 0), j, 0) for x in letters)
            pairs = [Pair(tokenizer.encode("".join(LETTERS[n] for n in x)), i + 1, j + 1) for x in texts]
            told = dict.fromkeys(METHODS, 0.0)
            for share, own in zip(
                shares.ravel(), pair_conditionals(session.conditionals(), pairs, ids), strict=True
            ):
                for name, make in METHODS.items():
                    told[name] += float(share) * information(np.exp(make(own)), 0, 1, ())
            for name, value in told.items():
                error[name].append(abs(value - information(table, i, j, rest)))
        for name, own in error.items():
            found["error"][f"{name} {steps}"] = asdict(ratio(own))
            found["more than chain"][f"{name} {steps}"] = asdict(ratio(np.subtract(own, error["chain"])))
    return found


def family(rows: Sequence[str], out: Path) -> Path:
    """Aligned rows without gaps."""
    bodies = ("".join(one for one in row if one.isalpha()).upper() for row in rows)
    fasta = "".join(f">{n}\n{body}\n" for n, body in enumerate(bodies) if body)
    return Path(written(out / "family.fasta", fasta))


def double_mutants(data: Path) -> tuple[str, list[str], list[tuple[list[tuple[int, str]], float]]]:
    """A domain of PAB1, the aligned rows of its family, and two changes with their score each."""
    wildtype, every = measured(data)
    packed = data / "protein/contacts_pfam40/aln/PF00076.fasta.gz"
    rows = [row.partition("\n")[2] for row in gzip.decompress(packed.read_bytes()).decode().split(">")[1:]]
    columns = _columns_of([row.replace("\n", "") for row in rows], wildtype, str(packed))
    first, last = min(columns), max(columns) + 1  # all that its family has
    wildtype = wildtype[first:last]
    doubles = [
        (sorted((place - first, new) for place, new in changes), score)
        for changes, score in every
        if len(changes) == 2 and all(first <= place < last for place, _ in changes)
    ]
    return wildtype, rows, doubles


def by_mutants(options: argparse.Namespace, out: Path) -> dict[str, Any]:
    """The figures of the arm `mutants`, on a sample of double mutants."""
    wildtype, rows, doubles = double_mutants(options.data)
    doubles = random.Random(0).sample(doubles, 40 if options.quick else 1500)
    model = trained(out, "family", "protein", [family(rows, out)], {}, 0, options.minutes)
    session, tokenizer = Session(model), model.tokenizer
    alphabet = np.sort([tokenizer.encode(one).ids[1] for one in STANDARD]).astype(np.int32)
    symbol = {one: int(np.flatnonzero(alphabet == tokenizer.encode(one).ids[1])[0]) for one in STANDARD}
    places = sorted({(x[0], y[0]) for (x, y), _ in doubles})
    encoding = tokenizer.encode(wildtype)
    asked = pair_conditionals(
        session.conditionals(), [Pair(encoding, i + 1, j + 1) for i, j in places], alphabet
    )
    found: dict[Any, dict[str, Doubles]] = {}
    for pair, own in zip(places, asked, strict=True):
        old, other = (symbol[wildtype[at]] for at in pair)
        tables = {"masked": own.given_second[other][:, None] + own.given_first[old]}
        tables |= {name: make(own) for name, make in METHODS.items()}
        found[pair] = {name: table - table[old, other] for name, table in tables.items()}
    ratios = {
        name: np.array([found[x[0], y[0]][name][symbol[x[1]], symbol[y[1]]] for (x, y), _ in doubles])
        for name in ("masked", *METHODS)
    }
    scores = np.array([score for _, score in doubles])
    groups = [f"{x[0]}-{y[0]}" for (x, y), _ in doubles]

    def rho(weights: Any) -> dict[str, float]:
        told = {name: spearman(values, scores, weights) for name, values in ratios.items()}
        return told | {f"{name} - masked": told[name] - told["masked"] for name in METHODS}

    told = {name: asdict(one) for name, one in bootstrap_intervals(rho, groups, draws=500).items()}
    return {
        "spearman": {name: told[name] for name in ratios},
        "more than masked": {name: told[f"{name} - masked"] for name in METHODS},
        "doubles": len(doubles),
        "places": len(places),
    }


def by_left(options: argparse.Namespace, out: Path) -> dict[str, Any]:
    """The figures of the arm `left`, on the first sequences of each model; intervals by sequence."""
    found: dict[str, Any] = {}
    for arm in ("antibodies", "reactions", "text"):
        if (asked := ARMS[arm](options, out)) is None:
            continue
        session = Session.open(asked["model"], domain=asked.get("domain"))
        records = session.reader([asked["evaluate"]])(Problems("skip"))
        some = [*islice(records, 3 if options.quick else 10)]
        read = encoded(session.domain, session.tokenizer, some, Problems("skip"))
        queries, bits = [], []
        for one in read:
            inside = (one.encoding.groups >= 0) & np.isin(one.encoding.ids, session.tokenizer.space.ordinary)
            at = np.flatnonzero(inside).astype(np.int32)
            at = at[: session.card.max_length - 2]
            each = np.arange(len(at), dtype=np.int32)
            later = np.array([(n, own) for n in each for own in at[n:]], dtype=np.int32)
            for copy, hidden in ((each, at), (later[:, 0], later[:, 1])):
                queries.append(
                    Query(encoding=one.encoding, masked=hidden, masked_in=copy, asked=at, asked_in=each)
                )
        for answer in session.conditionals().ask(queries):
            bits.append(-answer.values[TargetLogProb.name] / np.log(2))
        for name, own in (("both sides", bits[::2]), ("left alone", bits[1::2])):
            found[f"{arm}, {name}"] = asdict(ratio([x.sum() for x in own], [len(x) for x in own]))
    return {"bits": found}


def by_words(options: argparse.Namespace, out: Path) -> dict[str, Any]:
    """The figures of the arm `words`; intervals by sentence.

    Each question has a word of a sentence and nine words with about the same frequency in training.
    """
    asked = text(options, out)
    session = Session.open(asked["model"])
    tokenizer, model = session.tokenizer, session.conditionals()
    lines = (out / "sentences.txt").read_text(encoding="utf-8").splitlines()
    random.Random(0).shuffle(lines)
    counts = Counter(word for one in tokenizer.encode_batch(lines[:50_000]) for _, word in of_two(one))
    often = sorted(counts, key=lambda word: (counts[word], word))
    rank = {word: n for n, word in enumerate(often)}
    dice, pairs, words = random.Random(0), list[Pair](), list[list[tuple[int, int]]]()
    for record in session.reader([asked["evaluate"]])(Problems("skip")):
        encoding = tokenizer.encode(record.raw)
        known = [(at, word) for at, word in of_two(encoding) if word in rank]
        if known and len(encoding) <= session.card.max_length:
            at, word = dice.choice(known)
            begin = max(0, min(rank[word] - 30, len(often) - 61))
            near = [own for own in often[begin : begin + 61] if own != word]
            pairs.append(Pair(encoding, at, at + 1))
            words.append([word, *dice.sample(near, 9)])
    n = 20 if options.quick else 500
    pairs, alphabet = pairs[:n], tokenizer.space.ordinary
    tried = top_candidates(model, pairs, alphabet, 64)
    for number, own in enumerate(words[:n]):
        sides = (np.union1d(x[:-1], y) for x, y in zip(tried[number], zip(*own, strict=True), strict=True))
        tried[number] = Candidates(*(np.append(x, OTHERS).astype(np.int32) for x in sides))
    right = dict[str, list[bool]]()
    for own, ids, some in zip(pair_conditionals(model, pairs, alphabet, tried), tried, words, strict=False):
        first, second = (
            np.searchsorted(x[:-1], y) for x, y in zip(ids, zip(*some, strict=True), strict=True)
        )
        scores = {name: make(own)[first, second] for name, make in METHODS.items()}
        scores["zeroshot"] = own.first[first] + own.given_first[first, second]
        for name, values in scores.items():
            right.setdefault(name, []).append(bool(values[0] > values[1:].max()))
    less = {name: np.subtract(own, right["zeroshot"], dtype=float) for name, own in right.items()}
    return {
        "right": {name: asdict(ratio(own)) for name, own in right.items()},
        "more than zeroshot": {name: asdict(ratio(own)) for name, own in less.items()},
        "words": len(pairs),
    }


def of_two(encoding: Encoding) -> Iterator[tuple[int, tuple[int, int]]]:
    """Position and ids of each word of two tokens."""
    groups, ids = encoding.groups, encoding.ids.tolist()
    numbers, sizes = np.unique(groups[groups >= 0], return_counts=True)
    for at in np.flatnonzero(np.isin(groups, numbers[sizes == 2])).tolist()[::2]:
        yield at, (ids[at], ids[at + 1])


def show(name: str, found: dict[str, Any]) -> None:
    print(f"\n{name}")
    if {"error", "spearman", "bits", "right"} & found.keys():
        for key, rows in found.items():
            for who, own in rows.items() if isinstance(rows, dict) else ():
                print(f"  {key:<16} {who:<24} " + "{value:.5f} [{low:.5f}, {high:.5f}]".format(**own))
        return
    if "methods" not in found:
        print("\n".join(f"  {key:<16} {value:.5f}" for key, value in found.get("a_kl", {}).items()))
        print(f"  settled after {found.get('steps')}")
        return
    print(f"  {found['pairs']} pairs, {found['seconds']:.2f} processor seconds a pair")
    print(f"  {'':<11}" + "".join(f"{one:>26}" for one in NAMES.values()))
    for method, own in found["methods"].items():
        cells = ("{value:.4f} [{low:.4f}, {high:.4f}]".format(**own[x]) if x in own else "" for x in NAMES)
        print(f"  {method:<11}" + "".join(f"{cell:>26}" for cell in cells))
    for apart, own in found["distances"].items():
        cells = (f"{method} {value:.4f}" for method, value in own["a_kl"].items())
        print(f"  A-KL, {apart} apart, {own['pairs']} pairs: " + ", ".join(cells))


USES = {
    "steps": by_steps,
    "information": by_information,
    "mutants": by_mutants,
    "words": by_words,
    "left": by_left,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the real data sets")
    parser.add_argument("--json", type=Path, help="write all figures here")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/joints"))
    parser.add_argument("--only", choices=[*ARMS, *USES], action="append", help="only these arms")
    parser.add_argument("--minutes", type=float, default=3.0, help="pretraining of the text model")
    parser.add_argument("--quick", action="store_true", help="a tenth of the pairs, half a minute")
    options = parser.parse_args()
    options.minutes = 0.5 if options.quick else options.minutes
    options.suffix = "-quick" if options.quick else ""
    out, told = options.out.resolve(), dict[str, Any]()
    out.mkdir(parents=True, exist_ok=True)
    for arm in options.only or [*ARMS, *USES]:
        for pairs in ("contiguous", "random")[: 1 if arm in USES else 2]:
            kept = out / f"{arm}-{pairs}{options.suffix}.json"
            if not kept.exists():
                asked = ARMS[arm](options, out) if arm in ARMS else None
                n = max(2, PAIRS.get(arm, 0) // (10 if options.quick else 1))
                found = USES[arm](options, out) if arm in USES else {}
                found = found if asked is None else evaluated(asked, n, pairs, kept)
                written(kept, json.dumps(found, indent=1))
            told[f"{arm}, {pairs}"] = json.loads(kept.read_text())
            show(f"{arm}, {pairs}", told[f"{arm}, {pairs}"])
    if options.json is not None:
        written(options.json, json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
