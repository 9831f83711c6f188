"""Facts about one unit: its bits, the units expected in its place, and its counts, in words."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from seqmlm.anomaly.values import ALONE, COUNTED, SEEN, Row, ScoredRecord
from seqmlm.errors import number_of

Meaning = Callable[[str], str | None]
"""The meaning of a unit with this spelling, or None."""


def unit_fields(
    scored: ScoredRecord,
    unit: int,
    surface: Callable[[int], str | None],
    meaning: Meaning,
    row: Row | None = None,
) -> dict[str, Any]:
    """The fields of one unit: its text, meaning, place and surprisal, and the units expected instead.

    Args:
        scored: the record.
        unit: index of the unit in the record.
        surface: gives the spelling of a token. A token that is only a piece of a unit has no spelling. It is
            left out of `expected`, which then has fewer entries or none.
        meaning: gives the meaning of a unit.
        row: the row of the unit. With it, places are those in the longer sequence that contains the row.
    """

    def with_description(text: str, fields: dict[str, Any]) -> dict[str, Any]:
        description = meaning(text)
        return {"unit": text, **fields, **({} if description is None else {"description": description})}

    start, end = scored.spans[unit].tolist()
    place = (start, end) if row is None else row.outer_span(start, end)
    bits = {"start": place[0], "end": place[1], "surprisal": float(scored.surprisal[unit])}
    fields = with_description(scored.text(unit), bits)
    values = {name: column[unit] for name, column in scored.values.items()}
    if COUNTED in values:
        fields |= {"model_surprisal": float(values[ALONE]), "counted": float(values[COUNTED])}
    if SEEN in values:
        fields["reason"] = count_sentence(scored, unit)
    if "entropy" in values:
        fields["entropy"] = float(values["entropy"])
    if "rank" in values:
        fields["rank"] = int(values["rank"])
    if "top_ids" in values:
        names = scored.rule.facts.names
        pairs = zip(values["top_ids"].tolist(), values["top_log_probs"].tolist(), strict=False)
        spell = surface if names is None else names.__getitem__
        spelled = [(spell(symbol), math.exp(p)) for symbol, p in pairs if symbol >= 0]
        fields["expected"] = [with_description(text, {"p": p}) for text, p in spelled if text is not None]
    return fields


def count_sentence(scored: ScoredRecord, unit: int) -> str:
    """A sentence on how often a unit occurred in the training data, in the longest context found there.

    The context includes both sides, nearest units first. For a set, it is a draw of other members. Only units
    with the same number of tokens count. The sentence mentions this if units have different numbers of
    tokens.
    """
    places, hits, total = scored.values[SEEN][unit].tolist()
    if not places:
        return f"seen {number_of(hits, 'time')} in training"
    at = int(scored.places[unit])
    size = int(scored.every_size[at])
    alike = f", among units of {size} token{'s' if size > 1 else ''}" if scored.every_size.max() > 1 else ""
    if scored.encoding.positions is not None:
        return f"seen {hits:,} of {number_of(total, 'time')} with other members of its set{alike}"
    spans = scored.every_span
    first, last = at - (places - places // 2), at + 1 + places // 2
    preceding = following = ""
    if at:
        preceding = repr(scored.raw[int(spans[max(first, 0), 0]) : int(spans[at - 1, 1])])
    if at + 1 < len(spans):
        following = repr(scored.raw[int(spans[at + 1, 0]) : int(spans[min(last, len(spans)) - 1, 1])])
    if last == at + 1:
        where = f"after {preceding}" if preceding else "at the beginning"
    else:
        where = f"between {preceding or 'the beginning'} and {following or 'the end'}"
    return f"seen {hits:,} of {number_of(total, 'time')} {where}{alike}"
