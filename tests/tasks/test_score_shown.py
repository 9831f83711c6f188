"""What a person is shown of a scoring: the most unusual rows first, and some where none raises an alarm."""

from __future__ import annotations

import io
import json
import math
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_domain_models import MODULE, calibrated_code_model

from seqmlm.cli import main
from seqmlm.data.problems import Problems
from seqmlm.inference.model_folder import read_card, seal
from seqmlm.rows.file import Rows
from seqmlm.scoring.output import unusual_first

NONE = "no row raises an alarm. The most unusual rows are:"
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "p_value": st.one_of(st.none(), st.sampled_from([0.01, 0.2, 1.0])),
            "score": st.one_of(st.none(), st.integers(-3, 3)),
            "alarm": st.booleans(),
            "text": st.text(max_size=3),
        }
    ),
    max_size=20,
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return calibrated_code_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Source code whose lines are normal ones."""
    monkeypatch.setenv("SEQMLM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    tree = tmp_path / "tree"
    tree.mkdir()
    monkeypatch.chdir(tree)
    for name in ("a", "b"):
        (tree / f"{name}.py").write_text(MODULE)
    return tree


def called(*words: object) -> int:
    try:
        main([*map(str, words)])
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)


@given(ROWS, st.booleans())
def test_rows_for_people_are_sorted_and_only_their_places_are_held(
    found: list[dict[str, Any]], filtered: bool
) -> None:
    shown, wanted = io.StringIO(), (lambda row: row["alarm"]) if filtered else None

    def line(row: Any) -> str:
        return json.dumps(dict(row)) + "\n"

    with Rows(None, {}, Problems(), stdout=shown, line=line, order=unusual_first, row_filter=wanted) as rows:
        for row in found:
            rows.write([[row]])
            assert not shown.getvalue()
        rows.finish()
        assert list(rows.read()) == found
    expected = sorted((row for row in found if row["alarm"] or not filtered), key=unusual_first)
    assert [json.loads(one) for one in shown.getvalue().splitlines()] == expected


def test_the_order_is_by_alarm_p_value_and_score() -> None:
    rows = [
        {"score": 1.0, "alarm": True},  # of what nothing is known
        {"p_value": 0.001, "score": 2.0, "alarm": True},
        {"p_value": 0.001, "score": 1.0, "alarm": True},
        {"p_value": 0.5, "score": 9.0, "alarm": False},
        {"p_value": None, "score": 3.0},
        {"p_value": None, "score": None},
    ]
    backwards = rows[::-1]
    assert sorted(backwards, key=unusual_first) == rows
    assert all(not math.isnan(one) for row in rows for one in unusual_first(row))


@pytest.mark.parametrize("command", ["score", "review"])
@pytest.mark.parametrize("more", [(), ("--set", "alarms_only=true"), ("--out", "rows.jsonl")], ids=len)
def test_the_most_unusual_rows_are_shown_where_none_raises_an_alarm(
    model: Path, folder: Path, capsys: pytest.CaptureFixture[str], command: str, more: tuple[str, ...]
) -> None:
    assert called(command, model, ".", "--fpr", "0.03", *more) == 0
    told = capsys.readouterr()
    assert "0 alarms" in told.err
    _, _, examples = told.err.partition(f"{NONE}\n")
    lines = examples.splitlines()[:6]
    places, reasons = lines[::2], lines[1::2]
    assert [one.startswith(("a.py:", "b.py:", "./")) for one in places] == [True] * 3
    assert all("p " in one and "ALARM" not in one for one in places)
    assert all("Least expected: " in one for one in reasons)
    values = [float(one.split("  p ")[1].split()[0]) for one in places]
    assert values == sorted(values)
    if not more:
        written = [json.loads(one) for one in told.out.splitlines()]
        assert min(row["p_value"] for row in written) == pytest.approx(values[0], rel=0.05)
    assert NONE not in told.out


def test_nothing_is_shown_beside_alarms_or_of_sensitive_data(
    model: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called("score", model, ".", "--fpr", "0.6") == 0
    told = capsys.readouterr()
    assert " 0 alarms" not in told.err
    assert NONE not in told.err
    private = calibrated_code_model(tmp_path / "private")
    seal(private, replace(read_card(private), sensitive=True))
    out = tmp_path / "rows.jsonl"
    assert called("score", private, ".", "--fpr", "0.03", "--out", out) == 0
    told = capsys.readouterr()
    assert " 0 alarms" in told.err
    assert NONE not in told.out + told.err
    assert "Least expected" not in told.out + told.err


def test_a_terminal_shows_the_most_unusual_rows_first_and_a_pipe_as_they_come(
    model: Path, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert called("score", model, ".") == 0
    piped = [json.loads(one) for one in capsys.readouterr().out.splitlines()]
    assert [row["source"] for row in piped] == sorted(row["source"] for row in piped)
    terminal(monkeypatch)
    assert called("score", model, ".") == 0
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == len(piped) > 10
    expected = [f"{row['source']}:{row['line']}" for row in sorted(piped, key=unusual_first)]
    assert [one.split()[0] for one in shown] == expected
    assert expected != [f"{row['source']}:{row['line']}" for row in piped], "otherwise nothing is tested"


def test_a_scoring_that_is_stopped_shows_what_it_has(
    model: Path, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal(monkeypatch)
    write = Rows.write

    def stopped(self: Rows, items: Any) -> None:
        write(self, items)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Rows, "write", stopped)
    assert called("score", model, ".") != 0
    shown = capsys.readouterr().out.splitlines()
    values = [float(one.split("  p ")[1].split()[0]) for one in shown]
    assert len(values) > 10
    assert values == sorted(values)
