"""Pictures keep what matters: alarms and peaks survive thinning, odd values are drawn or left out."""

from __future__ import annotations

import re

import numpy as np
import pytest

from seqmlm.reports import drawing
from seqmlm.reports.drawing import coloured_text, steps


def points(svg: str) -> list[tuple[float, float]]:
    found = re.search(r'<polyline class="curve" points="([^"]*)"', svg)
    assert found
    return [(float(x), float(y)) for x, y in (pair.split(",") for pair in found[1].split())]


def test_a_single_peak_survives_thinning() -> None:
    values = np.zeros(100_000)
    values[54_321] = 7.0
    starts = np.arange(100_000)
    drawn = points(drawing.track(starts, starts + 1, values))
    assert len(drawn) <= drawing.MOST_POINTS
    assert min(y for _, y in drawn) == drawing.TOP
    inner = drawing.WIDTH - drawing.LEFT - drawing.RIGHT
    place = next(x for x, y in drawn if y == drawing.TOP)
    assert place == pytest.approx(drawing.LEFT + 0.54321 * inner, abs=0.2)


def test_overlapping_alarms_are_one_band_and_distant_ones_two() -> None:
    starts = np.arange(0, 1000, 50)
    alarms = np.isin(starts, [100, 150, 700])
    svg = drawing.track(starts, starts + 100, starts * 0.01, alarms)
    assert re.findall(r'data-tip="alarm ([\d,]+)-([\d,]+)"', svg) == [("100", "250"), ("700", "800")]


def test_alarmed_points_survive_thinning_beside_higher_ones() -> None:
    times = np.linspace(0, 10, 5000)
    scores = np.ones(5000)
    alarms = np.zeros(5000, dtype=bool)
    alarms[123], scores[123] = True, 0.5
    svg = drawing.timeline(times, scores, alarms)
    assert svg.count('class="dot alarm"') == 1
    assert svg.count("<circle") <= drawing.MOST_POINTS


@pytest.mark.parametrize("values", [[], [np.nan, np.nan], [np.inf, 1.0], [2.0, 2.0], [-1.0, 3.0]])
def test_odd_values_give_valid_pictures(values: list[float]) -> None:
    array, starts = np.array(values), np.arange(len(values))
    pictures = [
        drawing.track(starts, starts + 1, array, threshold=1.0),
        drawing.timeline(starts * 1e12, array),
        drawing.heat(array),
    ]
    for svg in pictures:
        assert not re.search(r'="[^"]*(nan|inf)', svg)


def test_the_scale_is_linear_in_bits_and_ends() -> None:
    assert steps(np.array([0, 1.49, 1.5, 11.9, 12, 99, np.inf, np.nan])).tolist() == [0, 0, 1, 7, 8, 8, 8, 0]


def test_coloured_text_keeps_every_character_once() -> None:
    spans = [(1, 3), (2, 5), (4, 5), (6, 6), (7, 9)]
    html = coloured_text("ab<d>fgh&", spans, np.arange(5.0), ["t"] * 5)
    assert re.sub(r"<[^>]*>", "", html) == "ab&lt;d&gt;fgh&amp;"
    assert html.count("<b ") == 3
    assert html.count('tabindex="0"') == 1


def test_histogram_marks_the_threshold_inside_only() -> None:
    counts, edges = np.array([1000, 0, 1]), np.array([0.0, 1.0, 2.0, 3.0])
    inside, outside = (drawing.histogram(counts, edges, threshold=t) for t in (1.5, 3.5))
    assert "threshold" in inside
    assert "threshold" not in outside
    heights = [float(h) for h in re.findall(r'class="bar"[^>]* height="([\d.]+)"', inside)]
    assert len(heights) == 2
    assert heights[1] >= 1.5
    level = drawing.histogram(np.array([2, 2]), np.array([0.0, 0.5, 1.0]), expected=4.0)
    (y,) = re.findall(r'<line class="threshold" x1="[^"]*" x2="[^"]*" y1="([^"]*)"', level)
    assert float(y) == drawing.TOP  # the picture is as high as what is expected


def test_rows_and_alarms_in_time_are_bars_of_their_height() -> None:
    edges = np.arange(4) * 3600.0
    svg = drawing.activity(edges, np.array([100, 0, 50]), np.array([1, 0, 50]))
    bars = re.findall(r'<rect class="([^"]*)" x="([^"]*)" y="[^"]*" width="[^"]*" height="([^"]*)"', svg)
    whole = drawing.HEIGHT - drawing.TOP - drawing.BOTTOM
    assert [kind for kind, _, _ in bars] == ["bar", "bar alarm", "bar", "bar alarm"]
    heights = [float(height) for _, _, height in bars]
    assert heights == pytest.approx([whole, 2.0, whole / 2, whole / 2], abs=0.1)  # one of a hundred is seen
    assert [float(x) for _, x, _ in bars][2] == pytest.approx(
        drawing.LEFT + (1000 - 56 - 12) * 2 / 3, abs=0.2
    )
    assert "01-01 00:00 to 01-01 01:00: 100 rows, 1 alarm" in svg
    assert "alarm" not in drawing.activity(edges, np.array([1, 2, 3]), None)


