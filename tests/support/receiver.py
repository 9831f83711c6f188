"""An incident to tell of, and a server on this machine that takes what is posted to it."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from seqmlm.watch.store import Incident

START = datetime(2026, 3, 5, 10, 0, tzinfo=UTC)


@dataclass(frozen=True)
class Posted:
    """One request as it came."""

    path: str
    headers: Mapping[str, str]
    raw: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.raw)


class Receiver:
    """Listens on a port of the loopback address; use as a context manager.

    Args:
        port: 0 for one that is free.
        statuses: of the answers, one after another; then 200.
        headers: of all answers.
    """

    def __init__(
        self, statuses: Sequence[int] = (), headers: Mapping[str, str] | None = None, *, port: int = 0
    ) -> None:
        self.posted: list[Posted] = []
        self.statuses, answers = list(statuses), dict(headers or {})
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.posted.append(Posted(self.path, dict(self.headers), raw))
                self.send_response(receiver.statuses.pop(0) if receiver.statuses else 200)
                for name, value in {**answers, "Content-Length": "0"}.items():
                    self.send_header(name, value)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    @property
    def keys(self) -> list[str]:
        return [one.headers["Idempotency-Key"] for one in self.posted]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class NoFiles:
    """A follower of files that nothing is known of, as an outbox is given it."""

    gaps: tuple[()] = ()

    def __init__(self, states: object = ()) -> None: ...

    def states(self) -> list[Any]:
        return []

    def close(self) -> None: ...


def incident(**changed: Any) -> Incident:
    """One that a stream might have."""
    given: dict[str, Any] = {
        "id": 7,
        "stream_id": 1,
        "row": 3,
        "model": "web:1",
        "place": "/logs/a.log",
        "what": "a value never seen",
        "reason": "a value that training never had",
        "template": "status=502",
        "new": ("status=502",),
        "expected": ("status=200",),
        "first_time": "2026-03-05T09:59:00+00:00",
        "last_time": None,
        "rows": 2,
        "lines": 8,
        "p_value": 0.0005,
        "start": 10,
        "end": 18,
        "opened": START,
        "updated": START + timedelta(minutes=3),
    }
    return Incident(**{**given, **changed})
