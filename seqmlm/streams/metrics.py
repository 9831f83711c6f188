"""What a scorer that runs tells about itself: counters, as JSON and as text of Prometheus, on a port.

Whoever asks gets the numbers of that moment; nothing is computed for them before. There is no password: the
port is on the loopback address unless somebody asks for another.
"""

from __future__ import annotations

import json
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET6
from types import TracebackType
from typing import Any, Self

from seqmlm.errors import UsageError

Values = Mapping[str, Any]
"""Counters by name: a number, numbers by name, or None for one that is not known."""

_LOOK = 0.2  # seconds between two samples
_SAMPLES = 4096

# Key of the values -> name, type and meaning of the metric.
_METRICS = {
    "lines": ("lines_total", "counter", "Lines read."),
    "bytes": ("bytes_total", "counter", "Bytes read, of what compressed files expand to."),
    "records": ("records_total", "counter", "Records scored: windows or sessions."),
    "rows": ("rows_total", "counter", "Rows judged."),
    "alarms": ("alarms_total", "counter", "Rows that alarmed."),
    "never_seen": ("never_seen_total", "counter", "Rows that name something no training line had."),
    "shadow_rows": ("shadow_rows_total", "counter", "Rows that the version beside (--shadow) judged, too."),
    "shadow_failed": ("shadow_failed_rows_total", "counter", "Rows that the version beside could not judge."),
    "shadow_alarms": ("shadow_alarms_total", "counter", "Rows that the version beside would alarm."),
    "shadow_common": (
        "shadow_common_alarms_total",
        "counter",
        "Rows that alarmed, and that the version beside would alarm, too.",
    ),
    "shadow_alone": (
        "shadow_alone_alarms_total",
        "counter",
        "Rows that the version beside alone would alarm.",
    ),
    "served_alone": (
        "shadow_served_alone_alarms_total",
        "counter",
        "Rows judged by both that alarmed, and that the version beside would not alarm.",
    ),
    "bad": ("bad_records_total", "counter", "Records that could not be read."),
    "gaps": ("gaps_total", "counter", "Places where bytes were destroyed before they could be read."),
    "recent_low_p": (
        "recent_p_below_half_ratio",
        "gauge",
        "Share of the last 200 rows with p-values of at most .5; half while all is normal.",
    ),
    "recent_lowest_p": (
        "recent_p_below_twentieth_ratio",
        "gauge",
        "Share of the last 200 rows with p-values of at most .05; a twentieth while all is normal.",
    ),
    "shifted": ("shifted", "gauge", "1 while the last 200 p-values are not those of normal data."),
    "calibration_rows": (
        "calibration_rows",
        "gauge",
        "Rows of the stream that p-values are ranks among; 0 for those the model was calibrated with.",
    ),
    "lag_bytes": ("lag_bytes", "gauge", "Bytes of whole lines that are there and were not read."),
    "lag_seconds": ("lag_seconds", "gauge", "For how long the oldest of them has been there, at most."),
}


