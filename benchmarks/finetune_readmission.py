"""Predict readmission within 30 days: a fine-tuned model of histories compared with boosting on columns.

The data are the diabetes encounters of UCI (Strack et al. 2014) that ended neither with death nor with
discharge to a hospice. Folds are divided by patient, and all methods use the same folds. The metric is AUROC.
Differences are paired bootstraps over patients.

    last stays        only the column number_inpatient
    codes             logistic regression on diagnoses and drugs
    boosting          gradient boosting on all columns of the encounter; training patients choose its strength
    boosting + seen   also the number of earlier encounters of the patient, a cheap feature of the history
    model             `tiny`, pretrained on the training patients (with the code of `train`, no labels), and
                      fine-tuned on histories up to the encounter; the mean of two models, each fine-tuned on
                      one half of the patients
    both, mean        the sum of the logits of boosting and of the model (in standard deviations)
    boosting + model  boosting with the logit of the model as a column; for training encounters, the logit is
                      from the model that was not fine-tuned on their patients

    python benchmarks/finetune_readmission.py --data ../shared/data             # 20,000 patients, 5 folds
    python benchmarks/finetune_readmission.py --data ../shared/data --quick     # one of the folds, 8,000

Every fold is kept under --out. An interrupted benchmark continues at the point of interruption.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from diabetes130 import READING
from finetune_real import STEPS, opened, written
from numpy.typing import NDArray

from seqmlm.data.splits import hash64
from seqmlm.evaluation import rivals
from seqmlm.evaluation.predictions import difference, measures
from seqmlm.finetuning.config import FinetuneConfig
from seqmlm.finetuning.finetune import Finetune
from seqmlm.training.launch import TrainRequest
from seqmlm.training.observers import SilentConsole
from seqmlm.training.pretrain import pretrain

FOLDS, HALVES, DAY = 5, 2, 86_400
GONE = {"11", "13", "14", "19", "20", "21"}
"""Dispositions of patients who died or went to a hospice."""
NO_COLUMNS = ("encounter_id", "patient_nbr", "readmitted", "label", "time")
NAMES = ("false", "true")
PAIRS = (
    ("model", "boosting"),
    ("both, mean", "boosting"),
    ("boosting + model", "boosting"),
    ("boosting + model", "boosting + seen"),
    ("model", "codes"),
)

Rows = list[dict[str, str]]
Key = tuple[str, str]  # patient, prediction time


def encounters(path: Path, patients: int) -> Rows:
    """Encounters of some patients with time and label: a day apart, as the reader places them."""
    rows = list(csv.DictReader(opened(path).splitlines()))
    names = sorted({row["patient_nbr"] for row in rows}, key=hash64)[:patients]
    known: dict[str, Rows] = {name: [] for name in names}
    for row in rows:
        if row["patient_nbr"] in known:
            known[row["patient_nbr"]].append(row)
    for own in known.values():
        own.sort(key=lambda row: int(row["encounter_id"]))
        for day, row in enumerate(own):
            row["time"] = datetime.fromtimestamp(day * DAY, UTC).isoformat()
            row["seen"] = str(day)
            row["label"] = NAMES[row["readmitted"] == "<30"]
    return [row for own in known.values() for row in own]


def key(row: Mapping[str, str]) -> Key:
    return row["patient_nbr"], row["time"]


def table(path: Path, rows: Rows) -> str:
    """The encounters as the file has them."""
    names = [name for name in rows[0] if name not in ("label", "time", "seen")]
    lines = [",".join(names), *(",".join(row[name] for name in names) for row in rows)]
    return written(path, "\n".join(lines) + "\n")


def taught(out: Path, name: str, model: str, files: Sequence[str], tests: Sequence[str], labels: str) -> Any:
    """Probabilities of the test encounters by key, from a model that is fine-tuned on some files."""
    config = FinetuneConfig(
        model=model,
        name=name,
        train=tuple(files),
        test=tuple(tests),
        label_file=labels,
        **READING,
        rivals="off",
        resume=True,
    )
    if not (out / "runs" / name / "model" / "seqmlm.json").exists():
        told = Finetune.launch("finetune", config, stdout=None, progress=SilentConsole(), as_json=True)
        if told.stopped is not None:
            raise SystemExit(128 + told.stopped)
    rows = pq.read_table(out / "runs" / name / "predictions.parquet").to_pylist()
    return {(row["id"], row["prediction_time"]): row["p"]["true"] for row in rows}


def logits(out: Path, work: Path, name: str, parts: Mapping[str, Rows], minutes: float) -> dict[Key, float]:
    """The logit of each labelled encounter, by models that were not fine-tuned on its patient."""
    labels = [",".join((*key(row), row["label"])) for own in parts.values() for row in judged(own)]
    told = written(work / "labels.csv", "subject_id,prediction_time,boolean_value\n" + "\n".join(labels))
    halves: list[Rows] = [[] for _ in range(HALVES)]
    for row in parts["train"]:
        halves[hash64(row["patient_nbr"], 1) % HALVES].append(row)
    files = [table(work / f"half{number}.csv", own) for number, own in enumerate(halves)]
    test = table(work / "test.csv", parts["test"])
    if not (out / "runs" / name / "model" / "seqmlm.json").exists():
        data = {"paths": files, **READING, "on_error": "skip", "calibration": 0.0}
        train = {"max_steps": max(1, round(minutes * STEPS))}
        flags = {"data": data, "model": {"size": "tiny"}, "train": train}
        pretrain(TrainRequest(domain="ehr", name=name, resume="auto", flags=flags), SilentConsole())
    found: dict[Key, list[float]] = {}
    for number, (file, half) in enumerate(zip(files, halves, strict=True)):
        others = [one for one in files if one != file]
        p = taught(out, f"{name}-{number}", name, others, [file, test], told)
        values = {at: float(np.log(one) - np.log1p(-one)) for at, one in p.items()}
        own = [values[key(row)] for row in judged(half)]  # both models on one scale: that of strangers
        for at, value in values.items():
            found.setdefault(at, []).append((value - float(np.mean(own))) / float(np.std(own)))
    return {at: float(np.mean(own)) for at, own in found.items()}


def judged(rows: Rows) -> Rows:
    return [row for row in rows if row["discharge_disposition_id"] not in GONE]


def columns(rows: Rows, names: Sequence[str]) -> dict[str, list[str]]:
    return {name: ["" if row[name] == "?" else row[name] for row in rows] for name in names}


def codes(row: Mapping[str, str]) -> list[str]:
    """Diagnoses and drugs of an encounter."""
    names = list(row)
    drugs = names[names.index("metformin") : names.index("change")]
    given = [f"{name}={row[name]}" for name in drugs if row[name] != "No"]
    return [row[name] for name in ("diag_1", "diag_2", "diag_3") if row[name] != "?"] + given


def measured(rows: Rows, out: Path, name: str, fold: int, minutes: float) -> dict[str, Any]:
    """Scores of one fold's test encounters; cached as JSON."""
    kept = out / f"{name}-fold{fold}.json"
    if kept.exists():
        return dict(json.loads(kept.read_text()))
    parts: dict[str, Rows] = {"train": [], "test": []}
    for row in rows:
        parts["test" if hash64(row["patient_nbr"]) // 7 % FOLDS == fold else "train"].append(row)
    train, test = judged(parts["train"]), judged(parts["test"])
    truth = [NAMES.index(row["label"]) for row in train]
    own = [one for one in train[0] if one not in (*NO_COLUMNS, "seen")]
    seconds: dict[str, float] = {}
    scores: dict[str, list[float]] = {"last stays": [float(row["number_inpatient"]) for row in test]}

    def timed(who: str, read: Callable[[], Any]) -> Any:
        began, cpu = time.monotonic(), time.process_time()
        found = read()
        seconds[who], seconds[f"{who}, CPU"] = time.monotonic() - began, time.process_time() - cpu
        print(f"fold {fold}: {who} {seconds[who]:.0f} s", file=sys.stderr)
        return found

    def boosted(names: Sequence[str], further: Mapping[Key, float]) -> list[float]:
        both = [
            columns(rows, names) | ({"model": [further[key(row)] for row in rows]} if further else {})
            for rows in (train, test)
        ]
        p = rivals.boosting_predictions("class", both[0], truth, both[1], names=NAMES)
        return [float(one) for one in p[:, 1]]

    scores["codes"] = timed(
        "codes",
        lambda: rivals.bag_predictions(
            "class", [*map(codes, train)], truth, [*map(codes, test)], names=NAMES
        )[:, 1].tolist(),
    )
    scores["boosting"] = timed("boosting", lambda: boosted(own, {}))
    scores["boosting + seen"] = timed("boosting + seen", lambda: boosted([*own, "seen"], {}))
    found = timed("model", lambda: logits(out, out / f"{name}-fold{fold}", f"{name}-{fold}", parts, minutes))
    scores["model"] = [found[key(row)] for row in test]
    p = np.array(scores["boosting"])
    scores["both, mean"] = [*(np.log(p / (1 - p)) + np.array(scores["model"]))]
    scores["boosting + model"] = timed("boosting + model", lambda: boosted(own, found))
    result = {
        "truth": [NAMES.index(row["label"]) for row in test],
        "patients": [row["patient_nbr"] for row in test],
        "scores": scores,
        "train": len(train),
        "seconds": seconds,
    }
    written(kept, json.dumps(result))
    return result


def ranked(scores: Sequence[float]) -> NDArray[np.float64]:
    """(N, 2) as probabilities of two classes, in the order of the scores."""
    values = np.unique(np.asarray(scores), return_inverse=True)[1]
    p = (values + 0.5) / (values.max() + 1)
    return np.column_stack([1 - p, p])


def compared(folds: Sequence[Mapping[str, Any]], draws: int) -> list[dict[str, Any]]:
    """The AUROC of each method, and the differences; folds are ranked separately and then combined."""
    truth = np.concatenate([one["truth"] for one in folds])
    groups = np.concatenate([one["patients"] for one in folds])
    said = {who: np.concatenate([ranked(one["scores"][who]) for one in folds]) for who in folds[0]["scores"]}
    rows: list[dict[str, Any]] = []
    for who, p in said.items():
        found = measures("class", truth, p, groups=groups, names=NAMES, draws=200)["auroc"]
        spent = {what: sum(one["seconds"].get(what, 0.0) for one in folds) for what in (who, f"{who}, CPU")}
        rows.append({"who": who, "auroc": found.value, "low": found.low, "high": found.high, **spent})
    for first, second in PAIRS:
        pair = (said[first], said[second])
        apart = difference("class", "auroc", truth, *pair, groups=groups, names=NAMES, draws=draws)
        rows.append({"who": first, "against": second, **apart._asdict()})
    return rows


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    for row in rows:
        if "against" in row:
            told = f"{row['difference']:+.4f} ({row['low']:+.4f} to {row['high']:+.4f})"
            print(f"{row['who']} - {row['against']}: {told}, p {row['p_randomization']:.3f}")
        else:
            spent = f"{row[row['who']]:.0f} s, {row[row['who'] + ', CPU']:.0f} CPU s"
            print(f"{row['who']:<18} {row['auroc']:.4f} ({row['low']:.4f} to {row['high']:.4f})  {spent}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the real data sets")
    parser.add_argument("--json", type=Path, help="write all rows here")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/finetune_readmission"))
    parser.add_argument("--patients", type=int, default=20_000)
    parser.add_argument("--folds", type=int, default=FOLDS, help="how many of the five are measured")
    parser.add_argument("--minutes", type=float, default=5.0, help="pretraining of one model")
    parser.add_argument("--quick", action="store_true", help="one fold, 8,000 patients, two minutes")
    options = parser.parse_args()
    if options.quick:
        options.folds, options.patients, options.minutes = 1, 8_000, 2.0
    out = options.out.resolve()
    os.environ["SEQMLM_HOME"] = str(out)
    rows = encounters(options.data / "ehr/diabetes130/diabetic_data.csv.gz", options.patients)
    name = f"readmission-{options.patients}-{options.minutes:g}min"
    folds = [measured(rows, out, name, fold, options.minutes) for fold in range(options.folds)]
    found = compared(folds, 500)
    print(f"{sum(len(one['truth']) for one in folds):,} test encounters of {len(folds)} folds")
    show(found)
    if options.json is not None:
        written(options.json, json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
