"""Sentences about figures: what is better, by how much, and whether that is certain.

Every claim is computed from the numbers that its sentence shows. Two numbers that look the same are called
equal. A difference is certain where its 95 % interval excludes 0. A number that is missing or NaN is not
shown, and nothing is claimed of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from seqmlm.errors import number_of

LITTLE = 0.02
"""Share of the bits by frequencies alone. A model that saves no more has learnt little."""

MARGIN = 0.01
"""Share of the bits by counts. Nothing is advised where the difference of a model to them is smaller."""

DIGITS, MOST_DIGITS = 3, 6
"""Decimal places of a figure, and of one that would otherwise look like another."""

MODEL, COUNTS, MIXTURE, FREQUENCIES = "model", "counts", "mixture", "frequencies"
NAMES = {
    MIXTURE: "model and counts together",
    MODEL: "the model alone",
    COUNTS: "counts alone",
    FREQUENCIES: "frequencies alone",
}
"""What predicts held-out units, as sentences call it."""

_TRAIN_LONGER = "train longer (--max-time 1h), give more data, or begin with a trained model (--init)"


class Gain(NamedTuple):
    """By how much the first of two is better, with a 95 % interval; NaN where it was not measured."""

    value: float
    low: float = math.nan
    high: float = math.nan

    @classmethod
    def of(cls, figures: Mapping[str, float] | None) -> Gain:
        """The gain in figures `value`, `low` and `high`; NaN where they are missing."""
        return cls(*((figures or {}).get(name, math.nan) for name in cls._fields))

    @property
    def reverse(self) -> Gain:
        """By how much the second is better."""
        return Gain(-self.value, -self.high, -self.low)

    def size(self, unit: str = "") -> str:
        """The difference as a text, its interval with the same sign.

        >>> Gain(-0.2, -0.3, 0.1).size()
        'by 0.2 (95 % -0.1 to 0.3)'
        """
        own = self if self.value >= 0 else self.reverse
        bounds = "" if math.isnan(own.low) else f" (95 % {own.low:.3g} to {own.high:.3g})"
        return f"by {own.value:.3g}{unit and f' {unit}'}{bounds}"


def is_measured(value: float | None) -> bool:
    """Whether a figure was measured."""
    return value is not None and not math.isnan(value)


def formatted(figures: Mapping[str, float], digits: int = DIGITS) -> dict[str, str]:
    """Figures as texts, with as many decimal places as tell them apart, 6 at most.

    >>> formatted({"model": 1.9, "counts": 1.8606, "mixture": 1.8609})
    {'model': '1.9000', 'counts': '1.8606', 'mixture': '1.8609'}
    """
    distinct = len({round(value, MOST_DIGITS) for value in figures.values()})
    for places in range(digits, MOST_DIGITS + 1):
        texts = {name: f"{value:.{places}f}" for name, value in figures.items()}
        if len(set(texts.values())) >= distinct:
            break
    return texts


def standing(first: float, second: float, gain: Gain | None = None, *, lower: bool = False) -> str:
    """How the first figure stands to the second, as words before the name of the second.

    Args:
        first, second: as they are shown.
        gain: of the first over the second; without an interval nothing is said of certainty.
        lower: lower figures are better.

    >>> standing(0.9, 0.8, Gain(0.1, 0.02, 0.2))
    'clearly better than'
    >>> standing(0.8, 0.9, Gain(-0.1, -0.2, 0.1)), standing(2.0, 1.0, lower=True), standing(1.0, 1.0)
    ('not clearly worse than', 'worse than', 'equal to')
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
    """Bits per unit of the same held-out units, by what predicts them; lower is better.

    Args:
        unit: what a unit is called.
        bits: by a name of `NAMES`; what was not measured is missing or NaN.
        gains: of one name over another, where they were measured.
        mixed: scores use model and counts together; else the model alone.
    """

    unit: str
    bits: Mapping[str, float]
    gains: Mapping[tuple[str, str], Gain] = field(default_factory=dict)
    mixed: bool = False

    @classmethod
    def of_counts(cls, unit: str, facts: Mapping[str, Any]) -> HeldOutBits:
        """The facts that are stored with counts."""
        bits = {name: facts[f"{name}_bits"] for name in NAMES if f"{name}_bits" in facts}
        gains = {
            (first, second): Gain.of(gain)
            for first, others in facts.get("gains", {}).items()
            for second, gain in others.items()
        }
        return cls(unit=unit, bits=bits, gains=gains, mixed=bool(facts.get("better")))

    @classmethod
    def of_evaluation(cls, unit: str, metrics: Mapping[str, float]) -> HeldOutBits:
        """The metrics of a model without counts."""
        names = {MODEL: "eval/bits_per_unit", FREQUENCIES: "eval/unigram_bits_per_unit"}
        return cls(unit=unit, bits={name: metrics[key] for name, key in names.items() if key in metrics})

    @property
    def measured(self) -> dict[str, float]:
        """The bits that were measured, lowest first."""
        present = {name: bits for name, bits in self.bits.items() if is_measured(bits)}
        return dict(sorted(present.items(), key=lambda pair: pair[1]))

    @property
    def used(self) -> str:
        """What scores use."""
        return MIXTURE if self.mixed else MODEL

    def standing(self, first: str, second: str) -> str:
        """How one stands to another, with their difference; "" where it was not measured."""
        bits = self.measured
        if not {first, second} <= bits.keys():
            return ""
        gain = self.gain(first, second)
        verb = "is" if first == MODEL else "are"
        words = standing(bits[first], bits[second], gain, lower=True)
        by = "" if words == "equal to" or gain is None else f", {gain.size('bits')}"
        return f"{NAMES[first]} {verb} {words} {NAMES[second]}{by}"

    def gain(self, first: str, second: str) -> Gain | None:
        """Bits that the first saves over the second, with its interval; None where it was not measured."""
        if (first, second) in self.gains:
            return self.gains[first, second]
        gain = self.gains.get((second, first))
        return None if gain is None else gain.reverse


