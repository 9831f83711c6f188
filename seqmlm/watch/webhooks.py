"""Webhooks: incidents as plain JSON, alerts of Alertmanager's API or logs of OTLP, sent until they arrive.

What is to be told is queued in the database, in the transaction of the rows it comes from
(`seqmlm.watch.store.notices`); here it is put into words, and a thread for each webhook sends it, so that
reading never waits for the network. What cannot be delivered is tried again after times that double up to
five minutes, by the clock, also by the next process. A notice that is refused (most of 4xx, and redirects,
which are not followed) is given up, and said once.

Addresses may hold secrets, in their path too. The database and every message name a webhook by its host and a
hash of its path; its address is nowhere but in the memory of the process.
"""

from __future__ import annotations

import base64
import ipaddress
import json
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from http.client import HTTPException, responses
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit
from urllib.request import HTTPErrorProcessor, Request, build_opener

from seqmlm.errors import StateError, UsageError, nearest
from seqmlm.watch.store import Change, Incident, Notice, NoticeQueue, Waiting
from seqmlm.watch.store.notices import LONGEST, now

TIMEOUT = 10.0
"""Seconds for which a webhook may be silent."""

TOKEN = "SEQMLM_WEBHOOK_TOKEN"
"""The variable of the environment that has the tokens."""

_PATHS = {"plain": "", "alertmanager": "/api/v2/alerts", "otlp": "/v1/logs"}  # where an address has none
FORMATS = tuple(_PATHS)

_LASTS = timedelta(days=1)  # of an alert that nobody resolves
_MOMENT = 0.5  # seconds between two looks at an empty queue
_DATABASE_PAUSE = 5.0  # seconds, where the database cannot be used
_FAREWELL = 3.0  # seconds at the end of the process for what is due
_CHARACTERS = 1000  # of one text
_VALUES = 20  # of a list of texts

_FIELDS = (
    *("id", "model", "place", "state", "verdict", "title", "reason", "template", "new", "expected"),
    *("first_line", "last_line", "first_time", "last_time", "severity", "host", "service"),
    *("rows", "lines", "p_value", "opened", "updated"),
)
"""What is said of an incident."""


@dataclass(frozen=True, kw_only=True)
class Webhook:
    """Where notices are posted.

    Args:
        name: what is stored and shown: host, and a hash of the path.
        url: without what is before the host.
        format: one of `FORMATS`.
        authorization: the header, or None.
    """

    name: str
    url: str = field(repr=False)
    format: str
    authorization: str | None = field(repr=False)


def webhooks(urls: Sequence[str], formats: Sequence[str] = (), tokens: str = "") -> list[Webhook]:
    """The webhooks of some addresses.

    Args:
        urls: http or https. A user and password in one become a header.
        formats: one for all of them, or one each; none: "plain".
        tokens: those of `TOKEN`, between spaces: one, if all are of one host, or one each; "-" is none.

    Raises:
        UsageError: an address that is none, or formats or tokens that do not fit; no secret is quoted.
    """
    for style in formats:
        if style not in FORMATS:
            raise UsageError(f"--webhook-format cannot be {style!r}{nearest(style, FORMATS)}")
    styles = _each(urls, formats or ["plain"], "--webhook-format")
    if not tokens.isascii():
        raise UsageError(f"{TOKEN} has a character that tokens cannot have")
    bearers = _each(urls, tokens.split() or ["-"], TOKEN)
    parts = [_parts(url, number) for number, url in enumerate(urls, 1)]
    hosts = {_host(one) for one in parts}
    if len(tokens.split()) == 1 < len(hosts) and bearers[0] != "-":
        raise UsageError(
            f"{TOKEN} has one token, and it would go to {len(hosts)} hosts: give one for each --webhook, "
            "in their order and between spaces, '-' for none"
        )
    found: list[Webhook] = []
    for one in map(_webhook, parts, styles, bearers):
        same = sum(other.name.partition("#")[0] == one.name for other in found)
        found.append(replace(one, name=f"{one.name}#{same + 1}") if same else one)
    return found


