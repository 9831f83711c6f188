"""The state machine behind the built-in log sample: what a small shop's service says, and when."""

from __future__ import annotations

from dataclasses import dataclass

START, END = "start", "end"


@dataclass(frozen=True, kw_only=True)
class Template:
    """A message of one component; fields in braces are drawn anew for each line."""

    name: str
    component: str
    text: str


@dataclass(frozen=True, kw_only=True)
class State:
    """A step of a request: the template it writes and the median pause before it, in seconds."""

    name: str
    template: str
    pause: float


def _template(name: str, component: str, text: str) -> Template:
    return Template(name=name, component=component, text=text)


TEMPLATES = (
    _template("accept_get", "gateway", "GET accepted from {address} for /articles/{number}"),
    _template("accept_post", "gateway", "POST accepted from {address} for /orders"),
    _template("token", "auth", "token of user {user} verified in {millis} ms"),
    _template("expired", "auth", "token of user {user} expired, asking for a new one"),
    _template("hit", "cache", "hit for key article:{number}"),
    _template("miss", "cache", "miss for key article:{number}"),
    _template("query", "store", "sent query {number} to replica {small}"),
    _template("rows", "store", "got {small} rows of query {number}"),
    _template("fill", "cache", "stored key article:{number} for {small} minutes"),
    _template("valid", "orders", "order {number} is valid, {small} items"),
    _template("reserve", "stock", "reserved {small} pieces of article {number}"),
    _template("charge", "payment", "charging account {number} with {small}.{cents} EUR"),
    _template("busy", "payment", "provider {address} is busy, trying again"),
    _template("paid", "payment", "charge {hex} confirmed by {address}"),
    _template("mail", "mailer", "receipt {number} queued for user {user}"),
    _template("answer_get", "gateway", "answered 200 with {number} bytes in {millis} ms"),
    _template("answer_post", "gateway", "answered 201 in {millis} ms"),
)

# Two states write the token's template: which path a request takes after it was decided two lines before.
STATES = tuple(
    State(name=name, template=template, pause=pause)
    for name, template, pause in (
        ("accept_get", "accept_get", 0.0),
        ("accept_post", "accept_post", 0.0),
        ("token_get", "token", 0.02),
        ("token_post", "token", 0.02),
        ("expired_get", "expired", 0.02),
        ("expired_post", "expired", 0.02),
        ("hit", "hit", 0.005),
        ("miss", "miss", 0.005),
        ("query", "query", 0.01),
        ("rows", "rows", 0.15),
        ("fill", "fill", 0.01),
        ("valid", "valid", 0.03),
        ("reserve", "reserve", 0.05),
        ("charge", "charge", 0.02),
        ("busy", "busy", 0.4),
        ("paid", "paid", 0.8),
        ("mail", "mail", 0.01),
        ("answer_get", "answer_get", 0.01),
        ("answer_post", "answer_post", 0.01),
    )
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

# Lines that only faults write ("StaleLeaseError: bucket vanished"): so many that few are written twice.
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


def allowed(templates: list[str]) -> bool:
    """Whether the machine lets every template follow the one before it."""
    return all(pair in FOLLOWS for pair in zip([START, *templates], [*templates, END], strict=True))
