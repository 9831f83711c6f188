"""Counters of a watch that runs, as JSON and as Prometheus reads them, on a port.

Each answer has the numbers of that moment; nothing is computed for it before. There is no password: the
port is on the loopback address unless somebody asks for another.
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
"""Counters by the names of `_METRICS`: a number, numbers by name, or None for an unknown one."""

_LOOK = 0.2  # seconds between two samples
_SAMPLES = 4096

# Key of the values -> name and meaning of the metric, and its labels; counters end in "_total".
_METRICS = {
    "lines": ("lines_total", "Lines read."),
    "alarms": ("alarms_total", "Rows that alarmed."),
    "gaps": ("gaps_total", "Places where bytes could not be read."),
    "lag_bytes": ("lag_bytes", "Bytes of whole lines that are there and were not read."),
    "lag_seconds": ("lag_seconds", "For how long the oldest of them has been there, at most."),
    "incidents": ("incidents", "Incidents that are not resolved.", "state"),
    "webhooks": ("notices", "Notices for webhooks, by what became of them.", "webhook", "state"),
}


class Lag:
    """The distance of a reader from the end of its files: `bytes` that were not read, and for how long."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._samples: list[tuple[float, int]] = []  # time, and bytes that were there then, read or not
        self.bytes = 0

    def look(self, measure: Callable[[], tuple[int, int]]) -> None:
        """Take a sample, if the last one is some time ago, of the bytes that were read and those that were
        not."""
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
        """Seconds since the oldest of them came, at most; of a backlog at the beginning, since then."""
        return self._clock() - self._samples[0][0] if self._samples and self.bytes else 0.0


def counters(watching: Any) -> Values:
    """The counters of the whole stream of a `watch.scoring.Watching`, at any time, in any thread.

    Incidents are None where the model may not show their number, and so are the counters that only the
    database has while that cannot be used.
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
    """Counters as the library takes them."""

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
    """Numbers by name, by name, each with its names."""
    if not isinstance(value, Mapping):
        yield names, value
        return
    for name, part in value.items():
        yield from _flat(part, (*names, str(name)))


def prometheus(values: Values) -> str:
    """Counters in the text format of Prometheus."""
    return generate_latest(Families(values)).decode()


class MetricsServer:
    """Answers on a port (`address`) from the moment it is made until it is closed; use as a context manager.

    `values` gives the counters, in another thread; None before there are any. UsageError: the port is taken,
    or the address is none of this machine's.
    """

    values: Callable[[], Values] | None = None

    def __init__(self, host: str, port: int) -> None:
        try:
            self._server, self._thread = start_http_server(port, host, CollectorRegistry())
        except (OSError, OverflowError) as error:
            raise UsageError(
                f"--metrics-port {port} of {host} cannot be used: "
                f"{getattr(error, 'strerror', None) or error}; choose another port, or 0 for one that is free"
            ) from None
        self._server.set_app(self._answer)
        # Of a connection alone: whoever asked has gone. What fails in an answer is told elsewhere.
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
