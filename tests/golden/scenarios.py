"""What seqmlm computes from its built-in samples, written to files: to see whether a change changes results.

    python tests/golden/scenarios.py OUT               all six fields, each into OUT/<field>
    python tests/golden/scenarios.py OUT --field dna   one of them
    python tests/golden/scenarios.py OUT --part embed  one of the parts below alone; "none": none of them
    python tests/golden/scenarios.py --compare A B     exit code 0 where two such folders have equal bytes

Every field is sampled, trained for a few steps, scored in several modes and at every level, calibrated,
evaluated and, where it takes strings, asked about minimal pairs. The parts follow, each in the fields that
have it: finetune (with predict), structure, variants, embed, fill, review, watch (with incidents), export.
Only the command line is used, so that the inside of the package may move. On one machine two runs of the
same code write the same bytes; what differs from run to run (times, run ids, folders) is left out.
"""

from __future__ import annotations

import argparse
import csv
import difflib
import hashlib
import io
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

STEPS = 30

# Seconds until a watching that does not come to its last row is stopped, and between two looks at its rows.
PATIENCE = 120
LOOK = 0.1

# Differ between two runs of the same code; so does the load of the machine, which some steps have with them.
LOAD = "system/"
TIMES = {
    *("time", "seconds", "rate", "tokens_per_second", "wall_seconds", "created"),
    *("opened", "updated", "resolved", "stream_judged", "calibrated"),
}
NAMES = {"run", "run_id", "checkpoint"}

# Hashes of the training records, under a key drawn anew for every model.
SALTED = "trained_on"

# Text of the command line on stderr that a failing command leaves here.
SHOWN = 2000


@dataclass(frozen=True, kw_only=True)
class Field:
    """One field's scenario.

    Args:
        train, score, normal: records of the samples to train on, to score, and to calibrate with.
        levels: the first is scored in all modes and comes calibrated from the training, the second is
            calibrated with other normal data, the others are scored as they are.
        file: the data inside a sample's folder.
        seed: of the sample to score, one with anomalies.
        batch: tokens of a training step.
        rate: learning rate; high, so that thirty steps teach something.
        spoil: makes an odd line out of a line of the data, where the sample has no anomalies itself.
        pairs: makes minimal pairs from a sample's folder.
        labels: options of `finetune` that name labelled records in the folder `train`.
        unlabelled: what `predict` reads of the folder `few`.
        few: records of the sample that the parts ask about.
        linked: the data of which a sample's truth says what depends on each other.
        gaps: writes a file of sequences with gaps, from the folder `few`; its name.
    """

    train: int
    score: int
    normal: int
    levels: tuple[str, ...]
    file: str
    seed: int = 1
    batch: int = 1024
    rate: float = 5e-3
    spoil: Callable[[str, random.Random], str] | None = None
    pairs: Callable[[Path], Iterator[tuple[str, str, str]]] | None = None
    labels: tuple[str, ...]
    unlabelled: str
    few: int
    linked: str
    gaps: Callable[[Path], Path]


class Seqmlm:
    """The command line in this process; what it prints on stdout comes back."""

    def __call__(self, *arguments: object, stopped: bool = False) -> str:
        """Run a command; `stopped`: it ends by SIGTERM."""
        from seqmlm.cli import main

        out, err = io.StringIO(), io.StringIO()
        code: Any = 0
        with redirect_stdout(out), redirect_stderr(err):
            try:
                main([str(argument) for argument in arguments])
            except SystemExit as stop:
                code = stop.code
        if code and not (stopped and code == 128 + signal.SIGTERM):
            raise RuntimeError(f"seqmlm {' '.join(map(str, arguments))}: {err.getvalue()[-SHOWN:]}")
        return out.getvalue()


