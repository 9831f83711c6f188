"""Random checkpoints of the architectures that users bring, saved as transformers saves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    BertConfig,
    BertForMaskedLM,
    DistilBertConfig,
    DistilBertForMaskedLM,
    EsmConfig,
    EsmForMaskedLM,
    ModernBertConfig,
    ModernBertForMaskedLM,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForMaskedLM,
)

from seqmlm.domains.protein.tokenizer import ResidueTokenizer

TEXTS = (
    "the cat sees the dog .",
    "a dog barks loudly !",
    "it was great , it was terrible ;",
    "unable cats",
) * 9
SHAPE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}


def wordpiece() -> PreTrainedTokenizerFast:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    backend = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=90, special_tokens=special, show_progress=False)
    backend.train_from_iterator(TEXTS, trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = dict(
        zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), special, strict=True)
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)


def byte_level(mask: str, special: list[str]) -> PreTrainedTokenizerFast:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(TEXTS, trainer)
    backend.add_special_tokens([tokenizers.AddedToken(mask, lstrip=True, special=True)])
    backend.post_processor = processors.TemplateProcessing(
        single=f"{special[0]} $A {special[2]}", special_tokens=[(special[0], 0), (special[2], 2)]
    )
    roles = {"bos_token": special[0], "pad_token": special[1], "eos_token": special[2]}
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, **roles, unk_token=special[3], mask_token=mask, cls_token=special[0],
        sep_token=special[2],
    )  # fmt: skip


def log_probs(model: Any, ids: list[int]) -> np.ndarray[Any, Any]:
    """(places, tokens) log-probabilities, by one forward pass of transformers."""
    with torch.no_grad():
        return torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1).numpy()


_IDS = {"bos_token_id": 0, "eos_token_id": 2, "cls_token_id": 0, "sep_token_id": 2}
_DISTIL = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24, "max_position_embeddings": 64}
KINDS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "bert": (BertForMaskedLM, BertConfig, {**SHAPE, "max_position_embeddings": 64}),
    "roberta": (RobertaForMaskedLM, RobertaConfig, {**SHAPE, "max_position_embeddings": 66}),
    "distilbert": (DistilBertForMaskedLM, DistilBertConfig, _DISTIL),
    "esm": (EsmForMaskedLM, EsmConfig, {**SHAPE, "position_embedding_type": "rotary"}),
    "modernbert": (ModernBertForMaskedLM, ModernBertConfig, {**SHAPE, **_IDS}),
}
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>"]


def checkpoint(kind: str, folder: Path) -> tuple[Any, Any]:
    """A random model of an architecture, saved as transformers saves it; the model and its tokenizer."""
    torch.manual_seed(7)
    if kind == "esm":
        fast = ResidueTokenizer().hf()
    elif kind in ("roberta", "modernbert"):
        fast = byte_level("<mask>" if kind == "roberta" else "[MASK]", ROBERTA)
    else:
        fast = wordpiece()
    model_class, config, own = KINDS[kind]
    size = {"vocab_size": len(fast), "pad_token_id": fast.pad_token_id}
    size |= {"mask_token_id": fast.mask_token_id} if kind == "esm" else {}
    model = model_class(config(**own, **size))
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.mul_(8)
    model.eval()
    model.save_pretrained(folder)
    fast.save_pretrained(str(folder))
    return model, fast