def _each(urls: Sequence[str], given: Sequence[str], name: str) -> list[str]:
    """One for each address."""
    if len(given) not in (1, len(urls)):
        raise UsageError(
            f"{len(given)} values of {name} for {len(urls)} addresses of --webhook: give one for all, or one "
            "each, in their order"
        )
    return list(given) * (len(urls) if len(given) == 1 else 1)


def _parts(url: str, number: int) -> SplitResult:
    """The parts of an address; of one that is none the error says only which it is."""
    with suppress(ValueError):
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        if known and all("!" <= letter <= "~" for letter in url):
            return parts
    raise UsageError(
        f"--webhook (number {number}) is an address such as https://alerts.example.org/hook, in which other "
        "characters than those of ASCII are written as %XX"
    )


def _host(parts: SplitResult) -> str:
    """Without user and password, with the port."""
    return parts.netloc.rpartition("@")[2].lower()


def _webhook(parts: SplitResult, style: str, bearer: str) -> Webhook:
    path = parts.path if parts.path.strip("/") else _PATHS[style] or parts.path
    authorization = None if bearer == "-" else f"Bearer {bearer}"
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = f"Basic {base64.b64encode(pair.encode()).decode()}"
    return Webhook(
        name=f"{parts.scheme}://{_host(parts)} ({blake2b(path.encode(), digest_size=4).hexdigest()})",
        url=urlunsplit((parts.scheme, _host(parts), path, parts.query, "")),
        format=style,
        authorization=authorization,
    )


def unsafe(hook: Webhook) -> bool:
    """Whether a secret of this webhook travels over a network as plain text."""
    host = urlsplit(hook.url).hostname or ""
    own = host == "localhost"
    with suppress(ValueError):
        own = own or ipaddress.ip_address(host).is_loopback
    return hook.url.startswith("http:") and hook.authorization is not None and not own


