"""A server on this machine that takes what is posted to it, and answers what a test tells it to."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


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
    """Listens on a free port of the loopback address; use as a context manager.

    Args:
        statuses: of the answers, one after another; then 200.
        headers: of all answers.
    """

    def __init__(self, statuses: Sequence[int] = (), headers: Mapping[str, str] | None = None) -> None:
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

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
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
