"""What a watching that runs tells about itself: counters, as JSON and as Prometheus reads them, on a port.

Whoever asks gets the numbers of that moment; nothing is computed for them before. There is no password: the
port is on the loopback address unless somebody asks for another.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import accumulate
from typing import Any, Self

from prometheus_client import CollectorRegistry, generate_latest, make_wsgi_app, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from seqmlm import __version__
from seqmlm.errors import StateError, UsageError
from seqmlm.watch.config import ROLLING
from seqmlm.watch.judging import P_EDGES
from seqmlm.watch.versions import reference

Values = Mapping[str, Any]
"""Counters by name: a number, numbers by name, or None for one that is not known. Beside those of `_METRICS`
"info" has texts by name, and "p_values" has "upper", "rows" and "sum"."""

_LOOK = 0.2  # seconds between two samples
_SAMPLES = 4096
_BOTH = "Rows that the version beside (--shadow) judged, too"

# Key of the values -> name and meaning of the metric, and its labels; counters end in "_total".
_METRICS = {
    "lines": ("lines_total", "Lines read."),
    "bytes": ("bytes_total", "Bytes read, of what compressed files expand to."),
    "records": ("records_total", "Records scored: windows or sessions."),
    "rows": ("rows_total", "Rows judged."),
    "alarms": ("alarms_total", "Rows that alarmed."),
    "never_seen": ("never_seen_total", "Rows that name something no training line had."),
    "shadow_rows": ("shadow_rows_total", f"{_BOTH}."),
    "shadow_failed": ("shadow_failed_rows_total", "Rows that the version beside could not judge."),
    "shadow_alarms": ("shadow_alarms_total", f"{_BOTH}, and would alarm."),
    "shadow_common": ("shadow_common_alarms_total", f"{_BOTH}, and that both would alarm."),
    "shadow_alone": ("shadow_alone_alarms_total", f"{_BOTH}, and that it alone would alarm."),
    "served_alone": ("shadow_served_alone_alarms_total", f"{_BOTH}, and would not alarm as we did."),
    "bad": ("bad_records_total", "Records that could not be read."),
    "gaps": ("gaps_total", "Places where bytes could not be read."),
    "recent_low_p": ("recent_p_below_half_ratio", "Share of the last 200 p-values that are at most .5."),
    "recent_lowest_p": ("recent_p_below_twentieth_ratio", "Share of them that are at most .05."),
    "shifted": ("shifted", "1 while the last 200 p-values are not those of normal data."),
    "calibration_rows": ("calibration_rows", "Rows of the stream that p-values are ranks among, if any."),
    "lag_bytes": ("lag_bytes", "Bytes of whole lines that are there and were not read."),
    "lag_seconds": ("lag_seconds", "For how long the oldest of them has been there, at most."),
    "incidents": ("incidents", "Incidents that are not resolved.", "state"),
    "webhooks": ("notices", "Notices for webhooks, by what became of them.", "webhook", "state"),
}


class Lag:
    """How far behind the end of its files a reader is: `bytes` that were not read, and for how long."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: list[tuple[float, int]] = []  # time, and bytes that were there then, read or not
        self.bytes = 0

    def look(self, read: Callable[[], tuple[int, int]]) -> None:
        """Take a sample, if the last one is some time ago, of what was `read` so far, and what was not."""
        time = self._clock()
        if self._seen and time - self._seen[-1][0] < _LOOK:
            return
        done, self.bytes = read()
        seen = [*(self._seen if self.bytes else ()), (time, done + self.bytes)]
        while len(seen) > 1 and seen[1][1] <= done:
            del seen[0]
        self._seen = seen if len(seen) < _SAMPLES else seen[::2]

    @property
    def seconds(self) -> float:
        """Since the oldest of them came, at most; of a backlog at the beginning, since then."""
        return self._clock() - self._seen[0][0] if self._seen and self.bytes else 0.0


