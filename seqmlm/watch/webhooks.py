"""Webhooks: incidents as plain JSON or as alerts of Alertmanager's API, sent until they arrive.

Notices are queued in the database, in the transaction of the rows they come from (`watch.store.NoticeQueue`);
here they are put into words, and a thread sends them, so that reading never waits for the network. A notice
that cannot be delivered is tried again after times that double up to five minutes, also by the next process:
these times lie in the database, so the library that sends tries once. A notice that is refused (most of 4xx,
and redirects, which are not followed) is given up, and said once.

An address may hold secrets, in its path too. The database and every message name a webhook by its host and a
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
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from http.client import responses
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from seqmlm.data.problems import Problems
from seqmlm.errors import StateError, UsageError, nearest
from seqmlm.watch.store import LONGEST, Change, Incident, Notice, NoticeQueue, now

TIMEOUT = 10.0
"""Seconds for which a webhook may be silent."""

TOKEN = "SEQMLM_WEBHOOK_TOKEN"
"""The variable of the environment that holds the token."""

_PATHS = {"plain": "", "alertmanager": "/api/v2/alerts"}  # where an address has none
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
"""Fields of an incident in a notice."""


@dataclass(frozen=True, kw_only=True)
class Webhook:
    """Where notices are posted."""

    name: str  # for database and messages: host, and a hash of the path
    url: str = field(repr=False)  # without user and password
    format: str  # one of `FORMATS`
    authorization: str | None = field(repr=False)  # the header

    @property
    def unsafe(self) -> bool:
        """Whether a secret travels over a network as plain text."""
        host = urlsplit(self.url).hostname or ""
        local = host == "localhost"
        with suppress(ValueError):
            local = local or ipaddress.ip_address(host).is_loopback
        return self.url.startswith("http:") and self.authorization is not None and not local


def parse_webhook(url: str, style: str = "plain", token: str = "") -> Webhook:
    """The webhook of an address.

    Args:
        url: http or https. A user and password in it become a header.
        style: one of `FORMATS`.
        token: that of `TOKEN`; "" for none.

    Raises:
        UsageError: no address, no such format, or a token with other characters; no secret is quoted.
    """
    if style not in FORMATS:
        raise UsageError(f"--webhook-format cannot be {style!r}{nearest(style, FORMATS)}")
    token = token.strip()
    if not token.isascii() or len(token.split()) > 1:
        raise UsageError(f"{TOKEN} is one token of ASCII characters without spaces, for the one --webhook")
    parts = _address(url)
    host = parts.netloc.rpartition("@")[2].lower()
    path = parts.path if parts.path.strip("/") else _PATHS[style] or parts.path
    authorization = f"Bearer {token}" if token not in ("", "-") else None
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = f"Basic {base64.b64encode(pair.encode()).decode()}"
    return Webhook(
        name=f"{parts.scheme}://{host} ({blake2b(path.encode(), digest_size=4).hexdigest()})",
        url=urlunsplit((parts.scheme, host, path, parts.query, "")),
        format=style,
        authorization=authorization,
    )


def _address(url: str) -> SplitResult:
    """The parts of an address; the error does not quote it."""
    with suppress(ValueError):
        parts = urlsplit(url)
        complete = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        if complete and all("!" <= letter <= "~" for letter in url):
            return parts
    raise UsageError(
        "--webhook is an address such as https://alerts.example.org/hook, in which other characters than "
        "those of ASCII are written as %XX"
    )


# What is said


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where incidents come from: the file of the rows and the name of this machine; of `sensitive` data
    nothing that a line says may be told."""

    output: str
    sensitive: bool = False
    host: str = field(default_factory=socket.gethostname)

    @classmethod
    def of(cls, output: str, problems: Problems) -> Origin:
        """The origin of a stream with these rows; its problems know whether its data may be quoted."""
        return cls(output=output, sensitive=problems.sensitive)


def notices(webhook: Webhook | None, origin: Origin) -> Callable[[Sequence[Change]], list[Notice]]:
    """A function that makes the notices of changes of incidents: of one that is muted or acknowledged of its
    end alone. The same change has the same key, if its transaction is repeated."""

    def make(changes: Sequence[Change]) -> list[Notice]:
        if webhook is None:
            return []
        return [
            _notice(webhook, change, origin)
            for change in changes
            if change.kind == "resolved" or not change.incident.silences
        ]

    return make


def _notice(webhook: Webhook, change: Change, origin: Origin) -> Notice:
    incident = change.incident
    identity = [webhook.name, origin.host, origin.output, incident.stream_id, incident.row, incident.rows]
    identity += [change.kind]
    identity += [at.astimezone(UTC).isoformat() for at in (incident.opened, incident.updated)]
    key = blake2b(json.dumps(identity).encode(), digest_size=16).hexdigest()
    body = _BODIES[webhook.format](key, change.kind, incident_fields(incident, origin), origin)
    return Notice(sink=webhook.name, key=key, incident=incident.id, kind=change.kind, body=body)


def incident_fields(incident: Incident, origin: Origin) -> dict[str, Any]:
    """An incident as JSON can hold it: texts of bounded length, times as ISO 8601 in UTC; sensitive data
    without what the lines say."""
    fields = {name: getattr(incident, name) for name in _FIELDS}
    if origin.sensitive:
        fields |= {"reason": "", "template": "", "new": (), "expected": ()}
        fields |= dict.fromkeys(("severity", "host", "service"))
        see = f"see 'seqmlm incidents show {incident.id}'"
        fields["title"] = f"incident {incident.id} in sensitive data; {see}"
    return {name: _bounded(value) for name, value in fields.items()}


