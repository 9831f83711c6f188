"""A shadow judges the rows of the version that serves as it would alone, and leads to nothing else."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from log_models import NORMAL, write_log_model
from receiver import Receiver
from scored import score_files
from scored_streams import (
    Said,
    calibrated_model,
    follow,
    following,
    in_one_go,
    move_alias,
    register,
    rows_of,
    sensitive_copy,
    until,
    windows,
    write,
)

from seqmlm.errors import StateError, UsageError
from seqmlm.inference.detector import Detector
from seqmlm.watch.config import WatchConfig
from seqmlm.watch.incidents import list_incidents
from seqmlm.watch.scoring import watch_files
from seqmlm.watch.store import Streams
from seqmlm.watch.timeline import timeline
from seqmlm.workspace import Workspace


def _strange(text: str) -> list[str]:
    lines = windows([0])
    return [*lines[:2], f"{lines[2][:25]}{text}", lines[3]]


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> str:
    return calibrated_model(tmp_path_factory.mktemp("serving"), windows(range(60)))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A version with other numbers of tokens that knows one order alone, so that the others are unusual."""
    return calibrated_model(tmp_path_factory.mktemp("other"), windows([0] * 60), NORMAL[::-1])


@pytest.fixture(scope="module")
def uncalibrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("uncalibrated")
    write_log_model(folder)
    return folder


@pytest.fixture
def config(serving: str, workspace: Path) -> WatchConfig:
    (workspace / "logs").mkdir()
    register(serving, "live")
    asked = {"mode": "exact", "fpr": 0.05, "quiet": "0.5s", "shadow": "candidate"}
    return following("app@live", workspace / "logs", **asked)


def _log(config: WatchConfig) -> Path:
    return Path(config.paths[0]).with_name("a.log")


def _bare(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "shadow"}


def _counts(config: WatchConfig) -> dict[str, int]:
    with Streams(Workspace.locate()) as registry:
        found = registry.stream(str(config.out))
        return {name[7:]: value for name, value in found.counts.items() if name.startswith("shadow_")}


def test_a_shadow_judges_as_it_would_alone_and_changes_nothing(
    config: WatchConfig, other: str, workspace: Path
) -> None:
    register(other, "candidate")
    log = _log(config)
    write(log, [*windows(range(30)), *_strange("disk 7 on fire")])
    follow(config, 31)
    write(log, windows(range(30, 40)))  # goes on in another process
    follow(config, 41)
    rows = rows_of(config)

    def judged(version: str, name: str) -> list[tuple[Any, bool]]:
        out = workspace / name
        whole = in_one_go(config, model=version, out=out, paths=(str(log),))
        score_files(whole, io.StringIO())
        return [(one["p_value"], one["alarm"]) for one in map(json.loads, out.read_text().splitlines())]

    assert [(row["shadow"]["p_value"], row["shadow"]["alarm"]) for row in rows] == judged("app:2", "b.jsonl")
    assert [(row["p_value"], row["alarm"]) for row in rows] == judged("app:1", "a.jsonl")
    assert {row["shadow"]["version"] for row in rows} == {"app:2"}
    alone = replace(config, shadow=None, out=workspace / "alone.jsonl")
    follow(alone, 41)
    assert [_bare(row) for row in rows] == rows_of(alone)
    both = [(row["alarm"], row["shadow"]["alarm"]) for row in rows]
    assert (False, True) in both  # or nothing was compared
    assert (True, True) in both
    alarms = {"alarms": sum(one for _, one in both), "served": sum(one for one, _ in both)}
    assert _counts(config) == {"rows": 41, "failed": 0, **alarms, "common": both.count((True, True))}
    # The stream goes on without a shadow, and with one again.
    config = replace(config, shadow=None)
    write(log, windows([0]))
    follow(config, 42)
    assert "shadow" not in rows_of(config)[-1]


def test_the_report_compares_rows_that_both_judged(
    config: WatchConfig, other: str, workspace: Path, seqmlm: Callable[..., Any]
) -> None:
    register(other, "candidate")
    write(_log(config), [*windows(range(20)), *_strange("disk 7 on fire")])
    follow(config, 21)
    write(_log(config), _strange("disk 8 on fire"))
    follow(replace(config, shadow=None), 22)
    both = [(row["alarm"], row["shadow"]["alarm"]) for row in rows_of(config)[:21]]
    own, others = sum(one for one, _ in both), sum(one for _, one in both)
    (compared,) = timeline("app").comparisons
    common = both.count((True, True))
    assert compared.counts == {"rows": 21, "alarms": own, "shadow_alarms": others, "common": common}
    sentence = (
        f"candidate (version 2) would have raised {others} alarms where version 1 raised {own}: "
        f"{both.count((True, True))} in common, of 21 rows that both judged."
    )
    page = workspace / "page.html"
    done = seqmlm("report", "app", "--report", page)
    assert sentence in done.out.splitlines()
    assert done.out.splitlines()[0].startswith("incident")
    differing = [line for line in done.out.splitlines() if "candidate (version 2) alone alarms (p " in line]
    assert len(differing) == min(10, sum(one != two for one, two in both))
    assert "Rows that versions judge differently" in page.read_text()
    told = json.loads(seqmlm("report", "app", "--json").out)["shadows"]
    assert [(one["served"], one["shadow"], one["shadow_alarms"]) for one in told] == [
        ("app:1", "app:2", others)
    ]
    assert {row["alarm"] for row in told[0]["differing"]} == {False}


