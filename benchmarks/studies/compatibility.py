"""Measure whether a loss term that penalizes incompatible conditionals gives a better model.

    chain    a `tiny` model of a Potts chain of six places: A-KL, and the error of conditional mutual
             information under the mean of the chain rule and under Arnold-Gokhale, which is exact there
    text     sentences: A-KL of 64 candidates at neighbouring words, and BLiMP by pseudo-log-likelihood

The loss is the mean nats per masked token. The term is --weight times the squared deviation after Arnold and
Press (1989), which Torroba Hennigen and Kim (2023) name as future work. It uses two places in --pairs
sequences of each batch. Half of the time, they are neighbours. At each place, 8 symbols are drawn from the
distribution that the model gives while both places are hidden. Weight 0 is the training without the term,
from the same seed.

Differences are paired by seed. Seconds are processor time and include the evaluations during training. One
JSON file for each arm, weight and seed is kept under --out. An interrupted benchmark continues at the point
of interruption. So does a training, because all draws use the generator of torch, which checkpoints keep.

    PYTHONPATH=benchmarks python benchmarks/studies/compatibility.py --data ../shared/data \\
        --only chain --pairs 8
    PYTHONPATH=benchmarks python benchmarks/studies/compatibility.py --data ../shared/data --quick
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable, Sequence
from itertools import combinations, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from anomaly_models import STEPS, trained
from blimp import chosen_pairs
from english_sentences import write_sentences
from theory import LETTERS, PLACES, chain_samples, information, potts
from torch import Tensor

from seqmlm.data.problems import Problems
from seqmlm.engine.model import MaskedRows
from seqmlm.engine.packing import Document, PackedBatch, pack
from seqmlm.engine.units import Mode
from seqmlm.evaluation.pairs import accuracy, metric_scores
from seqmlm.inference.model_folder import LoadedModel
from seqmlm.inference.pairs import PairScorer
from seqmlm.inference.record_batches import tokenized
from seqmlm.inference.session import Session
from seqmlm.structure.joints import (
    METHODS,
    Pair,
    arnold_gokhale,
    deviation,
    joint_measures,
    pair_conditionals,
    top_candidates,
)
from seqmlm.training import assemble


def squared_deviation(of_first: Tensor, of_second: Tensor) -> Tensor:
    """(P,) `seqmlm.structure.joints.deviation` of pairs of places at some symbols.

    Args:
        of_first: (P, A, B) log p(a | b). of_second: (P, A, B) log p(b | a).
    """
    own = of_first - of_second
    rows, columns = own.logsumexp(2, keepdim=True), own.logsumexp(1, keepdim=True)
    return (own + rows.logsumexp(1, keepdim=True) - rows - columns).square().mean((1, 2))


class Hidden(NamedTuple):
    """A sequence (L,) in which two places are hidden."""

    ids: Any
    positions: Any
    places: Any

    def document(self, asked: Any, place: int | None = None, symbol: int = 0) -> Document:
        """The query for the places `asked`, with the given symbol at `place`."""
        ids = self.ids.copy()
        if place is not None:
            ids[place] = symbol
        return Document(ids=ids, asked=asked, positions=self.positions)


class CompatibleRows(MaskedRows):
    """Rows whose training loss includes the mean squared deviation at drawn pairs, times a weight."""

    weight, pairs, symbols = 0.0, 1, 8

    def forward(self, batch: Any, **how: Any) -> Tensor:
        loss = super().forward(batch, **how)
        if not self.training or self.weight == 0 or how or batch.targets is None:
            return loss
        drawn = [pair for pair in (self.drawn(batch) for _ in range(self.pairs)) if pair is not None]
        # The loop divides by the masked tokens: so the weight is beside a mean of nats.
        return loss + self.deviations(drawn).mean() * (self.weight * len(batch.asked)) if drawn else loss

    def drawn(self, batch: PackedBatch) -> Hidden | None:
        """Two places of a sequence."""
        n = int(torch.randint(len(batch.lengths), ()))
        begin = sum(batch.lengths[:n])
        own = slice(begin, begin + batch.lengths[n])
        ids = batch.input_ids[0, own].numpy().copy()
        inside = np.flatnonzero(~self.space.is_special[ids])
        if len(inside) < 2:
            return None
        first, other = torch.randperm(len(inside))[:2].tolist()
        if torch.randint(2, ()):
            other = first + 1 if first + 1 < len(inside) else first - 1
        places = inside[[first, other]]
        ids[places] = self.space.mask
        return Hidden(ids, batch.position_ids[0, own].numpy(), places)

    def deviations(self, drawn: Sequence[Hidden]) -> Tensor:
        """(P,) deviations at symbols drawn without replacement from the model with both places hidden."""
        count = min(self.symbols, len(self.space.ordinary))
        with torch.no_grad():
            alone = self.logs([one.document(one.places) for one in drawn])
            noise = -torch.log(torch.empty_like(alone).exponential_())  # Gumbel's
            chosen = (alone + noise).topk(count, dim=1).indices.view(-1, 2, count)
        copies = [
            one.document(one.places[[1 - side]], one.places[side], int(symbol))
            for one, both in zip(drawn, chosen, strict=True)
            for side, symbols in enumerate(both)
            for symbol in symbols
        ]
        logs = self.logs(copies).view(len(drawn), 2, count, -1)
        other = chosen.flip(1)[:, :, None].expand(-1, -1, count, -1)
        told = logs.gather(3, other)  # (P, 2, S, S): side, symbol that stands there, symbol at the other
        return squared_deviation(told[:, 1].transpose(1, 2), told[:, 0])

    def logs(self, documents: Sequence[Document]) -> Tensor:
        """(Q, V) log-probabilities."""
        return self.logits(self._last_hidden_states(pack(documents))).log_softmax(1)


def model_of(out: Path, name: str, domain: str, files: Sequence[Path], options: Any) -> LoadedModel:
    """A model trained with the weight of `options`; the time of its training is kept in its folder."""
    weight, seed = options.weight, options.seed
    made = type("Rows", (CompatibleRows,), {"weight": weight, "pairs": options.pairs})
    assemble.MaskedRows = made if weight else MaskedRows  # type: ignore[misc]
    flags = {"data": {"calibration": 0.0}}
    name = name if not weight else f"{name}-{weight:g}x{options.pairs}"
    began = time.process_time()
    model = trained(out, name, domain, files, flags, seed, options.minutes)
    kept = Path(model.path).parent / "seconds.json"
    if not kept.exists():
        kept.write_text(json.dumps(time.process_time() - began))
    return model


def result(model: LoadedModel) -> dict[str, float]:
    told = json.loads((Path(model.path).parent / "result.json").read_text())
    told = told.get("result", told)
    return {
        "bits": told["eval_bits_per_unit"],
        "seconds": json.loads((Path(model.path).parent / "seconds.json").read_text()),
    }


def faithful(model: LoadedModel, pairs: Sequence[Pair], alphabet: Any, k: int | None) -> dict[str, float]:
    """Mean deviation, and A-KL of three joints."""
    found: dict[str, list[float]] = {"deviation": [], "chain": [], "ag": [], "hcb": []}
    asked = Session(model).conditionals()
    for own in pair_conditionals(asked, pairs, alphabet, top_candidates(asked, pairs, alphabet, k)):
        found["deviation"].append(deviation(own))
        for name in ("chain", "hcb"):
            found[name].append(joint_measures(own, METHODS[name](own), 0, 0)["a_kl"])
        found["ag"].append(joint_measures(own, arnold_gokhale(own).joint, 0, 0)["a_kl"])
    return {name: float(np.mean(own)) for name, own in found.items()}


def chain(options: Any, out: Path) -> dict[str, float]:
    model, table = model_of(out, "chain", "protein", [chain_samples(out)], options), potts()
    tokenizer, letters = model.tokenizer, [*np.ndindex(*[len(LETTERS)] * (PLACES - 2))]
    ids = np.sort([tokenizer.encode(one).ids[1] for one in LETTERS]).astype(np.int32)
    errors, kept = dict[str, list[float]](), []
    for i, j in combinations(range(PLACES), 2):
        rest = [n for n in range(PLACES) if n not in (i, j)]
        shares = table.sum(axis=(i, j)).ravel()
        texts = (np.insert(np.insert(np.array(x), i, 0), j, 0) for x in letters)
        pairs = [Pair(tokenizer.encode("".join(LETTERS[n] for n in x)), i + 1, j + 1) for x in texts]
        kept += pairs[::16]
        told = dict.fromkeys(("chain", "ag"), 0.0)
        for share, own in zip(
            shares, pair_conditionals(Session(model).conditionals(), pairs, ids), strict=True
        ):
            for name in told:
                told[name] += float(share) * information(np.exp(METHODS[name](own)), 0, 1, ())
        exact = information(table, i, j, rest)
        for name, value in told.items():
            errors.setdefault(name, []).append(abs(value - exact))
    quality = {f"cmi error, {name}": float(np.mean(own)) for name, own in errors.items()}
    return {**result(model), **faithful(model, kept, ids, None), **quality}


def neighbours(model: LoadedModel, texts: Sequence[str], alphabet: Any) -> list[Pair]:
    """A pair of neighbouring places of each text."""
    random, found = np.random.default_rng(0), []
    for text in texts:
        encoding = model.tokenizer.encode(text)
        at = np.flatnonzero((encoding.groups >= 0) & np.isin(encoding.ids, alphabet))
        near = [int(n) for n in at if n + 1 in at and encoding.groups[n] != encoding.groups[n + 1]]
        if near and len(encoding) <= 100:
            i = near[int(random.integers(len(near)))]
            found.append(Pair(encoding, i, i + 1))
    return found


def text(options: Any, out: Path) -> dict[str, float]:
    learnt = write_sentences(options.data, out / "sentences.txt")
    model = model_of(out, "text", "text", [learnt], options)
    session = Session(model)
    (held_out,) = (options.data / "text/ud_en_ewt").glob("*test*")
    records = session.reader([str(held_out)])(Problems("skip"))
    read = tokenized(session.domain, session.tokenizer, [*islice(records, 200)], Problems("skip"))
    alphabet = np.sort(session.tokenizer.space.ordinary).astype(np.int32)
    texts = [str(record.raw) for record, _ in read]
    pairs = neighbours(model, texts, alphabet)[: 5 if options.quick else 40]
    told = faithful(model, pairs, alphabet, 64)
    some = chosen_pairs(options.data, 2 if options.quick else 15)
    scorer = PairScorer(session, mode=Mode.parse("exact"))
    return {
        **result(model),
        **told,
        "blimp": accuracy(*metric_scores([*scorer.pair_rows(some)], "sum"))["accuracy"],
    }


ARMS: dict[str, Callable[[Any, Path], dict[str, float]]] = {"chain": chain, "text": text}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the real data sets")
    parser.add_argument("--json", type=Path, help="write all figures here")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/compatibility"))
    parser.add_argument("--only", choices=sorted(ARMS), action="append", help="only these arms")
    parser.add_argument("--weight", type=float, nargs="+", default=[0.0, 0.1, 1.0])
    parser.add_argument("--pairs", type=int, default=1, help="number of sequences in a batch with a pair")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=1.0, help=f"{STEPS} steps each, of a training")
    parser.add_argument("--quick", action="store_true", help="one seed, a few steps and pairs")
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.minutes, options.weight = 1, 0.05, [0.0, 0.1]
    out, rows = options.out.resolve(), []
    out.mkdir(parents=True, exist_ok=True)
    weights, minutes = options.weight, options.minutes
    for seed, arm, weight in itertools.product(range(options.seeds), options.only or ARMS, weights):
        options.seed, options.weight = seed, weight
        kept = out / f"{arm}-{weight:g}x{options.pairs}-{minutes:g}-seed{seed}.json"
        if not kept.exists():
            kept.write_text(json.dumps(ARMS[arm](options, out)))
        rows.append({"arm": arm, "weight": weight, "seed": seed, **json.loads(kept.read_text())})
        print(json.dumps(rows[-1]), flush=True)
    show(rows)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1))


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Means over seeds, and the difference to weight 0, paired by seed, with its interval of Student's t."""
    from scipy.stats import t

    for arm, weight in dict.fromkeys((row["arm"], row["weight"]) for row in rows):
        own = [row for row in rows if (row["arm"], row["weight"]) == (arm, weight)]
        base = {row["seed"]: row for row in rows if (row["arm"], row["weight"]) == (arm, 0.0)}
        print(f"\n{arm}, weight {weight:g}, {len(own)} seeds")
        for key in [one for one in own[0] if one not in ("arm", "weight", "seed")]:
            apart = np.array([row[key] - base[row["seed"]][key] for row in own if row["seed"] in base])
            half = np.inf
            if len(apart) > 1:
                half = t.ppf(0.975, len(apart) - 1) * apart.std(ddof=1) / np.sqrt(len(apart))
            told = f"{apart.mean():+.5f} +- {half:.5f}" if weight and len(apart) else ""
            print(f"  {key:<18} {np.mean([row[key] for row in own]):.5f}  {told}")


if __name__ == "__main__":
    main()
