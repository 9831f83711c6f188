"""Compare training settings by bits per unit and structure after the same processor time, for each field.

Every arm changes some settings of `seqmlm train`. The others are the defaults of the field. An arm is trained
for 1, 4 or 15 minutes of processor time on one thread, independent of the load of the machine. Then it is
judged twice:

    bits       15 % of the units of held-out records hidden, as in `pretrain_real`
    structure  AUROC of pairs that belong together in the dependency map (below): base pairs of tRNA, and the
               planted contacts and stems of the protein and DNA samples. Bits would prefer such narrow
               windows that distant pairs are never found

The dependency map of a sequence (Tomaz da Silva et al. 2025) uses no masks. Every symbol at i is replaced by
every other symbol. The log odds of every symbol at j are compared before and after. The value of the pair
(i, j) is the largest change.

    PYTHONPATH=benchmarks python benchmarks/studies/recipe.py --data ../shared/data --minutes 1
    PYTHONPATH=benchmarks python benchmarks/studies/recipe.py --data ../shared/data --only text \\
        --arms nearby+unigram --seeds 3 --minutes 4

Results are kept for each data set, arm, size, time and seed under --out. An interrupted benchmark continues
at the point of interruption. Two processes with different --only share the work.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from pretrain_real import SETS, DataSet, Trained, by_processor_time, train
from sklearn.metrics import roc_auc_score

from seqmlm import plugins
from seqmlm.config import merge
from seqmlm.data.problems import Problems
from seqmlm.engine.conditionals import Conditionals, Query
from seqmlm.engine.reductions import Candidates
from seqmlm.tokenizers.base import Tokenizer

Settings = Mapping[str, Any]


def _windows(everywhere: int, window: int) -> Settings:
    shape = {"global_attn_every_n_layers": everywhere, "local_attention": 2 * window}
    return {"model": {"overrides": shape}}


# An arm is some of these, joined by "+".
PARTS: dict[str, Settings] = {
    "default": {},
    **{layers: {"model": {"layers": layers}} for layers in ("modernbert", "nearby", "mixed", "everywhere")},
    "nearby2": _windows(99, 2),
    "nearby8": _windows(99, 8),
    "mixed4": _windows(2, 4),
    "mixed64": _windows(2, 64),
    "flat": {"model": {"initialization": "modernbert"}},
    "unigram": {"model": {"initialization": "unigram"}},
    "scaled": {"model": {"initialization": "scaled"}},
    "rate.15": {"masking": {"rate": 0.15}},
    "rate.3": {"masking": {"rate": 0.3}},
    "rate.4": {"masking": {"rate": 0.4}},
    "masks": {"masking": {"mask": 1.0, "random": 0.0, "keep": 0.0}},
    "batch512": {"train": {"tokens_per_batch": 512}},
    "batch1024": {"train": {"tokens_per_batch": 1024}},
    "24k": {"tokenizer": {"vocabulary_size": 24_000}},
}
ARMS = (
    "default",
    "modernbert+flat",
    "modernbert+unigram",
    "nearby+unigram",
    "nearby+scaled",
    "mixed+unigram",
    "everywhere+unigram",
    "nearby+unigram+rate.3",
    "nearby+unigram+batch512",
    "mixed+unigram+rate.3",
    "mixed+unigram+batch512",
)


def settings_of(arm: str) -> Settings:
    """The settings of the parts of an arm; later parts replace earlier ones."""
    unknown = [part for part in arm.split("+") if part not in PARTS]
    if unknown:
        raise SystemExit(f"no part {unknown[0]} of an arm; there are {', '.join(PARTS)}")
    return merge({}, *(PARTS[part] for part in arm.split("+")))


@dataclass(frozen=True)
class Pairs:
    """Sequences with the pairs of places (from 0) that belong together."""

    sequences: list[str]
    pairs: list[set[tuple[int, int]]]


def _trna(path: Path) -> Iterator[tuple[str, set[tuple[int, int]]]]:
    """Sequences of a Stockholm file without gaps, as DNA, and the pairs of their own structure lines."""
    rows: dict[str, list[str]] = {}
    structures: dict[str, list[str]] = {}
    with gzip.open(path, "rt") as lines:
        for line in lines:
            words = line.split()
            if line.startswith("#=GR") and words[2] == "SS":
                structures.setdefault(words[1], []).append(words[3])
            elif words and not line.startswith(("#", "//")):
                rows.setdefault(words[0], []).append(words[1])
    for name, parts in rows.items():
        letters, structure = "".join(parts).upper().replace("U", "T"), "".join(structures[name])
        kept = [place for place, letter in enumerate(letters) if letter in "ACGT"]
        new = {place: number for number, place in enumerate(kept)}
        open_, found = [], set()
        for place, sign in enumerate(structure):
            if sign == "<":
                open_.append(place)
            elif sign == ">":
                pair = open_.pop(), place
                if pair[0] in new and pair[1] in new:
                    found.add((new[pair[0]], new[pair[1]]))
        yield "".join(letters[place] for place in kept), found


def trna(data: Path, work: Path) -> tuple[list[Path], Pairs]:
    """A file with nine of ten tRNA for training; the pairs of the others."""
    known = list(_trna(data / "dna/rna_structure/tRNA1415G.sto.gz"))
    path = work / "trna.fasta"
    path.write_text("".join(f">t{n}\n{letters}\n" for n, (letters, _) in enumerate(known) if n % 10))
    held = known[::10]
    return [path], Pairs([letters for letters, _ in held], [pairs for _, pairs in held])


def protein_sample(data: Path, work: Path) -> tuple[list[Path], Pairs]:
    """The sample of proteins for training; contacts of another draw of the sample."""
    domain = plugins.domain("protein")
    drawn = domain.sample.draw(work / "protein")
    other = domain.sample.draw(work / "protein-other", n=60, seed=1)
    truth = json.loads(other.truth.read_text())
    contacts = {family["name"]: {tuple(pair) for pair in family["contacts"]} for family in truth["families"]}
    length = {family["name"]: family["length"] for family in truth["families"]}
    sequences, pairs = [], []
    for record in domain.formats["fasta"].read(other.files[0], Problems()):
        family = record.id.rpartition("-")[0]
        if len(record.raw) == length[family]:
            sequences.append(record.raw)
            pairs.append(contacts[family])
    return list(drawn.files), Pairs(sequences, pairs)


STRUCTURED = {"trna": ("dna", trna, {"max_length": 128}), "protein_sample": ("protein", protein_sample, {})}


Array = np.ndarray[Any, Any]


def dependency_map(ask: Conditionals, tokenizer: Tokenizer, sequence: str, letters: str) -> Array:
    """(L, L) largest change, in bits, of the log odds of a symbol at j when i is another one."""
    encoding = tokenizer.encode_batch([sequence])[0]
    places = np.flatnonzero(encoding.groups >= 0).astype(np.int32)
    ids = np.array([tokenizer.encode_batch([letter])[0].ids[1] for letter in letters], dtype=np.int32)
    length, others = len(places), len(ids) - 1
    own = encoding.ids[places]
    changed = np.stack([ids[ids != one] if one in ids else ids[1:] for one in own])
    copies = length * others
    none = np.empty(0, dtype=np.int32)
    every = np.repeat(np.arange(copies, dtype=np.int32), length)
    query = Query(
        encoding=encoding,
        masked=none,
        masked_in=none,
        asked=np.tile(places, copies),
        asked_in=every,
        substituted=np.repeat(places, others),
        substitutes=changed.ravel(),
        substituted_in=np.arange(copies, dtype=np.int32),
    )
    plain = Query(encoding=encoding, masked=none, asked=places)
    want = [Candidates(tuple(ids.tolist()))]
    odds = [_log_odds(answer.values["candidates"]) for answer in ask.ask([plain, query], want)]
    change = np.abs(odds[1].reshape(length, others, length, -1) - odds[0][None, None]).max(axis=(1, 3))
    np.fill_diagonal(change, 0)
    return change


def _log_odds(log_probs: Array) -> Array:
    """log2 p / (1 - p) among the letters, from their natural log-probabilities."""
    shares = np.exp(log_probs - np.logaddexp.reduce(log_probs, axis=-1, keepdims=True))
    shares = np.clip(shares, 1e-10, 1 - 1e-7)
    return np.asarray(np.log2(shares) - np.log2(1 - shares))


def structure(done: Trained, known: Pairs, letters: str, most: int = 40) -> float:
    """AUROC of the pairs among all pairs of places at least 4 apart, over sequences."""
    ask = Conditionals(done.rows)
    scores, truths = [], []
    for sequence, pairs in list(zip(known.sequences, known.pairs, strict=True))[:most]:
        found = dependency_map(ask, done.corpus.tokenizer, sequence, letters)
        found = np.maximum(found, found.T)
        i, j = np.triu_indices(len(found), 4)
        scores.append(found[i, j])
        truths.append([(a, b) in pairs for a, b in zip(i.tolist(), j.tolist(), strict=True)])
    return float(roc_auc_score(np.concatenate(truths), np.concatenate(scores)))


def measure(name: str, arm: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """One training, judged; cached as JSON."""
    label = f"{name}-{arm.replace('+', '_')}-{options.size}-{options.minutes:g}min-seed{seed}"
    kept = options.out / f"{label}.json"
    if kept.exists():
        return dict(json.loads(kept.read_text()))
    known = None
    if name in STRUCTURED:
        domain, make, model = STRUCTURED[name]
        work = options.out / "data" / name
        work.mkdir(parents=True, exist_ok=True)
        files, known = make(options.data, work)
        chosen = DataSet(domain, lambda _: files, {"model": model})
    else:
        chosen = SETS[name]
    own = {"model": {"size": options.size}, "data": {"calibration": 0.0}}
    chosen = replace(chosen, flags=merge(chosen.flags, settings_of(arm), own))
    home, limits = options.out / "workspace", {"minutes": options.minutes, "records": 500}
    done = train(chosen, label, options.data, home, seed=seed, **limits)
    row = {
        "set": name,
        "arm": arm,
        "size": options.size,
        "minutes": options.minutes,
        "seed": seed,
        "bits": float(done.costs.bits.mean()),
        "unigram_bits": float(done.costs.unigram_bits.mean()),
        "steps": done.result.get("steps"),
    }
    if known is not None:
        letters = "ACGT" if chosen.domain == "dna" else "ACDEFGHIKLMNPQRSTVWY"
        row["structure"] = structure(done, known, letters)
    kept.write_text(json.dumps(row, indent=2) + "\n")
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the real data sets")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/recipe"))
    parser.add_argument("--only", help="data sets, separated by commas")
    parser.add_argument("--arms", help="arms, separated by commas, each of parts joined by +")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    by_processor_time(options.threads)
    options.out = options.out.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    sets = options.only.split(",") if options.only else [*STRUCTURED, *SETS]
    arms = options.arms.split(",") if options.arms else ARMS
    for seed in range(options.seeds):
        for name in sets:
            for arm in arms:
                row = measure(name, arm, seed, options)
                told = f"structure {row['structure']:.3f}" if "structure" in row else ""
                print(f"{name:<16}{arm:<28}{seed:>2}  {row['bits']:.3f} bits {told}", flush=True)
    print("done", file=sys.stderr)


if __name__ == "__main__":
    main()