# What is said


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where incidents come from.

    Args:
        output: the file of the rows.
        version: of this package.
        sensitive: nothing that a line of the data says may be told.
        host: name of this machine.
    """

    output: str
    version: str
    sensitive: bool = False
    host: str = field(default_factory=socket.gethostname)


def notices(hooks: Sequence[Webhook], origin: Origin) -> Callable[[Sequence[Change]], list[Notice]]:
    """What makes the notices of changes of incidents.

    Of one that is muted or acknowledged only its end is told. The same change has the same keys, if its
    transaction is repeated.
    """

    def made(changes: Sequence[Change]) -> list[Notice]:
        return [
            _notice(hook, change, origin)
            for change in changes
            if change.kind == "resolved" or not change.incident.silences
            for hook in hooks
        ]

    return made


def _notice(hook: Webhook, change: Change, origin: Origin) -> Notice:
    one = change.incident
    known = [hook.name, origin.host, origin.output, one.stream_id, one.row, one.rows, change.kind]
    times = [_utc(time).isoformat() for time in (one.opened, one.updated)]
    key = blake2b(json.dumps([*known, *times]).encode(), digest_size=16).hexdigest()
    body = _BODIES[hook.format](key, change.kind, incident_fields(one, origin), origin)
    return Notice(sink=hook.name, key=key, incident=one.id, kind=change.kind, body=body)


def incident_fields(incident: Incident, origin: Origin) -> dict[str, Any]:
    """An incident as JSON can hold it: texts of bounded length, times as ISO 8601 in UTC; sensitive data
    without what the lines say."""
    found = {name: getattr(incident, name) for name in _FIELDS}
    if origin.sensitive:
        found |= {"reason": "", "template": "", "new": (), "expected": ()}
        found |= dict.fromkeys(("severity", "host", "service"))
        found["title"] = (
            f"incident {incident.id} in sensitive data; see 'seqmlm incidents show {incident.id}'"
        )
    return {name: _bounded(value) for name, value in found.items()}


def _bounded(value: Any) -> Any:
    """Texts cut off, and without half surrogates, which not every reader of JSON takes."""
    if isinstance(value, str):
        value = value.encode("utf-8", "replace").decode("utf-8")
        return value if len(value) <= _CHARACTERS else value[: _CHARACTERS - 3] + "..."
    if isinstance(value, datetime):
        return _utc(value).isoformat()
    return [_bounded(one) for one in value[:_VALUES]] if isinstance(value, list | tuple) else value


def _utc(time: datetime) -> datetime:
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


def _plain(key: str, kind: str, incident: Mapping[str, Any], origin: Origin) -> Any:
    return {"key": key, "kind": kind, "host": origin.host, "output": origin.output, "incident": incident}


def _alertmanager(key: str, kind: str, incident: Mapping[str, Any], origin: Origin) -> Any:
    """A list of one alert. Its labels, which are what it is known by, are the same as long as it lasts."""
    elsewhere = {"id", "model", "place", "title", "reason", "opened", "updated"}  # in an alert
    annotations = {
        "summary": incident["title"],
        "description": incident["reason"],
        **{name: value for name, value in incident.items() if name not in elsewhere},
        **{name: ", ".join(incident[name]) for name in ("new", "expected")},
        "idempotency_key": key,
    }
    updated = datetime.fromisoformat(incident["updated"])
    ends = updated if kind == "resolved" else updated + _LASTS
    return [
        {
            "labels": {
                "alertname": "SeqmlmIncident",
                "incident": str(incident["id"]),
                "model": incident["model"],
                "place": incident["place"],
                "instance": origin.host,
                "output": origin.output,
            },
            "annotations": {
                name: str(value) for name, value in annotations.items() if value not in (None, "")
            },
            "startsAt": incident["opened"],
            "endsAt": ends.isoformat(),
        }
    ]


def _otlp(key: str, kind: str, incident: Mapping[str, Any], origin: Origin) -> Any:
    """One log record; whole numbers are texts, as JSON of protocol buffers has them."""
    nanoseconds = str(int(datetime.fromisoformat(incident["updated"]).timestamp() * 1_000_000) * 1000)
    values = {f"seqmlm.incident.{name}": value for name, value in incident.items() if name != "title"}
    values |= {"seqmlm.idempotency_key": key, "seqmlm.output": origin.output}
    record = {
        "timeUnixNano": nanoseconds,
        "observedTimeUnixNano": nanoseconds,
        "severityNumber": 9 if kind == "resolved" else 13,
        "severityText": "INFO" if kind == "resolved" else "WARN",
        "eventName": f"seqmlm.incident.{kind}",
        "body": {"stringValue": incident["title"]},
        "attributes": _attributes(values),
    }
    resource = _attributes({"service.name": "seqmlm", "host.name": origin.host})
    scope = {"name": "seqmlm", "version": origin.version}
    return {
        "resourceLogs": [
            {"resource": {"attributes": resource}, "scopeLogs": [{"scope": scope, "logRecords": [record]}]}
        ]
    }


def _attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": name, "value": _any_value(value)} for name, value in values.items() if value is not None]


def _any_value(value: Any) -> dict[str, Any]:
    if isinstance(value, list):
        return {"arrayValue": {"values": [_any_value(one) for one in value]}}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": str(value)}


_BODIES = {"plain": _plain, "alertmanager": _alertmanager, "otlp": _otlp}


# Sending


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came of one attempt.

    Args:
        status: of HTTP, or None where there was no answer.
        problem: what went wrong, without anything that the webhook has said.
        wait: seconds that the webhook asks for.
    """

    status: int | None
    problem: str = ""
    wait: float = 0.0

    @property
    def taken(self) -> bool:
        """The webhook has it."""
        return self.status is not None and 200 <= self.status < 300

    @property
    def final(self) -> bool:
        """Another attempt would be answered the same."""
        return self.status is not None and 300 <= self.status < 500 and self.status not in (408, 429)


class _AnyAnswer(HTTPErrorProcessor):
    """Takes answers as they are; a redirect could lead to a host that must not have the token."""

    def http_response(self, request: Any, response: Any) -> Any:
        return response

    https_response = http_response


