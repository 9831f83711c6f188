"""Webhooks: incidents as plain JSON, alerts of Alertmanager's API or logs of OTLP, sent until they arrive.

What is to be told is queued in the database, in the transaction of the rows it comes from
(`watch.store.NoticeQueue`); here it is put into words, and a thread for each webhook sends it, so that
reading never waits for the network. What cannot be delivered is tried again after times that double up to
five minutes, by the clock, also by the next process: these times lie in the database, so the library that
sends tries once. A notice that is refused (most of 4xx, and redirects, which are not followed) is given up,
and said once.

Addresses may hold secrets, in their path too. The database and every message name a webhook by its host and a
hash of its path; its address is nowhere but in the memory of the process.
"""

from __future__ import annotations

import base64
import ipaddress
import json
import socket
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from http.client import responses
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from seqmlm.errors import StateError, UsageError, nearest
from seqmlm.watch.store import LONGEST, Change, Incident, Notice, NoticeQueue, now

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
    """Where notices are posted."""

    name: str  # what is stored and shown: host, and a hash of the path
    url: str = field(repr=False)  # without what is before the host
    format: str  # one of `FORMATS`
    authorization: str | None = field(repr=False)  # the header

    @property
    def unsafe(self) -> bool:
        """Whether a secret travels over a network as plain text."""
        host = urlsplit(self.url).hostname or ""
        own = host == "localhost"
        with suppress(ValueError):
            own = own or ipaddress.ip_address(host).is_loopback
        return self.url.startswith("http:") and self.authorization is not None and not own


def webhooks(urls: Sequence[str], formats: Sequence[str] = (), tokens: str = "") -> list[Webhook]:
    """The webhooks of some addresses.

    Args:
        urls: http or https. A user and password in one become a header.
        formats: one for all of them, or one each; none: "plain".
        tokens: those of `TOKEN`, between spaces: one, if all are of one host, or one each; "-" is none.

    Raises:
        UsageError: an address that is none, or formats or tokens that do not fit; no secret is quoted.
    """
    if unknown := next((one for one in formats if one not in FORMATS), None):
        raise UsageError(f"--webhook-format cannot be {unknown!r}{nearest(unknown, FORMATS)}")
    if not tokens.isascii():
        raise UsageError(f"{TOKEN} has a character that tokens cannot have")
    given = {"--webhook-format": list(formats) or ["plain"], TOKEN: tokens.split() or ["-"]}
    for name, values in given.items():
        if len(values) not in (1, len(urls)):
            raise UsageError(
                f"{len(values)} values of {name} for {len(urls)} addresses of --webhook: give one for all, "
                "or one each, in their order"
            )
    parts = [_parts(url, number) for number, url in enumerate(urls, 1)]
    hosts = {_host(one) for one in parts}
    if len(hosts) > 1 and len(given[TOKEN]) == 1 and given[TOKEN] != ["-"]:
        raise UsageError(
            f"{TOKEN} has one token, and it would go to {len(hosts)} hosts: give one for each --webhook, "
            "in their order and between spaces, '-' for none"
        )
    styles, bearers = (values * (len(urls) if len(values) == 1 else 1) for values in given.values())
    found, same = list[Webhook](), Counter[str]()
    for one in map(_webhook, parts, styles, bearers):
        same[one.name] += 1
        found.append(one if same[one.name] == 1 else replace(one, name=f"{one.name}#{same[one.name]}"))
    return found


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


