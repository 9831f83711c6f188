"""Reports of scorings: every number is right, memory is bounded, what is shown is of the worst rows."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest
from reported import Reported

from seqmlm.anomaly.levels import part_row, record_row
from seqmlm.anomaly.values import Place, ScoredRecord
from seqmlm.data.record import Record
from seqmlm.domains.protein import PROTEIN
from seqmlm.domains.protein.tokenizer import TOKENS, ResidueTokenizer
from seqmlm.inference.detector import JudgedRow
from seqmlm.reports import pictures
from seqmlm.reports import report as module
from seqmlm.reports.drawing import MOST_POINTS
from seqmlm.reports.page import Page
from seqmlm.reports.pictures import Coloured, Highest, Point, Timeline, Tracks
from seqmlm.reports.report import record_scale
from seqmlm.tokenizers.spelling import Letters

TOKENIZER = ResidueTokenizer()


def scored(name: str, raw: str, bits: list[float]) -> ScoredRecord:
    top = np.tile([TOKENIZER.encode("W").ids[1], -1], (len(raw), 1))
    return ScoredRecord(
        record=Record(id=name, raw=raw, source="a<b>.fa", line=7),
        encoding=TOKENIZER.encode(raw),
        rule=TOKENIZER.units,
        number=np.arange(len(raw)),
        surprisal=np.array(bits),
        values={"top_ids": top, "top_log_probs": np.tile([np.log(0.5), -np.inf], (len(raw), 1))},
    )


def judged(name: str, score: float, p_value: float | None = None, alarm: bool | None = None) -> JudgedRow:
    one = scored(name, "ACDEF", [score, 0, 0, 0, 0])
    p_values = {} if p_value is None else {"b": 1.0, "a": p_value}
    row = record_row(one, {"bits_per_unit": score})
    return JudgedRow(row=row, scored_record=one, p_value=p_value, alarm=alarm, p_values=p_values)


def test_the_worst_rows_are_shown_in_order_and_others_are_forgotten() -> None:
    report = Reported(TOKENIZER, pictures=[Coloured()])
    scores = np.random.default_rng(0).permutation(5000)
    for score in scores.tolist():
        report.add(judged(f"r{score}", float(score)))
    assert len(report._report._shown._heap) == module.WORST
    html = report.html()
    table = html.split("<tbody>")[1].split("</tbody>")[0]
    assert re.findall(r'data-value="(r\d+)"', table) == [f"r{n}" for n in range(4999, 4949, -1)]
    assert "<dt>rows</dt><dd>5,000</dd>" in html
    assert "<dt>alarms" not in html
    assert "A: 4999.0 bits; expected: W 50 %" in table
    assert len(re.findall(r'class="coloured"', html)) == module.PICTURED


def test_p_values_order_rows_before_scores_and_alarms_are_counted() -> None:
    report = Reported(TOKENIZER)
    report.add(judged("high", 9.0, 0.5, False))
    report.add(judged("odd", 3.0, 0.001, True))
    report.add(judged("odder", 4.0, 0.001, True))
    html = report.html({"alarm rate asked": 0.01})
    assert "<dt>alarms</dt><dd>2</dd>" in html
    assert "<dt>alarm rate asked</dt><dd>0.01</dd>" in html
    assert re.findall(r'data-value="(high|odd|odder)"', html) == ["odder", "odd", "high"]
    assert "if all were normal" in html


def test_parts_of_a_long_record_are_shown_with_what_is_around(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "_LONG", 20)
    monkeypatch.setattr(pictures, "_AROUND", 3)
    raw = "ACDEFGHIKLMNPQRSTVWY" * 2
    one = scored("long", raw, [1.0] * 40)
    row = part_row(one, np.arange(10, 13), "11-13", {"surprisal": 1.0})
    report = Reported(TOKENIZER, pictures=[Coloured()])
    report.add(JudgedRow(row=row, scored_record=one))
    html = report.html()
    shown = html.split('class="coloured"')[1].split("</div>")[0]
    assert re.sub("<[^>]*>", "", shown).partition(">")[2] == raw[7:16]
    assert "characters 8 to 16 of 40" in html


def along(start: int, score: float = 0.1, genes: list[str] | None = None, alarm: bool = False) -> JudgedRow:
    """A row of a hundred bases along a contig."""
    one = scored("block", "ACDEF", [1.0] * 5)
    extra = {"contig": "chr1", "contig_start": start, "contig_end": start + 100, "genes": genes or []}
    row = replace(part_row(one, np.arange(5), "x", {"excess": score}), extra=extra)
    row = replace(row, place=Place("chr1", start, start + 100))
    return JudgedRow(row=row, scored_record=one, p_value=0.5, alarm=alarm)


def test_rows_with_a_place_are_drawn_along_what_they_lie_in() -> None:
    report = Reported(TOKENIZER, pictures=[Tracks("contig", "kb", 1000)], unit="base")
    for start in range(0, 500_000, 50):
        odd = start == 250_000
        report.add(along(start, 0.1 + odd, alarm=odd))
    html = report.html()
    assert "Along chr1" in html
    assert 'data-tip="alarm 250,001 to 250,100"' in html
    assert "the most unusual rows of each stretch" in html


def test_an_axis_without_a_number_is_not_drawn() -> None:
    tracks, page = Tracks("contig", "kb", 1000), Page("scores", "")
    tracks.add({"contig": "chr1", "contig_start": 0, "contig_end": 5, "score": float("nan")})
    tracks.draw(page, "base")
    assert "Along chr1" not in page.html()


@pytest.mark.parametrize(("bits", "scale"), [(0.5, 4), (4.1, 8), (8.0, 8), (13.0, 16), (40.0, 16)])
def test_colours_are_of_steps_that_can_be_read(bits: float, scale: float) -> None:
    assert record_scale([scored("a", "ACDEF", [bits] * 5)]) == scale


def test_genes_are_drawn_below_a_track_as_far_as_their_rows_reach() -> None:
    report = Reported(TOKENIZER, pictures=[Tracks("contig", "kb", 1000)], unit="base")
    genes = {0: ["lacZ"], 100: ["lacZ", "lacY"], 200: ["lacY"], 900: ["lacZ"]}
    for start in range(0, 1000, 100):
        report.add(along(start, genes=genes.get(start)))
    html = report.html()
    drawn = re.findall(r'data-tip="(lac. [\d, to]+)"', html)
    assert drawn == ["lacZ 1 to 200", "lacY 101 to 300", "lacZ 901 to 1,000"]
    assert "grey: genes" in html


def test_of_many_axes_all_but_the_worst_are_forgotten() -> None:
    tracks = Tracks("contig", "kb", 1000)
    report = Reported(TOKENIZER, pictures=[tracks])
    for number in np.random.default_rng(0).permutation(1000).tolist():
        one = judged(f"c{number}", float(number))
        place = Place(f"c{number}", 0, 5)
        extra = {"contig": place.name, "contig_start": 0, "contig_end": 5}
        report.add(replace(one, row=replace(one.row, place=place, extra=extra)))
    assert len(tracks._axes) <= pictures.MOST_AXES
    html = report.html()
    assert re.findall(r"<h2>Along (c\d+)</h2>", html) == [f"c{n}" for n in range(999, 987, -1)]
    assert "The 12 contigs with the highest scores are drawn." in html


def test_the_highest_of_every_stretch_is_kept_and_alarms_first() -> None:
    values = np.random.default_rng(1).random(50_000)
    kept = Highest()
    for place, value in enumerate([*values.tolist(), float("nan")]):
        kept.add(Point(place, place + 1, 0.0 if place == 777 else value, place == 777))
    points = kept.points()
    assert kept.thinned
    assert len(points) <= 2 * MOST_POINTS
    assert [one.start for one in points] == sorted(one.start for one in points)
    assert [one.start for one in points if one.alarm] == [777]
    assert kept.top == max(one.value for one in points) == np.delete(values, 777).max()


def test_all_scores_are_in_the_histogram(monkeypatch: pytest.MonkeyPatch) -> None:
    bars = []
    monkeypatch.setattr(Page, "histogram", lambda page, heading, *given, **options: bars.append(given))
    values, report = np.random.default_rng(0).lognormal(0, 3, 3000), Reported(TOKENIZER)
    for number, value in enumerate([*values.tolist(), math.inf]):
        report.add(judged(f"r{number}", value))
    report.html()
    [(counts, edges)] = bars
    assert counts.sum() == 3000
    assert counts.tolist() == np.histogram([float(f"{value:.4g}") for value in values], edges)[0].tolist()


def test_rows_in_time_are_a_timeline() -> None:
    report = Reported(TOKENIZER, pictures=[Timeline()])
    for number in range(30):
        one = judged(f"s{number}", float(number), 0.5, number == 29)
        time = datetime.fromtimestamp(1.7e9 + 60 * number, UTC).isoformat()
        report.add(replace(one, row=replace(one.row, extra={"time": time})))
    html = report.html()
    assert html.count("fill-opacity: 0.75") == 29
    assert re.findall(r'data-tip="([^"]*)" tabindex="0">\s*<defs>', html) == ["s29: 29"]


def test_places_count_from_one_whatever_the_ids_of_the_field_count_from() -> None:
    html = {}
    for first in (0, 1):
        shown = PROTEIN.pictures(PROTEIN.levels[0])
        report = Reported(TOKENIZER, pictures=shown, unit="residue", ids_from=first)
        one = scored("p", "ACXEF", [1.0, 2.0, 0.0, 9.0, 1.0])
        one = replace(one, number=np.array([0, 1, 3, 4]), surprisal=one.surprisal[[0, 1, 3, 4]], values={})
        row = part_row(one, np.array([2]), "4", {"surprisal": 9.0})
        report.add(JudgedRow(row=row, scored_record=one, p_value=1e-3, alarm=True))
        html[first] = report.html()
    assert ">4<" in html[0]
    assert "Places count from 1 and include the end. Ids such as p#4 count from 0" in html[0]
    assert ">4<" not in html[1], "the id says it"
    assert "Places count from 1 and include the end." in html[1]
    assert "count from 0" not in html[1]
    # The picture of a record, where the third residue has no score.
    assert "    1 ▶ " in re.sub("<[^>]*>", "", html[1])
    assert [int(n) for n in re.findall(r'data-tip="(\d+): ', html[1])] == [1, 2, 4, 5]
    assert [level.counted_from for level in PROTEIN.levels] == [1, 1]


def test_residues_are_numbered_and_coloured_by_what_their_place_does_not_explain() -> None:
    length = 150
    one = scored("p", "A" * length, [3.0] * length)
    entropy = np.full(length, 3.0)
    entropy[[4, 70]] = 0.0, 5.0
    one = replace(one, values={"entropy": entropy})
    report = Reported(TOKENIZER, pictures=PROTEIN.pictures(PROTEIN.levels[0]), unit="residue", ids_from=1)
    report.add(JudgedRow(row=record_row(one, {"bits_per_unit": 3.0}), scored_record=one))
    html = report.html()
    shown = html.split('class="coloured"')[1].split("</div>")[0]
    text = re.sub("<[^>]*>", "", shown).partition(">")[2]
    assert [line[:5] for line in text.splitlines()] == ["    1", "   61", "  121"]
    assert [len(line) for line in text.splitlines()] == [68, 68, 38]
    marks = re.findall(r'<b class="(\w+)" data-tip="(\d+):', shown)
    assert {kind: place for kind, place in marks if kind != "s0"} == {"s8": "5", "u5": "71"}


def test_nothing_to_score_is_said_and_data_are_escaped() -> None:
    report = Reported(TOKENIZER)
    report.add(judged("<script>alert(1)</script>", 1.0))
    html = report.html()
    assert html.count("<script>") == 1
    assert "a&lt;b&gt;.fa:7" in html
    assert "There was nothing to score." in Reported(TOKENIZER).html()


def test_an_extrapolated_p_value_is_called_so() -> None:
    report = Reported(TOKENIZER)
    report.add(judged("plain", 1.0, 0.2, False))
    assert "extrapolated" not in report.html()
    report.add(replace(judged("far", 9.0, 1e-9, True), extrapolated=True))
    told = report.html()
    assert ">extrapolated" in told
    assert "a ranking, not a guarantee" in told


class Blank(Letters):
    """Spells a symbol by white space."""

    def unit_text(self, token: int) -> str:
        return "\n    "


class Spelled(ResidueTokenizer):
    spelling = Blank(TOKENS)


class Lines:
    """Stands for a record that has a text, and more that only a model reads."""

    text = "A\nC \n"

    def __str__(self) -> str:
        return f"{self.text}\0t1709532002.139718"


def test_what_cannot_be_seen_is_shown_by_signs_and_what_is_not_text_is_left_out() -> None:
    one = scored("x", "ACDEF", [1.0, 2.0, 3.0, 4.0, 9.0])
    object.__setattr__(one.record, "raw", Lines())
    report = Reported(Spelled(), pictures=[Coloured()])
    report.add(JudgedRow(row=record_row(one, {"bits_per_unit": 1.0}), scored_record=one))
    told = report.html()
    assert "↵: 9.0 bits" in told
    assert "↵␣␣␣␣ 50 %" in told
    assert "1709532002" not in told
    object.__setattr__(one.record, "raw", "A\0CD\n")  # of a text, everything is shown
    assert report.html().count("9.0 bits") == told.count("9.0 bits")


def test_rows_of_which_nothing_is_known_have_a_table_of_their_own() -> None:
    report = Reported(TOKENIZER)
    report.add(judged("known", 2.0, 0.5, False))
    silent = replace(
        record_row(scored("x", "ACD", []), {"bits_per_unit": float("nan")}), id="strange", units=np.arange(0)
    )
    report.add(JudgedRow(row=silent, scored_record=scored("x", "ACD", []), alarm=True, unfamiliar=True))
    told = report.html()
    assert "Unfamiliar rows (mostly units that the model does not know): 1" in told
    assert "strange" in told
    assert "<dt>rows</dt><dd>2</dd>" in told
    assert "<dt>alarms</dt><dd>1</dd>" in told


def test_a_resumed_run_has_the_tables_of_one_that_was_not() -> None:
    whole, resumed = (Reported(TOKENIZER, pictures=[Coloured()]) for _ in range(2))
    for number in range(20):
        whole.add(judged(f"r{number}", float(number), 0.5, number > 17))
    resumed.rows += whole.rows[:15]
    for number in range(15, 20):
        resumed.add(judged(f"r{number}", float(number), 0.5, number > 17))
    expected, told = whole.html(), resumed.html()
    assert told.split("<tbody>")[1].split("</tbody>")[0] == expected.split("<tbody>")[1].split("</tbody>")[0]
    assert "<dt>rows</dt><dd>20</dd>" in told
    assert "of the last 5 rows: the run was resumed" in told
    assert "resumed" not in expected
    assert (expected.count('class="coloured"'), told.count('class="coloured"')) == (module.PICTURED, 5)