def post(hook: Webhook, one: Notice, timeout: float = TIMEOUT) -> Answer:
    """Send a notice once."""
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "seqmlm",
        "Idempotency-Key": one.key,
        **({} if hook.authorization is None else {"Authorization": hook.authorization}),
    }
    request = Request(hook.url, json.dumps(one.body).encode("ascii"), headers, method="POST")
    try:
        with build_opener(_AnyAnswer).open(request, timeout=timeout) as answer:
            status, asked = answer.status, answer.headers.get("Retry-After", "").strip()
    except (OSError, HTTPException, ValueError) as error:  # ValueError: a name that none can have
        reason = getattr(error, "reason", error)
        text = getattr(reason, "strerror", None) or type(reason).__name__
        return Answer(status=None, problem=f"cannot be reached ({text})")
    return Answer(
        status=status,
        problem="" if 200 <= status < 300 else f"answers {status} {responses.get(status, '')}".strip(),
        wait=float(asked) if asked.isdecimal() and len(asked) < 6 else 0.0,
    )


def backoff(attempts: int, asked: float = 0.0) -> timedelta:
    """The time after so many failed attempts until the next: 1 s, twice that each time, or what the webhook
    asks for, in seconds; at most `LONGEST`."""
    return timedelta(seconds=min(max(2.0 ** min(attempts - 1, 20), asked), LONGEST.total_seconds()))


class Courier:
    """Sends the notices of one webhook, in a thread of its own between `start` and `close`.

    While a webhook cannot be reached, it is asked once in a time that grows. A notice that alone cannot be
    delivered does not keep back those of other incidents.

    Args:
        hook: where to.
        queue: where from.
        tell: takes a sentence for a person; a webhook that is down is told once, and so is that it answers.
        send: as `post`.
        clock: the time.
    """

    def __init__(
        self,
        hook: Webhook,
        queue: NoticeQueue,
        tell: Callable[[str], None],
        *,
        send: Callable[[Webhook, Notice], Answer] = post,
        clock: Callable[[], datetime] = now,
    ) -> None:
        self._hook, self._queue, self._tell, self._send, self._clock = hook, queue, tell, send, clock
        self._failed, self._rest_until = 0, clock()
        self._down, self._refused = False, set[int | None]()
        self._ending, self._abandoned = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="webhook", daemon=True)

    def step(self) -> float:
        """Send what is due; the seconds until there may be more.

        Raises:
            StateError: the database cannot be used; what was sent and not noted is sent again.
        """
        time = self._clock()
        rest = self._rest_until - time
        if timedelta() < rest <= LONGEST:  # longer only where the clock went back
            return min(rest.total_seconds(), _MOMENT)
        for one in self._queue.due(self._hook.name, time):
            if self._abandoned.is_set() or not self._attempt(one):
                break
        return _MOMENT

    def _attempt(self, one: Waiting) -> bool:
        """Whether the webhook answers."""
        answer = self._send(self._hook, one.notice)
        time = self._clock()
        if answer.taken:
            self._queue.delivered(one, time)
            self._failed = 0
            if self._down and one.attempts:
                self._down = False
                self._tell(f"webhook {self._hook.name} takes notices again")
        elif answer.final:
            self._queue.give_up(one, answer.problem, time)
            if answer.status not in self._refused:
                self._refused.add(answer.status)
                self._tell(
                    f"webhook {self._hook.name} {answer.problem}: such notices are not sent again; see its "
                    f"address, its --webhook-format and {TOKEN}"
                )
        else:
            self._failed += 1
            self._queue.put_off(one, answer.problem, time + backoff(one.attempts + 1, answer.wait))
            self._rest_until = time + backoff(self._failed, answer.wait)
            if not self._down:
                self._down = True
                self._tell(f"webhook {self._hook.name} {answer.problem}; notices wait in the database for it")
            return False
        return True

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def close(self) -> None:
        """Send what is due, as far as that takes no time, and end; the rest waits for the next process."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(_FAREWELL)
        self._abandoned.set()

    def _run(self) -> None:
        pause, last = 0.0, False
        while not last:
            last = self._ending.wait(pause)
            try:
                pause = self.step()
            except StateError:  # whoever commits rows says so
                pause = _DATABASE_PAUSE
