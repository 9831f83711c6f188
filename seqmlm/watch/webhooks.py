"""Webhooks: incidents as plain JSON or as alerts for Alertmanager's API, sent until they are accepted.

Notices are queued in the database, in the same transaction as their rows (`watch.store.NoticeQueue`). This
module makes their text. A thread sends them, so that reading never waits for the network.

If a notice cannot be delivered, it is sent again after a pause that doubles up to five minutes. The pauses
are stored in the database, so that the next process continues. A refused notice is given up, with one
message. Most 4xx answers and redirects count as refusals. Redirects are not followed.

An address may contain secrets, even in its path. The database and all messages identify a webhook by its host
and a hash of its path. The address is only in the memory of the process.
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
"""Seconds to wait for an answer of a webhook."""

TOKEN = "SEQMLM_WEBHOOK_TOKEN"
"""The environment variable with the token."""

_PATHS = {"plain": "", "alertmanager": "/api/v2/alerts"}  # the path if an address has none
FORMATS = tuple(_PATHS)

_LASTS = timedelta(days=1)  # duration of an alert that is never resolved
_MOMENT = 0.5  # seconds between two checks of an empty queue
_DATABASE_PAUSE = 5.0  # seconds to wait if the database cannot be used
_FAREWELL = 3.0  # seconds to send due notices at the end of the process
_CHARACTERS = 1000  # longest text
_VALUES = 20  # longest list of texts

_FIELDS = (
    *("id", "model", "place", "state", "verdict", "title", "reason", "template", "new", "expected"),
    *("first_line", "last_line", "first_time", "last_time", "severity", "host", "service"),
    *("rows", "lines", "p_value", "opened", "updated"),
)
"""The fields of an incident in a notice."""


@dataclass(frozen=True, kw_only=True)
class Webhook:
    """An address to which notices are posted.

    Args:
        name: its name for the database and messages: the host and a hash of the path.
        url: its URL without user and password.
        format: one of `FORMATS`.
        authorization: value of the header Authorization, or None.
    """

    name: str
    url: str = field(repr=False)
    format: str
    authorization: str | None = field(repr=False)

    @property
    def unsafe(self) -> bool:
        """Whether a secret is sent unencrypted over a network."""
        host = urlsplit(self.url).hostname or ""
        local = host == "localhost"
        with suppress(ValueError):
            local = local or ipaddress.ip_address(host).is_loopback
        return self.url.startswith("http:") and self.authorization is not None and not local


def parse_webhook(url: str, style: str = "plain", token: str = "") -> Webhook:
    """Make a webhook from an address.

    Args:
        url: an http or https URL. A user and password in it become a header.
        style: one of `FORMATS`.
        token: the value of the variable `TOKEN`; "" for none.

    Raises:
        UsageError: the address, format or token is invalid. The message quotes no secret.
    """
    if style not in FORMATS:
        raise UsageError(f"--webhook-format cannot be {style!r}{nearest(style, FORMATS)}")
    token = token.strip()
    if not token.isascii() or len(token.split()) > 1:
        raise UsageError(f"{TOKEN} must be a token of ASCII characters without spaces")
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
    """The parts of an address.

    Raises:
        UsageError: the address is invalid. The message does not quote it.
    """
    with suppress(ValueError):
        parts = urlsplit(url)
        complete = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        if complete and all("!" <= letter <= "~" for letter in url):
            return parts
    raise UsageError(
        "--webhook is an address such as https://alerts.example.org/hook, with all characters outside ASCII "
        "written as %XX"
    )


# Contents of notices


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The origin of incidents.

    Args:
        output: the file of the rows.
        sensitive: whether the data are sensitive, so that notices must not quote lines.
        host: name of this machine.
    """

    output: str
    sensitive: bool = False
    host: str = field(default_factory=socket.gethostname)

    @classmethod
    def of(cls, output: str, problems: Problems) -> Origin:
        """The origin of a stream with this output. Its `problems` know whether the data are sensitive."""
        return cls(output=output, sensitive=problems.sensitive)


def notices(webhook: Webhook | None, origin: Origin) -> Callable[[Sequence[Change]], list[Notice]]:
    """A function that makes notices from changes of incidents.

    A muted or acknowledged incident gets only a notice of its end. If a transaction is repeated, the same
    change gets the same key.
    """

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
    """An incident as JSON values: texts of limited length, and times as ISO 8601 in UTC.

    For sensitive data, all texts from the lines are removed.
    """
    fields = {name: getattr(incident, name) for name in _FIELDS}
    if origin.sensitive:
        fields |= {"reason": "", "template": "", "new": (), "expected": ()}
        fields |= dict.fromkeys(("severity", "host", "service"))
        see = f"see 'seqmlm incidents show {incident.id}'"
        fields["title"] = f"incident {incident.id} in sensitive data; {see}"
    return {name: _bounded(value) for name, value in fields.items()}


