"""Compare the log templates of seqmlm with those of drain3, and both with the templates of loghub.

People wrote the templates of loghub. Every line of loghub_2k is normalised once. Our Drain reads it.
With --drain3-python, drain3 reads it too, with the same parameters. It cannot be installed together with
MLflow. Therefore it runs in its own interpreter:

    python3 -m venv DIR && DIR/bin/pip install drain3
    PYTHONPATH=benchmarks python benchmarks/studies/log_templates.py --data ../shared/data \\
        --drain3-python DIR/bin/python

    grouping accuracy   share of lines whose group has exactly the lines that its shipped template has (Zhu et
                        al. 2019, "Tools and benchmarks for automated log parsing")
    pairs in common     F1 of the pairs of lines that one of two programs groups together, against the other
    equal               every line has the same template number in both

"Frozen" is the same list of templates after training. It matches the lines again without learning.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from seqmlm.domains.logs.drain import Drain, DrainOptions, Words
from seqmlm.domains.logs.values import LogValues

SYSTEMS = ("HDFS", "BGL", "OpenStack", "Linux", "Apache", "Spark", "Zookeeper", "OpenSSH")
SETTINGS = [(depth, share) for depth in (4, 5) for share in (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)]
# Runs under the other interpreter: JSON in, JSON out.
DRAIN3 = """
import json, sys, time
from drain3.drain import Drain
asked = json.load(sys.stdin)
found = {}
for system, lines in asked["lines"].items():
    drain = Drain(depth=asked["depth"], sim_th=asked["similarity"], max_children=asked["max_children"])
    start = time.perf_counter()
    ids = [drain.add_log_message(line)[0].cluster_id - 1 for line in lines]
    found[system] = {"ids": ids, "seconds": time.perf_counter() - start}
