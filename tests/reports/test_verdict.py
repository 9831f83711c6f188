"""No sentence contradicts a number beside it: an oracle reads claims out of the text and compares them.

The oracle knows nothing of how sentences are made. It reads numbers by their names, claims by their words
("clearly better than"), and intervals behind them, from all sentences that stand on one screen.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from itertools import combinations, permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqmlm.reports.verdict import (
    BOTH,
    NAMES,
    PLACES,
    Gain,
    HeldOutBits,
    accuracy_sentence,
    agreement_sentences,
    comparison_words,
    counts_sentences,
    figure_texts,
    finetuning_sentence,
    links_warnings,
    nearest_sentence,
    ranking_sentence,
    suggestion_doubts,
    training_sentences,
    training_warnings,
)

NUMBER = r"[-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|inf)"
CLAIM = re.compile(
    r"(?P<not>not )?(?P<clearly>clearly )?(?<!hardly )"
    r"(?P<word>better than|worse than|equal to) (?P<second>.*?)"
    rf"(?:,? by (?P<by>{NUMBER})(?: bits)?(?: \(95 % (?P<low>{NUMBER}) to (?P<high>{NUMBER})\))?)?(?=[;:(]|$)"
)


def contradictions(first: float, second: float, claim: re.Match[str], *, lower: bool) -> Iterator[str]:
    """What of a claim the numbers deny."""
    better = (first < second) if lower else (first > second)
    holds = {"better than": better, "worse than": not better and first != second, "equal to": first == second}
    if not holds[claim["word"]]:
        yield f"{first} is said to be {claim['word']} {second}"
    if claim["not"] and not claim["clearly"]:
        yield "a claim is denied whole"
    if claim["clearly"]:
        if claim["low"] is None:
            yield "certainty without an interval"
        elif bool(claim["not"]) == (float(claim["low"]) > 0):
            yield f"{claim[0]!r} of an interval from {claim['low']} to {claim['high']}"
    if claim["by"] is not None and not float(claim["by"]) >= 0:
        yield f"a difference of {claim['by']}"


def listed_bits(text: str) -> dict[str, float]:
    """Numbers of a text by the names that they stand before."""
    found: dict[str, float] = {}
    for name, words in NAMES.items():
        values = {
            float(one)
            for one in re.findall(
                rf"({NUMBER})(?: bits per word)?(?: on held-out records)? with {re.escape(words)}", text
            )
        }
        assert len(values) <= 1, f"{name} is {values}"
        found |= dict.fromkeys([name] if values else [], next(iter(values), 0.0))
    return found


def check_bits(sentences: list[str]) -> dict[str, float]:
    """Fail where a sentence about bits contradicts a number of any of them; the numbers."""
    bits = listed_bits("\n".join(sentences))
    of_words = {words: name for name, words in NAMES.items()}
    for sentence in sentences:
        for claim in CLAIM.finditer(sentence):
            start = sentence[: claim.start()]
            first = next(
                name
                for words, name in of_words.items()
                if re.search(rf"{re.escape(words)} (is|are) $", start)
            )
            wrong = [*contradictions(bits[first], bits[of_words[claim["second"]]], claim, lower=True)]
            assert not wrong, (sentence, wrong)
        if little := re.search(r"(.*) is hardly better than", sentence.rpartition(": ")[0] or sentence):
            own = bits[next(name for words, name in of_words.items() if words in little[1])]
            assert 0.97 * bits["frequencies"] < own < bits["frequencies"], sentence
    return bits


bits_value = st.one_of(
    st.sampled_from([0.1, 0.125, 0.179, 1.861, 1.877, 1.9, 1.9000000001, 1.90004, 4.9, 5.0, 6.574]),
    st.floats(0, 30),
)
missing = st.one_of(st.none(), st.just(math.nan))


def halves(value: float) -> st.SearchStrategy[Gain]:
    """Gains of a value: with an interval that includes or excludes zero, one that touches it, or none."""
    widths = st.sampled_from([0.0, 0.5, 0.999, 1.0, 1.5, 30.0])
    bounded = st.tuples(widths, widths).map(
        lambda w: Gain(value, value - w[0] * abs(value), value + w[1] * abs(value))
    )
    return st.one_of(bounded, st.just(Gain(value)))


@st.composite
def held_out(draw: st.DrawFn) -> HeldOutBits:
    bits = {name: draw(st.one_of(bits_value, bits_value, missing)) for name in NAMES}
    present = {name: value for name, value in bits.items() if value is not None and not math.isnan(value)}
    gains = {
        (first, second): draw(halves(present[second] - present[first]))
        for first, second in combinations(present, 2)
        if draw(st.booleans())
    }
    shown = {name: value for name, value in bits.items() if value is not None}
    return HeldOutBits(unit="word", bits=shown, gains=gains, mixed=draw(st.booleans()))


@given(held_out(), st.lists(st.sampled_from(["line", "token"]), max_size=2))
def test_what_a_training_came_to_contradicts_no_number(found: HeldOutBits, alone: list[str]) -> None:
    told = [*counts_sentences(found, alone), *training_sentences(found, 4)]
    bits = check_bits(told)
    assert bits.keys() == found.measured_bits.keys()
    assert not re.search("nan|None", " ".join(told))
    assert ("the model and n-gram counts" in told[0]) == found.mixed


@pytest.mark.parametrize("order", [*permutations([1.0, 2.0, 3.0, 4.0])])
@pytest.mark.parametrize("sure", [True, False])
def test_every_order_of_model_counts_both_and_frequencies(order: tuple[float, ...], sure: bool) -> None:
    bits = dict(zip(("mixture", "counts", "model", "frequencies"), order, strict=True))
    width = 0.5 if sure else 9.0
    gains = {
        pair: Gain(
            bits[pair[1]] - bits[pair[0]], *(bits[pair[1]] - bits[pair[0]] + side * width for side in (-1, 1))
        )
        for pair in combinations(bits, 2)
    }
    found = HeldOutBits(unit="word", bits=bits, gains=gains, mixed=bits["mixture"] < bits["model"])
    told = [*counts_sentences(found), *training_sentences(found, 4)]
    check_bits(told)
    ranked = sorted(("mixture", "counts", "model"), key=bits.__getitem__)
    verb, certainty = "is" if ranked[0] in ("model", "mixture") else "are", "" if sure else "not "
    best = f"{NAMES[ranked[0]]} {verb} {certainty}clearly better than"
    assert any(one.startswith(f"{best} {NAMES[ranked[1]]}") for one in told), (
        "the best, and whether it is sure"
    )
    assert told[1].startswith(
        f"on held-out records: {min(order[:3]):.3f} bits per word with {NAMES[ranked[0]]}"
    )
    warnings = told[told.index(next(one for one in told if "4 steps" in one)) + 1 :]
    worse = [one for one in warnings if f"worse than {NAMES['frequencies']}" in one]
    assert bool(worse) == (
        bits["model"] > bits["frequencies"] or bits[found.scoring_name] > bits["frequencies"]
    )
    assert any("train longer, or on more data" in one for one in warnings) == (
        bits["counts"] < bits[found.scoring_name] or not sure
    )


def test_a_model_that_is_worse_than_frequencies_is_called_worse() -> None:
    found = HeldOutBits(unit="residue", bits={"model": 6.574, "frequencies": 5.067})
    lead, warning = training_sentences(found, 9)
    assert lead == (
        "9 steps: 6.574 bits per residue on held-out records with the model; 5.067 with unit frequencies"
    )
    assert warning.startswith("the model is worse than unit frequencies: train longer (--max-time 1h)")
    metrics = {"eval/bits_per_unit": 6.574, "eval/unigram_bits_per_unit": 5.067}
    [noise] = links_warnings("residue", metrics)
    assert "the model is worse than unit frequencies: the links that it finds may be noise (6.574" in noise
    assert links_warnings("residue", metrics | {"eval/bits_per_unit": 4.0}) == []
    assert "is hardly better than" in links_warnings("residue", metrics | {"eval/bits_per_unit": 5.0})[0]
    assert links_warnings("residue", {}) == []


@pytest.mark.parametrize("mixed", [True, False])
@pytest.mark.parametrize(
    ("bits", "words", "advised"),
    [
        (1.0, "equal to", False),
        (1.001, "clearly worse than", False),
        (1.009, "clearly worse than", False),
        (1.02, "clearly worse than", True),
        (1.5, "clearly worse than", True),
        (0.999, "not clearly better than", False),
        (0.98, "not clearly better than", True),
    ],
)
def test_a_difference_to_counts_that_is_small_leads_to_no_advice(
    bits: float, words: str, advised: bool, mixed: bool
) -> None:
    used, gain = "mixture" if mixed else "model", 1 - bits
    gains = {(used, "counts"): Gain(gain, gain - 0.05, gain + (0.0005 if gain <= 0 else 0.05))}
    shown = {"model": bits, used: bits, "counts": 1.0, "frequencies": 3.0}
    [warning] = training_warnings(HeldOutBits(unit="word", bits=shown, gains=gains, mixed=mixed))
    assert f" {words} n-gram counts" in warning
    assert ("train longer" in warning) == advised


def test_figures_that_differ_look_different() -> None:
    assert figure_texts({"a": 0.9931, "b": 0.9934}) == {"a": "0.9931", "b": "0.9934"}
    assert figure_texts({"a": 0.5, "b": 0.5, "c": 0.7}) == {"a": "0.500", "b": "0.500", "c": "0.700"}
    assert figure_texts({"a": 1.0, "b": 1.0 + 1e-9}) == {"a": "1.000", "b": "1.000"}


share = st.one_of(st.sampled_from([0.0, 0.5, 0.818, 0.993, 0.9931, 0.99310000001, 1.0]), st.floats(0, 1))


@st.composite
def finetuned(draw: st.DrawFn) -> dict[str, Any]:
    """Figures of a fine-tuning, as `worth.figures_of` makes them."""
    own = draw(share)
    names = draw(st.lists(st.sampled_from(["most frequent", "bags of units", BOTH]), unique=True))
    rivals = {name: draw(st.one_of(share, missing)) for name in names}
    known = {n: v for n, v in rivals.items() if v is not None and not math.isnan(v) and n != BOTH}
    figures: dict[str, Any] = {
        "accuracy": draw(st.one_of(st.just(own), st.just(own), missing)),
        "test": 50,
        "intervals": {"accuracy": draw(st.sampled_from([[0.1, 0.9], [math.nan, math.nan]]))},
        "rivals": {name: {} if value is None else {"accuracy": value} for name, value in rivals.items()},
        "unfitted": draw(st.sampled_from([{}, {"boosted columns": "no unit", PLACES: "lengths differ"}])),
    }
    if known:
        best = max(known, key=known.__getitem__)
        gain = draw(halves(own - known[best]))
        figures["lead"] = {"over": best, "difference": gain.value, "low": gain.low, "high": gain.high}
    return figures


@given(finetuned())
def test_what_a_fine_tuning_came_to_contradicts_no_number(figures: dict[str, Any]) -> None:
    told = finetuning_sentence(figures, "accuracy")
    if figures["accuracy"] is None or math.isnan(figures["accuracy"]):
        assert told.startswith("accuracy is not defined, because all test labels are equal")
        return
    own = float(re.match(rf"accuracy ({NUMBER})", told)[1])  # type: ignore[index]
    claims = [*CLAIM.finditer(told)]
    assert len(claims) == ("lead" in figures)
    for claim in claims:
        name, value = claim["second"].rsplit(" ", 1)
        assert name == figures["lead"]["over"]
        assert float(value) == pytest.approx(figures["rivals"][name]["accuracy"], abs=5e-4)
        wrong = [*contradictions(own, float(value), claim, lower=False)]
        assert not wrong, (told, wrong)
        assert ("give more examples" in told) == (own <= float(value))
    assert ("; boosted columns could not be fitted: no unit" in told) == bool(figures["unfitted"])
    assert "lengths differ" not in told, "that is so of most data, and stands in the table"
    assert not re.search("nan|None", told)


@given(share, share, share, st.tuples(share, share).map(sorted))
def test_an_accuracy_contradicts_no_guess(own: float, most: float, guess: float, bounds: list[float]) -> None:
    figures = {
        "accuracy": own,
        "interval": bounds,
        "macro_f1": 0.5,
        "majority": most,
        "calibrated_random": guess,
    }
    told = accuracy_sentence(figures)
    number = r"([\d.]+)%"
    first = float(re.match(rf"accuracy {number}", told)[1])  # type: ignore[index]
    shown = {name: float(re.search(rf"{name} {number}", told)[1]) for name in ("class", "guesses")}  # type: ignore[index]
    [claim] = CLAIM.finditer(told)
    second = shown["class" if claim["second"].endswith("class") else "guesses"]
    assert second == max(shown.values())
    holds = {"better than": first > second, "worse than": first < second, "equal to": first == second}
    assert holds[claim["word"]], told
    if claim["clearly"]:
        floor = max(most, guess)
        certain = bounds[0] > floor if claim["word"] == "better than" else bounds[1] < floor
        assert certain != bool(claim["not"]), told


AREAS = ("p_value", "score", "length (floor)", "flag everything (floor)")


@given(st.lists(share, min_size=4, max_size=4), st.sets(st.sampled_from(AREAS)), st.sampled_from(AREAS))
def test_a_ranking_contradicts_no_area(areas: list[float], chosen: set[str], broken: str) -> None:
    each = {name: area for name, area in zip(AREAS, areas, strict=True) if name in {AREAS[0], *chosen}}
    each |= {broken: math.nan} if broken in each and len(each) > 1 else {}
    told = ranking_sentence(each, [name for name in each if "floor" in name])
    known = {name: area for name, area in each.items() if not math.isnan(area)}
    listed = re.findall(r"([\d.]+) by (\w+(?: \w+)*(?: \(floor\))?)", told)
    shown = {name: float(value) for value, name in listed}
    assert shown.keys() == known.keys()
    for claim in re.finditer(r": (.*) is (worse than|equal to) (.*)$", told):
        first, second = shown[claim[1]], shown[claim[3]]
        assert first < second if claim[2] == "worse than" else first == second, told
    floors = [area for name, area in known.items() if "floor" in name]
    if floors and AREAS[0] in known and abs(known[AREAS[0]] - max(floors)) > 1e-5:
        assert ("worse than" in told) == (known[AREAS[0]] < max(floors))


@given(st.floats(-1, 1).flatmap(halves), st.booleans())
def test_what_is_said_of_measurements_contradicts_no_number(gain: Gain, asked: bool) -> None:
    figures: Mapping[str, Any] = {
        "gain": {"against": "BLOSUM62", **gain._asdict()},
        "measured": 30,
        "next": [1] if asked else [],
    }
    [told] = agreement_sentences(figures)
    words = told.rpartition(": ")[2]
    value = round(gain.value, 6)
    assert ("better" in words, "worse" in words, words == "equal") == (value > 0, value < 0, value == 0)
    if "clearly" in words:
        certain = gain.low > 0 or gain.high < 0
        assert certain != ("not" in words), told
    doubts = [*suggestion_doubts(figures)]
    assert bool(doubts) == (asked and value <= 0)
    assert all(("better than" in one) == (value < 0) for one in doubts)


@given(st.dictionaries(st.sampled_from(["mrf", "iter", "hcb"]), st.one_of(share, missing)))
def test_what_is_called_nearest_is_no_farther_than_others(distances: dict[str, float | None]) -> None:
    told = nearest_sentence(distances)
    measured = {name: one for name, one in distances.items() if one is not None and not math.isnan(one)}
    if not measured:
        assert told == "no distance to the model could be measured"
        return
    names, verb, value = re.fullmatch(r"(.*) (is|are) nearest to the model, A-KL (.*)", told).groups()  # type: ignore[union-attr]
    assert {*names.split(" and ")} <= measured.keys()
    assert (verb == "is") == (" and " not in names)
    assert float(value) == pytest.approx(min(measured.values()), abs=1e-4)
    assert all(measured[name] <= min(measured.values()) + 1e-6 for name in names.split(" and "))


def test_nothing_is_said_of_a_gain_that_is_none() -> None:
    for gain in (None, {"against": "x", "value": math.nan, "low": math.nan, "high": math.nan}):
        figures = {"gain": gain, "measured": 3, "next": [1]}
        assert [*agreement_sentences(figures), *suggestion_doubts(figures)] == []


def test_an_interval_alone_makes_certain() -> None:
    assert comparison_words(2.0, 1.0) == "better than"
    assert comparison_words(2.0, 1.0, Gain(1.0, -0.1, 2.0)) == "not clearly better than"
    assert comparison_words(1.0, 2.0, Gain(-1.0, -2.0, -0.5)) == "clearly worse than"
    assert comparison_words(1.0, 2.0, Gain(1.0, 0.5, 2.0), lower=True) == "clearly better than"
