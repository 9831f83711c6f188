"""Measure `seqmlm watch`: lines per second compared with one-shot scoring, time to an alarm, memory.

The log of a small service is generated in order of time. It has eleven kinds of lines. A `tiny` model is
trained on 50,000 of its lines, in windows of 64 lines. Then:

    throughput  the same file by one-shot scoring and by following, in lines per second of processor time.
                The time for 64 lines is subtracted, and the rows must be equal. A second file has lines
                that do not occur in the training data: all of its windows alarm. A third run uses bfloat16
                products, for which no model here was calibrated: the rows with another alarm are counted
    latency     bursts of 8 lines, one of them of an unknown kind, written to a file that is followed with
                `--max-latency 1s`: seconds until the alarm is in the output
    soak        a writer adds lines at a fixed pace and rotates by rename; resident memory, and bytes written
                and not yet read, from the database, every few seconds

    python benchmarks/stream_throughput.py           # soak of 10 million lines: hours
    python benchmarks/stream_throughput.py --quick   # 300,000 lines: about 6 minutes on two cores
    python benchmarks/stream_throughput.py --lines 2000000 --pace 3000 --only soak
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

TRAINED = 50_000
WINDOW = 64
BURST, BURSTS = 8, 20
FILE_LINES = 100_000  # of the soak, until its file is rotated
KEPT = 3  # rotated files
PARTS = ("throughput", "latency", "soak")


def lines(seed: int, *, unseen: bool = False) -> Iterator[str]:
    """An endless stream of lines of a service; with `unseen`, each line has a text that no other log has."""
    chance, now = random.Random(seed), 1_790_000_000.0
    while True:
        now += chance.expovariate(40.0)
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z"
        number, user = chance.randrange(100_000), chance.randrange(5000)
        said = chance.choices(
            (
                f"INFO api request {number} of user u{user} accepted",
                f"INFO api request {number} answered in {chance.randrange(400)} ms",
                f"DEBUG cache hit for key item:{number}",
                f"DEBUG cache miss for key item:{number}",
                f"INFO db query {number} returned {chance.randrange(50)} rows",
                f"INFO auth token of user u{user} verified",
                f"WARN api request {number} is slow: {chance.randrange(400, 4000)} ms",
                f"INFO queue job {number} was taken by worker {chance.randrange(8)}",
                f"INFO queue job {number} is done",
                f"ERROR db query {number} was cancelled after {chance.randrange(30)} s",
                f"INFO gc freed {chance.randrange(900)} MB",
            ),
            (20, 20, 15, 5, 15, 6, 2, 6, 6, 0.5, 1),
        )[0]
        yield (
            f"{at} FATAL kernel fault at 0x{number:08x} while {user} was held\n"
            if unseen
            else f"{at} {said}\n"
        )


def write(path: Path, number: int, seed: int, **kind: Any) -> Path:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(islice(lines(seed, **kind), number))
    return path


def seqmlm(out: Path, *arguments: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "SEQMLM_HOME": str(out / "workspace"), "OMP_NUM_THREADS": "1"}
    told = (out / "stderr").open("ab")
    return subprocess.Popen([sys.executable, "-m", "seqmlm", *arguments], env=environment, stderr=told)


def ended(process: subprocess.Popen[bytes], *codes: int) -> float:
    """Wait for a process and return its processor seconds."""
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, *codes):
        raise SystemExit(f"{process.args} ended with {process.returncode}")
    return used.ru_utime + used.ru_stime


def model(out: Path, steps: int) -> None:
    if not (out / "workspace" / "runs" / "stream" / "result.json").exists():
        log = write(out / "normal.log", TRAINED, 1)
        given = ("--name", "stream", "--size", "tiny", "--max-steps", str(steps), "--option", "session=none")
        ended(seqmlm(out, "train", "--domain", "logs", "--data", str(log), *given))


def scored(
    out: Path, name: str, pattern: str, *options: str, follow: bool = False
) -> subprocess.Popen[bytes]:
    """A process that scores into `name`.jsonl; `session` and window are those of training."""
    (rows := out / f"{name}.jsonl").unlink(missing_ok=True)
    given = ("--option", "session=none", "--fpr", "0.01", "--set", "mode=one-pass", "--out", str(rows))
    return seqmlm(out, "watch" if follow else "score", "stream", pattern, *given, *options)


def number_of(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def followed(out: Path, name: str, log: Path) -> float:
    """Follow a whole file to its end; the processor time."""
    process = scored(out, name, str(log), follow=True)
    rows = -(-number_of(log) // WINDOW)
    while number_of(out / f"{name}.jsonl") < rows and process.poll() is None:
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    return ended(process, 130)


def rows_of(path: Path) -> list[tuple[int, float]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return sorted((row["line"], round(row["score"], 4)) for row in rows)


def throughput(out: Path, number: int) -> dict[str, Any]:
    """Lines per second of processor time."""
    few, many = write(out / "few.log", WINDOW, 2), write(out / "many.log", number, 2)
    unseen = write(out / "unseen.log", number // 4, 3, unseen=True)
    began = time.monotonic()
    start = ended(scored(out, "few", str(few)))
    found: dict[str, Any] = {"start, s": start, "start, s by the clock": time.monotonic() - began}
    for name, log, precision in (
        *(("one-shot", many, "fp32"), ("never seen", unseen, "fp32")),
        ("one-shot in bf16", many, "bf16"),
    ):
        used = ended(scored(out, name, str(log), "--set", f"precision={precision}"))
        found[name] = number_of(log) / (used - start)
    found["followed"] = number / (followed(out, "followed", many) - start)
    equal = rows_of(out / "one-shot.jsonl") == rows_of(out / "followed.jsonl")
    alarms_of = [
        [json.loads(line)["alarm"] for line in (out / f"{name}.jsonl").open()]
        for name in ("one-shot", "one-shot in bf16")
    ]
    differ = sum(one != other for one, other in zip(*alarms_of, strict=True))
    alarms = sum(json.loads(line)["alarm"] for line in (out / "never seen.jsonl").open())
    found |= {
        "rows are equal": equal,
        "alarms that bf16 changes": differ,
        "windows never seen that alarm": alarms / -(-number // 4 // WINDOW),
    }
    return found


def latency(out: Path) -> dict[str, Any]:
    """Seconds from a line that was never seen to its alarm."""
    log, rows = out / "latency.log", out / "latency.jsonl"
    normal, odd = lines(5), lines(6, unseen=True)
    log.write_text("".join(islice(normal, 40 * WINDOW)))
    process = scored(out, "latency", str(log), "--set", "alarms_only=true", follow=True)
    while number_of(rows) == 0:  # until it has started: this alarm does not count
        with log.open("a") as file:
            file.writelines(islice(odd, 1))
        time.sleep(3)
    waited = []
    for _ in range(BURSTS):
        time.sleep(3)
        before = number_of(rows)
        with log.open("a") as file:
            file.writelines([*islice(normal, BURST - 1), *islice(odd, 1)])
        began = time.monotonic()
        while number_of(rows) == before and time.monotonic() - began < 30:
            time.sleep(0.005)
        waited.append(time.monotonic() - began)
    process.send_signal(signal.SIGINT)
    ended(process, 130)
    waited.sort()
    return {"bursts": BURSTS, "median, s": waited[BURSTS // 2], "largest, s": waited[-1]}


def soak(out: Path, number: int, pace: float) -> dict[str, Any]:
    """Measure the memory of the process and the unread bytes while lines are added at a fixed pace."""
    folder = out / "soak"
    folder.mkdir()
    log, stream = folder / "app.log", lines(7)
    log.touch()
    process = scored(out, "soak", str(folder / "app.log*"), "--set", "alarms_only=true", follow=True)
    written = size = rotated = 0
    seen: list[dict[str, float]] = []
    began = told = time.monotonic()
    while written < number:
        some = "".join(islice(stream, max(1, int(pace / 10))))
        with log.open("a") as file:
            file.write(some)
        written, size = written + some.count("\n"), size + len(some)
        if written // FILE_LINES > rotated:
            rotated += 1
            log.rename(folder / f"app.log.{rotated}")
            (folder / f"app.log.{rotated - KEPT}").unlink(missing_ok=True)
        if time.monotonic() - told > 5:
            told = time.monotonic()
            seen.append(
                {"lines": written, "MB": resident(process.pid), "waits, MB": (size - read(out)) / 1e6}
            )
            print(json.dumps(seen[-1]), file=sys.stderr, flush=True)
        time.sleep(max(0.0, began + written / pace - time.monotonic()))
    while size > read(out) and process.poll() is None:
        time.sleep(1)
    seconds = time.monotonic() - began
    process.send_signal(signal.SIGINT)
    used = ended(process, 130)
    gaps = sum("gap" in json.loads(line) for line in (out / "soak.jsonl").open())
    late = seen[len(seen) // 4 :] or seen
    return {
        "lines": written,
        "lines a second by the clock": written / seconds,
        "lines a second of processor time": written / used,
        "resident after a quarter, MB": late[0]["MB"],
        "resident at the end, MB": late[-1]["MB"],
        "most resident, MB": max(one["MB"] for one in seen),
        "most that waited, MB": max(one["waits, MB"] for one in late),
        "gaps": gaps,
        "database, MB": sum(one.stat().st_size for one in (out / "workspace").glob("seqmlm.db*")) / 1e6,
    }


def resident(pid: int) -> float:
    """MB of memory that a process holds."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def read(out: Path) -> int:
    """Bytes of the soak's files that were read and committed."""
    database = sqlite3.connect(f"file:{out / 'workspace' / 'seqmlm.db'}?mode=ro", uri=True)
    try:
        query = (
            "select sum(json_extract(state, '$.offset')) from seqmlm_stream_files f "
            "join seqmlm_streams s on s.id = f.stream_id where s.output = ?"
        )
        return database.execute(query, [str((out / "soak.jsonl").resolve())]).fetchone()[0] or 0
    finally:
        database.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/stream_throughput"))
    parser.add_argument("--quick", action="store_true", help="a soak of 300,000 lines, 200 steps")
    parser.add_argument("--lines", type=int, help="lines of the soak")
    parser.add_argument("--pace", type=float, default=2000.0, help="lines a second of the soak's writer")
    parser.add_argument("--only", choices=PARTS)
    options = parser.parse_args()
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    model(out, 200 if options.quick else 1000)
    number = options.lines or (300_000 if options.quick else 10_000_000)
    for part in PARTS if options.only is None else (options.only,):
        if part == "throughput":
            found = throughput(out, 100_000 if options.quick else 400_000)
        else:
            found = latency(out) if part == "latency" else soak(out, number, options.pace)
        for name, value in found.items():
            told = value if isinstance(value, bool) else f"{value:,.3g}" if value < 100 else f"{value:,.0f}"
            print(f"{part:<12}{name:<36}{told}", flush=True)


if __name__ == "__main__":
    main()