def steady(value: Any) -> Any:
    """The same value without what differs from run to run."""
    if isinstance(value, dict):
        return {
            key: steady(one)
            for key, one in value.items()
            if key.rpartition("/")[2] not in TIMES and key not in NAMES and not key.startswith(LOAD)
        }
    return [steady(one) for one in value] if isinstance(value, list) else value


def written(path: Path, text: str) -> None:
    """Write JSON (a line each of `.jsonl`) without what differs from run to run."""
    if path.suffix == ".jsonl":
        lines = (json.dumps(steady(json.loads(line)), ensure_ascii=False) for line in text.splitlines())
        path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    else:
        path.write_text(json.dumps(steady(json.loads(text)), indent=1, ensure_ascii=False) + "\n")


def tensors(folder: Path) -> dict[str, Any]:
    """Every tensor of a model's folder: hash, shape and the first numbers; beside them the headers."""
    from safetensors import safe_open

    found: dict[str, Any] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="numpy") as opened:
            for name in sorted(opened.keys()):
                array = opened.get_tensor(name)
                known: dict[str, Any] = {"dtype": str(array.dtype), "shape": list(array.shape)}
                if file.stem != SALTED:
                    known["sha256"] = hashlib.sha256(array.tobytes()).hexdigest()
                    known["first"] = array.reshape(-1)[:4].tolist()
                found[f"{file.stem}:{name}"] = known
            header = (opened.metadata() or {}).get("seqmlm")
        if header is not None:
            found[f"{file.stem}:header"] = json.loads(header)
    return found


