"""BLiMP with models trained on available text: pseudo-log-likelihoods compared with counts and length.

For each seed, a `tiny` model is trained from scratch on the English sentences of the catalogue. A 5-gram
over the same units, and the counts of the mixture, use the same training sentences. Each of them selects the
grammatical sentence in each pair of BLiMP. Ties count as wrong. Gains are paired bootstraps over pairs.

    python benchmarks/blimp.py --data ../shared/data            # 3 seeds of 15 minutes, all pairs
    python benchmarks/blimp.py --data ../shared/data --quick    # 1 seed, 4 minutes, 50 pairs per paradigm

Results are kept for each seed and arm under --out. An interrupted benchmark continues at the point of
interruption. The sentences of BLiMP need words that hardly occur in a few megabytes of old novels. Compare
the arms only with each other. Published models were trained on a thousand times the text: 5-gram 61 %, GPT-2
83 %, BERT base 84 %.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from english_sentences import write_sentences
from ngram import NGram
from numpy.typing import ArrayLike

from seqmlm import plugins
from seqmlm.data.pairs import Pair, read_pairs
from seqmlm.engine.units import Mode, unit_symbols
from seqmlm.errors import UsageError
from seqmlm.evaluation.intervals import Estimate, percentile_interval
from seqmlm.evaluation.pairs import Metric, accuracy, comparison_signs, metric_scores
from seqmlm.inference import model_folder
from seqmlm.inference.expert import stored_expert
from seqmlm.inference.pairs import PairScorer
from seqmlm.inference.record_batches import BATCH_RECORDS
from seqmlm.inference.session import ExpertUse, Session
from seqmlm.training.corpus import Corpus, CorpusReader
from seqmlm.training.launch import TrainRequest, plan
from seqmlm.training.observers import SilentConsole
from seqmlm.training.pretrain import pretrain
from seqmlm.workspace import Workspace

ORDER = 5
Scores = dict[str, list[float]]
ARMS = (
    "exact",
    "exact mean",
    "one-pass",
    "mixed",
    "counts",
    "5-gram",
    "length",
)


def chosen_pairs(data: Path, per_paradigm: int) -> list[Pair]:
    """The first pairs of each paradigm, grouped by phenomenon."""
    found, seen = [], Counter[str]()
    source = str(data / "text/blimp/blimp.jsonl.gz")
    both = zip(read_pairs([source], group="linguistics_term"), read_pairs([source], group="UID"), strict=True)
    for pair, same in both:
        seen[same.group] += 1
        if seen[same.group] <= per_paradigm:
            # The two paradigms marked s-selection are argument structure in the paper's 12 phenomena.
            group = "argument_structure" if pair.group == "s-selection" else pair.group
            found.append(replace(pair, group=group))
    return found


def trained(out: Path, text: Path, seed: int, minutes: float) -> tuple[model_folder.LoadedModel, Corpus]:
    """The model of one seed, and what it was trained on."""
    os.environ["SEQMLM_HOME"] = str(out / "workspace")
    name = f"blimp-{minutes:g}min-seed{seed}"
    flags = {
        "data": {"paths": [str(text)]},
        "train": {"max_time": f"{minutes * 60:g}s"},
        "model": {"size": "tiny", "max_length": 128},
    }
    request = TrainRequest(domain="text", name=name, flags=flags, settings=(f"seed={seed}",), resume="auto")
    pretrain(request, SilentConsole())
    workspace = Workspace.locate()
    config = plan(TrainRequest(resume=name), workspace).config
    corpus = CorpusReader(config, plugins.domain("text"), workspace).corpus(lambda text: None)
    return model_folder.load(workspace.run_dir(name) / "model"), corpus


def masked_scores(
    model: model_folder.LoadedModel,
    pairs: Sequence[Pair],
    mode: str,
    expert: ExpertUse = "none",
) -> tuple[Scores, Scores]:
    """Sums of log-probabilities and means per unit of both sentences of each pair."""
    scorer = PairScorer(Session(model, expert=expert), mode=Mode.parse(mode))
    found = [
        one
        for start in range(0, len(pairs), BATCH_RECORDS)
        for one in scorer.pair_rows(pairs[start : start + BATCH_RECORDS])
    ]

    def scores(metric: Metric) -> Scores:
        values = (np.round(side, 5).tolist() for side in metric_scores(found, metric))
        return dict(zip(("good", "bad"), values, strict=True))

    return scores("sum"), scores("mean")


def ngram_scores(model: model_folder.LoadedModel, corpus: Corpus, pairs: Sequence[Pair]) -> Scores:
    """Log-probabilities of both sentences by a 5-gram of the same units on the same training sentences."""
    units = corpus.tokenizer.units
    ngram = NGram(order=ORDER, unigram=units.frequencies(corpus.token_counts))
    ngram.fit(unit_symbols(units, corpus.train[index]) for index in range(len(corpus.train)))
    scores: Scores = {}
    for side in ("good", "bad"):
        texts = [getattr(pair, side) for pair in pairs]
        spelled = [unit_symbols(units, encoding) for encoding in model.tokenizer.encode_batch(texts)]
        owner = np.repeat(np.arange(len(texts)), [len(own) for own in spelled])
        bits = np.bincount(owner, weights=ngram.bits(spelled), minlength=len(texts))
        scores[side] = np.round(-bits * np.log(2), 5).tolist()
    return scores


def count_scores(model: model_folder.LoadedModel, pairs: Sequence[Pair]) -> Scores:
    """Log-probabilities of both sentences by the counts of the mixture, which read both sides."""
    expert = stored_expert(model, "counts")
    assert expert is not None
    scores: Scores = {}
    for side in ("good", "bad"):
        units = expert.hash_units(model.tokenizer.encode_batch([getattr(pair, side) for pair in pairs]))
        log2 = np.where(units.tokens > 0, expert.count_mixture(expert.count_log_probs(units)), 0.0)
        sums = np.bincount(units.sequence, weights=log2, minlength=len(pairs))
        scores[side] = np.round(sums * np.log(2), 5).tolist()
    return scores


def run(data: Path, out: Path, seed: int, minutes: float, per_paradigm: int) -> dict[str, Scores]:
    """Scores of every arm for one seed, kept as JSON."""
    pairs = chosen_pairs(data, per_paradigm)
    kept = out / f"{minutes:g}min-seed{seed}-{per_paradigm}"
    found: dict[str, Scores] = {
        arm: json.loads((kept / f"{arm}.json").read_text()) for arm in ARMS if (kept / f"{arm}.json").exists()
    }
    if len(found) == len(ARMS):
        return found
    model, corpus = trained(out, write_sentences(data, out / "sentences.txt"), seed, minutes)
    for arms, work in _work(model, corpus, pairs):
        if not all(arm in found for arm in arms):
            print(f"seed {seed}: {arms[0]} ...", file=sys.stderr)
            for arm, scores in zip(arms, work(), strict=True):
                kept.mkdir(parents=True, exist_ok=True)
                (kept / f"{arm}.json").write_text(json.dumps(scores) + "\n")
                found[arm] = scores
    return found


def _work(
    model: model_folder.LoadedModel, corpus: Corpus, pairs: Sequence[Pair]
) -> list[tuple[tuple[str, ...], Callable[[], Sequence[Scores]]]]:
    lengths = {side: [-float(len(getattr(pair, side))) for pair in pairs] for side in ("good", "bad")}
    return [
        (("exact", "exact mean"), lambda: masked_scores(model, pairs, "exact")),
        (("one-pass",), lambda: masked_scores(model, pairs, "one-pass")[:1]),
        (("mixed",), lambda: masked_scores(model, pairs, "exact", "counts")[:1]),
        (("counts",), lambda: [count_scores(model, pairs)]),
        (("5-gram",), lambda: [ngram_scores(model, corpus, pairs)]),
        (("length",), lambda: [lengths]),
    ]


def mean_difference(
    differences: ArrayLike,
    groups: ArrayLike,
    *,
    draws: int = 1000,
    seed: int = 0,
    confidence: float = 0.95,
) -> Estimate:
    """The mean of paired differences with a bootstrap interval over groups.

    Args:
        differences: (N,) first minus second, item by item.
        groups: (N,) natural unit of each item.
        draws, seed, confidence: settings of the percentile bootstrap (Efron 1979).

    Raises:
        UsageError: there are no items.
    """
    values = np.asarray(differences, dtype=np.float64)
    if not len(values):
        raise UsageError("there is nothing to compare")
    place = np.unique(np.asarray(groups), return_inverse=True)[1]
    sums, counts = np.bincount(place, weights=values), np.bincount(place).astype(np.float64)
    random = np.random.default_rng(seed)
    means = np.empty(draws)
    for draw in range(draws):
        drawn = random.integers(len(sums), size=len(sums))
        means[draw] = sums[drawn].sum() / counts[drawn].sum()
    return percentile_interval(float(values.mean()), means, confidence)


def table(seeds: Sequence[dict[str, Scores]], pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    """A row for each phenomenon and one for all: accuracies in percent, and gains over the 5-gram."""
    groups = np.array([pair.group for pair in pairs])
    right = {
        arm: np.mean([comparison_signs(own[arm]["good"], own[arm]["bad"]) > 0 for own in seeds], axis=0)
        for arm in ARMS
    }
    rows = []
    for name in ["all", *sorted(set(groups.tolist()))]:
        inside = np.flatnonzero((groups == name) | (name == "all"))
        row: dict[str, Any] = {"phenomenon": name, "pairs": len(inside)}
        row |= {arm: float(right[arm][inside].mean()) for arm in ARMS}
        for arm in ("exact", "one-pass", "mixed"):
            gain = mean_difference(right[arm][inside] - right["5-gram"][inside], inside)
            row[f"{arm} - 5-gram"] = [gain.value, gain.low, gain.high]
        rows.append(row)
    rows[0]["ties"] = {
        arm: sum(accuracy(own[arm]["good"], own[arm]["bad"])["ties"] for own in seeds) for arm in ARMS
    }
    return rows


def show(rows: Sequence[dict[str, Any]]) -> None:
    print(
        f"{'phenomenon':<28}{'pairs':>6}" + "".join(f"{arm:>13}" for arm in ARMS) + "  mixed - 5-gram (95 %)"
    )
    for row in rows:
        value, low, high = row["mixed - 5-gram"]
        cells = "".join(f"{row[arm]:>13.1%}" for arm in ARMS)
        print(f"{row['phenomenon']:<28}{row['pairs']:>6}{cells}  {value:+.1%} ({low:+.1%} .. {high:+.1%})")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the real data sets")
    parser.add_argument("--json", type=Path, help="write the table here")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/blimp"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=15.0, help="training time of one seed")
    parser.add_argument("--pairs", type=int, default=1000, help="pairs of each of the 67 paradigms")
    parser.add_argument("--quick", action="store_true", help="one seed, 4 minutes, 50 pairs of each paradigm")
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.minutes, options.pairs = 1, min(4.0, options.minutes), 50
    out = options.out.resolve()
    seeds = [run(options.data, out, seed, options.minutes, options.pairs) for seed in range(options.seeds)]
    rows = table(seeds, chosen_pairs(options.data, options.pairs))
    show(rows)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
