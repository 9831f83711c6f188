"""What a report says of units and rows, in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from seqmlm.anomaly.values import Row, Scored

_UNLIKELY = math.log(0.005)  # alternatives below half a percent are not named
_LONGEST = 80
_MOST = 5  # alternatives that are named of a unit that is pointed at
_IN_TABLE = 3
_CHANNELS = 4  # p-values that a table names
_SEEN = str.maketrans({"\n": "↵", "\r": "", " ": "␣", "\t": "⇥"})


def told(scored: Scored, unit: int, surface: Callable[[int], str], *, most: int = _MOST) -> str:
    """A unit: its text, its surprisal, and what was expected.

    Args:
        scored: the record.
        unit: index into it.
        surface: spelling of a letter.
        most: alternatives that are named.
    """
    text = f"{visible(scored.text(unit))[:_LONGEST]}: {scored.surprisal[unit]:.1f} bits"
    values = {name: own[unit] for name, own in scored.values.items()}
    if "entropy" in values:
        text += f", entropy {values['entropy']:.1f}"
    if "top_ids" not in values:
        return text
    pairs = zip(values["top_ids"].tolist(), values["top_log_probs"].tolist(), strict=True)
    likely = [(token, 100 * math.exp(p)) for token, p in pairs if token >= 0 and p > _UNLIKELY][:most]
    shares = ", ".join(f"{visible(surface(token))} {share:.0f} %" for token, share in likely)
    return f"{text}\nexpected: {shares}" if shares else text


def standing_out(row: Row, scored: Scored, surface: Callable[[int], str]) -> str:
    """The most surprising unit of a row, in one line; empty for a row without units."""
    if not len(row.units):
        return ""
    worst = int(row.units[scored.surprisal[row.units].argmax()])
    return told(scored, worst, surface, most=_IN_TABLE).replace("\n", "; ")


def visible(text: str) -> str:
    """A text without the white space around it; white space alone by signs for it.

    >>> visible(" a "), visible("\\n    ")
    ('a', '↵␣␣␣␣')
    """
    return text.strip() or text.translate(_SEEN)


def firing(channels: Mapping[str, float]) -> str:
    """The smallest p-values among channels, in one line; those that say nothing are left out.

    >>> firing({"length": 1.0, "pll": 0.012, "misses": 0.5})
    'pll 0.012, misses 0.5'
    """
    ordered = sorted(channels.items(), key=lambda one: one[1])[:_CHANNELS]
    return ", ".join(f"{name} {p:.2g}" for name, p in ordered if p < 1 or len(channels) == 1)


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
