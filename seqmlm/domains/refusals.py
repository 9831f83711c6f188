"""Refusals of requests that a field cannot serve, for callers that were handed the field.

They need the field's values alone, and not the module that declares what a field is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from seqmlm.errors import UsageError

if TYPE_CHECKING:
    from seqmlm.domains.field import Field

_LACKING = {
    "changes": "only source code is reviewed, and domain {} is not source code: use 'seqmlm score'",
    "clusters": "domain {} has no identity clusters; set data.split to 'key'",
    "structure": "domain {} does not say what its maps of dependence mean",
    "times": "sequences of domain {} have no times before and after which can be asked",
    "until": "sequences of domain {} have no times at which they could be cut",
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
