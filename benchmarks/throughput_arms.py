"""One arm of pretrain_throughput.py in one process: the same data, model, optimizer and tokens for all arms.

Every arm trains one pass over the same sequences. Length grouping therefore has long and short batches in
their true proportion. The time is measured from the first batch to the end of the last optimizer step. Before
that, there is a warm-up step on a copy that is thrown away. It covers imports, the model, and the first
kernel calls.
"""

from __future__ import annotations

import gzip
import json
import resource
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from seqmlm.engine.backbones import build, parameter_count
from seqmlm.engine.shapes import ModelConfig
from seqmlm.engine.types import Encoding, TokenSpace

RATE = 0.15
LEARNING_RATE, BETAS, EPSILON, DECAY = 5e-4, (0.9, 0.98), 1e-6, 0.01
VOCABULARY = 16_384
MAX_LENGTH = 512


@dataclass(frozen=True)
class Arm:
    """One run: `kind` is "ours", "grouped" or "padded" (both Hugging Face Trainer), "peak" or "losses".

    With "-bf16" behind it, products are in bfloat16.

    Args:
        batch: sequences a step (Trainer) or tokens a row (ours).
        tokens: how many tokens of data one pass has.
    """

    kind: str
    field: str
    size: str
    batch: int
    tokens: int
    threads: int
    data: str

    @property
    def name(self) -> str:
        return f"{self.field}-{self.size}-{self.kind}-{self.batch}-{self.tokens}-{self.threads}t"


class Corpus:
    """Token ids in memory.

    Args:
        ids: one array per sequence, special tokens included.
        tokenizer: as transformers knows it.
        space: as the engine knows it.
    """

    def __init__(self, ids: list[np.ndarray[Any, Any]], tokenizer: Any, space: TokenSpace) -> None:
        self.ids, self.tokenizer, self.space = ids, tokenizer, space
        self.lengths = np.array([len(each) for each in ids], dtype=np.int32)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> Encoding:
        ids = self.ids[index]
        groups = np.arange(len(ids), dtype=np.int32)
        groups[self.space.is_special[ids]] = -1
        return Encoding(ids=ids, groups=groups)