def test_alarms_of_a_shadow_alone_are_counted_where_rows_of_alarms_are_kept_alone(
    config: WatchConfig, other: str
) -> None:
    register(other, "candidate")
    write(_log(config), [*windows(range(20)), *_strange("disk 7 on fire")])
    config = replace(config, alarms_only=True)
    follow(config, lambda: bool(rows_of(config)) and rows_of(config)[-1]["line"] == 81)
    assert all(row["alarm"] for row in rows_of(config))
    counts = _counts(config)
    assert counts["alarms"] - counts["common"] > 0
    (compared,) = timeline("app").comparisons
    alone = counts["alarms"] - counts["common"]
    assert f"is not kept (alarms_only): {alone} alarms of shadows" in compared.sentence()


def test_a_shadow_opens_no_incident_and_tells_no_webhook(config: WatchConfig, other: str) -> None:
    register(other, "candidate")
    rare = [2, 3, 4, 5, 6, 7, 8, 9]
    write(_log(config), windows(rare * 2))
    with Receiver() as receiver:
        follow(replace(config, webhook=(f"{receiver.url}/hook",)), 16)
    rows = rows_of(config)
    assert any(row["shadow"]["alarm"] for row in rows)
    assert not any(row["alarm"] for row in rows)
    assert list_incidents()[0] == []
    assert receiver.posted == []


@pytest.mark.parametrize("kind", ["error", "bug", "rows"])
def test_a_shadow_that_fails_changes_no_row_and_is_told_of_once(
    config: WatchConfig, other: str, workspace: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    register(other, "candidate")
    batch, asked = Detector.batch, [0]

    def fail(self: Detector, records: Any, problems: Any) -> Any:
        asked[0] += 1
        if asked[0] > 1:
            if kind == "rows":
                return []
            raise StateError("it is tired") if kind == "error" else RuntimeError("secret line")
        return batch(self, records, problems)

    monkeypatch.setattr(Detector, "batch", fail)
    log, said, steps = _log(config), Said(), [4, 8, 12]

    def more() -> bool:
        if steps and len(rows_of(config)) == steps[0]:
            write(log, windows(range(steps[0], steps.pop(0) + 4)))
        return len(rows_of(config)) == 16

    write(log, windows(range(4)))
    follow(config, more, said)
    rows = rows_of(config)
    assert ["shadow" in row for row in rows] == [True] * 4 + [False] * 12
    (told,) = said.has("cannot judge some rows")
    assert told.startswith("app:2, the shadow, ")
    assert told.endswith({"error": ": it is tired", "bug": ": RuntimeError"}.get(kind, "other rows of them"))
    assert (_counts(config)["rows"], _counts(config)["failed"]) == (4, 12)
    alone = replace(config, shadow=None, out=workspace / "alone.jsonl")
    follow(alone, 16)
    assert [_bare(row) for row in rows] == rows_of(alone)


def test_an_alias_of_a_shadow_moves_while_files_are_followed(
    config: WatchConfig, other: str, serving: str, uncalibrated: Path, tmp_path: Path
) -> None:
    shutil.copytree(serving, tmp_path / "copy")
    refused = register(uncalibrated, "candidate")
    steps = [register(other), refused, register(tmp_path / "copy")]
    said, log, moved = Said(), _log(config), list[int]()

    def told() -> list[str]:
        return said.has("app@candidate")

    def move() -> bool:
        done = len(moved)
        if len(rows_of(config)) == 4 * (done + 1) and done < len(steps):
            before, moved[:] = len(told()), [*moved, done]
            move_alias(steps[done], "candidate")
            until(lambda: len(told()) > before)
            write(log, windows(range(4 * (done + 1), 4 * (done + 2))))
        return len(rows_of(config)) == 16

    write(log, windows(range(4)))
    follow(config, move, said)
    assert told()[0].startswith(
        "app@candidate is app:2, which cannot judge beside it, so nothing is compared: "
    )
    assert "calibrat" in told()[0]
    assert told()[1] == "app@candidate is app:3 now, which judges beside it from here on"
    assert told()[2].startswith("app@candidate names app:2, and app:3 goes on: ")
    assert told()[3] == "app@candidate is app:4 now, which judges beside it from here on; it was app:3"
    versions = [row.get("shadow", {}).get("version") for row in rows_of(config)]
    assert versions == [None] * 4 + ["app:3"] * 8 + ["app:4"] * 4
    assert _counts(config)["failed"] == 4


def test_a_version_of_other_data_is_no_shadow(config: WatchConfig, serving: str, tmp_path: Path) -> None:
    register(sensitive_copy(serving, tmp_path / "sensitive"), "candidate")
    said = Said()
    write(_log(config), windows(range(4)))
    follow(config, 4, said)
    assert said.has("cannot judge beside it, so nothing is compared: it has another kind of data")
    assert not any("shadow" in row for row in rows_of(config))


@pytest.mark.parametrize(
    ("changed", "error", "sentence"),
    [
        ({"shadow": "candidat"}, StateError, "has no alias 'candidat'"),
        ({"shadow": "live"}, UsageError, "--shadow live names the version that serves"),
        ({"model": "folder"}, UsageError, "is an alias of a registered model"),
    ],
)
def test_requests_that_make_no_sense(
    config: WatchConfig, serving: str, tmp_path: Path, changed: dict[str, Any], error: Any, sentence: str
) -> None:
    register(serving, "candidate")
    if "model" in changed:
        shutil.copytree(serving, tmp_path / "folder")
        changed = {"model": str(tmp_path / "folder")}
    with pytest.raises(error, match=sentence):
        watch_files(replace(config, **changed))