def bits_sentence(held_out: HeldOutBits) -> str:
    """The bits of each, what scores use first, then the lowest."""
    texts = formatted(held_out.measured)
    if not texts:
        return "nothing was held out to measure the model"
    first = held_out.used if held_out.used in texts else next(iter(texts))
    rest = [f"{text} by {NAMES[name]}" for name, text in texts.items() if name != first]
    lead = f"{texts[first]} bits per {held_out.unit} held out, by {NAMES[first]}"
    lead += ", which scores use" if first == held_out.used and MIXTURE in texts else ""
    return f"{lead}; {', '.join(rest)}" if rest else lead


def counts_sentences(held_out: HeldOutBits, alone: Sequence[str] = ()) -> list[str]:
    """Whether scores mix counts in; the bits of model, counts and both; which differences are certain.

    Args:
        alone: levels that show the model a part of each record; their scores never mix counts in.
    """
    if held_out.mixed:
        excepted = f", those of {', '.join(alone)} excepted: they use the model alone" if alone else ""
        found = [f"scores mix the model with counts of the training data{excepted}"]
    else:
        found = ["scores use the model alone, without counts of the training data"]
    # The same places as in the sentences that name frequencies, too.
    ranked = {name: bits for name, bits in formatted(held_out.measured).items() if name != FREQUENCIES}
    if ranked:
        (lowest, bits), *others = ranked.items()
        listed = [f"{bits} bits per {held_out.unit} by {NAMES[lowest]}"]
        listed += [f"{bits} by {NAMES[name]}" for name, bits in others]
        found.append(f"on held-out records {', '.join(listed)}")
    compared = (held_out.standing(*pair) for pair in ([*ranked][:2], [MIXTURE, MODEL]) if len(pair) == 2)
    return [*found, *dict.fromkeys(filter(None, compared))]