def test_what_lasted_is_cut_at_the_ends_of_the_picture() -> None:
    given = [
        drawing.Bar(begin=-50.0, end=50.0, label="early", tip="a"),
        drawing.Bar(begin=90.0, end=500.0, label="late", tip="b", over=False),
        drawing.Bar(begin=20.0, end=20.0, label="short " * 40, tip="c"),
    ]
    svg = drawing.bars(given, 0.0, 100.0)
    found = re.findall(r'<rect class="([^"]*)" x="([^"]*)" y="[^"]*" width="([^"]*)"', svg)
    inner = drawing.WIDTH - drawing.LEFT - drawing.RIGHT
    assert [(kind, float(x), float(width)) for kind, x, width in found] == [
        ("span", drawing.LEFT, pytest.approx(inner / 2, abs=0.2)),
        ("span open", pytest.approx(drawing.LEFT + 0.9 * inner, abs=0.2), pytest.approx(inner / 10, abs=0.2)),
        ("span", pytest.approx(drawing.LEFT + 0.2 * inner, abs=0.2), 4.0),
    ]
    labels = re.findall(r'<text class="lane" x="([^"]*)" y="[^"]*" text-anchor="([^"]*)">([^<]*)<', svg)
    assert [(anchor, len(text) <= 70) for _, anchor, text in labels] == [
        ("start", True),
        ("end", True),
        ("start", True),
    ]
    assert all(drawing.LEFT <= float(x) <= drawing.WIDTH for x, _, _ in labels)


def test_a_grid_has_a_cell_for_each_letter_in_blocks_of_columns() -> None:
    bits = np.full((120, 3), 4.0)
    bits[7, 1], bits[8, 2], bits[9, 0] = np.nan, -3.0, np.inf
    names = [f"{column}{letter}" for column in range(120) for letter in "ACD"]
    svg = drawing.grid(bits, "ACD", [str(column) for column in range(120)], names, scale=8.0)
    assert svg.count("<svg") == 3
    assert svg.count("<rect") == 360
    marks = {tip: mark for mark, tip in re.findall(r'<rect class="(\w+)"[^>]*data-tip="(\w+)"', svg)}
    assert (marks["7C"], marks["8D"], marks["9A"], marks["0A"]) == ("band", "h0", "h8", "h4")
    assert not re.search(r'="[^"]*(nan|inf)', svg)
    many = drawing.grid(np.zeros((1200, 1)), "A", ["x"] * 1200, ["y"] * 1200)
    assert many.count("<rect") == drawing.MOST_COLUMNS


def _cells(svg: str) -> dict[tuple[int, int], tuple[str, str]]:
    """(row, column) of a matrix to the class and the tip of its cell, the ground left out."""
    found = re.findall(
        r'<rect class="(h\d)" x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="[\d.]+" data-tip="([^"]*)"',
        svg,
    )
    left = float(re.findall(r'<rect class="h0" x="([\d.]+)"', svg)[0])
    side = float(found[0][3]) - 0.1
    return {
        (round(float(y) / side), round((float(x) - left) / side)): (mark, tip) for mark, x, y, _, tip in found
    }


def test_a_matrix_has_values_above_its_diagonal_and_edges_below() -> None:
    values = np.full((4, 4), np.nan)
    values[0, 1] = values[1, 0] = 8.0
    values[1, 3] = values[3, 1] = 4.0
    values[2, 3] = values[3, 2] = -1.0
    svg = drawing.matrix(values, ["a<b", "c", "d", "e"], {(0, 1), (1, 3)}, {(1, 3), (0, 2)}, scale=8.0)
    assert _cells(svg) == {
        (0, 1): ("h8", "0 a&lt;b, 1 c: 8"),
        (1, 3): ("h4", "1 c, 3 e: 4"),
        (1, 0): ("h5", "found"),
        (2, 0): ("h3", "known"),
        (3, 1): ("h8", "found and known"),
    }


def test_a_large_matrix_shows_the_highest_of_each_block() -> None:
    values = np.zeros((640, 640))
    values[25, 127] = values[127, 25] = 5.0
    svg = drawing.matrix(values, ["u"] * 640, {(3, 639)}, set(), scale=5.0)
    assert _cells(svg) == {(2, 12): ("h8", "25 u, 127 u: 5"), (63, 0): ("h5", "found")}
    assert "<rect" in drawing.matrix(np.zeros((0, 0)), [], set(), set(), scale=1.0)