json.dump(found, sys.stdout)
"""

Groups = Sequence[int] | Sequence[str]


def read(data: Path, system: str) -> tuple[list[str], list[str]]:
    """Messages and event ids of one file."""
    with gzip.open(data / f"logs/loghub_2k/{system}_2k.log_structured.csv.gz", "rt") as file:
        rows = list(csv.DictReader(file))
    return [row["Content"] for row in rows], [row["EventId"] for row in rows]


def grouping_accuracy(true: Groups, found: Groups) -> float:
    """Share of items whose group in `found` is their group in `true`."""
    sizes, others = Counter(true), Counter(found)
    both = Counter(zip(true, found, strict=True))
    return sum(n for (a, b), n in both.items() if sizes[a] == n == others[b]) / len(true)


def pairs_in_common(first: Groups, second: Groups) -> float:
    """F1 of the pairs grouped together."""

    def pairs(groups: Iterable[Any]) -> int:
        return sum(n * (n - 1) // 2 for n in Counter(groups).values())

    total = pairs(first) + pairs(second)
    return 2 * pairs(zip(first, second, strict=True)) / total if total else 1.0


def timed(work: Callable[[], list[int]]) -> tuple[list[int], float]:
    """The result of a call, and its seconds."""
    start = time.perf_counter()
    return work(), time.perf_counter() - start


def ours(lines: Sequence[Words], options: DrainOptions) -> dict[str, Any]:
    """The ids of our Drain while it learns, and after learning."""
    drain = Drain(options)
    ids, seconds = timed(lambda: [drain.add(line) for line in lines])
    frozen = drain.freeze()
    return {
        "ids": ids,
        "lines_per_second": len(lines) / seconds,
        "frozen": [frozen.match(line) for line in lines],
    }


def theirs(python: Path, lines: dict[str, list[Words]], options: DrainOptions) -> dict[str, Any]:
    """Ids of drain3."""
    asked = {
        "depth": options.depth,
        "similarity": options.similarity,
        "max_children": options.max_children,
        "lines": {system: [" ".join(line) for line in own] for system, own in lines.items()},
    }
    command = [str(python), "-c", DRAIN3]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def compare(data: Path, python: Path | None) -> list[dict[str, Any]]:
    """One row a system."""
    values, options = LogValues(), DrainOptions()
    true = {system: read(data, system)[1] for system in SYSTEMS}
    lines = {system: [values.words(line) for line in read(data, system)[0]] for system in SYSTEMS}
    other = theirs(python, lines, options) if python is not None else {}
    rows = []
    for system in SYSTEMS:
        found = ours(lines[system], options)
        row: dict[str, Any] = {
            "system": system,
            "lines": len(lines[system]),
            "templates": len(set(true[system])),
            "ours": len(set(found["ids"])),
            "accuracy": grouping_accuracy(true[system], found["ids"]),
            "accuracy_frozen": grouping_accuracy(true[system], found["frozen"]),
            "lines_per_second": found["lines_per_second"],
        }
        if system in other:
            ids = other[system]["ids"]
            row["drain3"] = len(set(ids))
            row["accuracy_drain3"] = grouping_accuracy(true[system], ids)
            row["pairs_in_common"] = pairs_in_common(found["ids"], ids)
            row["equal"] = found["ids"] == ids
            row["drain3_lines_per_second"] = len(ids) / other[system]["seconds"]
        rows.append(row)
    return rows


def sweep(data: Path) -> dict[str, dict[str, float]]:
    """Grouping accuracy of each system for other depths and similarities."""
    values = LogValues()
    found: dict[str, dict[str, float]] = {}
    for system in SYSTEMS:
        messages, true = read(data, system)
        lines = [values.words(line) for line in messages]
        found[system] = {}
        for depth, share in SETTINGS:
            drain = Drain(DrainOptions(depth=depth, similarity=share))
            ids = [drain.add(line) for line in lines]
            found[system][f"{depth}, {share}"] = grouping_accuracy(true, ids)
    return found


def show(rows: list[dict[str, Any]]) -> None:
    print(
        f"{'system':<11}{'templates':>10}{'ours':>6}{'drain3':>8}   {'accuracy: ours':>14}{'frozen':>8}"
        f"{'drain3':>8}   {'pairs in common':>15}  {'equal':<6}{'lines/s':>9}{'drain3':>9}"
    )
    for row in rows:
        known = "drain3" in row
        drain3 = (
            (f"{row['drain3']}", f"{row['accuracy_drain3']:.4f}", f"{row['pairs_in_common']:.4f}")
            if known
            else ("-", "-", "-")
        )
        equal = ("yes" if row["equal"] else "NO") if known else "-"
        speed = f"{row['drain3_lines_per_second']:,.0f}" if known else "-"
        print(
            f"{row['system']:<11}{row['templates']:>10}{row['ours']:>6}{drain3[0]:>8}   "
            f"{row['accuracy']:>14.4f}{row['accuracy_frozen']:>8.4f}{drain3[1]:>8}   {drain3[2]:>15}  "
            f"{equal:<6}{row['lines_per_second']:>9,.0f}{speed:>9}"
        )
    mean = sum(row["accuracy"] for row in rows) / len(rows)
    print(f"mean grouping accuracy {mean:.4f} (depth 4, similarity 0.4, 100 children)")


def show_sweep(found: dict[str, dict[str, float]]) -> None:
    names = list(next(iter(found.values())))
    print("\ngrouping accuracy by depth and similarity")
    print(" " * 11 + "".join(f"{name:>8}" for name in names))
    for system, own in found.items():
        print(f"{system:<11}" + "".join(f"{own[name]:>8.3f}" for name in names))
    means = {name: sum(own[name] for own in found.values()) / len(found) for name in names}
    print(f"{'mean':<11}" + "".join(f"{means[name]:>8.3f}" for name in names))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the real data sets")
    parser.add_argument("--drain3-python", type=Path, help="an interpreter that has drain3")
    parser.add_argument("--json", type=Path, help="write everything here")
    parser.add_argument("--quick", action="store_true", help="leave the other parameters out")
    options = parser.parse_args()
    rows = compare(options.data, options.drain3_python)
    show(rows)
    swept = {} if options.quick else sweep(options.data)
    if swept:
        show_sweep(swept)
    if options.json:
        options.json.write_text(json.dumps({"systems": rows, "settings": swept}, indent=2) + "\n")


if __name__ == "__main__":
    main()
