"""Measure a few CPU minutes of pretraining on real data, in bits per unit, compared with counting.

For each data set and seed, a model is trained from scratch for the same time, with the task of
`seqmlm train`. Then 15 % of the units of every held-out record are hidden, all behind [MASK]. These
predictors give the bits of the hidden units:

    model     the trained model, which sees the other 85 %
    unigram   add-one, of the training split
    5-gram    interpolated; reads the units before, all of them
    counts    n-grams before, after and on both sides, and counts of the rest of the record
    mixture   of model and counts

All predictors are measured at the same positions. Counts see all other units. The smoothing and the weights
of counts and mixture are fitted on one half of the records and applied to the other half, both ways.
Intervals are paired bootstraps over records. Minutes are processor time on one thread, independent of the
load of the machine.

    python benchmarks/pretrain_real.py --data ../shared/data           # 4 minutes a row and seed
    python benchmarks/pretrain_real.py --data ../shared/data --quick   # one minute a row, one seed
    python benchmarks/pretrain_real.py --data ../shared/data --only protein --seeds 1

Results are kept for each data set and seed under --out. An interrupted benchmark continues at the point of
interruption.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from diabetes130 import READING
from ngram import NGram, without_order
from ngram_cache import cached_bits

from seqmlm import plugins
from seqmlm.data.splits import evenly
from seqmlm.engine import loop as training
from seqmlm.engine.conditionals import Conditionals
from seqmlm.engine.expert import COUNTS_ALONE, CountExpert, fit_weights, multiplies_experts
from seqmlm.engine.model import MaskedRows
from seqmlm.engine.reductions import Rows
from seqmlm.engine.units import unit_symbols
from seqmlm.evaluation.bits import UnitBits, unit_bits
from seqmlm.inference import model_folder
from seqmlm.training.corpus import Corpus, CorpusReader
from seqmlm.training.launch import TrainRequest, plan
from seqmlm.training.observers import SilentConsole
from seqmlm.training.pretrain import pretrain
from seqmlm.workspace import Workspace

Doubles = np.ndarray[Any, Any]

EVALUATION_SEED = 20_26
ENOUGH_UNITS, DRAWS = 2000, 8
BOOTSTRAPS = 1000
NGRAM_TOKENS = 4_000_000  # tokens the 5-gram is counted on; a few times what the model sees in a few minutes


@dataclass(frozen=True)
class DataSet:
    """One row of the table."""

    domain: str
    files: Callable[[Path], list[Path]]
    flags: dict[str, Any] = field(default_factory=dict)
    cache: bool = False  # the 5-gram is given a cache of the file


def _standard_library(_: Path) -> list[Path]:
    return [Path(sysconfig.get_path("stdlib"))]


def _below(*patterns: str) -> Callable[[Path], list[Path]]:
    return lambda data: [path for pattern in patterns for path in sorted(data.glob(pattern))]


TINY: dict[str, Any] = {"model": {"size": "tiny"}}
SETS = {
    "protein": DataSet(
        "protein",
        _below("protein/pretrain/*.faa.gz"),
        {"data": {"split": "identity", "deduplicate": True, "on_error": "skip"}, **TINY},
    ),
    "text": DataSet(
        "text",
        _below("text/books/*.txt.gz"),
        {"data": {"deduplicate": True, "options": {"paragraphs": True}}, **TINY},
    ),
    "dna": DataSet("dna", _below("dna/genomes/*.fna.gz"), {"model": {"size": "tiny", "max_length": 128}}),
    "code": DataSet("code", _standard_library, {"data": {"on_error": "skip"}, **TINY}, cache=True),
    "diabetes130": DataSet(
        "ehr",
        _below("ehr/diabetes130/diabetic_data.csv.gz"),
        {"data": {**READING, "on_error": "skip"}, **TINY},
    ),
    "synthea": DataSet("ehr", _below("ehr/synthea_ibm"), {"data": {"on_error": "skip"}, **TINY}),
    "hdfs": DataSet("logs", _below("logs/hdfs_2pct_raw/events.tsv.gz"), TINY),
    "loghub": DataSet(
        "logs", _below("logs/loghub_2k/*_2k.log.gz"), {"data": {"options": {"window": 16}}, **TINY}
    ),
    "raw_logs": DataSet(
        "logs", _below("logs/raw_streams/*.log.gz"), {"data": {"options": {"window": 16}}, **TINY}
    ),
}


@dataclass(frozen=True)
class Trained:
    """A finished training, its data, and the bits of held-out units (the same units for every training)."""

    result: dict[str, Any]
    corpus: Corpus
    rows: MaskedRows
    indices: Sequence[int]
    costs: UnitBits
    frequencies: Doubles


def by_processor_time(threads: int = 1) -> None:
    """Measure the time of trainings in processor seconds of this process, on a number of threads."""
    torch.set_num_threads(threads)
    training.time = SimpleNamespace(perf_counter=time.process_time)  # type: ignore[attr-defined]


def train(
    chosen: DataSet, name: str, data: Path, home: Path, *, seed: int, minutes: float, records: int
) -> Trained:
    """Train the model called `name` in the workspace `home`, or read it there; price held-out units."""
    files = [str(path) for path in chosen.files(data)]
    if not files:
        raise SystemExit(f"no files for {name} below {data}")
    flags = {
        **chosen.flags,
        "data": {**chosen.flags.get("data", {}), "paths": files},
        "train": {"max_time": f"{minutes * 60:g}s", **chosen.flags.get("train", {})},
    }
    os.environ["SEQMLM_HOME"] = str(home)
    request = TrainRequest(
        domain=chosen.domain, name=name, flags=flags, settings=(f"seed={seed}",), resume="auto"
    )
    result = pretrain(request, SilentConsole())
    workspace = Workspace.locate()
    config = plan(TrainRequest(resume=name), workspace).config
    reader = CorpusReader(config, plugins.domain(chosen.domain), workspace)
    corpus = reader.corpus(lambda text: None)
    rows = model_folder.load(workspace.run_dir(name) / "model").rows
    indices = evenly(len(corpus.validation), records)
    units = corpus.tokenizer.units
    frequencies = units.frequencies(corpus.token_counts)
    ask = Conditionals(rows, tokens_per_batch=8192)
    costs = priced(ask, corpus, indices, frequencies)
    return Trained(result.to_dict(), corpus, rows, indices, costs, frequencies)


def priced(ask: Conditionals, corpus: Corpus, indices: Sequence[int], frequencies: Doubles) -> UnitBits:
    """The bits of held-out units by the model; if there are few records, with masks of several draws."""
    rule = corpus.tokenizer.units
    want = (Rows(),) if multiplies_experts(rule, frequencies) else ()
    found: list[UnitBits] = []
    while len(found) < DRAWS and sum(len(one.sample) for one in found) < ENOUGH_UNITS:
        found.append(
            unit_bits(
                ask,
                corpus.validation,
                indices,
                unigram=frequencies,
                seed=EVALUATION_SEED + len(found),
                units=rule,
                want=want,
            )
        )
    return joined(found)


def joined(parts: Sequence[UnitBits]) -> UnitBits:
    """The units of several draws, by sequence."""
    order = np.argsort(np.concatenate([one.sample for one in parts]), kind="stable")

    def gathered(values: Iterable[Any]) -> Any:
        return np.concatenate(list(values))[order]

    names = [one.name for one in fields(UnitBits) if one.name != "values"]
    values = {name: gathered(one.values[name] for one in parts) for name in parts[0].values}
    return UnitBits(**{name: gathered(getattr(one, name) for one in parts) for name in names}, values=values)


def run(name: str, data: Path, out: Path, seed: int, minutes: float, records: int) -> dict[str, Any]:
    """Train one model and price the held-out units; cached as JSON."""
    label = f"{name}-{minutes:g}min-seed{seed}"
    kept = out / f"{label}.json"
    if kept.exists():
        return dict(json.loads(kept.read_text()))
    chosen = SETS[name]
    done = train(chosen, label, data, out / "workspace", seed=seed, minutes=minutes, records=records)
    ngram = ngram_bits(done.corpus, done.indices, done.costs, done.frequencies, cache=chosen.cache)
    counts, mixture = expert_bits(done)
    row = {
        "set": name,
        "seed": seed,
        "minutes": minutes,
        **done.result,
        **table_row(done.corpus, done.costs, ngram, counts, mixture),
    }
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(row, indent=2) + "\n")
    return row


def ngram_bits(
    corpus: Corpus,
    indices: Sequence[int],
    costs: UnitBits,
    frequencies: Doubles,
    *,
    cache: bool,
) -> Doubles:
    """(U,) bits of the same units by a 5-gram with smoothing selected on training sequences.

    The 5-gram does not use the order within sets. With `cache`, it also knows the rest of the file, beyond
    the window that the model sees.
    """
    units, train = corpus.tokenizer.units, corpus.train
    chosen = counted(corpus)
    model = NGram(order=5, unigram=frequencies)
    random = np.random.default_rng(0)
    model.fit(without_order(units, train[index], random)[0] for index in chosen)
    held, wanted = [], []
    for index in indices:
        spelled, place = without_order(units, corpus.validation[index], random)
        held.append(spelled)
        wanted.append([place[unit] for unit in costs.unit[costs.sample == index].tolist()])
    bits = model.bits_at(held, wanted)
    if not cache:
        return bits
    files = {index: record_of(corpus, index) for index in range(len(corpus.validation))}
    read, asked = {files[index] for index in indices}, set(indices)
    others = [index for index, file in files.items() if file in read and index not in asked]
    held += [unit_symbols(units, corpus.validation[index]) for index in others]
    wanted += [[] for _ in others]
    return cached_bits(bits, held, wanted, [files[index] for index in (*indices, *others)])


def counted(corpus: Corpus) -> Sequence[int]:
    """The training sequences that n-grams are counted on."""
    tokens = float(np.asarray(corpus.train.lengths, dtype=np.float64).sum())
    return evenly(len(corpus.train), int(min(1.0, NGRAM_TOKENS / tokens) * len(corpus.train)))


def record_of(corpus: Corpus, index: int) -> int:
    """The record a validation window belongs to."""
    return int(corpus.validation.records([index])[0])


def expert_bits(done: Trained) -> tuple[Doubles, Doubles]:
    """(U,) bits of the same units by counts (`seqmlm.engine.expert`), and by their mixture with the model.

    Counts read all windows of the records. Each half of the records uses the smoothing and the weights that
    are best for the other half.
    """
    train, validation, costs = done.corpus.train, done.corpus.validation, done.costs
    sequences = (train[index] for index in counted(done.corpus))
    fitted = CountExpert.fit(sequences, done.corpus.tokenizer.units, done.frequencies)
    owners = validation.records(range(len(validation)))
    chosen = np.flatnonzero(np.isin(owners, owners[list(done.indices)]))
    windows, records = [validation[index] for index in chosen], owners[chosen]
    side = np.unique(records, return_inverse=True)[1] % 2
    first = fitted.hash_units(windows, records.tolist())
    begins = np.searchsorted(first.sequence, np.arange(len(chosen)))
    window = np.searchsorted(chosen, costs.sample)
    place, half = begins[window] + costs.unit, side[window]
    counts, mixture = np.empty_like(costs.bits), np.empty_like(costs.bits)
    for learns in (0, 1):
        some = np.flatnonzero(side == learns)
        known = fitted.hash_units([windows[i] for i in some], records[some].tolist())
        expert = fitted.with_best_smoothing(known)
        priced = expert.count_log_probs(first).take(place)
        told = expert.model_log_probs(-costs.bits, costs.values)
        own, other = half == learns, half != learns
        mine, rest = priced.take(own), priced.take(other)
        weights = {COUNTS_ALONE: fit_weights(None, mine), "exact": fit_weights(told[own], mine)}
        expert = replace(expert, weights=weights)
        counts[other] = -expert.count_mixture(rest)
        mixture[other] = -expert.mixture(told[other], rest, "exact")[0]
    return counts, mixture


def table_row(
    corpus: Corpus, costs: UnitBits, ngram: Doubles, counts: Doubles, mixture: Doubles
) -> dict[str, Any]:
    """Means and paired bootstrap intervals over records; windows of one record are not independent."""
    samples, place = np.unique(costs.sample, return_inverse=True)
    owner = np.array([record_of(corpus, int(sample)) for sample in samples])[place]
    by_record = [np.flatnonzero(owner == record) for record in np.unique(owner)]
    columns = {
        "model": costs.bits,
        "unigram": costs.unigram_bits,
        "ngram": ngram,
        "counts": counts,
        "mixture": mixture,
    }
    sums = {key: np.array([bits[units].sum() for units in by_record]) for key, bits in columns.items()}
    sizes = np.array([len(units) for units in by_record])
    random = np.random.default_rng(0)
    draws = random.integers(len(sizes), size=(BOOTSTRAPS, len(sizes)))
    row: dict[str, Any] = {"units": int(sizes.sum()), "records": len(sizes)}
    for key, values in sums.items():
        row[f"{key}_bits"] = float(values.sum() / sizes.sum())
    row["best_counts"] = min(("ngram", "counts"), key=lambda key: row[f"{key}_bits"])
    for name, rival in (("model", "unigram"), ("model", "ngram"), ("mixture", row["best_counts"])):
        gain = sums[rival] - sums[name]
        drawn = gain[draws].sum(axis=1) / sizes[draws].sum(axis=1)
        key = f"{name}_gain_over_{'best_counts' if name == 'mixture' else rival}"
        row[key] = float(gain.sum() / sizes.sum())
        row[f"{key}_95"] = [float(q) for q in np.quantile(drawn, [0.025, 0.975])]
    return row


def show(rows: list[dict[str, Any]]) -> None:
    columns = ("unigram", "ngram", "counts", "model", "mixture")
    head = f"{'set':<12}{'seed':>5}{'units':>9}" + "".join(f"{name:>9}" for name in columns)
    print(f"{head}  {'model - 5-gram (95 %)':<26}mixture - best counts (95 %); code's 5-gram has a cache")
    for row in rows:
        gains = []
        for key in ("model_gain_over_ngram", "mixture_gain_over_best_counts"):
            low, high = row[f"{key}_95"]
            gains.append(f"{-row[key]:.3f} ({-high:.3f} .. {-low:.3f})")
        bits = "".join(f"{row[f'{name}_bits']:>9.3f}" for name in columns)
        print(f"{row['set']:<12}{row['seed']:>5}{row['units']:>9,}{bits}  {gains[0]:<26}{gains[1]}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the real data sets")
    parser.add_argument("--json", type=Path, help="write all rows here")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/pretrain_real"))
    parser.add_argument("--only", choices=sorted(SETS), action="append", help="only these data sets")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=4.0, help="processor time of one training")
    parser.add_argument("--records", type=int, default=2000, help="held-out records priced")
    parser.add_argument("--quick", action="store_true", help="one minute, one seed")
    options = parser.parse_args()
    by_processor_time()
    if options.quick:
        options.minutes, options.seeds, options.records = 1.0, 1, 500
    rows = []
    for name in options.only or sorted(SETS):
        for seed in range(options.seeds):
            print(f"{name}, seed {seed} ...", file=sys.stderr)
            rows.append(
                run(name, options.data, options.out.resolve(), seed, options.minutes, options.records)
            )
    show(rows)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
