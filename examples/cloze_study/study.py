"""Compare masking at random with masking the deciding words and all others (Zhang and Hashimoto 2021).

    labels   pretraining on half of the sentences of SST-2 with the label appended. In a share p of them, the
             label is hidden; in the others, random words are. Then the other half is used to fine-tune on
             the same gap, with few to many labels
    masks    a second stage of a trained model. It hides words of the opinion lexicon (cloze), any words
             (uniform) or all other words (nocloze), or there is no second stage. Then the model is fine-tuned
             on few labels, drawn many times, with the same draws for all arms. There are --seeds second
             stages for each arm, and the draws are divided among them. The data are SST-2. With --on
             reviews: film reviews without the sentences of SST-2. With --on promoters: promoters of E. coli,
             where the -35 and -10 hexamers are the deciding places

The phrases of SST-2 are parts of common sentences. Its halves are therefore halves of the sentences. Each arm
is kept as JSON under --out. An interrupted study continues at the point of interruption. Another --first
needs another --out. The whole study takes hours on one thread. --epochs, --seeds, --share, --count and
--draws make it smaller.

    python examples/cloze_study/study.py --data shared/data
    python examples/cloze_study/study.py --data shared/data --part labels --epochs 4 --seeds 1 --share 0 100
    python examples/cloze_study/study.py --data shared/data --part masks --first english --shots 20
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import t

from seqmlm.finetuning.config import FinetuneConfig
from seqmlm.finetuning.finetune import Finetune
from seqmlm.training.launch import TrainRequest
from seqmlm.training.observers import SilentConsole
from seqmlm.training.pretrain import pretrain

NAMES = ("negative", "positive")
UNTRAINED = "none"
VALID, FEW = 300, 1000
"""The number of phrases to select the best step, and of phrases from which few labels are drawn."""
ENDS = 60
"""The number of last words of a review in a labelled example."""
HEXAMERS = (*range(24, 30), *range(48, 54))
"""The places -36 to -31 and -12 to -7 in promoters whose 61st base is the first transcribed base."""

ARMS = ("cloze", "uniform", "nocloze", UNTRAINED)
SHAPE = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 1}

Phrase = tuple[str, str]


def phrases(path: Path) -> list[Phrase]:
    """Text and label of each row."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [(" ".join(row["sentence"].split()), NAMES[int(row["label"])]) for row in rows]


def by_sentence(rows: Sequence[Phrase]) -> list[list[Phrase]]:
    """The phrases of each sentence: each phrase is grouped with the longest row that contains it.

    >>> by_sentence([("a film", "x"), ("it is a film", "y"), ("a bad one", "z")])
    [[('it is a film', 'y'), ('a film', 'x')], [('a bad one', 'z')]]
    """
    counts = Counter(word for text, _ in rows for word in text.split())
    found: list[list[Phrase]] = []
    having: dict[str, list[int]] = defaultdict(list)
    for text, label in sorted(rows, key=lambda row: -len(row[0].split())):
        rarest = min(text.split(), key=lambda word: counts[word])
        whole = next((n for n in having[rarest] if f" {text} " in f" {found[n][0][0]} "), None)
        if whole is None:
            for word in {*text.split()}:
                having[word].append(len(found))
            found.append([])
        found[len(found) - 1 if whole is None else whole].append((text, label))
    return found


