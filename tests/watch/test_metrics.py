"""Counters: what Prometheus reads, lag by an oracle, and a port that answers or says why not."""

from __future__ import annotations

import json
import random
import socket
from contextlib import closing
from http.client import HTTPConnection
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from seqmlm.errors import UsageError
from seqmlm.watch.metrics import Lag, MetricsServer, prometheus

NAME = 'we"b\n\\ (ab)'
VALUES: dict[str, Any] = {
    "lines": 10,
    "alarms": None,
    "lag_seconds": 0.25,
    "incidents": {"open": 2, "acknowledged": 0},
    "webhooks": {NAME: {"waiting": 3, "delivered": 0, "given_up": 1}},
}


ORDER = ("webhook", "state")


def test_the_text_is_what_prometheus_reads() -> None:
    families = list(text_string_to_metric_families(prometheus(VALUES)))
    assert {one.name: one.type for one in families} == {
        **dict.fromkeys(("seqmlm_lag_seconds", "seqmlm_incidents", "seqmlm_notices"), "gauge"),
        "seqmlm_lines": "counter",
    }
    found = [
        (one.name, *(one.labels[name] for name in ORDER if name in one.labels), one.value)
        for family in families
        for one in family.samples
    ]
    assert found == [
        ("seqmlm_lines_total", 10),
        ("seqmlm_lag_seconds", 0.25),
        ("seqmlm_incidents", "open", 2),
        ("seqmlm_incidents", "acknowledged", 0),
        ("seqmlm_notices", NAME, "waiting", 3),
        ("seqmlm_notices", NAME, "delivered", 0),
        ("seqmlm_notices", NAME, "given_up", 1),
    ]
    assert prometheus({}) == ""


def _look(lag: Lag, read: int, unread: int) -> None:
    lag.look(lambda: (read, unread))


@pytest.mark.parametrize("seed", range(4))
def test_lag_is_the_age_of_the_oldest_byte_to_the_sample(seed: int) -> None:
    chance = random.Random(seed)
    now, come, read = 0.0, 0, 0
    times: list[float] = []  # of each byte
    lag = Lag(clock=lambda: now)
    for _ in range(600):
        now += 0.25
        for _ in range(chance.randrange(5)):
            times.append(now)
            come += 1
        read = min(come, read + chance.randrange(4 if now < 100 else 9))
        _look(lag, read, come - read)
        assert lag.bytes == come - read
        oldest = now - times[read] if read < come else 0.0
        assert oldest <= lag.seconds <= (oldest + 0.25 if read < come else 0)


def test_lag_of_a_backlog_counts_from_the_beginning_in_bounded_memory() -> None:
    now = 0.0
    lag = Lag(clock=lambda: now)
    for step in range(20_000):
        now = float(step)
        _look(lag, 0, 10 + step)
    assert lag.seconds == now
    assert len(lag._samples) < 5000


def test_lag_forgets_what_was_destroyed() -> None:
    clock = [0.0]
    lag = Lag(clock=lambda: clock[0])
    for clock[0], read, unread in ((0.0, 0, 0), (1.0, 5, 50), (2.0, 5, 0), (9.0, 5, 1)):
        _look(lag, read, unread)
    assert (lag.bytes, lag.seconds) == (1, 7.0)


def _get(url: str, method: str = "GET") -> tuple[int, str | None, str]:
    host, _, path = url.removeprefix("http://").partition("/")
    with closing(HTTPConnection(host, timeout=10)) as connection:
        connection.request(method, f"/{path}")
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read().decode()


def test_a_port_answers_with_the_numbers_of_the_moment(capsys: pytest.CaptureFixture[str]) -> None:
    values = dict(VALUES)
    with MetricsServer("127.0.0.1", 0) as server:
        assert _get(f"{server.address}/metrics")[0] == 503
        server.values = lambda: values
        assert _get(f"{server.address}/metrics") == (
            200,
            "text/plain; version=0.0.4; charset=utf-8",
            prometheus(values),
        )
        values["lines"] = 11
        status, kind, text = _get(f"{server.address}/metrics.json?x=1")
        assert (status, kind, json.loads(text)) == (200, "application/json", values)
        assert _get(f"{server.address}/")[0] == 404
        assert _get(f"{server.address}/metrics", "POST")[0] == 405
    assert capsys.readouterr() == ("", "")
    with pytest.raises(ConnectionRefusedError):
        _get(f"{server.address}/metrics")


def test_whoever_asks_and_goes_disturbs_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    with MetricsServer("127.0.0.1", 0) as server:
        server.values = lambda: VALUES
        host, port = server.address.removeprefix("http://").split(":")
        for said in (b"", b"GET /metr", b"\x00\xff\r\n\r\n", b"GET /metrics HTTP/1.1\r\n\r\n"):
            with socket.create_connection((host, int(port))) as one:
                one.sendall(said)
        assert _get(f"{server.address}/metrics")[0] == 200
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("host", ["127.0.0.1", "203.0.113.7", "no such host"])
def test_a_port_that_cannot_be_had_is_refused_in_one_sentence(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UsageError, match=f"--metrics-port {port} of {host} cannot be used: .*; choose"):
            MetricsServer(host, port)