def _sentences(data: Path) -> list[str]:
    """UD English-EWT and the unique sentences of WikiSplit: natural lengths of two kinds of writing."""
    found: dict[str, None] = {}
    for path in sorted((data / "text/ud_en_ewt").glob("*.conllu.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            found.update((line[9:].strip(), None) for line in lines if line.startswith("# text = "))
    for path in sorted((data / "text/wiki_split").glob("*.tsv.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            found.update((line.split("\t")[0].strip(), None) for line in lines)
    return list(found)


def _proteins(data: Path) -> list[str]:
    found: dict[str, None] = {}
    for path in sorted((data / "protein/pretrain").glob("*.faa.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for record in lines.read().split(">")[1:]:
                found["".join(record.split("\n")[1:]).upper().replace("*", "")] = None
    return list(found)


def prepare(data: Path, kept: Path) -> None:
    """Tokenize both fields once and keep the ids in the folders of the tokenizers."""
    from seqmlm.domains.protein.tokenizer import ResidueTokenizer
    from seqmlm.tokenizers.subword import WordPieceTokenizer

    texts = _sentences(data)
    words = WordPieceTokenizer.train(texts, vocabulary_size=VOCABULARY)
    for name, tokenizer, raw in (("text", words, texts), ("protein", ResidueTokenizer(), _proteins(data))):
        tokenizer.save(kept / name)
        encoded = [encoding.ids[:MAX_LENGTH] for encoding in tokenizer.encode_batch(raw)]
        np.savez(
            kept / f"{name}.npz",
            ids=np.concatenate(encoded).astype(np.int32),
            lengths=np.array([len(ids) for ids in encoded]),
        )


def corpus(field: str, kept: Path, tokens: int) -> Corpus:
    """A random sample of the kept sequences with about `tokens` tokens in all."""
    from transformers import AutoTokenizer

    from seqmlm.domains.protein.tokenizer import ResidueTokenizer
    from seqmlm.tokenizers.subword import WordPieceTokenizer

    own = (WordPieceTokenizer if field == "text" else ResidueTokenizer).load(kept / field)
    with np.load(kept / f"{field}.npz") as arrays:
        ids, lengths = arrays["ids"], arrays["lengths"]
    starts = np.cumsum(lengths) - lengths
    order = np.random.default_rng(0).permutation(len(lengths))
    order = order[: int(np.searchsorted(np.cumsum(lengths[order]), tokens)) + 1]
    chosen = [ids[starts[i] : starts[i] + lengths[i]] for i in order]
    return Corpus(chosen, AutoTokenizer.from_pretrained(kept / field), own.space)


def model_for(arm: Arm, space: TokenSpace, sparse: bool) -> Any:
    """The same weights in every arm; vocabulary and configuration too."""
    torch.manual_seed(0)
    config = ModelConfig(size=arm.size, max_length=MAX_LENGTH, overrides={"sparse_prediction": sparse})
    return build(config, space)


class Clock:
    """First batch to last step; resident memory at the start of training and at its peak, in MiB."""

    def __init__(self) -> None:
        self.started = self.stopped = 0.0
        self.cpu = self.total = self.before = 0.0

    def start(self) -> None:
        if not self.started:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            self.before = pages * resource.getpagesize() / 2**20
            self.cpu = -time.process_time()
            self.started = time.perf_counter()

    def stop(self) -> None:
        self.stopped, self.total = time.perf_counter(), time.process_time()

    def report(self, tokens: int, steps: int) -> dict[str, Any]:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return {
            "tokens": tokens,
            "steps": steps,
            "seconds": self.stopped - self.started,
            "cpu_seconds": self.total + self.cpu,
            "tokens_per_second": tokens / (self.stopped - self.started),
            "peak_mib": peak,
            "grown_mib": peak - self.before,
        }


def run_ours(arm: Arm, data: Corpus) -> dict[str, Any]:
    """The engine's own loop over packed rows."""
    from seqmlm.engine.loop import Loop, LoopConfig, Observer, StepReport
    from seqmlm.engine.masking.base import Corruptor, MaskingConfig
    from seqmlm.engine.masking.uniform import Uniform
    from seqmlm.engine.model import MaskedRows
    from seqmlm.engine.packing import PackedBatch, PackedRow, RowDataset, RowPlanner

    clock = Clock()

    class Timed(RowDataset):
        def __getitem__(self, row: PackedRow) -> PackedBatch:
            clock.start()
            return super().__getitem__(row)

    class Stop(Observer):
        steps = 0

        def on_step(self, report: StepReport) -> None:
            Stop.steps += 1
            clock.stop()

    config = MaskingConfig(rate=RATE)
    corruptor = Corruptor(config, Uniform(rate=RATE, space=data.space), data.space, None, seed=0)
    rows = MaskedRows(model_for(arm, data.space, sparse=False), data.space)
    planner = RowPlanner(data.lengths, tokens_per_row=arm.batch, seed=0)
    warm = MaskedRows(model_for(arm, data.space, sparse=False), data.space)
    warm(RowDataset(data, corruptor)[planner.next_row()]).backward()
    del warm
    planner = RowPlanner(data.lengths, tokens_per_row=arm.batch, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        loop = Loop(
            rows,
            Timed(data, corruptor),
            planner,
            LoopConfig(
                epochs=1,
                learning_rate=LEARNING_RATE,
                betas=BETAS,
                epsilon=EPSILON,
                weight_decay=DECAY,
                checkpoint_every_steps=10**9,
                checkpoint_every_seconds=1e9,
                precision="bf16" if arm.kind.endswith("bf16") else "fp32",
                device="cpu",
            ),
            directory=Path(folder),
            observer=Stop(),
        )
        result = loop.run()
    return clock.report(result.tokens, Stop.steps)


def run_trainer(arm: Arm, data: Corpus) -> dict[str, Any]:
    """Hugging Face Trainer: `grouped` is its best recipe, `padded` the one most scripts have."""
    from datasets import Dataset
    from transformers import DataCollatorForLanguageModeling, Trainer, TrainerCallback, TrainingArguments
    from transformers.utils import logging

    logging.set_verbosity_error()
    grouped = arm.kind.startswith("grouped")
    clock, counts = Clock(), {"tokens": 0, "steps": 0}

    class Collator(DataCollatorForLanguageModeling):
        def __call__(self, features: Any, return_tensors: Any = None) -> Any:
            clock.start()
            for feature in features:
                counts["tokens"] += feature.pop("length")
            return super().__call__(features, return_tensors)

    class Stop(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            counts["steps"] += 1
            clock.stop()

    special = [data.space.is_special[ids].astype(np.int64) for ids in data.ids]
    table = Dataset.from_dict(
        {
            "input_ids": data.ids,
            "attention_mask": [np.ones(len(ids), dtype=np.int64) for ids in data.ids],
            "special_tokens_mask": special,
            "length": data.lengths,
        }
    )
    collator = Collator(tokenizer=data.tokenizer, mlm_probability=RATE)
    warm = model_for(arm, data.space, sparse=grouped)
    warm(**collator([dict(table[i]) for i in range(min(arm.batch, len(table)))])).loss.backward()
    del warm
    clock, counts["tokens"] = Clock(), 0
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            num_train_epochs=1,
            per_device_train_batch_size=arm.batch,
            learning_rate=LEARNING_RATE,
            adam_beta1=BETAS[0],
            adam_beta2=BETAS[1],
            adam_epsilon=EPSILON,
            weight_decay=DECAY,
            optim="adamw_torch_fused",
            train_sampling_strategy="group_by_length" if grouped else "random",
            length_column_name="length",
            remove_unused_columns=False,
            use_cpu=True,
            bf16=arm.kind.endswith("bf16"),
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        trainer = Trainer(
            model=model_for(arm, data.space, sparse=grouped),
            args=arguments,
            train_dataset=table,
            data_collator=collator,
            callbacks=[Stop()],
        )
        trainer.train()
    return clock.report(counts["tokens"], counts["steps"])


def run_losses(arm: Arm, data: Corpus) -> dict[str, Any]:
    """Equal masks, equal losses: both rivals' forward passes and ours on the same corrupted sequences."""
    from seqmlm.engine.model import MaskedRows
    from seqmlm.engine.packing import Document, pack

    rng = np.random.default_rng(0)
    documents = []
    for ids in data.ids[: arm.batch]:
        asked = np.flatnonzero(~data.space.is_special[ids] & (rng.random(len(ids)) < RATE))
        corrupted = ids.copy()
        corrupted[asked] = data.space.mask
        documents.append(Document(ids=corrupted, asked=asked, targets=ids[asked]))
    longest = max(len(d.ids) for d in documents)
    inputs = torch.full((len(documents), longest), data.space.pad)
    labels = torch.full_like(inputs, -100)
    for row, document in enumerate(documents):
        inputs[row, : len(document.ids)] = torch.from_numpy(document.ids)
        labels[row, document.asked] = torch.from_numpy(document.targets).long()
    padded = {"input_ids": inputs, "attention_mask": (inputs != data.space.pad).long(), "labels": labels}
    batch = pack(documents)
    with torch.no_grad():
        answers = {
            "padded": model_for(arm, data.space, sparse=False)(**padded).loss.item(),
            "grouped": model_for(arm, data.space, sparse=True)(**padded).loss.item(),
        }
        # Stock models keep special ids and padded vocabulary in the softmax: so does ours here.
        model = model_for(arm, data.space, sparse=False)
        whole = TokenSpace(**{**data.space.to_dict(), "size": model.config.vocab_size})
        rows = MaskedRows(model, whole, probability="full")
        answers["ours"] = rows(batch).item() / len(batch.asked)
    if max(answers.values()) - min(answers.values()) > 1e-4:
        raise SystemExit(f"losses differ on equal masks: {answers}")
    weighted = float((data.lengths.astype(np.float64) ** 2).sum() / data.lengths.sum())
    masked = float(sum(len(d.asked) for d in documents) / sum(len(d.ids) for d in documents))
    return {
        "losses": answers,
        "parameters": parameter_count(model),
        "flops_per_token": flops_per_token(model, weighted, masked),
        "sequences": len(data),
        "tokens": int(data.lengths.sum()),
        "mean_length": float(data.lengths.mean()),
    }


def flops_per_token(model: PreTrainedModel, mean_length: float, masked_fraction: float = 0.15) -> float:
    """Floating-point operations of one training step per token (after Kaplan et al. 2020).

    The sum has 6 operations per weight of the body and token, and 6 per weight of the head and *masked*
    token. Attention adds 12 x hidden x visible tokens a layer. Embedding look-ups are free.

    Args:
        model: any supported masked LM.
        mean_length: mean document length in tokens (weighted by tokens, if lengths vary much).
        masked_fraction: share of tokens the head predicts.
    """
    config = model.config
    body_modules = [m for m in model.base_model.modules() if isinstance(m, nn.Linear)]
    body = sum(m.weight.numel() for m in body_modules)
    if config.model_type == "albert":
        # ALBERT runs one group of layers repeatedly.
        body = body * config.num_hidden_layers // max(config.num_hidden_groups * config.inner_group_num, 1)
    inside = {id(m) for m in body_modules}
    head = sum(m.weight.numel() for m in model.modules() if isinstance(m, nn.Linear) and id(m) not in inside)
    hidden, layers = config.hidden_size, config.num_hidden_layers
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * layers
    window = 2 * getattr(config, "sliding_window", 0) + 1 if "sliding_attention" in kinds else 0
    visible = sum(min(mean_length, window) if kind == "sliding_attention" else mean_length for kind in kinds)
    return float(6.0 * body + 6.0 * masked_fraction * head + 12.0 * hidden * visible)


def run_peak(arm: Arm) -> dict[str, Any]:
    """Best of many square fp32 matrix products, in FLOP/s."""
    size = 1536
    left, right = torch.randn(2, size, size)
    out = torch.empty(size, size)
    best = float("inf")
    for _ in range(30):
        began = time.perf_counter()
        torch.mm(left, right, out=out)
        best = min(best, time.perf_counter() - began)
    return {"flops": 2 * size**3 / best}


def main() -> None:
    arm = Arm(**json.loads(sys.argv[1]))
    torch.set_num_threads(arm.threads)
    if arm.kind == "prepare":
        prepare(Path(arm.data), Path(sys.argv[2]))
        result: dict[str, Any] = {}
    elif arm.kind == "peak":
        result = run_peak(arm)
    else:
        data = corpus(arm.field, Path(sys.argv[2]), arm.tokens)
        runners = {"ours": run_ours, "grouped": run_trainer, "padded": run_trainer, "losses": run_losses}
        result = runners[arm.kind.removesuffix("-bf16")](arm, data)
    print(json.dumps({**asdict(arm), **result}))


if __name__ == "__main__":
    main()
