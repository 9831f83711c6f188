"""Measure how many raw log lines per second are scored: file lines in, calibrated alarms out, two cores.

The log of a service is generated from the states of the built-in sample. Several requests are active at the
same time, every line has another time, and there are thousands of values. A given share of its windows of 64
lines is distinct. A `tiny` model is trained on lines of the same service and calibrated on others. Then each
file is read, matched, scored, judged and written as JSON lines, as by `seqmlm score --fpr 0.01`. One process
reads and tokenizes, the other scores.

    python benchmarks/scoring_throughput_logs.py           # 3 files of 1 million lines: some 5 minutes
    python benchmarks/scoring_throughput_logs.py --quick   # 100,000 lines each, also with one process

The benchmark prints lines per second of wall time, and the CPU seconds of both processes. On two quiet cores,
the slower process sets the pace. Therefore `quiet` is the number of lines over the larger of the two.
Results are kept for each row under --out.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
GOALS = {0.01: 60_000, 0.1: 15_000, 1.0: 5_000}
WINDOW, UNDER_WAY = 64, 4
ALPHA = 0.01
VARIANTS = 4096  # of each line's text, beside its time
READER = {"session": "none"}


def walk(rng: np.random.Generator) -> list[str]:
    """The templates of one request."""
    from seqmlm.domains.logs.sample import END, START, TEMPLATE_OF, TRANSITIONS

    states, state = [], START
    while True:
        ways = [(to, share) for here, to, share in TRANSITIONS if here == state]
        state = ways[int(rng.choice(len(ways), p=[share for _, share in ways]))][0]
        if state == END:
            return states
        states.append(TEMPLATE_OF[state])


def window(rng: np.random.Generator) -> list[str]:
    """The templates of 64 lines: requests that take turns."""
    under_way = [walk(rng) for _ in range(UNDER_WAY)]
    lines: list[str] = []
    while len(lines) < WINDOW:
        request = int(rng.integers(UNDER_WAY))
        lines.append(under_way[request].pop(0))
        under_way[request] = under_way[request] or walk(rng)
    return lines


def write(path: Path, windows: int, share: float, seed: int) -> None:
    """Write a log with a number of windows; `share` of them are distinct, and each occurs at least once."""
    from seqmlm.domains.logs.sample import TEXT_OF, _fill_fields

    rng = np.random.default_rng(seed)
    texts = {
        name: [f"shop1 {one.component}[7]: {_fill_fields(one.text, rng)}" for _ in range(VARIANTS)]
        for name, one in TEXT_OF.items()
    }
    distinct = max(1, round(share * windows))
    known = [window(rng) for _ in range(distinct)]
    chosen = np.concatenate([np.arange(distinct), rng.integers(0, distinct, windows - distinct)])
    moment = datetime(2024, 3, 4, 6, tzinfo=UTC)
    part = path.with_suffix(".part")
    path.parent.mkdir(parents=True, exist_ok=True)
    with part.open("w", encoding="utf-8") as file:
        for number in rng.permutation(chosen).tolist():
            variants = rng.integers(0, VARIANTS, WINDOW).tolist()
            for name, variant in zip(known[number], variants, strict=True):
                moment += timedelta(microseconds=2713)
                file.write(f"{moment.isoformat(timespec='microseconds')} {texts[name][variant]}\n")
    part.rename(path)


def calibrated(model: Any, path: Path) -> tuple[Any, Any]:
    """The background of the session level for normal windows, and its calibration."""
    from seqmlm.anomaly.judge import Normal
    from seqmlm.data.problems import Problems
    from seqmlm.domains.logs.counts import counts_of
    from seqmlm.domains.logs.levels import LogBackground
    from seqmlm.engine.units import ONE_PASS
    from seqmlm.inference.detector import Detector, table
    from seqmlm.inference.scorer import RecordScorer
    from seqmlm.inference.session import Session

    records = list(model.domain.read([path], Problems(), **READER))
    half = len(records) // 2
    encodings = model.tokenizer.encode_batch([record.raw for record in records[:half]])
    level = model.domain.level(None)
    known = LogBackground(counts_of(encodings, model.tokenizer), model.tokenizer)
    detector = Detector(RecordScorer(Session(model)), level, mode=ONE_PASS, background=known)
    rows = [one.row for one in detector.judged_rows(records[half:], Problems())]
    return known, Normal.fit(*table(rows, level.statistics.judging), seed=0, fusion=level.statistics.fusion)


def row(asked: dict[str, Any]) -> dict[str, Any]:
    """One file judged; in a process of its own."""
    import torch

    from seqmlm.data.problems import Problems
    from seqmlm.engine.units import ONE_PASS
    from seqmlm.inference import model_folder
    from seqmlm.inference.detector import Detector
    from seqmlm.inference.record_batches import Budget, batches
    from seqmlm.inference.scorer import RecordScorer
    from seqmlm.inference.session import Session
    from seqmlm.scoring.output import line
    from seqmlm.scoring.plan import EXPECTED
    from seqmlm.tasks.reading import parts, parts_read_ahead

    torch.set_num_threads(1)
    model = model_folder.load(asked["model"])
    known, calibration = calibrated(model, Path(asked["normal"]))
    scorer = RecordScorer(Session(model))
    level = model.domain.level(None)
    how = {"mode": ONE_PASS, "want": EXPECTED}
    detector = Detector(scorer, level, background=known, calibration=calibration, alpha=ALPHA, **how)
    problems = Problems()
    start, own = time.perf_counter(), time.process_time()
    found = {"windows": 0, "lines": 0, "alarms": 0}
    with Path(asked["target"]).open("w", encoding="utf-8") as out:
        read = scorer.session.reader([asked["file"]], options=READER)
        task = SimpleNamespace(records=read, batch_share=Budget().share, config=SimpleNamespace(sources=[]))
        task.items = lambda records, problems: (
            one for some in batches(records) for one in scorer.encoded(some, problems)
        )
        for part in (parts_read_ahead if asked["processes"] == 2 else parts)(task, problems):
            for one in detector.encoded(part.items):
                out.write(json.dumps(line(one, model.tokenizer)) + "\n")
                found["windows"] += 1
                found["lines"] += len(one.row.units)
                found["alarms"] += bool(one.alarm)
    seconds, scoring = time.perf_counter() - start, time.process_time() - own
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        **found,
        "seconds": seconds,
        "scoring_cpu": scoring,
        "reading_cpu": children.ru_utime + children.ru_stime,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


class Bench:
    """Make files and a model, run rows, and keep their results.

    Args:
        out: cached rows and generated files.
        lines: number of lines in each file.
        minutes: length of the training.
    """

    def __init__(self, out: Path, lines: int, minutes: float) -> None:
        self.out, self.lines, self.minutes = out, lines, minutes

    def file(self, share: float, windows: int, seed: int) -> Path:
        """A generated log."""
        path = self.out / "data" / f"service-{windows}-{share}-{seed}.log"
        if not path.exists():
            print(f"writing {path.name} ...", file=sys.stderr)
            write(path, windows, share, seed)
        return path

    def model(self) -> Path:
        """The model's folder."""
        folder = self.out / "runs" / "service" / "model"
        if not folder.exists():
            command = [sys.executable, "-m", "seqmlm", "train", "--domain", "logs", "--size", "tiny"]
            command += [str(self.file(1.0, 2000, 1)), "--option", "session=none", "--name", "service"]
            command += ["--max-time", f"{int(60 * self.minutes)}s"]
            environment = {**os.environ, **ENVIRONMENT, "SEQMLM_HOME": str(self.out)}
            subprocess.run(command, check=True, env=environment)
        return folder

    def run(self, share: float, processes: int) -> dict[str, Any]:
        """One measurement; cached."""
        kept = self.out / f"{self.lines}-{share}-{processes}.json"
        if not kept.exists():
            asked = {
                "model": str(self.model()),
                "normal": str(self.file(1.0, 2000, 2)),
                "file": str(self.file(share, self.lines // WINDOW, 3)),
                "target": str(self.out / "scores.jsonl"),
                "processes": processes,
            }
            done = subprocess.run(
                [sys.executable, __file__, "--row", json.dumps(asked)],
                env={**os.environ, **ENVIRONMENT},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            kept.write_text(done.stdout.splitlines()[-1] + "\n")
        return {"share": share, "processes": processes, **json.loads(kept.read_text())}


def show(rows: list[dict[str, Any]]) -> None:
    """The table, with goals."""
    print("distinct  processes      lines   alarms   lines/s   cpu us/line: scoring + reading   quiet")
    for one in rows:
        scoring, reading = (one[name] / one["lines"] * 1e6 for name in ("scoring_cpu", "reading_cpu"))
        quiet, goal = 1e6 / max(scoring, reading), GOALS[one["share"]]
        verdict = "reached" if quiet >= goal else "missed"
        print(
            f"{one['share']:>8.0%} {one['processes']:>10} {one['lines']:>10,} {one['alarms']:>8,} "
            f"{one['lines'] / one['seconds']:>9,.0f} {scoring:>20.1f} + {reading:>4.1f} {quiet:>13,.0f}"
            f"  goal {goal:,}: {verdict}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/scoring_throughput_logs"))
    parser.add_argument("--json", type=Path, help="write all rows here")
    parser.add_argument("--quick", action="store_true", help="100,000 lines a file")
    parser.add_argument("--minutes", type=float, default=1.0, help="minutes of training")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        print(json.dumps(row(json.loads(options.row))))
        return
    bench = Bench(options.out.resolve(), 100_000 if options.quick else 1_000_000, options.minutes)
    ways = (1, 2) if options.quick else (2,)
    rows = [bench.run(share, processes) for share in GOALS for processes in ways]
    show(rows)
    if options.json:
        options.json.write_text(json.dumps({"rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
