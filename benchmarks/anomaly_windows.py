"""Rows of `alarms.py` for windows and sessions of logs: the share of alarms at the rates .01 and .05.

A model is trained on the first three fifths of each log, without labels. The rest is judged in windows of 64
lines: once unchanged, and once with a fault in every fifth window:

    unseen     five lines of a kind that does not occur in the log
    silence    a pause of 15 minutes or of four times the longest pause in training, if that is longer
    missing    a kind of line that nearly all windows have is removed
    repeated   the most common kind of line 40 times within some seconds
    reversed   the lines of the window in reverse order
    foreign    half of the lines are of kinds that are rare in training

The first 8,000 normal lines of the rest are judged again in windows of 1 to 64 lines. Pauses cut a log into
such windows. For HDFS by block, the training data are the normal blocks of the first three fifths. Later
blocks are judged, with their labels.

The baselines are simple rules. Their threshold is exceeded by at most the requested share of the latest
tenth of the training data. The rules are:

- a kind of line that is not in the training data (digits are ignored);
- a multiset of kinds that is not in the training data;
- the distance of the counts to the nearest counts in training;
- the rarest pair of lines;
- the longest pause;
- lines per second;
- missing kinds that nearly all training windows have.
"""

from __future__ import annotations

import gzip
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from anomaly_metrics import threshold_on
from anomaly_models import trained
from numpy.typing import NDArray

from seqmlm.reports.summary import NoProgress
from seqmlm.scoring.config import ScoreConfig
from seqmlm.scoring.score import Score
from seqmlm.tasks.run import run

Row = dict[str, Any]
RATES, WINDOW, EVERY = (0.01, 0.05), 64, 5
BURSTS, LINES = (1, 2, 4, 8, 16, 32, 64), 8000
Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class Line:
    """A line of a log: its time and its text."""

    time: datetime
    text: str

    @property
    def kind(self) -> str:
        """The template of the line for rules: the text with # for each word that has a digit."""
        return re.sub(r"[\w./:-]*\d[\w./:-]*", "#", self.text)


@dataclass(frozen=True)
class Log:
    """Lines of one log.

    Args:
        lines: in order.
        written: a line as the log's program writes it.
    """

    lines: list[Line]
    written: Callable[[Line], str]


def access(data: Path) -> Log:
    """Requests of a blog, without user agents and referrers, as in the default format of most servers."""
    form, lines = "%d/%b/%Y:%H:%M:%S %z", []
    for line in opened(data / "logs/raw_streams/elastic_apache_access.log.gz"):
        found = re.match(r'(\S+) \S+ \S+ \[([^]]+)\] (".*?" \d+ \S+)', line)
        if found:
            lines.append(Line(datetime.strptime(found[2], form), f"{found[1]} {found[3]}"))

    def written(line: Line) -> str:
        host, _, rest = line.text.partition(" ")
        return f"{host} - - [{line.time.strftime(form)}] {rest}"

    return Log(sorted(lines, key=lambda one: one.time), written)


def access_json(data: Path) -> Log:
    """The same requests as JSON with a message, like the log of a service."""

    def written(line: Line) -> str:
        found = re.fullmatch(r'(\S+) "(\S+) (\S+)[^"]*" (\d+) (\S+)', line.text)
        told: Row = {"time": line.time.isoformat(), "level": "info", "msg": line.text}
        if found:
            host, method, path, status, size = found.groups()
            told |= {"msg": "request completed", "host": host, "method": method, "path": path}
            told |= {"status": int(status), "bytes": int(size) if size.isdigit() else 0}
        return json.dumps(told)

    return Log(access(data).lines, written)


TRACES = tuple(
    "\n".join((said, *(f"    at {at}" for at in places.split())))
    for said, places in (
        (
            "java.net.SocketTimeoutException: read timed out",
            "net.Socket.read(Socket.java:88) db.Pool.get(Pool.java:31)",
        ),
        (
            "java.lang.IllegalStateException: cart is closed",
            "shop.Cart.add(Cart.java:41) shop.Api.post(Api.java:210)",
        ),
        ("shop.OutOfStock: no item left", "shop.Stock.take(Stock.java:17) shop.Cart.pay(Cart.java:77)"),
    )
)


