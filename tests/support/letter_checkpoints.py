"""Random BERTs whose vocabulary has a token for each letter, as protein and DNA models have it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from checkpoints import SHAPE
from transformers import BertConfig, BertForMaskedLM, BertTokenizerFast

BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PROTBERT = (*BERT, *"LAGVESIKRDTPNQFYMHCWXUBZO")
ANTIBERTY = (*BERT, *"ARNDCQEGHILKMFPSTWYV")
TAPE = ("<pad>", "<mask>", "<cls>", "<sep>", "<unk>", *"ABCDEFGHIKLMNOPQRSTUVWXYZ")
BASES = (*BERT, *"ACGTN")


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A vocabulary, and how its tokenizer treats case."""

    vocabulary: Sequence[str]
    lower: bool = False

    @property
    def mark(self) -> str:
        """The first character of special tokens."""
        return "<" if "<mask>" in self.vocabulary else "["

    def special(self, name: str) -> str:
        """A special token by BERT's name."""
        return f"<{name.lower()}>" if self.mark == "<" else f"[{name}]"


LAYOUTS = {
    "ProtBert": Layout(vocabulary=PROTBERT),
    "AntiBERTy": Layout(vocabulary=ANTIBERTY),
    "TAPE": Layout(vocabulary=TAPE),
    "special tokens last": Layout(vocabulary=[*PROTBERT[5:], *PROTBERT[4::-1]]),
    "lower case": Layout(vocabulary=[*PROTBERT[:5], *map(str.lower, PROTBERT[5:])], lower=True),
    "upper case, but a tokenizer that lowers": Layout(vocabulary=ANTIBERTY, lower=True),
}


def letter_checkpoint(layout: Layout, folder: Path, texts: Sequence[str] = ()) -> tuple[Any, dict[str, int]]:
    """A random BERT of a layout, saved as transformers saves it; the model, and its vocabulary."""
    torch.manual_seed(3)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(layout.vocabulary) + "\n", encoding="utf-8")
    names = {f"{name.lower()}_token": layout.special(name) for name in ("PAD", "UNK", "CLS", "SEP", "MASK")}
    fast = BertTokenizerFast(vocab=str(folder / "vocab.txt"), do_lower_case=layout.lower, **names)
    fast.save_pretrained(str(folder))
    vocabulary = {token: number for number, token in enumerate(layout.vocabulary)}
    size = {"vocab_size": len(vocabulary), "pad_token_id": vocabulary[layout.special("PAD")]}
    model = BertForMaskedLM(BertConfig(**SHAPE, **size, max_position_embeddings=64))
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.mul_(8)
    model.eval()
    model.save_pretrained(folder)
    return model, vocabulary