def training_sentences(held_out: HeldOutBits, steps: int) -> list[str]:
    """What a training came to, and what it came short of, a sentence each."""
    return [f"{number_of(steps, 'step')}: {bits_sentence(held_out)}", *training_warnings(held_out)]


def training_warnings(held_out: HeldOutBits) -> list[str]:
    """What a training came short of: frequencies, or counts, that predict as well as the model or better."""
    found = []
    for name in dict.fromkeys((MODEL, held_out.used)):
        if text := little_sentence(held_out, name):
            found.append(f"{text}: {_TRAIN_LONGER}")
    bits, used = held_out.measured, held_out.used
    if {COUNTS, used} <= bits.keys():
        stands = standing(bits[used], bits[COUNTS], held_out.gain(used, COUNTS), lower=True)
        if not stands.startswith(("better", "clearly better")):
            matters = abs(bits[used] - bits[COUNTS]) > MARGIN * bits[COUNTS]
            advice = ": train longer, or on more data" if matters else ""
            found.append(f"{held_out.standing(used, COUNTS)}{advice}")
    return found


def little_sentence(held_out: HeldOutBits, name: str = MODEL) -> str:
    """How little one of `NAMES` has learnt beyond frequencies, or that it is worse; else ""."""
    bits = held_out.measured
    if not {name, FREQUENCIES} <= bits.keys():
        return ""
    own, floor = bits[name], bits[FREQUENCIES]
    if round(own, MOST_DIGITS) >= round(floor, MOST_DIGITS):
        return held_out.standing(name, FREQUENCIES)
    if own > (1 - LITTLE) * floor:
        verb = "has" if name == MODEL else "have"
        return f"{NAMES[name]} {verb} learnt little beyond how often each {held_out.unit} comes"
    return ""


def links_warnings(unit: str, metrics: Mapping[str, float]) -> list[str]:
    """A sentence that what a model links may be noise, where it has learnt little."""
    held_out = HeldOutBits.of_evaluation(unit, metrics)
    if not (text := little_sentence(held_out)):
        return []
    return [f"{text}: what it links may be noise ({bits_sentence(held_out)})"]


# Fine-tuning

BOTH = "model and columns"
"""The name of the mean of a model's predictions and those of boosted columns."""

PLACES = "unit at each place"
"""The name of a rival that most data do not have, since their examples differ in length."""


def finetuning_sentence(figures: Mapping[str, Any], primary: str) -> str:
    """The figure that decides, and how it stands to the best rival.

    Args:
        figures: of the test data, as `seqmlm.finetuning.worth.figures_of` makes them.
        primary: the name of the measure that decides.
    """
    if not is_measured(figures.get(primary)):
        return f"the test data have no {primary}, being all alike: give others with --test"
    rivals = {name: own[primary] for name, own in figures["rivals"].items() if is_measured(own.get(primary))}
    lead = figures.get("lead") or {"over": ""}
    own, over = figures[primary], str(lead["over"])
    texts = formatted({"": own} | {name: rivals[name] for name in (over, BOTH) if name in rivals})
    parts = [f"{primary} {texts['']}{_bounds(figures['intervals'][primary])}, {figures['test']} tested"]
    if seeds := figures.get("seeds"):
        parts[0] += f", {figures['mean']:.3f} (sd {figures['sd']:.3f}) on average of {len(seeds)} seeds"
    if over in rivals:
        gain = Gain(lead["difference"], lead["low"], lead["high"])
        words = standing(own, rivals[over], gain)
        by = "" if words == "equal to" else f", {gain.size()}"
        advice = "" if words.endswith("better than") else _TEACH_MORE
        parts.append(f"{words} {over} {texts[over]}{by}{advice}")
    if BOTH in rivals:
        parts.append(f"{BOTH} {texts[BOTH]}")
    unfitted = figures.get("unfitted", {})
    parts += [f"{name} could not be fitted: {why}" for name, why in unfitted.items() if name != PLACES]
    if alike := figures.get("resembling"):
        parts.append(f"{alike} of the test records resemble training ones")
    return "; ".join(parts)


