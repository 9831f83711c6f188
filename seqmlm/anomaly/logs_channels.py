"""The statistics of log records that a detector fuses, for many records at once; higher is more unusual."""

from __future__ import annotations

import numpy as np

from seqmlm.anomaly.logs_counts import LogCounts
from seqmlm.anomaly.logs_lines import Doubles, Lines, Longs

TOP = 5
"""Lines that `pll_top` averages over."""

COUNTED = ("unseen", "missing", "neighbour", "bigram_max", "bigram_mean", "length")
"""Channels that need no model."""

ASKED = ("pll_mean", "pll_max", "pll_top")
"""Channels of the pseudo-log-likelihood."""

MISSES = "misses"
"""The channel of LogBERT's rule, over a partition."""


def counted(lines: Lines, counts: LogCounts) -> dict[str, Doubles]:
    """The channels of `COUNTED`, each (R,).

    unseen: infinite with a line that no training record had, else the number of lines without a template.
    missing: bits of surprise that events which nearly all training records have are not there.
    neighbour: distance of the log1p counts of its events to the nearest training record's.
    bigram_max, bigram_mean: surprisal of a line after the one before it, in bits; the ends are events.
    length: distance of the number of lines from the training median, on a log scale, in units of the distance
        of the outermost percent on that side.

    Args:
        lines: of R records.
        counts: of the training records.
    """
    events = counts.events(lines.keys)
    surprisal, record = counts.bigrams(lines, events)
    pairs = np.bincount(record, minlength=len(lines))
    return {
        "unseen": unseen(lines, events, counts),
        "missing": counts.absence(lines, events).sum(axis=1),
        "neighbour": counts.nearest(lines, events)[0],
        "bigram_max": largest(surprisal, np.concatenate([[0], np.cumsum(pairs)])),
        "bigram_mean": np.bincount(record, weights=surprisal, minlength=len(lines)) / pairs,
        "length": counts.length_distance(lines.counts),
    }


def unseen(lines: Lines, events: Longs, counts: LogCounts) -> Doubles:
    """(R,) infinite for a record with a line never seen, whatever a mask would hide; else the lines that fit
    no template, which training had too."""
    never = np.bincount(lines.record, weights=events == counts.size, minlength=len(lines))
    new = np.bincount(lines.record, weights=lines.keys == counts.new, minlength=len(lines))
    return np.where(never > 0, np.inf, new)


def asked(bits: Doubles, offsets: Longs, units: Longs | None = None) -> dict[str, Doubles]:
    """The channels of `ASKED`, each (R,); NaN for records without lines.

    Args:
        bits: (N,) surprisal of each line.
        offsets: (R + 1,) where the records' lines begin and end.
        units: (R,) what the mean is over; None for the lines.
    """
    number = np.diff(offsets)
    record = np.repeat(np.arange(len(number)), number)
    order = np.lexsort((-bits, record))
    kept = order[np.arange(len(bits)) - offsets[record] < TOP]
    top = np.bincount(record[kept], weights=bits[kept], minlength=len(number))
    total = np.bincount(record, weights=bits, minlength=len(number))
    with np.errstate(invalid="ignore"):
        return {
            "pll_mean": total / (number if units is None else units),
            "pll_max": largest(bits, offsets),
            "pll_top": top / np.minimum(number, TOP),
        }


def misses(ranks: Longs, offsets: Longs, g: int) -> Doubles:
    """(R,) share of a record's units that are not among the g most probable; NaN where there are none.

    LogBERT's rule (Guo et al. 2021), which judges a random half of the lines, over a partition: every line is
    hidden once, and the same ones are missed each time.

    Args:
        ranks: (N,) tokens more probable than the observed one.
        offsets: (R + 1,) where the records' units begin and end.
        g: candidates that may stand in a place.
    """
    number = np.diff(offsets)
    record = np.repeat(np.arange(len(number)), number)
    missed = np.bincount(record, weights=ranks >= g, minlength=len(number))
    with np.errstate(invalid="ignore"):
        return missed / number


def floored(bits: Doubles, events: Longs, counts: LogCounts) -> Doubles:
    """(N,) surprisal in bits; a line never seen costs at least what a line drawn by chance would, and a bit.

    A model that has never met an id may give it any probability.
    """
    return np.where(events == counts.size, np.maximum(bits, np.log2(counts.size + 1) + 1), bits)


def largest(values: Doubles, offsets: Longs) -> Doubles:
    """(R,) maximum of each stretch; NaN for an empty one."""
    found = np.full(len(offsets) - 1, np.nan)
    full = np.flatnonzero(np.diff(offsets))
    if len(full):
        found[full] = np.maximum.reduceat(values, offsets[full])
    return found
