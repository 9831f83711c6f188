"""How to read a report: what its figures mean, for whoever gets the page without the command."""

from __future__ import annotations

from collections.abc import Iterable

CHANNELS = {
    "bits_per_unit": "mean surprisal of all units",
    "unexpected": "surprisal above what its place is uncertain by (entropy)",
    "segment": "the most unexpected stretch",
    "slor": "surprisal beyond what the frequency of the words explains",
    "surprisal": "surprisal of this unit",
    "unseen": "lines that training never had",
    "missing": "lines that nearly all training records have, and this one has not",
    "neighbour": "distance of the counts of lines to the nearest training record",
    "bigram": "how rarely training had this line after the one before it",
    "bigram_max": "the rarest pair of neighbouring lines",
    "bigram_mean": "mean rarity of pairs of neighbouring lines",
    "length": "far from the usual number of lines",
    "pll_mean": "mean surprisal of the lines",
    "pll_max": "largest surprisal of a line",
    "pll_top": "mean of the largest surprisals",
    "misses": "lines that are not among the most probable ones of their place",
    "rarity": "the rarest code, by frequency alone",
    "unknown": "codes that the vocabulary does not have",
    "mean": "mean surprisal of the codes",
    "max": "largest surprisal of a code",
    "worst_visit": "the most unusual visit",
    "excess": "surprisal beyond what the composition explains",
    "composition": "surprisal by composition alone",
    "line": "mean of the line's three largest z",
    "token": "surprisal against tokens of the same class, as z",
    "function": "90th percentile of its tokens' z",
    "peak": "the largest z of a token",
}
"""What each built-in channel measures; a channel of a plugin's level goes by its name alone."""


def reading(
    unit: str, rows: int, channels: Iterable[str], *, calibrated: bool, extrapolated: bool = False
) -> list[str]:
    """Sentences that explain a report.

    Args:
        unit: what the field counts.
        rows: that were judged.
        channels: whose p-values the report has.
        calibrated: whether rows have p-values.
        extrapolated: whether some of these lie below all that normal rows can show.
    """
    told = [
        "Higher scores are more unusual. "
        f"Surprisal is -log2 of the probability that the model gave the {unit}: "
        "1 bit is one in two, 10 bits are one in 1,000. Entropy is how uncertain the place is in any case.",
        "Places count from 0; their end is not included.",
    ]
    if not calibrated:
        return [
            *told,
            "These scores are not calibrated: they order rows, but do not say which are too unusual.",
        ]
    told.append(
        "The p-value is the share of normal rows, of similar length, that are at least as unusual. "
        f"If all {rows:,} rows were normal, about {0.01 * rows:,.1f} of them would have one of 0.01 or less: "
        "an alarm is a place to look at, not a proof."
    )
    if extrapolated:
        told.append(
            "An extrapolated p-value lies below what the calibration rows can show, and comes from a fitted "
            "tail: a ranking, not a guarantee."
        )
    known = [f"{name}: {CHANNELS[name]}" for name in channels if name in CHANNELS]
    if known:
        told.append("Channels have a p-value each and are fused into one. " + "; ".join(known) + ".")
    return told
