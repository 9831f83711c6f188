"""Measure useful tokens per second of pretraining: seqmlm compared with the Hugging Face Trainer.

Whole training steps are measured in one run. All arms have the same ModernBERT configuration, vocabulary,
data, precision (float32), threads and optimizer (fused AdamW). Each arm is measured with several batch sizes,
and its best result counts:

    ours      packed rows, LM head at masked positions only, the loop of the engine
    grouped   the best stock recipe: Trainer, batches of similar length, `sparse_prediction`
    padded    the common recipe: Trainer, random batches padded to their longest, the LM head everywhere
    ours-bf16, grouped-bf16  the first two with products in bfloat16

First, the benchmark checks that the three have equal losses on equal masks. Every arm runs in its own
process, which measures its peak memory. Arms take turns, so that load on the machine affects all of them.
FLOP/s are compared with the best matrix product measured in the same run.

    python benchmarks/pretrain_throughput.py --data ../shared/data           # about 15 minutes on two cores
    python benchmarks/pretrain_throughput.py --data ../shared/data --quick   # about 5

Results are kept for each arm under --out. An interrupted benchmark continues at the point of interruption.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import Any

from throughput_arms import Arm

ARMS = Path(__file__).with_name("throughput_arms.py")
GOALS = {"text": (1.5, 3.0), "protein": (1.2, 1.5)}
# Tokens of a row (ours) and sequences of a batch (Trainer) that are tried, the likeliest best first.
ROWS = (4096, 8192, 2048)
BATCHES = {"text": (32, 16, 64), "protein": (4, 8, 16)}
# Threads wait without spinning, in all arms alike: on a shared machine spinning measures the neighbours.
ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false"}


def measure(arm: Arm, out: Path) -> dict[str, Any]:
    """Run one arm in its own process; cached."""
    kept = out / f"{arm.name}.json"
    if not kept.exists():
        command = [sys.executable, str(ARMS), json.dumps(asdict(arm)), str(out / "data")]
        environment = {**os.environ, **ENVIRONMENT}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{arm.name} failed:\n{done.stderr[-2000:]}")
        if arm.kind != "prepare":
            kept.write_text(done.stdout.splitlines()[-1] + "\n")
            print(f"  {arm.name}", file=sys.stderr)
    return dict(json.loads(kept.read_text())) if kept.exists() else {}


def sweep(field: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """All arms of one field; the kinds take turns."""
    rows = ROWS[:2] if options.quick else ROWS
    batches = BATCHES[field][:2] if options.quick else BATCHES[field]
    lists = [[(kind, batch) for batch in (rows if "ours" in kind else batches)] for kind in KINDS]
    turns = [one for turn in zip_longest(*lists) for one in turn if one is not None]
    return [measure(arm(kind, field, batch, options), options.out) for kind, batch in turns]


KINDS = ("ours", "grouped", "padded", "ours-bf16", "grouped-bf16")


def arm(kind: str, field: str, batch: int, options: argparse.Namespace) -> Arm:
    return Arm(
        kind=kind,
        field=field,
        size=options.size,
        batch=batch,
        tokens=options.tokens,
        threads=options.threads,
        data=str(options.data.resolve()),
    )


def table(field: str, facts: dict[str, Any], found: list[dict[str, Any]], peak: float) -> dict[str, Any]:
    """Print one field's arms and the ratios of the best ones."""
    print(
        f"\n{field}: {facts['sequences']:,} sequences, mean length {facts['mean_length']:.1f}, "
        f"{facts['parameters']:,} parameters; equal losses on equal masks: "
        + ", ".join(f"{kind} {loss:.5f}" for kind, loss in facts["losses"].items())
    )
    print(f"{'arm':<13}{'batch':>7}{'tokens/s':>11}{'of peak':>9}{'peak MiB':>10}{'growth MiB':>12}")
    for one in found:
        share = one["tokens_per_second"] * facts["flops_per_token"] / peak
        print(
            f"{one['kind']:<13}{one['batch']:>7}{one['tokens_per_second']:>11,.0f}{share:>9.1%}"
            f"{one['peak_mib']:>10,.0f}{one['grown_mib']:>12,.0f}"
        )
    best = {
        kind: max((o for o in found if o["kind"] == kind), key=lambda o: o["tokens_per_second"])
        for kind in KINDS
    }
    ratios, memory = {}, {}
    goals = dict(zip(KINDS[1:], GOALS[field], strict=False))
    for one, other in (
        *(("ours", rival) for rival in goals),
        ("ours-bf16", "ours"),
        ("ours-bf16", "grouped-bf16"),
    ):
        speed, lean = (best[one][key] / best[other][key] for key in ("tokens_per_second", "peak_mib"))
        ratios[f"{one} / {other}"], memory[f"{one} / {other}"] = speed, lean
        goal = goals.get(other) if one == "ours" else None
        verdict = "" if goal is None else f" (goal {goal}: {'reached' if speed >= goal else 'missed'})"
        print(f"{one} / {other}: {speed:.2f} x the speed{verdict}, {lean:.2f} x the memory")
    return {"field": field, **facts, "arms": found, "ratios": ratios, "memory": memory, "peak_flops": peak}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the real data sets")
    parser.add_argument("--json", type=Path, help="write everything here")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/pretrain_throughput"))
    parser.add_argument("--size", choices=("tiny", "small", "base"), default="small")
    parser.add_argument("--only", choices=sorted(GOALS), action="append")
    parser.add_argument("--tokens", type=int, default=60_000, help="tokens of one pass")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="fewer batch sizes, half the tokens")
    options = parser.parse_args()
    options.out = options.out.resolve()
    if options.quick:
        options.tokens //= 2
    (options.out / "data").mkdir(parents=True, exist_ok=True)
    if not (options.out / "data/protein.npz").exists():
        measure(arm("prepare", "text", 0, options), options.out)
    peak = measure(arm("peak", "text", 0, options), options.out)["flops"]
    print(f"best matrix product: {peak / 1e9:,.0f} GFLOP/s in float32 with {options.threads} threads")
    report = []
    for field in options.only or sorted(GOALS):
        facts = measure(arm("losses", field, 16, options), options.out)
        facts = {
            key: facts[key] for key in ("losses", "parameters", "flops_per_token", "sequences", "mean_length")
        }
        report.append(table(field, facts, sweep(field, options), peak))
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
