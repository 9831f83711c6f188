"""The built-in log sample: interleaved requests to a shop's service, one in twenty with a labelled fault.

A request walks through a state machine and writes one line per state. Several requests are active at a time.
A fault leaves a line out, adds one, swaps two, waits long before one, or adds a line that nothing else
writes. Each fault breaks the rules of the machine, or its pauses if it is slow. A model that knows the
machine can therefore find it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from seqmlm.domains.logs import jobs
from seqmlm.domains.samples import LABELS, Sample, checked_count, heading, write_sample

START, END = "start", "end"


class Template(NamedTuple):
    """A message of one component. Fields in braces are drawn anew for each line."""

    name: str
    component: str
    text: str


class State(NamedTuple):
    """A step of a request: its template, and the median pause before it in seconds."""

    name: str
    template: str
    pause: float


TEMPLATES = (
    Template("accept_get", "gateway", "GET accepted from {address} for /articles/{number}"),
    Template("accept_post", "gateway", "POST accepted from {address} for /orders"),
    Template("token", "auth", "token of user {user} verified in {millis} ms"),
    Template("expired", "auth", "token of user {user} expired, asking for a new one"),
    Template("hit", "cache", "hit for key article:{number}"),
    Template("miss", "cache", "miss for key article:{number}"),
    Template("query", "store", "sent query {number} to replica {small}"),
    Template("rows", "store", "got {small} rows of query {number}"),
    Template("fill", "cache", "stored key article:{number} for {small} minutes"),
    Template("valid", "orders", "order {number} is valid, {small} items"),
    Template("reserve", "stock", "reserved {small} pieces of article {number}"),
    Template("charge", "payment", "charging account {number} with {small}.{cents} EUR"),
    Template("busy", "payment", "provider {address} is busy, trying again"),
    Template("paid", "payment", "charge {hex} confirmed by {address}"),
    Template("mail", "mailer", "receipt {number} queued for user {user}"),
    Template("answer_get", "gateway", "answered 200 with {number} bytes in {millis} ms"),
    Template("answer_post", "gateway", "answered 201 in {millis} ms"),
)

# Two states write the template of the token. An earlier line decides which path the request takes after it.
STATES = (
    State("accept_get", "accept_get", 0.0),
    State("accept_post", "accept_post", 0.0),
    State("token_get", "token", 0.02),
    State("token_post", "token", 0.02),
    State("expired_get", "expired", 0.02),
    State("expired_post", "expired", 0.02),
    State("hit", "hit", 0.005),
    State("miss", "miss", 0.005),
    State("query", "query", 0.01),
    State("rows", "rows", 0.15),
    State("fill", "fill", 0.01),
    State("valid", "valid", 0.03),
    State("reserve", "reserve", 0.05),
    State("charge", "charge", 0.02),
    State("busy", "busy", 0.4),
    State("paid", "paid", 0.8),
    State("mail", "mail", 0.01),
    State("answer_get", "answer_get", 0.01),
    State("answer_post", "answer_post", 0.01),
)

TRANSITIONS: tuple[tuple[str, str, float], ...] = (
    (START, "accept_get", 0.6),
    (START, "accept_post", 0.4),
    ("accept_get", "token_get", 0.9),
    ("accept_get", "expired_get", 0.1),
    ("accept_post", "token_post", 0.9),
    ("accept_post", "expired_post", 0.1),
    ("expired_get", "token_get", 1.0),
    ("expired_post", "token_post", 1.0),
    ("token_get", "hit", 0.4),
    ("token_get", "miss", 0.6),
    ("hit", "answer_get", 1.0),
    ("miss", "query", 1.0),
    ("query", "rows", 1.0),
    ("rows", "query", 0.2),
    ("rows", "fill", 0.8),
    ("fill", "answer_get", 1.0),
    ("token_post", "valid", 1.0),
    ("valid", "reserve", 1.0),
    ("reserve", "charge", 1.0),
    ("charge", "busy", 0.15),
    ("charge", "paid", 0.85),
    ("busy", "charge", 1.0),
    ("paid", "mail", 0.7),
    ("paid", "answer_post", 0.3),
    ("mail", "answer_post", 1.0),
    ("answer_get", END, 1.0),
    ("answer_post", END, 1.0),
)

# Lines that only faults write ("StaleLeaseError: bucket vanished"). There are many, so few are written twice.
UNSEEN = "{0}{1}Error: {2} {3}"
UNSEEN_WORDS = (
    ("Corrupt", "Orphaned", "Unreadable", "Stale", "Duplicate", "Truncated", "Poisoned", "Misaligned"),
    ("Segment", "Descriptor", "Journal", "Lease", "Snapshot", "Checksum", "Cursor", "Page"),
    ("bucket", "pointer", "replica", "ledger", "shard", "index", "lock", "record"),
    ("detached", "rejected", "overflowed", "abandoned", "quarantined", "diverged", "leaked", "vanished"),
)

TEMPLATE_OF = {state.name: state.template for state in STATES}
PAUSE_OF = {state.name: state.pause for state in STATES}
TEXT_OF = {template.name: template for template in TEMPLATES}
FOLLOWS = frozenset((TEMPLATE_OF.get(a, a), TEMPLATE_OF.get(b, b)) for a, b, _ in TRANSITIONS)


def is_allowed(templates: list[str]) -> bool:
    """Whether the machine lets every template follow the one before it."""
    return all(pair in FOLLOWS for pair in zip([START, *templates], [*templates, END], strict=True))


# Requests

DEFAULT_COUNT = 2000
KINDS = ("missing", "extra", "reordered", "slow", "unseen")
FAULTY = 1 / 20
"""Share of requests with a fault."""

FILE = "service.log"

_BEGIN = datetime(2024, 3, 4, 6, 0, 0, tzinfo=UTC)
_BETWEEN_REQUESTS = 0.1  # seconds, on average; several requests are active at a time
_SLOWER = 60.0
_SPREAD = 0.3  # spread of the logarithm of a pause


@dataclass(slots=True)
class Request:
    """One request of the file.

    Args:
        session: its id.
        states: the state of each line, "" for a line that no state writes.
        texts: the message of each line.
        times: seconds of each line from the beginning of the file.
        kind: "normal", or the kind of its fault.
        at: indices of the lines that show the fault.
        lines: 1-based lines of the file, once written.
    """

    session: str
    states: list[str]
    texts: list[str]
    times: list[float]
    kind: str = "normal"
    at: tuple[int, ...] = ()
    lines: list[int] = field(default_factory=list)


def draw(n: int, seed: int) -> tuple[list[Request], list[str]]:
    """`n` requests in the order in which they begin, and all lines of the file."""
    rng = np.random.Generator(np.random.Philox(seed))
    begins = np.cumsum(rng.exponential(_BETWEEN_REQUESTS, n)).tolist()
    requests = [_request(begin, rng) for begin in begins]
    timed_lines = (
        (*line, request)
        for request in requests
        for line in zip(request.times, request.states, request.texts, strict=True)
    )
    lines: list[str] = []
    for time, state, text, request in sorted(timed_lines, key=lambda line: line[0]):
        component = TEXT_OF[TEMPLATE_OF[state]].component if state else "core"
        lines.append(_line(time, component, f"{text} request_id={request.session}"))
        request.lines.append(len(lines))
    return requests, lines


def requests_truth(n: int, seed: int, requests: list[Request]) -> dict[str, Any]:
    """The planted requests as written to `truth.json` (docs/reference/samples.md)."""
    return {
        **heading("logs", n, seed, FILE, "1-based lines of the file"),
        "templates": [template._asdict() for template in TEMPLATES],
        "states": [state._asdict() for state in STATES],
        "transitions": [list(transition) for transition in TRANSITIONS],
        "sessions": [
            {"session": r.session, "kind": r.kind, "states": r.states, "lines": r.lines} for r in requests
        ],
        "anomalies": [
            {"kind": r.kind, "session": r.session, "lines": [r.lines[i] for i in r.at]}
            for r in requests
            if r.kind != "normal"
        ],
    }


def write(out: Path, n: int | None, seed: int) -> Sample:
    """Write `service.log`, `labels.json`, `jobs.trace` (`seqmlm.domains.logs.jobs`) and `truth.json`."""
    count = checked_count(n, DEFAULT_COUNT)
    requests, lines = draw(count, seed)
    planted_jobs, job_lines = jobs.draw(count, seed)
    fields = np.random.Generator(np.random.Philox(key=[seed, 2]))
    traced = (
        _line(line.time, line.component, f"{_fill_fields(line.text, fields)} request_id={line.session}")
        for line in job_lines
    )
    all_truth = requests_truth(count, seed, requests) | jobs.jobs_truth(planted_jobs)
    faults = (
        {"id": request.session, "fault": "no" if request.kind == "normal" else "yes"} for request in requests
    )
    return write_sample(out, FILE, lines, all_truth, {jobs.FILE: traced, LABELS: map(json.dumps, faults)})


def _request(begin: float, rng: np.random.Generator) -> Request:
    """A request that begins at a time: its states, its messages and their times, and perhaps a fault."""
    states = _walk(rng)
    kind, slow = "normal", -1
    at: tuple[int, ...] = ()
    if rng.random() < FAULTY:
        kind = KINDS[int(rng.integers(len(KINDS)))]
        states, at = _add_fault(states, kind, rng)
        slow = at[0] if kind == "slow" else -1
    pauses = [PAUSE_OF.get(state, 0.02) * float(rng.lognormal(0.0, _SPREAD)) for state in states]
    pauses = [max(pause, 1e-4) * (_SLOWER if i == slow else 1.0) for i, pause in enumerate(pauses)]
    return Request(
        session=f"{int(rng.integers(1 << 48)):012x}",
        states=states,
        texts=[_message(state, rng) for state in states],
        times=(begin + np.cumsum(pauses)).tolist(),
        kind=kind,
        at=at,
    )


def _walk(rng: np.random.Generator) -> list[str]:
    """The states of a request: a random walk through the machine."""
    states: list[str] = []
    state = START
    while True:
        ways = [(to, share) for here, to, share in TRANSITIONS if here == state]
        place = np.searchsorted(np.cumsum([share for _, share in ways]), rng.random(), side="right")
        state = ways[min(int(place), len(ways) - 1)][0]
        if state == END:
            return states
        states.append(state)


def _add_fault(states: list[str], kind: str, rng: np.random.Generator) -> tuple[list[str], tuple[int, ...]]:
    """Add a fault of some kind to the states, and return the lines that show it."""
    if kind == "slow":
        # This pause is long enough to stand out from the pauses of other lines.
        longest = max(range(1, len(states)), key=lambda i: PAUSE_OF[states[i]])
        return states, (longest,)
    if kind == "unseen":
        at = int(rng.integers(1, len(states)))
        return [*states[:at], "", *states[at:]], (at,)
    ways = [
        way
        for way in _faulty_variants(states, kind)
        if not is_allowed([TEMPLATE_OF[state] for state in way[0]])
    ]
    return ways[int(rng.integers(len(ways)))]


def _faulty_variants(states: list[str], kind: str) -> list[tuple[list[str], tuple[int, ...]]]:
    """Every way to leave out, add or swap lines between the first and the last."""
    inner = range(1, len(states) - 1)
    if kind == "missing":
        return [([*states[:i], *states[i + 1 :]], (i,)) for i in inner]
    if kind == "extra":
        names = [state.name for state in STATES]
        return [([*states[:i], name, *states[i:]], (i,)) for i in inner for name in names]
    return [([*states[:i], states[i + 1], states[i], *states[i + 2 :]], (i, i + 1)) for i in inner[:-1]]


def _message(state: str, rng: np.random.Generator) -> str:
    """The message that a state writes; without a state, a message that nothing else writes."""
    if not state:
        return UNSEEN.format(*(words[int(rng.integers(len(words)))] for words in UNSEEN_WORDS))
    return _fill_fields(TEXT_OF[TEMPLATE_OF[state]].text, rng)


def _fill_fields(text: str, rng: np.random.Generator) -> str:
    """A text with random values in place of its fields in braces."""
    number, small, cents, byte, user = (int(v) for v in rng.integers((90000, 20, 90, 250, 400)))
    return text.format(
        number=number + 1000,
        small=small + 1,
        cents=cents + 10,
        address=f"10.0.{byte % 8}.{byte}",
        user=f"u{user:04d}",
        millis=small + cents,
        hex=f"0x{number:08x}",
    )


def _line(time: float, component: str, text: str) -> str:
    """A line of the file: time, host, component with process, and message."""
    at = (_BEGIN + timedelta(seconds=time)).isoformat(timespec="microseconds")
    process = 100 + sum(map(ord, component))
    return f"{at} shop1 {component}[{process}]: {text}"
