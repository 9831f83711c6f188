"""Compare statistics for each level on faults: each one, all together, and the best subset of them.

Held-out normal rows are compared with rows that have a fault. The faults are real anomalies of HDFS, faults
planted in the text of four fields, and wrong codes of patients. Other normal rows give the p-values of the
statistics, as in a calibration. The table has AUROC and the shares found at false-positive rates of .05 and
.01, as means over kinds of faults. It has a row for each of these:

- the statistics that the level declares (`Statistics.judging`);
- all statistics, by the sum of Fisher and by the harmonic mean;
- each single statistic;
- the best subset: statistics are removed one by one, first the statistic that adds least.

The best subset is selected on the rows it is measured on, which favours it. A level declares a subset that is
as good for every seed.

    PYTHONPATH=benchmarks python benchmarks/studies/level_statistics.py --data ../shared/data
    PYTHONPATH=benchmarks python benchmarks/studies/level_statistics.py --data ../shared/data \\
        --only logs --seeds 1

Statistics are kept for each arm and seed under --out. An interrupted benchmark continues at the point of
interruption.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from anomaly_field_data import FIELDS, chosen
from anomaly_fields import as_record, pairs_of
from anomaly_logs import log_flags
from anomaly_metrics import ranking
from anomaly_models import trained
from anomaly_patients import EVENTS, planted_patients
from anomaly_plants import COUNT_CHANGES, REORDERINGS, planted
from anomaly_sessions import hdfs, hdfs_raw, records_of, write_raw, write_sessions
from numpy.typing import NDArray

from seqmlm import plugins
from seqmlm.anomaly.judge import FUSIONS, HARMONIC, Fusion, fuse
from seqmlm.anomaly.levels import Level
from seqmlm.anomaly.ranks import Ranks, length_edges
from seqmlm.anomaly.values import Row
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.inference.calibrations import stored_background
from seqmlm.inference.detector import Detector, table
from seqmlm.inference.model_folder import LoadedModel
from seqmlm.inference.scorer import RecordScorer
from seqmlm.inference.session import Session
from seqmlm.scoring.calibrate import Calibrator, Records

Doubles = NDArray[np.float64]
Spans = Sequence[tuple[int, int]] | None
Faulty = Mapping[str, Sequence[tuple[Record, Spans]]]

RATES, RECORDS, TEACHING = (0.05, 0.01), 150, 250


@dataclass(frozen=True, kw_only=True)
class Arm:
    """Records of one field.

    Args:
        model: the model.
        teaching: normal records that give the p-values of the statistics.
        normal: other normal records.
        faulty: records with each kind of fault, and its place; None for the whole record.
    """

    model: LoadedModel
    teaching: Sequence[Record]
    normal: Sequence[Record]
    faulty: Faulty


def of_field(name: str, data: Path, out: Path, seed: int, minutes: float) -> Arm:
    """Faults planted in the texts of a field."""
    field = FIELDS[name](data, out)
    model = trained(out, name, field.domain, field.files, field.flags, seed, minutes)
    texts = chosen(field.texts, len(field.texts), seed)
    faulty, normal = {}, dict[str, Record]()
    for fault, plant in field.faults.items():
        pairs = list(islice(pairs_of(model, texts[:-TEACHING], plant, seed), RECORDS))
        normal |= {str(one.normal.record.raw): one.normal.record for one in pairs}
        faulty[fault] = [(one.faulty.record, one.spans) for one in pairs]
    teaching = [as_record(text, number) for number, text in enumerate(texts[-TEACHING:])]
    return Arm(model=model, teaching=teaching, normal=list(normal.values()), faulty=faulty)


def of_patients(data: Path, out: Path, seed: int, minutes: float) -> Arm:
    """Wrong codes in short histories of patients; every third held-out patient gives p-values."""
    model, _, held, planted = planted_patients(data, out, seed, minutes)
    wrong = [
        (as_record(one.history, number), [one.history.code_spans()[one.event]])
        for number, one in planted[:RECORDS]
        if number % 3
    ]
    short = [(number, one) for number, one in enumerate(held) if len(one.raw.events) <= EVENTS]
    teaching, normal = ([one for number, one in short if (number % 3 == 0) is own] for own in (True, False))
    return Arm(model=model, teaching=teaching, normal=normal, faulty={"wrong code": wrong})


def of_sessions(data: Path, out: Path, seed: int, minutes: float) -> Arm:
    """HDFS as event ids: its anomalies, and planted disorder that counts cannot see."""
    task = hdfs(data)
    file = write_sessions(task.train, out / f"{task.name}-train.txt")
    model = trained(out, task.name, "logs", [file], log_flags(minutes), seed, minutes)
    normal = [one for one, label in zip(task.test, task.labels, strict=True) if not label][:3000]
    wrong = [one for one, label in zip(task.test, task.labels, strict=True) if label]
    known = {*task.train, *task.calibration, *normal}
    kinds = {"anomalies": wrong[:1000], "distinct anomalies": list(dict.fromkeys(wrong))}
    for name, plant in {**REORDERINGS, **COUNT_CHANGES}.items():
        kinds[name] = [one for one in planted(list(dict.fromkeys(normal))[:500], plant, known, seed) if one]
    faulty = {name: [(one, None) for one in records_of(some)] for name, some in kinds.items()}
    return Arm(model=model, teaching=records_of(task.calibration), normal=records_of(normal), faulty=faulty)


def of_messages(data: Path, out: Path, seed: int, minutes: float) -> Arm:
    """HDFS as raw messages, divided in time."""
    task = hdfs_raw(data)
    train = [one for one, label in zip(task.train, task.train_labels, strict=True) if not label]
    file = write_raw(train, out / "hdfs_raw-normals.jsonl")
    model = trained(out, "hdfs_raw-normals", "logs", [file], log_flags(minutes), seed, minutes)
    teaching = [o for o, label in zip(task.calibration, task.calibration_labels, strict=True) if not label]
    normal = [one for one, label in zip(task.test, task.labels, strict=True) if not label][:3000]
    wrong = [(one, None) for one, label in zip(task.test, task.labels, strict=True) if label]
    return Arm(model=model, teaching=teaching, normal=normal, faulty={"anomalies": wrong})


ARMS = {
    "logs": of_sessions,
    "messages": of_messages,
    "ehr": of_patients,
    **{
        name: (lambda *given, name=name: of_field(name, *given))
        for name in ("text", "protein", "dna", "code")
    },
}


def statistics(arm: Arm, level: Level) -> Iterator[tuple[str, dict[str, Doubles], Doubles]]:
    """(part, statistics by name, lengths) of teaching, normal and faulty rows with a score."""
    calibrator = Calibrator(session=Session(arm.model, tokens_per_batch=8192), problems=Problems("skip"))
    teaching, background = list(arm.teaching), stored_background(arm.model, level)
    if level.background is not None and (background is None or background.needs_scores):
        given = Records(records=teaching, of=len(teaching), source="")
        background, rest = calibrator.background(level, given, None)
        teaching = list(rest.records)
    normal = {"teaching": teaching, "normal": arm.normal}
    detector = Detector(
        RecordScorer(calibrator.session), level, mode=arm.model.domain.defaults.mode, background=background
    )

    def rows(records: Sequence[tuple[Record, Spans]]) -> list[Row]:
        found = []
        for start in range(0, len(records), 64):
            some = records[start : start + 64]
            encoded = detector.scorer.encoded([one for one, _ in some], Problems())
            for own, (_, spans) in zip(detector.rows(detector.unit_scores(encoded)), some, strict=True):
                scored = [row for row in own if row.score is not None]
                found += [row for row in scored if spans is None or _touched(row, spans)]
        return found

    parts: Faulty = {name: [(one, None) for one in some] for name, some in normal.items()}
    for part, records in {**parts, **arm.faulty}.items():
        yield part, *table(rows(records), level.statistics)


def _touched(row: Row, spans: Sequence[tuple[int, int]]) -> bool:
    """Whether a row shares at least half of the shorter one with a stretch."""
    return any(
        2 * (min(end, row.end) - max(start, row.start)) >= max(min(end - start, row.end - row.start), 1)
        for start, end in spans
    )


class Contest:
    """Sets of statistics, compared on the rows of a level.

    Args:
        level: the level, which declares a set.
        parts: "teaching", "normal" and each kind of fault -> (statistics, lengths).
    """

    def __init__(self, level: Level, parts: Mapping[str, tuple[dict[str, Doubles], Doubles]]) -> None:
        taught, lengths = parts["teaching"]
        edges = length_edges(lengths, 50)
        own = {name: Ranks.of(values, lengths, edges) for name, values in taught.items()}
        ranks = {
            part: {name: own[name].p_values(values, sizes)[0] for name, values in found.items()}
            for part, (found, sizes) in parts.items()
            if len(sizes)
        }
        ranks.pop("teaching")
        self.level, self.normal, self.faulty = level, ranks.pop("normal"), ranks

    def worth(self, names: Iterable[str], fusion: Fusion = "fisher") -> list[float]:
        """AUROC and shares found at `RATES` with a set of statistics, means over kinds of faults."""
        names = list(names)
        normal = fuse({name: self.normal[name] for name in names}, fusion)
        found = []
        for p_values in self.faulty.values():
            wrong = fuse({name: p_values[name] for name in names}, fusion)
            labels = np.repeat([False, True], [len(normal), len(wrong)])
            area = ranking(labels, np.concatenate([normal, wrong]))["auroc"]
            found.append([area, *((wrong > np.quantile(normal, 1 - rate)).mean() for rate in RATES)])
        return np.mean(found, axis=0).tolist()

    def best_part(self) -> tuple[list[str], Fusion]:
        """The best set on the way from all statistics to one, by the mean of AUROC and share at .05."""
        way = [list(self.normal)]
        while len(way[-1]) > 1:
            fewer = [[name for name in way[-1] if name != left] for left in way[-1]]
            way.append(max(fewer, key=lambda one: sum(self.worth(one, HARMONIC)[:2])))
        both = [(names, fusion) for names in way for fusion in FUSIONS]
        return max(both, key=lambda one: sum(self.worth(*one)[:2]))

    def table(self) -> dict[str, list[float]]:
        """The results of each set of statistics."""
        best, fusion = self.best_part()
        return {
            f"declared, {self.level.statistics.fusion}": self.worth(
                self.level.statistics.judging, self.level.statistics.fusion
            ),
            **{f"all, {one}": self.worth(self.normal, one) for one in FUSIONS},
            f"best: {fusion} of {', '.join(best)}": self.worth(best, fusion),
            **{name: self.worth([name]) for name in self.normal},
        }


def measured(name: str, options: argparse.Namespace, seed: int) -> dict[str, Contest]:
    """The contest of each level of an arm that has several statistics."""
    out = options.out.resolve()
    kept, found = out / f"{name}-{options.minutes:g}min-seed{seed}.npz", dict[str, Contest]()
    if not kept.exists():
        arm, arrays = ARMS[name](options.data, out, seed, options.minutes), dict[str, Doubles]()
        for level in arm.model.domain.levels:
            if len(level.statistics) > 1:
                for part, values, lengths in statistics(arm, level):
                    arrays |= {f"{level.name}|{part}|{n}": one for n, one in values.items()}
                    arrays[f"{level.name}|{part}|"] = lengths
        arrays["domain"] = np.array(arm.model.domain.name)
        with kept.open("wb") as file:
            np.savez(file, **arrays)
    with np.load(kept) as file:
        domain = plugins.domain(str(file["domain"]))
        rows: dict[str, dict[str, dict[str, Any]]] = {}
        for key in file.files:
            if key != "domain":
                level, part, statistic = key.split("|")
                rows.setdefault(level, {}).setdefault(part, {})[statistic] = file[key]
    for level, parts in rows.items():
        given = {part: ({n: v for n, v in own.items() if n}, own[""]) for part, own in parts.items()}
        found[level] = Contest(domain.level(level), given)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the real data sets")
    parser.add_argument("--json", type=Path, help="write all rows here")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/level_statistics"))
    parser.add_argument("--only", choices=sorted(ARMS), action="append", help="only these arms")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=1.0, help="training of one model")
    parser.add_argument("--quick", action="store_true", help="one seed")
    options = parser.parse_args()
    rows = []
    for name in options.only or list(ARMS):
        for seed in range(1 if options.quick else options.seeds):
            print(f"{name}, seed {seed} ...", file=sys.stderr)
            for level, contest in measured(name, options, seed).items():
                of = {"arm": name, "level": level, "seed": seed}
                print(f"\n{name}, {level}, seed {seed}: {', '.join(contest.faulty)}")
                for choice, worth in contest.table().items():
                    print(f"  {choice:<60}" + "".join(f"{one:8.4f}" for one in worth))
                    rows.append({**of, "choice": choice, "auroc, found": worth})
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