def hashes(folder: Path) -> dict[str, str]:
    """Every file of a sample."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files
    }


def run(name: str, out: Path, parts: Sequence[str]) -> None:
    """One field's scenario, its results into `out`; works in the current directory."""
    field, seqmlm = FIELDS[name], Seqmlm()
    out.mkdir(parents=True, exist_ok=True)
    samples = {"train": (field.train, 0), "score": (field.score, field.seed), "normal": (field.normal, 2)}
    for sample, (count, seed) in samples.items():
        seqmlm("sample", "--domain", name, "--out", sample, "--n", count, "--seed", seed)
    written(out / "samples.json", json.dumps({sample: hashes(Path(sample)) for sample in samples}))

    settings = (
        f"train.learning_rate={field.rate}",
        "train.evaluation_records=8",
        f"train.evaluate_every={STEPS // 3}",
        "data.calibration=0.2",
        "data.validation=0.1",
        "model.overrides={num_hidden_layers: 2, hidden_size: 64, intermediate_size: 96}",
    )
    trained = seqmlm(
        *("train", f"train/{field.file}", "--domain", name, "--name", "golden", "--size", "tiny", "--json"),
        *("--max-steps", STEPS, "--set", f"train.tokens_per_batch={field.batch}"),
        *(word for setting in settings for word in ("--set", setting)),
    )
    written(out / "train.json", trained)
    (folder,) = Path("home/runs").glob("*/model")
    written(out / "metrics.jsonl", (folder.parent / "metrics.jsonl").read_text())
    written(out / "model-trained.json", json.dumps(tensors(folder)))

    data, labels = f"score/{field.file}", "score/truth.json"
    if field.spoil is not None:
        labels = "labels.csv"
        spoil(field, Path(data), Path(labels))

    def score(label: str, *arguments: object) -> Path:
        rows = Path(f"{label}.jsonl")
        summary = seqmlm("score", "golden", data, "--out", rows, "--json", *arguments)
        written(out / f"summary-{label}.json", summary)
        written(out / f"scores-{label}.jsonl", rows.read_text(encoding="utf-8"))
        return rows

    def evaluate(label: str, *arguments: object) -> None:
        common = ("--labels", labels, "--set", "draws=100", "--json")
        written(out / f"evaluate-{label}.json", seqmlm("evaluate", *arguments, *common))

    first, second, *others = field.levels
    exact = score("exact", "--mode", "exact", "--set", "per_unit=true")
    fast = score("one-pass", "--mode", "one-pass", "--fpr", 0.1, "--set", "per_unit=true")
    score("partition", "--mode", "partition:3")
    evaluate(first, exact, "--baseline", fast)

    normal = ("calibrate", "golden", f"normal/{field.file}", "--on-error", "skip", "--json")
    written(out / "calibrate.json", seqmlm(*normal, "--level", second, "--fpr", 0.05))
    written(out / "model-calibrated.json", json.dumps(tensors(folder)))
    units = score(f"level-{second}", "--mode", "one-pass", "--level", second, "--fpr", 0.1)
    if field.spoil is None:
        evaluate(second, units, "--set", "partial=true")
    for level in others:
        score(f"level-{level}", "--mode", "one-pass", "--level", level)

    if field.pairs is not None:
        with Path("pairs.csv").open("w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            rows.writerow(("original", "mutated", "group"))
            rows.writerows(islice(field.pairs(Path("train")), 24))
        asked = ("pairs", "golden", "pairs.csv", "--json", "--out", "pairs.jsonl")
        more = ("--set", "language=python") if name == "code" else ()
        written(out / "pairs.json", seqmlm(*asked, *more))
        written(out / "pairs.jsonl", Path("pairs.jsonl").read_text())
    if parts:
        seqmlm("sample", "--domain", name, "--out", "few", "--n", field.few, "--seed", 3)
    for part in parts:
        if name in PARTS[part].fields:
            PARTS[part].run(name, seqmlm, out)


def finetune(name: str, seqmlm: Seqmlm, out: Path) -> None:
    """One pass over labelled records, and what the model then predicts."""
    field = FIELDS[name]
    options = ("--set", "epochs=1", "--set", "tokens_per_step=1024", "--json")
    trained = seqmlm("finetune", "golden", *field.labels, "--name", "tuned", *options)
    written(out / "finetune.json", trained)
    written(out / "finetune-metrics.jsonl", Path("home/runs/tuned/metrics.jsonl").read_text())
    written(out / "model-tuned.json", json.dumps(tensors(Path("home/runs/tuned/model"))))
    labels = ("--set", "labels=few/labels.json") if name == "ehr" else ()
    ask(seqmlm, out, "predict", f"few/{field.unlabelled}", *labels, model="tuned")


def structure(name: str, seqmlm: Seqmlm, out: Path) -> None:
    ask(seqmlm, out, "structure", f"few/{FIELDS[name].linked}", "--truth", "few/truth.json")


def embed(name: str, seqmlm: Seqmlm, out: Path) -> None:
    ask(seqmlm, out, "embed", f"few/{FIELDS[name].linked}")


def fill(name: str, seqmlm: Seqmlm, out: Path) -> None:
    ask(seqmlm, out, "fill", FIELDS[name].gaps(Path("few")))


def export(name: str, seqmlm: Seqmlm, out: Path) -> None:
    """A folder for Hugging Face's libraries."""
    seqmlm("models", "export", "golden", "exported")
    folder = Path("exported")
    contents = {file.name: steady(json.loads(file.read_text())) for file in sorted(folder.glob("*.json"))}
    contents["seqmlm.json"].pop("checksum")  # of all files
    contents["seqmlm.json"]["files"].pop(f"{SALTED}.safetensors", None)
    tokenizer = json.dumps(contents.pop("tokenizer.json", None), sort_keys=True)
    contents["tokenizer"] = hashlib.sha256(tokenizer.encode()).hexdigest()
    written(out / "export.json", json.dumps({**contents, **tensors(folder)}))


def variants(name: str, seqmlm: Seqmlm, out: Path) -> None:
    """Substitutions, a deletion and an insertion: of a protein by its residues, of a contig as a VCF."""
    sequence = "".join(Path("few", FIELDS[name].file).read_text().split(">")[1].split("\n")[1:]).upper()
    Path("wildtype.fasta").write_text(f">wildtype\n{sequence}\n")
    if name == "protein":
        single = [f"{sequence[n]}{n + 1}{new}" for n in range(0, 12, 2) for new in "AW" if new != sequence[n]]
        longer = [f"{sequence[3]}4del", f"{sequence[3]}4_{sequence[4]}5insW", ":".join(single[:4:2])]
        file, reference = Path("variants.csv"), "--wildtype"
        file.write_text("mutant\n" + "".join(f"{variant}\n" for variant in (*single, *longer)))
    else:
        other = {"A": "C", "C": "G", "G": "T", "T": "A"}
        alleles = [(n, sequence[n], other[sequence[n]]) for n in range(10, 80, 10)]
        alleles += [(90, sequence[90:93], sequence[90]), (100, sequence[100], sequence[100] + "ACG")]
        lines = (f"wildtype\t{n + 1}\t.\t{before}\t{after}\t.\t.\t.\n" for n, before, after in alleles)
        file, reference = Path("variants.vcf"), "--reference"
        head = "##fileformat=VCFv4.2\n#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\n"
        file.write_text(head + "".join(lines))
    ask(seqmlm, out, "variants", file, reference, "wildtype.fasta")


def review(name: str, seqmlm: Seqmlm, out: Path) -> None:
    """A folder, and the lines of a difference: what planted bugs changed."""
    ask(seqmlm, out, "review", "score/code", "--fpr", 0.1, "--sarif", "review.sarif")
    written(out / "review-sarif.json", without_folder(Path("review.sarif").read_text()))
    texts: dict[str, str] = {}
    bugs = json.loads(Path("score/truth.json").read_text())["anomalies"]
    for bug in sorted(bugs, key=lambda bug: bug["start"], reverse=True):
        text = texts.get(bug["file"]) or Path("score/code", bug["file"]).read_text()
        texts[bug["file"]] = text[: bug["start"]] + bug["original"] + text[bug["end"] :]
    with Path("bugs.diff").open("w") as diff:
        for file, before in sorted(texts.items()):
            after = Path("score/code", file).read_text()
            lines = (text.splitlines(keepends=True) for text in (before, after))
            diff.writelines(difflib.unified_diff(*lines, f"a/{file}", f"b/{file}"))
    ask(seqmlm, out, "review", "score/code", "--fpr", 0.1, "--diff", "bugs.diff", label="review-diff")


def watch(name: str, seqmlm: Seqmlm, out: Path) -> None:
    """A file followed to its last line, and the incidents of its alarms."""
    data, gap = f"score/{FIELDS[name].file}", "session_gap=1"
    rows = Path("watch.jsonl")
    seqmlm("score", "golden", data, "--option", gap, "--out", "whole.jsonl")
    with stopped_at(rows, len(Path("whole.jsonl").read_text().splitlines())):
        common = ("--option", gap, "--fpr", 0.1, "--max-latency", "0.2s")
        seqmlm("watch", "golden", data, *common, "--out", rows, stopped=True)
    written(out / "watch.jsonl", without_folder(rows.read_text()))
    listed = seqmlm("incidents", "list", "--json")
    written(out / "incidents.json", without_folder(listed))
    for number in (incident["id"] for incident in json.loads(listed)):
        shown = seqmlm("incidents", "show", number, "--json")
        written(out / f"incident-{number}.json", without_folder(shown))


@contextmanager
def stopped_at(rows: Path, count: int) -> Iterator[None]:
    """Send SIGTERM to this process when a file has so many rows, or never comes to them."""
    done = threading.Event()

    def wait() -> None:
        end = time.monotonic() + PATIENCE
        while not done.wait(LOOK):
            if time.monotonic() > end or (rows.exists() and rows.read_bytes().count(b"\n") >= count):
                os.kill(os.getpid(), signal.SIGTERM)
                return

    waiting = threading.Thread(target=wait)
    waiting.start()
    try:
        yield
    finally:
        done.set()
        waiting.join()


def ask(
    seqmlm: Seqmlm, out: Path, task: str, *arguments: object, model: str = "golden", label: str = ""
) -> None:
    """Run a task; its rows and its summary go into files called by the label, or as the task is."""
    label = label or task
    rows = Path(f"{label}-rows.jsonl")
    summary = seqmlm(task, model, *arguments, "--out", rows, "--json")
    written(out / f"{label}.json", without_folder(summary))
    written(out / rows.name, without_folder(rows.read_text(encoding="utf-8")))


def without_folder(text: str) -> str:
    """Text without the name of the current directory."""
    return text.replace(f"{Path.cwd()}/", "")


def spoil(field: Field, data: Path, labels: Path) -> None:
    """Make every third record odd, and a file of labels that says which."""
    assert field.spoil is not None
    draw, lines, odd, number = random.Random(0), [], [], 0
    for line in data.read_text().splitlines():
        name = line[1:].split()[0] if line.startswith(">") else ""
        if name:
            odd.append((name, number % 3 == 2))
        elif field.file.endswith(".txt"):
            odd.append((f"{data.name}:{number + 1}", number % 3 == 2))
        lines.append(field.spoil(line, draw) if not name and number % 3 == 2 else line)
        number += 0 if name else 1
    data.write_text("".join(line + "\n" for line in lines))
    labels.write_text("id,label\n" + "".join(f"{name},{int(one)}\n" for name, one in odd))


def shuffled_words(line: str, draw: random.Random) -> str:
    words = line.split()
    return " ".join(draw.sample(words, len(words)))


def shuffled_letters(line: str, draw: random.Random) -> str:
    return "".join(draw.sample(line, len(line)))


def agreements(sample: Path) -> Iterator[tuple[str, str, str]]:
    """Sentences, and the same with a verb of the other number."""
    truth = json.loads((sample / "truth.json").read_text())
    other = dict(truth["verb_forms"]) | {plural: single for single, plural in truth["verb_forms"]}
    for number, line in enumerate((sample / "text.txt").read_text().splitlines()):
        words = line.split()
        place = next((n for n, word in enumerate(words) if word.rstrip(".") in other), None)
        if place is None or number % 3 == 2:
            continue
        verb = words[place].rstrip(".")
        changed = words[place].replace(verb, other[verb])
        yield line, " ".join([*words[:place], changed, *words[place + 1 :]]), f"length {len(words) // 6}"


def substitutions(letters: str, longest: int) -> Callable[[Path], Iterator[tuple[str, str, str]]]:
    """Sequences of a FASTA file, and the same with one letter replaced."""

    def pairs(sample: Path) -> Iterator[tuple[str, str, str]]:
        (file,) = sample.glob("*.fasta")
        for number, entry in enumerate(file.read_text().split(">")[1:]):
            sequence = "".join(entry.split("\n")[1:]).upper()[:longest]
            place = (7 * number + 5) % len(sequence)
            new = letters[(letters.index(sequence[place]) + 1 + number % (len(letters) - 1)) % len(letters)]
            yield sequence, sequence[:place] + new + sequence[place + 1 :], f"kind {number % 2}"

    return pairs


def bugs(sample: Path) -> Iterator[tuple[str, str, str]]:
    """Lines with a planted bug, and without it."""
    for one in json.loads((sample / "truth.json").read_text())["anomalies"]:
        text = (sample / "code" / one["file"]).read_text()
        begin, end = text.rfind("\n", 0, one["start"]) + 1, text.find("\n", one["end"])
        right = text[begin : one["start"]] + one["original"] + text[one["end"] : end]
        yield right.strip(), text[begin:end].strip(), one["kind"]


def word_gaps(few: Path) -> Path:
    """Sentences, the second word of each hidden."""
    words = [line.split() for line in (few / "text.txt").read_text().splitlines()]
    file = Path("gaps.txt")
    file.write_text("".join(" ".join((line[0], "[MASK]", *line[2:])) + "\n" for line in words))
    return file


def letter_gaps(few: Path) -> Path:
    """Sequences, two letters of each hidden."""
    (fasta,) = few.glob("*.fasta")
    entries = [entry.split("\n", 1) for entry in fasta.read_text().split(">")[1:]]
    sequences = [(head.split()[0], rest.replace("\n", "")) for head, rest in entries]
    file = Path("gaps.fasta")
    file.write_text("".join(f">{name}\n{text[:4]}_{text[5:9]}_{text[10:]}\n" for name, text in sequences))
    return file


def code_gaps(few: Path) -> Path:
    """Formulas, the second name or number of each hidden."""
    file = Path("gaps.jsonl")
    with file.open("w") as lines:
        for row in map(json.loads, (few / "formulas.jsonl").read_text().splitlines()):
            row["code"] = re.sub(r"(= \(*)\w+", r"\1[MASK]", row["code"], count=1)
            lines.write(json.dumps(row) + "\n")
    return file


def event_gaps(few: Path) -> Path:
    """A table of events, the last code of each patient hidden."""
    from pyarrow import parquet

    rows = [row for file in few.glob("meds/data/*/*.parquet") for row in parquet.read_table(file).to_pylist()]
    last = {row["subject_id"]: number for number, row in enumerate(rows)}
    file = Path("gaps.csv")
    with file.open("w", newline="") as lines:
        table = csv.writer(lines)
        table.writerow(("subject_id", "time", "code"))
        for number, row in enumerate(rows):
            code = "[MASK]" if number in last.values() else row["code"]
            table.writerow((row["subject_id"], "" if row["time"] is None else row["time"].isoformat(), code))
    return file


def line_gaps(few: Path) -> Path:
    """A log, its third line hidden."""
    lines = (few / "service.log").read_text().splitlines()
    file = Path("gaps.log")
    file.write_text("".join(f"{line}\n" for line in (*lines[:2], "[MASK]", *lines[3:])))
    return file


FIELDS = {
    "text": Field(
        train=800,
        score=60,
        normal=100,
        levels=("sentence", "word"),
        file="text.txt",
        spoil=shuffled_words,
        pairs=agreements,
        labels=("--train", "train/text.txt", "--label-file", "train/labels.json", "--label", "number"),
        unlabelled="text.txt",
        few=4,
        linked="text.txt",
        gaps=word_gaps,
    ),
    "protein": Field(
        train=400,
        score=30,
        normal=30,
        levels=("protein", "residue"),
        file="protein.fasta",
        spoil=shuffled_letters,
        pairs=substitutions("ACDEFGHIKLMNPQRSTVWY", 30),
        labels=("--train", "train/protein.fasta", "--label", "family"),
        unlabelled="protein.fasta",
        few=3,
        linked="protein.fasta",
        gaps=letter_gaps,
    ),
    "dna": Field(
        train=100,
        score=3,
        normal=1,
        levels=("window", "base", "record"),
        file="dna.fasta",
        seed=14,
        pairs=substitutions("ACGT", 40),
        labels=("--train", "train/rna.genes", "--label", "family"),
        unlabelled="rna.genes",
        few=3,
        linked="rna.genes",
        gaps=letter_gaps,
    ),
    "code": Field(
        train=30,
        score=1,
        normal=1,
        levels=("line", "token", "function", "file"),
        file="code",
        seed=16,
        pairs=bugs,
        labels=("--train", "train/formulas.jsonl", "--label", "shape"),
        unlabelled="formulas.jsonl",
        few=3,
        linked="formulas.jsonl",
        gaps=code_gaps,
    ),
    "ehr": Field(
        train=200,
        score=110,
        normal=20,
        levels=("visit", "event", "patient", "visit-whole", "patient-whole"),
        file="meds",
        seed=9,
        rate=2e-3,  # at more, rounding grows a thousandfold within thirty steps
        labels=("--train", "train/meds", "--label-file", "train/labels.json", "--label", "boolean_value"),
        unlabelled="meds",
        few=3,
        linked="meds",
        gaps=event_gaps,
    ),
    "logs": Field(
        train=300,
        score=60,
        normal=80,
        levels=("session", "line"),
        file="service.log",
        labels=("--train", "train/service.log", "--label-file", "train/labels.json", "--label", "fault"),
        unlabelled="service.log",
        few=4,
        linked="service.log",
        gaps=line_gaps,
    ),
}


@dataclass(frozen=True)
class Part:
    """What the model is asked besides scores, and in which fields."""

    run: Callable[[str, Seqmlm, Path], None]
    fields: tuple[str, ...] = tuple(FIELDS)


PARTS = {
    "finetune": Part(finetune),
    "structure": Part(structure),
    "variants": Part(variants, ("protein", "dna")),
    "embed": Part(embed),
    "fill": Part(fill),
    "review": Part(review, ("code",)),
    "watch": Part(watch, ("logs",)),
    "export": Part(export),
}
NO_PART = "none"


def compare(before: Path, after: Path, most: int = 5) -> list[str]:
    """The first differences between two folders of results; none where their bytes are equal."""
    found = []
    names = {path.relative_to(one) for one in (before, after) for path in one.rglob("*") if path.is_file()}
    for name in sorted(names):
        pair = (before / name, after / name)
        if not all(path.is_file() for path in pair):
            found.append(f"{name}: only in {before if pair[0].is_file() else after}")
            continue
        first, second = (path.read_bytes() for path in pair)
        if first != second:
            lines = list(zip(first.splitlines(), second.splitlines(), strict=False))
            number = next((n for n, (a, b) in enumerate(lines) if a != b), len(lines))
            texts = [b"".join(one.splitlines()[number : number + 1]) for one in (first, second)]
            same = next((n for n, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), 0)
            start = max(0, same - 60)
            shown = [text[start : start + 160].decode(errors="replace") for text in texts]
            found.append(f"{name}, line {number + 1}:\n  - {shown[0]}\n  + {shown[1]}")
        if len(found) == most:
            return [*found, "..."]
    return found


def quiet_surroundings(home: Path, threads: int) -> None:
    """One workspace, no other store, no accelerator, so many threads: before torch is imported."""
    for name in ("MLFLOW_TRACKING_URI", "SEQMLM_DATABASE_URL"):
        os.environ.pop(name, None)
    settings = {
        "SEQMLM_HOME": str(home),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "COLUMNS": "120",
    }
    os.environ.update(settings)


def main() -> int:
    parser = argparse.ArgumentParser(description="Write what seqmlm computes, or compare two such folders.")
    parser.add_argument("out", type=Path, nargs="?", metavar="OUT")
    parser.add_argument("--field", action="append", choices=FIELDS, help="all six if absent")
    parser.add_argument("--part", action="append", choices=(*PARTS, NO_PART), help="all if absent")
    parser.add_argument("--threads", type=int, default=1, help="of torch [1]")
    parser.add_argument("--mlflow", type=Path, help="a database without runs: making one takes seconds")
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("A", "B"))
    asked = parser.parse_args()
    if asked.compare:
        found = compare(*asked.compare)
        print("\n".join(found) or "equal")
        return int(bool(found))
    if asked.out is None:
        parser.error("name a folder to write to, or two with --compare")
    out = asked.out.resolve()
    for name in asked.field or FIELDS:
        with tempfile.TemporaryDirectory() as work, chdir(work):
            quiet_surroundings(home := Path(work) / "home", asked.threads)
            if asked.mlflow is not None:
                home.mkdir()
                shutil.copyfile(asked.mlflow, home / "mlflow.db")
            run(name, out / name, [part for part in asked.part or PARTS if part != NO_PART])
            print(name, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
