"""Measure alarms on real and planted anomalies in every field, compared with simple baselines.

    access access_json sshd hdfs_in_time application   windows of logs, unchanged and with planted faults
    hdfs_blocks             HDFS by block, in order of time, with labels
    hdfs                    event ids, DeepLog's training sessions; all baselines, fused detector, channels
    blind                   HDFS where counting is blind: near-normal, reordered and changed sessions
    hdfs_raw                raw HDFS messages with 2.9 % anomalies, divided in time
    bgl                     2,000 lines: a smoke test, not evidence
    openstack_parisakalaki  50 training sessions; openstack_loghub is a control that no detector can solve
    quixbugs                which line of 40 programs has the bug
    text protein dna code ehr   faults planted in held-out records; baselines: unigram, 5-gram, counts

Thresholds come from normal records that are not in the training data. They do not use labels. Results that
use labels are marked as oracle results. Models are `tiny` and are trained for --minutes each. One minute
means 300 steps, or 1,000 steps for sessions of HDFS and OpenStack. One quiet core makes about that many.

    python benchmarks/alarms.py --data ../shared/data                       # 2 minutes a model, 3 seeds
    python benchmarks/alarms.py --data ../shared/data --quick               # 1 minute, one seed
    python benchmarks/alarms.py --data ../shared/data --only blind --minutes 8 --records 600

Results are kept for each data set and seed under --out. An interrupted benchmark continues at the point of
interruption.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from anomaly_blind import blind
from anomaly_fields import RATES, field_rows
from anomaly_logs import raw, sessions
from anomaly_patients import patient_rows
from anomaly_quixbugs import quixbugs_rows
from anomaly_windows import BLOCKS, LOGS, show_shares, window_rows

Row = dict[str, Any]
Arm = Callable[[Path, Path, int, float, int | None], list[Row]]

ARMS: dict[str, Arm] = {
    **{name: partial(window_rows, name) for name in (*LOGS, BLOCKS)},
    "hdfs": partial(sessions, "hdfs"),
    "blind": blind,
    "hdfs_raw": partial(raw, "hdfs_raw"),
    "bgl": partial(raw, "bgl"),
    "openstack_parisakalaki": partial(sessions, "openstack_parisakalaki"),
    "openstack_loghub": partial(sessions, "openstack_loghub"),
    **{name: partial(field_rows, name) for name in ("text", "protein", "dna", "code")},
    "quixbugs": quixbugs_rows,
    "ehr": patient_rows,
}

SHOWN = ("auroc", "auprc", "rate", "precision", "recall", "f1", "f1_natural", "fpr", "oracle_f1")
SHOWN_FIELDS = (
    "auroc",
    "chosen_by",
    "model",
    "unigram",
    "5-gram",
    "counts",
    "floor_auroc",
    "mixed lift",
    "5-gram lift",
    "counts lift",
    "gain",
    "low",
    "high",
    "lift_gain",
    "lift_low",
    "lift_high",
    "judged",
    "judged_gain",
    "judged_low",
    "judged_high",
    *(f"{who}{what}_{rate}" for rate in RATES for who in ("", "floor_") for what in ("normal", "found")),
    "part_gain",
    "part_low",
    "part_high",
    "top1",
    "top3",
    "top5",
    "pairs_won",
    "floor_won",
)


def measured(name: str, data: Path, out: Path, seed: int, minutes: float, records: int | None) -> list[Row]:
    """The rows of one arm and seed; cached as JSON."""
    few = "" if records is None else f"-{records}records"
    kept = out / f"{name}-{minutes:g}min{few}-seed{seed}.json"
    if kept.exists():
        return list(json.loads(kept.read_text()))
    rows = [
        {"arm": name, "seed": seed, "minutes": minutes, **row}
        for row in ARMS[name](data, out, seed, minutes, records)
    ]
    kept.parent.mkdir(parents=True, exist_ok=True)
    partial_file = kept.with_suffix(".partial")
    partial_file.write_text(json.dumps(rows, indent=2, default=float) + "\n")
    partial_file.replace(kept)
    return rows


def show(rows: list[Row]) -> None:
    """Print a table for each arm: means over seeds, and the outermost bounds of intervals."""
    for arm in dict.fromkeys(row["arm"] for row in rows):
        own = [row for row in rows if row["arm"] == arm]
        print(f"\n{arm} ({len({row['seed'] for row in own})} seeds)")
        if "shares" in own[0]:
            show_shares(own)
            continue
        names = [n for n in dict.fromkeys((*SHOWN, *SHOWN_FIELDS)) if any(n in row for row in own)]
        print(f"{'':<66}" + "".join(f"{name:>12}" for name in names))
        cells: dict[tuple[str, str, float], list[Row]] = {}
        for row in own:
            cells.setdefault((row["set"], row.get("detector", ""), row.get("rate", 0.0)), []).append(row)
        for (data_set, detector, _), same in cells.items():
            label = f"{data_set:<28} {detector:<37}"
            print(f"{label:<66}" + "".join(f"{_cell(same, name):>12}" for name in names))


def _cell(rows: list[Row], name: str) -> str:
    values = [row[name] for row in rows if row.get(name) is not None]
    if not values:
        return ""
    reduce = {"low": min, "high": max}.get(name.rpartition("_")[2], np.mean)
    return f"{float(reduce(values)):.4f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the real data sets")
    parser.add_argument("--json", type=Path, help="write all rows here")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/alarms"))
    parser.add_argument("--only", choices=sorted(ARMS), action="append", help="only these arms")
    parser.add_argument("--seeds", type=int, help="models of each set (3, or 1 with --quick)")
    parser.add_argument("--minutes", type=float, default=2.0, help="training of one model")
    parser.add_argument("--records", type=int, help="most judged records of a kind (blind, fields)")
    parser.add_argument("--quick", action="store_true", help="one minute, one seed")
    options = parser.parse_args()
    options.seeds = options.seeds or (1 if options.quick else 3)
    if options.quick:
        options.minutes, options.records = 1.0, options.records or 150
    rows: list[Row] = []
    for name in options.only or list(ARMS):
        for seed in range(options.seeds):
            print(f"{name}, seed {seed} ...", file=sys.stderr)
            rows += measured(
                name, options.data, options.out.resolve(), seed, options.minutes, options.records
            )
    show(rows)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
