"""Levels of logs: what rows hold, and what they say of lines."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scored_records
from log_models import NORMAL, log_model, session

from seqmlm.anomaly.levels import named_row
from seqmlm.anomaly.values import ScoredRecord
from seqmlm.data.record import Record
from seqmlm.domains.logs.levels import (
    NAMED,
    WINDOW_STATISTICS,
    LineLevel,
    LogBackground,
    SessionLevel,
    window_statistics,
)
from seqmlm.domains.logs.readers.events import LogLines
from seqmlm.domains.logs.templates import TemplateTokenizer
from seqmlm.domains.logs.words import LogWordTokenizer
from seqmlm.engine.types import InMemory
from seqmlm.errors import StateError
from seqmlm.inference.detector import Detector
from seqmlm.inference.model_folder import LoadedModel
from seqmlm.tokenizers.base import Tokenizer

TRAIN = [NORMAL] * 8 + [(*NORMAL[:3], NORMAL[2], NORMAL[3])] * 2


@pytest.fixture(scope="module", params=[TemplateTokenizer, LogWordTokenizer])
def model(request: pytest.FixtureRequest) -> LoadedModel:
    tokenizer: Tokenizer = request.param.train([session(lines).raw for lines in TRAIN])
    return log_model(tokenizer)


@pytest.fixture(scope="module")
def known(model: LoadedModel) -> LogBackground:
    encodings = model.tokenizer.encode_batch([session(lines).raw for lines in TRAIN])
    return LogBackground.fit(InMemory(encodings), model.tokenizer, seed=0)


def scored(model: LoadedModel, record: Record) -> ScoredRecord:
    [found] = scored_records.scored(model, [record])
    return found


def test_a_normal_session_has_every_channel_and_nothing_odd_to_tell(
    model: LoadedModel, known: LogBackground
) -> None:
    level = SessionLevel("session")
    found = scored(model, session(NORMAL))
    [row] = level.rows(found, known)
    assert tuple(row.statistics) == tuple(name for name in level.statistics if name not in WINDOW_STATISTICS)
    assert row.score == row.statistics["pll_mean"] == pytest.approx(found.surprisal.mean())
    assert (row.length, row.time, row.line) == (1, 100.0, 10)
    assert (row.start, row.end) == (0, len(found.record.raw.text))
    assert row.statistics["unseen"] == 0
    assert row.statistics["neighbour"] == 0
    assert set(row.extra) == {"odd_lines"}
    assert set(row.extra["odd_lines"]) == {10, 12, 14, 16}


def test_surprisal_of_a_line_is_that_of_all_its_units(model: LoadedModel, known: LogBackground) -> None:
    found = scored(model, session(NORMAL))
    [row] = SessionLevel("session").rows(found, known)
    text = str(found.record.raw)
    line = np.array([text[:start].count("\n") for start in found.spans[:, 0].tolist()])
    assert row.statistics["pll_max"] == pytest.approx(np.bincount(line, weights=found.surprisal).max())


def test_an_alarm_names_lines_and_what_was_expected(model: LoadedModel, known: LogBackground) -> None:
    lines = (NORMAL[0], "disk on fire", NORMAL[1], NORMAL[1])
    [row] = SessionLevel("session").rows(scored(model, session(lines)), known)
    assert math.isinf(row.statistics["unseen"])
    assert row.extra["unseen_lines"] == [12]
    assert [one["share"] for one in row.extra["missing"]] == [1.0]
    assert {one["more"] for one in row.extra["unlike"]} >= {1, -1}
    if model.tokenizer.traits.unit == "line":
        assert row.extra["missing"][0]["unit"] == "close"
        assert {"unit": "a line never seen", "more": 1} in row.extra["unlike"]


def test_a_line_is_judged_by_its_neighbours_too(model: LoadedModel, known: LogBackground) -> None:
    level = LineLevel("line")
    lines = (NORMAL[0], NORMAL[3], NORMAL[1], NORMAL[2])
    rows = level.rows(scored(model, session(lines)), known)
    text = session(lines).raw.text
    assert [text[row.start : row.end] for row in rows] == list(lines)
    assert [row.line for row in rows] == [10, 12, 14, 16]
    assert [row.time for row in rows] == [100.0, 101.0, 102.0, 103.0]
    assert all(tuple(row.statistics) == tuple(level.statistics) for row in rows)
    usual = level.rows(scored(model, session(NORMAL)), known)
    assert min(row.statistics["bigram"] for row in rows) > max(r.statistics["bigram"] for r in usual)
    strange = level.rows(scored(model, session((*NORMAL[:2], "disk on fire"))), known)
    assert [row.statistics["unseen"] for row in strange] == [0, 0, math.inf]


def test_a_background_comes_back_from_its_arrays(model: LoadedModel, known: LogBackground) -> None:
    again = LogBackground.load(known.arrays(), model.tokenizer)
    lines = (NORMAL[0], "disk on fire", NORMAL[2])
    found = scored(model, session(lines))
    [row], [other] = (SessionLevel("session").rows(found, one) for one in (known, again))
    assert dict(row.statistics) == dict(other.statistics)
    assert dict(row.extra) == dict(other.extra)


def test_without_counts_it_is_said_what_to_do(model: LoadedModel) -> None:
    with pytest.raises(StateError, match="calibrate"):
        SessionLevel("session").rows(scored(model, session(NORMAL)), None)


def test_a_window_is_judged_as_a_session(model: LoadedModel) -> None:
    domain = model.domain
    assert [level.name for level in domain.levels] == ["session", "line"]
    assert domain.level("window").name == domain.level(None).name == "session"


def window(lines: int) -> Record:
    """A window of a log, as its reader cuts it."""
    record = session([f"line {number}" for number in range(lines)])
    return replace(
        record,
        raw=replace(record.raw, windowed=True),
        meta={**record.meta, "labels": tuple(map(str, range(lines))), "note": "kept"},
    )


@pytest.mark.parametrize("level", [SessionLevel("session"), LineLevel("line")])
def test_calibration_judges_windows_as_a_pause_may_cut_them(level: SessionLevel | LineLevel) -> None:
    random, lengths, whole = np.random.default_rng(0), [], 0
    for _ in range(400):
        record = window(64)
        first, *parts = level.sampling.parts(record, random)
        assert first is record
        if not parts:
            whole += 1
            continue
        for name in ("lines", "times"):
            assert sum((getattr(part.raw, name) for part in parts), ()) == getattr(record.raw, name)
        for name in ("lines", "labels"):
            assert sum((part.meta[name] for part in parts), ()) == record.meta[name]
        assert {(part.id, part.meta["note"]) for part in parts} == {(record.id, "kept")}
        lengths += [len(part.raw.lines) for part in parts]
    assert 150 < whole < 250
    octaves = np.histogram(lengths, [1, 2, 4, 8, 16, 32, 64])[0] / len(lengths)
    assert (octaves > 0.08).all(), "every length of a burst is met"


def test_calibration_judges_sessions_whole() -> None:
    record, random = session(NORMAL * 16), np.random.default_rng(0)
    assert all(SessionLevel("session").sampling.parts(record, random) == (record,) for _ in range(20))


def test_a_window_is_compared_with_windows_of_its_length(model: LoadedModel, known: LogBackground) -> None:
    record = session(NORMAL[:2])
    [whole] = SessionLevel("session").rows(scored(model, record), known)
    [cut] = SessionLevel("session").rows(
        scored(model, replace(record, raw=replace(record.raw, windowed=True))), known
    )
    assert (whole.length, cut.length) == (1, 2)
    own = set(WINDOW_STATISTICS)
    assert {name: whole.statistics[name] for name in set(cut.statistics) - own} == {
        name: value for name, value in cut.statistics.items() if name not in own
    }
    assert own <= set(cut.statistics), "duration and repeated steps change with the load"
    assert not own & set(whole.statistics)
    assert "missing" in whole.extra
    assert not {"missing", "unlike"} & set(cut.extra)


@pytest.mark.parametrize("windowed", [False, True])
def test_what_is_counted_is_the_same_where_no_model_is_asked(
    model: LoadedModel, known: LogBackground, windowed: bool
) -> None:
    level = SessionLevel("session")
    records = [session(lines) for lines in (NORMAL, NORMAL[:2], (*NORMAL, "never seen before"), NORMAL[::-1])]
    records = [replace(one, raw=replace(one.raw, windowed=windowed)) for one in records]
    rows = [row for one in records for row in level.rows(scored(model, one), known)]
    encoded = [(one, model.tokenizer.encode(one.raw)) for one in records]
    statistics, lengths = level.counting.columns(encoded, known)
    assert tuple(statistics) == level.statistics.counted
    assert lengths.tolist() == [row.length for row in rows]
    for name, own in statistics.items():
        np.testing.assert_array_equal(own, [row.statistics.get(name, math.nan) for row in rows])


@pytest.mark.parametrize("level", [SessionLevel("session"), LineLevel("line")])
def test_a_value_never_seen_is_rarer_than_a_line_without_a_template(level: SessionLevel | LineLevel) -> None:
    normal = [f'"GET /items HTTP/1.1" {200 + n % 2} {(9, 99, 999)[n % 3]}' for n in range(60)]
    tokenizer = TemplateTokenizer.train(["\n".join(normal)], fields="auto", values=64, max_templates=5)
    model, plain = log_model(tokenizer), session(normal[:6])
    known = LogBackground.fit(InMemory([tokenizer.encode(session(normal).raw)]), tokenizer, seed=0)
    new = session([*normal[:6], '"GET /items HTTP/1.1" 502 9', '"PUT /items HTTP/1.1" 502 9'])
    [before], [after] = (
        [sum(row.statistics["unseen"] for row in level.rows(scored(model, one), known))]
        for one in (plain, new)
    )
    assert before == 1, "a combination beyond those kept"
    assert after == before + 2 * (1 + NAMED)
    if level.statistics.counted:
        encoded = [(one, tokenizer.encode(one.raw)) for one in (plain, new)]
        for never, more in ((frozenset[str](), 0.0), (frozenset(["status=201"]), 3 * NAMED)):
            found = level.counting.columns(encoded, known, never)[0]["unseen"]
            assert found.tolist() == [before + more, after + more]


@pytest.mark.parametrize("message", ["", "the request was answered"])
def test_fields_together_for_the_first_time_are_less_than_what_was_never_there(message: str) -> None:
    def line(status: int, uri: str, ms: int = 0, said: str = message) -> str:
        told = {"status": status, "uri": uri, "ms": ms or 10 + len(uri)}
        return json.dumps({**told, "msg": said} if said else told)

    normal = [line(200 if n % 3 else 404, ("/items", "/login", "/cart")[n % 3]) for n in range(90)]
    normal = [*normal, *(line(200, "/cart", ms) for ms in range(100, 999, 30))]
    tokenizer = TemplateTokenizer.train(["\n".join(normal)], fields="auto", values=64)
    model, level = log_model(tokenizer), SessionLevel("session")
    known = LogBackground.fit(InMemory([tokenizer.encode(session(normal).raw)]), tokenizer, seed=0)
    together = [*normal[:6], line(404, "/login"), line(200, "/items")]
    asked = [together, [*together, line(200, "/items", 31_000)], [*together, line(502, "/login")]]
    asked += [[*together, "{}"], [*together, '{"panic": "the kernel died", "status": 200}']]
    if message:
        asked.append([*together, line(200, "/login", said="no space is left on the device")])
    records = [session(lines) for lines in asked]
    found = [row.statistics["unseen"] for one in records for row in level.rows(scored(model, one), known)]
    assert found == [2.0, 3.0 + NAMED, *[math.inf] * (len(asked) - 2)], "a size is larger than any"
    lines = LineLevel("line").rows(scored(model, records[1]), known)
    assert [row.statistics["unseen"] for row in lines] == [0.0] * 6 + [1.0, 1.0, 1 + NAMED]
    encoded = [(one, tokenizer.encode(one.raw)) for one in records]
    assert level.counting.columns(encoded, known)[0]["unseen"].tolist() == found
    # What other records never had, a value or the message, was never there.
    names = tokenizer.known_values(normal[0])
    assert len(names) == (3 if message else 2)
    for name in names:
        assert level.counting.columns(encoded[:1], known, frozenset([name]))[0]["unseen"].tolist() == [
            math.inf
        ]
    assert (
        level.counting.columns(encoded[:1], known, frozenset(["message 9"]))[0]["unseen"].tolist()
        == found[:1]
    )


def test_statistics_of_windows_alone() -> None:
    told = {"surplus": 3.0, "hurried": -1.0, "paused": pytest.approx(math.log2(5))}

    def found(*times: float, windowed: bool = True) -> dict[str, float]:
        return window_statistics(LogLines(lines=("a",) * 4, times=times or None, windowed=windowed), 3.0)

    assert found(5.0, 6.0, 8.0, 12.0) == told
    assert found(5.0, 3.0, 4.0) == found(5.0, 5.0, 5.0), "a line before the one above it"
    day = 86_400.0
    assert found(day, 5.0, day + 1.0)["paused"] == 1.0, "a clock that steps back, and is set again"
    two = [day * (n % 2) + n for n in range(1, 9)]
    assert found(*two)["paused"] == pytest.approx(math.log2(3)), "lines of two clocks take turns"
    assert found() == found(5.0) == {"surplus": 3.0}
    assert found(5.0, 6.0, windowed=False) == {}


def test_a_kind_of_line_that_is_there_too_often_is_named(model: LoadedModel, known: LogBackground) -> None:
    level = SessionLevel("session")
    [usual] = level.rows(scored(model, session(NORMAL)), known)
    assert "surplus" not in usual.extra
    [often] = level.rows(scored(model, session([*NORMAL, *[NORMAL[0]] * 20])), known)
    told = often.extra["surplus"]
    assert (told["lines"], told["of"]) == (21, len(NORMAL) + 20)
    assert told["share"] < 0.5
    assert f"{told['unit']!r}, 21 of {told['of']} lines" in level.reasons.meaning("surplus", often)
    assert level.reasons.meaning("surplus", usual) == level.statistics["surplus"]


def test_a_reason_has_what_was_seen_and_what_is_usual() -> None:
    level, seen = SessionLevel("session"), {"paused": math.log2(901), "hurried": 5.0}
    row = named_row(session(NORMAL), "a", np.array([[0, 1]]), np.arange(1), seen)
    assert level.reasons.meaning("paused", row, math.log2(12)) == "no line for 15 min, normally at most 11 s"
    assert level.reasons.meaning("hurried", row, 1.0) == "32 lines per second, normally at most 2"
    assert (
        level.reasons.meaning("paused", row, -math.inf)
        == level.reasons.meaning("paused", row)
        == "no line for 15 min"
    )
    told = {
        "missing": [{"unit": "probe", "share": 1.0}],
        "unlike": [{"unit": "GET <PATH>", "more": -12}],
        "never_seen": ["status=502", "method=PUT"],
        "surplus": {"unit": "login failed", "lines": 40, "of": 64, "share": 0.01},
    }
    row = replace(row, extra=told)
    assert level.reasons.meaning("missing", row) == "'probe' is missing; 100% of normal records have it"
    assert (
        level.reasons.meaning("neighbour", row) == "12 fewer 'GET <PATH>' than the most similar normal record"
    )
    assert level.reasons.meaning("unseen", row) == "never seen: status=502, method=PUT"
    assert level.reasons.meaning("surplus", row).endswith(": 'login failed', 40 of 64 lines, 1 % in training")
    told = {"unlike": [{"unit": "a line never seen", "more": 3}], "unseen_lines": [1200, 1201]}
    row = replace(row, extra=told)
    assert level.reasons.meaning("neighbour", row) == "3 lines never seen (first in line 1,200 of the file)"
    assert level.reasons.meaning("unseen", row).endswith(" (first in line 1,200 of the file)")
    assert level.reasons.meaning("pll_max", row) == "largest surprisal of a line"


def test_a_reason_names_what_happened_before_it_sums_up() -> None:
    told = {"missing": [{"unit": "probe", "share": 1.0}]}
    row = replace(
        named_row(session(NORMAL), "a", np.array([[0, 1]]), np.arange(1), {"pll_mean": 9.0}), extra=told
    )
    level = SessionLevel("session")
    assert set(level.reasons.naming_statistics(row)) == {"unseen", "paused", "missing"}, (
        "of surplus nothing is told"
    )
    p = {"pll_mean": 0.001, "unseen": 1.0, "missing": 0.03, "surplus": 0.02}

    def fired(alpha: float | None, **statistics: float) -> str | None:
        detector = Detector(None, level, alpha=alpha)  # type: ignore[arg-type]  # nothing is scored
        own = replace(row, statistics={**row.statistics, **statistics})
        return detector._with_p_values(own, None, 0.01, False, p).fired  # type: ignore[arg-type]

    assert fired(0.05) == "missing"
    assert fired(0.01) == fired(None) == "pll_mean", "it is not as rare as asked"
    p["unseen"] = 0.04
    assert fired(0.01, unseen=math.inf) == "unseen"


def _brief(
    model: LoadedModel, known: LogBackground, lines: tuple[str, ...], fired: str | None
) -> dict[str, Any]:
    level, found = SessionLevel("session"), scored(model, session(lines))
    [row] = level.rows(found, known)
    return level.reasons.alarm_facts(row, found, known, fired)


def test_an_alarm_is_told_by_what_was_never_seen(model: LoadedModel, known: LogBackground) -> None:
    level = SessionLevel("session")
    found = scored(model, session((NORMAL[0], "disk on fire 12", NORMAL[1], "disk on fire 13")))
    [row] = level.rows(found, known)
    told = level.reasons.alarm_facts(row, found, known, "hurried")
    named = model.tokenizer.traits.unit == "line"
    assert told["what"] == ("'disk on fire <NUM>' was never seen" if named else "a line was never seen")
    assert told.get("template") == ("disk on fire <NUM>" if named else None)
    assert (told["lines"], told["new_lines"], told["last_line"]) == (4, 2, 16)
    assert told["times"] == (100.0, 103.0)
    assert found.text(told["unit"]).startswith(("disk", "on", "fire", "12", "13"))


@pytest.mark.parametrize("model", [TemplateTokenizer], indirect=True)
def test_lines_that_have_a_name_for_what_is_new_speak_for_an_alarm(
    model: LoadedModel, known: LogBackground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind more new lines than a row shows, and before one that surprises as much."""
    new = tuple(f"disk on fire {number}" for number in range(8))
    lines = (NORMAL[0], *new, "status 502", "status 502", "unit stopped")
    tokenizer = type(model.tokenizer)
    monkeypatch.setattr(tokenizer, "unseen_values", lambda _, line: ["status=502"] if "502" in line else [])
    level, found = SessionLevel("session"), scored(model, session(lines))
    [row] = level.rows(found, known)
    assert row.extra["never_seen"] == ["status=502"]
    told = level.reasons.alarm_facts(row, found, known, "hurried")
    assert (told["never_seen"], told["new_lines"], told["lines"]) == (["status=502"], 2, len(lines))
    assert told["template"] == "status <NUM>"
    assert told["unit"] in (9, 10)


