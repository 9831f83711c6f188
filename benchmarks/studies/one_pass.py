"""Compare one-pass scores of units with exact pseudo-log-likelihoods in six domains: ranking and time.

For each data set and seed, a tiny model is trained with the task of `seqmlm train` and the defaults of its
domain. Held-out windows are scored unit by unit:

    exact        one unit hidden at a time: the reference for the others
    one-pass     no unit hidden, the outputs unchanged
    partition:4  every unit hidden once in four passes

They are scored again with 3 % of their tokens replaced by others drawn by frequency. The columns are:

- the rank correlation with exact surprisals over all units and within the exact top 1 %;
- the AUROC of the surprisal for units with a replaced token, and its difference to exact (95 % paired
  bootstrap over windows);
- the factor by which the processor time is smaller.

    PYTHONPATH=benchmarks python benchmarks/studies/one_pass.py --data ../shared/data
    PYTHONPATH=benchmarks python benchmarks/studies/one_pass.py --data ../shared/data --quick

Results are kept for each data set and seed under --out. An interrupted benchmark continues at the point of
interruption.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from anomaly_models import steps
from pretrain_real import SETS
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score

from seqmlm import plugins
from seqmlm.engine.conditionals import Conditionals
from seqmlm.engine.scoring import Scorer
from seqmlm.engine.types import Encoding, TokenSpace
from seqmlm.engine.units import Mode
from seqmlm.inference import model_folder
from seqmlm.training.corpus import CorpusReader
from seqmlm.training.launch import TrainRequest, plan
from seqmlm.training.observers import SilentConsole
from seqmlm.training.pretrain import pretrain
from seqmlm.workspace import Workspace

NAMES = ("protein", "dna", "text", "code", "synthea", "hdfs")
ARMS = ("exact", "one-pass", "partition:4")
REPLACED = 0.03
TOP = 0.01
BOOTSTRAPS = 500
MASKED_TOKENS = {True: 1_000_000, False: 4_000_000}  # of the exact scoring, by --quick

Array = np.ndarray[Any, Any]


def trained(name: str, options: argparse.Namespace, seed: int) -> tuple[Any, Any]:
    """A model of this data set, trained now or before, and its corpus."""
    chosen = SETS[name]
    files = [str(path) for path in chosen.files(options.data)]
    if not files:
        raise SystemExit(f"no files for {name} below {options.data}")
    flags = {
        **chosen.flags,
        "data": {**chosen.flags.get("data", {}), "paths": files},
        "train": steps(options.minutes),
    }
    os.environ["SEQMLM_HOME"] = str(options.out / "workspace")
    run = f"{name}-{options.minutes:g}min-seed{seed}"
    pretrain(
        TrainRequest(domain=chosen.domain, name=run, flags=flags, settings=(f"seed={seed}",), resume="auto"),
        SilentConsole(),
    )
    workspace = Workspace.locate()
    config = plan(TrainRequest(resume=run), workspace).config
    reader = CorpusReader(config, plugins.domain(chosen.domain), workspace)
    return model_folder.load(workspace.run_dir(run) / "model"), reader.corpus(lambda text: None)


def windows(sequences: Any, masked: int, seed: int) -> list[Encoding]:
    """Held-out windows whose exact scoring takes about `masked` tokens."""
    asked, total = [], 0
    for i in np.random.default_rng(seed).permutation(len(sequences)).tolist():
        asked.append(sequences[i])
        total += len(asked[-1]) ** 2
        if total >= masked:
            break
    return asked


def planted(asked: Sequence[Encoding], space: TokenSpace, seed: int) -> tuple[list[Encoding], list[Array]]:
    """The windows with some tokens replaced by others, drawn by frequency; (L,) True there."""
    rng = np.random.default_rng(seed)
    pool = np.concatenate([one.ids[(one.groups >= 0) & ~space.is_special[one.ids]] for one in asked])
    made, flags = [], []
    for one in asked:
        ids = one.ids.copy()
        here = (one.groups >= 0) & ~space.is_special[ids] & (rng.random(len(ids)) < REPLACED)
        ids[here] = rng.choice(pool, int(here.sum()))
        made.append(replace(one, ids=ids))
        flags.append(ids != one.ids)
    return made, flags


def priced(scorer: Scorer, asked: Sequence[Encoding]) -> tuple[list[Array], list[Array], float]:
    """(U,) unit numbers and bits of each window, and the processor time it took."""
    began = time.process_time()
    scores = [score.units for score in scorer.windows((one, None) for one in asked)]
    seconds = time.process_time() - began
    return [numbers for numbers, _ in scores], [-sums / np.log(2) for _, sums in scores], seconds


def measure(name: str, options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """All arms on one model; cached as JSON."""
    kept = options.out / f"{name}-{options.minutes:g}min-{options.masked}-seed{seed}.json"
    if kept.exists():
        return dict(json.loads(kept.read_text()))
    model, corpus = trained(name, options, seed)
    asked = windows(corpus.validation, options.masked, seed)
    changed, flags = planted(asked, model.tokenizer.space, seed)
    ask, units, found = Conditionals(model.rows, tokens_per_batch=4096), model.tokenizer.units, {}
    for arm in ARMS:
        _, clean, seconds = priced(Scorer(ask, units, mode=Mode.parse(arm)), asked)
        numbers, dirty, _ = priced(Scorer(ask, units, mode=Mode.parse(arm)), changed)
        found[arm] = (np.concatenate(clean), np.concatenate(dirty), seconds)
    owners = np.repeat(np.arange(len(changed)), [len(one) for one in numbers])
    labels = np.concatenate(
        [np.isin(n, one.groups[flag]) for n, one, flag in zip(numbers, changed, flags, strict=True)]
    )
    exact, exact_dirty, exact_seconds = found["exact"]
    top = exact >= np.quantile(exact, 1 - TOP)
    row: dict[str, Any] = {"set": name, "seed": seed, "windows": len(asked), "units": len(exact)}
    row |= {"mean_length": float(np.mean([len(one) for one in asked])), "arms": {}}
    for arm, (clean, dirty, seconds) in found.items():
        row["arms"][arm] = {
            "bits": float(clean.mean()),
            "spearman": float(spearmanr(clean, exact).statistic),
            "spearman_top": float(spearmanr(clean[top], exact[top]).statistic),
            **auroc(labels, dirty, exact_dirty, owners),
            "speed": exact_seconds / seconds,
        }
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(row, indent=2) + "\n")
    return row


def auroc(labels: Array, bits: Array, exact: Array, owners: Array) -> dict[str, Any]:
    """AUROC, and its change against exact with a paired bootstrap interval over windows."""
    rng = np.random.default_rng(0)
    count = int(owners.max()) + 1
    drawn = []
    for _ in range(BOOTSTRAPS):
        weights = np.bincount(rng.integers(count, size=count), minlength=count)[owners].astype(np.float64)
        if labels[weights > 0].any():
            pair = [roc_auc_score(labels, values, sample_weight=weights) for values in (bits, exact)]
            drawn.append(pair[0] - pair[1])
    change = roc_auc_score(labels, bits) - roc_auc_score(labels, exact)
    interval = [float(q) for q in np.quantile(drawn, [0.025, 0.975])]
    return {
        "auroc": float(roc_auc_score(labels, bits)),
        "auroc_change": float(change),
        "auroc_change_95": interval,
    }


def show(rows: list[dict[str, Any]]) -> None:
    print(
        f"{'set':<9}{'seed':>4} {'arm':<12}{'bits':>8}{'rank':>7}{'top 1%':>8}"
        f"{'AUROC':>7}  {'change (95 %)':<26}{'speed':>7}"
    )
    for row in rows:
        for arm, own in row["arms"].items():
            low, high = own["auroc_change_95"]
            print(
                f"{row['set']:<9}{row['seed']:>4} {arm:<12}{own['bits']:>8.3f}"
                f"{own['spearman']:>7.3f}{own['spearman_top']:>8.3f}{own['auroc']:>7.3f}  "
                f"{own['auroc_change']:+.3f} ({low:+.3f} .. {high:+.3f})  {own['speed']:>7.1f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the real data sets")
    parser.add_argument("--json", type=Path, help="write all rows here")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/one_pass"))
    parser.add_argument("--only", choices=NAMES, action="append", help="only these data sets")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=3.0, help="training time of one model")
    parser.add_argument("--quick", action="store_true", help="one minute, one seed, fewer windows")
    options = parser.parse_args()
    options.out = options.out.resolve()
    options.masked = MASKED_TOKENS[options.quick]
    if options.quick:
        options.minutes, options.seeds = 1.0, 1
    rows = []
    for name in options.only or NAMES:
        for seed in range(options.seeds):
            print(f"{name}, seed {seed} ...", file=sys.stderr)
            rows.append(measure(name, options, seed))
    show(rows)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
