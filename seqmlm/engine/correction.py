"""What turns a model's outputs into p(x_i | rest), where training showed it more, or less, than that.

With random and keep rates a and b over R replacement tokens the output of an optimal model at a position it
sees is p(t) ~ q(t) (b [t = x_i] + a / R): subtracting log(1 + b R / a) from the observed token's logit gives
the masked conditional q back. A masker that selects tokens at unequal rates s(t) multiplies q by s(t), behind
[MASK] too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from seqmlm.engine.types import Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class Correction:
    """What is subtracted from logits before the softmax.

    Args:
        seen: (V,) nats, from the logit of a token where the input shows that very token; 0 at special ids;
            None for nothing.
        bias: (V,) nats, from the logits of every row; 0 at special ids; None for nothing.
        kind: "none"; "derived" from how the model was trained, exact for an optimal model; or "fitted" to
            exact conditionals, an approximation.
    """

    seen: Floats | None = None
    bias: Floats | None = None
    kind: Literal["none", "derived", "fitted"] = "none"


class Corrector:
    """A correction on a device, applied to blocks of logits."""

    def __init__(self, correction: Correction, device: torch.device) -> None:
        self._seen = _sent(correction.seen, device)
        self._bias = _sent(correction.bias, device)

    def __call__(self, logits: Tensor, shown: Tensor) -> Tensor:
        """Correct in place.

        Args:
            logits: (Q, V) fp32.
            shown: (Q,) the ids that the input has at the asked positions.
        """
        if self._bias is not None:
            logits -= self._bias
        if self._seen is not None:
            rows = torch.arange(len(shown), device=logits.device)
            logits[rows, shown] -= self._seen[shown]
        return logits


def _sent(values: Floats | None, device: torch.device) -> Tensor | None:
    return None if values is None else torch.from_numpy(values).to(device, torch.float32)
