"""What a report says of units and rows, in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from seqmlm.anomaly.values import Row, Scored

_UNLIKELY = math.log(0.005)  # alternatives below half a percent are not named
_LONGEST = 80


def told(scored: Scored, unit: int, surface: Callable[[int], str]) -> str:
    """A unit: its text, its surprisal, and what was expected.

    Args:
        scored: the record.
        unit: index into it.
        surface: spelling of a letter of `Scored.top_ids`.
    """
    text = f"{scored.text(unit).strip()[:_LONGEST]}: {scored.surprisal[unit]:.1f} bits"
    if scored.entropy is not None:
        text += f", entropy {scored.entropy[unit]:.1f}"
    if scored.top_ids is None or scored.top_log_probs is None:
        return text
    pairs = zip(scored.top_ids[unit].tolist(), scored.top_log_probs[unit].tolist(), strict=True)
    likely = [(token, 100 * math.exp(p)) for token, p in pairs if token >= 0 and p > _UNLIKELY]
    shares = ", ".join(f"{surface(token)} {share:.0f} %" for token, share in likely)
    return f"{text}\nexpected: {shares}" if shares else text


def standing_out(row: Row, scored: Scored, surface: Callable[[int], str]) -> str:
    """The most surprising unit of a row, in one line; empty for a row without units."""
    if not len(row.units):
        return ""
    worst = int(row.units[scored.surprisal[row.units].argmax()])
    return told(scored, worst, surface).replace("\n", "; ")


def verdict(score: float | None, p_value: float | None, alarm: bool | None) -> str:
    """What was found of a row.

    >>> verdict(3.25, 0.001, True)
    'score 3.25, p 0.001, alarm'
    """
    parts = [] if score is None else [f"score {score:.4g}"]
    parts += [] if p_value is None else [f"p {p_value:.2g}"]
    return ", ".join([*parts, "alarm"] if alarm else parts)


def shown_scale(shown: Sequence[Scored]) -> float:
    """Bits of the strongest colour: what one unit in two hundred reaches, from 4 to 16."""
    bits = np.concatenate([np.zeros(1), *(one.surprisal[np.isfinite(one.surprisal)] for one in shown)])
    return float(np.clip(np.ceil(np.quantile(bits, 0.995)), 4, 16))
