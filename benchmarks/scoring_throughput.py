"""Measure exact pseudo-log-likelihoods per second: seqmlm, `minicons`, a plain loop; and one-pass scores.

All arms score the same sequences with one model of the `small` size with random weights, saved as a Hugging
Face folder. They use float32 and the same threads. The sequences are text (V = 16,384) of any length and
proteins (V = 33) of 50 to 160 residues. Each arm runs in its own process, which measures its peak memory.
Each arm is measured with several batch sizes, and its best result counts. For memory, the leanest batch
within 5 % of that result counts. Arms take turns. All must give the same scores.

Rates are per second of processor time over the number of threads. The load of the machine changes them
little. Wall time is stored as well. Each ratio is printed next to the ratio of multiply-adds at equal
precision (`scoring_operations`).

Fields with the ending "-nearby" use a model whose layers look at 4 tokens on each side. Its first layer looks
at all tokens (`model.layers=nearby`). They are text, proteins, and DNA in windows of 510 bases. `growth`
scores random sequences of 64 to 2,048 tokens with that model and with the pattern of ModernBERT. It prints
how the time per sequence grows with the length.

    ours      packed rows of distinct masked copies, the head at queried tokens
    ours-bf16 ours with bfloat16 products: not a goal; the printed differences show how the scores change
    one-pass  ours, without masks
    loop      masked copies sorted by length in batches, hidden states gathered before the head: twenty lines
              of transformers
    minicons  MaskedLMScorer.sequence_score; it can be in another environment (--minicons PYTHON)

    python benchmarks/scoring_throughput.py --data ../shared/data           # about 8 minutes on two cores
    python benchmarks/scoring_throughput.py --data ../shared/data --quick   # about 4, mostly starting up

Results are kept for each arm under --out. An interrupted benchmark continues at the point of interruption.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from scoring_arms import Arm
from scoring_operations import asked_lengths, multiply_adds

ARMS = Path(__file__).with_name("scoring_arms.py")
BATCHES = {
    "ours": (4096, 8192, 2048),
    "loop": (64, 32, 128),
    "minicons": (2, 1, 4, 8),
    "one-pass": (4096, 1024),
    "ours-bf16": (4096, 8192),
}
NEAR = 0.05
# Ours over minicons and over the loop, and the share of the mean length that one pass must be faster.
GOALS = {
    "text": (4.0, 1.5, None),
    "protein": (2.0, 1.3, 0.6),
    "text-nearby": (4.0, 4.0, None),
    "protein-nearby": (8.0, 5.0, None),
    "dna-nearby": (20.0, 20.0, None),
}
LENGTHS = {"text": (5, 512), "protein": (50, 160), "dna": (512, 512)}
GROWTH = (64, 128, 256, 512, 1024, 2048)
TOLERANCE = 2e-3  # nats of a whole sequence
ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}


def prepare(field: str, data: Path, out: Path) -> Path:
    """The field's model folder with tokenizer, sequences and their lengths; made once."""
    folder = out / field
    if (folder / "lengths.npy").exists():
        return folder
    import torch
    from scoring_arms import tokenizer_class
    from throughput_arms import _proteins, _sentences

    from seqmlm.engine.backbones import build
    from seqmlm.engine.shapes import ModelConfig

    of, _, layers = field.partition("-")
    read = {"text": _sentences, "protein": _proteins, "dna": _genome}
    texts = [text for text in read[of](data) if "\n" not in text]
    kind: Any = tokenizer_class(of)
    tokenizer = kind.train(texts, vocabulary_size=16_384) if of == "text" else kind()
    encodings = tokenizer.encode_batch(texts)
    lengths = np.array([len(one) for one in encodings])
    low, high = LENGTHS[of]
    # minicons would score an unknown token, which we leave out.
    known = np.array([tokenizer.space.unk not in one.ids for one in encodings])
    chosen = np.flatnonzero((lengths >= low) & (lengths <= high) & known)
    torch.manual_seed(0)
    config = ModelConfig(size="small", max_length=512, layers=f"{layers or 'modernbert'}.v1")
    build(config, tokenizer.space).save_pretrained(folder)
    tokenizer.save(folder)
    (folder / "sequences.txt").write_text("\n".join(texts[i] for i in chosen) + "\n", encoding="utf-8")
    np.save(folder / "lengths.npy", lengths[chosen])
    return folder


