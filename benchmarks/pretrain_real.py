"""What a few CPU minutes of pretraining on real data are worth: bits per unit beside a unigram and a 5-gram.

For each data set and seed a model is trained from scratch for the same time through the same task as
`seqmlm train`; then 15 % of the units of every held-out record are hidden (all behind [MASK]) and priced by
the model, by the training split's add-one unigram, and by an interpolated 5-gram over the same units at the
same positions. Intervals are paired bootstraps over records.

    python benchmarks/pretrain_real.py --data ../shared/data           # 5 minutes a row and seed
    python benchmarks/pretrain_real.py --data ../shared/data --quick   # one minute a row, one seed
    python benchmarks/pretrain_real.py --data ../shared/data --only protein --seeds 1

Results are kept per data set and seed under --out, so an interrupted benchmark goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from ngram import NGram, without_order
from ngram_cache import cached_bits

from seqmlm import plugins
from seqmlm.data.store import EncodedDataset
from seqmlm.engine.conditionals import Conditionals
from seqmlm.engine.model import MaskedRows
from seqmlm.evaluation.bits import UnitBits, unit_bits
from seqmlm.inference import model_folder
from seqmlm.tasks.corpus import Corpus, CorpusReader, build_corpus, sequence_indices
from seqmlm.tasks.launch import TrainRequest, plan
from seqmlm.tasks.observers import SilentConsole
from seqmlm.tasks.pretrain import pretrain
from seqmlm.workspace import Workspace

EVALUATION_SEED = 20_26
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
        {"data": {"format": "diabetes130", "on_error": "skip"}, **TINY},
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
    """A finished training, its data, and the same held-out units of every training on them, priced."""

    result: dict[str, Any]
    corpus: Corpus
    rows: MaskedRows
    indices: Sequence[int]
    costs: UnitBits
    frequencies: np.ndarray[Any, Any]


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
    corpus = build_corpus(reader, lambda text: None)
    rows = model_folder.load(workspace.run_dir(name) / "model").rows
    indices = sequence_indices(corpus.validation, records)
    units = corpus.tokenizer.units
    frequencies = units.frequencies(corpus.token_counts)
    ask = Conditionals(rows, tokens_per_batch=8192)
    costs = unit_bits(ask, corpus.validation, indices, unigram=frequencies, seed=EVALUATION_SEED, units=units)
    return Trained(result.to_dict(), corpus, rows, indices, costs, frequencies)


def run(name: str, data: Path, out: Path, seed: int, minutes: float, records: int) -> dict[str, Any]:
    """Train one model and price the held-out units; cached as JSON."""
    label = f"{name}-{minutes:g}min-seed{seed}"
    kept = out / f"{label}.json"
    if kept.exists():
        return dict(json.loads(kept.read_text()))
    chosen = SETS[name]
    done = train(chosen, label, data, out / "workspace", seed=seed, minutes=minutes, records=records)
    ngram = ngram_bits(done.corpus, done.indices, done.costs, done.frequencies, cache=chosen.cache)
    row = {
        "set": name,
        "seed": seed,
        "minutes": minutes,
        **done.result,
        **table_row(done.corpus, done.costs, ngram),
    }
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(row, indent=2) + "\n")
    return row


def ngram_bits(
    corpus: Corpus,
    indices: Sequence[int],
    costs: UnitBits,
    frequencies: np.ndarray[Any, Any],
    *,
    cache: bool,
) -> np.ndarray[Any, Any]:
    """(U,) cost of the same units by a 5-gram whose smoothing was chosen on training sequences.

    It reads no order within sets. With `cache` it knows the rest of the file too, beyond the window that the
    model sees.
    """
    units, train = corpus.tokenizer.units, corpus.train
    share = min(1.0, NGRAM_TOKENS / float(np.asarray(train.lengths, dtype=np.float64).sum()))
    chosen = sequence_indices(train, int(share * len(train)))
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
    held += [units.spelled(corpus.validation[index]) for index in others]
    wanted += [[] for _ in others]
    return cached_bits(bits, held, wanted, [files[index] for index in (*indices, *others)])


def record_of(corpus: Corpus, index: int) -> int:
    """The record a validation window belongs to."""
    validation = corpus.validation
    assert isinstance(validation, EncodedDataset)
    return validation.origin(index).record


def table_row(corpus: Corpus, costs: UnitBits, ngram: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Means and paired bootstrap intervals over records: windows of one record are no evidence apart."""
    samples, place = np.unique(costs.sample, return_inverse=True)
    owner = np.array([record_of(corpus, int(sample)) for sample in samples])[place]
    by_record = [np.flatnonzero(owner == record) for record in np.unique(owner)]
    columns = {"model": costs.bits, "unigram": costs.unigram_bits, "ngram": ngram}
    sums = {key: np.array([bits[units].sum() for units in by_record]) for key, bits in columns.items()}
    counts = np.array([len(units) for units in by_record])
    random = np.random.default_rng(0)
    draws = random.integers(len(counts), size=(BOOTSTRAPS, len(counts)))
    row: dict[str, Any] = {"units": int(counts.sum()), "records": len(counts)}
    for key, values in sums.items():
        row[f"{key}_bits"] = float(values.sum() / counts.sum())
    for rival in ("unigram", "ngram"):
        gain = sums[rival] - sums["model"]
        drawn = gain[draws].sum(axis=1) / counts[draws].sum(axis=1)
        row[f"gain_over_{rival}"] = float(gain.sum() / counts.sum())
        row[f"gain_over_{rival}_95"] = [float(q) for q in np.quantile(drawn, [0.025, 0.975])]
    return row


def show(rows: list[dict[str, Any]]) -> None:
    head = f"{'set':<12}{'seed':>5}{'units':>9}{'model':>9}{'unigram':>9}{'5-gram':>9}  "
    print(f"{head}{'gain on unigram (95 %)':<26}gain on 5-gram (95 %); with a cache of the file for code")
    for row in rows:
        gains = []
        for rival in ("unigram", "ngram"):
            low, high = row[f"gain_over_{rival}_95"]
            gains.append(f"{row[f'gain_over_{rival}']:.3f} ({low:.3f} .. {high:.3f})")
        print(
            f"{row['set']:<12}{row['seed']:>5}{row['units']:>9,}{row['model_bits']:>9.3f}"
            f"{row['unigram_bits']:>9.3f}{row['ngram_bits']:>9.3f}  {gains[0]:<26}{gains[1]}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the real data sets")
    parser.add_argument("--json", type=Path, help="write all rows here")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/pretrain_real"))
    parser.add_argument("--only", choices=sorted(SETS), action="append", help="only these data sets")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=4.5, help="training time of one row")
    parser.add_argument("--records", type=int, default=2000, help="held-out records priced")
    parser.add_argument("--quick", action="store_true", help="one minute, one seed")
    options = parser.parse_args()
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
