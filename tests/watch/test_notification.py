"""What a scorer that follows files tells, and whom: webhooks until they have it, counters on a port."""

from __future__ import annotations

import json
import random
import socket
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests
from log_models import NORMAL
from receiver import Receiver
from scored_streams import Said, calibrated_model, follow, following, line, rows_of, write

from seqmlm.cli import main
from seqmlm.data.problems import Problems
from seqmlm.errors import StateError
from seqmlm.inference.calibrations import Stored
from seqmlm.privacy import handling_sensitive_data
from seqmlm.scoring.live import LiveCounts, LiveModel
from seqmlm.scoring.plan import _few
from seqmlm.watch.config import WatchConfig
from seqmlm.watch.metrics import Lag, counters
from seqmlm.watch.store import Streams
from seqmlm.workspace import Workspace

HOSTILE = "panic \x1b[2J <script>alert(1)</script> '; DROP TABLE seqmlm_notices; -- "


def _lines(number: int, *, bad: bool = False, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return [line(n, f"{HOSTILE}{n}" if bad else draw.choice(NORMAL)) for n in range(number)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One that is calibrated, so that there are alarms."""
    return calibrated_model(tmp_path_factory.mktemp("model"), _lines(480))


@pytest.fixture
def config(model: str, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> WatchConfig:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "SEQMLM_WEBHOOK_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    (workspace / "logs").mkdir()
    return following(model, workspace / "logs", mode="exact", fpr=0.02)


def _write(config: WatchConfig, lines: Iterable[str], name: str = "a.log") -> None:
    write(Path(config.paths[0]).with_name(name), lines)


def _rows(config: WatchConfig) -> int:
    return len(rows_of(config))


def _counts(config: WatchConfig) -> Any:
    with Streams(Workspace.locate()) as registry:
        found = registry.stream(str(config.out))
        return registry.notices(found.id).counts()


def test_an_alarm_is_posted_with_the_incident_that_is_kept(
    config: WatchConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEQMLM_WEBHOOK_TOKEN", "s3cret")
    _write(config, _lines(8))
    _write(config, _lines(8, bad=True), "b.log")
    with Receiver() as receiver:
        config = replace(config, webhook=(f"{receiver.url}/hook?k=hidden",))
        said = Said()
        follow(config, lambda: bool(receiver.posted), said)
    (posted,) = receiver.posted
    assert posted.headers["Authorization"] == "Bearer s3cret"
    assert HOSTILE.encode() not in posted.raw
    with Streams(Workspace.locate()) as registry:
        (kept,) = registry.incidents()
    told = posted.body["incident"]
    assert (told["id"], told["title"], told["place"]) == (kept.id, kept.title, kept.place)
    assert Path(told["place"]).name == "b.log"
    assert told["template"].startswith("panic") or HOSTILE[:5] in told["reason"]
    (counts,) = _counts(config).values()
    assert counts == {"waiting": 0, "delivered": 1, "given_up": 0}
    everything = b"".join(file.read_bytes() for file in Workspace.locate().root.glob("*.*") if file.is_file())
    for secret in ("s3cret", "hidden", "/hook"):
        assert secret.encode() not in everything
        assert not said.has(secret)


def test_what_was_not_taken_is_posted_by_the_next_process(config: WatchConfig) -> None:
    _write(config, _lines(8, bad=True))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    config = replace(config, webhook=(f"http://127.0.0.1:{port}/hook",))
    said = Said()
    follow(config, lambda: said.has("cannot be reached") and _rows(config) > 0, said)
    assert [one["waiting"] for one in _counts(config).values()] == [1]

    alone, said = replace(config, webhook=()), Said()
    follow(alone, lambda: said.has("1 notices are stored for webhook http://127.0.0.1"), said)

    with Receiver(port=port) as receiver:
        follow(config, lambda: bool(receiver.posted) and _rows(config) == 2)
    assert len(set(receiver.keys)) == 1
    assert _counts(config).popitem()[1] == {"waiting": 0, "delivered": 1, "given_up": 0}


def test_a_webhook_that_hangs_does_not_keep_rows_back(config: WatchConfig) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, and never answers
        config = replace(config, webhook=(f"http://127.0.0.1:{silent.getsockname()[1]}/hook",))
        _write(config, _lines(8, bad=True))
        written = threading.Event()

        def more() -> bool:
            if _rows(config) >= 2 and not written.is_set():
                written.set()
                _write(config, _lines(8))
            return _rows(config) >= 4

        assert follow(config, more).figures["rows"] == 4


def _read(address: str) -> dict[str, Any] | None:
    """The counters, if the model is loaded."""
    answer = requests.get(f"{address}/metrics.json", timeout=10)
    assert answer.status_code in (200, 503)
    return answer.json() if answer.status_code == 200 else None  # type: ignore[no-any-return]


def test_counters_are_those_of_the_whole_stream_also_after_a_restart(config: WatchConfig) -> None:
    config = replace(config, metrics_port=0)
    _write(config, _lines(8) + _lines(4, bad=True))
    found: list[dict[str, Any]] = []

    def asked(said: Said, rows: int) -> Callable[[], bool]:
        def until() -> bool:
            if _rows(config) < rows or not said.said:
                return False
            address = next(one for one in said.said if "counters are at" in one).split(" at ")[1]
            told = _read(address.removesuffix("/metrics"))
            found.extend([] if told is None else [told])
            return told is not None and told["lag_bytes"] == 0 and told["lines"] == 4 * rows

        return until

    for rows in (3, 3, 5):
        if rows == 5:
            _write(config, _lines(8, seed=3), "b.log")
        said = Said()
        follow(config, asked(said, rows), said)
        told = found[-1]
        assert (told["lines"], told["alarms"], told["gaps"], told["lag_seconds"]) == (4 * rows, 1, 0, 0.0)
        assert told["incidents"] == {"open": 1, "acknowledged": 0}


def test_what_the_database_or_no_rate_can_tell_is_not_counted(config: WatchConfig) -> None:
    def told(*, rated: bool, sensitive: bool, usable: bool) -> dict[str, Any]:
        incidents = [SimpleNamespace(state=state) for state in ("open", "open", "resolved")]
        registry = SimpleNamespace(
            incidents=(lambda **_: incidents) if usable else _locked,
            notices=lambda stream: SimpleNamespace(counts=dict) if usable else _locked(),
        )
        follower = SimpleNamespace(lines=9)
        watching = SimpleNamespace(
            outbox=SimpleNamespace(stream=1, gaps=2, follower=follower),
            model=SimpleNamespace(
                rated=rated, shows_incidents=rated and not sensitive, counts=SimpleNamespace(alarms=7)
            ),
            registry=registry,
            lag=Lag(),
        )
        return dict(counters(watching))

    all_told = told(rated=True, sensitive=False, usable=True)
    assert all_told == {
        "lines": 9,
        "gaps": 2,
        "lag_bytes": 0,
        "lag_seconds": 0.0,
        "alarms": 7,
        "incidents": {"open": 2, "acknowledged": 0},
        "webhooks": {},
    }
    assert told(rated=True, sensitive=True, usable=True) == {**all_told, "incidents": None}
    assert told(rated=False, sensitive=False, usable=True) == {**all_told, "incidents": None, "alarms": None}
    locked = {**all_told, "incidents": None, "webhooks": None}
    assert told(rated=True, sensitive=False, usable=False) == locked


def test_counts_go_on_from_those_of_an_earlier_version() -> None:
    counts = LiveCounts()
    old = {"rows": 5, "asked": 3, "told": {"low": 1.0}, "recent": [2, 3], "shadow_rows": 4, "p_sum": 0.5}
    counts.restore(old)
    snapshot = json.loads(json.dumps(counts.snapshot()))
    assert (snapshot["rows"], snapshot["records"], snapshot["shift_times"]) == (5, 3, {"low": 1.0})
    assert not snapshot.keys() & {"asked", "told", "shadow_rows", "p_sum"}
    resumed = LiveCounts()
    resumed.restore(snapshot)
    assert resumed.snapshot() == snapshot
    assert resumed.recent.maxlen == 200


def test_a_shift_is_told_once_a_day(config: WatchConfig) -> None:
    said, now = Said(), 0.0
    model = LiveModel(config, said.message, lambda: now)
    said.said.clear()

    def tell(low: int, lowest: int, at: float) -> list[str]:
        nonlocal now
        now = at
        model.counts.recent.extend([2] * lowest + [7] * (low - lowest) + [8] * (200 - low))
        model.counts.restore(json.loads(json.dumps(model.counts.snapshot())))  # another process
        model.judge([], Problems())
        told, said.said = said.said, []
        return told

    assert tell(150, 40, 0) == []
    (told,) = tell(151, 0, 1)
    assert told.startswith(
        "76% of the last 200 rows have p-values below .5, compared with half of normal rows"
    )
    assert told.endswith(
        "('seqmlm calibrate'), then restart this command: it continues with the new calibration"
    )
    assert tell(151, 0, 86_400) == []
    (told,) = tell(100, 41, 86_400)  # something else
    assert "20% of the last 200 rows have p-values below .05" in told
    assert [text[:3] for text in tell(151, 0, 86_401)] == ["76%"]
    assert [text[:8] for text in tell(19, 0, 86_401)] == ["only 10%"]
    model.counts.recent.clear()
    assert model.shift is None


def test_a_calibration_of_few_records_is_said_at_the_start() -> None:
    def stored(records: int, rows: int = 90) -> Stored:
        fitted: Any = SimpleNamespace(rows=rows)
        return Stored(fitted=fitted, records=records)

    (told,) = _few(stored(29))
    assert told.startswith("the model was calibrated with 90 rows from only 29 records")
    with handling_sensitive_data():
        assert "rows from only 29 records" in _few(stored(29))[0]
        assert " 7 " not in _few(stored(7))[0]
    assert [_few(stored(*one)) for one in ((30,), (0,), (29, 29))] == [[], [], []]


def _locked(**_: Any) -> Any:
    raise StateError("locked")


def test_the_command_line_takes_what_the_task_does_and_loads_nothing_where_a_port_is_taken(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = ["--webhook", "http://h/a", "--webhook-format", "alertmanager"]
    options = ["--out", str(workspace / "o.jsonl"), "--fpr", "0.05", *told]
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(SystemExit) as stop:
        main(["watch", "no such model", "a.log", *options, "--metrics-port", str(other.getsockname()[1])])
    assert stop.value.code == 2
    assert "cannot be used: Address already in use; choose another port" in capsys.readouterr().err
    assert not (workspace / "seqmlm.db").exists()