class Lag:
    """How far behind the end of its files a reader is.

    Args:
        clock: seconds; one that never goes back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: list[tuple[float, int]] = []  # time, and bytes that were there then, read or not
        self._now = (0, 0)

    def look(self, read: Callable[[], tuple[int, int]]) -> None:
        """Take a sample, if the last one is some time ago.

        Args:
            read: gives the bytes that were read so far, and those that were not.
        """
        time = self._clock()
        if self._seen and time - self._seen[-1][0] < _LOOK:
            return
        done, unread = self._now = read()
        if not unread:
            self._seen.clear()
        seen = [*self._seen, (time, done + unread)]
        while len(seen) > 1 and seen[1][1] <= done:
            del seen[0]
        self._seen = seen if len(seen) < _SAMPLES else seen[::2]

    @property
    def bytes(self) -> int:
        """That were not read."""
        return self._now[1]

    @property
    def seconds(self) -> float:
        """Since the oldest of them came, at most; of a backlog at the beginning, since then."""
        seen = self._seen
        return self._clock() - seen[0][0] if seen and self.bytes else 0.0


def prometheus(values: Values) -> str:
    """Counters in the text format of Prometheus.

    Args:
        values: those of `_METRICS`, and "info" (texts by name), "incidents" (numbers by state), "webhooks"
            (numbers by state by name) and "p_values" ("upper", "rows" and "sum").
    """
    lines = []

    def metric(name: str, kind: str, meaning: str, samples: Sequence[tuple[str, Any]]) -> None:
        lines.append(f"# HELP seqmlm_{name} {meaning}")
        lines.append(f"# TYPE seqmlm_{name} {kind}")
        lines.extend(f"seqmlm_{name}{labels} {value}" for labels, value in samples)

    if values.get("info"):
        metric("info", "gauge", "What is scored, and by what.", [(_labels(values["info"]), 1)])
    for key, (name, kind, meaning) in _METRICS.items():
        if values.get(key) is not None:
            metric(name, kind, meaning, [("", values[key])])
    if values.get("incidents") is not None:
        states = [(_labels({"state": state}), number) for state, number in values["incidents"].items()]
        metric("incidents", "gauge", "Incidents that are not resolved.", states)
    if values.get("webhooks") is not None:
        told = [
            (_labels({"webhook": name, "state": state}), number)
            for name, states in values["webhooks"].items()
            for state, number in states.items()
        ]
        metric("notices", "gauge", "Notices for webhooks, by what became of them.", told)
    if values.get("p_values") is not None:
        metric("p_value", "histogram", "P-values of the rows; uniform where all is normal.", [])
        total = 0
        for upper, number in zip(values["p_values"]["upper"], values["p_values"]["rows"], strict=True):
            total += number
            lines.append(f"seqmlm_p_value_bucket{_labels({'le': upper})} {total}")
        lines.append(f'seqmlm_p_value_bucket{{le="+Inf"}} {total}')
        lines.append(f"seqmlm_p_value_sum {values['p_values']['sum']}")
        lines.append(f"seqmlm_p_value_count {total}")
    return "".join(f"{line}\n" for line in lines)


def _labels(given: Mapping[str, Any]) -> str:
    def quoted(value: Any) -> str:
        text = str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return text.encode("utf-8", "replace").decode()

    return "{" + ",".join(f'{name}="{quoted(value)}"' for name, value in given.items()) + "}"


class _Handler(BaseHTTPRequestHandler):
    timeout = 10  # seconds for which whoever asks may be silent
    server: _Server

    def do_GET(self) -> None:
        path, values = self.path.partition("?")[0], self.server.values
        if path not in ("/metrics", "/metrics.json"):
            self._answer(404, "text/plain; charset=utf-8", "see /metrics and /metrics.json\n")
        elif values is None:
            self._answer(503, "text/plain; charset=utf-8", "not yet: the model is being loaded\n")
        elif path == "/metrics":
            self._answer(200, "text/plain; version=0.0.4; charset=utf-8", prometheus(values()))
        else:
            self._answer(200, "application/json", json.dumps(values()) + "\n")

    do_HEAD = do_GET

    def _answer(self, status: int, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        return "seqmlm"

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody wants to read who asked."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    values: Callable[[], Values] | None = None

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # without asking for the name of this machine
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever asked may go before the answer; anything else is a fault of ours."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Server6(_Server):
    address_family = AF_INET6


class MetricsServer:
    """Answers on a port from the moment it is made until it is closed; use as a context manager.

    Args:
        host: address to listen on.
        port: 0 for any that is free.

    Attributes:
        address: as a link begins.

    Raises:
        UsageError: the port is taken, or the address is none of this machine's.
    """

    def __init__(self, host: str, port: int) -> None:
        kind = _Server6 if ":" in host else _Server
        try:
            self._server = kind((host, port), _Handler)
        except (OSError, OverflowError) as error:
            raise UsageError(
                f"--metrics-port {port} of {host} cannot be used: "
                f"{getattr(error, 'strerror', None) or error}; choose another port, or 0 for one that is free"
            ) from None
        shown = f"[{host}]" if ":" in host else host
        self.address = f"http://{shown}:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def tell(self, values: Callable[[], Values]) -> None:
        """From now on answer with these, which are asked for in another thread."""
        self._server.values = values

    def close(self) -> None:
        """Listen no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
