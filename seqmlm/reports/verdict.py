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
"""Names that sentences give to predictors of held-out units."""

_TRAIN_LONGER = "train longer (--max-time 1h), give more data, or begin with a trained model (--init)"


class Gain(NamedTuple):
    """The lead of the first of two over the second, with a 95 % interval; NaN where it was not measured."""

    value: float
    low: float = math.nan
    high: float = math.nan

    @classmethod
    def of(cls, figures: Mapping[str, float] | None) -> Gain:
        """The gain in figures `value`, `low` and `high`; NaN where they are missing."""
        return cls(*((figures or {}).get(name, math.nan) for name in cls._fields))

    @property
    def reverse(self) -> Gain:
        """The lead of the second over the first."""
        return Gain(-self.value, -self.high, -self.low)

    def size(self, unit: str = "") -> str:
        """The difference as a text, its interval with the same sign.

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
    """Figures as texts, with as many decimal places as tell them apart, 6 at most.

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
    """Words between the names of two figures: whether the first is better than the second.

    Args:
        first, second: as they are shown.
        gain: of the first over the second; without an interval nothing is said of certainty.
        lower: lower figures are better.

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
    """Bits per unit of the same held-out units, by predictor; lower is better.

    Args:
        unit: name of a unit.
        bits: by a name of `NAMES`; a figure that was not measured is missing or NaN.
        gains: of one name over another, where they were measured.
        mixed: scores use model and counts together; else the model alone.
    """

    unit: str
    bits: Mapping[str, float]
    gains: Mapping[tuple[str, str], Gain] = field(default_factory=dict)
    mixed: bool = False

    @classmethod
    def of_counts(cls, unit: str, facts: Mapping[str, Any]) -> HeldOutBits:
        """The bits in the facts that are stored with counts."""
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
        """The bits that were measured, lowest first."""
        present = {name: bits for name, bits in self.bits.items() if is_measured(bits)}
        return dict(sorted(present.items(), key=lambda pair: pair[1]))

    @property
    def scoring_name(self) -> str:
        """The name of the predictor that scores use."""
        return MIXTURE if self.mixed else MODEL

    def comparison(self, first: str, second: str) -> str:
        """A clause that compares two of `NAMES`, with their difference; "" where one was not measured."""
        bits = self.measured_bits
        if not {first, second} <= bits.keys():
            return ""
        gain = self.gain(first, second)
        verb = "is" if first == MODEL else "are"
        words = comparison_words(bits[first], bits[second], gain, lower=True)
        by = "" if words == "equal to" or gain is None else f", {gain.size('bits')}"
        return f"{NAMES[first]} {verb} {words} {NAMES[second]}{by}"

    def gain(self, first: str, second: str) -> Gain | None:
        """Bits that the first saves over the second, with its interval; None where it was not measured."""
        if (first, second) in self.gains:
            return self.gains[first, second]
        gain = self.gains.get((second, first))
        return None if gain is None else gain.reverse


def bits_sentence(held_out: HeldOutBits) -> str:
    """A sentence with the bits of each predictor: first the one that scores use, then from the lowest up."""
    texts = figure_texts(held_out.measured_bits)
    if not texts:
        return "nothing was held out to measure the model"
    first = held_out.scoring_name if held_out.scoring_name in texts else next(iter(texts))
    following = [f"{text} by {NAMES[name]}" for name, text in texts.items() if name != first]
    lead = f"{texts[first]} bits per {held_out.unit} held out, by {NAMES[first]}"
    lead += ", which scores use" if first == held_out.scoring_name and MIXTURE in texts else ""
    return f"{lead}; {', '.join(following)}" if following else lead


def counts_sentences(held_out: HeldOutBits, partial_levels: Sequence[str] = ()) -> list[str]:
    """Sentences on whether scores mix counts in, the bits of model, counts and both, and their differences.

    Args:
        partial_levels: levels that show the model a part of each record; their scores never mix counts in.
    """
    if held_out.mixed:
        names = ", ".join(partial_levels)
        excepted = f", those of {names} excepted: they use the model alone" if names else ""
        sentences = [f"scores mix the model with counts of the training data{excepted}"]
    else:
        sentences = ["scores use the model alone, without counts of the training data"]
    # The same places as in the sentences that name frequencies, too.
    ranked = {
        name: bits for name, bits in figure_texts(held_out.measured_bits).items() if name != FREQUENCIES
    }
    if ranked:
        (lowest, bits), *following = ranked.items()
        listed = [f"{bits} bits per {held_out.unit} by {NAMES[lowest]}"]
        listed += [f"{bits} by {NAMES[name]}" for name, bits in following]
        sentences.append(f"on held-out records {', '.join(listed)}")
    compared = (held_out.comparison(*pair) for pair in ([*ranked][:2], [MIXTURE, MODEL]) if len(pair) == 2)
    return [*sentences, *dict.fromkeys(filter(None, compared))]


def training_sentences(held_out: HeldOutBits, steps: int) -> list[str]:
    """Sentences on the result of a training: steps and bits, and warnings where it has learnt little."""
    return [f"{number_of(steps, 'step')}: {bits_sentence(held_out)}", *training_warnings(held_out)]


def training_warnings(held_out: HeldOutBits) -> list[str]:
    """Warnings that frequencies, or counts, predict as well as the model or better, a sentence each."""
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
    """A sentence that one of `NAMES` has learnt little beyond frequencies, or that it is worse; else ""."""
    bits = held_out.measured_bits
    if not {name, FREQUENCIES} <= bits.keys():
        return ""
    achieved, floor = bits[name], bits[FREQUENCIES]
    if round(achieved, MOST_DIGITS) >= round(floor, MOST_DIGITS):
        return held_out.comparison(name, FREQUENCIES)
    if achieved > (1 - LITTLE) * floor:
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
    """A sentence with the figure that decides, and how it compares to the best rival.

    Args:
        figures: of the test data, as `seqmlm.finetuning.worth.figures_of` makes them.
        primary: the name of the measure that decides.
    """
    if not is_measured(figures.get(primary)):
        return f"the test data have no {primary}, being all alike: give others with --test"
    rivals = {
        name: measures[primary]
        for name, measures in figures["rivals"].items()
        if is_measured(measures.get(primary))
    }
    lead = figures.get("lead") or {"over": ""}
    figure, over = figures[primary], str(lead["over"])
    texts = figure_texts({"": figure} | {name: rivals[name] for name in (over, BOTH) if name in rivals})
    parts = [f"{primary} {texts['']}{_bounds(figures['intervals'][primary])}, {figures['test']} tested"]
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
        parts.append(f"{alike} of the test records resemble training ones")
    return "; ".join(parts)


_TEACH_MORE = ": give it more examples, or a model with more pretraining"


def _bounds(bounds: Sequence[float]) -> str:
    """The two bounds of an interval in brackets; "" where they are NaN."""
    low, high = bounds
    return "" if math.isnan(low) else f" ({low:.3f} to {high:.3f})"


# Classes by words, rankings, measurements


def accuracy_sentence(figures: Mapping[str, Any]) -> str:
    """A sentence with the accuracy, and how it compares to the better of two trivial guesses."""
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
    """A sentence with the AUROC of each score, and how the first compares to the best floor, if not better.

    Args:
        areas: AUROC by name, that to be judged first.
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
    """A sentence that names the joints nearest to the model, by their A-KL."""
    measured = {name: value for name, value in distances.items() if value is not None and is_measured(value)}
    if not measured:
        return "no distance to the model could be measured"
    texts = figure_texts(measured, digits=4)
    closest = min(measured, key=measured.__getitem__)
    names = [name for name, text in texts.items() if text == texts[closest]]
    verb = "is" if len(names) == 1 else "are"
    return f"{' and '.join(names)} {verb} nearest to the model, A-KL {texts[closest]}"


def agreement_sentences(figures: Mapping[str, Any]) -> Iterator[str]:
    """A sentence on how much better the model agrees with measurements than its best rival, if measured."""
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
    """A warning that suggestions are worth little, if another prediction ranks measurements no worse."""
    gain_figures = figures.get("gain")
    if figures.get("next") and gain_figures and is_measured(gain_figures["value"]):
        gain = Gain(gain_figures["value"], gain_figures["low"], gain_figures["high"]).reverse
        words = comparison_words(gain.value, 0.0, gain)
        if not words.endswith("worse than"):
            ranks = "as well as" if words == "equal to" else words
            rival = gain_figures["against"]
            yield f"{rival} ranks what was measured {ranks} this model: do not choose by what it suggests"