def halves(data: Path, out: Path, *, few: bool) -> dict[str, Path]:
    """Files for pretraining without and with labels, and labelled files to fine-tune, validate and test."""
    folder = out / "data"
    folder.mkdir(parents=True, exist_ok=True)
    files = {name: folder / f"{name}.csv" for name in ("teach", "few", "valid", "test")}
    files |= {name: folder / f"{name}.txt" for name in ("plain", "appended")}
    if not all(path.exists() for path in files.values()):
        sentences = by_sentence(phrases(data / "text/sst2/train.tsv.gz")[: 2000 if few else None])
        random.Random(0).shuffle(sentences)
        half = len(sentences) // 2
        first = [row for own in sentences[:half] for row in own]
        rest = [row for own in sentences[half:] for row in own]
        random.Random(1).shuffle(rest)
        valid = min(VALID, len(rest) // 4)
        parts = {"valid": rest[:valid], "teach": rest[valid:], "few": rest[valid:][:FEW]}
        parts["test"] = phrases(data / "text/sst2/dev.tsv.gz")
        for name, own in parts.items():
            with files[name].open("w", encoding="utf-8", newline="") as file:
                csv.writer(file).writerows([("text", "label"), *own])
        files["plain"].write_text("".join(f"{text}\n" for text, _ in first), encoding="utf-8")
        files["appended"].write_text("".join(f"{text} {label}\n" for text, label in first), encoding="utf-8")
    return files


def learnt(name: str, file: Path, flags: dict[str, Any], seed: int, domain: str = "text") -> str:
    """A model pretrained on a file, or the one that an earlier call trained."""
    run = f"{name}-seed{seed}"
    # Arms differ by their masks alone: uniform masks too keep the last weights, and not the best ones.
    train = {**flags["train"], "evaluate_every": 10**9, "evaluation_records": 50}
    wanted = {**flags, "data": {"paths": [str(file)], "calibration": 0.0}, "train": train}
    if not (Path(os.environ["SEQMLM_HOME"]) / "runs" / run / "result.json").exists():
        request = TrainRequest(
            domain=domain, name=run, flags=wanted, settings=(f"seed={seed}",), resume="auto"
        )
        pretrain(request, SilentConsole())
    return run


def accuracy(model: str, train: Path, test: Path, kept: Path, seed: int, shots: int, **more: Any) -> float:
    """The accuracy of a model fine-tuned on a number of labels; kept as JSON."""
    if not kept.exists():
        config = FinetuneConfig(
            model=model, name=f"{kept.stem}-taught", seed=seed, shots=shots, resume=True, rivals="off",
            train=(str(train),), test=(str(test),), labels=("label",), allow_overlap=True, **more,
        )  # fmt: skip
        told = Finetune.launch("finetune", config, stdout=None, progress=SilentConsole(), as_json=True)
        if told.stopped is not None:
            raise SystemExit(128 + told.stopped)
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps({"accuracy": told.figures["accuracy"]}))
    return float(json.loads(kept.read_text())["accuracy"])


