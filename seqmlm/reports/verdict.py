"""Sentences about figures: which is better, by how much, and whether that is certain.

Every claim is computed from the numbers in its sentence. Two numbers that look the same are called equal. A
difference is certain if its 95 % interval excludes 0. Missing and NaN numbers are not shown, and there are no
claims about them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from seqmlm.errors import number_of

LITTLE = 0.02
"""A model that saves at most this share of the bits of unit frequencies gets a warning."""

MARGIN = 0.01
"""If a model differs by a smaller share from the bits of counts, there is no advice."""

DIGITS, MOST_DIGITS = 3, 6
"""Decimal places of a figure, and the maximum for figures that would otherwise look the same."""

MODEL, COUNTS, MIXTURE, FREQUENCIES = "model", "counts", "mixture", "frequencies"
NAMES = {
    MIXTURE: "model + counts",
    MODEL: "the model",
    COUNTS: "n-gram counts",
    FREQUENCIES: "unit frequencies",
}
"""Names that sentences give to predictors of held-out units."""

_TRAIN_LONGER = "train longer (--max-time 1h), give more data, or start from a trained model (--init)"


class Gain(NamedTuple):
    """The lead of a first figure over a second, with a 95 % interval. NaN if it was not measured."""

    value: float
    low: float = math.nan
    high: float = math.nan

    @classmethod
    def of(cls, figures: Mapping[str, float] | None) -> Gain:
        """The gain with the figures `value`, `low` and `high`. NaN for missing figures."""
        return cls(*((figures or {}).get(name, math.nan) for name in cls._fields))

    @property
    def reverse(self) -> Gain:
        """The lead of the second over the first."""
        return Gain(-self.value, -self.high, -self.low)

    def size(self, unit: str = "") -> str:
        """The difference as a text, with its interval in the same direction.

        >>> Gain(-0.2, -0.3, 0.1).size()
        'by 0.2 (95 % -0.1 to 0.3)'
        """
        gain = self if self.value >= 0 else self.reverse
        bounds = "" if math.isnan(gain.low) else f" (95 % {gain.low:.3g} to {gain.high:.3g})"
        return f"by {gain.value:.3g}{unit and f' {unit}'}{bounds}"


def is_measured(value: float | None) -> bool:
    """Whether a figure was measured."""
    return value is not None and not math.isnan(value)


def figure_texts(figures: Mapping[str, float], digits: int = DIGITS) -> dict[str, str]:
    """Figures as texts, with enough decimal places to distinguish them, at most 6.

    >>> figure_texts({"model": 1.9, "counts": 1.8606, "mixture": 1.8609})
    {'model': '1.9000', 'counts': '1.8606', 'mixture': '1.8609'}
    """
    distinct = len({round(value, MOST_DIGITS) for value in figures.values()})
    for places in range(digits, MOST_DIGITS + 1):
        texts = {name: f"{value:.{places}f}" for name, value in figures.items()}
        if len(set(texts.values())) >= distinct:
            break
    return texts


def comparison_words(first: float, second: float, gain: Gain | None = None, *, lower: bool = False) -> str:
    """The words between the names of two figures, such as "better than".

    Args:
        first, second: the figures.
        gain: the gain of the first over the second. Without an interval, certainty is not mentioned.
        lower: whether lower figures are better.

    >>> comparison_words(0.9, 0.8, Gain(0.1, 0.02, 0.2))
    'clearly better than'
    >>> comparison_words(0.8, 0.9, Gain(-0.1, -0.2, 0.1)), comparison_words(2.0, 1.0, lower=True)
    ('not clearly worse than', 'worse than')
    >>> comparison_words(1.0, 1.0)
    'equal to'
    """
    first, second = round(first, MOST_DIGITS), round(second, MOST_DIGITS)
    if first == second:
        return "equal to"
    better = (first < second) == lower
    word = "better than" if better else "worse than"
    if gain is None or math.isnan(gain.low) or math.isnan(gain.high):
        return word
    certain = gain.low > 0 if better else gain.high < 0
    return f"clearly {word}" if certain else f"not clearly {word}"


# Pretraining


@dataclass(frozen=True, kw_only=True)
class HeldOutBits:
    """Bits per unit of the same held-out units, for each predictor. Lower is better.

    Args:
        unit: name of a unit.
        bits: bits by a name in `NAMES`. Figures that were not measured are missing or NaN.
        gains: measured gains of one name over another.
        mixed: whether scores use the model and counts together, or only the model.
    """

    unit: str
    bits: Mapping[str, float]
    gains: Mapping[tuple[str, str], Gain] = field(default_factory=dict)
    mixed: bool = False

    @classmethod
    def of_counts(cls, unit: str, facts: Mapping[str, Any]) -> HeldOutBits:
        """The bits in the facts stored with counts."""
        bits = {name: facts[f"{name}_bits"] for name in NAMES if f"{name}_bits" in facts}
        gains = {
            (first, second): Gain.of(gain)
            for first, by_second in facts.get("gains", {}).items()
            for second, gain in by_second.items()
        }
        return cls(unit=unit, bits=bits, gains=gains, mixed=bool(facts.get("better")))

    @classmethod
    def of_evaluation(cls, unit: str, metrics: Mapping[str, float]) -> HeldOutBits:
        """The bits in the metrics of a model without counts."""
        names = {MODEL: "eval/bits_per_unit", FREQUENCIES: "eval/unigram_bits_per_unit"}
        return cls(unit=unit, bits={name: metrics[key] for name, key in names.items() if key in metrics})

    @property
    def measured_bits(self) -> dict[str, float]:
        """The measured bits, lowest first."""
        present = {name: bits for name, bits in self.bits.items() if is_measured(bits)}
        return dict(sorted(present.items(), key=lambda pair: pair[1]))

    @property
    def scoring_name(self) -> str:
        """The name of the predictor that scores use."""
        return MIXTURE if self.mixed else MODEL

    def comparison(self, first: str, second: str) -> str:
        """A clause that compares two of `NAMES`, with their difference. "" if one was not measured."""
        bits = self.measured_bits
        if not {first, second} <= bits.keys():
            return ""
        gain = self.gain(first, second)
        verb = "is" if first in (MODEL, MIXTURE) else "are"
        words = comparison_words(bits[first], bits[second], gain, lower=True)
        by = "" if words == "equal to" or gain is None else f", {gain.size('bits')}"
        return f"{NAMES[first]} {verb} {words} {NAMES[second]}{by}"

    def gain(self, first: str, second: str) -> Gain | None:
        """The bits that the first saves over the second, with an interval. None if they were not measured."""
        if (first, second) in self.gains:
            return self.gains[first, second]
        gain = self.gains.get((second, first))
        return None if gain is None else gain.reverse


def bits_sentence(held_out: HeldOutBits) -> str:
    """A sentence with the bits of each predictor: first the predictor used for scores, then lowest first."""
    texts = figure_texts(held_out.measured_bits)
    if not texts:
        return "not evaluated, because no records are held out"
    first = held_out.scoring_name if held_out.scoring_name in texts else next(iter(texts))
    following = [f"{text} with {NAMES[name]}" for name, text in texts.items() if name != first]
    lead = f"{texts[first]} bits per {held_out.unit} on held-out records with {NAMES[first]}"
    lead += " (used for scores)" if first == held_out.scoring_name and MIXTURE in texts else ""
    return f"{lead}; {', '.join(following)}" if following else lead


def counts_sentences(held_out: HeldOutBits, partial_levels: Sequence[str] = ()) -> list[str]:
    """Sentences on whether scores use counts, on the bits of model and counts, and on their differences.

    Args:
        partial_levels: levels that show the model only a part of each record. Their scores never use counts.
    """
    if held_out.mixed:
        names = ", ".join(partial_levels)
        excepted = f"; {names} scores use only the model" if names else ""
        sentences = [f"scores use the model and n-gram counts of the training data{excepted}"]
    else:
        sentences = ["scores use only the model, without n-gram counts"]
    # Use the same decimal places as the sentences that also show frequencies.
    ranked = {
        name: bits for name, bits in figure_texts(held_out.measured_bits).items() if name != FREQUENCIES
    }
    if ranked:
        (lowest, bits), *following = ranked.items()
        listed = [f"{bits} bits per {held_out.unit} with {NAMES[lowest]}"]
        listed += [f"{bits} with {NAMES[name]}" for name, bits in following]
        sentences.append(f"on held-out records: {', '.join(listed)}")
    compared = (held_out.comparison(*pair) for pair in ([*ranked][:2], [MIXTURE, MODEL]) if len(pair) == 2)
    return [*sentences, *dict.fromkeys(filter(None, compared))]


def training_sentences(held_out: HeldOutBits, steps: int) -> list[str]:
    """Sentences on the result of a training: steps and bits, and warnings if it has learnt little."""
    return [f"{number_of(steps, 'step')}: {bits_sentence(held_out)}", *training_warnings(held_out)]


def training_warnings(held_out: HeldOutBits) -> list[str]:
    """Warnings if frequencies or counts predict as well as the model, one sentence each."""
    warnings = []
    for name in dict.fromkeys((MODEL, held_out.scoring_name)):
        if text := little_sentence(held_out, name):
            warnings.append(f"{text}: {_TRAIN_LONGER}")
    bits, used = held_out.measured_bits, held_out.scoring_name
    if {COUNTS, used} <= bits.keys():
        stands = comparison_words(bits[used], bits[COUNTS], held_out.gain(used, COUNTS), lower=True)
        if not stands.startswith(("better", "clearly better")):
            matters = abs(bits[used] - bits[COUNTS]) > MARGIN * bits[COUNTS]
            advice = ": train longer, or on more data" if matters else ""
            warnings.append(f"{held_out.comparison(used, COUNTS)}{advice}")
    return warnings


def little_sentence(held_out: HeldOutBits, name: str = MODEL) -> str:
    """A sentence if one of `NAMES` is hardly better than frequencies, or worse. Otherwise ""."""
    bits = held_out.measured_bits
    if not {name, FREQUENCIES} <= bits.keys():
        return ""
    achieved, floor = bits[name], bits[FREQUENCIES]
    if round(achieved, MOST_DIGITS) >= round(floor, MOST_DIGITS):
        return held_out.comparison(name, FREQUENCIES)
    if achieved > (1 - LITTLE) * floor:
        return f"{NAMES[name]} is hardly better than {NAMES[FREQUENCIES]}"
    return ""


def links_warnings(unit: str, metrics: Mapping[str, float]) -> list[str]:
    """A warning that the links of a model may be noise, if the model has learnt little."""
    held_out = HeldOutBits.of_evaluation(unit, metrics)
    if not (text := little_sentence(held_out)):
        return []
    return [f"{text}: the links that it finds may be noise ({bits_sentence(held_out)})"]


# Fine-tuning

BOTH = "model and columns"
"""Name of the mean of a model's predictions and the predictions of boosted columns."""

