"""Whatever a log says is shown as text: no terminal, page, spreadsheet or receiver acts on it.

Every text comes through every door: the fields of alarms, as a follower of files would have them.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from fork_server import Run
from pages import Reading
from receiver import NoFiles

from seqmlm.data.problems import Problems
from seqmlm.errors import printable
from seqmlm.rows.file import Rows
from seqmlm.streams.sinks import Schema
from seqmlm.watch.grouping import Grouping
from seqmlm.watch.incidents import list_incidents
from seqmlm.watch.metrics import prometheus
from seqmlm.watch.outbox import Outbox
from seqmlm.watch.store import Streams
from seqmlm.watch.webhooks import FORMATS, Origin, notices, parse_webhook
from seqmlm.workspace import Workspace

NASTY = [
    *("\x1b[2J\x1b[H", "\x1b]8;;http://evil\x07click\x1b]8;;\x07", "\x1b]0;title\x07", "\x9b31m"),
    *("\x07\x08\x7f", "\x00", "\u202egpj.exe", "\u2066x\u2069", "\u200f", "\ufeff", "\u2028next", "\x85next"),
    *("a\nb", "a\r\nb", "a\rb", "\ud800", "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>'),
    *("' onmouseover='x", "</style><style>", "<!--", "]]>", "</svg><svg onload=x>", "&lt;b&gt;", "</title>"),
    *("{{7*7}}{% raw %}", "javascript:alert(1)", "</dd></dl>", "[red]x[/red]", "[/]", "[bold", r"\[x]"),
    *("[link=http://evil]x[/link]", ":bomb:", "[[x]]", "'; DROP TABLE seqmlm_incidents; --", 'x" OR 1=1'),
    *("%s%n%(x)s", "{0}{x}", "${jndi:ldap://x}", "$(reboot)`reboot`", "=cmd|' /C calc'!A0", "+1+1", "-2+3"),
    *("@SUM(1)", "\t=1+1", "\r=1+1", "'=1", "", " ", "x" * 5000, "\U0001f4a3" * 300, "e\u0301\u0327" * 50),
    *("\\", '"', "\\n\\"),
]
PLAIN = [f"word {number}" for number in range(len(NASTY))]
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def alarms(texts: Sequence[str]) -> list[dict[str, Any]]:
    """An incident for each text, which stands in every field."""
    fields = ("id", "what", "message", "template", "reason", "host", "service")
    numbers = {"line": 1, "last_line": 9, "lines": 9, "new_lines": 1, "p_value": 0.01}
    known = {**numbers, "alarm": True, "severity": "ERROR"}
    return [
        {**dict.fromkeys(fields, text), "source": f"/logs/{number}{text}", **known}
        | {"never_seen": [text], "expected": [text, text]}
        for number, text in enumerate(texts)
    ]


def follow(home: Path, texts: Sequence[str]) -> list[Any]:
    """A stream of such alarms; the bodies of the notices for webhooks of every format."""
    hooks = [parse_webhook(f"http://127.0.0.1:{port}/", style) for port, style in enumerate(FORMATS, 1)]
    makers = [notices(hook, Origin(output="rows.jsonl")) for hook in hooks]
    with Streams(Workspace.locate()) as registry:
        outbox = Outbox(
            home / "rows.jsonl",
            registry,
            {"files": list(texts)},
            NoFiles,  # type: ignore[arg-type, return-value]
            grouping=Grouping(model="web:1"),
            notify=lambda changes: [notice for make in makers for notice in make(changes)],
        )
        outbox.begin(Problems())
        outbox.write(alarms(texts))
        outbox.commit({}, Problems())
        outbox.close()
        queue, now = registry.notices(outbox.stream), datetime(2999, 1, 1, tzinfo=UTC)
        return [one.body for hook in hooks for one in queue.due(hook.name, now)]


def test_what_a_log_says_acts_on_no_terminal(
    seqmlm: Run, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    follow(workspace, NASTY)
    done = [seqmlm("incidents", "list"), seqmlm("report")]
    assert len(done[0].out.splitlines()) == 1 + len(NASTY)
    done += [seqmlm("incidents", "show", one.id) for one in list_incidents()[0]]
    for one in done:
        assert one.code == 0
        assert printable(one.out, lines=True) == one.out
        assert printable(one.err, lines=True) == one.err
    said = done[0].out
    shown = ("[red]x[/red]", "[/]", "[link=http://evil]x[/link]", ":bomb:", r"\u202egpj.exe", r"\x1b[2J")
    for literal in shown:
        assert literal in said, literal

    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "400")
    shown = seqmlm("incidents", "list").out
    assert set(re.findall("\x1b\\[([0-9;]*)m", shown)) <= {"0", "1"}  # of the heading
    bare = re.sub("\x1b\\[[0-9;]*m", "", shown)
    assert printable(bare, lines=True) == bare
    assert "[red]x[/red]" in bare


def test_no_element_of_a_page_comes_of_what_a_log_says(
    seqmlm: Run, workspace: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = []
    for texts in (NASTY, PLAIN):
        home = tmp_path_factory.mktemp("home")
        monkeypatch.setenv("SEQMLM_HOME", str(home))
        follow(home, [text or "empty" for text in texts])
        assert seqmlm("report").code == 0
        pages.append(Reading((home / "report.html").read_text()))
    # A column of long texts has a class, that of short ones none.
    evil, plain = (
        Counter((tag, *sorted(name for name, _ in own if name != "class")) for tag, own in one.tags)
        for one in pages
    )
    assert evil == plain
    for literal in ("<script>alert(1)</script>", "{{7*7}}", "&lt;b&gt;", r"\u202egpj.exe"):
        assert literal in pages[0].text, literal
    assert printable(pages[0].text, lines=True) == pages[0].text


def test_bodies_of_webhooks_are_json_that_every_reader_takes(workspace: Path) -> None:
    bodies = follow(workspace, NASTY)
    assert len(bodies) == len(FORMATS) * len(NASTY)
    for body in bodies:
        sent = json.dumps(body).encode()
        assert json.loads(sent) == body
        assert json.dumps(body, ensure_ascii=False).encode("utf-8")  # no half surrogates
        assert not re.search(rb"[\x00-\x1f\x7f-\xff]", sent)


def test_no_cell_of_a_table_is_a_formula(tmp_path: Path) -> None:
    columns = {"id": "text", "source": "text", "line": "integer", "p_value": "number", "reason": "text"}
    path = tmp_path / "rows.csv"
    rows = [{**one, "source": one["reason"]} for one in alarms(NASTY)]
    with Rows(path, {}, Problems(), format="csv", columns=Schema(columns=columns)) as file:  # type: ignore[arg-type]
        file.write([rows])
        file.commit()
        file.finish()
    with path.open(newline="", encoding="utf-8") as opened:
        found = list(csv.reader(opened))
    assert len(found) == 1 + len(NASTY)
    for cells in found:
        assert not [cell for cell in cells if cell.startswith(FORMULA)]
    head = found[0]
    assert [json.loads(cells[head.index("extra")])["severity"] for cells in found[1:]] == ["ERROR"] * len(
        NASTY
    )


def test_names_break_no_line_of_the_metrics() -> None:
    sample = re.compile(r'seqmlm_\w+(\{(\w+="([^"\\\n]|\\["\\n])*",?)*\})? [0-9.]+', re.ASCII | re.DOTALL)
    for text in NASTY:
        told = prometheus({"lines": 3, "webhooks": {text: {"waiting": 1}}})
        assert told.encode("utf-8")
        for line in told.split("\n")[:-1]:
            assert line.startswith("# ") or sample.fullmatch(line), (text, line)


def test_messages_of_a_scoring_act_on_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    from seqmlm.cli.console import ScoringConsole

    with ScoringConsole() as console:
        for text in NASTY:
            console.message(f"incident 1: {text}")
    said = capsys.readouterr().err
    assert printable(said, lines=True) == said
    for literal in ("[red]x[/red]", "[/]", ":bomb:", r"\x1b[2J"):
        assert f"incident 1: {literal}" in said, literal
