"""How near one pass comes to exact pseudo-log-likelihoods, and what it saves: six domains, each mode.

For each data set, masker and seed a tiny model is trained by the same task as `seqmlm train`: with the masker
that the domain defaults to, and with `uniform.v1` where that one breaks what the derived correction assumes.
Held-out windows are priced unit by unit in every way there is:

    exact        one unit hidden at a time: what the others are measured against
    raw          nothing hidden, the outputs as they are
    corrected    minus what follows from the masking ("-" where nothing does)
    fitted       minus one number (or one a class) fitted to 256 positions asked exactly
    head         a small network trained on 4096 such positions
    whole-unit, partition:4

and again with 3 % of their tokens replaced by others drawn by frequency. Columns: root mean squared
difference to exact surprisals in bits a unit, rank correlation over all units and within the exact top 1 %,
AUROC of the surprisal for units with a replaced token, and its change against exact (95 % paired bootstrap
over windows), and how many times less processor time it takes.

    python benchmarks/one_pass.py --data ../shared/data           # 3 seeds; about an hour on two cores
    python benchmarks/one_pass.py --data ../shared/data --quick   # one seed, a minute (300 steps) each

Results are kept per data set, masker and seed under --out, so an interrupted benchmark goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from anomaly_models import steps
from pretrain_real import SETS
from sklearn.metrics import roc_auc_score

from seqmlm import plugins
from seqmlm.engine.conditionals import Conditionals
from seqmlm.engine.correction import Correction
from seqmlm.engine.one_pass import HeadConfig, fit, restored, spearman, train
from seqmlm.engine.scoring import Scorer
from seqmlm.engine.types import Encoding, TokenSpace
from seqmlm.engine.units import EXACT, ONE_PASS, ONE_PASS_HEAD, Mode
from seqmlm.errors import UsageError
from seqmlm.inference import model_folder
from seqmlm.inference.one_pass import bias_for, derived
from seqmlm.tasks.corpus import CorpusReader, build_corpus
from seqmlm.tasks.launch import TrainRequest, plan
from seqmlm.tasks.observers import SilentConsole
from seqmlm.tasks.pretrain import pretrain
from seqmlm.workspace import Workspace

NAMES = ("protein", "dna", "text", "code", "synthea", "hdfs")
UNIFORM = "uniform.v1"
REPLACED = 0.03
TOP = 0.01
BOOTSTRAPS = 500
FITTING = 400  # windows that fits and heads learn from
MASKED_TOKENS = {True: 1_000_000, False: 4_000_000}  # of the exact scoring, by --quick

Arms = dict[str, Callable[[], Scorer]]
Array = np.ndarray[Any, Any]


def trained(name: str, masker: str, options: argparse.Namespace, seed: int) -> tuple[Any, Any]:
    """A model of this data set, trained now or before, and its corpus."""
    chosen = SETS[name]
    files = [str(path) for path in chosen.files(options.data)]
    if not files:
        raise SystemExit(f"no files for {name} below {options.data}")
    flags = {
        **chosen.flags,
        "data": {**chosen.flags.get("data", {}), "paths": files},
        "train": steps(options.minutes),
        "masking": {"masker": masker},
    }
    os.environ["SEQMLM_HOME"] = str(options.out / "workspace")
    run = f"{name}-{masker}-{options.minutes:g}min-seed{seed}"
    pretrain(
        TrainRequest(domain=chosen.domain, name=run, flags=flags, settings=(f"seed={seed}",), resume="auto"),
        SilentConsole(),
    )
    workspace = Workspace.locate()
    config = plan(TrainRequest(resume=run), workspace).config
    reader = CorpusReader(config, plugins.domain(chosen.domain), workspace)
    return model_folder.load(workspace.run_dir(run) / "model"), build_corpus(reader, lambda text: None)


def windows(sequences: Any, masked: int, seed: int) -> tuple[list[Encoding], list[Encoding]]:
    """Held-out windows to learn from, and others whose exact scoring takes about `masked` tokens."""
    order = np.random.default_rng(seed).permutation(len(sequences)).tolist()
    learnt = [sequences[i] for i in order[: min(FITTING, len(order) // 2)]]
    asked, total = [], 0
    for i in order[len(learnt) :]:
        asked.append(sequences[i])
        total += len(asked[-1]) ** 2
        if total >= masked:
            break
    return learnt, asked


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


def arms(model: Any, learnt: list[Encoding], seed: int) -> tuple[Arms, dict[str, Any]]:
    """A scorer for each way, and what fit and head said of themselves."""
    ask, units, bias = Conditionals(model.rows, tokens_per_batch=4096), model.tokenizer.units, bias_for(model)

    def scorer(mode: Mode, correction: Correction | None, asked: Conditionals = ask) -> Callable[[], Scorer]:
        return lambda: Scorer(asked, units, mode=mode, correction=correction)

    fitted = fit(ask, learnt, bias=bias, seed=seed)
    head = train(ask, learnt, HeadConfig(seed=seed), bias=bias)
    with_head = Conditionals(restored(model.rows, head.change.state_dict()), tokens_per_batch=4096)
    plain = Correction(bias=bias)
    made: Arms = {"exact": scorer(EXACT, plain), "raw": scorer(ONE_PASS, plain)}
    with suppress(UsageError):  # where nothing follows from the masking
        made["corrected"] = scorer(ONE_PASS, derived(model))
    made |= {
        "fitted": scorer(ONE_PASS, fitted.correction),
        "head": scorer(ONE_PASS_HEAD, None, with_head),
        "whole-unit": scorer(Mode("whole-unit"), plain),
        "partition:4": scorer(Mode("partition", 4), plain),
    }
    return made, {"fit_rmse": fitted.rmse, "head_rmse": head.facts["rmse"]}


def priced(scorer: Scorer, asked: Sequence[Encoding]) -> tuple[list[Array], list[Array], float]:
    """(U,) unit numbers and bits of each window, and the processor time it took."""
    began = time.process_time()
    scores = [score.units for score in scorer.windows((one, None) for one in asked)]
    seconds = time.process_time() - began
    return [numbers for numbers, _ in scores], [-sums / np.log(2) for _, sums in scores], seconds


def measure(name: str, masker: str, options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """All arms on one model; cached as JSON."""
    kept = options.out / f"{name}-{masker}-{options.minutes:g}min-{options.masked}-seed{seed}.json"
    if kept.exists():
        return dict(json.loads(kept.read_text()))
    model, corpus = trained(name, masker, options, seed)
    learnt, asked = windows(corpus.validation, options.masked, seed)
    changed, flags = planted(asked, model.tokenizer.space, seed)
    scorers, facts = arms(model, learnt, seed)
    found = {}
    for arm, make in scorers.items():
        _, clean, seconds = priced(make(), asked)
        numbers, dirty, _ = priced(make(), changed)
        found[arm] = (np.concatenate(clean), dirty, seconds)
    owners = np.repeat(np.arange(len(changed)), [len(one) for one in numbers])
    labels = np.concatenate(
        [np.isin(n, one.groups[flag]) for n, one, flag in zip(numbers, changed, flags, strict=True)]
    )
    exact, exact_dirty, exact_seconds = found["exact"]
    top = exact >= np.quantile(exact, 1 - TOP)
    row: dict[str, Any] = {"set": name, "masker": masker, "seed": seed, "windows": len(asked), **facts}
    row |= {"units": len(exact), "mean_length": float(np.mean([len(one) for one in asked])), "arms": {}}
    for arm, (clean, dirty, seconds) in found.items():
        row["arms"][arm] = {
            "bits": float(clean.mean()),
            "rmse": float(np.sqrt(np.mean((clean - exact) ** 2))),
            "spearman": spearman(clean, exact),
            "spearman_top": spearman(clean[top], exact[top]),
            **auroc(labels, np.concatenate(dirty), np.concatenate(exact_dirty), owners),
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
        f"{'set':<9}{'masker':<16}{'seed':>4} {'arm':<12}{'bits':>8}{'rmse':>7}{'rank':>7}{'top 1%':>8}"
        f"{'AUROC':>7}  {'change (95 %)':<26}{'speed':>7}"
    )
    for row in rows:
        for arm, own in row["arms"].items():
            low, high = own["auroc_change_95"]
            print(
                f"{row['set']:<9}{row['masker']:<16}{row['seed']:>4} {arm:<12}{own['bits']:>8.3f}"
                f"{own['rmse']:>7.3f}{own['spearman']:>7.3f}{own['spearman_top']:>8.3f}{own['auroc']:>7.3f}  "
                f"{own['auroc_change']:+.3f} ({low:+.3f} .. {high:+.3f})  {own['speed']:>7.1f}"
            )


def maskers(name: str) -> list[str]:
    """The domain's default, and `uniform.v1` where that is another."""
    default = plugins.domain(SETS[name].domain).defaults.masking.masker
    return [default] if default == UNIFORM else [default, UNIFORM]


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
        for masker in maskers(name):
            for seed in range(options.seeds):
                print(f"{name}, {masker}, seed {seed} ...", file=sys.stderr)
                rows.append(measure(name, masker, options, seed))
    show(rows)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
