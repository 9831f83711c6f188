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
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import accumulate
from socket import AF_INET, AF_INET6
from typing import Any

from seqmlm.errors import UsageError

Values = Mapping[str, Any]
"""Counters by name: a number, numbers by name, or None for one that is not known."""

_LOOK = 0.2  # seconds between two samples
_SAMPLES = 4096

# Key of the values -> name and meaning of the metric, and its labels; counters end in "_total".
_METRICS = {
    "lines": ("lines_total", "Lines read."),
    "bytes": ("bytes_total", "Bytes read, of what compressed files expand to."),
    "records": ("records_total", "Records scored: windows or sessions."),
    "rows": ("rows_total", "Rows judged."),
    "alarms": ("alarms_total", "Rows that alarmed."),
    "never_seen": ("never_seen_total", "Rows that name something no training line had."),
    "shadow_rows": ("shadow_rows_total", "Rows that the version beside (--shadow) judged, too."),
    "shadow_failed": ("shadow_failed_rows_total", "Rows that the version beside could not judge."),
    "shadow_alarms": ("shadow_alarms_total", "Rows that the version beside would alarm."),
    "shadow_common": (
        "shadow_common_alarms_total",
        "Rows that alarmed, and that the version beside would alarm, too.",
    ),
    "shadow_alone": ("shadow_alone_alarms_total", "Rows that the version beside alone would alarm."),
    "served_alone": (
        "shadow_served_alone_alarms_total",
        "Rows judged by both that alarmed, and that the version beside would not alarm.",
    ),
    "bad": ("bad_records_total", "Records that could not be read."),
    "gaps": ("gaps_total", "Places where bytes were destroyed before they could be read."),
    "recent_low_p": (
        "recent_p_below_half_ratio",
        "Share of the last 200 rows with p-values of at most .5; half while all is normal.",
    ),
    "recent_lowest_p": (
        "recent_p_below_twentieth_ratio",
        "Share of the last 200 rows with p-values of at most .05; a twentieth while all is normal.",
    ),
    "shifted": ("shifted", "1 while the last 200 p-values are not those of normal data."),
    "calibration_rows": (
        "calibration_rows",
        "Rows of the stream that p-values are ranks among; 0 for those the model was calibrated with.",
    ),
    "lag_bytes": ("lag_bytes", "Bytes of whole lines that are there and were not read."),
    "lag_seconds": ("lag_seconds", "For how long the oldest of them has been there, at most."),
    "incidents": ("incidents", "Incidents that are not resolved.", "state"),
    "webhooks": ("notices", "Notices for webhooks, by what became of them.", "webhook", "state"),
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
        values: those of `_METRICS`, and "info" (texts by name) and "p_values" ("upper", "rows" and "sum").
    """
    lines = []

    def metric(name: str, kind: str, meaning: str, samples: Mapping[str, Any]) -> None:
        lines.extend([f"# HELP seqmlm_{name} {meaning}", f"# TYPE seqmlm_{name} {kind}"])
        lines.extend(f"seqmlm_{name}{labels} {value}" for labels, value in samples.items())

    if info := values.get("info"):
        metric("info", "gauge", "What is scored, and by what.", {_labels(info): 1})
    for key, (name, meaning, *labels) in _METRICS.items():
        if values.get(key) is not None:
            kind = "counter" if name.endswith("_total") else "gauge"
            samples = {
                _labels(dict(zip(labels, names, strict=True))): value for names, value in _flat(values[key])
            }
            metric(name, kind, meaning, samples)
    if (found := values.get("p_values")) is not None:
        edges, below = [*found["upper"], "+Inf"], [*accumulate([*found["rows"], 0])]
        buckets = {
            f"_bucket{_labels({'le': edge})}": number for edge, number in zip(edges, below, strict=True)
        }
        meaning = "P-values of the rows; uniform where all is normal."
        metric("p_value", "histogram", meaning, buckets | {"_sum": found["sum"], "_count": below[-1]})
    return "".join(f"{line}\n" for line in lines)


def _flat(value: Any, names: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Numbers by name, by name, each with its names."""
    if not isinstance(value, Mapping):
        yield names, value
        return
    for name, one in value.items():
        yield from _flat(one, (*names, name))


def _labels(given: Mapping[str, Any]) -> str:
    def quoted(value: Any) -> str:
        text = str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return text.encode("utf-8", "replace").decode()

    return "{" + ",".join(f'{name}="{quoted(value)}"' for name, value in given.items()) + "}" if given else ""


class _Handler(BaseHTTPRequestHandler):
    timeout = 10  # seconds for which whoever asks may be silent
    server: MetricsServer

    def do_GET(self) -> None:
        path, values = self.path.partition("?")[0], self.server.values
        if path not in ("/metrics", "/metrics.json"):
            self.send_error(404, explain="see /metrics and /metrics.json")
        elif values is None:
            self.send_error(503, explain="not yet: the model is being loaded")
        elif path == "/metrics":
            self._answer("text/plain; version=0.0.4; charset=utf-8", prometheus(values()))
        else:
            self._answer("application/json", json.dumps(values()) + "\n")

    do_HEAD = do_GET

    def _answer(self, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        return "seqmlm"

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody wants to read who asked."""


class MetricsServer(ThreadingHTTPServer):
    """Answers on a port from the moment it is made until it is closed; use as a context manager.

    Args:
        host: address to listen on.
        port: 0 for any that is free.

    Attributes:
        address: as a link begins.
        values: gives what is answered, asked for in another thread; None before there is any.

    Raises:
        UsageError: the port is taken, or the address is none of this machine's.
    """

    values: Callable[[], Values] | None = None

    def __init__(self, host: str, port: int) -> None:
        self.address_family = AF_INET6 if ":" in host else AF_INET
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            raise UsageError(
                f"--metrics-port {port} of {host} cannot be used: "
                f"{getattr(error, 'strerror', None) or error}; choose another port, or 0 for one that is free"
            ) from None
        self.address = f"http://{f'[{host}]' if ':' in host else host}:{self.server_port}"
        self._thread = threading.Thread(target=self.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # without asking for the name of this machine
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever asked may go before the answer; anything else is a fault of ours."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()
