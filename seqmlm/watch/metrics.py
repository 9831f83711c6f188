"""Counters of a running watch, served on a port as JSON and in the format of Prometheus.

The counters are computed when they are requested. There is no password. The port is on the loopback address
unless the user sets another one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Self

from prometheus_client import CollectorRegistry, generate_latest, make_wsgi_app, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from seqmlm.errors import StateError, UsageError

Values = Mapping[str, Any]
"""Counters by the names in `_METRICS`: a number, a mapping of numbers, or None if unknown."""

_LOOK = 0.2  # seconds between two samples
_SAMPLES = 4096

# The name, help text and labels of each metric, by key of the values. Names of counters end in "_total".
_METRICS = {
    "lines": ("lines_total", "Lines read."),
    "alarms": ("alarms_total", "Rows with an alarm."),
    "gaps": ("gaps_total", "Places where bytes could not be read."),
    "lag_bytes": ("lag_bytes", "Bytes of complete lines that are not read yet."),
    "lag_seconds": ("lag_seconds", "Upper limit of the age of the oldest of these bytes, in seconds."),
    "incidents": ("incidents", "Incidents that are not resolved.", "state"),
    "webhooks": ("notices", "Notices for webhooks, by state of delivery.", "webhook", "state"),
}


class Lag:
    """The lag of a reader behind the end of its files.

    Attributes:
        bytes: number of bytes that were not read at the last sample.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._samples: list[tuple[float, int]] = []  # time, and total bytes at that time, read or not
        self.bytes = 0

    def look(self, measure: Callable[[], tuple[int, int]]) -> None:
        """Take a sample, unless the last one is less than 0.2 s old.

        Args:
            measure: returns the number of bytes that were read, and that were not read.
        """
        time = self._clock()
        if self._samples and time - self._samples[-1][0] < _LOOK:
            return
        done, self.bytes = measure()
        samples = [*(self._samples if self.bytes else ()), (time, done + self.bytes)]
        while len(samples) > 1 and samples[1][1] <= done:
            del samples[0]
        self._samples = samples if len(samples) < _SAMPLES else samples[::2]

    @property
    def seconds(self) -> float:
        """An upper limit of the age of the oldest unread byte, in seconds.

        For bytes that existed at the start, the age counts from the start.
        """
        return self._clock() - self._samples[0][0] if self._samples and self.bytes else 0.0


def counters(watching: Any) -> Values:
    """The counters of the whole stream of a `watch.scoring.Watching`; can be called from any thread.

    The number of incidents is None if the model may not show it. Counters from the database are None while
    the database cannot be used.
    """
    outbox, model, registry = watching.outbox, watching.model, watching.registry
    values: dict[str, Any] = {
        **dict.fromkeys(_METRICS),
        "lines": outbox.follower.lines,
        "gaps": outbox.gaps,
        "lag_bytes": watching.lag.bytes,
        "lag_seconds": round(watching.lag.seconds, 3),
    }
    if model.rated:
        values["alarms"] = model.counts.alarms
    with suppress(StateError):
        if model.shows_incidents:
            incidents = registry.incidents(stream=outbox.stream, standing=True)
            states = [incident.state for incident in incidents]
            values["incidents"] = {name: states.count(name) for name in ("open", "acknowledged")}
        values["webhooks"] = registry.notices(outbox.stream).counts()
    return values


class Families(Collector):
    """Counters in the form that `prometheus_client` accepts."""

    def __init__(self, values: Values) -> None:
        self._values = values

    def collect(self) -> Iterator[Metric]:
        for key, (name, meaning, *labels) in _METRICS.items():
            if self._values.get(key) is None:
                continue
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            family = kind(f"seqmlm_{name}", meaning, labels=labels)
            for names, number in _flat(self._values[key]):
                family.add_metric([name.encode("utf-8", "replace").decode() for name in names], number)
            yield family


def _flat(value: Any, names: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The numbers in nested mappings, each with its keys."""
    if not isinstance(value, Mapping):
        yield names, value
        return
    for name, part in value.items():
        yield from _flat(part, (*names, str(name)))


def prometheus(values: Values) -> str:
    """The counters in the text format of Prometheus."""
    return generate_latest(Families(values)).decode()


class MetricsServer:
    """An HTTP server for counters. It starts when it is created, and stops at the end of its context.

    Args:
        host: address to listen on.
        port: port to listen on; 0 selects a free port.

    Attributes:
        values: returns the counters, in another thread; None while the model is being loaded.
        address: the URL of the server.

    Raises:
        UsageError: the port is in use, or the address does not belong to this machine.
    """

    values: Callable[[], Values] | None = None

    def __init__(self, host: str, port: int) -> None:
        try:
            self._server, self._thread = start_http_server(port, host, CollectorRegistry())
        except (OSError, OverflowError) as error:
            raise UsageError(
                f"--metrics-port {port} of {host} cannot be used: "
                f"{getattr(error, 'strerror', None) or error}; choose another port, or 0 for any free port"
            ) from None
        self._server.set_app(self._answer)
        # Ignores errors of connections: the client has gone. Errors in an answer are reported elsewhere.
        self._server.handle_error = lambda request, address: None  # type: ignore[assignment,method-assign]
        self.address = f"http://{f'[{host}]' if ':' in host else host}:{self._server.server_port}"

    def _answer(self, environ: Any, start: Any) -> Iterable[bytes]:
        values, path = self.values, environ["PATH_INFO"]
        if path == "/metrics" and values is not None:
            return make_wsgi_app(Families(values()))(environ, start)  # type: ignore[no-any-return]
        kind = "text/plain"
        if path not in ("/metrics", "/metrics.json"):
            status, text = "404 Not Found", "see /metrics and /metrics.json\n"
        elif values is None:
            status, text = "503 Service Unavailable", "not yet: the model is being loaded\n"
        else:
            status, kind, text = "200 OK", "application/json", json.dumps(values()) + "\n"
        start(status, [("Content-Type", kind)])
        return [text.encode()]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