PLACES = "unit at each place"
"""Name of a rival that needs examples of equal length, which most data do not have."""


def finetuning_sentence(figures: Mapping[str, Any], primary: str) -> str:
    """A sentence with the primary figure, and its comparison with the best rival.

    Args:
        figures: figures on the test data (see `seqmlm.finetuning.worth.figures_of`).
        primary: name of the primary measure.
    """
    if not is_measured(figures.get(primary)):
        return f"{primary} is not defined, because all test labels are equal: give other data with --test"
    rivals = {
        name: measures[primary]
        for name, measures in figures["rivals"].items()
        if is_measured(measures.get(primary))
    }
    lead = figures.get("lead") or {"over": ""}
    figure, over = figures[primary], str(lead["over"])
    texts = figure_texts({"": figure} | {name: rivals[name] for name in (over, BOTH) if name in rivals})
    parts = [
        f"{primary} {texts['']}{_bounds(figures['intervals'][primary])} on {figures['test']} test records"
    ]
    if seeds := figures.get("seeds"):
        parts[0] += f", {figures['mean']:.3f} (sd {figures['sd']:.3f}) on average of {len(seeds)} seeds"
    if over in rivals:
        gain = Gain(lead["difference"], lead["low"], lead["high"])
        words = comparison_words(figure, rivals[over], gain)
        by = "" if words == "equal to" else f", {gain.size()}"
        advice = "" if words.endswith("better than") else _TEACH_MORE
        parts.append(f"{words} {over} {texts[over]}{by}{advice}")
    if BOTH in rivals:
        parts.append(f"{BOTH} {texts[BOTH]}")
    unfitted = figures.get("unfitted", {})
    parts += [f"{name} could not be fitted: {why}" for name, why in unfitted.items() if name != PLACES]
    if alike := figures.get("resembling"):
        parts.append(f"{alike} test records resemble training records, so the result may be too good")
    return "; ".join(parts)


