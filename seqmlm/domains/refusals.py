"""Errors for requests that a field cannot serve.

They need only the field's values, and not the module that declares fields.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from seqmlm.errors import UsageError

if TYPE_CHECKING:
    from seqmlm.domains.field import Field

_LACKING = {
    "changes": "domain {} is not source code, and only source code can be reviewed; use 'seqmlm score'",
    "clusters": "domain {} has no identity clusters; set data.split to 'key'",
    "structure": "domain {} has no decoder for maps of dependence",
    "times": "sequences of domain {} have no times, so nothing can be predicted at a time",
    "until": "sequences of domain {} have no times, so they cannot be cut at a time",
    "variants": "domain {} has no variants; seqmlm score compares whole sequences",
}


def missing_capability(domain: Field, capability: str) -> UsageError:
    """The error for a capability that a field lacks."""
    return UsageError(_LACKING[capability].format(domain.name))


def past_reader(domain: Field) -> Callable[[Any, float], Any | None]:
    """`Times.history_at` of the field; for a field without times, a function that raises UsageError."""

    def refuse(raw: Any, time: float) -> Any | None:
        raise missing_capability(domain, "until")

    return refuse if domain.times is None else domain.times.history_at
