"""Tiny encoders of every supported architecture, and the oracle that says what packing must not change.

The oracle runs each document alone through the unchanged transformers model. Tests hand it a way of
answering packed documents; it returns the largest difference. The exactness tests ask for less than 1e-5, the
planted leak for much more: the same function must be able to tell both.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    BertConfig,
    BertForMaskedLM,
    CamembertConfig,
    CamembertForMaskedLM,
    DistilBertConfig,
    DistilBertForMaskedLM,
    ElectraConfig,
    ElectraForMaskedLM,
    EsmConfig,
    EsmForMaskedLM,
    ModernBertConfig,
    ModernBertForMaskedLM,
    PreTrainedModel,
    RobertaConfig,
    RobertaForMaskedLM,
    XLMRobertaConfig,
    XLMRobertaForMaskedLM,
)

from seqmlm.engine.packing import Document, pack
from seqmlm.engine.types import TokenSpace

VOCABULARY = 40
MASK = 3
SPACE = TokenSpace(size=VOCABULARY, pad=0, mask=MASK, unk=None, start=1, end=2, special=(0, 1, 2, MASK))
LENGTHS = (5, 30, 12, 12, 7, 41, 60, 5, 13)

_SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "pad_token_id": 0,
    "max_position_embeddings": 64,
}


def _esm(position: str, token_dropout: bool, norm_before: bool) -> PreTrainedModel:
    return EsmForMaskedLM(
        EsmConfig(
            **{**_SHAPE, "max_position_embeddings": 70},
            position_embedding_type=position,
            token_dropout=token_dropout,
            emb_layer_norm_before=norm_before,
            mask_token_id=MASK,
        )
    )


def _modernbert(**settings: object) -> PreTrainedModel:
    kept = ("vocab_size", "hidden_size", "num_attention_heads", "intermediate_size", "pad_token_id")
    shape = {key: _SHAPE[key] for key in kept}
    ids = {"bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
    return ModernBertForMaskedLM(ModernBertConfig(**{**shape, **ids, "num_hidden_layers": 3, **settings}))


def _distilbert() -> PreTrainedModel:
    return DistilBertForMaskedLM(
        DistilBertConfig(
            vocab_size=VOCABULARY,
            dim=32,
            n_layers=2,
            n_heads=4,
            hidden_dim=48,
            dropout=0.0,
            attention_dropout=0.0,
            max_position_embeddings=64,
            pad_token_id=0,
        )
    )


ARCHITECTURES: dict[str, Callable[[], PreTrainedModel]] = {
    "modernbert": lambda: _modernbert(local_attention=8),
    "modernbert-global": lambda: _modernbert(global_attn_every_n_layers=1),
    "bert": lambda: BertForMaskedLM(BertConfig(**_SHAPE)),
    "roberta": lambda: RobertaForMaskedLM(RobertaConfig(**{**_SHAPE, "max_position_embeddings": 70})),
    "xlm-roberta": lambda: XLMRobertaForMaskedLM(
        XLMRobertaConfig(**{**_SHAPE, "max_position_embeddings": 70})
    ),
    "camembert": lambda: CamembertForMaskedLM(CamembertConfig(**{**_SHAPE, "max_position_embeddings": 70})),
    "esm-rotary": lambda: _esm("rotary", token_dropout=False, norm_before=False),
    "esm-rotary-token-dropout": lambda: _esm("rotary", token_dropout=True, norm_before=False),
    "esm-learned": lambda: _esm("absolute", token_dropout=False, norm_before=True),
    "esm-learned-token-dropout": lambda: _esm("absolute", token_dropout=True, norm_before=True),
    "distilbert": _distilbert,
    "electra": lambda: ElectraForMaskedLM(ElectraConfig(**_SHAPE, embedding_size=16)),
    "albert": lambda: AlbertForMaskedLM(AlbertConfig(**_SHAPE, embedding_size=16)),
}


def encoder(name: str, seed: int = 0) -> PreTrainedModel:
    """A tiny model with weights large enough that attention is far from uniform."""
    return _sharp(ARCHITECTURES[name], seed)


def modernbert(seed: int = 0, **settings: object) -> PreTrainedModel:
    """The same of a ModernBERT with other settings."""
    return _sharp(lambda: _modernbert(**settings), seed)


def _sharp(make: Callable[[], PreTrainedModel], seed: int) -> PreTrainedModel:
    torch.manual_seed(seed)
    model = make().eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.15)
    return model


def documents(lengths: Sequence[int] = LENGTHS, seed: int = 0, weighted: bool = False) -> list[Document]:
    """Random documents, a fifth of each masked, with the true ids as targets."""
    rng = np.random.default_rng(seed)
    made = []
    for length in lengths:
        ids = rng.integers(4, VOCABULARY, length)
        ids[0], ids[-1] = SPACE.start, SPACE.end
        asked = np.sort(rng.choice(np.arange(1, length - 1), max(1, length // 5), replace=False))
        targets = ids[asked].copy()
        ids[asked] = MASK
        weights = rng.uniform(0.5, 2, len(asked)).astype(np.float32) if weighted else None
        made.append(Document(ids=ids, asked=asked, targets=targets, weights=weights))
    return made


def separate_logits(model: PreTrainedModel, packed: Sequence[Document]) -> Tensor:
    """(Q, V) logits at the asked positions, each document alone through the plain model (eager attention)."""
    plain = copy.deepcopy(model)
    plain.set_attn_implementation("eager")
    return asked_logits(plain, packed)


def asked_logits(model: nn.Module, packed: Sequence[Document]) -> Tensor:
    """(Q, V) logits at the asked positions, each document alone through `model` as it is."""
    answers = []
    for document in packed:
        ids = torch.from_numpy(np.asarray(document.ids, dtype=np.int64))[None]
        positions = None if document.positions is None else torch.from_numpy(document.positions)[None]
        out = model(input_ids=ids, attention_mask=torch.ones_like(ids), position_ids=positions)
        answers.append(out.logits[0, torch.from_numpy(document.asked)])
    return torch.cat(answers)


@torch.no_grad()
def leak(model: PreTrainedModel, packed: Sequence[Document], answer: Callable[[], Tensor]) -> float:
    """Largest difference between a packed answer (Q, V) and each document alone."""
    return float((answer() - separate_logits(model, packed)).abs().max())


@torch.no_grad()
def position_ids_only(model: PreTrainedModel, packed: Sequence[Document], implementation: str) -> Tensor:
    """(Q, V) of the packing that looks right and is not: positions restart, attention does not know."""
    naive = copy.deepcopy(model)
    naive.set_attn_implementation(implementation)
    batch = pack(packed)
    logits: Tensor = naive(input_ids=batch.input_ids, position_ids=batch.position_ids).logits[0]
    return logits[batch.asked]
