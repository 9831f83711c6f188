"""What turns a model's outputs into p(x_i | rest), where training showed it more, or less, than that.

With random and keep rates a and b over R replacement tokens the output of an optimal model at a position it
sees is p(t) ~ q(t) (b [t = x_i] + a / R): subtracting log(1 + b R / a) from the observed token's logit gives
the masked conditional q back. A masker that selects tokens at unequal rates s(t) multiplies q by s(t), behind
[MASK] too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqmlm.engine.masking.base import Hider, Masker, MaskingConfig
from seqmlm.engine.types import Floats, TokenSpace
from seqmlm.errors import UsageError

_REMEDY = "fit one to exact conditionals instead (seqmlm calibrate MODEL NORMAL), or ask with --mode exact"


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


def derive(
    config: MaskingConfig,
    masker: Masker,
    space: TokenSpace,
    unigram: NDArray[Any] | None = None,
    *,
    single_tokens: bool = False,
) -> Correction:
    """The correction that follows from how a model was trained; exact for an optimal model.

    It needs [MASK], random or kept to be drawn for each token on its own, and random tokens that ignore the
    true one: what neighbours of the same outcome, or the class of the random token, tell of the true one no
    correction of a single logit takes back.

    Args:
        config, masker: how the model was trained.
        space: its vocabulary, whose ordinary tokens are the replacement set.
        unigram: (V,) frequencies or probabilities that random tokens were drawn by, where
            `config.replacement` is "unigram".
        single_tokens: every unit is one token, so that one outcome a unit is one a token.

    Raises:
        UsageError: the correction does not exist; the message names masker and reason.
    """
    reason = _obstacle(config, masker, unigram, single_tokens)
    if reason is not None:
        raise UsageError(f"no one-pass correction follows from masker {config.masker}: {reason}; {_REMEDY}")
    if config.replacement == "unigram":
        assert unigram is not None
        shares = np.where(space.is_special, 0.0, np.asarray(unigram, dtype=np.float64))
        shares /= shares.sum()
        if config.keep and (shares[space.ordinary] == 0).any():
            raise UsageError(
                f"no one-pass correction follows from masker {config.masker}: some tokens never stood in as "
                f"random ones, so one that is seen was always kept; {_REMEDY}"
            )
    else:
        shares = np.where(space.is_special, 0.0, 1 / len(space.ordinary))
    seen = np.zeros(space.size)
    if config.keep:
        ordinary = space.ordinary
        seen[ordinary] = np.log1p(config.keep / (config.random * shares[ordinary]))
    bias = selection_bias(masker, space)
    return Correction(seen=seen.astype(np.float32), bias=bias, kind="derived")


def selection_bias(masker: Masker, space: TokenSpace) -> Floats | None:
    """(V,) log s(t), nats, centred over the tokens that are selected at all; None where all rates are equal.

    Also None where a rate depends on more than the token (NaN). A token that is never selected keeps its
    logit: the model was never asked for it.
    """
    rates = np.asarray(masker.selection_rate(space), dtype=np.float64)[space.ordinary]
    chosen = rates > 0
    if np.isnan(rates).any() or not chosen.any() or np.ptp(rates[chosen]) == 0:
        return None
    logs = np.zeros(len(rates))
    logs[chosen] = np.log(rates[chosen])
    logs[chosen] -= logs[chosen].mean()
    bias = np.zeros(space.size, dtype=np.float32)
    bias[space.ordinary] = logs
    return bias


def _obstacle(
    config: MaskingConfig, masker: Masker, unigram: NDArray[Any] | None, single_tokens: bool
) -> str | None:
    """Why there is no derived correction; None where there is one."""
    if config.keep + config.random == 0:
        return "it never left or replaced a token, so the outputs at tokens the model sees are untrained"
    if config.random == 0:
        return "it never put random tokens, so a token that is seen is always the true one"
    if masker.outcome not in ("token", *(["unit"] if single_tokens else [])):
        return f"[MASK], random or kept is drawn once for each {masker.outcome}, not for each token"
    if masker.replacement != "global":
        return f"its random tokens depend on the true one (replacement {masker.replacement!r})"
    if isinstance(masker, Hider):
        return "some of its positions always become [MASK]"
    if config.replacement == "unigram" and unigram is None:
        return "random tokens came by frequency, and those frequencies are not stored with the model"
    return None