_TEACH_MORE = ": give more examples, or use a model with more pretraining"


def _bounds(bounds: Sequence[float]) -> str:
    """The two bounds of an interval in brackets, "" if they are NaN."""
    low, high = bounds
    return "" if math.isnan(low) else f" ({low:.3f} to {high:.3f})"


# Classes by words, rankings, measurements


def accuracy_sentence(figures: Mapping[str, Any]) -> str:
    """A sentence with the accuracy, and its comparison with the better of two trivial guesses."""
    accuracy, (low, high) = figures["accuracy"], figures["interval"]
    floors = {
        "always the most frequent class": figures["majority"],
        "random guesses": figures["calibrated_random"],
    }
    percents = {name: 100 * value for name, value in {"": accuracy, **floors}.items()}
    texts = figure_texts(percents, digits=1)
    best = max(floors, key=floors.__getitem__)
    gain = Gain(accuracy - floors[best], low - floors[best], high - floors[best])
    guesses = ", ".join(f"{name} {texts[name]}%" for name in floors)
    return (
        f"accuracy {texts['']}% ({low:.1%} to {high:.1%}), macro F1 {figures['macro_f1']:.3f}; {guesses}; "
        f"{comparison_words(percents[''], percents[best], gain)} {best}"
    )


def ranking_sentence(areas: Mapping[str, float], floors: Iterable[str]) -> str:
    """A sentence with the AUROC of each score. It tells if the first score is not better than the best floor.

    Args:
        areas: AUROC by name. The first one is compared with the floors.
        floors: names of the scores that need no model.
    """
    measured = {name: area for name, area in areas.items() if is_measured(area)}
    texts, first = figure_texts(measured), next(iter(areas))
    listed = f"AUROC {', '.join(f'{text} by {name}' for name, text in texts.items())}"
    rivals = {name: measured[name] for name in floors if name in measured}
    if not rivals or first not in measured:
        return listed
    best = max(rivals, key=rivals.__getitem__)
    words = comparison_words(measured[first], rivals[best])
    return listed if words == "better than" else f"{listed}: {first} is {words} {best}"


