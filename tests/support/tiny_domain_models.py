"""Loaded models of patients and of code, so small and untrained that a test can ask them anything."""

from __future__ import annotations

from typing import Any

import torch
from histories import histories

from seqmlm import plugins
from seqmlm.data.record import Record
from seqmlm.engine.backbones import ModelConfig, build
from seqmlm.engine.model import MaskedRows
from seqmlm.inference.model_folder import Card, LoadedModel
from seqmlm.tokenizers.base import Tokenizer
from seqmlm.tokenizers.code import CodeTokenizer
from seqmlm.tokenizers.events import EventsTokenizer
from seqmlm.tokenizers.lexers.source import SourceText

MODULE = '''"""Stacks."""
import os


class Stack:
    def push(self, item):
        self.items.append(item)
        return len(self.items) + 1

    def pop(self):
        return self.items.pop()


def depth(stack, limit=10):
    total = 0
    for item in stack.items:
        total = total + item.depth
    return min(total, limit)
'''


def loaded(domain: str, tokenizer: Tokenizer, max_length: int) -> LoadedModel:
    """Two random layers."""
    torch.manual_seed(3)
    torch.set_num_threads(1)
    overrides = {"num_hidden_layers": 2, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    config = ModelConfig(max_length=max_length, overrides=overrides, global_attention=True)
    model = build(config, tokenizer.space)
    own = plugins.domain(domain)
    card = Card(
        domain=domain,
        unit=own.unit,
        tokenizer=tokenizer.name,
        max_length=max_length,
        probability="ordinary",
    )
    rows = MaskedRows(model, tokenizer.space)
    return LoadedModel(rows=rows, tokenizer=tokenizer, domain=own, card=card, path="nowhere")


def patients_model(max_length: int = 256, **options: Any) -> LoadedModel:
    """Knows the codes of 60 drawn patients."""
    return loaded("ehr", EventsTokenizer.train(histories(60), **options), max_length)


def patients(count: int) -> list[Record]:
    """Patients whose codes the model knows."""
    return [
        Record(id=one.subject, raw=one, source="t.csv", line=number, document=one.subject)
        for number, one in enumerate(histories(count), start=1)
    ]


def code_model(max_length: int = 512) -> LoadedModel:
    """Knows the bytes of `MODULE`."""
    return loaded("code", CodeTokenizer.train([MODULE] * 4, vocabulary_size=300), max_length)


def source(text: str = MODULE, name: str = "stack.py") -> Record:
    """A Python file."""
    return Record(id=name, raw=SourceText(text, "python"), source=f"/tree/{name}", line=1)