def _genome(data: Path) -> list[str]:
    """Pieces of E. coli of 510 bases."""
    with gzip.open(sorted(data.glob("dna/genomes/*.fna.gz"))[0], "rt") as lines:
        bases = "".join(line.strip().upper() for line in lines if not line.startswith(">"))
    return [bases[start : start + 510] for start in range(0, 2_000_000, 5100)]


def measure(arm: Arm, out: Path, python: str) -> dict[str, Any]:
    """Run one arm in its own process; cached."""
    kept = out / f"{arm.name}.json"
    if not kept.exists():
        environment = {**os.environ, **ENVIRONMENT, "OMP_NUM_THREADS": str(arm.threads)}
        command = [python, str(ARMS), json.dumps(asdict(arm))]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{arm.name} failed:\n{done.stderr[-2000:]}")
        kept.write_text(done.stdout.splitlines()[-1] + "\n")
        print(f"  {arm.name}", file=sys.stderr)
    return dict(json.loads(kept.read_text()))


def sweep(field: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """All arms of one field, in turns."""
    folder = prepare(field, options.data, options.out)
    kinds = [kind for kind in BATCHES if kind != "minicons" or options.minicons]
    lists = [
        [(kind, batch) for batch in (BATCHES[kind][:2] if options.quick else BATCHES[kind])] for kind in kinds
    ]
    found = []
    for kind, batch in [one for turn in zip_longest(*lists) for one in turn if one is not None]:
        arm = Arm(kind, field, batch, options.tokens, options.threads, str(folder))
        python = options.minicons if kind == "minicons" else sys.executable
        found.append(measure(arm, options.out, python))
    return found


def check(found: list[dict[str, Any]]) -> None:
    """All exact arms in float32 must agree, sequence by sequence."""
    exact = [one for one in found if one["kind"] not in ("one-pass", "ours-bf16")]
    for one in exact[1:]:
        apart = float(np.abs(np.array(one["scores"]) - np.array(exact[0]["scores"])).max())
        if apart > TOLERANCE:
            raise SystemExit(f"{one['kind']} and {exact[0]['kind']} differ by {apart:.4f} nats")


def counted(field: str, found: dict[str, Any], folder: Path) -> tuple[float, dict[str, float]]:
    """The mean length of the scored sequences, and their multiply-adds by arm."""
    from scoring_arms import tokenizer_class

    from seqmlm.engine.backbones import load

    model: Any = load(str(folder), tokenizer_class(field.partition("-")[0]).load(folder).space)
    asked = asked_lengths(folder, found["sequences"])
    return float(asked.mean() - 2), multiply_adds(model.config, asked)


def table(field: str, found: list[dict[str, Any]], options: argparse.Namespace) -> dict[str, Any]:
    """Print one field's arms and the ratios of the best ones."""
    check(found)
    print(f"\n{field}: {found[0]['sequences']} sequences, equal scores")
    print(f"{'arm':<10}{'batch':>7}{'sequences/s':>13}{'by wall':>9}{'peak MiB':>10}{'growth MiB':>12}")
    for one in found:
        one["rate"] = one["sequences"] * one["threads"] / one["cpu_seconds"]
        wall = one["sequences"] / one["seconds"]
        print(
            f"{one['kind']:<10}{one['batch']:>7}{one['rate']:>13.2f}{wall:>9.2f}{one['peak_mib']:>10,.0f}"
            f"{one['grown_mib']:>12,.0f}"
        )
    best: dict[str, dict[str, Any]] = {}
    for one in found:
        if one["kind"] not in best or one["rate"] > best[one["kind"]]["rate"]:
            best[one["kind"]] = one
    length, operations = counted(field, found[0], options.out / field)
    report: dict[str, Any] = {
        "field": field,
        "operations": operations,
        "arms": [{k: v for k, v in o.items() if k != "scores"} for o in found],
    }
    for rival, goal in zip(("minicons", "loop"), GOALS[field], strict=False):
        if rival not in best:
            print(f"ours / {rival}: not measured (--minicons PYTHON names an environment that has it)")
            continue
        ratio = best["ours"]["rate"] / best[rival]["rate"]
        memory = leanest(found, best["ours"]) / leanest(found, best[rival])
        bound = operations[rival] / operations["ours"]
        report[rival] = {"speed": ratio, "memory": memory, "operations": bound}
        said = "" if "-" in field else f"; operations say {bound:.2f}"
        verdict = "reached" if ratio >= goal else "missed"
        print(
            f"ours / {rival}: {ratio:.2f} x the speed (goal {goal}: {verdict}), "
            f"{memory:.2f} x the peak memory{said}"
        )
    report["ours-bf16"] = rounded(best)
    bound = operations["ours"] / operations["one-pass"]
    ratio = best["one-pass"]["rate"] / best["ours"]["rate"]
    report["one-pass"] = {"speed": ratio, "mean_length": length, "operations": bound}
    share = GOALS[field][2]
    goal_text = (
        ""
        if share is None
        else f" (goal {share * length:.0f}: {'reached' if ratio >= share * length else 'missed'})"
    )
    print(
        f"one-pass / exact: {ratio:.1f} x the speed{goal_text}; mean length {length:.1f}; "
        f"operations say {bound:.1f}"
    )
    return report


def growth(options: argparse.Namespace) -> dict[str, Any]:
    """Processor seconds of an exact score by sequence length; two patterns of layers take turns."""
    import torch
    from scoring_arms import tokenizer_class

    from seqmlm.engine.backbones import build
    from seqmlm.engine.conditionals import Conditionals
    from seqmlm.engine.model import MaskedRows
    from seqmlm.engine.scoring import Scorer
    from seqmlm.engine.shapes import ModelConfig
    from seqmlm.engine.units import EXACT

    torch.set_num_threads(options.threads)
    tokenizer: Any = tokenizer_class("dna")()
    patterns = ("nearby.v1", "modernbert.v1")
    scorers = {}
    for layers in patterns:
        torch.manual_seed(0)
        model = build(ModelConfig(size="small", max_length=max(GROWTH), layers=layers), tokenizer.space)
        scorers[layers] = Scorer(
            Conditionals(MaskedRows(model, tokenizer.space)), tokenizer.units, mode=EXACT
        )
    random, seconds = np.random.default_rng(0), {layers: [] for layers in patterns}
    print(f"\ngrowth\n{'tokens':>7}" + "".join(f"{layers:>16}" for layers in patterns) + f"{'ratio':>8}")
    for length in GROWTH:
        texts = ["".join(random.choice(list("ACGT"), length - 2)) for _ in range(max(1, 256 // length))]
        for layers, scorer in scorers.items():
            for _ in range(2):  # the first is to get warm
                began = time.process_time()
                list(scorer.windows((one, None) for one in tokenizer.encode_batch(texts)))
                took = (time.process_time() - began) / len(texts)
            seconds[layers].append(took)
        now = [seconds[layers][-1] for layers in patterns]
        print(f"{length:>7}" + "".join(f"{each:>14.3f} s" for each in now) + f"{now[1] / now[0]:>8.1f}")
    slopes = {k: float(np.polyfit(np.log(GROWTH), np.log(v), 1)[0]) for k, v in seconds.items()}
    print("exponents of the length: " + ", ".join(f"{k} {v:.2f}" for k, v in slopes.items()))
    return {"field": "growth", "tokens": GROWTH, "cpu_seconds": seconds, "exponents": slopes}


def leanest(found: list[dict[str, Any]], best: dict[str, Any]) -> float:
    """Peak MiB of the leanest batch whose rate is within `NEAR` of the arm's best."""
    near = [o for o in found if o["kind"] == best["kind"] and o["rate"] >= (1 - NEAR) * best["rate"]]
    return float(min(one["peak_mib"] for one in near))


def rounded(best: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Print what bfloat16 products gain, and by how much they change the score of a sequence."""
    rough, exact = best["ours-bf16"], best["ours"]
    ratio = rough["rate"] / exact["rate"]
    apart = float(np.abs(np.array(rough["scores"]) - np.array(exact["scores"])).max())
    print(
        f"ours-bf16 / ours: {ratio:.2f} x the speed; scores of sequences are apart by up to {apart:.4f} nats"
    )
    return {"speed": ratio, "largest_deviation_nats": apart}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the real data sets")
    parser.add_argument("--json", type=Path, help="write everything here")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/scoring_throughput"))
    parser.add_argument(
        "--minicons", help="python of an environment with minicons; without one it is left out"
    )
    parser.add_argument("--only", choices=[*GOALS, "growth"], action="append")
    parser.add_argument("--tokens", type=int, default=120_000, help="masked tokens an arm reads")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="two batch sizes, a fifth of the tokens")
    options = parser.parse_args()
    options.out = options.out.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.quick:
        options.tokens //= 5
    report = []
    for field in options.only or [*GOALS, "growth"]:
        if field == "growth":
            report.append(growth(options))
        else:
            report.append(table(field, sweep(field, options), options))
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
