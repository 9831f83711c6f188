"""What was counted where a unit stands, in words."""

from __future__ import annotations

from seqmlm.anomaly.values import SEEN, Scored


def counted(scored: Scored, unit: int) -> str:
    """How often a unit was seen in training in the longest context that was seen there, in words.

    The context reads both sides, nearest units first; of a set it is other members drawn from it. Units are
    counted among those of as many tokens, which is said where they differ in that.
    """
    places, seen, total = scored.values[SEEN][unit].tolist()
    if not places:
        return f"seen {seen:,} times in training"
    at = int(scored.places[unit])
    size = int(scored.every_size[at])
    alike = f", among units of {size} token{'s' if size > 1 else ''}" if scored.every_size.max() > 1 else ""
    if scored.encoding.positions is not None:
        return f"seen {seen:,} of {total:,} times beside others of its set{alike}"
    spans = scored.every_span
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
    return f"seen {seen:,} of {total:,} times {where}{alike}"