_TEACH_MORE = ": give it more examples, or a model with more pretraining"


def _bounds(bounds: Sequence[float]) -> str:
    low, high = bounds
    return "" if math.isnan(low) else f" ({low:.3f} to {high:.3f})"


# Classes by words, rankings, measurements


def accuracy_sentence(figures: Mapping[str, Any]) -> str:
    """The accuracy, and how it stands to the better of two trivial guesses."""
    accuracy, (low, high) = figures["accuracy"], figures["interval"]
    floors = {
        "always the most frequent class": figures["majority"],
        "random guesses": figures["calibrated_random"],
    }
    percents = {name: 100 * value for name, value in {"": accuracy, **floors}.items()}
    texts = formatted(percents, digits=1)
    best = max(floors, key=floors.__getitem__)
    gain = Gain(accuracy - floors[best], low - floors[best], high - floors[best])
    beside = ", ".join(f"{name} {texts[name]}%" for name in floors)
    return (
        f"accuracy {texts['']}% ({low:.1%} to {high:.1%}), macro F1 {figures['macro_f1']:.3f}; {beside}; "
        f"{standing(percents[''], percents[best], gain)} {best}"
    )


def ranking_sentence(areas: Mapping[str, float], floors: Iterable[str]) -> str:
    """The AUROC of each score, and how the first stands to the best floor, where it is not better.

    Args:
        areas: AUROC by name, that to be judged first.
        floors: names of what needs no model.
    """
    measured = {name: area for name, area in areas.items() if is_measured(area)}
    texts, first = formatted(measured), next(iter(areas))
    listed = f"AUROC {', '.join(f'{text} by {name}' for name, text in texts.items())}"
    rivals = {name: measured[name] for name in floors if name in measured}
    if not rivals or first not in measured:
        return listed
    best = max(rivals, key=rivals.__getitem__)
    words = standing(measured[first], rivals[best])
    return listed if words == "better than" else f"{listed}: {first} is {words} {best}"


def nearest_sentence(distances: Mapping[str, float | None]) -> str:
    """Which joints are nearest to the model, by their A-KL."""
    measured = {name: value for name, value in distances.items() if value is not None and is_measured(value)}
    if not measured:
        return "no distance to the model could be measured"
    texts = formatted(measured, digits=4)
    least = min(measured, key=measured.__getitem__)
    names = [name for name, text in texts.items() if text == texts[least]]
    verb = "is" if len(names) == 1 else "are"
    return f"{' and '.join(names)} {verb} nearest to the model, A-KL {texts[least]}"


def agreement_sentences(figures: Mapping[str, Any]) -> Iterator[str]:
    """By how much the model agrees better with measurements than its best rival."""
    own = figures.get("gain")
    if own and is_measured(own["value"]):
        gain = Gain(own["value"], own["low"], own["high"])
        words = standing(gain.value, 0.0, gain).removesuffix(" than").removesuffix(" to")
        bounds = "" if math.isnan(gain.low) else f" ({gain.low:+.3f} to {gain.high:+.3f})"
        yield (
            f"Spearman of the model minus that of {own['against']}: {gain.value:+.4f}{bounds}, on "
            f"{number_of(figures['measured'], 'variant')}: {words}"
        )


def suggestion_doubts(figures: Mapping[str, Any]) -> Iterator[str]:
    """Why suggestions are worth little, where another prediction ranks the measurements as well or better."""
    own = figures.get("gain")
    if figures.get("next") and own and is_measured(own["value"]):
        gain = Gain(own["value"], own["low"], own["high"]).reverse
        words = standing(gain.value, 0.0, gain)
        if not words.endswith("worse than"):
            ranks = "as well as" if words == "equal to" else words
            rival = own["against"]
            yield f"{rival} ranks what was measured {ranks} this model: do not choose by what it suggests"