def application(data: Path) -> Log:
    """Messages of an invented service, 3 % with a stack trace; no real data are read."""
    chance, now, lines = random.Random(0), datetime(2026, 3, 1, tzinfo=UTC), list[Line]()
    for _ in range(20_000):
        now += timedelta(milliseconds=int(chance.expovariate(1 / 40)))
        number, user = chance.randrange(100_000), chance.randrange(5000)
        said = (
            (f"INFO api request {number} of user u{user} accepted", 30),
            (f"INFO api request {number} answered in {chance.randrange(400)} ms", 30),
            (f"DEBUG cache {chance.choice(('hit', 'miss'))} for key item:{number}", 20),
            (f"INFO db query {number} returned {chance.randrange(50)} rows", 9),
            (f"INFO auth token of user u{user} verified", 5),
            (f"INFO queue job {number} was taken by worker {chance.randrange(8)}", 3),
            (f"ERROR api request {number} failed\n{chance.choice(TRACES)}", 3),
        )
        texts, weights = zip(*said, strict=True)
        lines.append(Line(now, chance.choices(texts, weights)[0]))
    return Log(lines, lambda line: f"{line.time.strftime('%Y-%m-%d %H:%M:%S,%f')[:-3]} {line.text}")


def sshd(data: Path) -> Log:
    lines = []
    for line in opened(data / "logs/raw_streams/elastic_auth.log.gz"):
        time = datetime.strptime(f"2015 {line[:15]}", "%Y %b %d %H:%M:%S").replace(tzinfo=UTC)
        lines.append(Line(time, line[16:]))
    return Log(lines, lambda line: f"{line.time.strftime('%b %d %H:%M:%S')} {line.text}")


def hdfs_in_time(data: Path) -> Log:
    """Messages of a file system in order of time, not by block."""
    lines = []
    for line in opened(data / "logs/hdfs_2pct_raw/events.tsv.gz")[1:]:
        _, day, time, level, part, text = line.split("\t", 5)
        when = datetime.strptime(f"{day}{time.zfill(6)}", "%y%m%d%H%M%S").replace(tzinfo=UTC)
        lines.append(Line(when, f"{level} {part}: {text}"))
    lines.sort(key=lambda one: one.time)
    return Log(lines, lambda line: f"{line.time.strftime('%Y-%m-%d %H:%M:%S,000')} {line.text}")


LOGS: dict[str, Callable[[Path], Log]] = {
    "access": access,
    "access_json": access_json,
    "application": application,
    "sshd": sshd,
    "hdfs_in_time": hdfs_in_time,
}
BLOCKS = "hdfs_blocks"


