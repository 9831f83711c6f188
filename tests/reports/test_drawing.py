"""Pictures keep what matters: alarms and peaks survive thinning, odd values are drawn or left out."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

import matplotlib
import numpy as np
import pytest
from pages import Reading

from seqmlm.reports import drawing
from seqmlm.reports.drawing import Bar, scatter, text_on_colours, thinned_indices
from seqmlm.reports.page import Page
from seqmlm.reports.scales import colour_scale, steps

INNER = drawing.WIDTH - drawing.LEFT - drawing.RIGHT
WHOLE = drawing.HEIGHT - drawing.TOP - drawing.BOTTOM


def tips(html: str) -> list[str | None]:
    """What is told of the parts of a picture, in order."""
    return [part["data-tip"] for part in Reading(html).all("g") if "data-tip" in part]


def shapes(html: str) -> list[tuple[str, float, float, float]]:
    """What is told, and left end, width and height of each part that is a shape."""
    found = re.findall(r'<g data-tip="([^"]*)"[^>]*>\s*<path d="([^"]*)"', html)
    points = [(tip, np.array(re.findall(r"(\S+) (\S+) \n", path), dtype=float)) for tip, path in found]
    return [(tip, own[:, 0].min(), *np.ptp(own, axis=0)) for tip, own in points]


def test_a_single_peak_survives_thinning() -> None:
    values = np.zeros(100_000)
    values[54_321] = 7.0
    kept = thinned_indices(np.arange(100_000), values)
    assert 54_321 in kept
    assert len(kept) == drawing.MOST_POINTS
    assert (np.diff(kept) > 0).all()
    few = thinned_indices(np.array([0.0, np.nan, 2.0, 3.0]), np.array([1.0, 1.0, np.nan, -np.inf]))
    assert few.tolist() == [0, 3]


def test_alarmed_points_survive_thinning_beside_higher_ones() -> None:
    alarms = np.arange(5000) == 123
    scores = np.where(alarms, 0.5, 1.0)
    titles = [f"row <{number}>" for number in range(5000)]
    html = drawing.timeline(np.linspace(0, 10, 5000), scores, alarms, titles)
    assert tips(html) == ["row <123>"]
    assert html.count("fill-opacity: 0.75") < drawing.MOST_POINTS


def test_overlapping_alarms_are_one_band_and_distant_ones_two() -> None:
    starts = np.arange(0, 1000, 50)
    html = drawing.track(starts, starts + 100, starts * 0.01, np.isin(starts, [100, 150, 700]))
    (first, x, width, height), (second, *_) = shapes(html)
    assert (first, second) == ("alarm 101 to 250", "alarm 701 to 800")
    assert (x, width, height) == pytest.approx(
        (drawing.LEFT + INNER * 100 / 1050, INNER * 150 / 1050, WHOLE), abs=0.1
    )


EMPTY: dict[str, Callable[[], str]] = {
    "track": lambda: drawing.track(np.arange(2), np.arange(2) + 1, np.full(2, np.nan), note="n"),
    "timeline": lambda: drawing.timeline(np.arange(2.0), np.full(2, np.nan), threshold=1.0, note="n"),
    "histogram": lambda: drawing.histogram(np.zeros(2, int), np.arange(3.0), expected=0.0, note="n"),
    "tails": lambda: drawing.tails(np.zeros(9, int), 3, 0.01),
    "activity": lambda: drawing.activity(np.arange(3.0), np.zeros(2, int), np.zeros(2, int), note="n"),
    "bars": lambda: drawing.bars([], 0.0, 1.0, note="n"),
    "grid": lambda: drawing.grid(np.full((1, 2), np.nan), "AC", ["1"], ["a", "b"], scale=1.0, note="n"),
    "matrix": lambda: drawing.matrix(np.full((2, 2), np.nan), ["a", "b"], scale=1.0, note="n"),
    "scatter": lambda: drawing.scatter(np.zeros((0, 2)), label="map", note="n"),
}


def test_a_picture_of_nothing_is_empty_and_a_page_has_no_section_for_it() -> None:
    drawn = {name for name, made in vars(Page).items() if (made.__doc__ or "?") == pictures().get(name)}
    assert drawn == EMPTY.keys(), "every picture of a page needs a case here"
    page = Page("title", "lead")
    for name, draw in EMPTY.items():
        assert draw() == "", name
        page.section(name, draw())
    assert page.html() == Page("title", "lead").html()


def pictures() -> dict[str, str | None]:
    """The documentation of every function that draws a picture."""
    return {name: made.__doc__ for name, made in vars(drawing).items() if inspect.isfunction(made)}


def test_a_fitted_scale_is_one_that_nearly_all_values_lie_within() -> None:
    rng = np.random.default_rng(0)
    for size in (1e-3, 0.2, 6.0, 150.0):
        values = rng.normal(scale=size, size=4000)
        scale = colour_scale(values)
        assert 0.96 < np.mean(np.abs(values) <= scale) < 0.99
        assert float(f"{scale / 8:.2g}") * 8 == pytest.approx(scale, rel=1e-6)
    assert colour_scale(np.array([np.nan, np.inf, 0.0])) == 1.0


@pytest.mark.parametrize("values", [[], [np.nan, np.nan], [np.inf, 1.0], [2.0, 2.0], [-1.0, 3.0]])
def test_odd_values_give_valid_pictures(values: list[float]) -> None:
    array, starts = np.array(values), np.arange(len(values))
    for html in (
        drawing.track(starts, starts + 1, array),
        drawing.timeline(starts * 1e12, array, threshold=1.0),
    ):
        assert not re.search(r'="[^"]*(nan|inf)', html)
        assert (html == "") == (not np.isfinite(array).any())


def test_a_picture_is_the_same_bytes_and_changes_no_setting() -> None:
    before = dict(matplotlib.rcParams)
    one, again = (
        drawing.histogram(np.array([3, 1]), np.array([0.0, 1.0, 2.0]), x_label="$a$ 漢") for _ in range(2)
    )
    assert one == again
    assert "$a$ 漢" in Reading(one).text
    assert dict(matplotlib.rcParams) == before


def test_the_scale_is_linear_in_bits_and_ends() -> None:
    assert steps(np.array([0, 1.49, 1.5, 11.9, 12, 99, np.inf, np.nan])).tolist() == [0, 0, 1, 7, 8, 8, 8, 0]


def test_coloured_text_keeps_every_character_once() -> None:
    spans = [(1, 3), (2, 5), (4, 5), (6, 6), (7, 9)]
    html = text_on_colours("ab<d>fgh&", spans, np.arange(5.0), ["t"] * 5)
    assert re.sub(r"<[^>]*>", "", html) == "ab&lt;d&gt;fgh&amp;"
    assert html.count("<b ") == 3
    assert html.count('tabindex="0"') == 1


def test_a_histogram_shows_one_row_among_thousands() -> None:
    counts, edges = np.array([1000, 0, 1]), np.array([0.0, 1.0, 2.0, 3.0])
    (area,) = re.findall(
        r'<path d="([^"]*)" clip-path="[^"]*" style="fill: #', drawing.histogram(counts, edges)
    )
    heights = drawing.HEIGHT - drawing.BOTTOM - np.array(re.findall(r" (\S+) \n", area), dtype=float)
    assert sorted({float(height) for height in heights.round(1)}) == [0.0, 1.7, WHOLE]  # one row is seen
    level = drawing.histogram(np.array([2, 2]), np.array([0.0, 0.5, 1.0]), expected=4.0)
    assert re.search(rf'd="M {drawing.LEFT} {drawing.TOP} [^"]*" [^>]*stroke-dasharray', level)


def test_p_values_stand_beside_those_of_normal_rows_with_the_line_where_alarms_begin() -> None:
    counts = np.zeros(60, dtype=np.int64)
    counts[[0, 12, 30]] = 90, 9, 1
    html = drawing.tails(counts, 10, alpha=0.05)
    (line,) = re.findall(r'<path d="M (\S+) \S+ \nL \1 [^>]*stroke-dasharray', html)
    left, width = 0.08 * drawing.WIDTH, 0.9 * drawing.WIDTH
    assert float(line) == pytest.approx(left + width * -np.log10(0.05) / 3.1, abs=0.1)
    assert re.findall(r">(1|0\.1|0\.01|0\.001)</text>", html)[:4] == ["1", "0.1", "0.01", "0.001"]
    assert "if all were normal" in html
    assert "alarm from" not in drawing.tails(counts, 10)


def test_rows_and_alarms_in_time_are_bars_of_their_height() -> None:
    html = drawing.activity(np.arange(4) * 3600.0, np.array([100, 0, 50]), np.array([1, 0, 50]))
    found = sorted(shapes(html), key=lambda one: one[1])
    assert found[0][0] == "01-01 00:00 to 01-01 01:00: 100 rows, 1 alarm"
    heights = [WHOLE, 0.01 * WHOLE, WHOLE / 2, WHOLE / 2]  # one of a hundred is seen
    assert [height for *_, height in found] == pytest.approx(heights, abs=0.1)
    assert found[2][1] == pytest.approx(drawing.LEFT + INNER * 2 / 3, abs=0.2)
    assert "alarm" not in drawing.activity(np.arange(4) * 3600.0, np.array([1, 2, 3]), None)


def test_what_lasted_is_cut_at_the_ends_of_the_picture() -> None:
    given = [
        Bar(begin=-50.0, end=50.0, label="early", tip="a"),
        Bar(begin=90.0, end=500.0, label="late", tip="b", over=False),
        Bar(begin=20.0, end=20.0, label="short " * 40, tip="c"),
    ]
    html = drawing.bars(given, 0.0, 100.0)
    assert [one[:3] for one in shapes(html)] == [
        ("a", drawing.LEFT, pytest.approx(INNER / 2, abs=0.2)),
        ("b", pytest.approx(drawing.LEFT + 0.9 * INNER, abs=0.2), pytest.approx(INNER / 10, abs=0.2)),
        ("c", pytest.approx(drawing.LEFT + 0.2 * INNER, abs=0.2), pytest.approx(0.004 * INNER, abs=0.2)),
    ]
    assert html.count("opacity: 0.55") == 1
    labels = re.findall(r"text-anchor: (\w+)[^>]*>(early|late|short[^<]*)<", html)
    assert [anchor for anchor, _ in labels] == ["start", "end", "start"]
    assert len(labels[2][1]) <= 70


def cells(html: str, width: int) -> dict[tuple[int, int], tuple[str | None, str | None]]:
    """Row and column to class and tip of the cells that tell something."""
    found = [(one["class"], one.get("data-tip")) for one in Reading(html).all("i") if one]
    return {divmod(place, width): one for place, one in enumerate(found) if one[1] is not None}


def test_a_grid_has_a_cell_for_each_letter_in_blocks_of_columns() -> None:
    bits = np.full((120, 3), 4.0)
    bits[7, 1], bits[8, 2], bits[9, 0] = np.nan, -3.0, np.inf
    names = [f"{column}{letter}" for column in range(120) for letter in "ACD"]
    html = drawing.grid(bits, "ACD", [f"at {column}" for column in range(120)], names, scale=8.0)
    assert html.count('class="cells') == 3
    marks = {one["data-tip"]: one["class"] for one in Reading(html).all("i") if "data-tip" in one}
    assert sorted(marks) == sorted(names)
    assert [marks[name] for name in ("7C", "8D", "9A", "0A")] == ["band", "u3", "s8", "s4"]
    assert re.findall(r"<b>(at \d+)</b>", html) == [f"at {column}" for column in range(0, 120, 10)]
    many = drawing.grid(np.zeros((1200, 1)), "A", ["x"] * 1200, ["y"] * 1200, scale=8.0, note="n")
    assert many.count("data-tip") == drawing.MOST_COLUMNS
    assert "n; the first 1,000 of 1,200 columns are drawn" in many


def test_a_matrix_has_values_above_its_diagonal_and_edges_below() -> None:
    values = np.full((4, 4), np.nan)
    values[0, 1] = values[1, 0] = 8.0
    values[1, 3] = values[3, 1] = 4.0
    values[2, 3] = values[3, 2] = -1.0
    html = drawing.matrix(values, ["a<b", "c", "d", "e"], {(0, 1), (1, 3)}, {(1, 3), (0, 2)}, scale=8.0)
    assert cells(html.split("cells matrix")[1], 4) == {
        (0, 1): ("s8", "1 a<b, 2 c: 8"),
        (1, 3): ("s4", "2 c, 4 e: 4"),
        (1, 0): ("s5", "found"),
        (2, 0): ("s3", "known"),
        (3, 1): ("s8", "found and known"),
    }


def test_a_large_matrix_shows_the_highest_of_each_block() -> None:
    values = np.zeros((640, 640))
    values[25, 127] = values[127, 25] = 5.0
    html = drawing.matrix(values, ["u"] * 640, {(3, 639)}, set(), scale=5.0)
    assert cells(html.split("cells matrix")[1], 64) == {
        (2, 12): ("s8", "21 to 30, 121 to 130: 5"),
        (63, 0): ("s5", "found"),
    }
    assert "64 blocks" in html
    assert drawing.matrix(np.zeros((0, 0)), [], set(), set(), scale=1.0) == ""


def test_points_of_frequent_kinds_have_colours_and_the_others_one() -> None:
    places = np.random.default_rng(0).normal(size=(40, 2))
    kinds = [f"kind {number % 9}" for number in range(40)]
    drawn = scatter(places, kinds, [f"point {number}" for number in range(40)], label="map", note="told")
    assert sum(f"kind {number}<" in drawn for number in range(9)) == 6
    assert "others<" in drawn
    assert 'data-tip="point 0"' in drawn
    assert "told" in drawn
    assert scatter(places[:0], label="map") == ""