# What is said


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where incidents come from: the file of the rows, the version of this package and the name of this
    machine; of `sensitive` data nothing that a line says may be told."""

    output: str
    version: str
    sensitive: bool = False
    host: str = field(default_factory=socket.gethostname)


def notices(hooks: Sequence[Webhook], origin: Origin) -> Callable[[Sequence[Change]], list[Notice]]:
    """What makes the notices of changes of incidents: of one that is muted or acknowledged of its end alone.
    The same change has the same keys, if its transaction is repeated."""

    def made(changes: Sequence[Change]) -> list[Notice]:
        told = [one for one in changes if one.kind == "resolved" or not one.incident.silences]
        return [_notice(hook, change, origin) for change in told for hook in hooks]

    return made


def _notice(hook: Webhook, change: Change, origin: Origin) -> Notice:
    one = change.incident
    known = [hook.name, origin.host, origin.output, one.stream_id, one.row, one.rows, change.kind]
    known += [at.astimezone(UTC).isoformat() for at in (one.opened, one.updated)]
    key = blake2b(json.dumps(known).encode(), digest_size=16).hexdigest()
    body = _BODIES[hook.format](key, change.kind, incident_fields(one, origin), origin)
    return Notice(sink=hook.name, key=key, incident=one.id, kind=change.kind, body=body)


def incident_fields(incident: Incident, origin: Origin) -> dict[str, Any]:
    """An incident as JSON can hold it: texts of bounded length, times as ISO 8601 in UTC; sensitive data
    without what the lines say."""
    found = {name: getattr(incident, name) for name in _FIELDS}
    if origin.sensitive:
        found |= {"reason": "", "template": "", "new": (), "expected": ()}
        found |= dict.fromkeys(("severity", "host", "service"))
        see = f"see 'seqmlm incidents show {incident.id}'"
        found["title"] = f"incident {incident.id} in sensitive data; {see}"
    return {name: _bounded(value) for name, value in found.items()}


def _bounded(value: Any) -> Any:
    """Texts cut off, and without half surrogates, which not every reader of JSON takes."""
    if isinstance(value, str):
        value = value.encode("utf-8", "replace").decode("utf-8")
        return value if len(value) <= _CHARACTERS else value[: _CHARACTERS - 3] + "..."
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return [_bounded(one) for one in value[:_VALUES]] if isinstance(value, list | tuple) else value


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
    labels = {"alertname": "SeqmlmIncident", "incident": str(incident["id"]), "instance": origin.host}
    labels |= {"model": incident["model"], "place": incident["place"], "output": origin.output}
    updated = datetime.fromisoformat(incident["updated"])
    alert = {
        "labels": labels,
        "annotations": {name: str(value) for name, value in annotations.items() if value not in (None, "")},
        "startsAt": incident["opened"],
        "endsAt": (updated if kind == "resolved" else updated + _LASTS).isoformat(),
    }
    return [alert]


def _otlp(key: str, kind: str, incident: Mapping[str, Any], origin: Origin) -> Any:
    """One log record; whole numbers are texts, as JSON of protocol buffers has them."""
    nanoseconds = str(int(datetime.fromisoformat(incident["updated"]).timestamp() * 1_000_000) * 1000)
    values = {f"seqmlm.incident.{name}": value for name, value in incident.items() if name != "title"}
    values |= {"seqmlm.idempotency_key": key, "seqmlm.output": origin.output}
    number, severity = (9, "INFO") if kind == "resolved" else (13, "WARN")
    record = {
        "timeUnixNano": nanoseconds,
        "observedTimeUnixNano": nanoseconds,
        "severityNumber": number,
        "severityText": severity,
        "eventName": f"seqmlm.incident.{kind}",
        "body": {"stringValue": incident["title"]},
        "attributes": _attributes(values),
    }
    resource = {"attributes": _attributes({"service.name": "seqmlm", "host.name": origin.host})}
    scope = {"scope": {"name": "seqmlm", "version": origin.version}, "logRecords": [record]}
    return {"resourceLogs": [{"resource": resource, "scopeLogs": [scope]}]}


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
    """What came of one attempt."""

    status: int | None  # of HTTP; None where there was no answer
    problem: str = ""  # without anything that the webhook has said
    wait: float = 0.0  # seconds that the webhook asks for

    @property
    def taken(self) -> bool:
        return self.status is not None and 200 <= self.status < 300

    @property
    def final(self) -> bool:
        """Another attempt would be answered the same."""
        return self.status is not None and 300 <= self.status < 500 and self.status not in (408, 429)


def post(hook: Webhook, one: Notice, timeout: float = TIMEOUT) -> Answer:
    """Send a notice once."""
    import requests  # which most watchings do not need

    headers = {"Content-Type": "application/json", "User-Agent": "seqmlm", "Idempotency-Key": one.key}
    if hook.authorization is not None:
        headers["Authorization"] = hook.authorization
    try:
        with requests.post(
            hook.url,
            json.dumps(one.body).encode("ascii"),
            headers=headers,
            timeout=timeout,
            allow_redirects=False,  # to a host that must not have the token
            stream=True,  # what the webhook says is not read
            auth=lambda request: request,  # the header above, and none of a .netrc
        ) as answer:
            status, asked = answer.status_code, answer.headers.get("Retry-After", "").strip()
    except (requests.RequestException, OSError, ValueError) as error:
        return Answer(status=None, problem=f"cannot be reached ({_why(error)})")
    return Answer(
        status=status,
        problem="" if 200 <= status < 300 else f"answers {status} {responses.get(status, '')}".strip(),
        wait=float(asked) if asked.isdecimal() and len(asked) < 6 else 0.0,
    )


def _why(error: BaseException) -> str:
    """The system's own word for it, or the kind of an error; the texts of the library quote addresses."""
    one: BaseException | None = error
    while one is not None:
        if text := getattr(one, "strerror", None):
            return str(text)
        one = one.__cause__ or one.__context__
    return type(error).__name__


