"""Surprisal as a background colour: eight steps of equal lightness difference, from pale to strong."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

STEPS = 8
"""Classes s1 to s8 of the style sheet; s0 has no colour."""

SCALE = 12.0
"""Bits from which on the colour is the strongest: an outcome of one in four thousand."""


def steps(bits: NDArray[np.float64], scale: float = SCALE) -> NDArray[np.int64]:
    """(N,) the step, 0 to 8, of each surprisal: linear in bits, so that a step is the same factor of p.

    Args:
        bits: (N,) surprisals; a NaN, which says nothing, has step 0, an infinite one has the last.
        scale: bits of the last step, above 0.

    >>> steps(np.array([0.0, 1.0, 6.0, 50.0, np.nan])).tolist()
    [0, 0, 4, 8, 0]
    """
    values = np.nan_to_num(np.asarray(bits, dtype=np.float64), nan=0.0, posinf=scale, neginf=0.0)
    return np.floor(np.clip(values / scale, 0.0, 1.0) * STEPS).astype(np.int64)


def legend(scale: float = SCALE, unit: str = "bits") -> Markup:
    """What each colour means."""
    marks = Markup("").join(
        Markup('<i class="s{}">{:g}</i>').format(step, scale * step / STEPS) for step in range(1, STEPS + 1)
    )
    return Markup('<p class="legend" aria-label="colour scale">{} and more:&nbsp;{}</p>').format(unit, marks)


def coloured_text(
    text: str,
    spans: Sequence[tuple[int, int]],
    bits: NDArray[np.float64],
    titles: Sequence[str],
    scale: float = SCALE,
) -> Markup:
    """The text with each span on its colour; what is between spans stays plain.

    Args:
        text: what the spans point into.
        spans: (N,) half-open, ascending by start; one that begins inside another begins where that ends.
        bits: (N,) surprisals.
        titles: (N,) what is told of a span when it is pointed at, or none for no span.
        scale: see `steps`.
    """
    pieces: list[Markup | str] = []
    done, first = 0, True
    tips = titles or [""] * len(spans)
    for (start, end), step, tip in zip(spans, steps(bits, scale).tolist(), tips, strict=True):
        begin = max(start, done)
        if begin >= end:
            continue
        pieces.append(Markup.escape(text[done:begin]))
        about = Markup(' data-tip="{}" tabindex="{}"').format(tip, 0 if first else -1) if tip else ""
        pieces.append(Markup('<b class="s{}"{}>{}</b>').format(step, about, text[begin:end]))
        done, first = end, first and not tip
    pieces.append(Markup.escape(text[done:]))
    return Markup("").join(pieces)
