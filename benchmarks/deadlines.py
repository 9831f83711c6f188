"""Measure whether `seqmlm train --max-time` keeps its limit on a quiet machine and next to busy processes.

The benchmark measures the wall-clock time of the whole command, with imports and the end of the process. It
trains on the built-in sample of each field and on real data. A cell keeps its limit if the command takes at
most 1.15 times the limit. Reading time beyond half of the limit is subtracted first. `steps` is the share of
the limit that was spent on steps. `rows` is the number of normal rows of the best calibrated mode.

    python benchmarks/deadlines.py --data ../shared/data --out deadlines --json deadlines.json
    python benchmarks/deadlines.py --quick                      # built-in samples, 30 s, no busy processes
    python benchmarks/deadlines.py --data ../shared/data --fields logs text --limits 60 --busy 2 6

Each cell is kept below --out. An interrupted benchmark continues at the point of interruption.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FIELDS = ("text", "protein", "dna", "code", "ehr", "logs")
REAL = {
    "text": "text/state_union",
    "protein": "protein/pretrain/swissprot_viruses_prokka.faa.gz",
    "dna": "dna/genomes/ecoli_k12_GCF_000005845.2.fna.gz",
    "ehr": "ehr/mimic3_demo",
    "logs": "logs/hdfs_2pct_raw/events.tsv.gz",
}
"""Files and folders below the data folder. Code is trained on modules of the standard library."""
STANDARD_LIBRARY = ("asyncio", "email", "json")
MOST = 1.15
"""Times the limit that a command may take."""
_BUSY = "while True: pass"


@contextmanager
def busy(number: int) -> Iterator[None]:
    """Run a number of processes that compute all the time."""
    processes = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(number)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def sources(field: str, data: Path | None) -> list[str]:
    """The real data of a field; none for its built-in sample."""
    if data is None:
        return []
    if field == "code":
        return [str(Path(os.__file__).parent / name) for name in STANDARD_LIBRARY]
    return [str(data / REAL[field])]


def measured(field: str, paths: Sequence[str], limit: float, processes: int) -> dict[str, Any]:
    """One training next to a number of busy processes."""
    with tempfile.TemporaryDirectory() as home, busy(processes):
        command = [sys.executable, "-m", "seqmlm", "train", "--domain", field, "--name", "run", *paths]
        environment = {**os.environ, "SEQMLM_HOME": home}
        began = time.monotonic()
        done = subprocess.run(
            [*command, "--max-time", f"{limit:g}s", "--set", "data.on_error=skip", "--json"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        wall = time.monotonic() - began
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}: {done.stderr}")
        return {"wall": wall, **_parts(Path(home) / "runs/run", json.loads(done.stdout))}


def _parts(run: Path, result: dict[str, Any]) -> dict[str, Any]:
    """The parts of the time that the training reports itself."""
    cuts = json.loads((run / "cuts.json").read_text())["cuts"]
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows = [value for line in metrics for name, value in line.items() if name.endswith("_rows")]
    return {
        "start": cuts["start"]["elapsed"],
        "reading": cuts["start"].get("reading", 0.0),
        "training": result["tokens"] / result["tokens_per_second"] if result["tokens_per_second"] else 0.0,
        "optimizer_steps": result["steps"],
        "rows": max(rows, default=0),
        "cut": sorted(name.partition(": ")[2] for name, one in cuts.items() if one.get("cut")),
    }


def cell(
    arguments: argparse.Namespace, field: str, kind: str, limit: float, processes: int
) -> dict[str, Any]:
    """A measured cell, read from the folder of an earlier run if it is there."""
    file = arguments.out / f"{field}-{kind}-{limit:g}s-{processes}.json"
    if not file.exists():
        paths = sources(field, arguments.data if kind == "real" else None)
        values = measured(field, paths, limit, processes)
        head = {"field": field, "data": kind, "limit": limit, "busy": processes}
        file.write_text(json.dumps({**head, **values}, indent=1))
    return dict(json.loads(file.read_text()))


def ratio(one: dict[str, Any]) -> float:
    """The wall-clock time of a cell over its limit, without the reading time beyond half of the limit."""
    return float(one["wall"] - max(0.0, one["reading"] - one["limit"] / 2)) / float(one["limit"])


def show(cells: Sequence[dict[str, Any]]) -> None:
    """Print the table."""
    names = (
        "field",
        "data",
        "limit",
        "busy",
        "wall",
        "ratio",
        "kept",
        "start",
        "reading",
        "steps",
        "rows",
        "cut",
    )
    print("\t".join(names))
    for one in cells:
        values = {**one, "ratio": ratio(one), "steps": one["training"] / one["limit"]}
        values |= {"kept": ratio(one) <= MOST, "cut": ", ".join(one["cut"])}
        texts = (f"{own:.2f}" if isinstance(own := values[name], float) else str(own) for name in names)
        print("\t".join(texts), flush=True)
    ratios = [ratio(one) for one in cells]
    kept = sum(one <= MOST for one in ratios)
    median = statistics.median(ratios)
    print(f"{kept} of {len(cells)} within {MOST}; median {median:.2f}, most {max(ratios):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of real data; without it, only samples")
    parser.add_argument("--fields", nargs="+", choices=FIELDS, default=FIELDS)
    parser.add_argument("--limits", nargs="+", type=float, default=[60.0])
    parser.add_argument("--busy", nargs="+", type=int, default=[0, 2, 6])
    parser.add_argument("--out", type=Path, default=Path("deadlines"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.limits, arguments.busy = [30.0], [0]
    arguments.out.mkdir(parents=True, exist_ok=True)
    kinds = ("sample",) if arguments.data is None else ("sample", "real")
    cells = [
        cell(arguments, field, kind, limit, processes)
        for processes in arguments.busy
        for limit in arguments.limits
        for kind in kinds
        for field in arguments.fields
    ]
    show(cells)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(cells, indent=1))


if __name__ == "__main__":
    main()
