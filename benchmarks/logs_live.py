"""Measure alarms on the log of a live web server: on injected faults and on normal traffic.

A real nginx serves a small shop to real clients (`logs_live_site`). nginx is the Debian package; without it,
the benchmark prints a note and ends. A `tiny` model is trained on normal traffic. In the next stretch,
these faults are injected:

- the backend is down, or its answers are slow;
- paths are scanned, passwords are tried, or the catalogue is scraped;
- requests have methods that do not occur in the normal traffic;
- four in ten requests to the cart are not found;
- a probe stops, or all requests stop.

The access log is scored in two forms, combined and JSON, and in two ways. The first way reads it as a file.
The second way writes it into a pipe at its original pace, with `--max-latency 1s`. Windows then end at
pauses. The baselines are rules on windows of 64 lines. A key is the method, shape of the path and status of
a line:

    unseen rule     a key that does not occur in the training data: five lines of code
    bigram          the rarest pair of neighbouring keys, by counts
    rate            the largest count of a key in a window, by its mean in training, and lines a second
    absent          the number of missing keys that nine in ten training windows have
    pause           the longest time between two lines of a window

The thresholds of the rules come from the last fifth of the normal stretch, at the same rates. The thresholds
of the model are calibrated by `seqmlm train`. A window shows a fault if one of its lines does. A window is
normal if none of its lines is between 1 s before a fault and 5 s after it. At the end, the lines before the
first fault are scored in bursts of 1 to 64 lines, and the alarms are counted.

    python benchmarks/logs_live.py           # 5 minutes of normal traffic: about 20 minutes on two cores
    python benchmarks/logs_live.py --quick   # 2 minutes of it
    python benchmarks/logs_live.py --curve   # models of the first 500 to all normal lines instead

Traffic and models are kept under --out. An interrupted benchmark continues at the point of interruption.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from anomaly_metrics import threshold_on
from logs_live_site import FAULTS, kinds, nginx, record
from numpy.typing import NDArray

FORMS = ("combined", "json")
RATES = (0.01, 0.05)
BURSTS = (1, 2, 4, 8, 16, 32, 64)
WINDOW = 64
SIZES = (500, 1000, 2000, 5000, 10_000, 20_000)
_NUMBER = re.compile(r"(?<=/)\d+(?=/|$)")
Key = tuple[str, str, int]
Found = tuple[NDArray[np.int64], NDArray[np.float64]]
Detectors = dict[str, tuple[NDArray[np.int64], dict[float, NDArray[np.bool_]]]]


def seqmlm(out: Path, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "SEQMLM_HOME": str(out / "workspace"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "seqmlm", *arguments]
    return subprocess.Popen(command, env=environment, stdin=options.get("stdin"), stdout=options["stdout"])


def train(out: Path, name: str, log: Path, steps: int) -> None:
    """The model of a normal log."""
    if (out / "workspace" / "runs" / name / "result.json").exists():
        return
    ended = seqmlm(
        out,
        *("train", "--domain", "logs", "--data", str(log), "--name", name, "--size", "tiny"),
        *("--max-steps", str(steps), "--option", "session=none"),
        stdout=subprocess.DEVNULL,
    ).wait()
    if ended:
        raise SystemExit(f"training {name} ended with {ended}")


def scored(out: Path, form: str, log: Path, way: str, *options: str) -> Found:
    """(W,) first line of each window, from 1 on, and its p-value; `way` is "live", or names the rows kept."""
    rows, live = out / f"{form}-{way}.jsonl", way == "live"
    if not rows.exists():
        part = rows.with_suffix(".part")
        with part.open("wb") as written:
            given = ("score", form, "-" if live else str(log), "--option", "session=none", *options)
            if live:
                process = seqmlm(out, *given, "--max-latency", "1s", stdin=subprocess.PIPE, stdout=written)
                replay(log, process)
            else:
                process = seqmlm(out, *given, stdout=written)
            if process.wait():
                raise SystemExit(f"scoring {form} ended with {process.returncode}")
        part.rename(rows)
    told = [json.loads(line) for line in rows.read_text().splitlines()]
    told = [row for row in told if "p_value" in row]
    return np.array([row["line"] for row in told]), np.array([row["p_value"] for row in told], dtype=float)


def replay(log: Path, process: subprocess.Popen[bytes]) -> None:
    """Write the lines of each second at that second; the first lines after the scorer has started."""
    assert process.stdin is not None
    seconds: dict[float, list[bytes]] = defaultdict(list)
    for line, at in zip(log.read_bytes().splitlines(keepends=True), times(log.parent), strict=True):
        seconds[at].append(line)
    time.sleep(20)
    began, first = time.monotonic(), min(seconds)
    for at, lines in sorted(seconds.items()):
        time.sleep(max(0.0, began + at - first - time.monotonic()))
        process.stdin.write(b"".join(lines))
        process.stdin.flush()
    process.stdin.close()


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "json.log").read_text().splitlines()]


def times(folder: Path) -> list[float]:
    return [datetime.fromisoformat(row["time"]).timestamp() for row in rows_of(folder)]


# Rules


def keys(folder: Path) -> list[Key]:
    """Method, shape of the path and status of each line."""
    return [
        (row["method"], _NUMBER.sub("*", row["uri"].split("?")[0]), row["status"]) for row in rows_of(folder)
    ]


def rules(
    known: Sequence[Key], at: Sequence[float]
) -> dict[str, Callable[[Sequence[Key], Sequence[float]], float]]:
    """The rules, which give how unusual a window is."""
    seen, pairs = Counter(known), Counter(pairwise(known))
    parts = [Counter(known[i : i + WINDOW]) for i in range(0, len(known), WINDOW)]
    usual = {key: float(np.mean([part[key] for part in parts])) for key in seen}
    common = {key for key in seen if sum(key in part for part in parts) >= 0.9 * len(parts)}

    def unseen(window: Sequence[Key], _: Sequence[float]) -> float:
        return float(sum(key not in seen for key in window))

    def bigram(window: Sequence[Key], _: Sequence[float]) -> float:
        return max(
            (-np.log2((pairs[a, b] + 0.5) / (seen[a] + 0.5 * len(seen))) for a, b in pairwise(window)),
            default=0.0,
        )

    def rate(window: Sequence[Key], at: Sequence[float]) -> float:
        own = Counter(window)
        share = max(own[key] / (usual.get(key, 0.0) + 1.0) for key in own)
        return float(share * len(window) / (at[-1] - at[0] + 1.0))

    def absent(window: Sequence[Key], _: Sequence[float]) -> float:
        return float(len(common.difference(window)))

    def pause(_: Sequence[Key], at: Sequence[float]) -> float:
        return max((b - a for a, b in pairwise(at)), default=0.0)

    return {"unseen rule": unseen, "bigram": bigram, "rate": rate, "absent": absent, "pause": pause}


def by_rules(out: Path) -> Detectors:
    """By rule: the first line of each window, and whether it alarms at each rate."""
    normal, at = keys(out / "normal"), times(out / "normal")
    cut = len(normal) * 4 // 5
    asked, when = keys(out / "faulty"), times(out / "faulty")
    found = {}
    for name, rule in rules(normal[:cut], at[:cut]).items():

        def values(lines: Sequence[Key], seconds: Sequence[float], rule: Any = rule) -> NDArray[np.float64]:
            starts = range(0, len(lines), WINDOW)
            return np.array([rule(lines[i : i + WINDOW], seconds[i : i + WINDOW]) for i in starts])

        reference, scores = values(normal[cut:], at[cut:]), values(asked, when)
        first = np.arange(1, len(asked) + 1, WINDOW)
        found[name] = first, {rate: scores > threshold_on(reference, rate) for rate in RATES}
    return found


# Table


def table(out: Path, forms: Sequence[str]) -> list[dict[str, Any]]:
    """For each detector and rate: alarms and windows, for each fault and for normal windows."""
    detectors: Detectors = {}
    for form in forms:
        for way in ("file", "live"):
            first, p = scored(out, form, out / "faulty" / f"{form}.log", way)
            detectors[f"{form}, {way}"] = first, {rate: p <= rate for rate in RATES}
    return shown_by(out, detectors | by_rules(out))


def curve(out: Path, form: str, steps: int) -> list[dict[str, Any]]:
    """The table for models trained on different numbers of normal lines."""
    lines = (out / "normal" / f"{form}.log").read_bytes().splitlines(keepends=True)
    detectors: Detectors = {}
    for size in (*(size for size in SIZES if size < len(lines)), len(lines)):
        name = f"{form}-{size}"
        log = out / f"{name}.log"
        log.write_bytes(b"".join(lines[:size]))
        train(out, name, log, steps)
        first, p = scored(out, name, out / "faulty" / f"{form}.log", "file")
        detectors[f"{size:,} lines"] = first, {rate: p <= rate for rate in RATES}
    return shown_by(out, detectors)


def shown_by(out: Path, detectors: Detectors) -> list[dict[str, Any]]:
    """Alarms and windows by detector, rate and fault."""
    truth, when = kinds(out), np.array(times(out / "faulty"))
    disturbed = [(one["begin"] - 1, one["end"] + 5) for one in json.loads((out / "faults.json").read_text())]
    near = np.zeros(len(when), dtype=np.bool_)
    for begin, end in disturbed:
        near |= (when >= begin) & (when <= end)
    rows = []
    for name, (first, alarms) in detectors.items():
        bounds = [*(first - 1).tolist(), len(truth)]
        shown = [set(truth[a:b]) - {""} for a, b in pairwise(bounds)]
        normal = np.array([not near[a:b].any() for a, b in pairwise(bounds)])
        for rate, alarm in alarms.items():
            row: dict[str, Any] = {"detector": name, "rate": rate}
            for kind in FAULTS:
                own = np.array([kind in one for one in shown])
                row[kind] = [int(alarm[own].sum()), int(own.sum())]
            row["normal"] = [int(alarm[normal].sum()), int(normal.sum())]
            rows.append(row)
    return rows


def bursts(out: Path, forms: Sequence[str]) -> list[dict[str, Any]]:
    """Alarms among normal bursts of lines, by form, length and rate."""
    begin: float = min(one["begin"] for one in json.loads((out / "faults.json").read_text())) - 1
    number = sum(at < begin for at in times(out / "faulty"))
    found = []
    for form in forms:
        log = out / f"quiet-{form}.log"
        lines = (out / "faulty" / f"{form}.log").read_bytes().splitlines(keepends=True)
        log.write_bytes(b"".join(lines[:number]))
        for length in BURSTS:
            p = scored(out, form, log, f"bursts{length}", "--option", f"window={length}")[1]
            alarms = {str(rate): int((p <= rate).sum()) for rate in RATES}
            found.append({"form": form, "lines": length, "windows": len(p), "alarms": alarms})
    return found


def show(rows: Sequence[dict[str, Any]]) -> None:
    kinds_ = [*FAULTS, "normal"]
    print(f"{'windows alarmed':<18}{'rate':>6}" + "".join(f"{kind:>19}" for kind in kinds_))
    for row in rows:
        cells = "".join(f"{'/'.join(map(str, row[kind])):>19}" for kind in kinds_)
        print(f"{row['detector']:<18}{row['rate']:>6}{cells}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/logs_live"))
    parser.add_argument("--quick", action="store_true", help="2 minutes of normal traffic, 300 steps")
    parser.add_argument("--curve", action="store_true", help="models of fewer normal lines")
    parser.add_argument("--only", choices=FORMS, help="one of the two forms of the log")
    options = parser.parse_args()
    if not nginx():
        raise SystemExit("nginx is not installed (apt-get install nginx-light): nothing is measured")
    out: Path = options.out
    if not (out / "faults.json").exists():
        quiet, normal = (6.0, 120.0) if options.quick else (12.0, 300.0)
        record(out, normal=normal, quiet=quiet, seconds=5.0, clients=40, think=0.25)
    forms = FORMS if options.only is None else (options.only,)
    steps = 300 if options.quick else 1000
    if options.curve:
        show(curve(out, forms[0], steps))
        return
    for form in forms:
        train(out, form, out / "normal" / f"{form}.log", steps)
    rows = table(out, forms)
    show(rows)
    cut = bursts(out, forms)
    for one in cut:
        rates = ", ".join(f"{count / one['windows']:.4f} at {rate}" for rate, count in one["alarms"].items())
        print(f"{one['form']}: bursts of {one['lines']:>2} lines, {one['windows']} of them: {rates}")
    (out / "results.json").write_text(json.dumps({"windows": rows, "bursts": cut}, indent=1))


if __name__ == "__main__":
    main()
