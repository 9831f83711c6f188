"""What is said of a unit: its bits, what was expected in its place, and what was counted there, in words."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from seqmlm.anomaly.values import ALONE, COUNTED, SEEN, Row, Scored

Meaning = Callable[[str], str | None]
"""What a unit spelled so stands for, or None."""


def unit_fields(
    scored: Scored, unit: int, surface: Callable[[int], str | None], meaning: Meaning, row: Row | None = None
) -> dict[str, Any]:
    """One unit: its text, its meaning and place, its surprisal, and what was expected instead.

    Args:
        unit: index into the record.
        surface: spelling of a token. What can only be a piece of a unit has none and is not named, so that
            `expected` has fewer entries then, or none.
        row: it is told of; then places are those in the whole that the row lies in.
    """

    def named(text: str, fields: dict[str, Any]) -> dict[str, Any]:
        told = meaning(text)
        return {"unit": text, **fields, **({} if told is None else {"description": told})}

    start, end = scored.spans[unit].tolist()
    place = (start, end) if row is None else row.at(start, end)
    bits = {"start": place[0], "end": place[1], "surprisal": float(scored.surprisal[unit])}
    fields = named(scored.text(unit), bits)
    values = {name: own[unit] for name, own in scored.values.items()}
    if COUNTED in values:
        fields |= {"model_surprisal": float(values[ALONE]), "counted": float(values[COUNTED])}
    if SEEN in values:
        fields["reason"] = counted(scored, unit)
    if "entropy" in values:
        fields["entropy"] = float(values["entropy"])
    if "rank" in values:
        fields["rank"] = int(values["rank"])
    if "top_ids" in values:
        names = scored.rule.facts.names
        pairs = zip(values["top_ids"].tolist(), values["top_log_probs"].tolist(), strict=False)
        spelled = [(surface(one) if names is None else names[one], p) for one, p in pairs if one >= 0]
        fields["expected"] = [named(text, {"p": math.exp(p)}) for text, p in spelled if text is not None]
    return fields


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
