"""Webhooks: what is said in each format, what is never said, and that every notice arrives in the end."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from receiver import START, Receiver, incident
from registered import Clocked

from seqmlm.errors import UsageError
from seqmlm.watch.store import LONGEST, Change, Notice, Streams
from seqmlm.watch.webhooks import FORMATS, Answer, Courier, Origin, Webhook, notices, parse_webhook, post
from seqmlm.workspace import Workspace

ORIGIN = Origin(output="/logs/alarms.jsonl", host="here")
HOSTILE = (
    "\x1b[2J\x1b]0;owned\x07 <script>alert(1)</script> '; DROP TABLE seqmlm_notices; -- "
    '\u202e \ud800 "\\\n\0'
)


@pytest.fixture(autouse=True)
def _direct(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def _one(style: str, kind: str = "opened", origin: Origin = ORIGIN, **changed: Any) -> Notice:
    change = Change(kind=kind, incident=incident(**changed))  # type: ignore[arg-type]
    (notice,) = notices(parse_webhook("http://127.0.0.1/hook", style), origin)([change])
    return notice


# Addresses


def test_an_address_without_a_path_gets_that_of_its_format() -> None:
    paths = {"plain": "", "alertmanager": "/api/v2/alerts"}
    for style in FORMATS:
        urls = [parse_webhook(url, style).url for url in ("http://h:9093", "http://h/own?x=1")]
        assert urls == [f"http://h:9093{paths[style]}", "http://h/own?x=1"]


def test_no_secret_is_in_what_is_stored_or_shown() -> None:
    hook = parse_webhook("https://User:pass%40word@H:8443/services/T0/secret?token=abc#x")
    assert hook.url == "https://h:8443/services/T0/secret?token=abc"
    assert hook.authorization == "Basic VXNlcjpwYXNzQHdvcmQ="  # User:pass@word
    for shown in (hook.name, repr(hook)):
        assert not [one for one in ("secret", "abc", "User", "pass", "services", "VXNl") if one in shown]
    assert hook.name.startswith("https://h:8443 (")


def test_a_webhook_is_the_same_with_another_password_and_another_one_with_another_path() -> None:
    first, second, third = (
        parse_webhook(url).name for url in ("https://a:b@h/x?k=1", "https://h/x?k=2", "https://h/y?k=1")
    )
    assert first == second != third


@pytest.mark.parametrize(
    "url",
    [
        *("secret", "ftp://h/secret", "file:///secret", "http:///secret", "http://h:port/secret"),
        *("http://h/\nsecret", "http://h/sécret", "http://[::1/secret", "http://h/ secret"),
    ],
)
def test_what_is_no_address_is_refused_without_being_quoted(url: str) -> None:
    with pytest.raises(UsageError, match="--webhook is an address such as") as error:
        parse_webhook(url)
    assert "secret" not in str(error.value)


def test_a_format_or_token_that_cannot_be_is_refused_without_the_token() -> None:
    assert parse_webhook("http://h/a", token=" tok ").authorization == "Bearer tok"
    assert parse_webhook("http://h/a", token="-").authorization is None
    for style, token, sentence in (
        ("plian", "", "did you mean 'plain'"),
        ("otlp", "", "--webhook-format cannot be 'otlp'"),
        ("plain", "t0k\u00f6", "a token of ASCII characters"),
        ("plain", "t0k another", "a token of ASCII characters without spaces"),
    ):
        with pytest.raises(UsageError, match=sentence) as error:
            parse_webhook("http://h/a", style, token)
        assert "t0k" not in str(error.value)


def test_a_secret_that_would_be_sent_as_plain_text_is_known() -> None:
    safe = ["http://a:b@127.0.0.1/", "http://a:b@[::1]:80/", "http://a:b@localhost/"]
    safe += ["https://a:b@example.org/", "http://example.org/"]
    unsafe = ["http://a:b@example.org/", "http://a:b@10.0.0.1/"]
    assert [url for url in safe + unsafe if parse_webhook(url).unsafe] == unsafe


# What is said


def test_plain() -> None:
    found = _one("plain")
    assert found.body["key"] == found.key
    said = [found.body[name] for name in ("kind", "host", "output")]
    assert said == ["opened", "here", "/logs/alarms.jsonl"]
    told, given = found.body["incident"], incident()
    for name in ("id", "model", "place", "state", "title", "reason", "template", "first_line", "last_time"):
        assert told[name] == getattr(given, name)
    assert told["p_value"] == given.p_value
    assert told["new"] == ["status=502"]
    assert datetime.fromisoformat(told["opened"]) == START


def test_an_alert_keeps_its_labels_and_ends_when_the_incident_does() -> None:
    opened = _one("alertmanager")
    resolved = _one("alertmanager", "resolved", what="another", rows=9, state="resolved")
    ((first,), (last,)) = opened.body, resolved.body
    assert first["labels"] == last["labels"]
    assert first["labels"]["alertname"] == "SeqmlmIncident"
    assert set(first) == {"labels", "annotations", "startsAt", "endsAt"}
    times = [[datetime.fromisoformat(one[name]) for name in ("startsAt", "endsAt")] for one in (first, last)]
    assert times[0][0] == times[1][0] == START
    assert times[1][1] == START + timedelta(minutes=3)
    assert times[0][1] > START + timedelta(hours=12)  # Alertmanager would end it after minutes
    assert all(isinstance(value, str) for value in {**first["labels"], **first["annotations"]}.values())
    assert first["annotations"]["summary"] == incident().title
    assert first["annotations"]["idempotency_key"] == opened.key


def test_keys_are_the_same_for_the_same_change_alone() -> None:
    hook, another = parse_webhook("http://h/a"), parse_webhook("http://h/b")
    told = notices(hook, ORIGIN)
    changes = [
        Change(kind="opened", incident=incident()),
        Change(kind="updated", incident=incident(rows=3)),
        Change(kind="resolved", incident=incident(rows=3)),
        Change(kind="opened", incident=incident(row=4)),
        Change(kind="opened", incident=incident(stream_id=2)),
    ]
    keys, elsewhere = [one.key for one in told(changes)], Origin(output="x", host="here")
    assert keys == [one.key for one in told(changes)]
    makers = (told, notices(another, ORIGIN), notices(hook, elsewhere), notices(another, elsewhere))
    assert len({one.key for make in makers for one in make(changes)}) == 20
    assert notices(None, ORIGIN)(changes) == []


def test_of_what_is_silenced_the_end_alone_is_told() -> None:
    told = notices(parse_webhook("http://h/"), ORIGIN)
    for silenced in ({"muted": True}, {"state": "acknowledged"}):
        one, kinds = incident(**silenced), ("opened", "updated", "resolved")
        assert [n.kind for n in told([Change(kind=kind, incident=one) for kind in kinds])] == ["resolved"]


@pytest.mark.parametrize("style", FORMATS)
def test_the_end_of_a_false_alarm_says_what_it_was(style: str) -> None:
    for verdict in ("normal", "fault", None):
        body = json.dumps(_one(style, state="resolved", verdict=verdict).body)
        assert [name for name in ("normal", "fault") if f'"{name}"' in body] == ([verdict] if verdict else [])


@pytest.mark.parametrize("style", FORMATS)
def test_hostile_texts_arrive_as_data(style: str) -> None:
    texts = dict.fromkeys(("what", "reason", "template", "place"), HOSTILE)
    found = _one(style, **texts, new=(HOSTILE,), expected=(HOSTILE,))
    with Receiver() as receiver:
        hook = parse_webhook(f"{receiver.url}/x", style)
        assert post(hook, found).accepted
    raw = receiver.posted[0].raw
    assert all(0x20 <= byte < 0x7F for byte in raw)  # nothing acts on a terminal, whoever prints it
    shown = HOSTILE.replace("\ud800", "?")
    title = {
        "plain": lambda body: body["incident"]["title"],
        "alertmanager": lambda body: body[0]["annotations"]["summary"],
    }[style](receiver.posted[0].body)
    assert shown in title


@pytest.mark.parametrize("style", FORMATS)
def test_texts_are_bounded_and_sensitive_data_say_nothing(style: str) -> None:
    long = dict.fromkeys(("what", "reason", "template", "place"), "x" * 10**6)
    assert len(json.dumps(_one(style, **long, new=("y" * 10**6,) * 50).body)) < 40_000
    kept = Origin(output="o", host="here", sensitive=True)
    secret = dict.fromkeys(("what", "reason", "template"), "Tr0ub4dor")
    told = json.dumps(_one(style, origin=kept, **secret, new=("Tr0ub4dor",), expected=("Tr0ub4dor",)).body)
    assert "Tr0ub4dor" not in told
    assert "incident 7 in sensitive data" in told


# One attempt


def _attempt(receiver: Receiver, token: str = "") -> Answer:
    return post(parse_webhook(f"{receiver.url}/hook?team=a", token=token), _one("plain"), timeout=5)


def test_a_post_has_the_key_the_token_and_the_address() -> None:
    with Receiver([204]) as receiver:
        assert _attempt(receiver, "s3cret") == Answer(status=204)
    (posted,) = receiver.posted
    assert posted.path == "/hook?team=a"
    assert posted.headers["Authorization"] == "Bearer s3cret"
    assert posted.headers["Content-Type"] == "application/json"
    assert posted.headers["Idempotency-Key"] == posted.body["key"]


@pytest.mark.parametrize(
    "status", [301, 302, 303, 307, 308, 400, 401, 404, 413, *(again := (408, 429, 500, 503))]
)
def test_what_is_tried_again_and_that_no_redirect_is_followed(status: int) -> None:
    with Receiver() as other:
        with Receiver([status], {"Location": f"{other.url}/taken", "Retry-After": "17"}) as receiver:
            answer = _attempt(receiver, "s3cret")
        assert (other.posted, len(receiver.posted)) == ([], 1)
    assert (answer.accepted, answer.final, answer.wait) == (False, status not in again, 17)
    assert answer.problem.startswith(f"answers {status} ")


@pytest.mark.parametrize("header", ["-1", "soon", "Wed, 21 Oct 2026 07:28:00 GMT", "9" * 400, "1e9", ""])
def test_a_strange_wait_is_none(header: str) -> None:
    with Receiver([503], {"Retry-After": header}) as receiver:
        assert _attempt(receiver).wait == 0


def _closed() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_a_name_that_no_host_can_have_is_one_that_cannot_be_reached() -> None:
    answer = post(parse_webhook("http://a..b/hook"), _one("plain"))
    assert (answer.status, answer.final) == (None, False)
    assert answer.problem.startswith("cannot be reached (")


def test_the_receiver_of_the_documents_prints_each_notice_once() -> None:
    port, found = _closed(), _one("plain")
    script = Path(__file__).parents[2] / "examples" / "webhook_receiver.py"
    hook = parse_webhook(f"http://127.0.0.1:{port}")
    with subprocess.Popen([sys.executable, script, str(port)], stdout=subprocess.PIPE) as receiver:
        try:
            while not post(hook, found).accepted:
                assert receiver.poll() is None
            assert post(hook, found).accepted
            assert post(hook, _one("plain", "resolved")).accepted
        finally:
            receiver.kill()
        assert receiver.stdout is not None
        kinds = [json.loads(line)["kind"] for line in receiver.stdout]
    assert kinds == ["opened", "resolved"]


def test_a_server_that_is_not_there_or_says_nothing_or_nonsense() -> None:
    answer = post(parse_webhook(f"http://127.0.0.1:{_closed()}/hook"), _one("plain"))
    assert answer == Answer(status=None, problem="cannot be reached (Connection refused)")
    assert not answer.final
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as pool:
        hook = parse_webhook(f"http://127.0.0.1:{server.getsockname()[1]}/hook")
        silent = post(hook, _one("plain"), timeout=0.2)
        server.settimeout(5)
        server.accept()[0].close()

        def answer_nonsense() -> None:
            with server.accept()[0] as connection:
                connection.recv(1 << 16)
                connection.sendall(b"\x1b[2J no HTTP at all\r\n\r\n")

        pool.submit(answer_nonsense)
        nonsense = post(hook, _one("plain"), timeout=5)
    assert silent == Answer(status=None, problem="cannot be reached (ReadTimeout)")
    assert nonsense == Answer(status=None, problem="cannot be reached (ConnectionError)")


# All of them, in the end


class World(Clocked):
    """A stream with a webhook that a test breaks, and the process that sends."""

    def __init__(self, registry: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(registry, monkeypatch)
        self.hook = parse_webhook("https://h/hook")
        self.answers: Callable[[Notice], Answer] = lambda one: Answer(status=200)
        self.got: list[str] = []
        self.tried: list[tuple[float, str]] = []
        self.said: list[str] = []
        self.restart()

    def restart(self) -> None:
        self.courier = Courier(
            self.hook, self.queue, self.said.append, send=self._send, clock=lambda: self.now
        )

    def _send(self, hook: Webhook, one: Notice) -> Answer:
        assert hook is self.hook
        answer = self.answers(one)
        self.tried.append(((self.now - START).total_seconds(), one.key))
        if answer.accepted:
            self.got.append(one.key)
        return answer

    def open(self, number: int) -> list[str]:
        """Incidents open; the keys of their notices."""
        told = notices(self.hook, ORIGIN)
        changes = []
        for _ in range(number):
            self.row += 1
            changes.append(Change(kind="opened", incident=incident(id=0, row=self.row)))
        return [one.key for one in told(self.keep(*changes, notify=told))]

    def run(self, seconds: float) -> None:
        """The thread of the courier, second by second."""
        end = self.now + timedelta(seconds=seconds)
        while self.now < end:
            self.courier.step()
            self.now += timedelta(seconds=1)


@pytest.fixture
def world(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with Streams(Workspace.locate()) as registry:
        yield World(registry, monkeypatch)


def down(one: Notice) -> Answer:
    return Answer(status=None, problem="cannot be reached (Connection refused)")


def test_a_webhook_that_is_down_for_an_hour_gets_everything_and_is_not_pestered(world: World) -> None:
    keys = world.open(3)
    world.answers = down
    world.run(1800)
    keys += world.open(2)
    world.run(1800)
    assert world.got == []
    # 1, 2, 4 ... 256 s, and then every five minutes.
    assert len(world.tried) <= 9 + 3600 / LONGEST.total_seconds()
    times = [time for time, _ in world.tried]
    assert [later - earlier for earlier, later in pairwise(times)][:4] == [1, 2, 4, 8]
    world.answers = lambda one: Answer(status=200)
    world.run(2 * LONGEST.total_seconds())
    assert sorted(world.got) == sorted(keys)
    assert world.queue.counts()[world.hook.name] == {"waiting": 0, "delivered": 5, "given_up": 0}
    assert [one.partition(") ")[2] for one in world.said] == [
        "cannot be reached (Connection refused); its notices wait in the database",
        "accepts notices again",
    ]


def test_a_process_that_is_killed_leaves_the_times_of_the_next_attempts(world: World) -> None:
    keys = world.open(1)
    world.answers = down
    world.run(200)  # tried at 0, 1, 3, 7, 15, 31, 63, 127
    assert len(world.tried) == 8
    world.restart()
    world.answers = lambda one: Answer(status=200)
    world.run(50)
    assert world.got == []
    world.run(10)
    assert world.got == keys


def test_what_is_refused_is_told_once_and_kept_with_its_error(world: World) -> None:
    world.answers = lambda one: Answer(status=404, problem="answers 404 Not Found")
    world.open(2)
    world.open(1)
    world.run(600)
    assert len(world.tried) == 3
    assert world.queue.counts()[world.hook.name] == {"waiting": 0, "delivered": 0, "given_up": 3}
    assert len(world.said) == 1
    assert "answers 404 Not Found: refused notices are not sent again" in world.said[0]
    import sqlite3

    with sqlite3.connect(Workspace.locate().root / "seqmlm.db") as base:
        errors = base.execute("SELECT error, done IS NOT NULL FROM seqmlm_notices").fetchall()
    base.close()
    assert errors == [("answers 404 Not Found", 1)] * 3


def test_one_that_always_fails_keeps_back_nobody_else(world: World) -> None:
    (poison,) = world.open(1)
    world.answers = lambda one: Answer(status=500 if one.key == poison else 200, problem="answers 500")
    keys = []
    for _ in range(30):
        keys += world.open(1)
        world.run(60)
    assert world.got == keys
    tries = sum(key == poison for _, key in world.tried)
    assert tries <= 9 + 1800 / LONGEST.total_seconds()
    assert len(world.said) == 1


def test_what_a_webhook_asks_to_wait_is_heard_within_the_limit(world: World) -> None:
    world.open(1)
    world.answers = lambda one: Answer(status=429, problem="answers 429", wait=90)
    world.run(90)
    assert len(world.tried) == 1
    world.answers = lambda one: Answer(status=429, problem="answers 429", wait=10**6)
    world.run(1)
    assert len(world.tried) == 2
    world.run(LONGEST.total_seconds() - 1)
    assert len(world.tried) == 2
    world.run(1)
    assert len(world.tried) == 3


def test_the_thread_sends_what_is_due_before_it_ends(world: World) -> None:
    keys = world.open(20)
    with Receiver() as receiver:
        hook = Webhook(name=world.hook.name, url=receiver.url, format="plain", authorization=None)
        courier = Courier(hook, world.queue, world.said.append)
        courier.start()
        keys += world.open(3)
        courier.close()
    assert receiver.keys == keys
    assert world.said == []
