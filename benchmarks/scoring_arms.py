"""One arm of scoring_throughput.py in one process. All arms use the same model, sequences and threads.

The model and its tokenizer are a plain Hugging Face folder. The arms `minicons` and `loop` import nothing of
this package. Therefore `minicons` can run in its own environment. Text is tokenized before the measurement,
so that only the queries to the model are timed. Sequences are sorted by length for all arms. This saves
padding for the arms of other libraries.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class Arm:
    """One run.

    Args:
        kind: "ours" (exact), "ours-bf16", "one-pass" (ours), "loop" (plain transformers) or "minicons".
        batch: tokens of a forward pass (ours), masked copies (loop) or sequences (minicons).
        tokens: number of masked tokens, which is the sum of squared lengths of the sequences.
        folder: the model.
    """

    kind: str
    field: str
    batch: int
    tokens: int
    threads: int
    folder: str

    @property
    def name(self) -> str:
        return f"{self.field}-{self.kind}-{self.batch}-{self.tokens}-{self.threads}t"


Scores = list[float]


def sequences(arm: Arm) -> list[str]:
    """A random sample of the field's sequences, short ones first."""
    lines = Path(arm.folder, "sequences.txt").read_text(encoding="utf-8").splitlines()
    counts = np.load(Path(arm.folder, "lengths.npy"))
    order = np.random.default_rng(0).permutation(len(lines))
    taken = int(np.searchsorted(np.cumsum(counts[order].astype(np.int64) ** 2), arm.tokens)) + 1
    return [lines[i] for i in sorted(order[:taken].tolist(), key=lambda i: (counts[i], i))]


def tokenizer_class(field: str) -> Any:
    """The tokenizer of a field, with or without the pattern of layers behind its name."""
    from seqmlm import plugins

    names = {"text": "wordpiece.v1", "protein": "residue.v1", "dna": "base.v1"}
    return plugins.tokenizer_class(names[field.partition("-")[0]])


def ours(arm: Arm, texts: Sequence[str]) -> Callable[[], Scores]:
    """Exact pseudo-log-likelihoods, or one pass, by the engine."""
    from transformers import AutoModelForMaskedLM

    from seqmlm.engine.conditionals import Conditionals
    from seqmlm.engine.model import MaskedRows
    from seqmlm.engine.scoring import Scorer
    from seqmlm.engine.units import EXACT, ONE_PASS

    tokenizer = tokenizer_class(arm.field).load(Path(arm.folder))
    model = AutoModelForMaskedLM.from_pretrained(arm.folder)
    rows = MaskedRows(model, tokenizer.space, probability="full")
    precision = "bf16" if arm.kind == "ours-bf16" else "fp32"
    ask = Conditionals(rows, tokens_per_batch=arm.batch, precision=precision)
    mode = ONE_PASS if arm.kind == "one-pass" else EXACT
    scorer = Scorer(ask, tokenizer.units, mode=mode)
    encodings = tokenizer.encode_batch(list(texts))
    return lambda: [score.pll for score in scorer.windows((one, None) for one in encodings)]


def loop(arm: Arm, texts: Sequence[str]) -> Callable[[], Scores]:
    """The code of a careful user in twenty lines: copies in batches, the head at masked tokens only."""
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    model = AutoModelForMaskedLM.from_pretrained(arm.folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(arm.folder)
    encoded = [tokenizer(text) for text in texts]
    width, vocabulary = arm.batch, len(tokenizer)

    def copies() -> Iterator[tuple[int, int, torch.Tensor]]:
        for number, one in enumerate(encoded):
            ids, words = torch.tensor(one["input_ids"]), later(arm, one)
            for place in range(1, len(ids) - 1):
                hidden = ids.clone()
                hidden[words[place]] = tokenizer.mask_token_id
                yield number, place, hidden

    @torch.no_grad()
    def run() -> Scores:
        scores, waiting = [0.0] * len(texts), list(copies())
        for first in range(0, len(waiting), width):
            number, place, ids = zip(*waiting[first : first + width], strict=True)
            inputs = torch.nn.utils.rnn.pad_sequence(ids, True, tokenizer.pad_token_id)
            mask = (inputs != tokenizer.pad_token_id).long()
            states = model.model(inputs, attention_mask=mask)[0]
            states = states[torch.arange(len(ids)), torch.tensor(place)]
            log_probs = model.decoder(model.head(states))[:, :vocabulary].log_softmax(-1)
            target = [encoded[n]["input_ids"][p] for n, p in zip(number, place, strict=True)]
            found = log_probs[torch.arange(len(ids)), torch.tensor(target)].tolist()
            for n, value in zip(number, found, strict=True):
                scores[n] += value
        return scores

    return run


def later(arm: Arm, encoded: Any) -> list[list[int]]:
    """For each token, itself and the later tokens of its word."""
    words = encoded.word_ids() if arm.field.startswith("text") else list(range(len(encoded["input_ids"])))
    return [[j for j in range(i, len(words)) if words[j] == word] for i, word in enumerate(words)]


def minicons(arm: Arm, texts: Sequence[str]) -> Callable[[], Scores]:
    """`minicons.scorer.MaskedLMScorer` with tokenized batches (transformers 5 lacks a method it calls)."""
    from minicons import scorer
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(arm.folder)
    metric = "within_word_l2r" if arm.field.startswith("text") else "original"
    model = scorer.MaskedLMScorer(arm.folder, device="cpu", PLL_metric=metric)
    model.sep_token_id = tokenizer.sep_token_id or tokenizer.eos_token_id  # else it scores the end token
    # The model's embedding is padded beyond the vocabulary; those ids must not share in the softmax here.
    bias = model.model.decoder.bias
    with torch.no_grad():
        bias[len(tokenizer) :] = -1e9
    parts = [texts[i : i + arm.batch] for i in range(0, len(texts), arm.batch)]
    batches = [tokenizer(list(part), padding="longest") for part in parts]

    def run() -> Scores:
        found: Scores = []
        for batch in batches:
            found += model.sequence_score(batch, reduction=lambda x: x.sum().item(), PLL_metric=metric)
        return found

    return run


def main() -> None:
    arm = Arm(**json.loads(sys.argv[1]))
    torch.set_num_threads(arm.threads)
    texts = sequences(arm)
    kinds = {"ours": ours, "ours-bf16": ours, "one-pass": ours, "loop": loop, "minicons": minicons}
    run = kinds[arm.kind](arm, texts)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    before = pages * resource.getpagesize() / 2**20
    wall, cpu = -time.perf_counter(), -time.process_time()
    scores = run()
    wall, cpu = wall + time.perf_counter(), cpu + time.process_time()
    if arm.kind == "one-pass":  # over in a moment: again, until it can be measured
        repeats = 1
        while cpu < 3:
            again, cpu_again = -time.perf_counter(), -time.process_time()
            run()
            wall, cpu = wall + again + time.perf_counter(), cpu + cpu_again + time.process_time()
            repeats += 1
        wall, cpu = wall / repeats, cpu / repeats
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    report = {"sequences": len(texts), "seconds": wall, "cpu_seconds": cpu, "scores": scores}
    print(json.dumps({**asdict(arm), **report, "peak_mib": peak, "grown_mib": peak - before}))


if __name__ == "__main__":
    main()
