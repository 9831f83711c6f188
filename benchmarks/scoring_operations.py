"""Count the multiply-adds of exact pseudo-log-likelihoods, with fewer queries and with all of them.

The counts are of the matrix products of a ModernBERT for one masked copy of a sequence per token. They do not
include attention windows and padding.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Lengths = NDArray[np.float64]


def asked_lengths(folder: Path, sequences: int) -> Lengths:
    """(S,) number of tokens of the scored sequences, special tokens included."""
    lengths = np.load(folder / "lengths.npy")
    order = np.random.default_rng(0).permutation(len(lengths))
    asked: Lengths = lengths[order[:sequences]].astype(np.float64)
    return asked


def multiply_adds(config: Any, n: Lengths) -> dict[str, float]:
    """Multiply-adds per sequence, by arm; "one-pass" is ours without masks and without its savings.

    Args:
        config: configuration of the ModernBERT.
        n: (S,) lengths in tokens; all but two are scored.
    """
    hidden, layers, heads = config.hidden_size, config.num_hidden_layers, config.num_attention_heads
    square, mlp = hidden**2, 3 * hidden * config.intermediate_size
    layer, attention = 4 * square + mlp, 2 * n * hidden
    head = square + hidden * config.vocab_size
    copies = n - 2
    body = n * layers * (layer + attention)
    # The first layer's queries, keys and values are those of each token and of a mask in its place.
    first = (n + copies) * 3 * square + copies * n * (square + mlp + attention)
    middle = copies * n * (layers - 2) * (layer + attention)
    # The last layer projects keys, and sums inputs by head, for one asked row a copy.
    last = copies * (n * square + (1 + heads) * n * hidden + 3 * square + mlp)
    found = {
        "ours": first + middle + last + copies * head,
        "loop": copies * (body + head),
        "minicons": copies * (body + n * head),
        "one-pass": body + copies * head,
    }
    return {name: float(values.mean()) for name, values in found.items()}
