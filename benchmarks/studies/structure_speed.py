"""Count the passes for conditional mutual information at the error of the published sampler.

Small models are trained on the built-in samples of two fields: proteins (20 residues) and text with a
vocabulary of 300 pieces. The reference is computed for some pairs of places in held-out sequences. It is the
stationary law of the full Gibbs kernel, with every symbol tried at both places. The methods are compared on
the same pairs:

    published   Zhang and Hashimoto (2021) as published: batches of 256 pairs, one pass a step and side, the
                head at all positions, every distribution kept; its estimates after 125 to --steps steps
    gibbs       the same chain, with one query per conditional of a symbol; plain, and Rao-Blackwell
    topk        the kernel of the k most probable symbols
    exact       the joint of the chain rule. It is another joint if the conditionals disagree: this is its
                error
    fast        all pairs of a sequence ranked at once, none computed exactly

Passes are copies of a sequence that the model computes, per pair. Seconds are processor time. Memory is the
largest growth of the resident set. Each arm has its own process. The last lines compare passes with those of
`published` and `gibbs` at the last step. They show the factor for the cheapest arm whose error is not larger.

    PYTHONPATH=benchmarks python benchmarks/studies/structure_speed.py  # about 10 minutes on two cores
    PYTHONPATH=benchmarks python benchmarks/studies/structure_speed.py --quick    # 500 steps, fewer pairs

Results are kept for each field, arm and seed under --out. An interrupted benchmark continues at the point of
interruption.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from anomaly_models import trained
from numpy.typing import NDArray

from seqmlm import plugins
from seqmlm.data.problems import Problems
from seqmlm.engine.types import Encoding
from seqmlm.inference.model_folder import LoadedModel
from seqmlm.inference.session import Session
from seqmlm.structure.base import Estimator, Places
from seqmlm.structure.cmi import Gibbs
from seqmlm.structure.estimators import StructureSettings, estimator

Doubles = NDArray[np.float64]
Row = dict[str, Any]
FIELDS = {"protein": {}, "text": {"tokenizer": {"vocabulary_size": 300}}}
ARMS = (
    "reference",
    "published",
    "gibbs plain",
    "gibbs",
    "topk 2",
    "topk 4",
    "topk 8",
    "topk 16",
    "topk 32",
    "exact",
    "fast",
)
BURNED = 0.2
BATCH = 256
SEQUENCES = 6


def model_of(field: str, out: Path, seed: int) -> LoadedModel:
    sample = plugins.domain(field).sample.draw(out / f"{field}-train", seed=0)
    flags = {**FIELDS[field], "model": {"size": "tiny", "max_length": 128}}
    return trained(out, f"structure-{field}", field, list(sample.files), flags, seed, 1.0)


def asked(field: str, model: LoadedModel, out: Path, pairs: int) -> list[tuple[Encoding, NDArray[np.int64]]]:
    """Sequences of another draw, each with some of its pairs."""
    sample = plugins.domain(field).sample.draw(out / f"{field}-asked", n=200, seed=9)
    rng, found = np.random.default_rng(4), []
    for record in plugins.domain(field).read(list(sample.files), Problems()):
        encoding = model.tokenizer.encode(record.raw)
        size = len(encoding) - 2
        if 8 <= size <= 60 and len(found) < SEQUENCES:
            first, second = np.triu_indices(size, 1)
            own = np.sort(rng.permutation(len(first))[: pairs // SEQUENCES])
            found.append((encoding, np.stack([first[own], second[own]], axis=1)))
    return found


def ours(model: LoadedModel, given: list[tuple[Encoding, Any]], **settings: Any) -> Estimator:
    """An estimator that computes only the chosen pairs; every token is a unit."""
    session = Session(model)
    made = estimator(
        StructureSettings(candidates=candidates(model), **settings),
        session.conditionals(),
        session.tokenizer.units,
    )
    chosen = {id(encoding): pairs for encoding, pairs in given}
    whole = made.places

    def places(encoding: Encoding) -> Places:
        return replace(whole(encoding), pairs=chosen[id(encoding)])

    made.places = places  # type: ignore[method-assign]
    return made


def candidates(model: LoadedModel) -> tuple[int, ...]:
    """The residues, or all pieces."""
    names = plugins.domain(model.card.domain).gaps.candidates(model.tokenizer)
    space = model.rows.space
    if names is None:
        return tuple(space.ordinary.tolist())
    return tuple(int(model.tokenizer.encode(name).ids[1]) for name in names)


def by_tokens(encoding: Encoding) -> Encoding:
    return replace(
        encoding, groups=np.where(encoding.groups >= 0, np.arange(len(encoding)) - 1, -1).astype(np.int32)
    )


def published(
    model: LoadedModel, given: list[tuple[Encoding, Any]], steps: int, seed: int
) -> Iterator[tuple[int, Doubles]]:
    """Numbers of steps, and the estimates of all pairs after each."""
    network = deepcopy(model.rows.model).eval()
    network.set_attn_implementation("sdpa")
    mask, allowed = model.rows.space.mask, torch.tensor(candidates(model))
    torch.manual_seed(seed)
    jobs = [(encoding, *pair) for encoding, pairs in given for pair in (pairs + 1).tolist()]
    kept: list[tuple[Doubles, Doubles]] = []
    longest = max(len(encoding) for encoding, _ in given)
    for begin in range(0, len(jobs), BATCH):
        some = jobs[begin : begin + BATCH]
        ids = torch.full((len(some), longest), model.rows.space.pad)
        there = torch.zeros((len(some), longest), dtype=torch.long)
        for row, (encoding, i, j) in enumerate(some):
            ids[row, : len(encoding)] = torch.from_numpy(encoding.ids.astype(np.int64))
            ids[row, [i, j]] = mask
            there[row, : len(encoding)] = 1
        rows, places = torch.arange(len(some)), torch.tensor([[i, j] for _, i, j in some])
        shares = torch.zeros((2, steps, len(some), len(allowed)))
        drawn = torch.zeros((2, steps, len(some)), dtype=torch.long)
        with torch.no_grad():
            for step in range(steps):
                for side in (0, 1):
                    ids[rows, places[:, side]] = mask
                    logits = network(input_ids=ids, attention_mask=there).logits
                    p = torch.softmax(logits[rows, places[:, side]][:, allowed], -1)
                    x = torch.multinomial(p, 1)[:, 0]
                    shares[side, step], drawn[side, step] = p, x
                    ids[rows, places[:, side]] = allowed[x]
        kept.append((shares.numpy(), drawn.numpy()))
    for upto in sorted({steps // 16, steps // 8, steps // 4, steps // 2, steps}):
        burned, estimates = round(BURNED * upto), []
        for shares_, drawn_ in kept:
            own, x = shares_[:, burned:upto].astype(np.float64), drawn_[:, burned:upto]
            at = np.take_along_axis(own, x[..., None], axis=-1)[..., 0]
            mean = np.broadcast_to(own.mean(axis=1, keepdims=True), own.shape)
            behind = np.take_along_axis(mean, x[..., None], axis=-1)[..., 0]
            estimates.append((np.log(at) - np.log(behind)).mean(axis=(0, 1)))
        yield upto, np.concatenate(estimates)


def measure(field: str, arm: str, out: Path, seed: int, steps: int, pairs: int) -> list[Row]:
    model = model_of(field, out, seed)
    given = [(by_tokens(encoding), own) for encoding, own in asked(field, model, out, pairs)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rows, began = [], time.process_time()

    def told(name: str, values: Doubles, passes: float) -> None:
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        seconds = time.process_time() - began
        rows.append(
            {
                "field": field,
                "arm": name,
                "seed": seed,
                "values": values.tolist(),
                "passes": passes,
                "seconds": seconds,
                "memory": grown,
            }
        )

    count = sum(len(own) for _, own in given)
    if arm == "published":
        for upto, values in published(model, given, steps, seed):
            told(f"published, {upto} steps", values, 2 * upto)
            rows[-1]["seconds"] *= upto / steps
        return rows
    name, _, k = arm.partition(" ")
    settings: dict[str, Any] = {"estimator": name, "seed": seed}
    if name == "reference":
        settings = {"estimator": "topk", "k": len(candidates(model))}
    elif name == "topk":
        settings["k"] = int(k)
    elif name == "fast":
        settings["exact_pairs"] = 0.0
    for upto in (steps // 4, steps) if name == "gibbs" else (0,):
        more = {"steps": upto} if upto else {}
        made = ours(model, given, **settings, **more)
        if isinstance(made, Gibbs):
            made.plain = k == "plain"
        began = time.process_time()
        maps = made.maps([encoding for encoding, _ in given])
        values = np.concatenate([one.values[tuple(own.T)] for one, (_, own) in zip(maps, given, strict=True)])
        passes = sum(one.passes for one in maps) / count
        if name == "fast":  # all pairs of a sequence come together
            every = sum((len(encoding) - 2) * (len(encoding) - 3) // 2 for encoding, _ in given)
            passes *= count / every
        told(f"{arm}, {upto} steps" if upto else arm, values, passes)
    return rows


def child(options: argparse.Namespace, field: str, arm: str, seed: int) -> list[Row]:
    kept = options.out / f"{field}-{arm.replace(' ', '')}-{options.steps}-{options.pairs}-seed{seed}.json"
    if not kept.exists():
        print(f"{field}, {arm}, seed {seed} ...", file=sys.stderr)
        given = ["--measure", field, arm, str(seed), "--out", str(options.out), "--steps", str(options.steps)]
        done = subprocess.run(
            [sys.executable, __file__, *given, "--pairs", str(options.pairs)],
            stdout=subprocess.PIPE,
            check=True,
        )
        kept.write_bytes(done.stdout.splitlines()[-1] + b"\n")
    found: list[Row] = json.loads(kept.read_text())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/structure_speed"))
    parser.add_argument("--json", type=Path, help="write all rows here")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--pairs", type=int, default=120)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--measure", nargs=3, metavar=("FIELD", "ARM", "SEED"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.out = options.out.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.quick:
        options.steps, options.pairs = 500, 60
    if options.measure:
        field, arm, seed = options.measure
        print(json.dumps(measure(field, arm, options.out, int(seed), options.steps, options.pairs)))
        return
    told: list[Row] = []
    for field in FIELDS:
        for seed in range(options.seeds):
            rows = [row for arm in ARMS for row in child(options, field, arm, seed)]
            reference = np.array(rows[0]["values"])
            for row in rows:
                values = np.array(row.pop("values"))
                row["rmse"] = float(np.sqrt(np.mean((values - reference) ** 2)))
                row["correlation"] = float(np.corrcoef(values, reference)[0, 1])
            told += rows
            _show(field, seed, rows, float(reference.mean()))
    if options.json:
        options.json.write_text(json.dumps(told, indent=2) + "\n")


def _show(field: str, seed: int, rows: list[Row], mean: float) -> None:
    print(f"{field}, seed {seed}: mean of the reference {mean:.4f} nats")
    print(f"{'arm':<24} {'RMSE':>8} {'r':>7} {'passes':>9} {'seconds':>8} {'MB':>7}")
    for row in rows:
        print(
            f"{row['arm']:<24} {row['rmse']:8.4f} {row['correlation']:7.4f} {row['passes']:9.1f} "
            f"{row['seconds']:8.2f} {row['memory']:7.0f}"
        )
    for name in ("published", "gibbs plain", "gibbs"):
        last = [row for row in rows if row["arm"].startswith(f"{name},")][-1]
        good = [row for row in rows if row["rmse"] <= last["rmse"] and row["arm"].split(",")[0] != name]
        if good:
            best = min(good, key=lambda row: row["passes"])
            fewer, less = last["passes"] / best["passes"], last["seconds"] / best["seconds"]
            print(
                f"at the error of {last['arm']}: {best['arm']} takes {fewer:.1f} times fewer passes and "
                f"{less:.1f} times less time"
            )


if __name__ == "__main__":
    main()
