"""Rows that a calibration draws of each record: as likely as each other, scored as in the whole record."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_domain_models import MODULE, code_model, source
from tiny_models import protein_model, random_model

from seqmlm import plugins
from seqmlm.anomaly.levels import RecordLevel, Sampling
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.protein.tokenizer import ResidueTokenizer
from seqmlm.engine.units import EXACT, ONE_PASS, Mode
from seqmlm.inference.detector import Detector
from seqmlm.inference.estimate import cost_of
from seqmlm.inference.scorer import RecordScorer
from seqmlm.inference.session import Session
from seqmlm.scoring import sampling
from seqmlm.scoring.calibrate import Calibrator, Records
from seqmlm.scoring.sampling import RowSample, row_numbers

RULE = ResidueTokenizer().units
MODES = [EXACT, ONE_PASS, Mode("partition", 4)]


def places(count: int, share: float, start: float, *, neighbours: bool) -> np.ndarray:
    sample = RowSample(numbers=lambda one: None, rule=RULE, share=share, neighbours=neighbours, seed=0)
    return sample._places(count, start)


@given(st.integers(1, 60), st.floats(0.01, 1), st.floats(0, 0.999), st.booleans())
def test_a_sample_has_its_share_of_rows_and_one_at_least(
    count: int, share: float, start: float, neighbours: bool
) -> None:
    drawn = places(count, share, start, neighbours=neighbours)
    assert len(np.unique(drawn)) == len(drawn)
    assert ((drawn >= 0) & (drawn < count)).all()
    expected = max(1.0, share * count)
    assert expected - 1 < len(drawn) < expected + 1


@given(st.integers(1, 40), st.floats(0.02, 1), st.booleans())
def test_every_row_of_a_record_is_as_likely_as_the_others(count: int, share: float, neighbours: bool) -> None:
    starts = (np.arange(800) + 0.5) / 800
    frequency = np.zeros(count)
    for start in starts.tolist():
        frequency[places(count, share, start, neighbours=neighbours)] += 1 / len(starts)
    assert frequency == pytest.approx(max(share, 1 / count), abs=0.06)


def drawn_levels() -> list[tuple[str, str]]:
    """Every field and level that says which row each unit belongs to."""
    return [
        (field, level.name)
        for field in plugins.names("domains")
        for level in plugins.domain(field).levels
        if type(level.sampling).row_numbers is not Sampling.row_numbers
    ]


@pytest.mark.parametrize(("field", "name"), drawn_levels())
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_drawn_row_has_the_statistics_that_it_has_in_its_whole_record(
    field: str, name: str, mode: Mode, tmp_path: Path
) -> None:
    domain = plugins.domain(field)
    files = [str(one) for one in domain.sample.draw(tmp_path, n=20).files]
    records = list(islice(domain.read(files, Problems("skip")), 6))
    kind = plugins.tokenizer_class(domain.defaults.tokenizer)
    tokenizer = kind.train((one.raw for one in records), **dict(domain.defaults.tokenizer_options))
    session, level = Session(random_model(field, tokenizer, max_length=64)), domain.level(name)
    rule = level.view.units(tokenizer)
    made = Calibrator(session=session, problems=Problems("skip"))
    background, _ = made.background(level, Records(records=records, of=len(records), source="x"), None)
    detector = Detector(RecordScorer(session), level, mode=mode, background=background)
    encoded = detector.scorer.encoded(records, Problems("skip"))
    every = detector.each(encoded)
    for neighbours in (True, False):
        sample = RowSample(
            numbers=row_numbers(level, rule), rule=rule, share=0.3, neighbours=neighbours, seed=0
        )
        some = detector.each(encoded, [sample.of(one).drawn_tokens for one in encoded])
        for drawn, whole in zip(some, every, strict=True):
            rows = {one.row.id: one.row for one in whole}
            assert 0 < len(drawn) < len(rows)
            for row in (one.row for one in drawn):
                assert dict(row.statistics) == pytest.approx(rows[row.id].statistics, abs=2e-4)
                assert (row.start, row.end) == (rows[row.id].start, rows[row.id].end)


def test_the_level_that_draws_rows_is_tested() -> None:
    assert ("code", "line") in drawn_levels()


def modules(count: int, longest: int = 8) -> Records:
    """Files of source code of different lengths."""
    repeats = np.random.default_rng(0).integers(2, longest, size=count, endpoint=True).tolist()
    records = [
        source(MODULE.replace("depth", f"depth_{number}") * times, f"m{number}.py")
        for number, times in enumerate(repeats)
    ]
    return Records(records=records, of=count, source="x")


@pytest.mark.parametrize("budget", [1, 120_000])
@pytest.mark.parametrize("mode", ["exact", "one-pass"])
def test_a_limit_is_spent_on_many_records(mode: str, budget: int) -> None:
    """Whatever the mode, and however long each record is."""
    model = code_model(max_length=64)
    made = Calibrator(session=Session(model), problems=Problems(), budget=budget)
    level, normal = model.domain.level("line"), modules(120)
    background, rest = made.background(level, normal, [])
    made.budget = budget
    stored = made.calibrate(level, [mode], rest, background)[level.name, mode]
    assert stored.records >= (11 if budget == 1 else 40)
    assert stored.rows >= 100
    assert stored.rows / stored.records <= 25


def test_no_mode_rests_on_fewer_than_eleven_records() -> None:
    """A further mode gets eleven records, and rows enough for p-values of .05, or no calibration."""
    lengths = np.random.default_rng(0).integers(20, 90, size=60).tolist()
    records = [
        Record(id=str(n), raw="ACDEFGHIK" * (m // 9), source="n", line=n) for n, m in enumerate(lengths)
    ]
    normal, said = Records(records=records, of=60, source="f"), list[str]()
    modes = ["one-pass", "partition:2", "exact"]
    made = 0
    for budget in (1, 10_000, 20_000, 40_000, 80_000, 160_000, 400_000):
        session = Session(protein_model(100))
        one = Calibrator(session=session, problems=Problems(), budget=budget, notify=said.append)
        found = one.calibrate(RecordLevel("protein"), modes, normal, None)
        made += len(found)
        for stored in found.values():
            assert stored.records >= 11
            assert stored.fitted.smallest_rate <= 0.05
    assert made > 7, "otherwise nothing is tested"
    assert any("not calibrated in mode exact" in text for text in said)


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_what_drawn_rows_cost_is_estimated(mode: Mode) -> None:
    model = code_model(max_length=64)
    session, level = Session(model), model.domain.level("line")
    made = Calibrator(session=session, problems=Problems(), budget=50_000)
    background, rest = made.background(level, modules(60), [])
    detector = Detector(RecordScorer(session), level, mode=mode, background=background)
    encoded = detector.scorer.encoded(rest.records, Problems())
    rule = model.tokenizer.units
    sample = RowSample(
        numbers=row_numbers(level, rule), rule=rule, share=0.1, neighbours=mode.asks_windows, seed=0
    )
    wanted = [sample.of(one).drawn_tokens for one in encoded]
    cost, before = cost_of(session, level, mode), session.forward_tokens
    detector.each(encoded, wanted)
    spent = session.forward_tokens - before
    estimate = sum(cost(one.encoding, some) for one, some in zip(encoded, wanted, strict=True))
    assert spent == pytest.approx(estimate, rel=0.35)
    assert estimate < 0.7 * sum(cost(one.encoding) for one in encoded)


def test_rows_a_day_stand_for_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where some rows of each record are drawn."""
    model = code_model(max_length=64)
    level = model.domain.level("line")

    class Timed(type(level)):
        def rows(self, scored, background):
            begun = 3600.0 * scored.record.line
            return [replace(row, time=begun) for row in super().rows(scored, background)]

    records = [replace(one, line=number) for number, one in enumerate(modules(60, 3).records, start=1)]
    normal = Records(records=records, of=60, source="x")
    daily = []
    for budget in (None, 1):
        made = Calibrator(session=Session(model), problems=Problems(), budget=None)
        background, rest = made.background(level, normal, [])
        made.budget = budget
        monkeypatch.setattr(sampling, "_NEIGHBOURS", 5)
        [stored] = made.calibrate(Timed(), ["one-pass"], rest, background).values()
        daily.append(stored.rows_per_day)
    assert daily[0] == pytest.approx(daily[1], rel=0.3)