def nearest_sentence(distances: Mapping[str, float | None]) -> str:
    """A sentence that names the joint distributions nearest to the model, according to their A-KL."""
    measured = {name: value for name, value in distances.items() if value is not None and is_measured(value)}
    if not measured:
        return "no distance to the model could be measured"
    texts = figure_texts(measured, digits=4)
    closest = min(measured, key=measured.__getitem__)
    names = [name for name, text in texts.items() if text == texts[closest]]
    verb = "is" if len(names) == 1 else "are"
    return f"{' and '.join(names)} {verb} nearest to the model, A-KL {texts[closest]}"


def agreement_sentences(figures: Mapping[str, Any]) -> Iterator[str]:
    """A sentence on the agreement with measurements, compared with the best rival, if it was measured."""
    gain_figures = figures.get("gain")
    if gain_figures and is_measured(gain_figures["value"]):
        gain = Gain(gain_figures["value"], gain_figures["low"], gain_figures["high"])
        words = comparison_words(gain.value, 0.0, gain).removesuffix(" than").removesuffix(" to")
        bounds = "" if math.isnan(gain.low) else f" ({gain.low:+.3f} to {gain.high:+.3f})"
        yield (
            f"Spearman of the model minus that of {gain_figures['against']}: {gain.value:+.4f}{bounds}, on "
            f"{number_of(figures['measured'], 'variant')}: {words}"
        )


def suggestion_doubts(figures: Mapping[str, Any]) -> Iterator[str]:
    """A warning about suggestions, if another prediction ranks the measurements at least as well."""
    gain_figures = figures.get("gain")
    if figures.get("next") and gain_figures and is_measured(gain_figures["value"]):
        gain = Gain(gain_figures["value"], gain_figures["low"], gain_figures["high"]).reverse
        words = comparison_words(gain.value, 0.0, gain)
        if not words.endswith("worse than"):
            ranks = "as good as" if words == "equal to" else words
            rival = gain_figures["against"]
            yield f"{rival} is {ranks} this model on the measured variants: do not rely on these suggestions"