@pytest.mark.parametrize("model", [TemplateTokenizer], indirect=True)
@pytest.mark.parametrize(
    ("lines", "fired", "what"),
    [
        (NORMAL[:3], "missing", "'close' is missing"),
        ((*NORMAL, NORMAL[3], NORMAL[3]), "neighbour", "more 'close' than usual"),
        ((*NORMAL, *[NORMAL[3]] * 40), "surplus", "more 'close' than usual"),
        (NORMAL, "surplus", "one kind of line more often than usual"),
        (NORMAL, "hurried", "more lines a second than usual"),
        (NORMAL, None, " is unexpected"),
        (NORMAL, "pll_max", " is unexpected"),
    ],
)
def test_an_alarm_is_told_by_what_fired(
    model: LoadedModel, known: LogBackground, lines: tuple[str, ...], fired: str | None, what: str
) -> None:
    told = _brief(model, known, lines, fired)
    assert told["what"].endswith(what)
    assert "new_lines" not in told
    if "'close'" in what:  # it tells of this kind of line, and of one that is there
        assert told["template"] == "close"
        assert told.get("unit") == (None if fired == "missing" else lines.index("close"))


def test_pauses_of_one_order_are_alike(model: LoadedModel, known: LogBackground) -> None:
    def scale(seconds: float) -> str:
        record = session(NORMAL)
        times = tuple(100.0 + seconds * (at > 1) for at in range(len(NORMAL)))
        record = replace(record, raw=replace(record.raw, times=times, windowed=True))
        level, found = SessionLevel("session"), scored(model, record)
        [row] = level.rows(found, known)
        return str(level.reasons.alarm_facts(row, found, known, "paused")["scale"])

    assert scale(20.0) == scale(90.0) == "seconds"
    assert scale(900.0) == "minutes"


def test_an_alarm_of_a_line_tells_of_this_line(model: LoadedModel, known: LogBackground) -> None:
    level = LineLevel("line")
    found = scored(model, session((NORMAL[0], "disk on fire 12", NORMAL[3])))
    told = [level.reasons.alarm_facts(row, found, known, "unseen") for row in level.rows(found, known)]
    places = [(one["lines"], one["last_line"], one["times"][0]) for one in told]
    assert places == [(1, 10, 100.0), (1, 12, 101.0), (1, 14, 102.0)]
    assert ["never seen" in one["what"] for one in told] == [False, True, False]


@pytest.mark.parametrize("model", [TemplateTokenizer], indirect=True)
def test_a_long_template_is_cut_in_a_sentence_and_shown_harmlessly(
    model: LoadedModel, known: LogBackground
) -> None:
    told = _brief(model, known, (NORMAL[0], "\x1b[2J" + "word " * 99), None)
    assert told["what"].startswith(r"'\x1b[2Jword word")
    assert len(told["what"]) < 130