def backoff(attempts: int, asked: float = 0.0) -> timedelta:
    """The time after so many failed attempts until the next: 1 s, twice that each time, or what the webhook
    asks for, in seconds; at most `LONGEST`."""
    return timedelta(seconds=min(max(2.0 ** min(attempts - 1, 20), asked), LONGEST.total_seconds()))


class Courier:
    """Sends the notices of one webhook, in a thread of its own between `start` and `close`.

    While a webhook cannot be reached, it is asked once in a time that grows. A notice that alone cannot be
    delivered does not keep back those of other incidents. That a webhook is down is told once, and so is that
    it answers again."""

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
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="webhook", daemon=True)
        self.start = self._thread.start

    def step(self) -> float:
        """Send what is due; the seconds until there may be more; StateError: the database cannot be used;
        what was sent and not noted is sent again."""
        time = self._clock()
        rest = self._rest_until - time
        if timedelta() < rest <= LONGEST:  # longer only where the clock went back
            return min(rest.total_seconds(), _MOMENT)
        for one in self._queue.due(self._hook.name, time):
            if not self._attempt(one):
                break
        return _MOMENT

    def _attempt(self, one: Notice) -> bool:
        """Whether the webhook answers."""
        name, answer = self._hook.name, self._send(self._hook, one)
        time = self._clock()
        if answer.taken:
            self._queue.settle(one, done=time)
            self._failed = 0
            if self._down and one.attempts:
                self._down = False
                self._tell(f"webhook {name} takes notices again")
        elif answer.final:
            self._queue.settle(one, done=time, error=answer.problem)
            if answer.status not in self._refused:
                self._refused.add(answer.status)
                self._tell(
                    f"webhook {name} {answer.problem}: such notices are not sent again; see its address, its "
                    f"--webhook-format and {TOKEN}"
                )
        else:
            self._failed += 1
            due = time + backoff(one.attempts + 1, answer.wait)
            self._queue.settle(one, due=due, error=answer.problem)
            self._rest_until = time + backoff(self._failed, answer.wait)
            if not self._down:
                self._down = True
                self._tell(f"webhook {name} {answer.problem}; notices wait in the database for it")
        return answer.taken or answer.final

    def close(self) -> None:
        """Send what is due, as far as that takes no time, and end; the rest waits for the next process."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(_FAREWELL)

    def _run(self) -> None:
        pause, last = 0.0, False
        while not last:
            last = self._ending.wait(pause)
            try:
                pause = self.step()
            except StateError:  # whoever commits rows says so
                pause = _DATABASE_PAUSE