def counters(of: Any) -> Values:
    """What a `watch.scoring.Watching` tells of its whole stream; asked for in another thread at any time.

    Of sensitive data p-values, and what a shadow alone alarms, are not told (None). What only the database
    knows is None while that cannot be used.
    """
    config, judging, outbox, counts, plan = of.config, of.judging, of.outbox, of.counts, of.judging.plan
    info = {"model": config.model, "judge": reference(config, plan)}
    values: dict[str, Any] = dict.fromkeys(("info", *_METRICS, "p_values")) | {
        "info": {**info, "output": str(config.out), "version": __version__},
        "lines": outbox.follower.lines,
        "bytes": outbox.follower.bytes,
        "records": counts.asked,
        "rows": counts.rows,
        "never_seen": counts.never_seen,
        "bad": of.problems.bad_count,
        "gaps": outbox.gaps,
        "lag_bytes": of.lag.bytes,
        "lag_seconds": round(of.lag.seconds, 3),
    }
    rated, open_ = plan.alpha is not None, not plan.sensitive
    if rated:
        values["alarms"] = counts.alarms
    if config.calibration == ROLLING and judging.rolling is not None:
        values["calibration_rows"] = judging.rolling.rows
    if config.shadow is not None:
        values |= {name: getattr(counts, name) for name in ("shadow_rows", "shadow_failed")}
        if open_:  # counts of both tell small ones of one alone
            alarms, common, served = counts.shadow_alarms, counts.shadow_common, counts.shadow_served
            values |= {"shadow_alarms": alarms, "shadow_common": common}
            values |= {"shadow_alone": alarms - common, "served_alone": served - common}
    if plan.calibrated and open_:
        bins = list(counts.p_histogram)
        values["p_values"] = {"upper": list(P_EDGES), "rows": bins, "sum": counts.p_sum}
        if recent := counts.recent_shares(plan):
            values |= {f"recent_{name}": share for name, share in recent.items()}
            values["shifted"] = int(judging.shift is not None)
    with suppress(StateError):
        if rated and open_:
            states = [one.state for one in of.registry.incidents(stream=outbox.stream, standing=True)]
            values["incidents"] = {name: states.count(name) for name in ("open", "acknowledged")}
        values["webhooks"] = of.registry.notices(outbox.stream).counts()
    return values


class Families(Collector):
    """Counters as the library takes them."""

    def __init__(self, values: Values) -> None:
        self._values = values

    def collect(self) -> Iterator[Metric]:
        values = self._values
        if info := values.get("info"):
            yield _family("info", "What is scored, and by what.", tuple(info), [(tuple(info.values()), 1)])
        for key, (name, meaning, *labels) in _METRICS.items():
            if values.get(key) is not None:
                yield _family(name, meaning, labels, _flat(values[key]))
        if (found := values.get("p_values")) is not None:
            edges, below = [*map(str, found["upper"]), "+Inf"], accumulate([*found["rows"], 0])
            meaning = "P-values of the rows; uniform where all is normal."
            bins = list(zip(edges, below, strict=True))
            yield HistogramMetricFamily("seqmlm_p_value", meaning, buckets=bins, sum_value=found["sum"])


def _family(name: str, meaning: str, labels: Iterable[str], samples: Iterable[tuple[Any, float]]) -> Metric:
    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    family = kind(f"seqmlm_{name}", meaning, labels=list(labels))
    for names, value in samples:
        family.add_metric([str(one).encode("utf-8", "replace").decode() for one in names], value)
    return family


def _flat(value: Any, names: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Numbers by name, by name, each with its names."""
    if not isinstance(value, Mapping):
        yield names, value
        return
    for name, one in value.items():
        yield from _flat(one, (*names, name))


def prometheus(values: Values) -> str:
    """Counters in the text format of Prometheus."""
    return generate_latest(Families(values)).decode()


class MetricsServer:
    """Answers on a port (`address`) from the moment it is made until it is closed; use as a context manager.

    `values` gives what is answered, asked for in another thread; None before there is any. UsageError: the
    port is taken, or the address is none of this machine's.
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