def _bounded(value: Any) -> Any:
    """A value with texts and lists of limited length, and without surrogates, which some parsers refuse."""
    if isinstance(value, str):
        text = value.encode("utf-8", "replace").decode("utf-8")
        return text if len(text) <= _CHARACTERS else text[: _CHARACTERS - 3] + "..."
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return [_bounded(part) for part in value[:_VALUES]] if isinstance(value, list | tuple) else value


def _plain(key: str, kind: str, incident: Mapping[str, Any], origin: Origin) -> Any:
    return {"key": key, "kind": kind, "host": origin.host, "output": origin.output, "incident": incident}


def _alertmanager(key: str, kind: str, incident: Mapping[str, Any], origin: Origin) -> Any:
    """A list with one alert. Alertmanager identifies it by its labels, which stay the same while it lasts."""
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
    """The answer to an attempt to send a notice.

    Args:
        status: the HTTP status; None if there was no answer.
        problem: the problem, without quoting the answer.
        wait: seconds to wait, as requested by the webhook.
    """

    status: int | None
    problem: str = ""
    wait: float = 0.0

    @property
    def accepted(self) -> bool:
        return self.status is not None and 200 <= self.status < 300

    @property
    def final(self) -> bool:
        """Whether another attempt would get the same answer."""
        return self.status is not None and 300 <= self.status < 500 and self.status not in (408, 429)


def post(webhook: Webhook, notice: Notice, timeout: float = TIMEOUT) -> Answer:
    """Send a notice once."""
    import requests  # imported here, because most runs do not need it

    headers = {"Content-Type": "application/json", "User-Agent": "seqmlm", "Idempotency-Key": notice.key}
    if webhook.authorization is not None:
        headers["Authorization"] = webhook.authorization
    try:
        with requests.post(
            webhook.url,
            json.dumps(notice.body).encode("ascii"),
            headers=headers,
            timeout=timeout,
            allow_redirects=False,  # another host must not get the token
            stream=True,  # the body of the answer is not read
            auth=lambda request: request,  # only the header above, nothing from a .netrc file
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
    """The system's message for an error, or its type. The messages of the library quote addresses."""
    cause: BaseException | None = error
    while cause is not None:
        if text := getattr(cause, "strerror", None):
            return str(text)
        cause = cause.__cause__ or cause.__context__
    return type(error).__name__


def backoff(attempts: int, pause: float = 0.0) -> timedelta:
    """The pause before the next attempt: 1 s, doubled after each failure, at most `LONGEST`.

    Args:
        attempts: number of failed attempts.
        pause: shortest pause that the webhook requested, in seconds.
    """
    return timedelta(seconds=min(max(2.0 ** min(attempts - 1, 20), pause), LONGEST.total_seconds()))


class Courier:
    """A thread that sends the notices of a webhook between `start` and `close`.

    While the webhook cannot be reached, there is one attempt after each of a series of growing pauses. If
    only one notice cannot be delivered, notices about other incidents are still sent. One message reports
    that the webhook is down, and another that it answers again.

    Args:
        webhook: the webhook.
        queue: its notices.
        tell: receives messages for the user.
        send: sends a notice once.
        clock: returns the current time.
    """

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
        """Send all due notices, and return the seconds until the next call.

        Raises:
            StateError: the database cannot be used. Notices whose delivery was not recorded are sent again.
        """
        time = self._clock()
        pause = self._paused_until - time
        if timedelta() < pause <= LONGEST:  # a longer pause means that the clock was set back
            return min(pause.total_seconds(), _MOMENT)
        for notice in self._queue.due(self._webhook.name, time):
            if not self._attempt(notice):
                break
        return _MOMENT

    def _attempt(self, notice: Notice) -> bool:
        """Send a notice, record the result, and return whether the webhook answered."""
        name, answer = self._webhook.name, self._send(self._webhook, notice)
        time = self._clock()
        if answer.accepted:
            self._queue.settle(notice, done=time)
            self._failures = 0
            if self._down and notice.attempts:
                self._down = False
                self._tell(f"webhook {name} accepts notices again")
        elif answer.final:
            self._queue.settle(notice, done=time, error=answer.problem)
            if answer.status not in self._refused:
                self._refused.add(answer.status)
                self._tell(
                    f"webhook {name} {answer.problem}: refused notices are not sent again; check its "
                    f"address, its --webhook-format and {TOKEN}"
                )
        else:
            self._failures += 1
            due = time + backoff(notice.attempts + 1, answer.wait)
            self._queue.settle(notice, due=due, error=answer.problem)
            self._paused_until = time + backoff(self._failures, answer.wait)
            if not self._down:
                self._down = True
                self._tell(f"webhook {name} {answer.problem}; its notices wait in the database")
        return answer.accepted or answer.final

    def close(self) -> None:
        """Stop the thread. It sends due notices for at most 3 s. The others wait for the next process."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(_FAREWELL)

    def _run(self) -> None:
        pause, last = 0.0, False
        while not last:
            last = self._ending.wait(pause)
            try:
                pause = self.step()
            except StateError:  # the thread that commits rows reports it
                pause = _DATABASE_PAUSE