def labels(files: dict[str, Path], out: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The accuracy by the share of hidden labels in pretraining and the number of labels in fine-tuning."""
    how: dict[str, Any] = {"valid": (str(files["valid"]),), "head": "prompt"}
    how |= {"template": "{text} [MASK]", "words": tuple(f"{x}={x}" for x in NAMES)}
    found = []
    for share in (UNTRAINED, *options.share):
        for seed in range(options.seeds):
            masks = {"p": 0.0 if share == UNTRAINED else int(share) / 100, "positions": [-1]}
            flags: dict[str, Any] = {
                "model": {"size": "tiny", "overrides": SHAPE},
                "masking": {"masker": "position.v1", "options": masks},
                "train": {"epochs": options.epochs, "learning_rate": 1e-3},
            }
            if share == UNTRAINED:
                flags["train"] = {"max_steps": 1, "learning_rate": 1e-9}
            model = learnt(f"labels-{share}-{options.epochs:g}", files["appended"], flags, seed)
            for count in options.count:
                kept = out / f"{model}-{count}.json"
                value = accuracy(model, files["teach"], files["test"], kept, seed, count, **how)
                found.append({"p": share, "labels": count, "seed": seed, "accuracy": value})
    return found


class Second(NamedTuple):
    """The data of a second stage and of the fine-tuning after it.

    Attributes:
        plain: sequences without labels.
        few, test: sequences with labels.
        masks: masking of each arm.
        how: settings of the fine-tuning.
    """

    domain: str
    plain: Path
    few: Path
    test: Path
    masks: dict[str, dict[str, Any]]
    how: dict[str, Any]


def opinions(data: Path, plain: Path, few: Path, test: Path) -> Second:
    """A second stage in which the words of the opinion lexicon decide."""
    lexicon = plain.with_name("opinion.txt")
    if not lexicon.exists():
        words = []
        for path in sorted((data / "text/opinion_lexicon").glob("*-words.txt.gz")):
            lines = gzip.decompress(path.read_bytes()).decode("latin-1").splitlines()
            words += [line for line in lines if line and not line.startswith(";")]
        lexicon.write_text("\n".join(words), encoding="utf-8")
    masks: dict[str, dict[str, Any]] = {
        mode: {"masker": "lexicon.v1", "options": {"mode": mode, "words_file": str(lexicon)}}
        for mode in ("cloze", "nocloze")
    }
    how: dict[str, Any] = {
        "template": "{text} it was [MASK].",
        "words": ("positive=good", "negative=bad"),
        "head": "prompt",
    }
    return Second("text", plain, few, test, {**masks, "uniform": {"masker": "whole_unit"}}, how)


def sst2(data: Path, out: Path, *, few: bool) -> Second:
    files = halves(data, out, few=few)
    return opinions(data, files["plain"], files["few"], files["test"])


def reviews(data: Path, out: Path, *, few: bool) -> Second:
    """Sentences of half of the film reviews, without those of SST-2; the ends of the others, with labels."""
    folder = out / "data"
    folder.mkdir(parents=True, exist_ok=True)
    plain, taught, test = (folder / name for name in ("reviews.txt", "reviews-few.csv", "reviews-test.csv"))
    if not test.exists():
        packed = (data / "text/movie_reviews/polarity2.0.jsonl.gz").read_bytes()
        rows = [json.loads(line) for line in gzip.decompress(packed).decode().splitlines()]
        random.Random(0).shuffle(rows)
        known = {text for part in ("train", "dev") for text, _ in phrases(data / f"text/sst2/{part}.tsv.gz")}
        lines = (
            " ".join(line.split()) for row in rows[: 50 if few else 1000] for line in row["text"].split("\n")
        )
        plain.write_text(
            "".join(f"{line}\n" for line in lines if line and line not in known), encoding="utf-8"
        )
        ends = [(" ".join(row["text"].split()[-ENDS:]), NAMES[row["label"] == "pos"]) for row in rows[1000:]]
        for path, own in ((taught, ends[:500]), (test, ends[500:])):
            with path.open("w", encoding="utf-8", newline="") as file:
                csv.writer(file).writerows([("text", "label"), *own])
    return opinions(data, plain, taught, test)


def promoters(data: Path, out: Path, *, few: bool) -> Second:
    """Promoters of E. coli (sigma 70), and as many other sequences with the same G and C content.

    The places of both hexamers decide.
    """
    from Bio.SeqIO.FastaIO import SimpleFastaParser

    folder = out / "data"
    folder.mkdir(parents=True, exist_ok=True)
    plain, taught, test = (folder / name for name in ("dna.fa", "dna-few.csv", "dna-test.csv"))
    if not test.exists():
        sets = []
        for name in ("prom", "non_prom"):
            with gzip.open(data / f"dna/promoters_cnnprom/Ecoli_{name}.fa.gz", "rt") as file:
                sets.append([text.upper() for _, text in SimpleFastaParser(file)])
        random.Random(0).shuffle(sets[0])
        rows = []
        for text in sets[0]:
            other = min(sets[1], key=lambda own: abs(gc(own) - gc(text)))
            if abs(gc(other) - gc(text)) < 1 / len(text):
                sets[1].remove(other)
                rows += [(text, "promoter"), (other, "none")]
        half, quarter = len(rows) // 4 * 2, len(rows) // 8 * 2
        plain.write_text("".join(f">{n}\n{text}\n" for n, (text, _) in enumerate(rows[:half])))
        for path, own in ((taught, rows[half : half + quarter]), (test, rows[half + quarter :])):
            with path.open("w", encoding="utf-8", newline="") as file:
                csv.writer(file).writerows([("sequence", "label"), *own])
    share = len(HEXAMERS) / 81
    masks: dict[str, dict[str, Any]] = {
        mode: {"masker": "position.v1", "rate": share, "options": {"positions": [*HEXAMERS], "p": p}}
        for mode, p in (("cloze", 1.0), ("nocloze", 0.0))
    }
    return Second("dna", plain, taught, test, {**masks, "uniform": {"masker": "uniform", "rate": share}}, {})


def gc(text: str) -> float:
    """Share of G and C."""
    return (text.count("G") + text.count("C")) / len(text)


SECONDS = {"sst2": sst2, "reviews": reviews, "promoters": promoters}


def masks(own: Second, out: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Accuracy of each second stage, for each draw of labels."""
    how: dict[str, Any] = {"epochs": 10, "patience": 10, **own.how}
    name, found = "" if options.on == "sst2" else f"{options.on}-", []
    for draw, arm in product(range(options.draws), ARMS):
        model, seed = options.first, draw % options.seeds
        if arm != UNTRAINED:
            train = {"max_steps": options.steps, "tokens_per_batch": 512, "learning_rate": options.rate}
            train |= {"schedule": "linear", "warmup": 0.1}
            if own.domain == "dna":
                train["augment"] = False  # places are of one strand
            flags = {"model": {"init": options.first}, "masking": own.masks[arm], "train": train}
            model = learnt(
                f"masks-{name}{arm}-{options.steps}-{options.rate:g}", own.plain, flags, seed, own.domain
            )
        for shots in options.shots:
            kept = (
                out / f"masks-{name}{Path(model).name.removeprefix(f'masks-{name}')}-{shots}-draw{draw}.json"
            )
            value = accuracy(model, own.few, own.test, kept, draw, shots, **how)
            found.append({"shots": shots, "arm": arm, "seed": seed, "draw": draw, "accuracy": value})
    return found


def sentence(rows: Sequence[dict[str, Any]]) -> str:
    """A sentence on the place of uniform masks between the others.

    The value is the middle of both others minus uniform, paired by draw. The interval is that of Student,
    over the means of each seed of the second stage.
    """
    table = {arm: np.array([row["accuracy"] for row in rows if row["arm"] == arm]) for arm in ARMS}
    middles = (table["cloze"] + table["nocloze"]) / 2 - table["uniform"]
    seeds = np.array([row["seed"] for row in rows if row["arm"] == "uniform"])
    means = np.array([middles[seeds == seed].mean() for seed in np.unique(seeds)])
    value, count = means.mean(), len(means)
    half = t.ppf(0.975, count - 1) * means.std(ddof=1) / np.sqrt(count) if count > 1 else np.inf
    nearer = "nocloze" if (value > 0) == (table["cloze"].mean() > table["nocloze"].mean()) else "cloze"
    sure = "" if abs(value) > half else ", but the interval holds 0"
    told = f"{value:+.4f} [{value - half:+.4f}, {value + half:+.4f}], {len(middles)} draws, {count} seeds"
    return f"uniform lies nearer to {nearer}: the middle of cloze and nocloze less uniform is {told}{sure}"


def show(part: str, rows: Sequence[dict[str, Any]]) -> None:
    keys = ("p", "labels") if part == "labels" else ("shots", "arm")
    for own in dict.fromkeys(tuple(row[key] for key in keys) for row in rows):
        values = [row["accuracy"] for row in rows if tuple(row[key] for key in keys) == own]
        print(
            f"  {' '.join(map(str, own)):<16} {np.mean(values):.4f} +- {np.std(values):.4f} ({len(values)})"
        )
    for shots in dict.fromkeys(row["shots"] for row in rows if part == "masks"):
        print(f"{shots} labels: {sentence([row for row in rows if row['shots'] == shots])}")


def picture(rows: Sequence[dict[str, Any]], to: Path) -> None:
    """Draw the accuracy by labels, with a line for each share; darker lines hid the label less often."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot(xscale="log", xlabel="labels that teach", ylabel="accuracy, SST-2")
    counts = sorted({row["labels"] for row in rows})
    shares = sorted({row["p"] for row in rows} - {UNTRAINED}, key=int)
    for share in (UNTRAINED, *shares):
        own = [row for row in rows if row["p"] == share]
        if not own:
            continue
        means = [np.mean([row["accuracy"] for row in own if row["labels"] == n]) for n in counts]
        told = "not pretrained" if share == UNTRAINED else f"hidden in {share} %"
        colour = "grey" if share == UNTRAINED else colormaps["viridis"](int(share) / 110)
        axes.plot(counts, means, marker="o", label=told, color=colour, ls=":" if share == UNTRAINED else "-")
    axes.legend(title="the appended label")
    figure.savefig(to)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the real data sets")
    parser.add_argument("--out", type=Path, default=Path("cloze-study"))
    parser.add_argument("--part", choices=("labels", "masks"), action="append")
    parser.add_argument("--epochs", type=float, default=20.0, help="epochs of pretraining with labels")
    parser.add_argument("--seeds", type=int, default=4, help="number of seeds of each training")
    parser.add_argument(
        "--share", nargs="+", default=["0", "20", "40", "60", "80", "100"], help="p, in percent"
    )
    parser.add_argument("--count", type=int, nargs="+", default=[10, 30, 100, 300, 1000, 3000, 10_000])
    parser.add_argument("--on", choices=[*SECONDS], default="sst2", help="the data of `masks`")
    parser.add_argument("--first", help="the model that `masks` trains in a second stage")
    parser.add_argument("--steps", type=int, default=400, help="steps of the second stage")
    parser.add_argument("--rate", type=float, default=1e-4, help="learning rate of the second stage")
    parser.add_argument(
        "--shots", type=int, nargs="+", default=[20, 200], help="numbers of labels for fine-tuning after it"
    )
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--json", type=Path, help="write all rows here")
    parser.add_argument("--quick", action="store_true", help="2,000 phrases, one seed, two steps, one draw")
    options = parser.parse_args(arguments)
    if options.quick:
        options.epochs, options.seeds, options.share, options.count = 0.2, 1, ["100"], [10]
        options.steps, options.draws, options.shots = 2, 1, [20]
    out, told = options.out.resolve() / ("quick" if options.quick else "whole"), {}
    os.environ["SEQMLM_HOME"] = str(out)
    for part in options.part or ("labels", "masks"):
        if part == "labels":
            told[part] = labels(halves(options.data, out, few=options.quick), out / "arms", options)
        else:
            own = SECONDS[options.on](options.data, out, few=options.quick)
            if options.first is None:
                flags: dict[str, Any] = {"model": {"size": "tiny", "overrides": SHAPE}}
                flags["train"] = {"epochs": options.epochs, "learning_rate": 1e-3}
                name = "first" if options.on == "sst2" else f"first-{options.on}"
                options.first = learnt(f"{name}-{options.epochs:g}", own.plain, flags, 0, own.domain)
            told[part] = masks(own, out / "arms", options)
        print(part)
        show(part, told[part])
    if "labels" in told:
        picture(told["labels"], out / "labels.svg")
    if options.json is not None:
        options.json.write_text(json.dumps(told, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
