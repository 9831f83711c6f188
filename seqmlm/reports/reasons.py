"""What was counted where a unit stands, in words."""

from __future__ import annotations

from seqmlm.anomaly.values import SEEN, Scored


def counted(scored: Scored, unit: int) -> str:
    """How often a unit was seen in training in the longest context that was seen there, in words.

    The context reads both sides, nearest units first; of a set it is other members drawn from it.
    """
    places, seen, total = scored.values[SEEN][unit].tolist()
    if not places:
        return f"seen {seen:,} times in training"
    if scored.encoding.positions is not None:
        return f"seen {seen:,} of {total:,} times beside others of its set"
    spans, at = scored.every_span, int(scored.places[unit])
    first, last = at - (places - places // 2), at + 1 + places // 2
    before = after = ""
    if at:
        before = repr(scored.raw[int(spans[max(first, 0), 0]) : int(spans[at - 1, 1])])
    if at + 1 < len(spans):
        after = repr(scored.raw[int(spans[at + 1, 0]) : int(spans[min(last, len(spans)) - 1, 1])])
    if last == at + 1:
        where = f"after {before}" if before else "at the beginning"
    else:
        where = f"between {before or 'the beginning'} and {after or 'the end'}"
    return f"seen {seen:,} of {total:,} times {where}"