def _bounded(value: Any) -> Any:
    """Texts cut off, and without half surrogates, which not every reader of JSON takes."""
    if isinstance(value, str):
        text = value.encode("utf-8", "replace").decode("utf-8")
        return text if len(text) <= _CHARACTERS else text[: _CHARACTERS - 3] + "..."
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return [_bounded(part) for part in value[:_VALUES]] if isinstance(value, list | tuple) else value


def _plain(key: str, kind: str, incident: Mapping[str, Any], origin: Origin) -> Any:
    return {"key": key, "kind": kind, "host": origin.host, "output": origin.output, "incident": incident}


def _alertmanager(key: str, kind: str, incident: Mapping[str, Any], origin: Origin) -> Any:
    """A list of one alert. Its labels, by which it is recognised, are the same as long as it lasts."""
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


_BODIES = {"plain": _plain, "alertmanager": _alertmanager}


# Sending


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer to one attempt."""

    status: int | None  # of HTTP; None where there was no answer
    problem: str = ""  # without anything that the webhook has said
    wait: float = 0.0  # seconds that the webhook asks for

    @property
    def accepted(self) -> bool:
        return self.status is not None and 200 <= self.status < 300

    @property
    def final(self) -> bool:
        """Whether another attempt would be answered the same."""
        return self.status is not None and 300 <= self.status < 500 and self.status not in (408, 429)


def post(webhook: Webhook, notice: Notice, timeout: float = TIMEOUT) -> Answer:
    """Send a notice once."""
    import requests  # which most watchings do not need

    headers = {"Content-Type": "application/json", "User-Agent": "seqmlm", "Idempotency-Key": notice.key}
    if webhook.authorization is not None:
        headers["Authorization"] = webhook.authorization
    try:
        with requests.post(
            webhook.url,
            json.dumps(notice.body).encode("ascii"),
            headers=headers,
            timeout=timeout,
            allow_redirects=False,  # to a host that must not have the token
            stream=True,  # what the webhook says is not read
            auth=lambda request: request,  # the header above, and none of a .netrc
        ) as answer:
            status, pause = answer.status_code, answer.headers.get("Retry-After", "").strip()
    except (requests.RequestException, OSError, ValueError) as error:
        return Answer(status=None, problem=f"cannot be reached ({_why(error)})")
    return Answer(
        status=status,
        problem="" if 200 <= status < 300 else f"answers {status} {responses.get(status, '')}".strip(),
        wait=float(pause) if pause.isdecimal() and len(pause) < 6 else 0.0,
    )


def _why(error: BaseException) -> str:
    """The system's own word for it, or the kind of an error; the texts of the library quote addresses."""
    cause: BaseException | None = error
    while cause is not None:
        if text := getattr(cause, "strerror", None):
            return str(text)
        cause = cause.__cause__ or cause.__context__
    return type(error).__name__


def backoff(attempts: int, pause: float = 0.0) -> timedelta:
    """The time after so many failed attempts until the next: 1 s, twice that each time, or what the webhook
    asks for, in seconds; at most `LONGEST`."""
    return timedelta(seconds=min(max(2.0 ** min(attempts - 1, 20), pause), LONGEST.total_seconds()))


class Courier:
    """Sends the notices of a webhook, in a thread between `start` and `close`.

    While the webhook cannot be reached, it is asked once in a time that grows. A notice that alone cannot be
    delivered does not keep back those of other incidents. That a webhook is down is told once, and so is that
    it answers again."""

    def __init__(
        self,
        webhook: Webhook,
        queue: NoticeQueue,
        tell: Callable[[str], None],
        *,
        send: Callable[[Webhook, Notice], Answer] = post,
        clock: Callable[[], datetime] = now,
    ) -> None:
        self._webhook, self._queue, self._tell, self._send, self._clock = webhook, queue, tell, send, clock
        self._failures, self._paused_until = 0, clock()
        self._down, self._refused = False, set[int | None]()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="webhook", daemon=True)
        self.start = self._thread.start

    def step(self) -> float:
        """Send what is due; the seconds until there may be more; StateError: the database cannot be used;
        what was sent and not noted is sent again."""
        time = self._clock()
        pause = self._paused_until - time
        if timedelta() < pause <= LONGEST:  # longer only where the clock went back
            return min(pause.total_seconds(), _MOMENT)
        for notice in self._queue.due(self._webhook.name, time):
            if not self._attempt(notice):
                break
        return _MOMENT

    def _attempt(self, notice: Notice) -> bool:
        """Whether the webhook answers."""
        name, answer = self._webhook.name, self._send(self._webhook, notice)
        time = self._clock()
        if answer.accepted:
            self._queue.settle(notice, done=time)
            self._failures = 0
            if self._down and notice.attempts:
                self._down = False
                self._tell(f"webhook {name} takes notices again")
        elif answer.final:
            self._queue.settle(notice, done=time, error=answer.problem)
            if answer.status not in self._refused:
                self._refused.add(answer.status)
                self._tell(
                    f"webhook {name} {answer.problem}: such notices are not sent again; see its address, its "
                    f"--webhook-format and {TOKEN}"
                )
        else:
            self._failures += 1
            due = time + backoff(notice.attempts + 1, answer.wait)
            self._queue.settle(notice, due=due, error=answer.problem)
            self._paused_until = time + backoff(self._failures, answer.wait)
            if not self._down:
                self._down = True
                self._tell(f"webhook {name} {answer.problem}; notices wait in the database for it")
        return answer.accepted or answer.final

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
