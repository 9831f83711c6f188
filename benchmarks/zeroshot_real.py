"""Measure small models without labels on zero-shot questions, compared with the strongest cheap baseline.

    sst2       sentiment of 872 sentences by prompts; baselines: an opinion lexicon, always one class
    crows      CrowS-Pairs, shared tokens: 50 % is ideal, there is no baseline
    winogender 240 pairs that differ in the pronoun
    code       gaps of held-out Python functions (`code_gaps.py`); baselines: the most frequent, and counts
               of the candidates between the same neighbours in all other gaps
    quixbugs   the buggy line of 40 programs (first, and among three), and whether the repair is more
               probable; baselines: a 5-gram with the rest of the file, length
    blat       Spearman's correlation with 4,996 mutants of a beta-lactamase; baseline: BLOSUM62
    event      the next event of held-out HDFS sessions after the earlier events; baselines: the most
               frequent, bigram
    drug       one of the drugs of a visit of a held-out patient, from its conditions and all visits before;
               baselines: the most frequent drug, and counts of drug and condition in one visit, in two ways

Models are `tiny`. `anomaly_models.trained` trains each for --minutes on the data of `alarms.py`. The
questions use the held-out parts of these data. A gain is accuracy minus that of the best baseline, with a
paired bootstrap over questions. If several questions come from one session or file, it is over sessions or
files.

    python benchmarks/zeroshot_real.py --data ../shared/data                 # 2 minutes a model, 3 seeds
    python benchmarks/zeroshot_real.py --data ../shared/data --quick         # 1 minute, one seed

Results are kept for each arm and seed under --out. An interrupted benchmark continues at the point of
interruption.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from anomaly_field_data import FIELDS, patients
from anomaly_logs import log_flags
from anomaly_models import trained
from anomaly_quixbugs import quixbugs
from anomaly_sessions import hdfs, records_of, write_sessions
from code_gaps import KINDS, counted, gaps, predicted

from seqmlm.data.problems import Problems
from seqmlm.domains.ehr import EHR
from seqmlm.evaluation.intervals import bootstrap_weights, exact_rate, percentile_interval
from seqmlm.inference.cloze import Cloze
from seqmlm.inference.model_folder import LoadedModel
from seqmlm.inference.session import Session
from seqmlm.tasks.bias import Bias, BiasConfig
from seqmlm.tasks.run import run
from seqmlm.tasks.variants import VariantsConfig, VariantsTask
from seqmlm.tasks.zeroshot import Zeroshot, ZeroshotConfig

Row = dict[str, Any]

TEMPLATES = ("{text} It was [MASK].", "A [MASK] film: {text}", "{text} All in all, it was [MASK].")
LABELS = ("1=good,great,excellent", "0=bad,terrible,awful")
QUESTIONS = 2000
LATER = 16
"""The number of unknown events after the predicted event. Without them, the session would end with it."""


def text_model(data: Path, out: Path, seed: int, minutes: float) -> LoadedModel:
    found = FIELDS["text"](data, out)
    return trained(out, "text", "text", found.files, found.flags, seed, minutes)


def sst2(data: Path, out: Path, seed: int, minutes: float) -> Iterator[Row]:
    model, file = text_model(data, out, seed, minutes), data / "text" / "sst2" / "dev.tsv.gz"
    lines = [line.split("\t") for line in gzip.decompress(file.read_bytes()).decode().splitlines()[1:]]
    truth = np.array([label for _, label in lines])
    lexicon = {name: _words(data, name) for name in ("positive", "negative")}
    votes = []
    for sentence, _ in lines:
        words = re.findall("[a-z]+", sentence.lower())
        votes.append(sum((word in lexicon["positive"]) - (word in lexicon["negative"]) for word in words))
    rivals = {
        "always one class": truth == max(set(truth), key=truth.tolist().count),
        "opinion lexicon": np.where(np.array(votes) >= 0, "1", "0") == truth,
    }
    for calibration in ("contextual", "pmi", "none"):
        rows = out / f"sst2-{seed}-{calibration}.jsonl"
        config = ZeroshotConfig(
            model=str(model.path),
            paths=(str(file),),
            options={"column": "sentence"},
            templates=TEMPLATES,
            labels=LABELS,
            truth="label",
            calibration=calibration,  # type: ignore[arg-type]
            out=rows,
        )
        spread = run("zeroshot", Zeroshot, config).figures["sensitivity"]
        right = np.array([json.loads(line)["prediction"] for line in rows.read_text().splitlines()]) == truth
        yield from compared(f"sst2, {calibration}", right, rivals, wordings=(spread["min"], spread["max"]))


def _words(data: Path, name: str) -> set[str]:
    """The words of one side of the opinion lexicon (Hu and Liu 2004)."""
    file = data / "text" / "opinion_lexicon" / f"{name}-words.txt.gz"
    return set(filter(str.isalpha, gzip.decompress(file.read_bytes()).decode("latin-1").split()))


def bias(name: str, file: str, data: Path, out: Path, seed: int, minutes: float) -> Iterator[Row]:
    model = text_model(data, out, seed, minutes)
    config = BiasConfig(model=str(model.path), paths=(str(data / "text" / file),))
    found = run("bias", Bias, config).figures["pairs"]
    rate = {key: found[key] for key in ("accuracy", "low", "high")}
    yield {"set": name, "asked": "model", **rate, "n": found["pairs"]}


def code(data: Path, out: Path, seed: int, minutes: float) -> Iterator[Row]:
    """Gaps made of held-out functions."""
    found = FIELDS["code"](data, out)
    cloze = Cloze(Session(trained(out, "code", "code", found.files, found.flags, seed, minutes)))
    asked = [(number, gap) for number, text in enumerate(found.texts) for gap in gaps(text)]
    others = {kind: [gap for _, gap in asked if gap.kind == kind] for kind in KINDS}
    rival = {kind: dict(zip(map(id, own), counted(own), strict=True)) for kind, own in others.items()}
    drawn = sorted(np.random.default_rng(seed).permutation(len(asked))[:QUESTIONS].tolist())
    for kind in KINDS:
        own = [asked[one] for one in drawn if asked[one][1].kind == kind]
        truth = np.array([gap.answer for _, gap in own])
        [(usual, _)] = Counter(truth.tolist()).most_common(1)
        rivals = {
            "counts": truth == np.array([rival[kind][id(gap)] for _, gap in own]),
            "most frequent": truth == usual,
        }
        right = truth == np.array([predicted(cloze, gap) for _, gap in own])
        yield from compared(f"code: {kind}", right, rivals, groups=[number for number, _ in own])


def bugs(data: Path, out: Path, seed: int, minutes: float) -> Iterator[Row]:
    """Rows for QuixBugs. The model mixed with training counts is scored too; it is not a baseline."""
    found = quixbugs(data, out, seed, minutes)
    for most, name in ((1, "first"), (3, "among three")):
        right = {arm: ranks <= most for arm, (ranks, _) in found.items()}
        own = {arm: right.pop(f"z of {arm}") for arm in ("model", "mixed")}
        rivals = {arm: right[arm] for arm in ("5-gram", "5-gram, cache", "length")}
        yield from compared(f"QuixBugs: buggy line {name}", own["model"], rivals)
        yield from list(compared(f"QuixBugs: buggy line {name}, with counts", own["mixed"], rivals))[:1]
    won = {arm: one for arm, (_, one) in found.items() if one is not None}
    rivals = {arm: won[arm] for arm in ("5-gram", "5-gram, cache", "length")}
    yield from compared("QuixBugs: repair", won["model"], rivals)


def blat(data: Path, out: Path, seed: int, minutes: float) -> Iterator[Row]:
    """Mutants of TEM-1, which the model has not seen."""
    field, folder = FIELDS["protein"](data, out), data / "protein" / "dms"
    model = trained(out, "protein", "protein", field.files, field.flags, seed, minutes)
    with gzip.open(folder / "P62593_BLAT_variants_esm_example.fasta.gz", "rt") as lines:
        (out / "blat.fasta").write_text("".join([next(lines), next(lines)]))
    config = VariantsConfig(
        model=str(model.path),
        paths=(str(folder / "BLAT_ECOLX_Ranganathan2015_esm_labeled.csv.gz"),),
        wildtype=str(out / "blat.fasta"),
        measured="2500",
    )
    found = run("variants", VariantsTask, config).figures
    for name, own in found["agreement"].items():
        one, gain = own["spearman"], found["gain"]
        row = {"set": "BLAT (Spearman)", "asked": name, "accuracy": one["value"], "n": found["measured"]}
        row |= {"low": one["low"], "high": one["high"]}
        if name == "model" and gain is not None:
            bounds = {"gain": gain["value"], "gain_low": gain["low"], "gain_high": gain["high"]}
            row |= {"rival": gain["against"], **bounds}
        yield row


def event(data: Path, out: Path, seed: int, minutes: float) -> Iterator[Row]:
    task = hdfs(data)
    file = write_sessions(task.train, out / "hdfs-train.txt")
    model = trained(out, "hdfs", "logs", [file], log_flags(minutes), seed, minutes)
    cloze = Cloze(Session(model))
    unigram, bigram = Counter[Any](), Counter[Any]()
    for one in task.train:
        unigram.update(one)
        bigram.update(zip(("", *one), one, strict=False))
    names = sorted(unigram, key=unigram.__getitem__, reverse=True)
    random = np.random.default_rng(seed)
    normal = [one for one, wrong in zip(task.test, task.labels, strict=True) if not wrong]
    drawn = [normal[i] for i in random.permutation(len(normal))[: QUESTIONS // 4].tolist()]
    asked = [(n, place) for n, one in enumerate(drawn) for place in random.integers(1, len(one), 4).tolist()]
    truth = np.array([str(drawn[n][place]) for n, place in asked])
    after = [max(names, key=lambda o: (bigram[drawn[n][place - 1], o], unigram[o])) for n, place in asked]
    rivals = {
        "most frequent": truth == str(names[0]),
        "bigram": np.array([str(one) for one in after]) == truth,
    }
    records = records_of([tuple(drawn[n][:place]) for n, place in asked])
    guesses: list[str] = []
    for first in range(0, len(records), 256):
        raws = [
            replace(one.raw, lines=(*one.raw.lines, *["[MASK]"] * (1 + LATER)))
            for one in records[first : first + 256]
        ]
        prompts = cloze.prompts(raws)
        guesses += [own[0][0].text for own in cloze.guesses(cloze.opened(prompts), 1)]
    yield from compared("event", np.array(guesses) == truth, rivals, groups=[n for n, _ in asked])


def drug(data: Path, out: Path, seed: int, minutes: float) -> Iterator[Row]:
    folders = patients(data, out)
    model = trained(out, "ehr", "ehr", [folders[0]], {}, seed, minutes)
    alone, conditions, together = Counter[str](), Counter[str](), Counter[tuple[str, str]]()
    for raw in histories(folders[0]):
        for given, taken in visits(raw).values():
            alone.update(set(taken))
            conditions.update(set(given))
            together.update((c, d) for c in set(given) for d in set(taken))
    drugs = [name for name, _ in alone.most_common()]
    total = sum(alone.values())

    def likely(given: Sequence[str]) -> str:
        """The drug with the highest share in earlier visits with one of the conditions."""
        best = max(
            (
                (together[c, d] / conditions[c], -n)
                for c in given
                if c in conditions
                for n, d in enumerate(drugs)
            ),
            default=(0, 0),
        )
        return drugs[-best[1]]

    def bayes(given: Sequence[str]) -> str:
        """The most likely drug by all conditions of the visit, as if they were independent given the drug."""

        def score(d: str) -> float:
            seen = (np.log((together[c, d] + 0.1) / (alone[d] + 0.1 * len(conditions))) for c in given)
            return float(np.log(alone[d] / total) + sum(seen))

        return max(drugs, key=score)

    asked = []
    for number, raw in enumerate(histories(folders[1])):
        for visit, (given, taken) in visits(raw).items():
            if given and set(taken) & set(drugs):
                asked.append((number, raw, visit, given, set(taken)))
    random = np.random.default_rng(seed)
    asked = [asked[i] for i in sorted(random.permutation(len(asked))[:QUESTIONS].tolist())]

    def right(guesses: Sequence[str]) -> np.ndarray[Any, Any]:
        return np.array([guess in one[-1] for guess, one in zip(guesses, asked, strict=True)])

    rivals = {
        "most frequent": right([drugs[0]] * len(asked)),
        "likeliest by one condition": right([likely(one[3]) for one in asked]),
        "naive Bayes": right([bayes(one[3]) for one in asked]),
    }
    cloze, guesses = Cloze(Session(model)), list[str]()
    for first in range(0, len(asked), 64):
        raws = [_without_drugs(raw, visit) for _, raw, visit, *_ in asked[first : first + 64]]
        for own in cloze.guesses(cloze.opened(cloze.prompts(raws)), cloze.session.tokenizer.space.size):
            guesses.append(next(one.text for one in own[0] if one.text in alone))
    yield from compared("drug", right(guesses), rivals, groups=[number for number, *_ in asked])


def histories(folder: Path) -> list[Any]:
    return [record.raw for record in EHR.read([folder], Problems("skip", sensitive=True))]


def visits(raw: Any) -> dict[str, tuple[list[str], list[str]]]:
    """Conditions and drugs that began in each visit."""
    found: dict[str, tuple[list[str], list[str]]] = {}
    for one in raw.events:
        for place, kind in enumerate(("CONDITION//", "DRUG//")):
            if one.visit and one.code.startswith(kind):
                found.setdefault(one.visit, ([], []))[place].append(one.code)
    return found


def _without_drugs(raw: Any, visit: str) -> Any:
    """The history until the conditions of a visit, with an unknown event in place of its drugs."""
    at = next(one.time for one in raw.events if one.visit == visit)
    before = [one for one in raw.events if one.time is None or one.time < at]
    own = [one for one in raw.events if one.visit == visit and one.code.startswith("CONDITION//")]
    return replace(raw, events=(*before, *own, replace(own[0], code="[MASK]")))


def compared(
    name: str,
    right: np.ndarray[Any, Any],
    rivals: dict[str, np.ndarray[Any, Any]],
    *,
    groups: Sequence[int] | None = None,
    **more: Any,
) -> Iterator[Row]:
    """A row for the model and for each baseline; the gain is over the best baseline."""
    weights = bootstrap_weights(np.arange(len(right)) if groups is None else groups, 1000, 0)
    best = max(rivals, key=lambda one: rivals[one].mean())
    for asked, own in {"model": right, **rivals}.items():
        rate = exact_rate(int(own.sum()), len(own))
        row = {
            "set": name,
            "asked": asked,
            "accuracy": rate.value,
            "low": rate.low,
            "high": rate.high,
            "n": len(own),
        }
        if asked == "model":
            apart = own.astype(float) - rivals[best]
            drawn = np.array([np.average(apart, weights=weights(draw)) for draw in range(1000)])
            gain = percentile_interval(float(apart.mean()), drawn)
            row |= {"rival": best, "gain": gain.value, "gain_low": gain.low, "gain_high": gain.high, **more}
        yield row


ARMS: dict[str, Callable[[Path, Path, int, float], Iterator[Row]]] = {
    "sst2": sst2,
    "crows": lambda *given: bias("crows", "crows_pairs/crows_pairs_anonymized.csv.gz", *given),
    "winogender": lambda *given: bias("winogender", "winogender/all_sentences.tsv.gz", *given),
    "code": code,
    "quixbugs": bugs,
    "blat": blat,
    "event": event,
    "drug": drug,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the real data sets")
    parser.add_argument("--json", type=Path, help="write all rows here")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/zeroshot_real"))
    parser.add_argument("--only", choices=sorted(ARMS), action="append", help="only these arms")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=2.0, help="training of one model")
    parser.add_argument("--quick", action="store_true", help="one minute, one seed")
    options = parser.parse_args()
    if options.quick:
        options.minutes, options.seeds = 1.0, 1
    rows: list[Row] = []
    for name in options.only or list(ARMS):
        for seed in range(options.seeds):
            print(f"{name}, seed {seed} ...", file=sys.stderr)
            kept = options.out.resolve() / f"{name}-{options.minutes:g}min-seed{seed}.json"
            if not kept.exists():
                kept.parent.mkdir(parents=True, exist_ok=True)
                found = list(ARMS[name](options.data, kept.parent, seed, options.minutes))
                kept.write_text(json.dumps([{**row, "seed": seed} for row in found], indent=2) + "\n")
            rows += json.loads(kept.read_text())
    for name, asked in dict.fromkeys((row["set"], row["asked"]) for row in rows):
        own = [row for row in rows if (row["set"], row["asked"]) == (name, asked)]
        accuracy = ", ".join(f"{row['accuracy']:.3f}" for row in own)
        low, high = min(row["low"] for row in own), max(row["high"] for row in own)
        line = f"{name:<20} {asked:<22} {accuracy}  [{low:.3f}, {high:.3f}]"
        if "gain" in own[0]:
            mean = float(np.mean([row["gain"] for row in own]))
            bounds = f"[{min(r['gain_low'] for r in own):.3f}, {max(r['gain_high'] for r in own):.3f}]"
            line += f"  {mean:+.3f} {bounds} to {own[0]['rival']}"
        print(line)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