def opened(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8", errors="replace") as file:
        return file.read().splitlines()


def windows(lines: Sequence[Line]) -> list[list[Line]]:
    return [list(lines[at : at + WINDOW]) for at in range(0, len(lines) - WINDOW + 1, WINDOW)]


# Faults


def faults(train: Sequence[list[Line]]) -> dict[str, Callable[[list[Line], np.random.Generator], list[Line]]]:
    """Functions that plant each fault, adapted to the training windows."""
    kinds = Counter(line.kind for window in train for line in window)
    in_windows = Counter(kind for window in train for kind in {line.kind for line in window})
    rare = [line for window in train for line in window if 2 <= kinds[line.kind] <= 10][:200]
    common = max(kinds, key=lambda kind: kinds[kind])
    usual = {kind for kind, n in in_windows.items() if n >= 0.95 * len(train)}
    longest = max(b.time - a.time for own in train for a, b in pairwise(own))
    pause = max(timedelta(minutes=15), 4 * longest)

    def unseen(window: list[Line], random: np.random.Generator) -> list[Line]:
        at = sorted(random.choice(WINDOW, 5, replace=False).tolist())
        return [
            Line(one.time, one.text.split(" ")[0] + " kernel: oom-killer invoked by process")
            if n in at
            else one
            for n, one in enumerate(window)
        ]

    def silence(window: list[Line], random: np.random.Generator) -> list[Line]:
        at = int(random.integers(8, WINDOW - 8))
        return window[:at] + [Line(one.time + pause, one.text) for one in window[at:]]

    def missing(window: list[Line], random: np.random.Generator) -> list[Line]:
        gone = usual & {line.kind for line in window}
        kept = (
            [line for line in window if line.kind != max(gone, key=lambda kind: in_windows[kind])]
            if gone
            else []
        )
        return (kept * WINDOW)[:WINDOW] if len(kept) >= WINDOW // 4 else []

    def repeated(window: list[Line], random: np.random.Generator) -> list[Line]:
        same = next((line for line in window if line.kind == common), None)
        if same is None:
            return []
        half = window[: WINDOW - 40]
        return half + [Line(half[-1].time + timedelta(seconds=n // 10), same.text) for n in range(40)]

    def reversed_(window: list[Line], random: np.random.Generator) -> list[Line]:
        return [Line(one.time, other.text) for one, other in zip(window, window[::-1], strict=True)]

    def foreign(window: list[Line], random: np.random.Generator) -> list[Line]:
        drawn = random.choice(len(rare), WINDOW // 2).tolist() if rare else []
        return (
            [Line(one.time, rare[drawn[n // 2]].text) if n % 2 else one for n, one in enumerate(window)]
            if rare
            else []
        )

    found = {"unseen": unseen, "silence": silence, "missing": missing, "repeated": repeated}
    return {**found, "reversed": reversed_, "foreign": foreign}


# Rules


def rules(train: Sequence[list[Line]]) -> dict[str, Callable[[Sequence[list[Line]]], Doubles]]:
    """Five-line detectors; higher is more unusual."""
    number: dict[str, int] = {}
    for window in train:
        for line in window:
            number.setdefault(line.kind, len(number))
    pairs = Counter(
        pair
        for w in train
        for pair in zip((one.kind for one in w), (one.kind for one in w[1:]), strict=False)
    )
    first = Counter(one.kind for w in train for one in w[:-1])

    def vectors(some: Sequence[list[Line]]) -> Doubles:
        found = np.zeros((len(some), len(number) + 1))
        for row, window in zip(found, some, strict=True):
            for line in window:
                row[number.get(line.kind, -1)] += 1
        return np.log1p(found)

    known = vectors(train)
    usual = (known > 0).mean(0) >= 0.95

    def nearest(some: Sequence[list[Line]]) -> Doubles:
        return np.array([np.sqrt(((known - one) ** 2).sum(1).min()) for one in vectors(some)])

    def rarest(some: Sequence[list[Line]]) -> Doubles:
        return np.array(
            [
                max(
                    (-np.log2((pairs[a.kind, b.kind] + 0.01) / (first[a.kind] + 1)) for a, b in pairwise(w)),
                    default=0.0,
                )
                for w in some
            ]
        )

    multisets = {tuple(sorted(one.kind for one in w)) for w in train}

    def pause(some: Sequence[list[Line]]) -> Doubles:
        apart = [[(b.time - a.time).total_seconds() for a, b in pairwise(w)] for w in some]
        return np.array([max(own, default=0.0) for own in apart])

    def rate(some: Sequence[list[Line]]) -> Doubles:
        return np.array([len(w) / ((w[-1].time - w[0].time).total_seconds() + 1) for w in some])

    return {
        "never seen": lambda some: np.array([float(sum(one.kind not in number for one in w)) for w in some]),
        "unseen multiset": lambda some: np.array(
            [float(tuple(sorted(one.kind for one in w)) not in multisets) for w in some]
        ),
        "neighbour": nearest,
        "pair": rarest,
        "pause": pause,
        "rate": rate,
        "missing": lambda some: np.array([float((usual & (one == 0)).sum()) for one in vectors(some)]),
    }


def of_rules(train: Sequence[list[Line]], sets: dict[str, list[list[Line]]]) -> Iterator[Row]:
    """The shares of alarms of each rule.

    The latest tenth of the training data sets the threshold, the rest fits the rule.
    """
    held = max(1, len(train) // 10)
    for name, rule in rules(train[:-held]).items():
        calibration = rule(train[-held:])
        for kind, own in sets.items():
            values = rule(own)
            shares = [float((values > threshold_on(calibration, rate)).mean()) for rate in RATES]
            yield {"detector": f"rule: {name}", "set": kind, "windows": len(own), "shares": shares}


# The model


@dataclass(frozen=True)
class Case:
    """The training data and the judged data.

    Args:
        train: windows, or sessions.
        sets: by kind of fault, "normal" first.
        written: writes some of them to a file.
        options: options of the reader of that file.
        judged: rows in the order of the written records.
    """

    train: list[list[Line]]
    sets: dict[str, list[list[Line]]]
    written: Callable[[Sequence[list[Line]], Path], None]
    options: dict[str, str]


def of_windows(log: Log, seed: int) -> Case:
    cut = len(log.lines) * 3 // 5
    train, test = windows(log.lines[:cut]), windows(log.lines[cut:])
    sets, random = {"normal": test}, np.random.default_rng(seed)
    for kind, plant in faults(train).items():
        planted = [plant(window, random) for window in test[seed % EVERY :: EVERY]]
        if any(planted):
            sets[kind] = [window for window in planted if window]

    def written(some: Sequence[list[Line]], path: Path) -> None:
        path.write_text("".join(f"{log.written(line)}\n" for window in some for line in window))

    return Case(train, sets, written, {"session": "none"})


def of_sessions(data: Path) -> Case:
    """HDFS by block in order of time: normal blocks of the first three fifths train, the rest is judged."""
    folder, found = data / "logs/hdfs_2pct_raw", dict[str, list[Line]]()
    for line in opened(folder / "events.tsv.gz")[1:]:
        name, day, time, level, part, text = line.split("\t", 5)
        when = datetime.strptime(f"{day}{time.zfill(6)}", "%y%m%d%H%M%S").replace(tzinfo=UTC)
        found.setdefault(name, []).append(Line(when, f"{level} {part}: {text}"))
    order = sorted(found, key=lambda name: (found[name][0].time, name))
    labels = (one.split("\t") for one in opened(folder / "labels.tsv.gz")[1:])
    wrong = {name for name, label in labels if label == "1"}
    cut = len(order) * 3 // 5
    normal, anomalous = ([name for name in order if (name in wrong) is own] for own in (False, True))
    later = set(order[cut:])

    def written(some: Sequence[list[Line]], path: Path) -> None:
        rows = [{"session": str(n), "lines": [line.text for line in one]} for n, one in enumerate(some)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    return Case(
        [found[name] for name in normal if name not in later],
        {
            "normal": [found[name] for name in normal if name in later],
            "anomalous": [found[name] for name in anomalous if name in later],
        },
        written,
        {},
    )


def rows_of(model: str, file: Path, out: Path, **options: str) -> list[Row]:
    if not out.exists():
        part = out.with_suffix(".part.jsonl")
        config = ScoreConfig(model=model, paths=(str(file),), out=part, per_unit=False, options=options)
        run("score", Score, config, stdout=None, progress=NoProgress(), as_json=True)
        part.rename(out)
    return [json.loads(line) for line in out.read_text().splitlines()]


def window_rows(
    name: str, data: Path, out: Path, seed: int, minutes: float, records: int | None
) -> list[Row]:
    """The shares of each detector for one of `LOGS`, or `BLOCKS`; all records are judged."""
    case = of_windows(LOGS[name](data), seed) if name in LOGS else of_sessions(data)
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)

    def file(kind: str, some: Sequence[list[Line]]) -> Path:
        path = folder / f"{kind}-{seed}.{'log' if case.options else 'jsonl'}"
        case.written(some, path)
        return path

    flags = {"data": {"options": case.options}}
    model = trained(out, name, "logs", [file("train", case.train)], flags, seed, minutes)
    rows = list(of_rules(case.train, case.sets))
    for kind, own in case.sets.items():
        rows_file = folder / f"rows-{kind}-{seed}.jsonl"
        found = rows_of(model.path, file(kind, own), rows_file)
        if len(found) != len(own):
            raise SystemExit(f"{name}: {len(found)} rows for {len(own)} windows")
        columns = {"seqmlm": [row["p_value"] for row in found]}
        for statistic in found[0]["channels"]:
            columns[f"part: {statistic}"] = [row["channels"][statistic] for row in found]
        for detector, p in columns.items():
            shares = [float((np.array(p) <= rate).mean()) for rate in RATES]
            rows.append({"detector": detector, "set": kind, "windows": len(own), "shares": shares})
    if name in LOGS:
        short = file("short", [[line for window in case.sets["normal"] for line in window][:LINES]])
        for size in BURSTS:
            cut = {"session": "none", "window": str(size)}
            found = rows_of(model.path, short, folder / f"rows-{size}-{seed}.jsonl", **cut)
            shares = [float(np.mean([row["p_value"] <= rate for row in found])) for rate in RATES]
            row = {"detector": "seqmlm", "set": f"{size} lines", "windows": len(found)}
            rows.append({**row, "shares": shares})
    return rows


def f1(normal: list[Row], anomalous: list[Row]) -> list[list[float]]:
    """For each seed, at each rate."""
    found = []
    for no, yes in zip(normal, anomalous, strict=True):
        alarms = [
            (a * no["windows"], b * yes["windows"]) for a, b in zip(no["shares"], yes["shares"], strict=True)
        ]
        found.append([2 * true / (true + false + yes["windows"]) for false, true in alarms])
    return found


def show_shares(own: list[Row]) -> None:
    """Print a table for one log: the share of alarms at the rates .01 and .05, means over seeds."""
    bursts = [f"{size} lines" for size in BURSTS]
    kinds = [kind for kind in dict.fromkeys(row["set"] for row in own) if kind not in bursts]
    heads = [*kinds, *(["F1"] if "anomalous" in kinds else [])]
    print(f"  {'':<23}" + "".join(f"{head:>15}" for head in heads))
    for detector in dict.fromkeys(row["detector"] for row in own):
        mine = {
            kind: [row for row in own if (row["detector"], row["set"]) == (detector, kind)] for kind in kinds
        }
        cells = ["  ".join(f"{one:.3f}" for one in np.mean([r["shares"] for r in mine[k]], 0)) for k in kinds]
        if "anomalous" in kinds:
            cells.append("  ".join(f"{one:.3f}" for one in np.mean(f1(mine["normal"], mine["anomalous"]), 0)))
        print(f"  {detector:<23}" + "".join(f"{cell:>15}" for cell in cells))
    for kind in bursts:
        if shares := [row["shares"] for row in own if row["set"] == kind]:
            print(f"  normal, {kind:<15}" + "".join(f"{share:>8.3f}" for share in np.mean(shares, 0)))
