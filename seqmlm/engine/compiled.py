"""`torch.compile` for packed rows: what does not depend on where documents begin."""

from __future__ import annotations

import torch
from torch import nn
from transformers import AttentionInterface

from seqmlm.engine.attention import NAME, packed_attention


def compile_layers(module: nn.Module) -> None:
    """Compile each transformer layer in place, for rows of any number of tokens.

    Names of parameters stay as they are. Attention runs uncompiled in the middle of its layer: it is
    organised by document lengths, Python integers that differ in every row, and code compiled for some of
    them would be compiled anew for the next until the compiler gives up.
    """
    uncompiled = torch.compiler.disable(packed_attention)  # type: ignore[no-untyped-call]
    AttentionInterface.register(NAME, uncompiled)
    for part in module.modules():
        if isinstance(part, nn.ModuleList):
            for layer in part:
                layer.compile(dynamic=True)
