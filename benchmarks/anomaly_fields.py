"""Rows of `alarms.py` for planted faults in text, proteins, DNA and code.

Held-out records are compared with copies that have a fault. By unit: are the changed units more surprising
than the other units of faulty records? By record: is the faulty copy more surprising than the original?
The baselines see the same units. They are an add-one unigram, a 5-gram with tuned smoothing, and counts that
read both sides and the rest of the record. "Mixed" is the result of a normal scoring: the model, mixed with
these counts if they helped on validation records.

"Judged" is the detector of the product: the statistics that judge units, calibrated on other held-out
records. Each single statistic is listed next to it. "Alarmed" shows the alarms at the rates .01 and .05: the
share of the original units, and the share of the changed units. The product uses its p-values. The baselines
use thresholds from the same calibration records.

The lift of a unit is its bits minus its bits by the unigram (as in the SLOR of Lau et al. 2017). It measures
how unusual the context is for the unit. Baselines have a lift too. The best baseline is selected among all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from anomaly_field_data import FIELDS, Field, chosen
from anomaly_field_faults import Fault, Span
from anomaly_metrics import gain, ranking, threshold_on
from anomaly_models import trained
from ngram import NGram
from numpy.typing import NDArray

from seqmlm.anomaly.values import ALONE
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.engine.types import Encoding
from seqmlm.engine.units import unit_symbols
from seqmlm.inference.calibrations import stored_background
from seqmlm.inference.detector import Detector
from seqmlm.inference.expert import stored_expert
from seqmlm.inference.model_folder import LoadedModel
from seqmlm.inference.record_batches import Encoded
from seqmlm.inference.scorer import RecordScorer
from seqmlm.inference.session import Session
from seqmlm.scoring.calibrate import Calibrator, Records

Doubles = NDArray[np.float64]
Bools = NDArray[np.bool_]
Row = dict[str, Any]

ARMS = ("model", "mixed")
JUDGED = "judged"
LIFT = " lift"
LIFTED = ("mixed", "5-gram", "counts")
LEVELS = {"text": "word", "protein": "residue", "dna": "base", "code": "token"}
RECORDS, CALIBRATION = 150, 250
RATES = (0.01, 0.05)
NGRAM_UNITS = 2_000_000
LONGEST = 250  # tokens of a record that is judged


@dataclass(frozen=True, kw_only=True, eq=False)
class Pair:
    """A record and its faulty copy.

    Args:
        normal, faulty: as the model sees them.
        changed: (U,) True at the units of the faulty copy that the fault changed.
        spans: half-open stretches of its text that are wrong.
    """

    normal: Encoded
    faulty: Encoded
    changed: Bools
    spans: Sequence[Span]


def field_rows(
    name: str, data: Path, out: Path, seed: int, minutes: float, records: int | None = None
) -> list[Row]:
    """Every fault of a field, by unit and by record."""
    records = records or RECORDS
    found = FIELDS[name](data, out)
    model = trained(out, name, found.domain, found.files, found.flags, seed, minutes)
    baselines = Baselines(model, spelled(model, found))
    texts = chosen(found.texts, len(found.texts), seed)
    judges = Judges(model, LEVELS[name], texts[-CALIBRATION:])
    rows = []
    for fault, plant in found.faults.items():
        pairs = list(islice(pairs_of(model, texts[:-CALIBRATION], plant, seed), records))
        rows += compared(f"{name}: {fault}", model, baselines, pairs, judges)
    return rows


class Judges:
    """The detector of units in the product.

    Args:
        model: the model.
        level: a level whose rows are units.
        normal: the texts that calibrate it.
    """

    def __init__(self, model: LoadedModel, level: str, normal: Sequence[str]) -> None:
        self.level = model.domain.level(level)
        calibrator = Calibrator(session=Session(model, tokens_per_batch=8192), problems=Problems("skip"))
        records = [as_record(text, number) for number, text in enumerate(normal)]
        self.normal = [Encoded(one, model.tokenizer.encode(one.raw)) for one in records]
        of = Records(records=records, of=len(records), source="")
        background, rest = stored_background(model, self.level), of
        if background is None or background.needs_scores:
            background, rest = calibrator.background(self.level, of, None)
        [stored] = calibrator.calibrate(self.level, ["exact"], rest, background).values()
        self.detector = Detector(
            RecordScorer(calibrator.session),
            self.level,
            background=background,
            calibration=stored.fitted,
        )
        self.choice = stored.facts(model)["judged_by"]

    def found(self, encoded: Sequence[Encoded]) -> dict[str, Doubles]:
        """-log p of units by all statistics together, and by each single statistic."""
        rows = self.detector.encoded(encoded)
        parts = {name: np.array([one.row.statistics[name] for one in rows]) for name in self.level.statistics}
        return {JUDGED: -np.log([one.p_value or 1.0 for one in rows]), **parts}

    def thresholds(self, values: Mapping[str, Doubles]) -> dict[str, list[float]]:
        """The threshold of each score at each of `RATES`; `values` are those of the calibration units."""
        floors = {name: [threshold_on(own, rate) for rate in RATES] for name, own in values.items()}
        return {JUDGED: [-np.log(rate) - 1e-12 for rate in RATES], **floors}


class Baselines:
    """Baselines for units that use only frequencies.

    Args:
        model: the model that defines the units.
        training: training sequences, a list of spelled units each.
    """

    def __init__(self, model: LoadedModel, training: Sequence[list[tuple[int, ...]]]) -> None:
        self.units, self.expert = model.tokenizer.units, stored_expert(model, "counts")
        tokens = np.concatenate([np.array([t for unit in s for t in unit], dtype=np.int64) for s in training])
        counts = np.bincount(tokens, minlength=self.units.symbols)
        self.unigram = self.units.frequencies(counts)
        self.ngram = NGram(order=5, unigram=self.unigram).fit(training)

    def bits(self, encodings: Sequence[Encoding]) -> dict[str, list[Doubles]]:
        """Baseline -> (U,) bits of the units of each encoding."""
        spelled = [[unit for unit in unit_symbols(self.units, e) if unit] for e in encodings]
        whole = self.ngram.bits(spelled)
        ends = np.cumsum([len(s) for s in spelled])
        with np.errstate(divide="ignore"):
            log2 = np.log2(self.unigram)
        assert self.expert is not None
        named = self.expert.hash_units(encodings)
        counts = -self.expert.count_mixture(self.expert.count_log_probs(named))
        found = {
            "counts": [counts[(named.sequence == i) & (named.tokens > 0)] for i in range(len(encodings))],
            "unigram": [np.array([-log2[list(unit)].sum() for unit in s]) for s in spelled],
            "5-gram": np.split(whole, ends[:-1]),
        }
        return {**found, **lifts(found)}


def lifts(bits: Mapping[str, Sequence[Doubles]]) -> dict[str, list[Doubles]]:
    """The lift (bits minus the bits by the unigram) of each method in `LIFTED` that was measured."""
    return {
        arm + LIFT: [a - b for a, b in zip(bits[arm], bits["unigram"], strict=True)]
        for arm in LIFTED
        if arm in bits
    }


def compared(
    name: str,
    model: LoadedModel,
    baselines: Baselines,
    pairs: Sequence[Pair],
    judges: Judges | None = None,
) -> list[Row]:
    """Compare the model with its baselines on pairs.

    Records are ranked by the mean and by the largest of their bits. `pairs_won` is the share of pairs whose
    faulty copy has more bits than its original. Ties count as lost.
    """
    both = [one.normal for one in pairs] + [one.faulty for one in pairs]
    bits = {
        **_surprisals(model, both),
        **baselines.bits([e.encoding for e in both]),
    }
    bits |= lifts(bits)
    half = len(pairs)
    changed = np.concatenate([one.changed for one in pairs])
    owner = np.repeat(np.arange(half), [len(one.changed) for one in pairs])
    by_unit = {arm: np.concatenate(values[half:]) for arm, values in bits.items()}
    labels = np.repeat([False, True], half)
    twice = np.tile(np.arange(half), 2)
    rows = [_row(f"{name}, unit", changed, by_unit, owner, len(pairs))]
    if judges is not None:
        rows[0] |= _judged(changed, judges, both[half:], by_unit, rows[0]["floor"], owner)
        rows[0] |= _alarmed(changed, judges, baselines, both, by_unit, rows[0]["floor"])
    for way, reduce in (("mean", np.mean), ("max", np.max)):
        whole = {arm: np.array([float(reduce(v)) for v in values]) for arm, values in bits.items()}
        row = _row(f"{name}, record by {way}", labels, whole, twice, len(pairs))
        won = {arm: float((values[half:] > values[:half]).mean()) for arm, values in whole.items()}
        rows.append({**row, "pairs_won": won["mixed"], "floor_won": won[row["floor"]]})
    return rows


def _judged(
    labels: Bools,
    judges: Judges,
    faulty: Sequence[Encoded],
    arms: dict[str, Doubles],
    best: str,
    groups: Any,
) -> Row:
    """Compare the product with the best baseline and with the best of its own statistics.

    "found" is the share of wrong units that each method finds if 5 % of the other units are alarms.
    """
    found, floor = judges.found(faulty), arms[best]
    areas = {name: ranking(labels, values)["auroc"] for name, values in found.items()}
    part = max((name for name in areas if name != JUDGED), key=lambda name: areas[name])
    return {
        JUDGED: areas.pop(JUDGED),
        "judged_by": judges.choice,
        "parts": areas,
        "part": part,
        "found": {
            name: float((values[labels] > np.quantile(values[~labels], 0.95)).mean())
            for name, values in {**arms, **found}.items()
        },
        **{f"judged_{key}": value for key, value in gain(labels, found[JUDGED], floor, groups).items()},
        **{f"part_{key}": v for key, v in gain(labels, found[JUDGED], found[part], groups).items()},
    }


def _alarmed(
    changed: Bools,
    judges: Judges,
    baselines: Baselines,
    both: Sequence[Encoded],
    arms: dict[str, Doubles],
    best: str,
) -> Row:
    """The shares of original units and of changed units that alarm at each of `RATES`, for each detector."""
    half = len(both) // 2
    bits = baselines.bits([one.encoding for one in (*judges.normal, *both[:half])])
    normal = {name: np.concatenate(values[-half:]) for name, values in bits.items()} | judges.found(
        both[:half]
    )
    limits = {name: np.concatenate(values[:-half]) for name, values in bits.items()}
    faulty = arms | judges.found(both[half:])
    shares = {
        name: [
            [float((own > limit).mean()) for own in (normal[name], faulty[name][changed])] for limit in found
        ]
        for name, found in judges.thresholds(limits).items()
    }
    flat = {}
    for who, name in (("", JUDGED), ("floor_", best)):
        for rate, (alarmed, found) in zip(RATES, shares[name], strict=True):
            flat |= {f"{who}normal_{rate}": alarmed, f"{who}found_{rate}": found}
    return {"alarmed": shares, **flat}


def _surprisals(model: LoadedModel, records: Sequence[Encoded]) -> dict[str, list[Doubles]]:
    """The surprisals of each of `ARMS`, from one scoring."""
    found = RecordScorer(Session(model, tokens_per_batch=8192)).unit_scores(records)
    alone = [one.values.get(ALONE, one.surprisal) for one in found]
    return {"model": alone, "mixed": [one.surprisal for one in found]}


def _row(name: str, labels: Bools, scores: dict[str, Doubles], groups: Any, pairs: int) -> Row:
    areas = {arm: ranking(labels, values)["auroc"] for arm, values in scores.items()}
    best = max((arm for arm in areas if arm.removesuffix(LIFT) not in ARMS), key=lambda arm: areas[arm])
    plain = max((arm for arm in areas if arm not in ARMS and LIFT not in arm), key=lambda arm: areas[arm])
    lift = gain(labels, scores["mixed" + LIFT], scores[best], groups)
    return {
        "set": name,
        "pairs": pairs,
        "auroc": areas["mixed"],
        **{arm: area for arm, area in areas.items() if arm != "mixed"},
        "floor": best,
        **gain(labels, scores["mixed"], scores[best], groups),
        **{f"lift_{key}": value for key, value in lift.items()},
        "plain_floor": plain,
        **{
            f"{arm}_over_plain": gain(labels, scores[arm], scores[plain], groups)
            for arm in ("mixed", "mixed" + LIFT)
        },
    }


def pairs_of(model: LoadedModel, texts: Sequence[str], fault: Fault, seed: int) -> Iterable[Pair]:
    """Each text that is short enough and can have the fault, with a faulty copy."""
    random = np.random.default_rng(seed)
    units = model.tokenizer.units
    for number, normal in enumerate(texts):
        faulty = fault(normal, random)
        if faulty is None:
            continue
        one, other = (Encoded(as_record(t, number), model.tokenizer.encode(t)) for t in (normal, faulty.text))
        if max(len(one.encoding), len(other.encoding)) > min(LONGEST, model.card.max_length):
            continue
        spans = units.spans(other.encoding)[[bool(unit) for unit in unit_symbols(units, other.encoding)]]
        changed = np.zeros(len(spans), dtype=np.bool_)
        for start, end in faulty.spans:
            changed |= (spans[:, 0] < end) & (spans[:, 1] > start)
        if changed.any() and not changed.all():
            yield Pair(normal=one, faulty=other, changed=changed, spans=faulty.spans)


def as_record(text: Any, number: int) -> Record:
    return Record(id=str(number), raw=text, source="planted", line=number + 1)


def spelled(model: LoadedModel, field: Field) -> list[list[tuple[int, ...]]]:
    """Units of training records, spread over all files, up to `NGRAM_UNITS`; long ones in pieces."""
    units = model.tokenizer.units
    found: list[list[tuple[int, ...]]] = []
    limit = NGRAM_UNITS // len(field.files)
    for file in field.files:
        taken = 0
        options = field.flags.get("data", {}).get("options", {})
        for record in model.domain.read([str(file)], Problems("skip"), **options):
            if taken >= limit:
                break
            text = str(record.raw)
            for start in range(0, len(text), 20_000):
                spelled = [
                    unit
                    for unit in unit_symbols(units, model.tokenizer.encode(text[start : start + 20_000]))
                    if unit
                ]
                found.append(spelled)
                taken += len(spelled)
                if taken >= limit:
                    break
    return found
