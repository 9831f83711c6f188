"""A judged row as a JSON line."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from seqmlm.anomaly.values import Doubles, Scored
from seqmlm.engine.reductions import Entropy, Rank, TopIds, TopLogProbs, top
from seqmlm.tasks.judging import JudgedRow
from seqmlm.tokenizers.base import Tokenizer

TOP_UNITS = 5
"""Units that `top` names, and those whose mean is `top_mean`."""

EXPECTED = top(3)
"""What a row says of each unit that it names."""

PER_UNIT = (Entropy(), Rank())
"""What a row says of each unit, where it names all."""


def line(
    judged: JudgedRow,
    tokenizer: Tokenizer,
    *,
    per_unit: bool = False,
    top: bool = True,
    sensitive: bool = False,
) -> dict[str, Any]:
    """The fields of a row; those that do not apply are left out, those without a value are None.

    Args:
        judged: the row.
        tokenizer: names the expected alternatives.
        per_unit: every unit with its surprisal, entropy and rank.
        top: the most surprising units, with what was expected instead.
        sensitive: the row says that it is of sensitive data, for whoever reads it.
    """
    row, scored = judged.row, judged.scored
    bits = scored.surprisal[row.units]
    whole = row.start == 0 and len(row.units) == len(scored)
    fields: dict[str, Any] = {"id": row.id, "source": row.source, "line": row.line}
    if not whole:
        fields |= {"start": row.start, "end": row.end}
    fields |= {"units": len(bits), **summary(bits), "score": _finite(row.score), **row.extra}
    if sensitive:
        fields["sensitive"] = True
    if judged.p_value is not None:
        fields["p_value"] = judged.p_value
        fields["extrapolated"] = judged.extrapolated
        if judged.alarm is not None:
            fields["alarm"] = judged.alarm
        fields["channels"] = dict(judged.channels)
    if top:
        worst = row.units[np.argsort(-bits, kind="stable")[:TOP_UNITS]]
        fields["top"] = [unit_fields(scored, unit, tokenizer) for unit in worst.tolist()]
    if per_unit:
        fields["per_unit"] = [unit_fields(scored, unit, tokenizer) for unit in row.units.tolist()]
    return fields


def summary(bits: Doubles) -> dict[str, float | None]:
    """Reductions of surprisals in bits; `pll` is in nats. None where there is no unit."""
    if not len(bits):
        names = ("bits_per_unit", "perplexity", "max", "top_mean")
        return {"pll": 0.0, "sum": 0.0, **dict.fromkeys(names)}
    total = float(bits.sum())
    mean = total / len(bits)
    return {
        "pll": -total * math.log(2),
        "bits_per_unit": mean,
        "sum": total,
        "max": float(bits.max()),
        "top_mean": float(np.sort(bits)[-TOP_UNITS:].mean()),
        "perplexity": 2.0**mean if mean < 1000 else None,
    }


def unit_fields(scored: Scored, unit: int, tokenizer: Tokenizer) -> dict[str, Any]:
    """One unit: its text and place, its surprisal, and what was expected instead where that is known."""
    start, end = scored.spans[unit].tolist()
    fields: dict[str, Any] = {
        "unit": scored.text(unit),
        "start": start,
        "end": end,
        "surprisal": float(scored.surprisal[unit]),
    }
    values = {name: own[unit] for name, own in scored.values.items()}
    if Entropy.name in values:
        fields["entropy"] = float(values[Entropy.name])
    if Rank.name in values:
        fields["rank"] = int(values[Rank.name])
    if TopIds.name in values:
        names = scored.rule.names
        letters, log_probs = values[TopIds.name].tolist(), values[TopLogProbs.name].tolist()
        fields["expected"] = [
            {"unit": tokenizer.surface(letter) if names is None else names[letter], "p": math.exp(log_prob)}
            for letter, log_prob in zip(letters, log_probs, strict=True)
            if letter >= 0
        ]
    return fields


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
