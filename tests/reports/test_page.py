"""A report is one closed file: data is escaped, sizes are bounded, privacy is a file mode."""

from __future__ import annotations

import base64
import hashlib
import re
import stat
from pathlib import Path

import numpy as np
import pytest
from markupsafe import Markup
from pages import Reading

from seqmlm.errors import StateError
from seqmlm.privacy import handling_sensitive_data
from seqmlm.reports import page as module
from seqmlm.reports.drawing import Bar
from seqmlm.reports.page import Page

EVIL = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(2)>"


def full(evil: str) -> Page:
    page = Page(evil, evil)
    page.head({evil: evil, "rows": 3})
    page.section(evil, evil)
    page.table(evil, ["id", evil], [[evil, 1.5], [evil, None]])
    page.coloured(evil, evil, [(0, 3), (3, 8)], np.array([1.0, 9.0]), [evil, evil], note=evil)
    starts = np.arange(5)
    alarms = starts == 2
    page.track(evil, starts, starts + 2, starts * 1.0, alarms, x_label=evil, y_label=evil, note=evil)
    page.timeline(evil, starts * 60.0, starts * 1.0, alarms, [evil] * 5, y_label=evil)
    page.tails(evil, np.array([5, 1]), 10, 0.5)
    page.histogram(evil, np.array([3, 1]), np.array([0.0, 1.0, 2.0]), x_label=evil)
    page.grid(evil, np.array([[1.0, 9.0]]), [evil, evil], [evil], [evil, evil], scale=8.0, note=evil)
    page.matrix(evil, np.eye(2), [evil, evil], scale=1.0, unit=evil, note=evil)
    page.warnings([evil])
    page.facts(evil, {evil: evil, "none": None})
    page.activity(evil, starts * 60.0, starts[1:], np.array([0, 1, 0, 2]), note=evil)
    bars = [Bar(begin=at, end=at + 50.0, label=evil, tip=evil, over=at > 0) for at in (0.0, 90.0, 170.0)]
    page.bars(evil, bars, 0.0, 200.0, note=evil)
    return page


def test_what_data_says_is_never_markup() -> None:
    html = full(EVIL).html()
    read = Reading(html)
    assert len(read.all("script")) == 1
    assert not read.all("img")
    assert not [a for _, attributes in read.tags for a, _ in attributes if a.startswith("on")]
    # The same page of harmless data has the same tags.
    assert [tag for tag, _ in read.tags] == [tag for tag, _ in Reading(full("harmless" * 9).html()).tags]
    assert read.text.count("<img src=x onerror=alert(2)>") > 5


def test_nothing_comes_from_elsewhere() -> None:
    html = full("x" * 10).html()
    read = Reading(html)
    assert not read.all("link")
    assert not [a for _, attributes in read.tags for a, _ in attributes if a in ("src", "action")]
    assert not re.search(r"https?://|url\((?!#)|@import", html)
    script = html.split("<script>")[1].split("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in html


def test_markup_is_taken_as_it_is_and_text_is_paragraphs() -> None:
    page = Page("t")
    page.section("a", Markup("<em>yes</em>"))
    page.section("b", "one\n\n<em>no</em>")
    html = page.html()
    assert "<em>yes</em>" in html
    assert "<p>one</p><p>&lt;em&gt;no&lt;/em&gt;</p>" in html


def test_a_long_table_is_cut_and_says_so() -> None:
    page = Page("t")
    page.table("rows", ["n"], ([n] for n in range(module.MOST_ROWS + 7)))
    html = page.html()
    assert html.count("<tr>") == module.MOST_ROWS + 1
    assert "7 more rows are not shown" in html


def test_columns_of_numbers_are_sorted_as_numbers() -> None:
    page = Page("t")
    page.table("rows", ["name", "bits"], [["a", 1234.5678], ["b", None], ["c", float("nan")]])
    read = Reading(page.html())
    assert [head.get("class") for head in read.all("th")] == [None, "number"]
    assert [cell["data-value"] for cell in read.all("td")] == ["a", "1234.5678", "b", "", "c", ""]


def test_coloured_units_are_bounded_on_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_UNITS", 5)
    monkeypatch.setattr(module, "MOST_CHARACTERS", 30)
    page = Page("t")
    spans = [(i, i + 1) for i in range(4)]
    for _ in range(2):
        page.coloured("c", "abcd" + "e" * 50, spans, np.full(4, 12.0), ["x"] * 4)
    html = page.html()
    assert html.count('<b class="s8"') == 5
    assert "1 of 4 units are coloured; 30 of 54 characters are shown" in html
    assert "e" * 27 not in html


def test_a_private_report_is_its_owners_alone(tmp_path: Path) -> None:
    page, path = Page("t"), tmp_path / "new" / "r.html"
    page.write(path)
    path.chmod(0o666)
    with handling_sensitive_data():
        page.write(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text(encoding="utf-8") == page.html()
    assert [file.name for file in path.parent.iterdir()] == ["r.html"]


def test_what_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match=r"cannot write the report .*r\.html"):
        Page("t").write(tmp_path / "file" / "r.html")
